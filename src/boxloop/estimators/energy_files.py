"""Files of an energy-based estimator: the fitted model, and what tells one fit from another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from boxloop.data import fingerprint_source, fingerprint_values
from boxloop.estimators.allowed import CLASSES
from boxloop.estimators.plain import PROGRESS, column_names, read_facts, read_params, told_of
from boxloop.models import CONSTRAINTS, EnergyModel, Perceptron
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.types import Source

SAVED = {**CLASSES, "EnergyModel": EnergyModel, "Perceptron": Perceptron}
"""What the file of an energy-based model may name."""

FACTS: dict[str, Any] = {**PROGRESS, "n_samples_seen_": float, "contrasts_": list[float]}
WATCHERS = ("verbose", "checkpoint", "partition_chains", "device")
"""Parameters that do not change the path of the fit."""


@dataclass(frozen=True)
class Kept:
    """What a file held: parameters of the constructor, fitted attributes, and the model."""

    params: dict[str, Any]
    facts: dict[str, Any]
    model: EnergyModel


def write(estimator: BaseEstimator, path: str | PathLike[str]) -> None:
    """Save a fitted estimator; parameters that are not plain values are left out."""
    if not isinstance(estimator.model_.network, Perceptron):
        raise ModelFileError(
            "only the default energy can be saved: a module of yours is code, save its parameters"
        )
    extra = told_of(estimator, FACTS, without=("hidden",))
    save_tree(path, estimator.model_, columns=column_names(estimator), extra=extra)


def read(path: str | PathLike[str], name: str) -> Kept:
    """Read what :func:`write` wrote for the class of this name."""
    saved = load_tree(path, SAVED, CONSTRAINTS)
    tree, extra = saved.tree, saved.extra
    if extra.get("estimator") != name or not isinstance(tree, EnergyModel):
        raise saved.refusal(f"holds the estimator {extra.get('estimator')!r}, not {name!r}")
    if tree.log_partition is None or tree.log_partition_error is None or tree.draws is None:
        raise saved.refusal("the fields 'log_partition', 'log_partition_error' and 'draws' must be tensors")
    params = {**read_params(saved), "hidden": tree.network.hidden}
    return Kept(params, read_facts(saved, FACTS), tree)


def fingerprint(
    estimator: BaseEstimator,
    source: Source,
    watchers: Collection[str] = WATCHERS,
    modules: Collection[str] = ("energy",),
) -> dict[str, Any]:
    """What a checkpoint must share with the fit that continues it.

    Args:
        estimator: its parameters, its seed.
        source: its rows and weights.
        watchers: parameters that do not change the path of the fit.
        modules: parameters that are networks or None, told by what they hold.
    """
    if not isinstance(estimator.random_state, int | np.integer):
        raise ValueError(
            "a checkpoint needs an integer random_state: the same random numbers must come again"
        )
    given = estimator.get_params(deep=False)
    return {
        "estimator": type(estimator).__name__,
        **{k: _word(v) for k, v in given.items() if k not in watchers and k not in modules},
        **{name: _held(given[name]) for name in modules},
        "rows": fingerprint_source(source),
    }


def _held(module: Any) -> str:
    """A network as a digest of its layers and what they start from."""
    start = {} if module is None else module.state_dict()
    return fingerprint_values(module, *start.items())


def _word(value: Any) -> str:
    """A parameter as text that does not change from one process to the next."""
    return str(getattr(value, "__qualname__", value))
