"""What a file says of an estimator beside its tensors: parameters, fitted facts and the names of columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator


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


def read_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as a constructor takes them, on the CPU, where the tensors of a file are."""
    found = {**params, "device": "cpu"}
    if found.get("hidden") is not None:
        found["hidden"] = tuple(found["hidden"])
    return found
