"""Values that were read from a file against the annotations of the fields they are for."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from boxloop.persist.container import ModelFileError

LARGEST = 2**63
"""No whole number of a file reaches it: a tensor could not hold it."""


def check_types(kind: type, fields: Mapping[str, Any], place: str) -> None:
    """Check values against the annotations of a dataclass, before it is built of them."""
    hints = _hints(kind)
    for name, value in fields.items():
        if not is_of(value, hints[name]):
            where = f"{place}.{name}".lstrip(".")
            raise ModelFileError(f"the field {where!r} is {_shown(value)}, not {describe_type(hints[name])}")


def is_of(value: Any, annotation: Any) -> bool:
    """Whether a value read from JSON or a file is of an annotated type; a class of functions is any object.

    Example:
        >>> is_of([1, 2], list[int]), is_of(True, int), is_of(1, float), is_of("a", str | None)
        (True, False, True, True)
    """
    if isinstance(annotation, typing.TypeVar):  # of trees and models: which, only the tables know
        return dataclasses.is_dataclass(value)
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(is_of(value, one) for one in inner)
    if origin is typing.Literal:
        return type(value) is str and value in inner
    if origin is dict:
        return isinstance(value, dict) and all(
            is_of(k, inner[0]) and is_of(v, inner[1]) for k, v in value.items()
        )
    if origin in (list, tuple):
        return isinstance(value, origin) and _are_of(value, origin, inner)
    return _is_plain(value, origin or annotation)


def _are_of(values: Any, origin: type, inner: tuple[Any, ...]) -> bool:
    if origin is list or inner[1:] == (...,):
        return all(is_of(item, inner[0]) for item in values)
    return len(values) == len(inner) and all(is_of(item, one) for item, one in zip(values, inner))


def _is_plain(value: Any, kind: Any) -> bool:
    if kind is float:
        return type(value) is float or (type(value) is int and abs(value) < LARGEST)
    if kind is int:
        return type(value) is int and abs(value) < LARGEST
    if kind in (None, type(None)):
        return value is None
    if kind is Callable or getattr(kind, "_is_protocol", False):
        return dataclasses.is_dataclass(value)
    return isinstance(value, kind)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def describe_type(annotation: Any) -> str:
    """An annotation in words.

    Example:
        >>> describe_type(int), describe_type(list[int] | None)
        ('int', 'list[int] | None')
    """
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _shown(value: Any) -> str:
    plain = value is None or isinstance(value, bool | int | float | str)
    return f"{value!r:.40}" if plain else f"a {type(value).__name__}"
