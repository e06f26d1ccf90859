r"""What the streams share: long rows cut into tiles that stay in cache while several operations visit them.

A stream keeps a sheet of ``rank + b`` rows of D entries: what it has learned, and under it the b deviations of the
last observation. Whatever an observation changes in the upper rows is a small matrix times the whole sheet, so it
can wait for the next observation and share that pass: one read and one write of the sheet an observation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Generator, Tensor

from boxloop.numeric import normal, safe_cholesky

CACHE = 3 << 19
"""Bytes of one tile of the sheet on a CPU: it and two copies stay in the outer caches, and calls stay few."""
SMALL_PRODUCT = 500_000
"""Multiplications in one block of a skinny product: OpenBLAS is twice as fast while it takes it for a small one."""
DEVICE_COLUMNS = 1 << 20
"""Columns of a tile on an accelerator: long enough to hide launches, short enough to bound temporaries."""
DEVICE_BLOCK = 1024
"""Columns on an accelerator whose products are summed in the sheet's own dtype."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Tile:
    """Views of one run of c columns, and scratch that all tiles share; made once, as updates are in place.

    Args:
        rows: the sheet, (rank + b, c); ``upper`` and ``lower`` are its two parts.
        mean: running mean, (c,).
        noise: noise variance in use, (c,).
        fresh: scratch shaped as ``rows``, with its two parts.
        scaled: scratch shaped as ``rows``.
        gap: scratch, (c,).
        shift: scratch, (c,).
    """

    rows: Tensor
    upper: Tensor
    lower: Tensor
    mean: Tensor
    noise: Tensor
    fresh: Tensor
    fresh_upper: Tensor
    fresh_lower: Tensor
    scaled: Tensor
    gap: Tensor
    shift: Tensor


def tile_columns(rows: Tensor) -> int:
    """Columns a tile, all tiles alike: as many as the cache allows."""
    height, columns = rows.shape
    most = CACHE // (height * rows.element_size()) if rows.device.type == "cpu" else DEVICE_COLUMNS
    even = math.ceil(columns / math.ceil(columns / max(most, 64)))
    return min(columns, math.ceil(even / 64) * 64)


def cut(rows: Tensor, mean: Tensor, noise: Tensor, rank: int, width: int) -> list[Tile]:
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


def spread(small: Tensor, rows: Tensor, out: Tensor) -> Call:
    """A call that sets ``out = small @ rows``, (p, q) by (q, c), from what the three hold when it runs."""
    if out.device.type != "cpu":
        return lambda: torch.mm(small, rows, out=out)
    block = _block(small.numel())
    left = small.numpy()
    pairs = list(zip(_blocks(rows, block), _blocks(out, block), strict=True))

    def run() -> None:
        for right, result in pairs:
            np.matmul(left, right, out=result)

    return run


def gather(left: Tensor, right: Tensor, total: Tensor) -> Call:
    """A call that adds ``left @ right.mT``, (p, c) by (c, q), to ``total`` in float64."""
    if left.device.type != "cpu":
        return lambda: total.add_(blockwise_product(left, right))
    block = _block(total.numel())
    pairs = list(zip(_blocks(left, block), _blocks(right, block), strict=True))
    parts = [np.empty((len(a), *total.shape), a.dtype) for a, _ in pairs]
    result = total.numpy()

    def run() -> None:
        for (a, b), part in zip(pairs, parts, strict=True):
            np.matmul(a, b.transpose(0, 2, 1), out=part)
            np.add(result, part.sum(0, dtype=np.float64), out=result)

    return run


def blockwise_product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right.mT`` as blocks, which a GPU multiplies at once and sums in float64."""
    whole = left.shape[1] // DEVICE_BLOCK * DEVICE_BLOCK
    a, b = (x[:, :whole].unflatten(1, (-1, DEVICE_BLOCK)).transpose(0, 1) for x in (left, right))
    rest = left[:, whole:] @ right[:, whole:].mT
    return torch.bmm(a, b.mT).sum(0, dtype=torch.float64).add_(rest)


def _block(entries: int) -> int:
    return max(64, min(4096, SMALL_PRODUCT // entries // 64 * 64))


def _blocks(rows: Tensor, block: int) -> list[NDArray[np.floating]]:
    """(p, c) as stacks (n, p, block) of views, and a last one for what is left over."""
    array = rows.numpy()
    whole = array.shape[1] // block * block
    stacks = []
    if whole:
        stacks.append(array[:, :whole].reshape(len(array), -1, block).transpose(1, 0, 2))
    if whole < array.shape[1]:
        stacks.append(array[None, :, whole:])
    return stacks


def deviate(tile: Tile, values: Tensor, step: float, shrink: float, out: Tensor) -> None:
    r"""Move the mean by ``step`` and leave the deviations of ``values`` in ``out``.

    .. math:: e = \bar x - c_{t-1}, \qquad c_t = c_{t-1} + \gamma e, \qquad d_i = x_i - \bar x + \kappa e

    With :math:`\kappa = \sqrt{1 - \gamma}` the running mean of :math:`d d^\top` is the covariance of all values
    seen, weighted by the steps, about their own mean; :math:`\kappa = 1 - \gamma` is the deviation from the mean
    after its update (document 004, Algorithms 1 and 2, lines 5 and 6).

    Args:
        tile: the columns at work.
        values: b observations, (b, c).
        step: gamma.
        shrink: kappa.
        out: receives the deviations, (b, c).
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


def checked(values: Tensor | ArrayLike, columns: int, like: Tensor) -> Tensor:
    """``values`` as (b, D) in the dtype and on the device of ``like``, or an error that says what is wrong."""
    if not isinstance(values, Tensor):
        table = np.array(values)
        if table.dtype.kind not in "fiub":
            raise ValueError(f"an observation is real numbers, got an array of {table.dtype}")
        values = torch.from_numpy(table)
    if values.ndim not in (1, 2) or values.shape[-1] != columns or values.numel() == 0:
        shape = tuple(values.shape)
        raise ValueError(f"an observation has shape ({columns},) or (b, {columns}), got {shape}")
    if not values.is_floating_point():
        raise ValueError(f"an observation is real numbers, got {values.dtype}")
    found = values.detach().to(device=like.device, dtype=like.dtype).reshape(-1, columns).contiguous()
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
    tiles = rows.split(tile_columns(rows), dim=1)
    gram = torch.zeros(rank, rank, dtype=torch.float64, device=like.device)
    for tile in tiles:
        gram += tile.double() @ tile.double().mT
    factor = safe_cholesky(gram.cpu(), "Gram matrix")
    eye = torch.eye(rank, dtype=torch.float64)
    inverse = torch.linalg.solve_triangular(factor, eye, upper=False).to(like)
    for tile in tiles:
        tile.copy_(inverse @ tile)
    return rows
