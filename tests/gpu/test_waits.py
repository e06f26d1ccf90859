"""How often the host waits for a GPU in a round of EM.

A wait costs some ten microseconds, a pass over many rows milliseconds, so a few of them are left in place: each guards
a decision that changes the next step (a missing value, a component without rows, a covariance at its floor or too
narrow for the quick form, the objective that may not fall). What is tested is that there are no others. Networks and
chains, whose steps are shorter, do not wait at all: see ``test_autoencoder_cuda.py`` and ``test_cuda_chains.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from boxloop import estimate
from boxloop.average import Power
from boxloop.laws import DiagonalGaussian
from boxloop.models import FactorModel, Mixture
from boxloop.run import run
from gpu.engine_cases import mixture, source, tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def full() -> Any:
    return estimate.em(source("cuda")), estimate.EMState(mixture("cuda"))


def diagonal() -> Any:
    model = mixture("cuda")
    law = DiagonalGaussian(model.family.mean, torch.ones_like(model.family.mean), 1e-6)
    return estimate.em(source("cuda")), estimate.EMState(Mixture(model.log_weight, law))


def factor() -> Any:
    model = FactorModel(*(tensor(part, "cuda") for part in ([0.0] * 3, [[0.5]] * 3, [1.0] * 3)))
    return estimate.em(source("cuda")), estimate.EMState(model)


def gradient() -> Any:
    batches = estimate.Batches(source("cuda"), 300)
    step = estimate.gradient_ascent(batches, Power(0.5, scale=0.1))
    return step, estimate.AscentState.start(mixture("cuda"))


def waits(make: Callable[[], Any], rounds: int) -> int:
    step, state = make()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run(step, state, max_rounds=rounds)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(one.message) for one in seen)


@pytest.mark.parametrize(("make", "most"), [(full, 6), (diagonal, 4), (factor, 2), (gradient, 3)])
def test_a_round_waits_no_more_often_than_it_must(make: Callable[[], Any], most: int) -> None:
    waits(make, 3)  # libraries load, and places in triangles are copied, once
    extra = waits(make, 13) - waits(make, 3)
    assert 0 < extra <= 10 * most
