r"""Fingerprints of the rows of a source, of values and of files, to see whether they changed.

Those of rows are no protection against forgery. They add up over tiles, so that they are the same however rows are cut
and wherever they are read:

.. math:: h = \sum_i s\Bigl(i + \sum_j s(x_{ij} + c_j)\Bigr) \bmod 2^{64}

with s the scrambling of :func:`boxloop.numeric.scrambled`, x the bits of a value and c a word for each column, the
weight being the last; twice, with different words.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxloop.numeric import has_missing, scrambled
from boxloop.tree import Tree
from boxloop.types import Source

KEYS = (1, 2)
SCRAMBLE = -4658895280553007687
"""An odd word (Steele, Lea and Flood 2014), as a signed integer."""


def fingerprint_values(*parts: Any) -> str:
    """SHA-256 of arrays and tensors, of bytes, of tuples of these, and of values with a faithful ``repr``."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            part = part.detach().cpu()
            part = (part.float() if part.dtype == torch.bfloat16 else part).numpy()
        if isinstance(part, bytes):
            total.update(part)
        elif isinstance(part, tuple):
            total.update(fingerprint_values(*part).encode())
        elif isinstance(part, np.ndarray) and not part.dtype.hasobject:
            total.update(f"{part.dtype}{part.shape}".encode())
            total.update(part.tobytes())
        else:
            total.update(repr(part.tolist() if isinstance(part, np.ndarray) else part).encode())
    return total.hexdigest()


def fingerprint_file(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class _HashSum(Tree):
    value: Tensor


def fingerprint_source(source: Source) -> str:
    """The fingerprint of all rows and weights in their order, 128 bits, in one pass."""

    def hash_placed_tile(rows: Tensor, weight: Tensor, start: int) -> _HashSum:
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        both = torch.cat([dense.double(), weight[:, None].double()], 1).cpu().numpy() + 0.0  # -0 is 0
        both[np.isnan(both)] = np.nan
        words = np.ascontiguousarray(both).view(np.uint64)
        place = np.arange(start, start + len(words), dtype=np.uint64)
        sums = []
        for key in KEYS:
            column = scrambled(np.arange(words.shape[1], dtype=np.uint64), key)
            line = scrambled(words + column, key).sum(1, dtype=np.uint64)
            sums.append(scrambled(line + place, key).sum(dtype=np.uint64))
        return _HashSum(torch.from_numpy(np.array(sums).view(np.int64)))  # sums wrap around

    return bytes(source.reduce_at(hash_placed_tile).value.numpy().astype("<i8")).hex()


def fingerprint_rows(source: Source) -> str:
    """The fingerprint of all rows and weights in any order, 64 bits."""
    return hash_to_text(source.reduce(lambda rows, weight: _HashSum(hash_tile(rows, weight))).value)


def hash_tile(rows: Tensor, weight: Tensor) -> Tensor:
    r"""64 bits of rows and weights that add up over any cut of the rows, in any order; cheap enough for every fit:
    :math:`\sum_i f(\sum_j c_j x_{ij} + c_d w_i)` mod 2^64, with x and w the bits of float64 values, c odd random
    words, and f a scrambling of 64 bits. 0 and -0 differ."""
    words = weight.to(torch.float64).view(torch.int64)
    line = hash_values_of_rows(rows) + words * _odd_words(rows.shape[1])[-1].to(rows.device)
    line = (line ^ (line >> 31)).mul_(SCRAMBLE)
    return (line ^ (line >> 29)).sum()


def hash_values_of_rows(rows: Tensor) -> Tensor:
    """64 bits of each row, (n,), its bits times odd words, summed: the same for rows that hold the same values."""
    key = _odd_words(rows.shape[1])[:-1].to(rows.device)
    sparse = None if rows.layout == torch.strided else rows.to_sparse_coo().coalesce()
    values = (rows if sparse is None else sparse.values()).to(torch.float64)
    if has_missing(values):  # all NaN alike
        values = torch.where(torch.isnan(values), torch.nan, values)
    words = values.view(torch.int64)
    if sparse is not None:
        line = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        return line.index_add_(0, sparse.indices()[0], words * key[sparse.indices()[1]])
    return words @ key if words.device.type == "cpu" else (words * key).sum(1)


def hash_to_text(word: Tensor) -> str:
    """A word of 64 bits as text."""
    return f"{int(word) % 2**64:016x}"


@lru_cache(maxsize=32)
def _odd_words(columns: int) -> Tensor:
    """An odd word for each column, and one for the weight."""
    words = scrambled(np.arange(columns + 1, dtype=np.uint64), KEYS[-1] + 1) | np.uint64(1)
    return torch.from_numpy(words.view(np.int64))
