r"""The law of one view given the other, as signed weights of the rows of the fit.

.. math:: p(x \mid y) \to \sum_n w_n(y) \, \delta_{x_n}, \qquad
    w_n(y) = \frac{w_n}{W} \left( 1 + \sum_{i=1}^{r} \eta_i v_i(y) u_i(x_n) \right)

Document 003, eq. 10 with the constant apart: the weights add up to 1, and some may be negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.data import FIRST_ROWS, check_table, to_vector
from boxloop.numeric import SingleThreaded, product
from boxloop.tree import Tree
from boxloop.twoview.canonical import RelevanceModel
from boxloop.twoview.errors import Single, Tally, deviation_error
from boxloop.twoview.expectation import Expectation
from boxloop.twoview.influence import Basis, Side, Tile
from boxloop.types import Source

Array = NDArray[np.float64]
Function = Callable[[Tensor], Tensor]
"""A function of rows (n, d) with p values each, (n, p) or (n,)."""

ROUNDING = 1e-13
"""Part of a column's variance below which a conditional variance is 0 but for rounding."""


@dataclass(frozen=True)
class Coefficients(Tree):
    r"""What eq. 10 keeps of a function: :math:`\overline{u_i (\theta - o)}` and :math:`\overline{u_i (\theta - o)^2}`.

    Args:
        origin: o, (p,), near the mean, so that squares lose no digits.
        side: b of the p functions, then of their squares.
    """

    origin: Tensor
    side: Side


@dataclass(frozen=True)
class Conditional(SingleThreaded):
    r"""Expectations over the first view given the second, for any function, without another fit.

    .. math:: E[\theta \mid y] \approx \sum_{i=0}^{r} \eta_i \, \overline{u_i \theta} \, v_i(y)

    Document 003, eq. 9 and 10. For the other direction give ``model.swapped()`` and rows with their columns exchanged.

    Error bars are those of K, L, A and the means of :math:`u_i \theta` as estimated from these rows, by the delta
    method: right to first order for features that are given, where every variable is kept and where some are left out
    (:mod:`boxloop.twoview.influence`). They say how far a result is from what infinitely many rows would give with the
    same features and the same number of variables. Not in them: what features learned from the same rows owe to
    chance; the distance of that limit from the true conditional law, which grows as variables are left out (in the
    tests, with 2000 rows, the mean of a cosine is over 20 errors off with 1 of 6 variables and within 3 with 3); second
    order, which matters where features are not few beside rows, or where the last variable kept and the first left
    out are about equally relevant; that a ridge is relative to variances that are themselves estimated.

    Args:
        model: canonical variables.
        source: the rows of the fit, both views, with their weights.
        ridge: with which the variables were solved.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import FiniteView, ViewPair
        >>> rows = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [1.0, 1.0]]).double()
        >>> coin = FiniteView(torch.tensor([0.0, 1.0]).double())
        >>> source = ArraySource(rows)
        >>> model = RelevanceModel.solve(ViewPair(coin, coin), source, most=1)
        >>> found = Conditional(model, source).expect(None, torch.tensor([[0.0], [1.0]]))
        >>> found.mean[:, 0].round(6), found.deviation[:, 0].round(6)
        (array([0.5, 1. ]), array([0.5, 0. ]))
    """

    model: RelevanceModel
    source: Source
    ridge: float = 0.0

    @cached_property
    def basis(self) -> Basis:
        """Every variable of the features, by one pass over the rows."""
        found = self.model.pair.left.n_columns + self.model.pair.right.n_columns
        if self.source.n_columns != found:
            raise ValueError(f"rows have {self.source.n_columns} columns, and both views together {found}")
        return Basis.of(self.model, self.source, self.ridge)

    @cached_property
    def first_rows(self) -> Tensor:
        """Some rows of the first view, in the precision of the source and on the device of the model."""
        rows = next(iter(self.source.chunks(FIRST_ROWS)))[0]
        return self.model.pair.parts(rows.to(self.device))[0]

    @property
    def device(self) -> torch.device:
        """Where everything is computed."""
        return self.model.canonical.correlation.device

    def rows_of(self, rows: Any, columns: int, name: str) -> Tensor:
        """Rows of one view as the features take them, or an error that says what is wrong."""
        if not isinstance(rows, Tensor):
            check_table(rows, name)
            rows = torch.from_numpy(to_vector(rows, name))
        elif rows.is_complex():
            raise ValueError(f"{name} must hold real numbers, not complex ones")
        found = rows.to(device=self.device, dtype=self.first_rows.dtype)
        if found.dim() != 2 or found.shape[1] != columns or len(found) == 0:
            raise ValueError(f"{name} must be rows of {columns} columns, got shape {tuple(found.shape)}")
        if not bool(torch.isfinite(found).all()):
            raise ValueError(f"{name} has missing or infinite values; features need every column")
        return found

    def given(self, rows: Any) -> Side:
        """v of the points to condition on: (m, d_y) -> m sides."""
        with torch.no_grad():
            found = self.rows_of(rows, self.model.pair.right.n_columns, "given")
            return Side(*self.basis.rights(found))

    def values(self, theta: Function | None, rows: Tensor) -> Tensor:
        """The function at rows of the first view, (n, p) in float64."""
        if theta is None:
            found = rows
        else:
            made = theta(rows)
            found = made if isinstance(made, Tensor) else _numbers(made)
            found = found.to(rows.device)
            if found.dim() == 1:
                found = found[:, None]
        if found.dim() != 2 or len(found) != len(rows) or found.shape[1] == 0:
            raise ValueError(
                f"theta must give (n, p) or (n,) for n rows; for {len(rows)} it gave {tuple(found.shape)}"
            )
        if found.is_complex():
            raise ValueError("theta gave complex numbers: give real and imaginary parts as two columns")
        found = found.double()
        if not bool(torch.isfinite(found).all()):
            raise ValueError("theta gave a missing or infinite value")
        return found

    def tile(self, rows: Tensor, weight: Tensor, value: Function) -> Tile:
        """Rows of both views as variables, with values of functions of the first."""
        x, y = self.model.pair.parts(rows.to(self.device))
        share = weight.to(self.device).double() / self.basis.total
        return Tile(self.basis, share, *self.basis.lefts(x), *self.basis.rights(y), value(x))

    def coefficients(self, theta: Function | None) -> Coefficients:
        """What eq. 10 needs of a function, in one pass; serves any number of given points."""
        with torch.no_grad():
            origin = self.values(theta, self.first_rows).mean(0)
            side = self.averaged(self._squared(theta, origin))
        return Coefficients(origin, side)

    def averaged(self, value: Function) -> Side:
        """Means of variables times values, by a pass over the rows."""
        with torch.no_grad():
            return self.source.reduce(lambda rows, weight: self.tile(rows, weight, value).coefficients())

    def _squared(self, theta: Function | None, origin: Tensor) -> Function:
        def both(rows: Tensor) -> Tensor:
            value = self.values(theta, rows) - origin
            return torch.cat([value, value.square()], 1)

        return both

    def moments(self, a: Side, found: Coefficients) -> tuple[Tensor, Tensor]:
        """First and second conditional moments about the origin, (m, p) each."""
        both = product(a.kept * self.basis.eta, found.side.kept.mT)
        p = len(found.origin)
        return both[:, :p], both[:, p:]

    def mean(self, theta: Function | None, given: Any, known: Coefficients | None = None) -> Array:
        """Conditional means alone, (m, p): one pass over the rows, or none.

        Args:
            theta: function of the first view; None for its columns.
            given: rows of the second view, (m, d_y).
            known: :meth:`coefficients` of theta, where they were kept.
        """
        found = known or self.coefficients(theta)
        return (found.origin + self.moments(self.given(given), found)[0]).cpu().numpy()

    def expect(self, theta: Function | None, given: Any) -> Expectation:
        """Conditional mean and standard deviation of a function, with their standard errors: two passes over the rows.

        Args:
            theta: rows (n, d_x) -> (n, p) or (n,); None for the columns themselves.
            given: rows of the second view, (m, d_y).

        Returns:
            The expectation, which can be asked for quantiles, tails and covariances later.

        Raises:
            ValueError: rows with the wrong columns, or a function with the wrong shape or missing values.
        """
        return self.expect_at(theta, self.given(given))

    def expect_at(self, theta: Function | None, a: Side) -> Expectation:
        """The same at points whose variables are known."""
        with torch.no_grad():
            found = self.coefficients(theta)
            value, ridged = self._squared(theta, found.origin), self.ridge > 0.0
            tally = self.source.reduce(
                lambda rows, weight: Tally.of(self.tile(rows, weight, value), a, found.side, ridged)
            )
            first, second = self.moments(a, found)
            error, spread = tally.errors(first)
            variance, tiny = second - first.square(), self._tiny(found)
            kept = torch.where(variance.abs() > tiny, variance, 0.0).clamp(min=0.0)
        return Expectation(
            mean=as_array(first + found.origin),
            standard_error=as_array(error.sqrt()),
            deviation=as_array(kept.sqrt()),
            deviation_error=as_array(deviation_error(kept, spread.sqrt())),
            negative_variance=as_array(variance < -tiny),
            negative_mass=as_array(tally.negative),
            names=self._names(theta, len(found.origin)),
            conditional=self,
            theta=theta,
            given=a,
            origin=found.origin,
        )

    def _tiny(self, found: Coefficients) -> Tensor:
        p = len(found.origin)
        overall = found.side.kept[p:, 0]
        return ROUNDING * overall + (1e-14 * found.origin).square()

    def _names(self, theta: Function | None, p: int) -> tuple[str, ...]:
        if theta is None:
            return tuple(self.source.names[:p])
        return tuple(f"theta{j}" for j in range(p))

    def single_errors(self, a: Side, value: Function, b: Side | None = None) -> Tensor:
        """Standard errors of the expectation of function i given point i, (m,): two passes, one where b is known."""
        side = self.averaged(value) if b is None else b
        return self.source.reduce(
            lambda rows, weight: Single.of(self.tile(rows, weight, value), a, side)
        ).error()


def as_array(value: Tensor) -> NDArray[Any]:
    """In NumPy, on the CPU."""
    return value.cpu().numpy()


def _numbers(made: Any) -> Tensor:
    """What a function gave that is no tensor: an array, a frame or a list of numbers."""
    found = np.array(made)
    if found.dtype.kind not in "biuf":
        raise ValueError(f"theta must give numbers, a tensor or an array; it gave {type(made).__name__}")
    return torch.from_numpy(found)
