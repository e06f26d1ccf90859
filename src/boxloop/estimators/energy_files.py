"""Files of an energy-based estimator: the fitted model, and what tells one fit from another."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from boxloop.data.digest import digest
from boxloop.estimators.allowed import CLASSES
from boxloop.estimators.plain import column_names, read_params, told_of
from boxloop.models.energy import EnergyModel, Perceptron
from boxloop.persist import ModelFileError, load_tree, save_tree
from boxloop.types import Source

SAVED = {**CLASSES, "EnergyModel": EnergyModel, "Perceptron": Perceptron}
"""What the file of an energy-based model may name."""

FACTS = (
    "n_features_in_",
    "n_iter_",
    "n_samples_seen_",
    "converged_",
    "interrupted_",
    "contrasts_",
    "events_",
)
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
    saved = load_tree(path, SAVED)
    tree, extra = saved.tree, saved.extra
    if extra.get("estimator") != name or not isinstance(tree, EnergyModel):
        raise ModelFileError(f"{path}: holds the estimator {extra.get('estimator')!r}, not {name!r}")
    try:
        params = {**read_params(extra["params"]), "hidden": tree.network.hidden}
        facts = {fact: extra["facts"][fact] for fact in FACTS}
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path}: not what save writes about an {name}: {error}") from error
    if saved.columns:
        facts["feature_names_in_"] = np.asarray(saved.columns, dtype=object)
    return Kept(params, facts, tree)


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
        "rows": digest(source),
    }


def _held(module: Any) -> str:
    """A network as a digest of its layers and what they start from."""
    start = [] if module is None else [(name, value.tolist()) for name, value in module.state_dict().items()]
    return hashlib.sha256(repr((module, start)).encode()).hexdigest()


def _word(value: Any) -> str:
    """A parameter as text that does not change from one process to the next."""
    return str(getattr(value, "__qualname__", value))
