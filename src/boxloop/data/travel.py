"""Functions and statistics as bytes, to be sent where the rows live and back."""

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

from boxloop.data.dense import tensor

PLAIN = frozenset(
    (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
)
"""Types of tensors that travel as arrays."""


class Staying(ABC):
    """Base of what stays where it is when a function that mentions it travels."""

    @abstractmethod
    def left(self) -> tuple[Any, ...]:
        """What the class is called with, there, to make as much of it as travels."""


def packed(value: object, *, detached: bool = False) -> bytes:
    """A function with all it closes over, or a tree, as bytes; a tensor takes its own values along, not its storage.

    Args:
        value: whatever cloudpickle takes.
        detached: whether tensors may lose their gradients on the way, as statistics do; otherwise one that has a graph
            behind it is refused, as nobody could differentiate what comes back.

    Example:
        >>> import torch
        >>> unpacked(packed(torch.ones(1000)[:2]))
        tensor([1., 1.])
    """
    out = io.BytesIO()
    pickler = _pickler()(out, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.detached = detached
    pickler.dump(value)
    return out.getvalue()


def unpacked(data: bytes) -> Any:
    """What :func:`packed` was given; every call makes a new one, so that no two threads share a buffer."""
    return pickle.loads(data)


class Carried:
    """What a pass takes along, as bytes: every thread unpacks it once, so that no two share a buffer.

    Dask lets go of it, and so of all that was unpacked, as soon as the last task that needs it is done.

    Args:
        data: what :func:`packed` gave.

    Example:
        >>> carried = Carried(packed([1, 2]))
        >>> carried.opened() is carried.opened()
        True
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._of_thread = local()

    def __reduce__(self) -> tuple[Any, ...]:
        return Carried, (self.data,)

    def __sizeof__(self) -> int:
        return len(self.data)  # which Dask asks for, to know what moving it would cost

    def opened(self) -> Any:
        """What was packed: this thread's own."""
        mine = vars(self._of_thread)
        if not mine:
            mine["value"] = unpacked(self.data)
        return mine["value"]


@cache
def _pickler() -> Any:
    """The class that packs: made when it is first asked for, as cloudpickle comes with Dask."""
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Tensors as arrays: a fiftieth of the time of torch's own way."""

        detached: bool

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, Staying):
                return type(obj), obj.left()
            if not isinstance(obj, Tensor):
                return super().reducer_override(obj)
            if obj.grad_fn is not None and not self.detached:
                raise RuntimeError(
                    "a sum over rows on a cluster has no gradient: detach the tensors of the function that is summed"
                )
            plain = type(obj) is Tensor and obj.layout == torch.strided and obj.dtype in PLAIN
            if plain and obj.device.type != "meta" and obj.dtype == torch.bool:
                return _mask, (np.packbits(obj.cpu().numpy()), tuple(obj.shape), str(obj.device))
            if plain and obj.device.type != "meta":
                return _tensor, (*_array(obj), str(obj.device), obj.requires_grad and not self.detached)
            return super().reducer_override(obj.detach() if obj.grad_fn is not None else obj)

    return Pickler


def _array(value: Tensor) -> tuple[np.ndarray, bool]:
    """The values, and whether they are bits of bfloat16, which NumPy does not know."""
    here = value.detach().cpu().resolve_conj().resolve_neg()
    short = here.dtype == torch.bfloat16
    return (here.view(torch.int16) if short else here).numpy(), short


def _tensor(array: np.ndarray, short: bool, device: str, requires_grad: bool) -> Tensor:
    held = tensor(array).clone()  # with memory of its own, that may be written and resized
    held = (held.view(torch.bfloat16) if short else held).to(device)
    return held.requires_grad_() if requires_grad else held


def _mask(bits: np.ndarray, shape: tuple[int, ...], device: str) -> Tensor:
    """True and false, which take a bit each on the way: the folds of a choice are as long as the table."""
    values = np.unpackbits(bits, count=math.prod(shape)).reshape(shape).astype(np.bool_)
    return torch.from_numpy(values).to(device)
