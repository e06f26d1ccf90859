"""How often the host waits for a GPU in ten iterations of a loop.

An iteration of EM asks whether a value is missing, a component empty, a covariance at its floor or too narrow for the
quick form, a matrix without a factor, and what the objective is: three to seven waits. Networks and chains, whose steps
are shorter, do not wait at all: see ``test_autoencoder_cuda.py`` and ``test_cuda_chains.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from boxloop import fit
from boxloop.average import Power
from boxloop.data import ArraySource
from boxloop.distributions import DiagonalGaussian, TiedGaussian
from boxloop.loop import run
from boxloop.models import FactorModel, Mixture
from fit.test_em import overlapping
from gpu.engine_cases import mixture, source, tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

Made = tuple[Any, Any]


def full() -> Made:
    return fit.em(source("cuda")), fit.EMState(mixture("cuda"))


def accelerated() -> Made:
    model, rows = overlapping()
    return fit.accelerated_em(ArraySource(rows.cuda())), fit.EMState(model.to("cuda"))


def diagonal() -> Made:
    model = mixture("cuda")
    distribution = DiagonalGaussian(model.family.mean, torch.ones_like(model.family.mean), 1e-6)
    return fit.em(source("cuda")), fit.EMState(Mixture(model.log_weight, distribution))


def tied() -> Made:
    model = mixture("cuda")
    distribution = TiedGaussian(model.family.mean, model.family.factor[0], 1e-6)
    return fit.em(source("cuda")), fit.EMState(Mixture(model.log_weight, distribution))


def factor() -> Made:
    model = FactorModel(*(tensor(part, "cuda") for part in ([0.0] * 3, [[0.5]] * 3, [1.0] * 3)))
    return fit.em(source("cuda")), fit.EMState(model)


def gradient() -> Made:
    batches = fit.Batches(source("cuda"), 300)
    step = fit.gradient_ascent(batches, Power(0.5, scale=0.1))
    return step, fit.AscentState.start(mixture("cuda"))


def waits(make: Callable[[], Made], iterations: int) -> int:
    step, state = make()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run(step, state, max_iter=iterations)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(one.message) for one in seen)


@pytest.mark.parametrize(
    ("make", "most"), [(full, 6), (diagonal, 4), (tied, 7), (factor, 5), (accelerated, 8), (gradient, 4)]
)
def test_ten_iterations_wait_no_more_often_than_they_must(make: Callable[[], Made], most: int) -> None:
    waits(make, 12)  # libraries load, and places in triangles are copied, once
    once = waits(make, 1)
    assert 0 < once <= most
    assert 0 < waits(make, 11) - once <= 10 * most
