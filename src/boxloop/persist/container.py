"""The bytes of a model file: safetensors (any safetensors reader opens it), with one JSON document in its metadata.

The layout is eight bytes of header length, a JSON header that gives each tensor's type, shape and place, then the
tensors end to end. Everything the header claims is checked against the file before memory is taken for it, and
nothing in a file is ever executed. The document records the format version and the type, shape and SHA-256 of every
tensor, and carries its own SHA-256, so a flipped bit anywhere is found.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from boxloop.persist.atomic import write_atomic
from boxloop.version import __version__

FORMAT = 2
"""Version of the document, the only one that is read."""

SUFFIX = ".boxloop"
"""How model files and checkpoints end."""

KEY = "boxloop"
"""The metadata entry that holds the document."""

MODEL_HEAD = f'{{"__metadata__":{{"{KEY}"'.encode()
"""With which the header of every model file begins, after eight bytes of its length."""

HEADER_LIMIT = 16 * 2**20
"""Largest header read or written, in bytes."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""The types a tensor may have, by their names in the header."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PARTS = {"format", "version", "tree", "columns", "extra", "tensors"}

_FOREIGN = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes"),
    (b"\x80", "a pickle"),
    (b"\x1f\x8b", "gzip data, as a compressed joblib file"),
    (b"\x78", "zlib data, as a compressed joblib file"),
    (b"\x93NUMPY", "a NumPy array"),
)


class ModelFileError(ValueError):
    """A file that cannot be read as, or a value that cannot be written to, a model file."""


@dataclass(frozen=True)
class TensorEntry:
    """What the header says of one tensor: its type, its shape and its bytes within the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Container:
    """A whole file: the document, each tensor's place, and all the bytes."""

    document: dict[str, Any]
    entries: dict[str, TensorEntry]
    data: bytes
    start: int

    def bytes_of(self, name: str) -> memoryview:
        """The bytes of one tensor, not copied."""
        entry = self.entries[name]
        return memoryview(self.data)[self.start + entry.begin : self.start + entry.end]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name, on the CPU, in memory of their own."""
        try:
            return safetensors.torch.load(self.data)
        except SafetensorError as error:
            raise ModelFileError(f"safetensors refuses it: {error}") from error


def write_container(
    path: str | os.PathLike[str], document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write tensors and the document that describes them, replacing an older file only when the new one is complete."""
    stored = {name: _copy_for_file(name, tensor) for name, tensor in tensors.items()}
    sealed = _seal_document(
        {
            **document,
            "format": FORMAT,
            "version": __version__,
            "tensors": {name: _describe_tensor(tensor) for name, tensor in stored.items()},
        }
    )
    data = safetensors.torch.save(stored, metadata={KEY: sealed})
    if int.from_bytes(data[:8], "little") > HEADER_LIMIT:
        raise ModelFileError(f"columns, extra and structure take more than {HEADER_LIMIT} bytes")
    _check_replaceable(Path(path))
    write_atomic(path, data)


def _check_replaceable(path: Path) -> None:
    """Refuse to replace a file that is no model: a table of this name would be lost."""
    if path.suffix == ".boxloop" or not path.is_file():
        return
    with path.open("rb") as file:
        head = file.read(8 + len(MODEL_HEAD))
    if head and head[8:] != MODEL_HEAD:
        raise FileExistsError(
            f"{path} is there and is no model file: give another name, which by custom ends in .boxloop, or "
            "remove it first"
        )


def _copy_for_file(name: str, tensor: Tensor) -> Tensor:
    """A copy that owns its memory, in the layout of the file."""
    if tensor.dtype not in _NAMES or tensor.layout != torch.strided:
        raise ModelFileError(
            f"the tensor {name!r} is {tensor.dtype}, {tensor.layout}: a model file cannot hold it"
        )
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _describe_tensor(tensor: Tensor) -> dict[str, Any]:
    content = tensor.reshape(-1).view(torch.uint8).numpy()
    return _make_record(_NAMES[tensor.dtype], tuple(tensor.shape), content.data)


def _make_record(dtype: str, shape: tuple[int, ...], content: memoryview) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "sha256": hashlib.sha256(content).hexdigest()}


def _to_canonical_json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _seal_document(document: Mapping[str, Any]) -> str:
    """The document as text, with its digest."""
    try:
        plain = parse_json(_to_canonical_json(document), "extra")
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(f"extra must be plain JSON: {error}") from error
    digest = hashlib.sha256(_to_canonical_json(plain).encode()).hexdigest()
    return _to_canonical_json({**plain, "sha256": digest})


def read_container(path: str | os.PathLike[str]) -> Container:
    """Read a model file and check that it is as it was written, to the last bit; what it means is for the caller."""
    container = _read_layout(path)
    document = _check_seal(container.document)
    _check_tensors(document["tensors"], container)
    columns = document["columns"]
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise ModelFileError("the column names are not a list of strings")
    if not isinstance(document["extra"], dict):
        raise ModelFileError("the extras are not a JSON object")
    return replace(container, document=document)


def _read_layout(path: str | os.PathLike[str]) -> Container:
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ModelFileError("not a regular file (links, folders and devices are refused)")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        length = _read_header_length(prefix, size)
        header = file.read(length)
        start = 8 + length
        fields = parse_json(header, "the header")
        metadata = fields.pop("__metadata__", None)
        if not isinstance(metadata, dict) or not isinstance(metadata.get(KEY), str):
            raise ModelFileError(
                f"a safetensors file, but not a model file: its metadata has no {KEY!r} document"
            )
        document = parse_json(metadata[KEY], f"the {KEY!r} document")
        entries = {name: _parse_entry(name, value) for name, value in fields.items()}
        _check_tiling(entries, size - start)
        data = file.read(size - start)
        if len(data) != size - start:
            raise ModelFileError("truncated while it was read")
        return Container(document, entries, prefix + header + data, start)


def parse_json(text: bytes | str, what: str) -> dict[str, Any]:
    """A JSON object in which no key occurs twice; ``what`` names it in errors."""
    try:
        value = json.loads(
            text if isinstance(text, str) else text.decode(), object_pairs_hook=_refuse_duplicate_keys
        )
    except ModelFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{what} is not a JSON object")
    return value


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ModelFileError(f"the key {key!r} occurs twice")
        found[key] = value
    return found


def _read_header_length(prefix: bytes, size: int) -> int:
    length = int.from_bytes(prefix, "little")
    if len(prefix) == 8 and 2 <= length <= min(HEADER_LIMIT, size - 8):
        return length
    for start, kind in _FOREIGN:
        if prefix.startswith(start[:8]):
            raise ModelFileError(f"not a model file but {kind}; nothing in it was run")
    if len(prefix) < 8:
        raise ModelFileError(f"not a model file: {size} bytes cannot hold a header")
    if length > HEADER_LIMIT:
        raise ModelFileError(
            f"not a model file: a header of {length} bytes, over the limit of {HEADER_LIMIT}"
        )
    raise ModelFileError(f"truncated: a header of {length} bytes in a file of {size}")


def _parse_entry(name: str, value: Any) -> TensorEntry:
    """Check one tensor's claims against each other."""
    if re.fullmatch(r"\w+(\.\w+)*", name) is None:
        raise ModelFileError(f"{name!r} is not a name of a tensor")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(f"the tensor {name!r} is not described by a type, a shape and a place")
    dtype, shape, place = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ModelFileError(f"the tensor {name!r} has the type {dtype!r}, not one of {', '.join(DTYPES)}")
    if not (_are_counts(shape) and _are_counts(place) and len(place) == 2 and len(shape) <= 16):
        raise ModelFileError(f"the tensor {name!r} has a malformed shape or place")
    if math.prod(max(1, n) for n in shape) >= 2**60:
        raise ModelFileError(f"the tensor {name!r} has an impossible shape")
    if math.prod(shape) * DTYPES[dtype].itemsize != place[1] - place[0]:
        raise ModelFileError(f"the tensor {name!r} of type {dtype} and shape {shape} does not fill {place}")
    return TensorEntry(dtype, tuple(shape), place[0], place[1])


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_tiling(entries: dict[str, TensorEntry], size: int) -> None:
    """The tensors must tile the data: no overlap, no gap, nothing beyond the end."""
    reached = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != reached:
            raise ModelFileError(
                f"the tensor {name!r} {'overlaps' if entry.begin < reached else 'leaves a gap after'} "
                f"the one before it"
            )
        if entry.end > size:
            raise ModelFileError(f"truncated: the tensor {name!r} ends at byte {entry.end} of {size}")
        reached = entry.end
    if reached != size:
        raise ModelFileError(f"{size - reached} bytes follow the last tensor")


def _check_seal(sealed: dict[str, Any]) -> dict[str, Any]:
    """The document without its digest, once format and digest are right."""
    document = dict(sealed)
    digest, number = document.pop("sha256", None), document.get("format")
    if type(number) is not int or number < 1:
        raise ModelFileError("the document does not say which format it has")
    if number != FORMAT:
        remedy = (
            "upgrade boxloop" if number > FORMAT else "fit again with this version, or read it with that one"
        )
        raise ModelFileError(
            f"it has format {number}, written by boxloop {document.get('version')!r}; this is boxloop {__version__}, "
            f"which reads format {FORMAT}: {remedy}"
        )
    if digest != hashlib.sha256(_to_canonical_json(document).encode()).hexdigest():
        raise ModelFileError("the document is damaged: its SHA-256 is not the one recorded")
    if set(document) != _PARTS:
        raise ModelFileError(f"the document has the parts {sorted(document)}, not {sorted(_PARTS)}")
    return document


def _check_tensors(recorded: Any, container: Container) -> None:
    """Every tensor must be the one the document records, to the last bit."""
    if not isinstance(recorded, dict):
        raise ModelFileError("the document does not list its tensors")
    for name in sorted(set(recorded) ^ set(container.entries)):
        raise ModelFileError(
            f"the tensor {name!r} is in the {'document' if name in recorded else 'header'} only"
        )
    for name, entry in container.entries.items():
        if recorded[name] != _make_record(entry.dtype, entry.shape, container.bytes_of(name)):
            raise ModelFileError(
                f"the tensor {name!r} is damaged: its type, shape or SHA-256 is not as recorded"
            )
