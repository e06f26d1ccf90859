"""A pretended device, for machines without a GPU: tensors of the CPU that say they are elsewhere, and refuse to mix.

As a plugin of pytest (``-p gpu.pretended``) it takes the place of CUDA in the tests of this folder. Everything that is
created without a device, moved too early or drawn from the wrong generator raises here as it would on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "pretended"
MIXING = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_", "_copy_from"}
"""What may take tensors of both places; everything else takes numbers of the CPU at most, without an axis."""
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "dot", "cat"}
"""What may not even take those."""


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
PLACE = torch.device(NAME, 0)


class Elsewhere(Tensor):
    """A tensor that holds one of the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls: Any, inner: Tensor) -> Elsewhere:
        made: Elsewhere = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=PLACE,
        )
        made.inner = inner
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(function, args, kwargs or {})

    def __repr__(self, **_: Any) -> str:
        return f"elsewhere: {self.inner!r}"

    def tolist(self) -> Any:
        return self.inner.detach().tolist()

    def resize_(self, *shape: Any) -> Tensor:  # a wrapper's own shape cannot change
        return Elsewhere(self.inner.resize_(*shape))

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype).to(PLACE)


def _called(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name, given = function._schema.name.split("::")[1], tree_leaves((args, kwargs))
    there = [part for part in given if isinstance(part, Elsewhere)]
    here = [part for part in given if isinstance(part, Tensor) and not isinstance(part, Elsewhere)]
    if there and any(part.dim() > 0 or name in PRODUCTS for part in here) and name not in MIXING:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got two")
    if name.startswith("index") and there and not isinstance(args[0], Elsewhere):
        raise RuntimeError("indices of a tensor on the CPU must be there too")
    stays = bool(there) if name != "copy_" else isinstance(args[0], Elsewhere)
    if kwargs.get("device") is not None:
        stays = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": "cpu"}
    known = {id(part.inner): part for part in there}
    plain_args, plain_kwargs = tree_map(_inner, (args, kwargs))
    found = function(*plain_args, **plain_kwargs)
    return tree_map(lambda part: _wrapped(part, known), found) if stays else found


def _inner(part: Any) -> Any:
    return part.inner if isinstance(part, Elsewhere) else part


def _wrapped(part: Any, known: dict[int, Elsewhere]) -> Any:
    if not isinstance(part, Tensor) or isinstance(part, Elsewhere):
        return part
    return known[id(part)] if id(part) in known else Elsewhere(part)


def _copied(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _inner(target).copy_(_inner(source))
    return target


LIBRARY = torch.library.Library("aten", "IMPL")
LIBRARY.impl("_copy_from", _copied, "PrivateUse1")
LIBRARY.impl(
    "empty_strided",
    lambda size, stride, *, dtype=None, **_: Elsewhere(torch.empty_strided(size, stride, dtype=dtype)),
    "PrivateUse1",
)
LIBRARY.impl(
    "empty.memory_format",
    lambda size, *, dtype=None, **_: Elsewhere(torch.empty(size, dtype=dtype)),
    "PrivateUse1",
)


class Dispatched(TorchDispatchMode):
    """Sees what is created out of nothing too."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(function, args, kwargs or {})


class Renamed(TorchFunctionMode):
    """CUDA means the pretended device; products of a vector are spelled out, as torch squeezes them in place."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in ("matmul", "__matmul__") and all(isinstance(part, Elsewhere) for part in args):
            left, right = args
            if left.dim() == 1 and right.dim() == 1:
                return (left * right).sum()
            if left.dim() == 1:
                return (left.unsqueeze(0) @ right).squeeze(-2)
            if right.dim() == 1:
                return (left @ right.unsqueeze(1)).squeeze(-1)
        if name in ("tensor", "as_tensor") and (kwargs or {}).get("device") is not None:
            device = kwargs.pop("device")
            return function(*args, **kwargs).to(device)
        return function(*args, **(kwargs or {}))


def _to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    def numbered(part: Any) -> Any:
        named = isinstance(part, str | torch.device) and torch.device(part).type == NAME
        return PLACE if named else part

    return torch._C.TensorBase.to(self, *map(numbered, args), **{k: numbered(v) for k, v in kwargs.items()})


@pytest.fixture(autouse=True)
def _pretending() -> Iterator[None]:
    with patch.object(Tensor, "to", _to, create=True), Renamed(), Dispatched():
        yield
