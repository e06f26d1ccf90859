"""What a file says of an estimator beside its tensors: parameters, fitted facts and the names of columns."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from os import PathLike
from typing import Any, TypeVar

import numpy as np
from sklearn.base import BaseEstimator

from boxloop.persist import ModelFileError, Saved
from boxloop.persist.annotations import describe_type, is_of

Estimator = TypeVar("Estimator", bound=BaseEstimator)

PROGRESS: dict[str, Any] = {
    "n_features_in_": int,
    "n_iter_": int,
    "converged_": bool,
    "interrupted_": bool,
    "events_": list[str],
}
"""Facts of most fits, with the types that they must have in a file."""
DIGEST = "training_digest_"
"""The digest of the rows of a fit, by which they are known again."""
KNOWN_ROWS: dict[str, Any] = {DIGEST: str | None}
"""What files of fits before it was kept lack."""
STARTING = {"lower_bound_"}
"""What is minus infinity where a fit has had no iteration."""


def plain_params(estimator: BaseEstimator, without: Collection[str] = ()) -> dict[str, Any]:
    """Parameters of the constructor that are plain values, and the widths of layers.

    Args:
        estimator: any.
        without: parameters to leave out, whatever they are.
    """
    given = estimator.get_params(deep=False).items()
    scalars: dict[str, Any] = {k: v.item() if isinstance(v, np.generic) else v for k, v in given}
    kept: dict[str, Any] = {
        k: v for k, v in scalars.items() if v is None or isinstance(v, bool | int | float | str)
    }
    if scalars.get("hidden") is not None:
        kept["hidden"] = [int(width) for width in scalars["hidden"]]
    return {k: v for k, v in kept.items() if k not in without}


def told_of(
    estimator: BaseEstimator,
    facts: Collection[str],
    without: Collection[str] = (),
    more: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The part of a file that is not tensors.

    Args:
        estimator: a fitted one.
        facts: fitted attributes that are plain values.
        without: parameters to leave out.
        more: other facts.
    """
    return {
        "estimator": type(estimator).__name__,
        "params": plain_params(estimator, without),
        "facts": {**{name: vars(estimator)[name] for name in facts}, **(more or {})},
    }


def column_names(estimator: BaseEstimator) -> list[str]:
    """Names of the columns of the fit; none where it had none."""
    return [str(name) for name in getattr(estimator, "feature_names_in_", ())]


def read_params(saved: Saved) -> dict[str, Any]:
    """Parameters as a constructor takes them, on the CPU, where the tensors of a file are."""
    params = saved.extra.get("params")
    if not isinstance(params, dict):
        raise saved.refusal("the parameters are not a JSON object")
    found = {**params, "device": "cpu"}
    if found.get("hidden") is not None:
        if not is_of(found["hidden"], list[int]) or min(found["hidden"], default=1) < 1:
            raise saved.refusal("the parameter 'hidden' must be a list of positive widths")
        found["hidden"] = tuple(found["hidden"])
    return found


def read_facts(
    saved: Saved, facts: Mapping[str, Any], optional: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Fitted attributes, each of its type, and the names of columns; counts are not negative.

    Args:
        saved: a file.
        facts: types by name; lists may hold numbers that are not finite, as those of a trace are.
        optional: those that a file may lack.

    Raises:
        ModelFileError: one is missing or not of its type, or there are names for other columns.
    """
    given = saved.extra.get("facts")
    if not isinstance(given, dict):
        raise saved.refusal("the fitted attributes are not a JSON object")
    missing = sorted(set(facts) - set(given))
    if missing:
        raise saved.refusal(f"the fitted attribute {missing[0]!r} is missing")
    known = {**facts, **{name: kind for name, kind in (optional or {}).items() if name in given}}
    for name, kind in known.items():
        started = name in STARTING and given[name] == -math.inf
        negative = name.startswith("n_") and isinstance(given[name], float) and given[name] < 0.0
        if not started and (negative or not _is_fact(given[name], kind)):
            raise saved.refusal(
                f"the fitted attribute {name!r} is {given[name]!r:.40}, not {describe_type(kind)}"
            )
    found = {name: given[name] for name in known}
    named = read_columns(saved, found["n_features_in_"]) if "n_features_in_" in found else {}
    return {**found, **named}


def read_columns(saved: Saved, n_columns: int) -> dict[str, Any]:
    """The names of the columns of the fit, where it had any, once the model is one of so many columns."""
    width = saved.axes.get("d", n_columns)
    if n_columns != width or n_columns < 1:
        raise saved.refusal(f"n_features_in is {n_columns}, but the model has {width} columns")
    if len(saved.columns) not in (0, n_columns):
        raise saved.refusal(f"{len(saved.columns)} names are given for {n_columns} columns")
    if len(set(saved.columns)) != len(saved.columns):
        raise saved.refusal("a name of its columns occurs more than once")
    return {"feature_names_in_": np.asarray(saved.columns, dtype=object)} if saved.columns else {}


def read_shape(saved: Saved, shape: list[int] | None, n_columns: int) -> tuple[int, ...] | None:
    """The shape of an image of so many columns, None for plain rows."""
    if shape is None:
        return None
    if len(shape) not in (2, 3) or min(shape) < 1 or math.prod(shape) != n_columns:
        raise saved.refusal(f"images of shape {shape} do not have {n_columns} columns")
    return tuple(shape)


def rebuild(
    path: str | PathLike[str], kind: type[Estimator], params: Mapping[str, Any], facts: Mapping[str, Any]
) -> Estimator:
    """An estimator with the parameters and fitted attributes of a file.

    Raises:
        ModelFileError: a parameter that its constructor does not have, or a value that ``fit`` would refuse.
    """
    try:
        estimator = kind(**params)
        estimator._validate_params()
    except (TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: parameters that {kind.__name__} refuses: {error}") from error
    vars(estimator).update(facts)
    return estimator


def _is_fact(value: Any, kind: Any) -> bool:
    """Of its type; a number by itself is finite, and a whole one not negative."""
    if type(value) is int:
        return value >= 0 and is_of(value, kind)
    return is_of(value, kind) and not (isinstance(value, float) and not math.isfinite(value))
