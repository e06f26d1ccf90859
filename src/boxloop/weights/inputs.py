"""What networks take: a tensor of rows, or tuples, lists and dictionaries of tensors with the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Inputs = Any
"""A tensor (n, ...), or tuples, lists and dictionaries of such, at any depth."""


def as_rows(X: Any) -> Tensor:
    """Inputs as a tensor (n, ...): whole numbers stay whole, as they may be places in a table of embeddings.

    Raises:
        ValueError: no rows, or values that are not numbers; several tensors.
    """
    if is_several(X):
        raise ValueError(f"X must be one table of rows here, got a {type(X).__name__} of several")
    if isinstance(X, Tensor):
        rows = X.detach()
    else:
        table = np.asarray(X)
        if table.dtype.kind not in "fiub":
            raise ValueError(f"X must hold numbers, got an array of {table.dtype}")
        rows = torch.as_tensor(table if table.flags.writeable else table.copy())
    if rows.ndim == 0 or len(rows) == 0:
        raise ValueError(f"X must have rows, got shape {tuple(rows.shape)}")
    return rows


def as_inputs(X: Any) -> Inputs:
    """Inputs as tensors: one, or as many as the network takes, in the tuple, list or dictionary that they came in.

    A list is of several where it holds tensors, and one table where it holds numbers or arrays.

    Raises:
        ValueError: as of :func:`as_rows`, or numbers of rows that differ.
    """
    if not is_several(X):
        return as_rows(X)
    if isinstance(X, dict):
        found: Inputs = {key: as_inputs(item) for key, item in X.items()}
    else:
        found = type(X)(as_inputs(item) for item in X)
    sizes = sorted({len(one) for one in tensors(found)})
    if len(sizes) > 1:
        raise ValueError(f"the inputs of X must have the same number of rows, got {sizes}")
    return found


def as_array(y: Any) -> NDArray[Any]:
    """Observations as an array, those in half precision in float32: numpy has no bfloat16."""
    if not isinstance(y, Tensor):
        return np.asarray(y)
    return np.asarray(y.detach().cpu().to(wide(y.dtype)))


def is_several(X: Any) -> bool:
    """Whether inputs are more than one table: a dictionary, or a tuple or list that holds tensors, or such again."""
    if isinstance(X, dict):
        return bool(X)
    return type(X) in (tuple, list) and len(X) > 0 and all(isinstance(x, Tensor) or is_several(x) for x in X)


def mapped(inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Inputs:
    """Every tensor changed, what holds them as it is, and all else too."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, dict):
        return {key: mapped(item, change) for key, item in inputs.items()}
    if type(inputs) in (tuple, list):
        return type(inputs)(mapped(item, change) for item in inputs)
    return inputs


def tensors(inputs: Inputs) -> Iterator[Tensor]:
    """Every tensor, in order."""
    if isinstance(inputs, Tensor):
        yield inputs
    else:
        for item in inputs.values() if isinstance(inputs, dict) else inputs:
            yield from tensors(item)


def count(inputs: Inputs) -> int:
    """Rows."""
    return len(next(tensors(inputs)))


def cut(inputs: Inputs, start: int, end: int) -> Inputs:
    """Some rows."""
    return mapped(inputs, lambda one: one[start:end])


def told(inputs: Inputs) -> str:
    """Shape and dtype of a row, for messages."""
    if isinstance(inputs, Tensor):
        return f"rows of shape {tuple(inputs.shape[1:])} and {inputs.dtype}"
    parts = ", ".join(f"{tuple(one.shape[1:])} and {one.dtype}" for one in tensors(inputs))
    return f"a {type(inputs).__name__} of rows of shapes {parts}"


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 instead of half precision, any other as it is."""
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
