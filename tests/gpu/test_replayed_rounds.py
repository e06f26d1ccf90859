"""Rounds of EM that are replayed from CUDA graphs are those of careful steps, to the last bit."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

from boxloop import fit
from boxloop.distributions import DiagonalGaussian, FullGaussian, TiedGaussian
from boxloop.fit import ahead, replay
from boxloop.models import FactorModel, Mixture
from boxloop.run import run
from gpu.engine_cases import mixture, source, tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def start(name: str) -> Any:
    if name == "factor":
        return FactorModel(*(tensor(part, "cuda") for part in ([0.0] * 3, [[0.5]] * 3, [1.0] * 3)))
    model = mixture("cuda")
    mean, k = model.family.mean, len(model.log_weight)
    eye = torch.eye(mean.shape[1], dtype=mean.dtype, device="cuda")
    laws = {
        "full": FullGaussian(mean, eye.expand(k, -1, -1).contiguous(), 1e-6),
        "diagonal": DiagonalGaussian(mean, torch.ones_like(mean), 1e-6),
        "tied": TiedGaussian(mean, eye, 1e-6),
    }
    return Mixture(model.log_weight, laws[name])


@pytest.mark.parametrize("engine", [fit.em, fit.accelerated_em])
@pytest.mark.parametrize("name", ["full", "diagonal", "tied", "factor"])
def test_replayed_rounds_are_those_of_careful_steps(name: str, engine: Any) -> None:
    replayed: list[int] = []

    class Counted(replay.CapturedGraph):
        def __call__(self, state: Any) -> Any:
            replayed.append(1)
            return super().__call__(state)

    step, state = engine(source("cuda")), fit.EMState(start(name))
    assert isinstance(step, ahead.Hopeful)
    always = patch.object(replay, "OFTEN", 1), patch.object(ahead, "QUICK", float("inf"))
    with patch.object(replay, "CapturedGraph", Counted), always[0], always[1]:
        hoped = run(step, state, max_rounds=90)
    careful = run(step.step, state, max_rounds=90)
    assert hoped.trace == careful.trace
    assert hoped.events == careful.events
    ours, theirs = (outcome.state.best for outcome in (hoped, careful))
    for (path, here), (_, there) in zip(ours.leaves(), theirs.leaves(), strict=True):
        assert torch.equal(here, there), path
    assert len(replayed) >= (20 if engine is fit.em else 1), "most of them"


def test_a_step_that_cannot_be_captured_says_why_and_goes_on() -> None:
    def objective(model: Any, expected: Any) -> float:
        return float(expected.log_likelihood / expected.weight)

    step, state = fit.em(source("cuda"), objective), fit.EMState(start("diagonal"))
    assert isinstance(step, ahead.Hopeful)
    pace: Any = step.takes()
    assert (
        run(lambda now: pace(now, 1)[0], state, max_rounds=30).trace
        == run(step.step, state, max_rounds=30).trace
    )
    assert pace.replays.refusal
