"""Model files: one tree of tensors in one file, checked tensor by tensor when it is read.

A model file is a safetensors file (any safetensors reader opens it) whose metadata holds one JSON document: format
version, class names and plain fields, column names, caller's extras, and type, shape and SHA-256 of every tensor.
The document carries its own SHA-256, so a flipped bit anywhere is found.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from boxloop.persist.atomic import write_atomic
from boxloop.persist.constraints import Table, validate
from boxloop.persist.container import (
    DTYPES,
    HEADER_LIMIT,
    KEY,
    Container,
    ModelFileError,
    parse_json,
    read_container,
)
from boxloop.persist.structure import decode, encode
from boxloop.tree import Tree
from boxloop.version import __version__

MODEL_HEAD = f'{{"__metadata__":{{"{KEY}"'.encode()
"""With which the header of every model file begins, after eight bytes of its length."""

FORMAT = 1
"""Version of the document; a reader refuses later ones."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PARTS = {"format", "version", "tree", "columns", "extra", "tensors"}


@dataclass(frozen=True)
class Saved:
    """What a model file held."""

    tree: Tree
    columns: tuple[str, ...]
    extra: dict[str, Any]
    axes: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Lengths of the axes of the tree, as its constraints name them."""
    path: str = field(default="", compare=False, repr=False)

    def refusal(self, reason: str) -> ModelFileError:
        """The error that names the file."""
        return ModelFileError(f"{self.path}: {reason}")


def save_tree(
    path: str | os.PathLike[str],
    tree: Tree,
    *,
    columns: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a tree to a model file, replacing an older one only when the new one is complete.

    Args:
        path: where to; the suffix is ``.boxloop`` by custom.
        tree: any dataclass whose fields are tensors, plain values, tuples and dataclasses. Tensors are stored
            from wherever they are, without their gradients.
        columns: names of the data columns the tree was fitted on.
        extra: anything else worth keeping, as JSON (tuples come back as lists).

    Raises:
        ModelFileError: the tree or ``extra`` holds something that a model file cannot.
        OSError: the file could not be written; an older one is left whole.
        FileExistsError: a file of this name is no model, and its name does not end in ``.boxloop``.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from boxloop.average import Running
        >>> with TemporaryDirectory() as folder:
        ...     save_tree(f"{folder}/mean.boxloop", Running(None, 3), columns=["height"])
        ...     load_tree(f"{folder}/mean.boxloop", {"Running": Running})
        Saved(tree=Running(value=None, count=3), columns=('height',), extra={})
    """
    found: dict[str, Tensor] = {}
    structure = encode(tree, found)
    tensors = {name: _stored(name, tensor) for name, tensor in found.items()}
    if not all(isinstance(name, str) for name in columns):
        raise ModelFileError("column names must be strings")
    document = {
        "format": FORMAT,
        "version": __version__,
        "tree": structure,
        "columns": list(columns),
        "extra": dict(extra or {}),
        "tensors": {name: _record(tensor) for name, tensor in tensors.items()},
    }
    data = safetensors.torch.save(tensors, metadata={KEY: _seal(document)})
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


def load_tree(
    path: str | os.PathLike[str], classes: Mapping[str, type], constraints: Table | None = None
) -> Saved:
    """Read a model file, building only the classes given.

    Args:
        path: a regular file.
        classes: the dataclasses that may be built, by name.
        constraints: of their fields; types are checked without any.

    Returns:
        The tree, on the CPU, with the column names and extras it was saved with.

    Raises:
        ModelFileError: the file is not a model file, is damaged, is of a later format, needs a class that is not in
            ``classes``, or holds what is no value of a field. The message names the file and what is wrong.

    Example:
        >>> from tempfile import NamedTemporaryFile
        >>> with NamedTemporaryFile(suffix=".boxloop") as file:
        ...     load_tree(file.name, {})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        boxloop.persist.container.ModelFileError: ...: not a model file: 0 bytes cannot hold a header
    """
    try:
        container = read_container(path)
        document = _unseal(container.document)
        _check_tensors(document["tensors"], container)
        return replace(_assemble(document, container, classes, constraints or {}), path=os.fspath(path))
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from error
    except RecursionError:
        raise ModelFileError(f"{os.fspath(path)}: its structure is nested too deeply") from None


def _stored(name: str, tensor: Tensor) -> Tensor:
    """A copy that owns its memory, in the layout of the file."""
    if tensor.dtype not in _NAMES or tensor.layout != torch.strided:
        raise ModelFileError(
            f"the tensor {name!r} is {tensor.dtype}, {tensor.layout}: a model file cannot hold it"
        )
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _record(tensor: Tensor) -> dict[str, Any]:
    content = tensor.reshape(-1).view(torch.uint8).numpy()
    return _claim(_NAMES[tensor.dtype], tuple(tensor.shape), content.data)


def _claim(dtype: str, shape: tuple[int, ...], content: memoryview) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "sha256": hashlib.sha256(content).hexdigest()}


def _canonical(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _seal(document: Mapping[str, Any]) -> str:
    """The document as text, with its digest."""
    try:
        plain = parse_json(_canonical(document), "extra")
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(f"extra must be plain JSON: {error}") from error
    digest = hashlib.sha256(_canonical(plain).encode()).hexdigest()
    return _canonical({**plain, "sha256": digest})


def _unseal(sealed: dict[str, Any]) -> dict[str, Any]:
    """The document without its digest, once format and digest are right."""
    document = dict(sealed)
    digest = document.pop("sha256", None)
    number = document.get("format")
    if type(number) is not int or number < 1:
        raise ModelFileError("the document does not say which format it has")
    if number > FORMAT:
        raise ModelFileError(
            f"it has format {number}, written by boxloop {document.get('version')!r}; this is boxloop {__version__}, "
            f"which reads up to format {FORMAT}: upgrade boxloop"
        )
    if digest != hashlib.sha256(_canonical(document).encode()).hexdigest():
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
        if recorded[name] != _claim(entry.dtype, entry.shape, container.bytes_of(name)):
            raise ModelFileError(
                f"the tensor {name!r} is damaged: its type, shape or SHA-256 is not as recorded"
            )


def _assemble(
    document: dict[str, Any], container: Container, classes: Mapping[str, type], constraints: Table
) -> Saved:
    columns, extra = document["columns"], document["extra"]
    if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
        raise ModelFileError("the column names are not a list of strings")
    if not isinstance(extra, dict):
        raise ModelFileError("the extras are not a JSON object")
    try:
        tensors = safetensors.torch.load(container.data)
        tree = decode(document["tree"], tensors, classes)
        axes = validate(tree, constraints) if isinstance(tree, Tree) else {}
    except SafetensorError as error:
        raise ModelFileError(f"safetensors refuses it: {error}") from error
    except ModelFileError as error:
        raise ModelFileError(f"written by boxloop {document['version']}, {error}") from error
    if tensors:
        raise ModelFileError(f"the tensor {min(tensors)!r} belongs to no field")
    if not isinstance(tree, Tree):
        raise ModelFileError("it does not hold a tree")
    return Saved(tree, tuple(columns), extra, axes)
