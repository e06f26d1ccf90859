"""Trees in model files: structure as JSON, tensors by dotted path; only classes that are allowed are built."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from boxloop.persist.constraints import Table, check_types, validate
from boxloop.persist.container import Container, ModelFileError, read_container, write_container
from boxloop.tree import Tree


@dataclass(frozen=True)
class Saved:
    """What a model file held."""

    tree: Tree
    columns: tuple[str, ...]
    extra: dict[str, Any]
    axes: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Lengths of the axes of the tree, as its constraints name them."""


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

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from boxloop.average import Running
        >>> with TemporaryDirectory() as folder:
        ...     save_tree(f"{folder}/mean.boxloop", Running(None, 3), columns=["height"])
        ...     load_tree(f"{folder}/mean.boxloop", {"Running": Running})
        Saved(tree=Running(value=None, count=3), columns=('height',), extra={})
    """
    if not all(isinstance(name, str) for name in columns):
        raise ModelFileError("column names must be strings")
    tensors: dict[str, Tensor] = {}
    document = {"tree": encode_tree(tree, tensors), "columns": list(columns), "extra": dict(extra or {})}
    write_container(path, document, tensors)


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
        ModelFileError: the file is not a model file, is damaged, is of another format, needs a class that is not in
            ``classes``, or holds what is no value of a field. The message names the file and what is wrong.

    Example:
        >>> from tempfile import NamedTemporaryFile
        >>> with NamedTemporaryFile(suffix=".boxloop") as file:
        ...     load_tree(file.name, {})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        boxloop.persist.container.ModelFileError: ...: not a model file: 0 bytes cannot hold a header
    """
    with name_file_in_errors(path):
        return restore_tree(read_container(path), classes, constraints or {})


@contextmanager
def name_file_in_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors about a file name the file."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{os.fspath(path)}: {error}") from error
    except RecursionError:
        raise ModelFileError(f"{os.fspath(path)}: its structure is nested too deeply") from None


def restore_tree(container: Container, classes: Mapping[str, type], constraints: Table) -> Saved:
    """The tree of a file that was read, checked against the types and constraints of its fields."""
    document = container.document
    try:
        tensors = container.tensors()
        tree = decode_tree(document["tree"], tensors, classes)
        axes = validate(tree, constraints) if isinstance(tree, Tree) else {}
    except ModelFileError as error:
        raise ModelFileError(f"written by boxloop {document['version']}, {error}") from error
    if tensors:
        raise ModelFileError(f"the tensor {min(tensors)!r} belongs to no field")
    if not isinstance(tree, Tree):
        raise ModelFileError("it does not hold a tree")
    return Saved(tree, tuple(document["columns"]), document["extra"], axes)


def encode_tree(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Describe ``value`` as JSON for :func:`decode_tree`, and collect its tensors under their dotted paths."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    inner = f"{path}." if path else ""
    if type(value) is tuple:
        return [encode_tree(item, tensors, f"{inner}{i}") for i, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        fields = {name: encode_tree(getattr(value, name), tensors, f"{inner}{name}") for name in names}
        return {"class": type(value).__name__, "fields": fields}
    raise ModelFileError(f"{path or 'the tree'} is a {type(value).__name__}, which a model file cannot hold")


def decode_tree(node: Any, tensors: dict[str, Tensor], classes: Mapping[str, type], path: str = "") -> Any:
    """Rebuild what :func:`encode_tree` described, every field of the type that its class asks for.

    Each tensor is taken out of ``tensors`` as it is used, so what remains was not asked for.
    """
    inner = f"{path}." if path else ""
    if isinstance(node, list):
        return tuple(decode_tree(item, tensors, classes, f"{inner}{i}") for i, item in enumerate(node))
    if not isinstance(node, dict):
        return node
    if set(node) == {"tensor"}:
        name = node["tensor"]
        if not isinstance(name, str) or name not in tensors:
            raise ModelFileError(f"the tensor {name!r} is asked for but is not there, or is asked for twice")
        return tensors.pop(name)
    if set(node) == {"class", "fields"} and isinstance(node["fields"], dict):
        fields = {
            name: decode_tree(value, tensors, classes, f"{inner}{name}")
            for name, value in node["fields"].items()
        }
        return _build_dataclass(node["class"], fields, classes, path)
    raise ModelFileError(f"a structure with the keys {sorted(node)} is neither a tensor nor a class")


def _build_dataclass(name: Any, fields: dict[str, Any], classes: Mapping[str, type], path: str) -> Any:
    if not isinstance(name, str) or name not in classes:
        raise ModelFileError(
            f"it needs the class {name!r}, but only {', '.join(sorted(classes))} may be built here"
        )
    known = [field for field in dataclasses.fields(classes[name]) if field.init]
    strange = sorted(set(fields) - {field.name for field in known})
    missing = sorted({field.name for field in known if not _has_default(field)} - set(fields))
    if strange or missing:
        raise ModelFileError(
            f"{name} is another here: it has no fields {strange}, and the file lacks {missing}"
        )
    check_types(classes[name], fields, path)
    try:
        return classes[name](**fields)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        where = f" of {path!r}" if path else ""
        raise ModelFileError(f"{name} refuses its fields{where}: {error}") from error


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
