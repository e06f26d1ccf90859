r"""The pass of a factor stream as two Triton kernels, for NVIDIA GPUs.

They compute the same as :meth:`boxloop.fit.factor_stream.FactorTile.observe`. The first reads and writes the sheet
once: it sums U row by row from the rows it reads, and takes the gaps from the vectors. The second reads the new sheet
and forms its Gram matrix. A program is one warp that works in registers. Without Triton the same pass runs as some
twenty torch operations.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

triton: Any = import_module("triton") if find_spec("triton") else None
tl: Any = import_module("triton.language") if find_spec("triton") else None

PROGRAMS = 4096
"""Most programs: many per multiprocessor of the largest GPUs, to hide the latency of reads."""
WIDE = 128
"""Columns per program step, while U and the gaps have at most 16 rows each; half as many beyond."""
BLOCK = 64
"""Columns whose products tensor cores sum in float32, as three TensorFloat-32 products: as accurate as float32
(5e-7 of the largest entry); longer sums would lose more, since tensor cores round towards zero."""
MAX_ROWS = 32
"""Most factors, and most vectors per pass."""


def is_supported(rows: Tensor, rank: int) -> bool:
    """Whether the kernels can process this sheet, (K + b, D): float32, on a GPU with TensorFloat-32."""
    if triton is None or torch.version.cuda is None or not rows.is_cuda or rows.dtype != torch.float32:
        return False
    return max(rank, len(rows) - rank) <= MAX_ROWS and torch.cuda.get_device_capability(rows.device) >= (8, 0)


class FactorKernels:
    """The pass over a sheet (K + b, D), bound to its tensors, which it changes in place."""

    def __init__(
        self, rows: Tensor, mean: Tensor, square: Tensor, noise: Tensor, rank: int, floor: float
    ) -> None:
        self._tensors = rows, mean, square, noise
        self._floor = floor, torch.finfo(rows.dtype).tiny * 1e8 if floor > 0.0 else -torch.inf
        batch, columns = len(rows) - rank, rows.shape[1]
        sides = [max(16, triton.next_power_of_2(n)) for n in (rank, batch, rank + batch)]
        width = WIDE if max(sides[:2]) == 16 else WIDE // 2
        self._shape = {"RANK": rank, "BATCH": batch, "K": sides[0], "B": sides[1], "COLUMNS": width}
        self._programs = min(PROGRAMS, triton.cdiv(columns, width))
        self._side = sides[2]
        shape = min(PROGRAMS // 4, triton.cdiv(columns, BLOCK)), self._side, self._side
        self._partial_sums = rows.new_empty(shape, dtype=torch.float64)

    def __call__(
        self, values: Tensor, update: Tensor, mean_weights: Tensor, keep: float, correction: float
    ) -> NDArray[np.float64]:
        """Carry out the pending update (K, K + b) and observe vectors (b, D); returns [U; E] Psi^-1 [U; E]ᵀ."""
        rows, _, _, noise = self._tensors
        height, columns = rows.shape
        numbers = columns, keep, correction, *self._floor
        tensors = *self._tensors, values.contiguous(), update, mean_weights
        _update_kernel[(self._programs,)](*tensors, *numbers, **self._shape, num_warps=1)
        shape = {"HEIGHT": height, "SIDE": self._side, "COLUMNS": BLOCK}
        warps = 1 if self._side <= 32 else 4
        _gram_kernel[(len(self._partial_sums),)](
            rows, noise, self._partial_sums, columns, **shape, num_warps=warps
        )
        gram: NDArray[np.float64] = self._partial_sums.sum(0).cpu().numpy()[:height, :height]
        return gram


def _update_columns(
    rows: tl.tensor,
    mean: tl.tensor,
    square: tl.tensor,
    noise: tl.tensor,
    values: tl.tensor,
    update: tl.tensor,
    share: tl.tensor,
    columns: tl.tensor,
    keep: tl.tensor,
    correction: tl.tensor,
    floor: tl.tensor,
    tiny: tl.tensor,
    RANK: tl.constexpr,
    BATCH: tl.constexpr,
    K: tl.constexpr,
    B: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """U, psi, gaps, mean and mean square of some blocks of columns."""
    i, v = tl.arange(0, K)[:, None], tl.arange(0, B)[:, None]
    weigh, stride = tl.load(share + v, v < BATCH, 0.0), columns.to(tl.int64)
    for run in range(tl.program_id(0), tl.cdiv(columns, COLUMNS), tl.num_programs(0)):
        at = run * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        inside = at < columns
        u = tl.zeros((K, COLUMNS), tl.float32)
        for j in tl.static_range(RANK + BATCH):
            weight = tl.load(update + i * (RANK + BATCH) + j, i < RANK, 0.0)
            u += weight * tl.load(rows + j * stride + at, inside, 0.0)
        s, c = tl.load(square + at, inside, 1.0), tl.load(mean + at, inside, 0.0)
        here = (v < BATCH) & inside
        e = tl.where(here, tl.load(values + v * stride + at, here, 0.0) - c, 0.0)
        shift = tl.sum(weigh * e, 0, keep_dims=True)
        variance = keep * s + tl.sum(weigh * e * e, 0, keep_dims=True) - correction * shift * shift
        variance = tl.maximum(variance, 0.0)
        psi = tl.maximum(s - tl.sum(u * u, 0, keep_dims=True), floor * tl.maximum(s, variance) + tiny)
        tl.debug_barrier()  # every thread has read these columns
        tl.store(rows + i * stride + at, u, (i < RANK) & inside)
        tl.store(rows + (RANK + v) * stride + at, e, here)
        tl.store(mean + at, c + shift, inside)
        tl.store(square + at, variance, inside)
        tl.store(noise + at, psi, inside)


def _sum_products(
    rows: tl.tensor,
    noise: tl.tensor,
    partial_sums: tl.tensor,
    columns: tl.tensor,
    HEIGHT: tl.constexpr,
    SIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """The Gram matrix of all rows, weighted by 1 / psi, summed over some blocks of columns."""
    i, stride = tl.arange(0, SIDE)[:, None], columns.to(tl.int64)
    total = tl.zeros((SIDE, SIDE), tl.float64)
    for run in range(tl.program_id(0), tl.cdiv(columns, COLUMNS), tl.num_programs(0)):
        at = run * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        inside = at < columns
        part = tl.load(rows + i * stride + at, (i < HEIGHT) & inside, 0.0)
        weighed = tl.trans(part / tl.load(noise + at, inside, 1.0))
        total += tl.dot(part, weighed, input_precision="tf32x3").to(tl.float64)
    place = partial_sums + tl.program_id(0) * SIDE * SIDE
    tl.store(place + i * SIDE + tl.arange(0, SIDE)[None, :], total)


_update_kernel: Any = None if triton is None else triton.jit(_update_columns)
_gram_kernel: Any = None if triton is None else triton.jit(_sum_products)
