r"""Predictions of a posterior over weights: averages over networks, and how much the networks differ.

Regression is a mixture of Gaussians,

.. math:: p(y \mid x) = \sum_i w_i \prod_j N(y_j; f_{ij}(x), \sigma_j^2), \qquad
          \mathrm{Var}(y_j) = \underbrace{\mathrm{Var}_w f_j(x)}_{\text{epistemic}} +
          \underbrace{\sigma_j^2}_{\text{noise}}

For classes :math:`p(c \mid x) = \sum_i w_i p_i(c \mid x)` with :math:`p_i = \mathrm{softmax}(f_i(x) / T)`. The entropy
of the mean splits into the mean entropy of the networks and their disagreement (Houlsby et al., 2011; Depeweg et al.,
2018),

.. math:: H(p) = \sum_i w_i H(p_i) + I, \qquad I = \sum_i w_i \mathrm{KL}(p_i \,\|\, p) \ge 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp, ndtr, ndtri

from boxloop.data import check_level
from boxloop.networks.draws import DrawAllocation
from boxloop.networks.inputs import as_array, as_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

Array = NDArray[np.float64]

LOG_2PI = float(np.log(2.0 * np.pi))
MAX_ITERATIONS = 200
"""Of the search for a quantile; at least half of them halve the bracket, which is the range of the centres."""
BLOCK_VALUES = 2**20  # centres that the search for quantiles processes together
MIN_ROWS, MARGIN = 20, 0.05
"""Rows from which single outputs may be recognised as probabilities, and how close they come to 0 and 1."""


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPrediction:
    """Predicted numbers for n rows.

    Args:
        outputs: of each draw, (m, n, ...).
        allocation: which draw belongs to which component, and its weight.
        noise: standard deviation of observations around the output of a network, (...); None if unknown.
        used_vmap: whether draws were evaluated by ``vmap``.

    Example:
        >>> import numpy as np
        >>> draws = np.array([[[1.0], [4.0]], [[3.0], [4.0]]])
        >>> allocation = DrawAllocation.allocate_proportionally([1.0], [False], 2)
        >>> prediction = RegressionPrediction(draws, allocation, np.array([1.0]))
        >>> prediction.mean.ravel(), prediction.epistemic_std.ravel().round(3), prediction.std.ravel().round(3)
        (array([2., 4.]), array([1.414, 0.   ]), array([1.732, 1.   ]))
    """

    outputs: Array
    allocation: DrawAllocation
    noise: Array | None = None
    used_vmap: bool = True

    @cached_property
    def mean(self) -> Array:
        """Mean over the networks, (n, ...)."""
        return self.allocation.mean(self.outputs)

    @cached_property
    def epistemic_std(self) -> Array:
        """Standard deviation due to the weights, which more data would reduce, (n, ...)."""
        return np.asarray(np.sqrt(self.allocation.variance(self.outputs)))

    @cached_property
    def std(self) -> Array:
        """Standard deviation of an observation: weights and noise together, (n, ...)."""
        return np.asarray(np.sqrt(self.epistemic_std**2 + self._require_noise() ** 2))

    @cached_property
    def standard_error(self) -> Array:
        """Monte Carlo standard error of the mean, (n, ...)."""
        return self.allocation.standard_error(self.outputs)

    @cached_property
    def epistemic_std_error(self) -> Array:
        """Monte Carlo standard error of ``epistemic_std``, to first order in 1 / m, (n, ...); 0 where that is 0."""
        of_variance = self.allocation.standard_error((self.outputs - self.mean) ** 2)
        std = self.epistemic_std
        return np.divide(of_variance, 2.0 * std, out=np.zeros_like(of_variance), where=std > 0.0)

    def log_prob(self, y: Any) -> Array:
        """Log-density of observations under the mixture over draws, all outputs of a row together, (n,).

        Args:
            y: (n, ...) as the outputs; (n,) where there is one output.
        """
        shape = self.mean.shape
        noise = np.broadcast_to(self._require_noise(), shape[1:]).reshape(-1)
        centres = self.outputs.reshape(*self.outputs.shape[:2], -1)
        return mixture_log_prob(centres, self.allocation.weight, check_targets(y, shape), noise)

    def quantile(self, q: float) -> Array:
        """Quantile q of an observation, for each output separately, (n, ...)."""
        shape = self.mean.shape
        noise = np.broadcast_to(self._require_noise(), shape).reshape(-1)
        centres = self.outputs.reshape(len(self.outputs), -1)
        return mixture_quantile(q, centres, self.allocation.weight, noise).reshape(shape)

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Central intervals that contain an observation with probability ``level``: lower and upper ends, (n, ...)."""
        check_level(level)
        return self.quantile(0.5 * (1.0 - level)), self.quantile(0.5 * (1.0 + level))

    def plot(
        self,
        X: Any,
        y: Any = None,
        *,
        column: int = 0,
        output: int = 0,
        name: str = "",
        ax: Axes | None = None,
    ) -> Axes:
        """The mean over one column of X, with bands of two epistemic and two total standard deviations.

        Args:
            X: the rows of the prediction, (n,) or (n, d).
            y: observations, drawn as points.
            column: of X, on the horizontal axis.
            output: number of the output, counted over all of them.
            name: of the column.
            ax: where to draw; a new figure, ``axes.figure``, if None.
        """
        from boxloop.figures import regression_bands

        shape = self.mean.shape
        observed = None if y is None else check_targets(y, shape)[:, output]
        outer = self.epistemic_std if self.noise is None else self.std
        mean, inner, outer = (
            value.reshape(shape[0], -1)[:, output] for value in (self.mean, self.epistemic_std, outer)
        )
        rows = as_rows(X).double().cpu().numpy()
        return regression_bands(rows, mean, inner, outer, observed, column=column, name=name, ax=ax)

    def __str__(self) -> str:
        rows, m = len(self.mean), len(self.outputs)
        epistemic = _root_mean_square(self.epistemic_std)
        text = f"{rows} rows, {m} networks. RMS standard deviations: weights {epistemic:.4g}"
        if self.noise is None:
            return f"{text}, noise unknown"
        return f"{text}, noise {_root_mean_square(self.noise):.4g}, observation {_root_mean_square(self.std):.4g}"

    __repr__ = __str__

    def _require_noise(self) -> Array:
        if self.noise is None:
            raise ValueError(
                "The noise of the observations is unknown: pass noise=, or estimate it by estimate_noise(X, y) or "
                "tune(X, y)."
            )
        return self.noise


@dataclass(frozen=True, eq=False, repr=False)
class ClassificationPrediction:
    """Predicted class probabilities for n rows; entropies are in nats.

    Args:
        outputs: logits of each draw, (m, n, c).
        allocation: which draw belongs to which component, and its weight.
        temperature: divides the logits.
        used_vmap: whether draws were evaluated by ``vmap``.

    Example:
        >>> import numpy as np
        >>> draws = np.array([[[9.0, 0.0], [0.0, 0.0]], [[0.0, 9.0], [0.0, 0.0]]])
        >>> prediction = ClassificationPrediction(draws, DrawAllocation.allocate_proportionally([1.0], [False], 2))
        >>> prediction.probability.round(3).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
        >>> prediction.entropy.round(3), prediction.mutual_information.round(3)
        (array([0.693, 0.693]), array([0.692, 0.   ]))
    """

    outputs: Array
    allocation: DrawAllocation
    temperature: float = 1.0
    used_vmap: bool = True

    @cached_property
    def log_probability(self) -> Array:
        """Logarithm of :attr:`probability`, accurate where that is nearly 0, (n, c)."""
        return log_mean_probability(self._network_log_probability, self.allocation.weight)

    @cached_property
    def probability(self) -> Array:
        """Probability of each class, the mean over the networks, (n, c)."""
        return np.asarray(np.exp(self.log_probability))

    @cached_property
    def standard_error(self) -> Array:
        """Monte Carlo standard error of the probabilities, (n, c)."""
        return self.allocation.standard_error(np.exp(self._network_log_probability))

    @cached_property
    def entropy(self) -> Array:
        """Entropy of the mean probabilities, (n,): the total uncertainty about the class."""
        return _entropy(self.log_probability)

    @cached_property
    def expected_entropy(self) -> Array:
        """Mean entropy of the networks, (n,): uncertainty that other weights would not remove."""
        return self.allocation.mean(_entropy(self._network_log_probability))

    @cached_property
    def mutual_information(self) -> Array:
        """Mutual information of class and weights, (n,): how much the networks disagree; at most log m."""
        return np.maximum(self.allocation.mean(self._kl_divergence), 0.0)

    @cached_property
    def mutual_information_error(self) -> Array:
        """Monte Carlo standard error of the mutual information, to first order in 1 / m, (n,)."""
        return self.allocation.standard_error(self._kl_divergence)

    def predict(self) -> NDArray[np.int64]:
        """The most probable class, (n,)."""
        return np.asarray(self.log_probability.argmax(1), dtype=np.int64)

    def log_prob(self, y: Any) -> Array:
        """Log-probability of observed classes (n,), numbered 0, 1, ..., (n,)."""
        observed = check_classes(y, self.outputs.shape[1:])
        return np.asarray(np.take_along_axis(self.log_probability, observed[:, None], 1)[:, 0])

    def plot(
        self, X: Any, *, column: int = 0, name: str = "", names: Sequence[str] = (), ax: Axes | None = None
    ) -> Axes:
        """Probabilities over one column of X, with the central 90% of the networks.

        Args:
            X: the rows of the prediction, (n,) or (n, d).
            column: of X, on the horizontal axis.
            name: of the column.
            names: of the classes.
            ax: where to draw; a new figure, ``axes.figure``, if None.
        """
        from boxloop.figures import class_probability_bands

        low, high = _weighted_central_range(
            np.exp(self._network_log_probability), self.allocation.weight, 0.9
        )
        labels = list(names) or [f"class {place}" for place in range(self.outputs.shape[2])]
        rows = as_rows(X).double().cpu().numpy()
        return class_probability_bands(
            rows, self.probability, low, high, labels, column=column, name=name, ax=ax
        )

    def __str__(self) -> str:
        m, n, c = self.outputs.shape
        return (
            f"{n} rows, {c} classes, {m} networks: mean entropy {self.entropy.mean():.4g}, of which "
            f"{self.mutual_information.mean():.4g} is mutual information with the weights"
        )

    __repr__ = __str__

    @cached_property
    def _network_log_probability(self) -> Array:
        return log_probabilities(self.outputs, self.temperature)

    @cached_property
    def _kl_divergence(self) -> Array:
        """KL divergence of the mean from each network, (m, n)."""
        each = self._network_log_probability
        return np.asarray((np.exp(each) * (each - self.log_probability)).sum(-1))


def mixture_log_prob(centres: Array, weight: Array, y: Array, noise: Array) -> Array:
    """Log-density (n,) of y (n, k) under a mixture of Gaussians at centres (m, n, k) with standard deviations (k,)."""
    each = -0.5 * (((y - centres) / noise) ** 2 + 2.0 * np.log(noise) + LOG_2PI).sum(-1)
    return np.asarray(logsumexp(each + np.log(weight)[:, None], axis=0))


def mixture_quantile(q: float, centres: Array, weight: Array, std: Array) -> Array:
    """Quantile q of N mixtures of m Gaussians with centres (m, N) and standard deviations (N,).

    Newton's method between the smallest and the largest quantile of the components, safeguarded by bisection.
    """
    if np.ndim(q) or not 0.0 < q < 1.0:
        raise ValueError(f"q must be one probability between 0 and 1, got {q}")
    roots = np.empty(centres.shape[1])
    step = max(1, BLOCK_VALUES // len(centres))
    for start in range(0, len(roots), step):
        block = slice(start, start + step)
        roots[block] = _solve_quantile(q, centres[:, block], weight, std[block])
    return roots


def _solve_quantile(q: float, centres: Array, weight: Array, std: Array) -> Array:
    offset = ndtri(q) * std
    low, high = centres.min(0) + offset, centres.max(0) + offset
    at = np.clip(weight @ centres + offset, low, high)
    tolerance = 4e-16 * (np.abs(low) + np.abs(high)) + 1e-14 * std
    for _ in range(MAX_ITERATIONS):
        z = (at - centres) / std
        gap = weight @ ndtr(z) - q
        slope = weight @ np.exp(-0.5 * z * z) / (std * np.sqrt(2.0 * np.pi))
        low, high = np.where(gap <= 0.0, at, low), np.where(gap >= 0.0, at, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = at - gap / slope
        middle = 0.5 * (low + high)
        inside = (newton > low) & (newton < high) & (np.abs(newton - at) < 0.5 * (high - low))
        following = np.where(inside, newton, middle)
        moved, at = np.abs(following - at), following
        if bool((moved <= tolerance).all()):
            break
    return at


def check_targets(y: Any, shape: tuple[int, ...]) -> Array:
    """Observations as (n, k), for outputs of shape (n, ...) with k numbers per row."""
    table = np.asarray(as_array(y), dtype=np.float64)
    one = len(shape) == 1 or shape[1:] == (1,)
    if table.shape != shape and not (one and table.shape in {shape[:1], (shape[0], 1)}):
        raise ValueError(f"y has shape {table.shape}; the predictions have shape {shape}")
    if not np.isfinite(table).all():
        raise ValueError("y must be finite, but holds NaN or infinite values")
    return table.reshape(shape[0], -1)


def check_classes(y: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Observed classes (n,), for logits of shape (n, c)."""
    table = as_array(y)
    if table.shape == (shape[0], 1):
        table = table[:, 0]
    if table.shape != shape[:1]:
        raise ValueError(f"y has shape {table.shape} for {shape[0]} rows")
    if table.dtype.kind not in "fiub" or not np.isin(table, np.arange(shape[1])).all():
        raise ValueError(f"y must hold class numbers from 0 to {shape[1] - 1}")
    return table.astype(np.int64)


def as_logits(outputs: Array) -> Array:
    """Logits (m, n, c); a single output is the logit of class 1 against class 0."""
    if outputs.ndim == 2 or (outputs.ndim == 3 and outputs.shape[2] == 1):
        one = outputs.reshape(*outputs.shape[:2], 1)
        return np.concatenate([np.zeros_like(one), one], axis=2)
    if outputs.ndim != 3:
        raise ValueError(f"A classifier must return logits (n, c), got {outputs.shape[1:]}")
    return outputs


def look_like_probabilities(outputs: Array) -> bool:
    """Whether the network has already applied a softmax or sigmoid, on top of which another would be wrong.

    A single output may be a logit that happens to lie between 0 and 1. It counts as a probability if there are many
    rows, values come close to both 0 and 1, and none lies outside.
    """
    if outputs.ndim > 2 and outputs.shape[2] > 1:
        return bool((outputs >= 0.0).all() and np.abs(outputs.sum(-1) - 1.0).max() < 1e-4)
    low, high = float(outputs.min()), float(outputs.max())
    return outputs.shape[1] >= MIN_ROWS and 0.0 <= low < MARGIN and 1.0 - MARGIN < high <= 1.0


def log_probabilities(logits: Array, temperature: float) -> Array:
    """Log-probabilities of each network, (m, n, c)."""
    return np.asarray(log_softmax(logits / temperature, axis=-1))


def log_mean_probability(each: Array, weight: Array) -> Array:
    """Logarithm of the mean probability over networks, (n, ...)."""
    if len(each) == 1:
        return each[0]
    return np.asarray(logsumexp(each + np.log(weight).reshape(-1, *[1] * (each.ndim - 1)), axis=0))


def _entropy(log_probability: Array) -> Array:
    return np.asarray(-(np.exp(log_probability) * log_probability).sum(-1))


def _weighted_central_range(values: Array, weight: Array, level: float) -> tuple[Array, Array]:
    """The range of the central draws of values (m, ...), by their weights."""
    order = np.argsort(values, axis=0)
    ranked = np.take_along_axis(values, order, 0)
    below = np.cumsum(weight[order], axis=0)
    ends = [np.argmax(below >= min(q, 1.0 - 1e-9), axis=0) for q in (0.5 * (1 - level), 0.5 * (1 + level))]
    low, high = (np.take_along_axis(ranked, end[None], 0)[0] for end in ends)
    return low, high


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
