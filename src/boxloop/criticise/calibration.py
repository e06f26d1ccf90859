r"""Whether a model's probabilities are right, column by column.

Where x follows the model, :math:`u_j = P(X_j \le x_j)` is uniform (the probability integral transform, Rosenblatt
1952).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Generator, Tensor

from boxloop.criticise.adapt import as_model, check_columns, check_independent, open_rows
from boxloop.criticise.closed import GAUSSIAN
from boxloop.criticise.forward import latent_nodes, marginal
from boxloop.criticise.sampling import sample_rows
from boxloop.data import ConcatenatedRows, column_index, make_frame
from boxloop.numeric import RandomState, generator, single_threaded
from boxloop.types import Distribution, LatentModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVELS = (0.5, 0.8, 0.95)
SAMPLE = 20_000
"""Rows drawn from a model whose distribution functions have no closed form."""


@dataclass(frozen=True)
class Calibration:
    """Probability integral transforms of rows.

    Args:
        transform: (n, d), uniform in each column if the model is true; NaN where a value is missing.
        names: of the columns.
    """

    transform: NDArray[np.float64]
    names: tuple[str, ...]

    def table(self) -> Any:
        """One line a column: Kolmogorov's test of uniformity, and how often central intervals hold the value."""
        columns: dict[str, list[float]] = {"rows": [], "distance": [], "p_value": []}
        for level in LEVELS:
            columns[f"inside {level:.0%}"] = []
            columns[f"error {level:.0%}"] = []
        for values in self.transform.T:
            seen = values[~np.isnan(values)]
            test = stats.kstest(seen, "uniform")
            columns["rows"].append(len(seen))
            columns["distance"].append(float(test.statistic))
            columns["p_value"].append(float(test.pvalue))
            for level in LEVELS:
                columns[f"inside {level:.0%}"].append(float((np.abs(2 * seen - 1) <= level).mean()))
                columns[f"error {level:.0%}"].append((level * (1 - level) / len(seen)) ** 0.5)
        return make_frame(columns, list(self.names))

    @property
    def _fewest(self) -> int:
        """Values of the column that has the fewest: what chance allows it, it allows all."""
        seen = (~np.isnan(self.transform)).sum(0)
        return int(seen[seen > 0].min(initial=len(self.transform) or 1))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Observed less nominal probability of every column, with a band that holds all lines of a true model.

        The band is Kolmogorov's at 95 %, for all columns together. Counts have steps, and stray by half of one.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> uniform = np.random.default_rng(0).random((500, 2))
            >>> Calibration(uniform, ("height", "weight")).plot().get_xlabel()
            'probability under the model'
        """
        from boxloop.figures import probability_lines

        band = float(stats.kstwo.isf(0.05 / max(len(self.names), 1), self._fewest))
        return probability_lines(
            self.transform, self.names, band, ax, title="Probabilities, observed less nominal"
        )

    def plot_histogram(
        self, column: str | int = 0, ax: Axes | None = None, *, bins: int | None = None
    ) -> Axes:
        """A histogram of one column's transforms: level for a true model, a valley where it is too narrow.

        Args:
            column: its name or place.
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            bins: number of bars; by the number of rows when omitted.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> uniform = np.random.default_rng(0).random((500, 2))
            >>> len(Calibration(uniform, ("height", "weight")).plot_histogram("weight", bins=10).patches) >= 10
            True
        """
        from boxloop.figures import uniform_histogram

        place = column_index(self.names, column)
        values = self.transform[:, place]
        n = max(int((~np.isnan(values)).sum()), 1)
        count = int(np.clip(n // 20, 5, 20)) if bins is None else bins
        chance = np.array([0.025 / count, 1.0 - 0.025 / count])
        low, high = np.asarray(stats.binom.ppf(chance, n, 1.0 / count)) * count / n
        return uniform_histogram(values, (low, high), count, ax, title=f"Transforms of {self.names[place]}")

    def plot_coverage(self, ax: Axes | None = None) -> Axes:
        """How often central intervals of every probability hold the value.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> uniform = np.random.default_rng(0).random((500, 2))
            >>> Calibration(uniform, ("height", "weight")).plot_coverage().get_ylabel()
            'share of rows inside'
        """
        from boxloop.figures import coverage

        level = np.linspace(0.0, 1.0, 101)
        observed = np.full((len(level), len(self.names)), np.nan)
        for j, values in enumerate(self.transform.T):
            reach = np.sort(np.abs(2.0 * values[~np.isnan(values)] - 1.0))
            if len(reach):
                observed[:, j] = np.searchsorted(reach, level, side="right") / len(reach)
        band = 2.0 * np.sqrt(level * (1.0 - level) / self._fewest)
        return coverage(level, observed, self.names, band, ax, title="Coverage of central intervals")


@single_threaded
def calibration(model: object, X: Any, *, nodes: int = 4096, random_state: RandomState = 0) -> Calibration:
    r"""Probability integral transforms of held-out rows under a model.

    .. math:: u_{ij} = P(X_j \le x_{ij})

    Exact for mixtures and factor models with Gaussian laws; by quasi-Monte Carlo over z for decoders with Gaussian
    emissions; from drawn rows otherwise, ties at half their weight, so that counts are calibrated on average.
    Kolmogorov's p-values take the model as given: they are right when it was fitted to many more rows than X has.

    Args:
        model: whatever :func:`as_model` takes.
        X: rows.
        nodes: latent nodes where the transform is not exact.
        random_state: seed of nodes and draws.

    Example:
        >>> import numpy as np
        >>> from sklearn.mixture import GaussianMixture
        >>> rows = np.random.default_rng(0).normal(size=(2000, 2))
        >>> calibration(GaussianMixture(1).fit(rows[:1000]), rows[1000:]).transform.shape
        (1000, 2)
    """
    adapted = as_model(model)
    check_independent(adapted, "errors, bands and p-values of transforms are those")
    device = adapted.prior().mean.device
    stream = generator(random_state, device)
    source = open_rows(model, X, None, device)
    check_columns(adapted, source.n_columns)
    at = _distribution(adapted, nodes, stream)
    found = source.reduce(lambda rows, weight: ConcatenatedRows.of(at(rows.to(torch.float64)).cpu()))
    return Calibration(found.concatenate().numpy(), source.names)


def _distribution(model: LatentModel, nodes: int, stream: Generator) -> Any:
    """A function of rows (n, d): the distribution function of each column."""
    finite = marginal(model)
    if finite is not None and isinstance(finite[0], GAUSSIAN):
        return lambda rows: _normal(rows, *finite)
    if finite is None:
        laws = [model.emission(z) for z in latent_nodes(model.prior(), nodes, stream, quasi=True)]
        if all(isinstance(law, GAUSSIAN) for law in laws):
            return lambda rows: sum(
                _normal(rows, law, law.mean.new_full((len(law.mean),), 1.0 / nodes)) for law in laws
            )
    drawn = sample_rows(model, SAMPLE, stream).sort(dim=0).values
    return lambda rows: _ranks(rows, drawn)


def _normal(rows: Tensor, law: Distribution, weight: Tensor) -> Tensor:
    spread = law.covariance().diagonal().sqrt()
    total = torch.zeros_like(rows)
    for mean, deviation, share in zip(law.mean, spread.expand_as(law.mean), weight, strict=True):
        total += share * torch.special.ndtr((rows - mean) / deviation)
    return total


def _ranks(rows: Tensor, drawn: Tensor) -> Tensor:
    columns, sample = rows.mT.contiguous(), drawn.mT.contiguous()
    below = torch.searchsorted(sample, columns) + torch.searchsorted(sample, columns, right=True)
    return torch.where(torch.isnan(rows), torch.nan, below.mT / (2.0 * len(drawn)))
