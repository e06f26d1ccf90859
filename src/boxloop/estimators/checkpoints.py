"""Checkpoints of an estimator's fit: a resumed fit has the trajectory of an uninterrupted one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from boxloop.average import Running
from boxloop.data import fingerprint_source, fingerprint_values
from boxloop.distributions import PooledSums, Sums
from boxloop.estimators._input import pick_device
from boxloop.fit import AscentState, EMState, OnlineState, Plan
from boxloop.models import (
    CONSTRAINTS as MODEL_CONSTRAINTS,
    FactorModel,
    LinearStatistics,
    Mixture,
    PrincipalModel,
    VariationalFactor,
    VariationalMixture,
    flatten,
)
from boxloop.persist import (
    NOT_NEGATIVE,
    Array,
    Axes,
    CheckpointWriter,
    Constraints,
    Nested,
    Number,
    get_model_file,
    read_checkpoint,
)
from boxloop.types import Source

STATES = {
    c.__name__: c for c in (EMState, OnlineState, AscentState, Running, Sums, PooledSums, LinearStatistics)
}
STATISTICS = (Sums, PooledSums, LinearStatistics)
KINDS = (Mixture, FactorModel, PrincipalModel, VariationalMixture, VariationalFactor)


def _check_path(state: EMState[Any], axes: Axes) -> str | None:
    """Statistics of mixtures have a row per component, and the features of its family."""
    for index, statistics in enumerate(state.path):
        fault = _find_shape_mismatch(state.model, statistics)
        if fault is not None:
            return f"path.{index}: {fault}"
    return None


def _check_averages(state: OnlineState[Any], axes: Axes) -> str | None:
    for name in ("average", "smooth"):
        value = getattr(state, name).value
        fault = None if value is None else _find_shape_mismatch(state.model, value)
        if fault is not None:
            return f"{name}: {fault}"
    return None


def _check_gradient_moments(state: AscentState, axes: Axes) -> str | None:
    size = len(flatten(state.model.free_parameters()))
    return None if axes["p"] == size else f"first and second have {axes['p']} entries, the model {size}"


def _find_shape_mismatch(model: Any, statistics: Any) -> str | None:
    """How shapes of statistics differ from those of a model's; None if they do not."""
    d = model.family.mean.shape[1] if isinstance(model, Mixture | VariationalMixture) else len(model.mean)
    rows = torch.full((1, d), 1.0, dtype=torch.float64)
    expected = model.expect(rows, rows[:, 0]).statistics
    shapes = [[(name, value.shape[-1]) for name, value in tree.leaves()] for tree in (expected, statistics)]
    same = type(expected) is type(statistics) and shapes[0] == shapes[1]
    return None if same else f"a {type(statistics).__name__} of shapes {shapes[1]}, not {shapes[0]}"


CONSTRAINTS = {
    **MODEL_CONSTRAINTS,
    Sums: Constraints(features=Array("k f")),
    PooledSums: Constraints(features=Array("k d+1"), second=Array("d d")),
    LinearStatistics: Constraints(
        square=Array("d"), cross=Array("d u"), latent=Array("u u"), absent=Array("d|1 u u")
    ),
    Running: Constraints(value=Nested((*STATISTICS, type(None)), "k d"), count=Number(least=0)),
    EMState: Constraints(
        _check_path,
        model=Nested(KINDS, "k d"),
        path=Nested(STATISTICS, "k d"),
        safe=Nested((*KINDS, type(None)), "k d"),
        bar=Number(finite=False),
    ),
    OnlineState: Constraints(
        _check_averages,
        model=Nested(KINDS, "k d"),
        average=Nested((Running,), "k d"),
        smooth=Nested((Running,)),
    ),
    AscentState: Constraints(
        _check_gradient_moments,
        model=Nested(KINDS),
        first=Array("p"),
        second=Array("p", NOT_NEGATIVE),
        count=Number(least=0),
    ),
}
"""Constraints on the fields of a checkpoint, by class."""

IGNORED = ("verbose", "checkpoint", "warm_start")
"""Parameters that do not change the path of a fit."""


def add_checkpoint(estimator: BaseEstimator, plan: Plan, source: Source) -> Plan:
    """The plan with a checkpoint writer, and resumed from the checkpoint if it exists."""
    path = Path(estimator.checkpoint)
    fingerprint = _fingerprint_fit(estimator, source)
    classes = {**get_model_file(type(estimator)).classes, **STATES}
    resume = read_checkpoint(path, classes, fingerprint, CONSTRAINTS) if path.exists() else None
    if resume is not None:  # Files are read onto the CPU.
        resume = replace(resume, state=resume.state.to(pick_device(estimator.device)))
    writer = CheckpointWriter(path, fingerprint, seconds=10.0)
    return replace(plan, observers=[*plan.observers, writer], resume=resume)


def _fingerprint_fit(estimator: BaseEstimator, source: Source) -> dict[str, Any]:
    params = {
        k: _describe_parameter(v) for k, v in estimator.get_params(deep=False).items() if k not in IGNORED
    }
    if estimator.method != "online":  # There the length of the fit determines when averaging begins.
        del params["max_iter"]
    if not isinstance(estimator.random_state, int | np.integer):
        if estimator.method != "em":
            raise ValueError(
                "a checkpoint of mini-batches needs an integer random_state: rows must come in the same order again"
            )
        del params["random_state"]
    data = {"rows": source.n_rows, "columns": list(source.names), "digest": fingerprint_source(source)}
    return {"estimator": type(estimator).__name__, **params, **data}


def _describe_parameter(value: Any) -> Any:
    """A parameter as JSON, arrays by their fingerprint."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device):
        return str(value)
    return fingerprint_values(np.asarray(value))
