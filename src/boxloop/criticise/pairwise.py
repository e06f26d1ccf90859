"""Averages of a kernel over pairs of rows: in tiles, with permutations and standard errors; and checks of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from boxloop.numeric import RandomState, generator, product

SYMMETRY = 1e-6
"""Largest asymmetry, and largest negative eigenvalue, of a covariance relative to its largest entry."""

PairKernel = Callable[[Tensor, Tensor], Tensor]
"""Rows (n, d) and rows (m, d) to one number per pair, (n, m)."""

TILE_PAIRS = 1 << 22
"""Pairs of rows held at a time: 2^22 float64 are 32 megabytes."""

TIE = 1e-12
"""Permuted statistics this close to the observed one, relative to the kernel, count as equal: they are rounding."""


@dataclass(frozen=True)
class Discrepancy:
    """A squared distance between two distributions, estimated from rows.

    Args:
        value: unbiased estimate of the square; below zero by chance when the distributions are close or equal. A tensor
            where the rows were tensors.
        standard_error: of ``value``.
        p_value: of the hypothesis that both distributions are the same, or None without a test.
    """

    value: float | Tensor
    standard_error: float
    p_value: float | None


def check_rows(data: object, name: str = "rows", least: int = 2) -> Tensor:
    """Finite float64 rows (n, d), on their device; one dimension is one column. Else a ValueError that names them."""
    if isinstance(data, Tensor):
        rows = data
    else:
        try:
            rows = torch.from_numpy(np.array(data, dtype=np.float64, order="C"))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must be a table of numbers: {error}") from error
    if rows.is_complex() or rows.layout != torch.strided:
        raise ValueError(f"{name} must be a dense table of real numbers")
    rows = rows.double() if torch.is_grad_enabled() else rows.detach().double()
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(f"{name} must have rows and columns: (n, d) is needed, not {tuple(rows.shape)}")
    if rows.shape[0] < least:
        raise ValueError(f"{name} must have at least {least} rows, not {rows.shape[0]}")
    bad = ~torch.isfinite(rows.detach())
    if bool(bad.any()):
        row, column = (int(i) for i in bad.nonzero()[0])
        value = to_float(rows[row, column])
        raise ValueError(
            f"{name}: column {column} holds {value} at row {row} (both counted from 0); drop or fill it first"
        )
    return rows


def check_two_samples(x: object, y: object, least: int = 2) -> tuple[Tensor, Tensor]:
    """Two samples with the same columns, on one device."""
    a, b = check_rows(x, "x", least), check_rows(y, "y", least)
    if a.shape[1] != b.shape[1]:
        raise ValueError(
            f"x has {a.shape[1]} columns and y has {b.shape[1]}: they must have the same columns"
        )
    if not isinstance(x, Tensor):
        return a.to(b.device), b
    return a, b if isinstance(y, Tensor) else b.to(a.device)


def check_covariance(value: object, name: str) -> Tensor:
    """A symmetric matrix without negative eigenvalues, (d, d)."""
    matrix = check_rows(value, name, 1).detach()
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be square, not {tuple(matrix.shape)}")
    slack = SYMMETRY * float(matrix.abs().max())
    if float((matrix - matrix.mT).abs().max()) > slack:
        raise ValueError(f"{name} must be symmetric")
    if float(torch.linalg.eigvalsh(matrix)[0]) < -slack:
        raise ValueError(f"{name} must be positive semi-definite: it has a negative eigenvalue")
    return matrix


def match_input_type(value: Tensor, *inputs: object) -> float | Tensor:
    """The value as a tensor where an input was one, else as a float."""
    return value if any(isinstance(item, Tensor) for item in inputs) else to_float(value)


def to_float(value: float | Tensor) -> float:
    """The number alone, without its gradient."""
    return float(value.detach()) if isinstance(value, Tensor) else value


def square_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared Euclidean distances of all pairs, (n, m), by one matrix product; rows should be centred, for rounding."""
    lengths = a.square().sum(1)[:, None] + b.square().sum(1)
    return (lengths - 2.0 * product(a, b.mT)).clamp(min=0.0)


def safe_root(value: Tensor, order: float = 2.0) -> Tensor:
    """``value ** (1 / order)`` for values that are not negative; its gradient at zero is zero, not infinite."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0) ** (1.0 / order), 0.0)


def kernel_without_diagonal(kernel: PairKernel, rows: Tensor, start: int, step: int) -> Tensor:
    """Kernel of ``rows[start : start + step]`` with all rows, each row's value with itself set to zero."""
    block = kernel(rows[start : start + step], rows)
    return block.diagonal_scatter(block.new_zeros(block.shape[0]), offset=start)


def rows_per_tile(n_rows: int) -> int:
    """Rows of a tile whose pairs with ``n_rows`` rows fit in ``TILE_PAIRS``."""
    return max(1, TILE_PAIRS // n_rows)


def interaction_variance(mean_square: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Variance of a kernel over pairs that neither partner explains, from its row and column means."""
    explained = rows.square().mean() + columns.square().mean() - rows.mean() * columns.mean()
    return (mean_square - explained).clamp(min=0.0)


def error_of_pair_average(first: Tensor, second: Tensor) -> float:
    """Standard error of an average over pairs, from its variances of the first and of the second order."""
    # The first comes from estimated row means, whose noise counts the second-order variance twice; where the first
    # vanishes the second is all there is.
    return float(torch.maximum(first - second, second).sqrt())


@dataclass(frozen=True)
class KernelContrast:
    """Mean kernel over pairs in x, in y and between them: entry 0 as given, the others after permutation."""

    within_x: Tensor
    within_y: Tensor
    between: Tensor
    standard_error: float = 0.0

    @property
    def values(self) -> Tensor:
        """The unbiased statistic, within x + within y - 2 between, (1 + permutations,)."""
        return self.within_x + self.within_y - 2.0 * self.between

    @property
    def p_value(self) -> float | None:
        """(1 + permuted statistics at least as large) / (1 + permutations), or None without any."""
        values = self.values.detach()
        if len(values) == 1:
            return None
        return resampling_p_value(values[0] - TIE * self.between.detach()[0].abs(), values[1:])


def resampling_p_value(observed: Tensor, drawn: Tensor) -> float:
    """Share of draws at least as large as the observed one, which counts as a draw itself."""
    return (1 + int((drawn >= observed).sum())) / (1 + len(drawn))


def draw_permuted_splits(n: int, m: int, permutations: int, random_state: RandomState) -> Tensor:
    """Which of n + m pooled rows are in the first sample, as 0 and 1: column 0 as given, the others permuted."""
    stream = generator(random_state)
    member = torch.zeros(n + m, 1 + permutations, dtype=torch.float64)
    member[:n, 0] = 1.0
    for column in range(1, 1 + permutations):
        member[torch.randperm(n + m, generator=stream)[:n], column] = 1.0
    return member


def contrast_from_sums(inside: Tensor, across: Tensor, total: Tensor, n: int, m: int) -> KernelContrast:
    """KernelContrast from sums over ordered pairs: both in x, one in x and the other anywhere, all."""
    between = across - inside
    return KernelContrast(
        inside / (n * (n - 1)), (total - across - between) / (m * (m - 1)), between / (n * m)
    )


def contrast_samples(
    kernel: PairKernel, x: Tensor, y: Tensor, permutations: int = 0, random_state: RandomState = 0
) -> KernelContrast:
    """Compare two samples by a symmetric kernel: every pair is evaluated once, whatever the number of permutations."""
    n, m = len(x), len(y)
    pooled = torch.cat([x, y])
    member = draw_permuted_splits(n, m, permutations, random_state).to(pooled.device)
    inside = across = pooled.new_zeros(1 + permutations)
    rows = []
    for start in range(0, n + m, step := rows_per_tile(n + m)):
        block = kernel_without_diagonal(kernel, pooled, start, step)
        mine, to_x, to_all = member[start : start + step], product(block, member), block.sum(1)
        inside = inside + (mine * to_x).sum(0)
        across = across + to_all @ mine
        square = block.detach().square()
        rows.append(torch.stack([to_x[:, 0], to_all, square @ member[:, 0], square.sum(1)]))
    sums = torch.cat(rows, dim=1)
    found = contrast_from_sums(inside, across, sums[1].sum(), n, m)
    return KernelContrast(
        found.within_x, found.within_y, found.between, _contrast_standard_error(sums.detach(), n, m)
    )


def first_order_variance(to_x: Tensor, to_all: Tensor, n: int, m: int) -> Tensor:
    """Variance of a contrast's projection on single rows, from each row's sums over x and over all other rows."""
    to_y = to_all - to_x
    apart_x = to_x[:n] / (n - 1) - to_y[:n] / m
    apart_y = to_y[n:] / (m - 1) - to_x[n:] / n
    return 4.0 * apart_x.var() / n + 4.0 * apart_y.var() / m


def _contrast_standard_error(sums: Tensor, n: int, m: int) -> float:
    to_x, to_all, square_x, square_all = sums
    xx, xy = to_x[:n] / (n - 1), (to_all - to_x)[:n] / m
    yy, yx = (to_all - to_x)[n:] / (m - 1), to_x[n:] / n
    square_y = square_all - square_x
    second = 2.0 * interaction_variance(square_x[:n].sum() / (n * (n - 1)), xx, xx) / (n * (n - 1))
    second = second + 2.0 * interaction_variance(square_y[n:].sum() / (m * (m - 1)), yy, yy) / (m * (m - 1))
    second = second + 4.0 * interaction_variance(square_y[:n].sum() / (n * m), xy, yx) / (n * m)
    return error_of_pair_average(first_order_variance(to_x, to_all, n, m), second)
