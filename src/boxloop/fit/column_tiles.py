r"""Long rows cut into tiles of columns that stay in cache while several operations visit them.

A stream of vectors keeps a sheet of ``rank + b`` rows of D entries: the learned rows above the b deviations of the last
observation. An observation changes the upper rows by a small matrix times the whole sheet, so that update can be
carried out in the pass of the next observation: one read and one write of the sheet per observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Generator, Tensor

from boxloop.numeric import normal

TILE_BYTES = 3 << 19
"""Bytes of a tile on a CPU: it and two copies fit in the outer caches, and calls stay few."""
BLOCK_PRODUCTS = 500_000
"""Multiplications per block of a skinny product: up to here OpenBLAS uses its kernel for small ones, twice as fast."""
DEVICE_COLUMNS = 1 << 20
"""Columns per tile on a GPU: enough to hide launches, few enough to bound temporaries."""
DEVICE_BLOCK = 1024
"""Columns on a GPU whose products are summed in the sheet's own dtype."""

PreparedProduct = Callable[[], object]
"""A product with its operands and result bound; the call repeats it with their present values."""


@dataclass(frozen=True)
class Tile:
    """Views of c consecutive columns, and scratch that all tiles share; made once, as updates are in place."""

    rows: Tensor  # the sheet, (rank + b, c)
    upper: Tensor  # its first rank rows
    lower: Tensor  # the others
    mean: Tensor  # running mean, (c,)
    noise: Tensor  # noise variance in use, (c,)
    fresh: Tensor  # scratch shaped as ``rows``, with the same two parts
    fresh_upper: Tensor
    fresh_lower: Tensor
    scaled: Tensor  # scratch shaped as ``rows``
    gap: Tensor  # scratch, (c,)
    shift: Tensor  # scratch, (c,)


def choose_tile_width(rows: Tensor) -> int:
    """Columns per tile, evenly split: as many as the cache allows."""
    height, columns = rows.shape
    most = TILE_BYTES // (height * rows.element_size()) if rows.device.type == "cpu" else DEVICE_COLUMNS
    even = math.ceil(columns / math.ceil(columns / max(most, 64)))
    return min(columns, math.ceil(even / 64) * 64)


def split_into_tiles(rows: Tensor, mean: Tensor, noise: Tensor, rank: int, width: int) -> list[Tile]:
    """All tiles of a sheet, in order."""
    fresh, scaled = (rows.new_zeros(len(rows), width) for _ in range(2))
    spare = rows.new_zeros(2, width)
    tiles = []
    for first in range(0, len(mean), width):
        at = slice(first, min(first + width, len(mean)))
        part, c = rows[:, at], at.stop - at.start
        new = fresh[:, :c]
        long = part, part[:rank], part[rank:], mean[at], noise[at]
        tiles.append(Tile(*long, new, new[:rank], new[rank:], scaled[:, :c], spare[0, :c], spare[1, :c]))
    return tiles


def prepare_product(small: Tensor, rows: Tensor, out: Tensor) -> PreparedProduct:
    """A call that computes ``out = small @ rows``, (p, q) by (q, c), from their values when it runs."""
    if out.device.type != "cpu":
        return lambda: torch.mm(small, rows, out=out)
    left, entries = small.numpy(), small.numel()
    pairs = list(zip(_split_into_blocks(rows, entries), _split_into_blocks(out, entries), strict=True))

    def multiply() -> None:
        for right, result in pairs:
            np.matmul(left, right, out=result)

    return multiply


def prepare_outer_sum(left: Tensor, right: Tensor, total: Tensor) -> PreparedProduct:
    """A call that adds ``left @ right.mT``, (p, c) by (c, q), to ``total`` in float64."""
    if left.device.type != "cpu":
        return lambda: total.add_(multiply_in_blocks(left, right))
    entries = total.numel()
    pairs = list(zip(_split_into_blocks(left, entries), _split_into_blocks(right, entries), strict=True))
    parts = [np.empty((len(a), *total.shape), a.dtype) for a, _ in pairs]
    result = total.numpy()

    def add_products() -> None:
        for (a, b), part in zip(pairs, parts, strict=True):
            np.matmul(a, b.transpose(0, 2, 1), out=part)
            np.add(result, part.sum(0, dtype=np.float64), out=result)

    return add_products


def multiply_in_blocks(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right.mT`` in blocks, which a GPU multiplies in one batch and sums in float64."""
    whole = left.shape[1] // DEVICE_BLOCK * DEVICE_BLOCK
    a, b = (x[:, :whole].unflatten(1, (-1, DEVICE_BLOCK)).transpose(0, 1) for x in (left, right))
    rest = left[:, whole:] @ right[:, whole:].mT
    return torch.bmm(a, b.mT).sum(0, dtype=torch.float64).add_(rest)


def _split_into_blocks(rows: Tensor, entries: int) -> list[NDArray[np.floating]]:
    """(p, c) as a stack (n, p, b) of views, b by the entries of the other factor, and one for the remaining columns."""
    block = max(64, min(4096, BLOCK_PRODUCTS // entries // 64 * 64))
    array = rows.numpy()
    whole = array.shape[1] // block * block
    stacks = []
    if whole:
        stacks.append(array[:, :whole].reshape(len(array), -1, block).transpose(1, 0, 2))
    if whole < array.shape[1]:
        stacks.append(array[None, :, whole:])
    return stacks


def update_mean_and_deviations(tile: Tile, values: Tensor, step: float, shrink: float, out: Tensor) -> None:
    r"""Move the mean by gamma e, :math:`e = \bar x - c`, and write deviations :math:`d_i = x_i - \bar x + \kappa e`.

    With :math:`\kappa = \sqrt{1 - \gamma}` the running mean of :math:`d d^\top` is the covariance of all values seen,
    about their own mean; :math:`\kappa = 1 - \gamma` is Brownlie (2021), Algorithms 1 and 2, lines 5 and 6.
    """
    if values.shape[0] == 1:
        torch.sub(values, tile.mean, out=out)
        tile.mean.add_(out[0], alpha=step)
        out.mul_(shrink)
        return
    torch.mean(values, 0, out=tile.gap)
    tile.gap.sub_(tile.mean)
    torch.add(tile.mean, tile.gap, alpha=1.0 - shrink, out=tile.shift)
    torch.sub(values, tile.shift, out=out)
    tile.mean.add_(tile.gap, alpha=step)


def check_observation(values: Tensor | ArrayLike, columns: int, like: Tensor) -> Tensor:
    """``values`` as finite (b, D) in the dtype and on the device of ``like``; a ValueError otherwise."""
    if not isinstance(values, Tensor):
        table = np.array(values)
        if table.dtype.kind not in "fiub":
            raise ValueError(f"An observation must be real numbers, got an array of {table.dtype}.")
        values = torch.from_numpy(table)
    if values.ndim not in (1, 2) or values.shape[-1] != columns or values.numel() == 0:
        shape = tuple(values.shape)
        raise ValueError(f"An observation must have shape ({columns},) or (b, {columns}), got {shape}.")
    if not values.is_floating_point():
        raise ValueError(f"An observation must be real numbers, got {values.dtype}.")
    vectors = values.detach().to(device=like.device, dtype=like.dtype).reshape(-1, columns).contiguous()
    flat = vectors.reshape(-1)
    if not math.isfinite(float(torch.dot(flat, flat))):
        bad = torch.nonzero(~torch.isfinite(vectors))
        if len(bad) == 0:
            raise ValueError(
                f"The squares of this observation overflow in {like.dtype}: scale it, or use float64."
            )
        raise ValueError(
            f"Entry {int(bad[0, 1])} of the observation is {float(vectors[tuple(bad[0])])}; it must be finite."
        )
    return vectors


def draw_orthonormal_rows(rank: int, columns: int, stream: Generator, like: Tensor) -> Tensor:
    """Random orthonormal rows, (rank, D): Brownlie (2021), section 4.3, transposed.

    Deviation: the QR factor comes from a Cholesky factor of the small Gram matrix, in place. A matrix of normals is
    so well conditioned that no accuracy is lost, and no second D x K matrix is needed.
    """
    rows = normal((rank, columns), stream, like.dtype).to(like.device)
    tiles = rows.split(choose_tile_width(rows), dim=1)
    gram = torch.zeros(rank, rank, dtype=torch.float64, device=like.device)
    for tile in tiles:
        gram += tile.double() @ tile.double().mT
    factor = torch.linalg.cholesky(gram.cpu())
    eye = torch.eye(rank, dtype=torch.float64)
    inverse = torch.linalg.solve_triangular(factor, eye, upper=False).to(like)
    for tile in tiles:
        tile.copy_(inverse @ tile)
    return rows
