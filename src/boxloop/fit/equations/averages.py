"""Averages of estimating equations over any source of rows, the sandwich covariance, and a test of identification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import ConcatenatedRows, column_index
from boxloop.fit.equations.estimate import EquationError, EstimateWarning, NotIdentifiedError
from boxloop.numeric import join_words
from boxloop.tree import Tree
from boxloop.types import Source

RowFunction = Callable[[Tensor, Tensor], Tensor]
"""(parameters (p,), rows (n, d)) -> values (n, q)."""


@dataclass(frozen=True)
class EquationSums(Tree):
    """Sums over rows: values (q,), their derivative (q, p), outer products (q, q), weight."""

    value: Tensor
    slope: Tensor
    outer: Tensor
    weight: Tensor


@dataclass(frozen=True)
class _GroupSums(Tree):
    """Sums within the groups of each tile, and the total weight."""

    group: ConcatenatedRows
    sums: ConcatenatedRows
    weight: Tensor


@dataclass(frozen=True)
class EquationMoments:
    """Moments of the equations at one point, per unit of weight."""

    mean: Tensor  # of the equations, (q,)
    slope: Tensor  # its derivative, (q, p)
    second: Tensor  # mean outer product, (q, q)
    weight: float  # total weight of the rows

    @property
    def size(self) -> Tensor:
        """Root mean square of each equation, (q,); one where an equation is zero on every row."""
        deviation = self.second.diagonal().clamp(min=0.0).sqrt()
        return torch.where(deviation > 0, deviation, 1.0)

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
) -> EquationMoments:
    """Moments of the equations in one pass; ``smooth``: steps of central differences where autograd finds no slope."""

    def sum_rows(rows: Tensor, weight: Tensor) -> EquationSums:
        rows, weight, here = drop_weightless(rows, weight, point)
        if smooth is not None:
            with torch.no_grad():
                value = function(here, rows)
                slope = _difference_centrally(function, rows, weight, here, smooth.to(rows.device))
        else:
            with torch.enable_grad():
                value = function(here, rows)
                slope = differentiate(weight @ value, here)
            value = value.detach()
        return sum_over_tile(value, slope, weight)

    return divide_by_weight(source.reduce(sum_rows))


def sum_over_tile(value: Tensor, slope: Tensor, weight: Tensor) -> EquationSums:
    """Sums of one tile, on the CPU: values (n, q), slope of their weighted sum (q, p), weights (n,)."""
    outer = value.mT @ (value * weight[:, None])
    return EquationSums(weight @ value, slope, outer, weight.sum()).to("cpu")


def divide_by_weight(sums: EquationSums) -> EquationMoments:
    """Sums divided by the total weight."""
    total = float(sums.weight)
    return EquationMoments(sums.value / total, sums.slope / total, sums.outer / total, total)


def differentiate(output: Tensor, point: Tensor) -> Tensor:
    """Jacobian of outputs (q,) in the point (p,), (q, p); zero where they do not depend on it."""
    if not output.requires_grad:
        return output.new_zeros(len(output), len(point))
    rows = [torch.autograd.grad(one, point, retain_graph=True, allow_unused=True)[0] for one in output]
    return torch.stack([torch.zeros_like(point) if row is None else row for row in rows]).detach()


def check_function(function: Callable[[Tensor, Tensor], object], p: int, what: str = "psi") -> RowFunction:
    """The user's function with its result checked: one line per row, at least as many columns as parameters."""

    def check_values(vector: Tensor, rows: Tensor) -> Tensor:
        result = function(vector, rows)
        if not isinstance(result, Tensor):
            raise EquationError(f"{what} must return a torch tensor, not {type(result).__name__}")
        if result.ndim == 1 and p == 1:
            result = result[:, None]
        if result.ndim != 2 or result.shape[0] != rows.shape[0]:
            raise EquationError(
                f"{what} must return one line per row, ({rows.shape[0]}, {p}) here; it returned {tuple(result.shape)}"
            )
        if result.shape[1] < p:
            raise EquationError(
                f"{what} gives {result.shape[1]} equation(s) for {p} parameters: give at least {p}"
            )
        return result.to(torch.float64)

    return check_values


def sum_group_products(
    function: RowFunction, source: Source, point: Tensor, groups: Tensor, centre: Tensor | None = None
) -> Tensor:
    r"""Outer products of sums in groups, :math:`\sum_g s_g s_g^\top / W, s_g = \sum_{i \in g} w_i (\psi_i - c)`."""

    def sum_groups(rows: Tensor, weight: Tensor, start: int) -> _GroupSums:
        value = function(point.to(rows.device), rows).detach().cpu()
        value = value if centre is None else value - centre
        weight = weight.cpu()
        value = torch.where(weight[:, None] > 0, value * weight[:, None], 0.0)
        here, place = groups[start : start + len(value)].unique(return_inverse=True)
        sums = value.new_zeros(len(here), value.shape[1]).index_add_(0, place, value)
        return _GroupSums(ConcatenatedRows.of(here), ConcatenatedRows.of(sums), weight.sum())

    group_sums = source.reduce_at(sum_groups)
    lines = group_sums.sums.concatenate()
    totals = lines.new_zeros(int(groups.max()) + 1, lines.shape[1]).index_add_(
        0, group_sums.group.concatenate(), lines
    )
    return totals.mT @ totals / group_sums.weight


def describe_bad_row(function: RowFunction, source: Source, point: Tensor, what: str = "psi") -> str:
    """A sentence that names the first row at which the function is not finite."""

    def find_bad_row(rows: Tensor, weight: Tensor, start: int) -> ConcatenatedRows:
        value = function(point.to(rows.device), rows).detach()
        bad = torch.nonzero(~torch.isfinite(value) & (weight > 0)[:, None])[:1]
        if not len(bad):
            return ConcatenatedRows.of(torch.empty(0, 4, dtype=torch.float64))
        row, column = bad[0].tolist()
        missing = torch.isnan(rows[row]).nonzero()[:, 0].tolist() if rows.layout == torch.strided else []
        entry = [start + row, column, float(value[row, column]), missing[0] if missing else -1]
        return ConcatenatedRows.of(torch.tensor([entry], dtype=torch.float64))

    bad_rows = source.reduce_at(find_bad_row).concatenate()
    if not len(bad_rows):
        return f"{what} is finite on every row, but its derivative is not"
    place, entry, value, missing = bad_rows[0].tolist()
    text = f"{what} is {value} at row {int(place)} (counted from 0), entry {int(entry)}"
    return text + (f"; column {source.names[int(missing)]!r} is missing there" if missing >= 0 else "")


def drop_weightless(rows: Tensor, weight: Tensor, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A tile without its rows of weight 0, which may be NaN, and the point ready for derivatives."""
    weight = weight.to(torch.float64)
    if rows.layout == torch.strided and not bool((weight > 0).all()):
        rows, weight = rows[weight > 0], weight[weight > 0]
    return rows, weight, point.detach().to(rows.device, copy=True).requires_grad_()


def _difference_centrally(
    function: RowFunction, rows: Tensor, weight: Tensor, point: Tensor, step: Tensor
) -> Tensor:
    columns = []
    for shift, length in zip(torch.diag(step), step, strict=True):
        rise = weight @ function(point + shift, rows) - weight @ function(point - shift, rows)
        columns.append(rise / (2.0 * length))
    return torch.stack(columns, dim=1)


def sandwich(slope: Tensor, meat: Tensor, weight: float, whiten: Tensor) -> Tensor:
    """Covariance G B G' / n of a root, or of the minimum of whitened squared equations (Huber 1967; van der Vaart 1998,
    theorem 5.21): G = (A' C' C A)^-1 A' C' C for slope A (q, p), meat B and whitening C; A^-1 where q = p.
    """
    rows = whiten @ slope
    length = rows.norm(dim=0)
    orthogonal, triangle = torch.linalg.qr(rows / length)
    solve = torch.linalg.solve_triangular(triangle, orthogonal.mT @ whiten, upper=True) / length[:, None]
    covariance = solve @ meat @ solve.mT / weight
    return 0.5 * (covariance + covariance.mT)


def read_groups(groups: object, source: Source, p: int) -> tuple[Tensor, int]:
    """Index of each row's group, (n,), and the number of groups, from a label per row or the name of a column."""
    if isinstance(groups, str):
        place = column_index(source.names, groups)
        labels = (
            source.reduce(lambda rows, weight: ConcatenatedRows.of(rows[:, place].cpu()))
            .concatenate()
            .numpy()
        )
    else:
        labels = np.asarray(groups.cpu() if isinstance(groups, Tensor) else groups)
    if labels.shape != (source.n_rows,):
        raise ValueError(f"groups must have one label per row: shape ({source.n_rows},), got {labels.shape}")
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError(f"the group of row {int(np.isnan(labels).argmax())} (counted from 0) is missing")
    levels, place_of = np.unique(labels, return_inverse=True)
    if len(levels) <= p:
        warn_caller(
            f"{len(levels)} groups for {p} parameters: standard errors from so few groups are unreliable",
            EstimateWarning,
        )
    return torch.from_numpy(np.asarray(place_of, dtype=np.int64)), len(levels)


def small_sample_factor(weight: float, p: int, n_groups: int | None) -> float:
    """n / (n - p), and with groups G / (G - 1) x (n - 1) / (n - p)."""
    if weight <= p or n_groups == 1:
        raise ValueError(
            "the small-sample correction needs more rows than parameters, and more than one group"
        )
    if n_groups is None:
        return weight / (weight - p)
    return n_groups / (n_groups - 1) * (weight - 1) / (weight - p)


RANK_TOLERANCE = 1e-10
"""Smallest singular value, relative to the largest and in scaled coordinates, that is not zero."""
NAMED_SHARE = 1e-4
"""Smallest share of a parameter in a direction for it to be named."""
MAX_NAMED = 4


def check_identified(slope: Tensor, names: Sequence[str]) -> None:
    """Raise NotIdentifiedError, naming a direction along which no equation changes, if the slope (q, p) has one."""
    free_direction = describe_free_direction(slope, names)
    if free_direction is not None:
        raise NotIdentifiedError(f"the equations do not determine the parameters: {free_direction}")


def describe_free_direction(slope: Tensor, names: Sequence[str]) -> str | None:
    """A sentence about the direction along which no equation changes; None if there is none."""
    if not bool(torch.isfinite(slope).all()):
        return "their derivative is not finite"
    absent = torch.nonzero(slope.abs().amax(0) == 0)[:, 0].tolist()
    if absent:
        which = join_words([names[j] for j in absent], most=MAX_NAMED)
        verb = "has" if len(absent) == 1 else "have"
        return (
            f"{which} {verb} no influence on any equation here (for a psi that is flat between jumps give smooth=; "
            "otherwise the root may lie at infinity)"
        )
    lines, columns = equilibrate(slope)
    _, size, right = torch.linalg.svd(slope * lines[:, None] * columns, full_matrices=False)
    if float(size[-1]) > RANK_TOLERANCE * float(size[0]):
        return None
    direction = right[-1] * columns
    direction = direction / direction[direction.abs().argmax()]
    share = right[-1].abs()
    named = [j for j in share.argsort(descending=True).tolist() if float(share[j]) > NAMED_SHARE]
    largest = sorted(named[:MAX_NAMED])
    which = join_words([names[j] for j in largest], total=len(named))
    parts = ", ".join(f"{float(direction[j]):+.3g} {names[j]}" for j in largest)
    more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
    return f"{which} enter only through a combination; moving along ({parts}{more}) changes no equation"


def equilibrate(slope: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of rows and columns that bring both to length nearly one; ones where all is zero (Ruiz 2001)."""
    lines, columns = slope.new_ones(slope.shape[0]), slope.new_ones(slope.shape[1])
    for _ in range(10):
        scaled = slope * lines[:, None] * columns
        lines = lines * _inverse_sqrt(scaled.norm(dim=1))
        columns = columns * _inverse_sqrt(scaled.norm(dim=0))
    return lines, columns


def _inverse_sqrt(length: Tensor) -> Tensor:
    return torch.where(length > 0, length.clamp(min=1e-300).rsqrt(), 1.0)
