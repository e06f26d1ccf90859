r"""Whether a model's probabilities are right: of values, column by column, and of classes.

Where x follows the model, :math:`u_j = P(X_j \le x_j)` is uniform (the probability integral transform, Rosenblatt
1952). Where probabilities of classes are right, events happen as often as they say. A calibration error averages
absolute values, so chance alone makes it positive: probabilities that are exactly right have one too. Here it stands
beside what chance would give, by drawing labels from the probabilities themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Generator, Tensor

from boxloop.criticise.adapt import as_model, check_column_count, check_independent_rows, open_rows_for_model
from boxloop.criticise.forward_moments import draw_latent_nodes, draw_rows, marginal_mixture
from boxloop.criticise.test_functions import GAUSSIAN
from boxloop.data import ConcatenatedRows, check_choice, check_count, column_index, make_frame
from boxloop.numeric import RandomState, generator, single_threaded
from boxloop.types import Distribution, LatentModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

LEVELS = (0.5, 0.8, 0.95)
DRAWN_ROWS = 20_000
"""Rows drawn from a model whose distribution functions have no closed form."""

TOLERANCE = 1e-4
"""Probabilities of a row may sum to 1 within this: float16 and float32 give no better."""

BINS = 15
"""As many as Guo et al. (2017) take."""
LABELS = 20_000_000
FEWEST_REPEATS, MOST_REPEATS = 200, 2000
"""Repeats behind the distribution by chance: as many as need ``LABELS`` random labels, between these."""


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
        """One line per column: Kolmogorov's test of uniformity, and how often central intervals hold the value."""
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
    def _fewest_values(self) -> int:
        """Values in the column with the fewest, which has the widest band."""
        seen = (~np.isnan(self.transform)).sum(0)
        return int(seen[seen > 0].min(initial=len(self.transform) or 1))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Observed minus nominal probability of every column, with a 95% band for a true model.

        The band is Kolmogorov's, for all columns together. Counts have steps, and deviate by half of one.

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

        band = float(stats.kstwo.isf(0.05 / max(len(self.names), 1), self._fewest_values))
        title = "Probabilities, observed minus nominal"
        return probability_lines(self.transform, self.names, band, ax, title=title)

    def plot_histogram(
        self, column: str | int = 0, ax: Axes | None = None, *, bins: int | None = None
    ) -> Axes:
        """A histogram of one column's transforms: flat for a true model, U-shaped where it is too narrow.

        Args:
            column: its name or index.
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            bins: number of bars; chosen by the number of rows when omitted.

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
        band = 2.0 * np.sqrt(level * (1.0 - level) / self._fewest_values)
        return coverage(level, observed, self.names, band, ax, title="Coverage of central intervals")


@single_threaded
def calibration(model: object, X: Any, *, nodes: int = 4096, random_state: RandomState = 0) -> Calibration:
    r"""Probability integral transforms of held-out rows under a model.

    .. math:: u_{ij} = P(X_j \le x_{ij})

    Rosenblatt (1952). Exact for mixtures and factor models with Gaussian densities; by quasi-Monte Carlo over z for
    decoders with Gaussian emissions; from drawn rows otherwise, ties at half their weight, so that counts are
    calibrated on average. Kolmogorov's p-values take the parameters as known: they are right when the model was fitted
    to many more rows than X has.

    Args:
        model: whatever :func:`as_model` takes.
        X: rows.
        nodes: latent nodes where the transform is not exact.
        random_state: seed of nodes and draws.

    Returns:
        :class:`Calibration`: the transforms, with a table and plots.

    Example:
        >>> import numpy as np
        >>> from sklearn.mixture import GaussianMixture
        >>> rows = np.random.default_rng(0).normal(size=(2000, 2))
        >>> calibration(GaussianMixture(1).fit(rows[:1000]), rows[1000:]).transform.shape
        (1000, 2)
    """
    adapted = as_model(model)
    check_independent_rows(adapted, "errors, bands and p-values of transforms are those")
    device = adapted.prior().mean.device
    stream = generator(random_state, device)
    source = open_rows_for_model(model, X, None, device)
    check_column_count(adapted, source.n_columns)
    transform = _make_marginal_cdf(adapted, nodes, stream)
    found = source.reduce(lambda rows, weight: ConcatenatedRows.of(transform(rows.to(torch.float64)).cpu()))
    return Calibration(found.concatenate().numpy(), source.names)


def _make_marginal_cdf(model: LatentModel, nodes: int, stream: Generator) -> Callable[[Tensor], Tensor]:
    """A function of rows (n, d): the distribution function of each column."""
    finite = marginal_mixture(model)
    if finite is not None and isinstance(finite[0], GAUSSIAN):
        return lambda rows: _normal_mixture_cdf(rows, *finite)
    if finite is None:
        blocks = [model.emission(z) for z in draw_latent_nodes(model.prior(), nodes, stream, quasi=True)]
        if all(isinstance(block, GAUSSIAN) for block in blocks):
            return lambda rows: sum(
                (_normal_mixture_cdf(rows, b, b.mean.new_full((len(b.mean),), 1.0 / nodes)) for b in blocks),
                start=torch.zeros_like(rows),
            )
    sample = draw_rows(model, DRAWN_ROWS, stream).sort(dim=0).values.mT.contiguous()

    def empirical_cdf(rows: Tensor) -> Tensor:
        columns = rows.mT.contiguous()
        below = torch.searchsorted(sample, columns) + torch.searchsorted(sample, columns, right=True)
        return torch.where(torch.isnan(rows), torch.nan, below.mT / (2.0 * DRAWN_ROWS))

    return empirical_cdf


def _normal_mixture_cdf(rows: Tensor, members: Distribution, weight: Tensor) -> Tensor:
    deviations = members.covariance().diagonal().sqrt().expand_as(members.mean)
    total = torch.zeros_like(rows)
    for mean, deviation, share in zip(members.mean, deviations, weight, strict=True):
        total += share * torch.special.ndtr((rows - mean) / deviation)
    return total


def to_numbers(value: Any, name: str) -> Array:
    """Finite float64 numbers from an array, tensor, list or data frame; else a ValueError."""
    try:
        value = value.detach().cpu().double().numpy() if isinstance(value, Tensor) else value
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must hold numbers: {error}") from error
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} holds {int((~np.isfinite(numbers)).sum())} value(s) that are not finite")
    return numbers


def check_probability(probability: Any, y: Any) -> tuple[Array, NDArray[np.int64]]:
    """Probabilities (n, C), also from (n,) of the second of two classes, and numbers of classes (n,), checked."""
    p = to_numbers(probability, "probability")
    p = np.stack([1.0 - p, p], axis=1) if p.ndim == 1 else p
    if p.ndim != 2 or p.shape[0] == 0 or p.shape[1] < 2:
        raise ValueError(f"probability must have shape (n, C) with at least two classes, got {p.shape}")
    if p.min() < -TOLERANCE or np.abs(p.sum(1) - 1.0).max() > TOLERANCE:
        raise ValueError("probability must hold rows of probabilities: not negative, with sum 1")
    p = np.clip(p, 0.0, 1.0)
    labels = to_numbers(y, "y")
    if labels.shape != (len(p),):
        raise ValueError(f"y must have one label for each of {len(p)} rows, got shape {labels.shape}")
    codes = labels.astype(np.int64)
    if (codes != labels).any() or codes.min() < 0 or codes.max() >= p.shape[1]:
        raise ValueError(f"y must hold numbers of classes from 0 to {p.shape[1] - 1}")
    return p, codes


@dataclass(frozen=True)
class Reliability:
    """How often events happened, bin by bin of their probability, and the calibration error.

    Args:
        edges: of the bins, (b + 1,).
        count: rows in each, (b,).
        confidence: mean probability in each, (b,); NaN where there is no row.
        frequency: share of rows in each whose event happened, (b,).
        low: 2.5% point of the frequency if the probabilities were right, (b,).
        high: 97.5% point, (b,).
        calibration_error: mean over rows of the absolute difference of frequency and confidence in a row's bin.
        standard_error: of it, by the infinitesimal jackknife.
        chance: its mean if the probabilities were right.
        chance_high: its 95% point then.
        p_value: share of label sets drawn from the probabilities with as large an error.
        event: what the probabilities are of.

    Example:
        >>> import numpy as np
        >>> p = np.array([[0.9, 0.1]] * 8 + [[0.4, 0.6]] * 2)
        >>> found = reliability(p, [0] * 7 + [1] + [1, 0], bins=2)
        >>> found.count.tolist(), round(found.calibration_error, 4)
        ([0, 10], 0.04)
    """

    edges: Array
    count: NDArray[np.int64]
    confidence: Array
    frequency: Array
    low: Array
    high: Array
    calibration_error: float
    standard_error: float
    chance: float
    chance_high: float
    p_value: float
    event: str = "the most probable class"

    @property
    def largest(self) -> float:
        """The largest difference of frequency and confidence in any bin."""
        return float(np.nanmax(np.abs(self.frequency - self.confidence)))

    def table(self) -> Any:
        """One line per bin that holds a row."""
        columns = {
            "from": self.edges[:-1],
            "to": self.edges[1:],
            "rows": self.count,
            "confidence": self.confidence,
            "frequency": self.frequency,
            "chance low": self.low,
            "chance high": self.high,
        }
        return make_frame({name: values[self.count > 0].tolist() for name, values in columns.items()})

    def __str__(self) -> str:
        return (
            f"calibration error {self.calibration_error:.4f} ± {self.standard_error:.4f} "
            f"({self.event}, {int(self.count.sum())} rows); by chance {self.chance:.4f} on average and "
            f"{self.chance_high:.4f} at the 95% point; p = {self.p_value:.2g}"
        )

    def plot(self, ax: Axes | None = None, *, name: str = "observed") -> Axes:
        """Frequency against predicted probability, with the 95% band of right probabilities and the rows of every bin.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            name: of the curve.

        Returns:
            The axes.

        Example:
            >>> reliability([0.9, 0.2, 0.6], [1, 0, 1]).plot().get_xlabel()
            'predicted probability'
        """
        from boxloop.figures import reliability_diagram

        return reliability_diagram({name: self.curve()}, ax, title=f"Reliability of {self.event}")

    def curve(self) -> tuple[Array, Array, Array, Array, Array]:
        """What a plot needs of bins that hold a row: confidence, frequency, rows, and the edges of the band."""
        full = self.count > 0
        parts = (self.confidence, self.frequency, self.count.astype(float), self.low, self.high)
        confidence, frequency, rows, low, high = (part[full] for part in parts)
        return confidence, frequency, rows, low, high


@single_threaded
def reliability(
    probability: Any,
    y: Any,
    *,
    bins: int = BINS,
    equal: Literal["width", "count"] = "width",
    event: int | None = None,
    repeats: int | None = None,
    random_state: RandomState = 0,
) -> Reliability:
    r"""Expected calibration error and reliability curve, beside what chance alone would give.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n}
        \left| \tfrac{1}{n_b} \sum_{i \in b} h_i - \tfrac{1}{n_b} \sum_{i \in b} p_i \right|

    Naeini, Cooper and Hauskrecht (2015); Guo et al. (2017). :math:`p_i` is the largest probability of a row and
    :math:`h_i` whether that class is the label; or, with ``event``, those of one class. As it averages absolute values
    it is above zero for true probabilities as well (Bröcker 2012): its distribution by chance comes from drawing
    :math:`h_i \sim \mathrm{Bernoulli}(p_i)`.

    Args:
        probability: of the classes, (n, C), rows summing to 1; or of the second of two, (n,).
        y: number of each row's class, (n,), from 0.
        bins: how many.
        equal: of what bins have the same: ``width``, the length between 0 and 1; ``count``, the number of rows, about
            (adaptive; Nguyen and O'Connor 2015), where equal probabilities stay together.
        event: number of the class whose probability is tested; the most probable one of each row when None.
        repeats: label sets drawn for the distribution by chance; chosen by the number of rows when None.
        random_state: seed of them.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> p = rng.dirichlet([1.0, 1.0, 1.0], size=2000)
        >>> labels = (rng.random((2000, 1)) > p.cumsum(1)).sum(1)
        >>> found = reliability(p, labels)
        >>> found.p_value > 0.01, found.calibration_error < 0.05
        (True, True)
    """
    p, codes = check_probability(probability, y)
    check_count(bins, "bins")
    check_choice(equal, "equal", ("width", "count"))
    if event is None:
        top = p.argmax(1)
        predicted, happened = p[np.arange(len(p)), top], (top == codes).astype(float)
    else:
        if not 0 <= event < p.shape[1]:
            raise ValueError(f"event must be the number of a class from 0 to {p.shape[1] - 1}, got {event}")
        predicted, happened = p[:, event], (codes == event).astype(float)
    if equal == "width":
        edges = np.linspace(0.0, 1.0, bins + 1)
        place = np.minimum((predicted * bins).astype(np.int64), bins - 1)
    else:
        inner = np.unique(np.quantile(predicted, np.arange(1, bins) / bins, method="higher"))
        inner = inner[(inner > predicted.min()) & (inner <= predicted.max())]
        edges = np.concatenate([[0.0], inner, [1.0]])
        place = np.searchsorted(inner, predicted, side="right")
    n, n_bins = len(predicted), len(edges) - 1
    count = np.bincount(place, minlength=n_bins)
    expected, observed = np.bincount(place, predicted, n_bins), np.bincount(place, happened, n_bins)
    gap = observed - expected
    value = float(np.abs(gap).sum() / n)
    # The error is the mean of these wherever signs hold: their standard error is the jackknife's, without n refits.
    part = np.sign(gap)[place] * (happened - predicted)
    standard_error = float(part.std(ddof=1)) / n**0.5 if n > 1 else float("nan")
    simulated = _simulate_events(predicted, place, n_bins, repeats, random_state)
    errors = np.abs(simulated - expected).sum(1) / n
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = np.quantile(simulated, [0.025, 0.975], axis=0) / count
        confidence, frequency = expected / count, observed / count
    return Reliability(
        edges=edges,
        count=count,
        confidence=confidence,
        frequency=frequency,
        low=low,
        high=high,
        calibration_error=value,
        standard_error=standard_error,
        chance=float(errors.mean()),
        chance_high=float(np.quantile(errors, 0.95)),
        p_value=(1 + int((errors >= value - 1e-12).sum())) / (1 + len(errors)),
        event="the most probable class" if event is None else f"class {event}",
    )


def _simulate_events(
    predicted: Array, place: NDArray[np.int64], bins: int, repeats: int | None, random_state: RandomState
) -> Array:
    """Events in every bin, (repeats, bins), where each happens with its predicted probability."""
    if repeats is None:
        repeats = int(np.clip(LABELS // len(predicted), FEWEST_REPEATS, MOST_REPEATS))
    check_count(repeats, "repeats")
    stream = generator(random_state)
    order = np.argsort(place, kind="stable")
    probability = torch.from_numpy(predicted[order].astype(np.float32))
    ends = np.bincount(place, minlength=bins).cumsum()
    events = np.empty((repeats, bins))
    for repeat in range(repeats):
        happened = torch.rand(len(predicted), generator=stream) < probability
        running = np.concatenate([[0], np.cumsum(happened.numpy(), dtype=np.int64)])
        events[repeat] = np.diff(running[ends], prepend=0)
    return events
