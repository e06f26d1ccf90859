"""Model files with one thing changed and every checksum right, as someone who knows the format would write them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

KEY = "boxloop"
NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
Document = dict[str, Any]
Tensors = dict[str, Tensor]
REPLACEMENTS: tuple[Any, ...] = (
    None, "", "nonsense", -1, 0, 10**18, 1e308, float("nan"), float("inf"), True, [], [1], {},
)  # fmt: skip
"""Of every scalar of the document."""


def split(data: bytes) -> tuple[Document, Tensors]:
    """The document of a model file without its seals, and its tensors."""
    length = int.from_bytes(data[:8], "little")
    document = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][KEY])
    del document["sha256"], document["tensors"]
    return document, safetensors.torch.load(data)


def seal(document: Document, tensors: Tensors) -> bytes:
    """A model file with every checksum right."""
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    sealed = {**document, "tensors": {name: _record(tensor) for name, tensor in tensors.items()}}
    sealed["sha256"] = hashlib.sha256(_canonical(sealed).encode()).hexdigest()
    return safetensors.torch.save(tensors, metadata={KEY: _canonical(sealed)})


def _canonical(document: Document) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _record(tensor: Tensor) -> Document:
    content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    digest = hashlib.sha256(content).hexdigest()
    return {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "sha256": digest}


def mutations(data: bytes) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Name and maker of every file in which one thing differs from ``data``."""
    document, tensors = split(data)
    for name, tensor in tensors.items():
        for label, changed in changed_tensors(tensor):
            yield (
                f"{name} {label}",
                lambda name=name, changed=changed: seal(document, {**tensors, name: changed}),
            )
    for part in ("tree", "extra", "columns"):
        for path, label, changed in changed_values(document[part], (part,)):
            place = ".".join(map(str, path))
            yield (
                f"{place} {label}",
                lambda path=path, changed=changed: seal(_set(document, path, changed), tensors),
            )
    if document["columns"]:
        same = {**document, "columns": document["columns"][:1] * len(document["columns"])}
        yield "columns of one name", lambda: seal(same, tensors)


def changed_tensors(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """One tensor with one thing wrong, or at least another."""
    if tensor.is_floating_point():
        for value in (float("nan"), float("inf"), -float("inf")):
            if tensor.numel():
                yield f"first {value}", _with_first(tensor, value)
        yield "negated", -tensor
        yield "zero", torch.zeros_like(tensor)
        yield "doubled", 2.0 * tensor
        yield "huge", torch.full_like(tensor, torch.finfo(tensor.dtype).max ** 0.75)
        yield "as small as can be", torch.full_like(tensor, torch.finfo(tensor.dtype).smallest_normal / 4.0)
        yield "other precision", tensor.to(torch.float32 if tensor.dtype == torch.float64 else torch.float64)
        yield "half precision", tensor.half()
        yield "integers", tensor.nan_to_num(0.0, 0.0, 0.0).long()
    elif tensor.dtype != torch.bool:
        yield "bytes beyond", torch.full_like(tensor, 255)
        yield "zero", torch.zeros_like(tensor)
        if tensor.dtype == torch.int64:
            yield "negative", -tensor - 1
            yield "huge", torch.full_like(tensor, 2**62)
        yield "floating", tensor.double()
    yield "empty", tensor.flatten()[:0]
    yield "leading axis", tensor[None]
    if tensor.dim() == 0:
        return
    yield "no rows", tensor[:0]
    yield "dropped row", tensor[:-1]
    yield "one more row", torch.cat([tensor, tensor[:1]])
    if tensor.dim() > 1:
        yield "transposed", tensor.transpose(-1, -2)
        yield "flat", tensor.flatten()
        yield "dropped column", tensor[..., :-1]
        yield "one more column", torch.cat([tensor, tensor[..., :1]], -1)


def changed_values(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str, Any]]:
    """Place, label and new value of every single change of a JSON value."""
    if isinstance(value, dict):
        for key in value:
            yield path, f"without {key!r}", {k: v for k, v in value.items() if k != key}
        yield path, "with a surplus key", {**value, "surplus": 1}
        yield path, "a list", list(value)
        yield path, "null", None
        for key, item in value.items():
            yield from changed_values(item, (*path, key))
    elif isinstance(value, list):
        yield path, "null", None
        yield path, "a word", "nonsense"
        yield path, "longer", [*value, value[-1] if value else 1]
        if value:
            yield path, "shorter", value[:-1]
            yield path, "empty", []
        for i in sorted({0, len(value) - 1} & set(range(len(value)))):
            yield from changed_values(value[i], (*path, i))
    else:
        for other in (*REPLACEMENTS, *_near(value)):
            if type(other) is not type(value) or other != value:
                yield path, f"{other!r}", other


def _near(value: Any) -> tuple[Any, ...]:
    """Other values of the same type, which are not wrong by their type."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, 2 * value + 3, str(value), float(value))
    if isinstance(value, float):
        return (-value, str(value))
    return ()


def _with_first(tensor: Tensor, value: float) -> Tensor:
    changed = tensor.clone()
    changed.reshape(-1)[0] = value
    return changed


def _set(document: Document, path: tuple[Any, ...], value: Any) -> Document:
    changed = copy.deepcopy(document)
    *before, last = path
    node: Any = changed
    for key in before:
        node = node[key]
    node[last] = value
    return changed
