"""What the classes that a file may name must hold: types by annotations, shapes and values of fields by a table.

A checksum says that a file is as it was written, not that what was written is a model. Every room that has classes in
files has a table of their constraints; :func:`validate` walks a tree that was read and names the first field at fault.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from boxloop.persist.container import ModelFileError

Axes = dict[str, Any]
"""Lengths of the named axes of one object, and under ``dtype`` the type that its floating tensors share."""


class Values(NamedTuple):
    """Which numbers a tensor may hold: in words, and as a test of a tensor that is not empty."""

    words: str
    hold: Callable[[Tensor], bool]


def _make_range_test(low: float, high: float) -> Callable[[Tensor], bool]:
    return lambda x: bool(((x > low) & (x < high)).all())


def _is_simplex(x: Tensor) -> bool:
    return bool((x >= 0.0).all()) and bool(((x.double().sum(-1) - 1.0).abs() < 1e-4).all())


def _is_lower(x: Tensor) -> bool:
    lower = _has_finite_squares(x) and not bool(x.triu(1).any())
    return lower and _is_scale(x.diagonal(dim1=-2, dim2=-1))


def _is_positive_definite(x: Tensor) -> bool:
    size = x.diagonal(dim1=-2, dim2=-1).abs().amax()
    if not bool(torch.isfinite(x).all()) or bool((x - x.mT).abs().amax() > 1e-4 * size):
        return False
    scale = x.diagonal(dim1=-2, dim2=-1).clamp(min=0.0).sqrt()
    standard = x / (scale[..., :, None] * scale[..., None, :])
    return bool((torch.linalg.cholesky_ex(standard).info == 0).all())


def _has_finite_squares(x: Tensor) -> bool:
    """Whether a density, which is made of squares, can be computed."""
    return bool(torch.isfinite(x.square()).all())


def _is_location(x: Tensor) -> bool:
    return _has_finite_squares(x.double())


def _is_scale(x: Tensor) -> bool:
    return _is_positive(x) and bool((x.double().square() > 0.0).all()) and _is_location(x)


def _is_positive(x: Tensor) -> bool:
    return bool(((x > 0.0) & (x < math.inf)).all()) and bool(torch.isfinite(x.reciprocal()).all())


ANY = Values("numbers", lambda x: True)
REAL = Values("finite, and so must be its square", _has_finite_squares)
LOCATION = Values("finite, and so must be its square in float64", _is_location)
"""Of data in units of their own, of which single precision may hold more than it can square."""
SCALE = Values("positive, with a square that is neither 0 nor infinite", _is_scale)
LOGARITHM = Values("between -700 and 700", _make_range_test(-700.0, 700.0))
POSITIVE = Values("finite and positive, and so must be its reciprocal", _is_positive)
NOT_NEGATIVE = Values("finite and at least 0", lambda x: bool(((x >= 0.0) & (x < math.inf)).all()))
PROBABILITY = Values("between 0 and 1, both excluded", _make_range_test(0.0, 1.0))
SHARE = Values("between 0 and 1", lambda x: bool(((x >= 0.0) & (x <= 1.0)).all()))
SIMPLEX = Values("positive, with rows that sum to 1", lambda x: bool((x > 0.0).all()) and _is_simplex(x))
LOG_SIMPLEX = Values("logarithms of weights that sum to 1", lambda x: _is_simplex(x.exp()))
LOWER_FACTOR = Values("lower triangular with a positive diagonal", _is_lower)
POSITIVE_DEFINITE = Values("symmetric and positive definite", _is_positive_definite)
COUNTS = Values("at least 1", lambda x: bool(((x >= 1) & (x < 2**31)).all()))
PLACES = Values("increasing and at least 0", lambda x: bool((x >= 0).all() and (x.diff() > 0).all()))


@dataclass(frozen=True)
class Array:
    """A tensor, or a tuple of tensors.

    Args:
        axes: a name, a number, ``k+1`` or ``k|1`` for each axis; one name is one length within an object.
        values: that it may hold.
        dtype: its type; None for the floating type that the tensors of the object share.
        least: shortest length of an axis.
    """

    axes: str
    values: Values = REAL
    dtype: torch.dtype | None = None
    least: int = 1

    def check(self, value: Tensor, axes: Axes, place: str) -> None:
        """Compare with the lengths of the axes known so far, and add to them."""
        tokens = self.axes.split()
        shape = tuple(value.shape)
        fits = len(shape) == len(tokens) and min(shape, default=self.least) >= self.least
        if not fits or not all(match_axis(token, n, axes) for token, n in zip(tokens, shape, strict=True)):
            known = ", ".join(f"{k} = {n}" for k, n in axes.items() if k in self.axes)
            wanted = f"({', '.join(tokens)})" + (f" with {known}" if known else "")
            raise ModelFileError(f"the field {place!r} has shape {shape}, not {wanted}")
        kind = axes.setdefault("dtype", value.dtype) if self.dtype is None else self.dtype
        if value.dtype != kind or (self.dtype is None and kind not in (torch.float32, torch.float64)):
            raise ModelFileError(f"the field {place!r} holds {value.dtype}, not {kind}")
        if value.numel() and not self.values.hold(value):
            raise ModelFileError(f"the field {place!r} must be {self.values.words}")


@dataclass(frozen=True)
class Number:
    """A plain number, from ``least`` or above ``above`` to ``most``."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    finite: bool = True

    def check(self, value: float, place: str) -> None:
        """Compare with the bounds."""
        inside = self.least <= value <= self.most and (value > self.above or self.above == -math.inf)
        if not inside or (self.finite and not math.isfinite(value)):
            raise ModelFileError(f"the field {place!r} is {value!r:.40}: {self._describe_bounds()}")

    def _describe_bounds(self) -> str:
        low = f"above {self.above}" if self.above > -math.inf else f"at least {self.least}"
        return f"it must be {low} and at most {self.most}"


@dataclass(frozen=True)
class Nested:
    """A nested object, or a tuple of such.

    Args:
        kinds: classes that it may be of, that of None among them where there may be none.
        axes: its axes that are this object's too, each a name or ``own=outer`` with an outer one as of an array.
    """

    kinds: tuple[type, ...]
    axes: str = ""

    def check(self, value: Any, inner: Axes, axes: Axes, place: str) -> None:
        """Compare its axes with those of the object that holds it, and add to them."""
        if not isinstance(value, self.kinds):
            known = ", ".join(kind.__name__ for kind in self.kinds)
            raise ModelFileError(f"the field {place!r} is a {type(value).__name__}, not one of {known}")
        for pair in self.axes.split():
            own, _, outer = pair.partition("=")
            if own in inner and not match_axis(outer or own, inner[own], axes):
                raise ModelFileError(
                    f"the field {place!r} has {own} = {inner[own]}, which does not fit the {outer or own} = "
                    f"{axes.get((outer or own).split('|')[0])} of the fields beside it"
                )


Check = Callable[[Any, Axes], str | None]
"""Of an object and the lengths of its axes, to which it may add: what is wrong with the whole, or None."""


class Constraints:
    """Of the fields of one class.

    Args:
        check: of the whole object, after its fields.
        fields: by name; numbers and tensors that are not named must be finite.
    """

    def __init__(self, check: Check | None = None, **fields: Array | Number | Nested) -> None:
        self.check = check
        self.fields = fields


Table = Mapping[type, Constraints]


def match_axis(token: str, length: Any, axes: Axes) -> bool:
    """Whether a length is that of an axis, which is known from now on.

    Example:
        >>> axes = {"k": 3}
        >>> all([match_axis("k", 3, axes), match_axis("k+1", 4, axes), match_axis("k|1", 1, axes)])
        True
        >>> match_axis("d", 7, axes), axes
        (True, {'k': 3, 'd': 7})
    """
    name, _, other = token.partition("|")
    if other and length == int(other):
        return True
    if name.isdigit():
        return bool(length == int(name))
    for sign, step in (("+", 1), ("-", -1)):
        if sign in name:
            name, _, offset = name.partition(sign)
            length -= step * int(offset)
    return bool(axes.setdefault(name, length) == length)


def validate(value: Any, table: Table, place: str = "") -> Axes:
    """Check a tree that was read against the constraints of its classes; returns the lengths of its axes."""
    constraints, axes = table.get(type(value)), Axes()
    for field in dataclasses.fields(value):
        rule = None if constraints is None else constraints.fields.get(field.name)
        inner, inside = getattr(value, field.name), f"{place}.{field.name}".lstrip(".")
        if isinstance(inner, tuple) and rule is not None and "tuple" not in str(field.type):
            raise ModelFileError(f"the field {inside!r} is a list, not one value")
        items = inner if isinstance(inner, tuple) else (inner,)
        for i, item in enumerate(items):
            where = f"{inside}.{i}" if items is inner else inside
            _validate_item(item, rule, axes, table, where, strict=constraints is not None)
    fault = None if constraints is None or constraints.check is None else constraints.check(value, axes)
    if fault is not None:
        raise ModelFileError(f"the field {place!r}: {fault}" if place else fault)
    return axes


def _validate_item(
    item: Any, rule: Array | Number | Nested | None, axes: Axes, table: Table, place: str, *, strict: bool
) -> None:
    if isinstance(item, tuple):
        for i, one in enumerate(item):
            _validate_item(one, rule, axes, table, f"{place}.{i}", strict=strict)
    elif dataclasses.is_dataclass(item):
        inner = validate(item, table, place)
        if isinstance(rule, Nested):
            rule.check(item, inner, axes, place)
    elif isinstance(rule, Array) and isinstance(item, Tensor):
        rule.check(item, axes, place)
    elif isinstance(rule, Number) and isinstance(item, int | float):
        rule.check(item, place)
    elif isinstance(rule, Nested) and not isinstance(item, rule.kinds):
        raise ModelFileError(f"the field {place!r} is {item!r:.40}, not a {rule.kinds[0].__name__}")
    elif strict and isinstance(item, float) and not math.isfinite(item):
        raise ModelFileError(f"the field {place!r} is {item!r}: it must be finite")
    elif strict and isinstance(item, Tensor) and not bool(torch.isfinite(item).all()):
        raise ModelFileError(f"the field {place!r} must be finite")


LARGEST = 2**63
"""No whole number of a file reaches it: a tensor could not hold it."""


def check_types(kind: type, fields: Mapping[str, Any], place: str) -> None:
    """Check values against the annotations of a dataclass, before it is built of them."""
    hints = _get_type_hints(kind)
    for name, value in fields.items():
        if not is_of_type(value, hints[name]):
            where = f"{place}.{name}".lstrip(".")
            raise ModelFileError(
                f"the field {where!r} is {_describe_value(value)}, not {describe_type(hints[name])}"
            )


def is_of_type(value: Any, annotation: Any) -> bool:
    """Whether a value read from JSON or a file is of an annotated type; a class of functions is any object.

    Example:
        >>> is_of_type([1, 2], list[int]), is_of_type(True, int), is_of_type(1, float), is_of_type("a", str | None)
        (True, False, True, True)
    """
    if isinstance(annotation, typing.TypeVar):  # of trees and models: which, only the tables know
        return dataclasses.is_dataclass(value)
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(is_of_type(value, one) for one in inner)
    if origin is typing.Literal:
        return type(value) is str and value in inner
    if origin is dict:
        return isinstance(value, dict) and all(
            is_of_type(k, inner[0]) and is_of_type(v, inner[1]) for k, v in value.items()
        )
    if origin in (list, tuple):
        return isinstance(value, origin) and _are_of_types(value, origin, inner)
    return _is_instance(value, origin or annotation)


def _are_of_types(values: Any, origin: type, inner: tuple[Any, ...]) -> bool:
    if origin is list or inner[1:] == (...,):
        return all(is_of_type(item, inner[0]) for item in values)
    return len(values) == len(inner) and all(is_of_type(item, one) for item, one in zip(values, inner))


def _is_instance(value: Any, kind: Any) -> bool:
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
def _get_type_hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def describe_type(annotation: Any) -> str:
    """An annotation in words.

    Example:
        >>> describe_type(int), describe_type(list[int] | None)
        ('int', 'list[int] | None')
    """
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")


def _describe_value(value: Any) -> str:
    plain = value is None or isinstance(value, bool | int | float | str)
    return f"{value!r:.40}" if plain else f"a {type(value).__name__}"
