r"""What a posterior over weights predicts: an average over networks, and how much they differ.

Regression, a mixture of Gaussians:

.. math:: p(y \mid x) = \sum_i w_i \prod_j N(y_j; f_{ij}(x), \sigma_j^2), \qquad
          \mathrm{Var}(y_j) = \underbrace{\mathrm{Var}_w f_j(x)}_{\text{spread}^2} +
          \underbrace{\sigma_j^2}_{\text{noise}^2}
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from boxloop.data import check_level
from boxloop.weights.inputs import as_array, as_rows
from boxloop.weights.mixture_quantile import mixture_quantile
from boxloop.weights.strata import Strata

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
LOG_2PI = float(np.log(2.0 * np.pi))


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPrediction:
    """Numbers that are predicted for n rows.

    Args:
        outputs: what each draw says, (m, n, ...).
        strata: which draw belongs to which part of the posterior, and its weight.
        noise: standard deviation of observations around what a network says, (...); None where it is not known.
        together: whether draws could be run by ``vmap``; one by one otherwise.

    Example:
        >>> import numpy as np
        >>> draws = np.array([[[1.0], [4.0]], [[3.0], [4.0]]])
        >>> found = RegressionPrediction(draws, Strata.of([1.0], [False], 2), np.array([1.0]))
        >>> found.mean.ravel(), found.spread.ravel().round(3), found.deviation.ravel().round(3)
        (array([2., 4.]), array([1.414, 0.   ]), array([1.732, 1.   ]))
    """

    outputs: Array
    strata: Strata
    noise: Array | None = None
    together: bool = True

    @cached_property
    def mean(self) -> Array:
        """Over all networks, (n, ...)."""
        return self.strata.mean(self.outputs)

    @cached_property
    def spread(self) -> Array:
        """Standard deviation that is due to the weights: more data would lessen it, (n, ...)."""
        return np.asarray(np.sqrt(self.strata.variance(self.outputs)))

    @cached_property
    def deviation(self) -> Array:
        """Standard deviation of an observation: weights and noise together, (n, ...)."""
        return np.asarray(np.sqrt(self.spread**2 + self._noise() ** 2))

    @cached_property
    def standard_error(self) -> Array:
        """Of the mean, as the draws are finitely many, (n, ...)."""
        return self.strata.error(self.outputs)

    @cached_property
    def spread_error(self) -> Array:
        """Standard error of the spread, to first order in one over the draws, (n, ...); 0 where there is no spread."""
        of_variance = self.strata.error((self.outputs - self.mean) ** 2)
        return np.divide(
            of_variance, 2.0 * self.spread, out=np.zeros_like(of_variance), where=self.spread > 0.0
        )

    def log_prob(self, y: Any) -> Array:
        """Log-density of observations under the mixture over draws, all outputs of a row together, (n,).

        Args:
            y: (n, ...) as the outputs; (n,) where there is one output.
        """
        return mixture_log_prob(
            self._flat(), self.strata.weight, targets(y, self.mean.shape), self._flat_noise()
        )

    def quantile(self, q: float) -> Array:
        """Of an observation, for every output by itself, (n, ...): the root of the mixture's distribution function."""
        shape = self.mean.shape
        noise = np.broadcast_to(self._noise(), shape).reshape(-1)
        centres = self.outputs.reshape(len(self.outputs), -1)
        return mixture_quantile(q, centres, self.strata.weight, noise).reshape(shape)

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Central intervals that hold an observation with this probability: lower and upper ends, (n, ...) each."""
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
        """The mean over one column of the inputs, two standard deviations of the weights, and of weights and noise.

        Args:
            X: the rows that were predicted, (n,) or (n, d).
            y: what was observed there, drawn as points.
            column: of X, that goes across.
            output: of the network, counted over all of them.
            name: of the column.
            ax: where to draw; a figure of its own, ``axes.figure``, when omitted.
        """
        from boxloop.figures import numbers_over_column

        shape = self.mean.shape
        seen = None if y is None else targets(y, shape)[:, output]
        wide = self.spread if self.noise is None else self.deviation
        mean, spread, wide = (
            value.reshape(shape[0], -1)[:, output] for value in (self.mean, self.spread, wide)
        )
        return numbers_over_column(
            as_rows(X).double().cpu().numpy(), mean, spread, wide, seen, column=column, name=name, ax=ax
        )

    def __str__(self) -> str:
        rows, m = len(self.mean), len(self.outputs)
        said = f"{rows} rows, {m} networks: standard deviation due to weights {_rms(self.spread):.4g}"
        if self.noise is None:
            return f"{said}, noise unknown"
        return f"{said}, noise {_rms(self._noise()):.4g}, together {_rms(self.deviation):.4g} (root mean squares)"

    __repr__ = __str__

    def _noise(self) -> Array:
        if self.noise is None:
            raise ValueError(
                "the noise of observations is not known: give noise=, or estimate it by with_noise(X, y) or tuned(X, y)"
            )
        return self.noise

    def _flat_noise(self) -> Array:
        return np.broadcast_to(self._noise(), self.mean.shape[1:]).reshape(-1)

    def _flat(self) -> Array:
        return self.outputs.reshape(*self.outputs.shape[:2], -1)


def mixture_log_prob(centres: Array, weight: Array, y: Array, noise: Array) -> Array:
    """Log-density (n,) of y (n, k) under the mixture of Gaussians around centres (m, n, k), noise (k,)."""
    each = -0.5 * (((y - centres) / noise) ** 2 + 2.0 * np.log(noise) + LOG_2PI).sum(-1)
    return np.asarray(logsumexp(each + np.log(weight)[:, None], axis=0))


def targets(y: Any, shape: tuple[int, ...]) -> Array:
    """Observations as (n, k), for outputs of a shape (n, ...) with k numbers a row.

    Raises:
        ValueError: another shape, or a value that is not finite.
    """
    table = np.asarray(as_array(y), dtype=np.float64)
    one = len(shape) == 1 or shape[1:] == (1,)
    if table.shape != shape and not (one and table.shape in {shape[:1], (shape[0], 1)}):
        raise ValueError(f"y has shape {table.shape}; what is predicted has {shape}")
    if not np.isfinite(table).all():
        raise ValueError("y holds values that are not finite")
    return table.reshape(shape[0], -1)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
