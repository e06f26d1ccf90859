r"""The pass of a factor stream as one kernel, where Triton and a GPU are there: one read and one write of the sheet.

It does what :meth:`boxloop.estimate.stream_pass.FactorTile.solve` does. Each program owns a few columns, so rows that
it reads again come from the nearest cache. The update of U is lower triangular (it is made of Cholesky factors), so
the last row goes first and every row is overwritten only after the rows below have read it. Without Triton the same
pass runs as a dozen torch operations.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from boxloop.numeric import unpack

triton: Any = import_module("triton") if find_spec("triton") else None
tl: Any = import_module("triton.language") if find_spec("triton") else None

COLUMNS = 128
"""Columns of a program, which is one warp: sums over them need no shared memory."""
MOST_FACTORS = 32
"""With more, the rows of a program no longer stay in its cache."""


def fits(rows: Tensor) -> bool:
    """Whether the kernel can take this sheet."""
    return (
        triton is not None and rows.is_cuda and rows.dtype == torch.float32 and len(rows) <= MOST_FACTORS + 1
    )


def solve(
    rows: Tensor,
    long: tuple[Tensor, Tensor, Tensor],
    values: Tensor,
    update: Tensor,
    step: float,
    shrink: float,
    floor: float,
) -> Tensor:
    """Carry out the waiting update, observe one vector, and measure what the E step needs.

    Args:
        rows: the sheet, (K + 1, D), changed in place.
        long: mean, mean square and noise, (D,) each, changed in place.
        values: the observation, (D,).
        update: what times the sheet makes the next U, (K, K + 1).
        step: gamma.
        shrink: kappa.
        floor: smallest share of a column's variance that is noise.

    Returns:
        [U; d] Psi^-1 [U; d]ᵀ, (K + 1, K + 1), float64 on the CPU.
    """
    height, columns = rows.shape
    programs = triton.cdiv(columns, COLUMNS)
    found = rows.new_empty(height * (height + 1) // 2, programs)
    tiny = torch.finfo(rows.dtype).tiny * 1e8 if floor > 0.0 else -torch.inf
    tensors = rows, *long, values, update.to(rows).contiguous(), found
    shape = {"RANK": height - 1, "COLUMNS": COLUMNS}
    _kernel[(programs,)](*tensors, columns, step, shrink, floor, tiny, **shape, num_warps=1)
    return unpack(found.sum(1, dtype=torch.float64).cpu(), height)


def _columns(
    rows: tl.tensor,
    mean: tl.tensor,
    square: tl.tensor,
    noise: tl.tensor,
    values: tl.tensor,
    update: tl.tensor,
    found: tl.tensor,
    columns: tl.tensor,
    step: tl.tensor,
    shrink: tl.tensor,
    floor: tl.tensor,
    tiny: tl.tensor,
    RANK: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """One run of columns: U and psi, then mean, deviation and mean square, then sums of products over the run."""
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < columns
    sheet, stride = rows + at, columns.to(tl.int64)
    d = tl.load(sheet + RANK * stride, inside, 0.0)
    explained = tl.zeros((COLUMNS,), tl.float32)
    for above in range(RANK):
        i = RANK - 1 - above
        u = tl.load(update + i * (RANK + 1) + RANK) * d
        for j in range(i + 1):
            u += tl.load(update + i * (RANK + 1) + j) * tl.load(sheet + j * stride, inside, 0.0)
        tl.store(sheet + i * stride, u, inside)
        explained += u * u
    s = tl.load(square + at, inside, 1.0)
    psi = tl.maximum(s - explained, floor * s + tiny)
    c = tl.load(mean + at, inside, 0.0)
    gap = tl.load(values + at, inside, 0.0) - c
    d = gap * shrink
    tl.store(sheet + RANK * stride, d, inside)
    tl.store(mean + at, c + step * gap, inside)
    tl.store(square + at, (1.0 - step) * s + step * d * d, inside)
    tl.store(noise + at, psi, inside)
    tl.debug_barrier()  # the rows just stored are read again
    place = found + tl.program_id(0)
    for i in range(RANK + 1):
        weighted = tl.load(sheet + i * stride, inside, 0.0) / psi
        for j in range(i, RANK + 1):
            tl.store(place, tl.sum(weighted * tl.load(sheet + j * stride, inside, 0.0)))
            place += tl.num_programs(0)


_kernel: Any = None if triton is None else triton.jit(_columns)
