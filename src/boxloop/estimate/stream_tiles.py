r"""What the streams share: long rows cut into tiles that stay in cache while several operations visit them.

A stream keeps a sheet of ``rank + b`` rows of D entries: what it has learned, and under it the b deviations of the
last observation. Whatever an observation changes in the upper rows is a small matrix times the whole sheet, so it
can wait for the next observation and share that pass: one read and one write of the sheet an observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.numeric import normal, safe_cholesky

CACHE = 1 << 20
"""Bytes that the rows of one tile may take on a CPU: the sheet's tile and two copies stay within L2 and L3."""
SMALL_PRODUCT = 1_000_000
"""Multiplications up to which OpenBLAS takes its kernels for small matrices, twice as fast on skinny ones."""
DEVICE_COLUMNS = 1 << 24
"""Columns of a tile on an accelerator: long enough to hide launches, short enough to bound temporaries."""


class Tile(NamedTuple):
    """Views of one run of c columns, and scratch that all tiles share.

    Args:
        rows: the sheet, (rank + b, c).
        mean: running mean, (c,).
        square: running mean of squared deviations, (c,).
        noise: noise variance in use, (c,).
        fresh: scratch shaped as ``rows``.
        scaled: scratch, (max(rank, b), c).
        spare: scratch, (2, c).
    """

    rows: Tensor
    mean: Tensor
    square: Tensor
    noise: Tensor
    fresh: Tensor
    scaled: Tensor
    spare: Tensor


def tile_columns(rows: Tensor, rank: int) -> int:
    """Columns a tile, from the size of the caches and of the products in it."""
    height, columns = rows.shape
    if rows.device.type != "cpu":
        return min(columns, DEVICE_COLUMNS)
    fitting = min(CACHE // (height * rows.element_size()), SMALL_PRODUCT // (height * rank), 8192)
    return max(64, fitting // 64 * 64)


def cut(rows: Tensor, mean: Tensor, square: Tensor, noise: Tensor, rank: int, width: int) -> list[Tile]:
    """All tiles of a sheet, in order; made once, since every update is in place."""
    height, columns = rows.shape
    width = min(width, columns)
    fresh = rows.new_zeros(height, width)
    scaled = rows.new_zeros(max(rank, height - rank), width)
    spare = rows.new_zeros(2, width)
    tiles = []
    for start in range(0, columns, width):
        at = slice(start, min(start + width, columns))
        c = at.stop - at.start
        views = rows[:, at], mean[at], square[at], noise[at]
        tiles.append(Tile(*views, fresh[:, :c], scaled[:, :c], spare[:, :c]))
    return tiles


def multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """``out = left @ right``; on a CPU through NumPy's BLAS, which is faster on skinny products."""
    if out.device.type == "cpu":
        np.matmul(left.numpy(), right.numpy(), out=out.numpy())
    else:
        torch.mm(left, right, out=out)


def deviate(tile: Tile, values: Tensor, step: float, shrink: float, out: Tensor) -> None:
    r"""Move the mean and the mean square by ``step`` and leave the deviations of ``values`` in ``out``.

    .. math:: e = \bar x - c_{t-1}, \quad c_t = c_{t-1} + \gamma e, \quad d_i = x_i - \bar x + \kappa e, \quad
              s_t = (1 - \gamma) s_{t-1} + \frac{\gamma}{b} \sum_i d_i^2

    With :math:`\kappa = \sqrt{1 - \gamma}`, s is the variance of all values seen, weighted by the steps, about
    their own mean; :math:`\kappa = 1 - \gamma` is the deviation from the mean after its update (document 004,
    Algorithms 1 and 2, lines 5 and 6).

    Args:
        tile: the columns at work.
        values: b observations, (b, c).
        step: gamma.
        shrink: kappa.
        out: receives the deviations, (b, c).
    """
    if len(values) == 1:
        torch.sub(values, tile.mean, out=out)
        tile.mean.add_(out[0], alpha=step)
        out.mul_(shrink)
        tile.square.mul_(1.0 - step).addcmul_(out[0], out[0], value=step)
        return
    gap, shift = tile.spare[0], tile.spare[1]
    torch.mean(values, 0, out=gap)
    gap.sub_(tile.mean)
    torch.add(tile.mean, gap, alpha=1.0 - shrink, out=shift)
    torch.sub(values, shift, out=out)
    tile.mean.add_(gap, alpha=step)
    squares = tile.scaled[: len(out)]
    torch.mul(out, out, out=squares)
    torch.sum(squares, 0, out=gap)
    tile.square.mul_(1.0 - step).add_(gap, alpha=step / len(out))


def checked(values: Tensor, columns: int, like: Tensor) -> Tensor:
    """``values`` as (b, D) in the dtype and on the device of ``like``, or an error that says what is wrong."""
    if values.ndim not in (1, 2) or values.shape[-1] != columns or values.numel() == 0:
        shape = tuple(values.shape)
        raise ValueError(f"an observation has shape ({columns},) or (b, {columns}), got {shape}")
    if not values.is_floating_point():
        raise ValueError(f"an observation is real numbers, got {values.dtype}")
    found = values.detach().to(device=like.device, dtype=like.dtype).reshape(-1, columns)
    flat = found.reshape(-1)
    if not math.isfinite(float(torch.dot(flat, flat))):
        bad = torch.nonzero(~torch.isfinite(found))
        if len(bad) == 0:
            raise ValueError(f"the squares of this observation overflow in {like.dtype}")
        raise ValueError(f"entry {int(bad[0, 1])} of the observation is {float(found[tuple(bad[0])])}")
    return found


def orthonormal(rank: int, columns: int, stream: Generator, like: Tensor) -> Tensor:
    """Random orthonormal rows, (rank, D): document 004, section 4.3, transposed.

    Deviation: the QR factor comes from a Cholesky factor of the small Gram matrix, in place. A matrix of normals is
    so well conditioned that this loses nothing, and it needs no second D x K matrix.
    """
    rows = normal((rank, columns), stream, like.dtype).to(like.device)
    tiles = rows.split(tile_columns(rows, rank), dim=1)
    gram = sum((t.double() @ t.double().mT for t in tiles), start=rows.new_zeros(rank, rank).double())
    factor = safe_cholesky(gram.cpu(), "Gram matrix")
    inverse = torch.linalg.solve_triangular(factor, torch.eye(rank).double(), upper=False)
    inverse = inverse.to(like)
    for tile in tiles:
        tile.copy_(inverse @ tile)
    return rows


def visit(tiles: list[Tile], values: Tensor, work: Callable[[Tile, Tensor], Tensor]) -> Tensor:
    """Sum of ``work(tile, values of its columns)`` over all tiles, in float64 on the CPU, in order."""
    parts = zip(tiles, values.split(tiles[0].mean.shape[0], dim=1), strict=True)
    first, *rest = parts
    total = work(*first).double()
    for tile, part in rest:
        total += work(tile, part)
    return total.cpu()
