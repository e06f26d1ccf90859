r"""What a posterior over weights predicts of classes.

.. math:: p(c \mid x) = \sum_i w_i p_i(c \mid x), \qquad p_i = \mathrm{softmax}(f_i(x) / T)

The entropy of the average splits in two (Houlsby et al., 2011; Depeweg et al., 2018): what every network is unsure of,
and what they disagree about,

.. math:: H(p) = \sum_i w_i H(p_i) + I, \qquad I = \sum_i w_i \mathrm{KL}(p_i \,\|\, p) \ge 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp
from torch import nn

from boxloop.weights.inputs import as_array, as_rows
from boxloop.weights.strata import Strata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

Array = NDArray[np.float64]

MANY, NEAR = 20, 0.05
"""Rows from which single outputs may be told for probabilities, and how near they come to 0 and to 1."""


@dataclass(frozen=True, eq=False, repr=False)
class ClassificationPrediction:
    """Classes that are predicted for n rows; entropies are in nats.

    Args:
        outputs: logits of each draw, (m, n, c).
        strata: which draw belongs to which part of the posterior, and its weight.
        temperature: by which logits are divided.
        together: whether draws could be run by ``vmap``; one by one otherwise.

    Example:
        >>> import numpy as np
        >>> draws = np.array([[[9.0, 0.0], [0.0, 0.0]], [[0.0, 9.0], [0.0, 0.0]]])
        >>> found = ClassificationPrediction(draws, Strata.of([1.0], [False], 2))
        >>> found.probability.round(3).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
        >>> found.entropy.round(3), found.mutual_information.round(3)
        (array([0.693, 0.693]), array([0.692, 0.   ]))
    """

    outputs: Array
    strata: Strata
    temperature: float = 1.0
    together: bool = True

    @cached_property
    def log_probability(self) -> Array:
        """Logarithm of :attr:`probability`, exact where that is nearly 0, (n, c)."""
        return mean_log_probability(self._log_each, self.strata.weight)

    @cached_property
    def probability(self) -> Array:
        """Of each class, the mean over all networks, (n, c)."""
        return np.asarray(np.exp(self.log_probability))

    @cached_property
    def standard_error(self) -> Array:
        """Of the probabilities, as the draws are finitely many, (n, c)."""
        return self.strata.error(np.exp(self._log_each))

    @cached_property
    def entropy(self) -> Array:
        """Of the mean, (n,): all that is not known about the class."""
        return _entropy(self.log_probability)

    @cached_property
    def expected_entropy(self) -> Array:
        """Mean over networks of their own, (n,): what no other weights would tell."""
        return self.strata.mean(_entropy(self._log_each))

    @cached_property
    def mutual_information(self) -> Array:
        """Between class and weights, (n,): what networks disagree about. Of m draws, at most log m."""
        return np.maximum(self.strata.mean(self._divergence), 0.0)

    @cached_property
    def information_error(self) -> Array:
        """Standard error of the mutual information, to first order in one over the draws, (n,)."""
        return self.strata.error(self._divergence)

    def predict(self) -> NDArray[np.int64]:
        """The class of largest probability, (n,)."""
        return np.asarray(self.log_probability.argmax(1), dtype=np.int64)

    def log_prob(self, y: Any) -> Array:
        """Log-probability of classes (n,) that were observed, 0, 1, ..., (n,)."""
        seen = classes(y, self.outputs.shape[1:])
        return np.asarray(np.take_along_axis(self.log_probability, seen[:, None], 1)[:, 0])

    def plot(
        self, X: Any, *, column: int = 0, name: str = "", names: Sequence[str] = (), ax: Axes | None = None
    ) -> Axes:
        """Probabilities over one column of the inputs, with the middle 90 % of what the networks say.

        Args:
            X: the rows that were predicted, (n,) or (n, d).
            column: of X, that goes across.
            name: of the column.
            names: of the classes.
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
        """
        from boxloop.figures import classes_over_column

        low, high = _weighted_band(np.exp(self._log_each), self.strata.weight, 0.9)
        called = list(names) or [f"class {place}" for place in range(self.outputs.shape[2])]
        return classes_over_column(
            as_rows(X).double().cpu().numpy(),
            self.probability,
            low,
            high,
            called,
            column=column,
            name=name,
            ax=ax,
        )

    def __str__(self) -> str:
        m, n, c = self.outputs.shape
        return (
            f"{n} rows, {c} classes, {m} networks: mean entropy {self.entropy.mean():.4g}, of which "
            f"{self.mutual_information.mean():.4g} by disagreement"
        )

    __repr__ = __str__

    @cached_property
    def _log_each(self) -> Array:
        return log_probabilities(self.outputs, self.temperature)

    @cached_property
    def _divergence(self) -> Array:
        """KL from the mean to every network, (m, n)."""
        return np.asarray((np.exp(self._log_each) * (self._log_each - self.log_probability)).sum(-1))


def as_logits(outputs: Array) -> Array:
    """(m, n, c) logits; a single output is the logit of class 1 against class 0.

    Raises:
        ValueError: outputs of another shape.
    """
    if outputs.ndim == 2 or (outputs.ndim == 3 and outputs.shape[2] == 1):
        one = outputs.reshape(*outputs.shape[:2], 1)
        return np.concatenate([np.zeros_like(one), one], axis=2)
    if outputs.ndim != 3:
        raise ValueError(f"a classifier gives logits (n, c), got {outputs.shape[1:]}")
    return outputs


def look_like_probabilities(outputs: Array) -> bool:
    """Whether the network has taken the softmax or the sigmoid already; another would flatten it.

    A single output may be a logit between 0 and 1 for all rows, where these tell little. It is taken for a probability
    where many numbers come near both ends of that range and none goes beyond.

    Args:
        outputs: as the networks gave them, (m, n) or (m, n, c).
    """
    if outputs.ndim > 2 and outputs.shape[2] > 1:
        return bool((outputs >= 0.0).all() and np.abs(outputs.sum(-1) - 1.0).max() < 1e-4)
    low, high = float(outputs.min()), float(outputs.max())
    return outputs.shape[1] >= MANY and 0.0 <= low < NEAR and 1.0 - NEAR < high <= 1.0


def ends_in_sigmoid(net: nn.Module) -> bool:
    """Whether the last of a sequence of modules makes probabilities, whatever their values."""
    while isinstance(net, nn.Sequential) and len(net):
        net = net[-1]
    return isinstance(net, nn.Sigmoid)


def log_probabilities(logits: Array, temperature: float) -> Array:
    """Of every network, (m, n, c)."""
    return np.asarray(log_softmax(logits / temperature, axis=-1))


def mean_log_probability(each: Array, weight: Array) -> Array:
    """Logarithm of the mean over networks, (n, ...)."""
    if len(each) == 1:
        return each[0]
    return np.asarray(logsumexp(each + np.log(weight).reshape(-1, *[1] * (each.ndim - 1)), axis=0))


def classes(y: Any, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Observed classes (n,), for logits of a shape (n, c).

    Raises:
        ValueError: another shape, or values that are not 0, 1, ..., c - 1.
    """
    table = as_array(y)
    if table.shape == (shape[0], 1):
        table = table[:, 0]
    if table.shape != shape[:1]:
        raise ValueError(f"y has shape {table.shape} for {shape[0]} rows")
    if table.dtype.kind not in "fiub" or not np.isin(table, np.arange(shape[1])).all():
        raise ValueError(f"y must hold classes 0 to {shape[1] - 1}")
    return table.astype(np.int64)


def _entropy(log_probability: Array) -> Array:
    return np.asarray(-(np.exp(log_probability) * log_probability).sum(-1))


def _weighted_band(values: Array, weight: Array, level: float) -> tuple[Array, Array]:
    """Between which (m, ...) values the middle of the draws lies."""
    order = np.argsort(values, axis=0)
    ranked = np.take_along_axis(values, order, 0)
    below = np.cumsum(weight[order], axis=0)
    ends = [np.argmax(below >= min(q, 1.0 - 1e-9), axis=0) for q in (0.5 * (1 - level), 0.5 * (1 + level))]
    low, high = (np.take_along_axis(ranked, end[None], 0)[0] for end in ends)
    return low, high
