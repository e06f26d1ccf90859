"""What the readers of CSV and Parquet share: pyarrow's batches as tensors, its complaints as ValueErrors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


def batch_to_tensor(batch: Any, names: tuple[str, ...], label: str) -> Tensor:
    """The columns ``names`` of a record batch as (n, d) float64, stored columns-major; nulls become NaN."""
    import pyarrow as pa

    values = np.empty((len(names), batch.num_rows))
    for row, name in zip(values, names, strict=True):
        column = batch.column(name)
        if not is_numeric(column.type):
            raise ValueError(f"{label}: column {name!r} is not numeric (its type is {column.type})")
        row[:] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return torch.from_numpy(values).mT


def is_numeric(kind: Any) -> bool:
    """Whether an Arrow type holds numbers, truth values or nothing but nulls."""
    from pyarrow import types

    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return any(test(kind) for test in tests)


@contextmanager
def raise_with_place(place: str) -> Iterator[None]:
    """Raise what pyarrow says about the content of a file as a ValueError with the place; failures of the disk pass
    through."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"{place}: {error}") from error
