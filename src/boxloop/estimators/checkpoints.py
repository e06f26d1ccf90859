"""Checkpoints of an estimator's fit: the same trajectory after a kill as without one."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from boxloop.average import Running
from boxloop.data.digest import digest
from boxloop.estimate.em import EMState
from boxloop.estimate.gradient import AscentState
from boxloop.estimate.online import OnlineState
from boxloop.estimate.plan import Plan
from boxloop.estimators.allowed import CLASSES
from boxloop.estimators.options import pick_device
from boxloop.laws.sums import PooledSums, Sums
from boxloop.models.linear import LinearStatistics
from boxloop.persist import CheckpointWriter, read_checkpoint
from boxloop.types import Source

STATES = {
    c.__name__: c for c in (EMState, OnlineState, AscentState, Running, Sums, PooledSums, LinearStatistics)
}
IGNORED = ("verbose", "checkpoint", "warm_start")
"""Parameters that do not change the trajectory, only who watches."""


def checkpointed(estimator: BaseEstimator, plan: Plan, source: Source) -> Plan:
    """The plan with a checkpoint writer, and resumed from the checkpoint where one is there."""
    path = Path(estimator.checkpoint)
    fingerprint = _fingerprint(estimator, source)
    resume = read_checkpoint(path, {**CLASSES, **STATES}, fingerprint) if path.exists() else None
    if resume is not None:  # files are read onto the CPU
        resume = replace(resume, state=resume.state.to(pick_device(estimator.device)))
    writer = CheckpointWriter(path, fingerprint, seconds=10.0)
    return replace(plan, observers=[*plan.observers, writer], resume=resume)


def _fingerprint(estimator: BaseEstimator, source: Source) -> dict[str, Any]:
    params = {k: _plain(v) for k, v in estimator.get_params(deep=False).items() if k not in IGNORED}
    if estimator.method != "online":  # there the length of the fit decides where averaging begins
        del params["max_iter"]
    if not isinstance(estimator.random_state, int | np.integer):
        if estimator.method != "em":
            raise ValueError(
                "a checkpoint of mini-batches needs an integer random_state: rows must come in the same order again"
            )
        del params["random_state"]
    data = {"rows": source.n_rows, "columns": list(source.names), "digest": digest(source)}
    return {"estimator": type(estimator).__name__, **params, **data}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device):
        return str(value)
    return hashlib.sha256(repr(np.asarray(value).tolist()).encode()).hexdigest()
