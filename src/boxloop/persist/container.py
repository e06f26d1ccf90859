"""The container of a model file: safetensors, with one JSON document in its metadata.

The layout is eight bytes of header length, a JSON header that gives each tensor's type, shape and place, then the
tensors end to end. Everything the header claims is checked against the file before memory is taken for it, and
nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from dataclasses import dataclass
from typing import IO, Any

import torch

SUFFIX = ".boxloop"
"""How model files and checkpoints end."""

KEY = "boxloop"
"""The metadata entry that holds the document."""

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
class Entry:
    """What the header says of one tensor: its type, its shape and its bytes within the data."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Container:
    """A file whose layout is sound: the document, each tensor's place, and all the bytes."""

    document: dict[str, Any]
    entries: dict[str, Entry]
    data: bytes
    start: int

    def bytes_of(self, name: str) -> memoryview:
        """The bytes of one tensor, not copied."""
        entry = self.entries[name]
        return memoryview(self.data)[self.start + entry.begin : self.start + entry.end]


def read_container(path: str | os.PathLike[str]) -> Container:
    """Read a model file and check its layout; contents are for the caller to check.

    Args:
        path: a regular file; links, folders and devices are refused.

    Returns:
        The parsed document and the tensors' bytes.

    Raises:
        ModelFileError: the file is not a whole, well-formed model file.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ModelFileError("not a regular file (links, folders and devices are refused)")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        length = _header_length(prefix, size)
        header = file.read(length)
        start = 8 + length
        fields = parse_json(header, "the header")
        document = _document(fields.pop("__metadata__", None))
        entries = {name: _entry(name, value) for name, value in fields.items()}
        _check_places(entries, size - start)
        return Container(document, entries, prefix + header + _read_exactly(file, size - start), start)


def parse_json(text: bytes | str, what: str) -> dict[str, Any]:
    """A JSON object in which no key occurs twice; ``what`` names it in errors."""
    try:
        value = json.loads(text if isinstance(text, str) else text.decode(), object_pairs_hook=_unique)
    except ModelFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{what} is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ModelFileError(f"the key {key!r} occurs twice")
        found[key] = value
    return found


def _header_length(prefix: bytes, size: int) -> int:
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


def _document(metadata: Any) -> dict[str, Any]:
    if not isinstance(metadata, dict) or not isinstance(metadata.get(KEY), str):
        raise ModelFileError(
            f"a safetensors file, but not a model file: its metadata has no {KEY!r} document"
        )
    return parse_json(metadata[KEY], f"the {KEY!r} document")


def _entry(name: str, value: Any) -> Entry:
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
    return Entry(dtype, tuple(shape), place[0], place[1])


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_places(entries: dict[str, Entry], size: int) -> None:
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


def _read_exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise ModelFileError("truncated while it was read")
    return data
