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
    """Close matches as the end of a message; empty where there are none.

    Example:
        >>> suggest_names("irsi", ["iris", "wine"])
        " (did you mean 'iris'?)"
    """
    near = get_close_matches(name, list(known), n=2)
    return f" (did you mean {join_words(list(map(repr, near)), 'or')}?)" if near else ""


def check_list(value: object, name: str, what: str) -> Iterable[Any]:
    """Refuse what is not iterable, and text, which is one value."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {what}, got {describe(value)}")
    return value


def check_count(value: object, name: str, least: int | None = 1) -> int:
    """A whole number of at least ``least``; of any size where that is None.

    Raises:
        TypeError: not a whole number.
        ValueError: less than ``least``.

    Example:
        >>> check_count(3, "n_draws")
        3
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {describe(value)}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_number(value: object, name: str) -> float:
    """A real number.

    Raises:
        TypeError: anything else.

    Example:
        >>> check_number(3, "ridge")
        3.0
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {describe(value)}")
    return float(value)


def check_kind(value: object, name: str, kind: type, remedy: str) -> None:
    """Refuse what is not of a class, saying what makes one.

    Raises:
        TypeError: anything else.

    Example:
        >>> check_kind(3, "columns", int, "int(columns) makes one")
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {describe(value)}: {remedy}")


def check_level(value: object, name: str = "level") -> float:
    """A probability above 0 and below 1.

    Raises:
        TypeError: not a number.
        ValueError: outside (0, 1).

    Example:
        >>> check_level(0.95)
        0.95
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number between 0 and 1, got {describe(value)}")
    if not 0.0 < float(value) < 1.0:
        raise ValueError(f"{name} must lie between 0 and 1, got {value}")
    return float(value)


def check_choice(value: object, name: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices.

    Raises:
        ValueError: it is not.

    Example:
        >>> check_choice("auto", "method", ("auto", "exact"))
    """
    if not isinstance(value, str) or value not in choices:
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {known}; got {describe(value)}")


def check_callable(value: object, name: str, what: str) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: it cannot be called.

    Example:
        >>> check_callable(len, "psi", "the rows")
    """
    if not callable(value):
        raise TypeError(f"{name} must be a function of {what}, got {describe(value)}")


def describe(value: object) -> str:
    """A value as a message names it: itself where it is short, else its class."""
    return repr(value) if isinstance(value, Real | str | None) else f"a {type(value).__name__}"
