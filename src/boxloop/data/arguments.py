"""Checks of arguments that are no tables: messages name the argument, the value received and what is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np

from boxloop.numeric import join_words

P = ParamSpec("P")
R = TypeVar("R")


def check_parameters(method: Callable[P, R]) -> Callable[P, R]:
    """A method of an estimator that checks its parameters first; scikit-learn's own decorator, with types kept."""
    from sklearn.base import _fit_context  # takes half a second to import

    return cast(Callable[P, R], _fit_context(prefer_skip_nested_validation=True)(method))


def check_nested_parameters(method: Callable[P, R]) -> Callable[P, R]:
    """:func:`check_parameters` for an estimator that fits others, whose own parameters are then checked too."""
    from sklearn.base import _fit_context

    return cast(Callable[P, R], _fit_context(prefer_skip_nested_validation=False)(method))


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Close matches as the end of a message, such as `` (did you mean 'iris'?)``; empty where there are none."""
    near = get_close_matches(name, list(known), n=2)
    return f" (did you mean {join_words(list(map(repr, near)), 'or')}?)" if near else ""


def check_list(value: object, name: str, what: str) -> Iterable[Any]:
    """Refuse what is not iterable, and text, which is one value."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {what}, got {describe_value(value)}")
    return value


def check_count(value: object, name: str, least: int | None = 1) -> int:
    """A whole number of at least ``least``; of any size where that is None."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {describe_value(value)}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_number(value: object, name: str) -> float:
    """A real number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {describe_value(value)}")
    return float(value)


def check_kind(value: object, name: str, kind: type, remedy: str) -> None:
    """Refuse what is not of a class, saying what makes one."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {describe_value(value)}: {remedy}")


def check_level(value: object, name: str = "level") -> float:
    """A probability above 0 and below 1."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number between 0 and 1, got {describe_value(value)}")
    if not 0.0 < float(value) < 1.0:
        raise ValueError(f"{name} must lie between 0 and 1, got {value}")
    return float(value)


def check_choice(value: object, name: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices."""
    if not isinstance(value, str) or value not in choices:
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {known}; got {describe_value(value)}")


def check_callable(value: object, name: str, what: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function of {what}, got {describe_value(value)}")


def describe_value(value: object) -> str:
    """A value as a message names it: itself where it is short, else its class."""
    return repr(value) if isinstance(value, Real | str | None) else f"a {type(value).__name__}"
