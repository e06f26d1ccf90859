"""Pickling of functions and statistics that travel to where the rows live and back."""

from __future__ import annotations

import io
import math
import pickle
from abc import ABC, abstractmethod
from functools import cache
from threading import local
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxloop.data.validation import wrap_as_tensor

ARRAY_DTYPES = frozenset(
    (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
)
"""Types of tensors that travel as arrays."""


class PickledAsStub(ABC):
    """Base of what stays where it is when a function that refers to it travels: a stub travels."""

    @abstractmethod
    def stub_arguments(self) -> tuple[Any, ...]:
        """Arguments of the class that make the stub."""


def pickle_value(value: object, *, detached: bool = False) -> bytes:
    """A function with all it closes over, or a tree, as bytes; a tensor takes its own values along, not its storage.
    Only if ``detached`` may tensors lose their gradients: nobody could differentiate what comes back."""
    out = io.BytesIO()
    pickler = _make_pickler_class()(out, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.detached = detached
    pickler.dump(value)
    return out.getvalue()


def unpickle_value(data: bytes) -> Any:
    """What :func:`pickle_value` was given; every call makes a new value, so that no two threads share a buffer."""
    return pickle.loads(data)


class Broadcast:
    """A pickled value that all tasks of a pass share: every thread unpickles it once, so that no two share a buffer.
    Dask releases it, and so all that was unpickled, as soon as the last task that needs it is done."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._of_thread = local()

    def __reduce__(self) -> tuple[Any, ...]:
        return Broadcast, (self.data,)

    def __sizeof__(self) -> int:
        return len(self.data)  # which Dask asks for, to know what moving it would cost

    def value(self) -> Any:
        """The value: this thread's own."""
        mine = vars(self._of_thread)
        if not mine:
            mine["value"] = unpickle_value(self.data)
        return mine["value"]


@cache
def _make_pickler_class() -> Any:
    """The pickler's class, made on first use, as cloudpickle comes with Dask."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Tensors as arrays: a fiftieth of the time of torch's own way."""

        detached: bool

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, PickledAsStub):
                return type(obj), obj.stub_arguments()
            if not isinstance(obj, Tensor):
                return super().reducer_override(obj)
            if obj.grad_fn is not None and not self.detached:
                raise RuntimeError(
                    "a sum over rows on a cluster has no gradient: detach the tensors of the function that is summed"
                )
            is_plain = type(obj) is Tensor and obj.layout == torch.strided and obj.dtype in ARRAY_DTYPES
            if is_plain and obj.device.type != "meta" and obj.dtype == torch.bool:
                return _rebuild_mask, (np.packbits(obj.cpu().numpy()), tuple(obj.shape), str(obj.device))
            if is_plain and obj.device.type != "meta":
                return _rebuild_tensor, (
                    *_to_numpy(obj),
                    str(obj.device),
                    obj.requires_grad and not self.detached,
                )
            return super().reducer_override(obj.detach() if obj.grad_fn is not None else obj)

    return Pickler


def _to_numpy(value: Tensor) -> tuple[np.ndarray, bool]:
    """The values, and whether they are bits of bfloat16, which NumPy does not know."""
    here = value.detach().cpu().resolve_conj().resolve_neg()
    short = here.dtype == torch.bfloat16
    return (here.view(torch.int16) if short else here).numpy(), short


def _rebuild_tensor(array: np.ndarray, short: bool, device: str, requires_grad: bool) -> Tensor:
    value = wrap_as_tensor(array).clone()  # with memory of its own, that may be written and resized
    value = (value.view(torch.bfloat16) if short else value).to(device)
    return value.requires_grad_() if requires_grad else value


def _rebuild_mask(bits: np.ndarray, shape: tuple[int, ...], device: str) -> Tensor:
    """Booleans travel as one bit each: a mask is as long as the table."""
    values = np.unpackbits(bits, count=math.prod(shape)).reshape(shape).astype(np.bool_)
    return torch.from_numpy(values).to(device)
