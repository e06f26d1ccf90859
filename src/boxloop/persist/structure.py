"""Trees as JSON: which classes, which plain values, and where the tensors go."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from boxloop.persist.annotations import check_types
from boxloop.persist.container import ModelFileError


def encode(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Describe ``value`` as JSON and collect its tensors.

    Args:
        value: ``None``, a plain value, a tensor, a tuple of such, or a dataclass of such.
        tensors: receives each tensor under its dotted path.
        path: where ``value`` stands.

    Returns:
        A structure that :func:`decode` turns back into ``value``.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"tensor": path}
    inner = f"{path}." if path else ""
    if type(value) is tuple:
        return [encode(item, tensors, f"{inner}{i}") for i, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        fields = {name: encode(getattr(value, name), tensors, f"{inner}{name}") for name in names}
        return {"class": type(value).__name__, "fields": fields}
    raise ModelFileError(f"{path or 'the tree'} is a {type(value).__name__}, which a model file cannot hold")


def decode(node: Any, tensors: dict[str, Tensor], classes: Mapping[str, type], path: str = "") -> Any:
    """Rebuild what :func:`encode` described, every field of the type that its class asks for.

    Args:
        node: the structure.
        tensors: by path; each is taken out as it is used, so what remains was not asked for.
        classes: the only classes that may be built, by name.
        path: where ``node`` stands.
    """
    inner = f"{path}." if path else ""
    if isinstance(node, list):
        return tuple(decode(item, tensors, classes, f"{inner}{i}") for i, item in enumerate(node))
    if not isinstance(node, dict):
        return node
    if set(node) == {"tensor"}:
        name = node["tensor"]
        if not isinstance(name, str) or name not in tensors:
            raise ModelFileError(f"the tensor {name!r} is asked for but is not there, or is asked for twice")
        return tensors.pop(name)
    if set(node) == {"class", "fields"} and isinstance(node["fields"], dict):
        fields = {
            name: decode(value, tensors, classes, f"{inner}{name}") for name, value in node["fields"].items()
        }
        return _build(node["class"], fields, classes, path)
    raise ModelFileError(f"a structure with the keys {sorted(node)} is neither a tensor nor a class")


def _build(name: Any, fields: dict[str, Any], classes: Mapping[str, type], path: str) -> Any:
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
