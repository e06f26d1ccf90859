"""Averages of an equation of one's own over any source of rows: values, slopes and outer products add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.data import ConcatenatedRows
from boxloop.fit.equations.faults import EquationError
from boxloop.tree import Tree
from boxloop.types import Source

RowFunction = Callable[[Tensor, Tensor], Tensor]
"""(p,) parameters and (n, d) rows to (n, q) values."""


@dataclass(frozen=True)
class EquationSums(Tree):
    """Sums over rows: values (q,), their derivative (q, p), outer products (q, q), weight."""

    value: Tensor
    slope: Tensor
    outer: Tensor
    weight: Tensor


@dataclass(frozen=True)
class _Within(Tree):
    """Sums within the groups of each tile, and the weight of all."""

    group: ConcatenatedRows
    held: ConcatenatedRows
    weight: Tensor


@dataclass(frozen=True)
class Measure:
    """What the rows say at one point, per unit of weight.

    Args:
        mean: of the equations, (q,).
        slope: its derivative, (q, p).
        second: mean outer product, (q, q).
        weight: of all rows.
    """

    mean: Tensor
    slope: Tensor
    second: Tensor
    weight: float

    @property
    def size(self) -> Tensor:
        """Root mean square of each equation, (q,); one where an equation is zero on every row."""
        found = self.second.diagonal().clamp(min=0.0).sqrt()
        return torch.where(found > 0, found, 1.0)

    @property
    def centred(self) -> Tensor:
        """Covariance of the equations over rows, (q, q)."""
        return self.second - torch.outer(self.mean, self.mean)

    @property
    def z(self) -> Tensor:
        """The mean of each equation in units of its own standard error, (q,)."""
        return self.weight**0.5 * self.mean / self.size

    def is_finite(self) -> bool:
        """Whether all of it is."""
        parts = (self.mean, self.slope, self.second)
        return all(bool(torch.isfinite(part).all()) for part in parts)


def measure_equations(
    function: RowFunction, source: Source, point: Tensor, smooth: Tensor | None = None
) -> Measure:
    """One pass over the rows; nothing larger than a tile is held.

    Args:
        function: the equations.
        source: the rows.
        point: (p,).
        smooth: steps of central differences, (p,), where autograd does not see the slope of the mean.
    """

    def tile(rows: Tensor, weight: Tensor) -> EquationSums:
        rows, weight, here = weighted(rows, weight, point)
        if smooth is not None:
            with torch.no_grad():
                value = function(here, rows)
                slope = _differences(function, rows, weight, here, smooth.to(rows.device))
        else:
            with torch.enable_grad():
                value = function(here, rows)
                slope = slope_of(weight @ value, here)
            value = value.detach()
        return summed(value, slope, weight)

    return averaged(source.reduce(tile))


def summed(value: Tensor, slope: Tensor, weight: Tensor) -> EquationSums:
    """The sums of one tile, on the CPU: values (n, q), slope of their weighted sum (q, p), weights (n,)."""
    outer = value.mT @ (value * weight[:, None])
    return EquationSums(weight @ value, slope, outer, weight.sum()).to("cpu")


def averaged(sums: EquationSums) -> Measure:
    """Sums over all rows, per unit of weight."""
    total = float(sums.weight)
    return Measure(sums.value / total, sums.slope / total, sums.outer / total, total)


def slope_of(output: Tensor, point: Tensor) -> Tensor:
    """Derivative of each output (q,) with respect to the point (p,) behind it, (q, p); zero where unrelated."""
    if not output.requires_grad:
        return output.new_zeros(len(output), len(point))
    rows = [torch.autograd.grad(one, point, retain_graph=True, allow_unused=True)[0] for one in output]
    return torch.stack([torch.zeros_like(point) if row is None else row for row in rows]).detach()


def checked(function: Callable[[Tensor, Tensor], object], p: int, what: str = "psi") -> RowFunction:
    """The user's function, its answer checked: one line a row, at least as many columns as parameters."""

    def values(vector: Tensor, rows: Tensor) -> Tensor:
        found = function(vector, rows)
        if not isinstance(found, Tensor):
            raise EquationError(f"{what} must return a torch tensor, not {type(found).__name__}")
        if found.ndim == 1 and p == 1:
            found = found[:, None]
        if found.ndim != 2 or found.shape[0] != rows.shape[0]:
            raise EquationError(
                f"{what} must return one line a row, ({rows.shape[0]}, {p}) here; it returned {tuple(found.shape)}"
            )
        if found.shape[1] < p:
            raise EquationError(
                f"{what} gives {found.shape[1]} equation(s) for {p} parameters: they cannot be determined"
            )
        return found.to(torch.float64)

    return values


def group_outer(
    function: RowFunction, source: Source, point: Tensor, groups: Tensor, centre: Tensor | None = None
) -> Tensor:
    r"""Outer products of sums within groups, per unit of weight, (q, q); one line a group is held.

    .. math:: \frac{1}{W} \sum_g s_g s_g^\top, \qquad s_g = \sum_{i \in g} w_i (\psi(\theta, x_i) - c)

    Args:
        function: the equations.
        source: the rows.
        point: (p,).
        groups: number of each row's group, (n,), from 0.
        centre: c, (q,); zero when omitted.
    """

    def sums(rows: Tensor, weight: Tensor, start: int) -> _Within:
        value = function(point.to(rows.device), rows).detach().cpu()
        value = value if centre is None else value - centre
        mine = weight.cpu()
        value = torch.where(mine[:, None] > 0, value * mine[:, None], 0.0)
        here, place = groups[start : start + len(value)].unique(return_inverse=True)
        held = value.new_zeros(len(here), value.shape[1]).index_add_(0, place, value)
        return _Within(ConcatenatedRows.of(here), ConcatenatedRows.of(held), mine.sum())

    found = source.reduce_at(sums)
    lines = found.held.concatenate()
    held = lines.new_zeros(int(groups.max()) + 1, lines.shape[1]).index_add_(
        0, found.group.concatenate(), lines
    )
    return held.mT @ held / found.weight


def first_bad_row(function: RowFunction, source: Source, point: Tensor, what: str = "psi") -> str:
    """A sentence that names the first row where the function is not finite."""

    def first(rows: Tensor, weight: Tensor, start: int) -> ConcatenatedRows:
        value = function(point.to(rows.device), rows).detach()
        bad = torch.nonzero(~torch.isfinite(value) & (weight > 0)[:, None])[:1]
        if not len(bad):
            return ConcatenatedRows.of(torch.empty(0, 4, dtype=torch.float64))
        row, column = bad[0].tolist()
        holes = torch.isnan(rows[row]).nonzero()[:, 0].tolist() if rows.layout == torch.strided else []
        told = [start + row, column, float(value[row, column]), holes[0] if holes else -1]
        return ConcatenatedRows.of(torch.tensor([told], dtype=torch.float64))

    found = source.reduce_at(first).concatenate()
    if not len(found):
        return f"{what} is finite on every row, its derivative is not"
    place, entry, value, hole = found[0].tolist()
    text = f"{what} is {value} at row {int(place)} (counted from 0), entry {int(entry)}"
    return text + (f"; column {source.names[int(hole)]!r} is missing there" if hole >= 0 else "")


def weighted(rows: Tensor, weight: Tensor, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A tile without its rows of no weight, which may hold anything, and the point ready for derivatives."""
    weight = weight.to(torch.float64)
    if rows.layout == torch.strided and not bool((weight > 0).all()):
        rows, weight = rows[weight > 0], weight[weight > 0]
    return rows, weight, point.detach().to(rows.device, copy=True).requires_grad_()


def _differences(function: RowFunction, rows: Tensor, weight: Tensor, point: Tensor, step: Tensor) -> Tensor:
    columns = []
    for shift, length in zip(torch.diag(step), step, strict=True):
        rise = weight @ function(point + shift, rows) - weight @ function(point - shift, rows)
        columns.append(rise / (2.0 * length))
    return torch.stack(columns, dim=1)
