"""Inputs of networks: a tensor of rows, or tuples, lists and dictionaries of tensors with the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Inputs = Any
"""A tensor (n, ...), or tuples, lists and dictionaries of such tensors, nested to any depth."""


def as_rows(X: Any) -> Tensor:
    """One table as a tensor (n, ...). Integers stay integers, as they may index an embedding."""
    if has_several_tensors(X):
        raise ValueError(f"X must be one table of rows here, got a {type(X).__name__} of several tensors")
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
    """One tensor, or several in their container: a list of tensors is several, one of numbers or arrays a table."""
    if not has_several_tensors(X):
        return as_rows(X)
    if isinstance(X, dict):
        inputs: Inputs = {key: as_inputs(item) for key, item in X.items()}
    else:
        inputs = type(X)(as_inputs(item) for item in X)
    sizes = sorted({len(one) for one in iterate_tensors(inputs)})
    if len(sizes) > 1:
        raise ValueError(f"The inputs in X must have the same number of rows, got {sizes}")
    return inputs


def as_array(y: Any) -> NDArray[Any]:
    """Observations as an array; half precision becomes float32, as numpy has no bfloat16."""
    if not isinstance(y, Tensor):
        return np.asarray(y)
    return np.asarray(y.detach().cpu().to(promote_to_float32(y.dtype)))


def has_several_tensors(X: Any) -> bool:
    """Whether X is a non-empty dictionary, or a tuple or list of tensors or of such containers."""
    if isinstance(X, dict):
        return bool(X)
    return (
        type(X) in (tuple, list)
        and len(X) > 0
        and all(isinstance(x, Tensor) or has_several_tensors(x) for x in X)
    )


def map_tensors(inputs: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    """Apply a function to every tensor; containers and all other values stay as they are."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, dict):
        return {key: map_tensors(item, function) for key, item in inputs.items()}
    if type(inputs) in (tuple, list):
        return type(inputs)(map_tensors(item, function) for item in inputs)
    return inputs


def iterate_tensors(inputs: Inputs) -> Iterator[Tensor]:
    """All tensors, in order."""
    if isinstance(inputs, Tensor):
        yield inputs
    else:
        for item in inputs.values() if isinstance(inputs, dict) else inputs:
            yield from iterate_tensors(item)


def count_rows(inputs: Inputs) -> int:
    """Number of rows, n."""
    return len(next(iterate_tensors(inputs)))


def slice_rows(inputs: Inputs, start: int, end: int) -> Inputs:
    """Rows ``start`` to ``end``."""
    return map_tensors(inputs, lambda one: one[start:end])


def promote_to_float32(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision; any other dtype unchanged."""
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
