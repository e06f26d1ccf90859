r"""The codes of an autoencoder: which of their columns depend on the row, and whether they follow the prior.

A decoder that ignores z, and an encoder that returns the prior, make up a model with a good bound and no information in
its codes (posterior collapse). And samples start from p(z): where the codes of rows, all taken together,

.. math:: q(z) = \frac1n \sum_i q(z \mid x_i),

are not distributed as p(z), samples come from places that the decoder never learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from boxloop.criticise.adapt import as_model, check_column_count, open_rows_for_model
from boxloop.criticise.mmd import MMDResult, mmd
from boxloop.data import ConcatenatedRows, make_frame, sample_rows
from boxloop.models import Autoencoder
from boxloop.numeric import RandomState, generator, normal, single_threaded, spawn
from boxloop.types import Source

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

ACTIVE = 0.01
"""Variance of a code's posterior mean from which on it is active (Burda, Grosse and Salakhutdinov 2016)."""


@dataclass(frozen=True)
class ActiveUnits:
    """How much each column of the code depends on the row.

    Args:
        variance: of the posterior mean over rows, (k,).
        error: its standard error.
        divergence: mean over rows of KL(q(z_j|x) || p(z_j)), in nats, (k,).
        divergence_error: its standard error.
        n_rows: rows that were encoded.
        threshold: variance above which a column is active.

    Example:
        >>> import numpy as np
        >>> one = np.ones(2)
        >>> ActiveUnits(np.array([0.9, 0.001]), 0.01 * one, np.array([1.2, 0.0]), 0.01 * one, 100).count
        1
    """

    variance: Array
    error: Array
    divergence: Array
    divergence_error: Array
    n_rows: int
    threshold: float = ACTIVE

    @property
    def active(self) -> NDArray[np.bool_]:
        """Which columns are active, (k,)."""
        return self.variance > self.threshold

    @property
    def count(self) -> int:
        """How many columns are active."""
        return int(self.active.sum())

    def summary(self) -> Any:
        """One line per column of the code, the largest divergence first, as a frame."""
        order = np.argsort(-self.divergence, kind="stable")
        columns = {
            "variance": self.variance,
            "error": self.error,
            "divergence": self.divergence,
            "divergence error": self.divergence_error,
            "active": self.active,
        }
        ordered = {name: value[order].tolist() for name, value in columns.items()}
        return make_frame(ordered, _name_codes(order))

    def plot(self, ax: Axes | None = None, *, top: int = 40) -> Axes:
        """Divergence of each column with its error, the largest on top; columns that are not active are marked.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            top: most columns that are shown.

        Returns:
            The axes.

        Example:
            >>> import numpy as np
            >>> one = np.ones(2)
            >>> found = ActiveUnits(np.array([0.9, 0.001]), 0.01 * one, np.array([1.2, 0.0]), 0.01 * one, 100)
            >>> found.plot().get_title(loc="left")
            '1 of 2 columns of the code are active'
        """
        from boxloop.figures import forest

        order = np.argsort(-self.divergence, kind="stable")[:top]
        return forest(
            _name_codes(order),
            self.divergence[order],
            self.divergence_error[order],
            ax,
            marked=(~self.active[order]).tolist(),
            title=f"{self.count} of {len(self.variance)} columns of the code are active",
            across="KL(q(z|x) || p(z)) of a column, nats; orange: not active",
        )


@single_threaded
def active_units(model: object, X: Any, *, threshold: float = ACTIVE) -> ActiveUnits:
    r"""Which columns of an autoencoder's code depend on the row.

    .. math:: A_j = \mathrm{Var}_x \left( E_{q(z \mid x)}[z_j] \right) > 0.01

    Burda, Grosse and Salakhutdinov (2016), "Importance weighted autoencoders", section 5.2.

    Args:
        model: an autoencoder, or a fitted estimator of one.
        X: rows, held out or not.
        threshold: variance above which a column is active.

    Returns:
        Variances and divergences of every column with their errors over rows. Against a learned prior a column is
        compared with the prior's marginal, and the divergences do not add up to that of the code.

    Raises:
        TypeError: the model has no encoder.
        ValueError: fewer than two rows, or missing values.

    Example:
        >>> import torch
        >>> from boxloop.models import Autoencoder, GaussianHead, Layers, Part, StandardNormal
        >>> to_code = Part(Layers(1, (), 4), (torch.tensor([[0.5, 0.0, 0.0, 0.0]]), torch.zeros(4)))
        >>> to_row = Part(Layers(2, (), 2), (torch.zeros(2, 2), torch.zeros(2)))
        >>> model = Autoencoder.from_parts(to_code, to_row, GaussianHead(), StandardNormal(2), 1)
        >>> active_units(model, [[-1.0], [0.0], [1.0]]).variance.tolist()
        [0.25, 0.0]
    """
    own, source = _open_autoencoder_rows(model, X)
    names = source.names

    def encode_tile(rows: Tensor, weight: Tensor) -> ConcatenatedRows:
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        _refuse_missing_values(dense, names)
        posterior = own.posterior(dense)
        divergence = own.latent.column_divergence(posterior.mean, posterior.variance.log())
        return ConcatenatedRows.of(torch.cat([posterior.mean, divergence], 1).double())

    with torch.no_grad():
        mean, divergence = source.reduce(encode_tile).concatenate().chunk(2, dim=1)
    n = len(mean)
    apart = mean - mean.mean(0)
    variance = apart.square().sum(0) / (n - 1)
    fourth = apart.pow(4).mean(0)
    error = ((fourth - variance.square()).clamp(min=0.0) / n).sqrt()
    return ActiveUnits(
        _to_array(variance),
        _to_array(error),
        _to_array(divergence.mean(0)),
        _to_array(divergence.std(0) / n**0.5),
        n,
        threshold,
    )


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error.

    Args:
        value: the number.
        error: its standard error.
    """

    value: float
    error: float


@dataclass(frozen=True)
class AggregateGap:
    """How far the codes of all rows together are from the prior, by several measures.

    Args:
        discrepancy: squared maximum mean discrepancy between codes and prior, with its permutation p-value.
        first: mean of the codes minus that of the prior, (k,).
        first_error: its standard errors.
        second: second moment of the codes about the prior's mean, minus the prior's covariance, (k, k).
        second_error: its standard errors.
        rate: mean KL(q(z|x) || p(z)): the cost of a row's code, in nats.
        divergence_low: estimate of KL(q(z) || p(z)) that is too low on average.
        divergence_high: estimate of it that is too high on average.
        n_rows: rows that were encoded.
    """

    discrepancy: MMDResult
    first: Array
    first_error: Array
    second: Array
    second_error: Array
    rate: Estimate
    divergence_low: Estimate
    divergence_high: Estimate
    n_rows: int

    @property
    def p_value(self) -> float:
        """P-value of the hypothesis that codes and prior have the same distribution."""
        p_value = self.discrepancy.p_value
        return math.nan if p_value is None else p_value

    def z(self) -> dict[str, float]:
        """Each moment's gap over its standard error, means first."""
        k = len(self.first)
        i, j = np.triu_indices(k)
        names = [f"mean of {name}" for name in _name_codes(range(k))]
        names += [f"variance of z{a}" if a == b else f"z{a} x z{b}" for a, b in zip(i, j, strict=True)]
        gap = np.concatenate([self.first, self.second[i, j]])
        error = np.concatenate([self.first_error, self.second_error[i, j]])
        scores = np.divide(gap, error, out=np.zeros_like(gap), where=error > 0)
        return dict(zip(names, scores.tolist(), strict=True))

    def summary(self) -> Any:
        """One line per measure, as a frame: value, error, p-value where there is one."""
        worst = max(self.z().values(), key=abs)
        tested = 2.0 * float(stats.norm.sf(abs(worst))) * len(self.z())
        value = float(self.discrepancy.value)
        lines = {
            "squared MMD of codes and prior": (value, self.discrepancy.standard_error, self.p_value),
            "KL(q(z) || p(z)), at least": (self.divergence_low.value, self.divergence_low.error, math.nan),
            "KL(q(z) || p(z)), at most": (self.divergence_high.value, self.divergence_high.error, math.nan),
            "mean KL(q(z|x) || p(z))": (self.rate.value, self.rate.error, math.nan),
            "largest z-score of a moment": (worst, 1.0, min(tested, 1.0)),
        }
        columns = zip(*lines.values(), strict=True)
        return make_frame(dict(zip(("value", "error", "p_value"), columns, strict=True)), list(lines))

    def plot(self, ax: Axes | None = None, *, top: int = 24) -> Axes:
        """Gaps between the moments of the codes and of the prior, over their standard errors.

        Args:
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
            top: most moments that are shown: those with the largest gaps, in their own order.

        Returns:
            The axes.
        """
        from boxloop.figures import dots

        names, z = list(self.z()), np.array(list(self.z().values()))
        largest = np.sort(np.argsort(-np.abs(z), kind="stable")[:top])
        part = f" ({len(largest)} of {len(z)})" if len(largest) < len(z) else ""
        title = f"Codes minus prior, p = {self.p_value:.3g}{part}"
        return dots(z[largest], [names[p] for p in largest], ax, title=title)


@single_threaded
def aggregate_gap(
    model: object, X: Any, random_state: RandomState = 0, *, max_rows: int = 2000, permutations: int = 199
) -> AggregateGap:
    r"""The aggregate posterior of an autoencoder, compared with its prior.

    .. math:: q(z) = \frac1n \sum_i q(z \mid x_i) \quad\text{beside}\quad p(z)

    One code is drawn per row. They are compared with draws of the prior by the maximum mean discrepancy, and by their
    first two moments, for which the draws are not needed. The divergence comes twice:

    .. math:: \frac1n \sum_i \log \frac{\hat q(z_i)}{p(z_i)}, \qquad
              \hat q(z_i) = \frac1n \sum_{j} q(z_i \mid x_j)
              \quad\text{or}\quad \frac1{n-1} \sum_{j \ne i} q(z_i \mid x_j).

    With a row's own term it is that of the n rows at hand, too high on average for those to come; without it, it is too
    low, by Jensen's inequality. The less the codes of different rows overlap, the farther apart the two are. The mean
    divergence of q(z|x) minus that of q(z) is the mutual information of row and code. Hoffman and Johnson (2016), "ELBO
    surgery"; Makhzani and others (2016), "Adversarial autoencoders".

    Args:
        model: an autoencoder, or a fitted estimator of one.
        X: rows, held out.
        random_state: seed of codes, prior draws and permutations.
        max_rows: about so many rows are taken at random; all pairs of them are compared.
        permutations: behind the p-value of the discrepancy.

    Raises:
        TypeError: the model has no encoder.
        ValueError: fewer than two rows, or missing values.

    Example:
        >>> import torch
        >>> from boxloop.models import Autoencoder, GaussianHead, Layers, Part, StandardNormal
        >>> to_code = Part(Layers(1, (), 2), (torch.tensor([[2.0, 0.0]]), torch.zeros(2)))
        >>> to_row = Part(Layers(1, (), 2), (torch.zeros(1, 2), torch.zeros(2)))
        >>> model = Autoencoder.from_parts(to_code, to_row, GaussianHead(), StandardNormal(1), 1)
        >>> rows = torch.randn(200, 1, generator=torch.Generator().manual_seed(0))
        >>> aggregate_gap(model, rows).p_value  # codes have variance 1 + 4
        0.005
    """
    own, source = _open_autoencoder_rows(model, X)
    streams = spawn(generator(random_state, own.origin.device), 2)
    rows = sample_rows(source, max_rows, generator(streams[0], "cpu")).rows
    _refuse_missing_values(rows, source.names)
    with torch.no_grad():
        posterior = own.posterior(rows)
        noise = normal(tuple(posterior.mean.shape), streams[1], posterior.mean.dtype)
        z = posterior.mean + posterior.variance.sqrt() * noise
        prior = own.prior()
        every = posterior.log_prob(z).double()
        log_p = prior.log_prob(z)[0].double()
        itself = every.diagonal()
        n = len(z)
        others = every.masked_fill(torch.eye(n, dtype=torch.bool, device=z.device), -torch.inf)
        rate = own.latent.divergence(posterior.mean, posterior.variance.log())
        moments = _measure_moment_gaps(posterior.mean.double(), posterior.variance.double(), prior)
        drawn = prior.draw(n, streams[1])[0]
    discrepancy = mmd(z.cpu(), drawn.cpu(), permutations=permutations, random_state=streams[0])
    return AggregateGap(
        discrepancy,
        *moments,
        _estimate_mean(itself - log_p if rate is None else rate.double()),
        _estimate_mean(others.logsumexp(0) - math.log(n - 1) - log_p),
        _estimate_mean(every.logsumexp(0) - math.log(n) - log_p),
        n,
    )


def _measure_moment_gaps(mean: Tensor, variance: Tensor, prior: Any) -> tuple[Array, Array, Array, Array]:
    """Gaps of the first two moments and their errors over rows; the variance of each q is added, not drawn."""
    n = len(mean)
    apart = mean - prior.mean[0].double()
    own = apart.square() + variance
    second, square = apart.mT @ apart / n, apart.square().mT @ apart.square() / n
    second.diagonal().copy_(own.mean(0))
    square.diagonal().copy_(own.square().mean(0))
    error = ((square - second.square()).clamp(min=0.0) / (n - 1)).sqrt()
    gap = second - prior.covariance().dense()[0].double()
    return _to_array(apart.mean(0)), _to_array(apart.std(0) / n**0.5), _to_array(gap), _to_array(error)


def _estimate_mean(values: Tensor) -> Estimate:
    return Estimate(float(values.mean()), float(values.std()) / math.sqrt(len(values)))


def _open_autoencoder_rows(model: object, X: Any) -> tuple[Autoencoder, Source]:
    """The autoencoder behind a fitted estimator, or itself, and at least two rows for it."""
    own = as_model(model)
    if not isinstance(own, Autoencoder):
        raise TypeError(f"{type(own).__name__} has no encoder: codes need an autoencoder")
    source = open_rows_for_model(model, X, None, own.origin.device)
    check_column_count(own, source.n_columns)
    if source.n_rows < 2:
        raise ValueError(f"X has {source.n_rows} row: at least 2 are needed")
    return own, source


def _refuse_missing_values(rows: Tensor, names: tuple[str, ...]) -> None:
    """Refuse missing values, naming their column."""
    missing = torch.isnan(rows).any(0)
    if bool(missing.any()):
        column = names[int(missing.nonzero()[0])]
        raise ValueError(f"column {column!r} has missing values, which an autoencoder cannot encode")


def _name_codes(places: Iterable[int]) -> list[str]:
    """Names of columns of the code."""
    return [f"z{place}" for place in places]


def _to_array(value: Tensor) -> Array:
    return np.asarray(value.double().cpu().numpy())
