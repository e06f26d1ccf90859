"""Fault 63: chains in one of several modes, steps far too short, trajectories that diverge."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import constraints

from boxloop.loop import Progress
from boxloop.sample import HMC, MALA, WINDOWS, Draws, RandomWalk, sample_density


def bowl(x: Tensor) -> Tensor:
    return -0.5 * x.square().sum(1)


def banana(x: Tensor) -> Tensor:
    """Rosenbrock's function; its fourth powers overflow."""
    return -0.05 * (1.0 - x[:, 0]).square() - 5.0 * (x[:, 1] - x[:, 0].square()).square()


def funnel(x: Tensor) -> Tensor:
    """Neal (2003): nine effects, whose log-variance is the first column."""
    return -x[:, 0].square() / 18.0 - 0.5 * x[:, 1:].square().sum(1) * (-x[:, 0]).exp() - 4.5 * x[:, 0]


def two_modes(x: Tensor) -> Tensor:
    """Ten deviations on either side of zero."""
    return torch.logaddexp(bowl(x - 10.0), bowl(x + 10.0))


def sample_late_chain(until: float, *, warmup: int = 400, **options: Any) -> Draws:
    """Three chains at the target, one held 50 deviations away until a share of the warm-up is over."""
    done = [0]

    def watch(progress: Progress[Any]) -> None:
        done[0] = progress.state.steps

    def density(x: Tensor) -> Tensor:
        if done[0] >= until * warmup:
            return bowl(x)
        centre, level = torch.zeros_like(x), torch.zeros_like(x[:, 0])
        centre[0], level[0] = 50.0, -1e4  # below any value afterwards, so that no stored one holds the chain
        return bowl(x - centre) + level

    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
    start[0] += 50.0
    given: Any = {"draws": 300, "warmup": warmup, "random_state": 0, **options}
    return sample_density(density, start, observers=[watch], **given)


def test_f63_a_chain_that_arrives_late_does_not_stretch_the_metric() -> None:
    """It was far away in half of the last window; the metric is that of the target all the same."""
    late, prompt = (
        sample_late_chain(sum(WINDOWS[-2:]) / 2, draws=1000),
        sample_late_chain(0.0, draws=1000),
    )
    for found in (late, prompt):
        assert float(found.algorithm.metric.diagonal().max()) < 2.0
        assert 0.4 < found.algorithm.scale < 1.6
        assert found.algorithm.trajectory / found.algorithm.scale < 8.0
        assert found.converged, found.concerns


def test_f63_a_chain_that_arrives_too_late_for_the_metric_is_a_concern() -> None:
    """R-hat sees nothing, since all draws are right; they cost many times what they need."""
    with pytest.warns(
        UserWarning, match=r"trajectories take \d+ gradients, some \d+ times as many as they need"
    ):
        found = sample_late_chain(0.92)
    assert max(found.diagnosis.r_hat) < 1.05
    assert found.algorithm.trajectory / found.algorithm.scale > 16.0
    assert not found.converged
    assert "start from the last draws" in repr(found)
    again = sample_density(bowl, found.positions[-1], draws=1000, warmup=400, random_state=0)
    assert again.converged
    assert again.algorithm.trajectory / again.algorithm.scale < 8.0


@pytest.mark.parametrize(
    "kernel", [HMC(1e-3), HMC(0.01, 1.9, torch.ones(2).double()), MALA(1e-2), RandomWalk(1e-3)]
)
def test_f63_a_step_far_too_small(kernel: Any) -> None:
    """Also where trajectories of very many steps reach as far as they should."""
    with pytest.warns(UserWarning, match="steps are too short"):
        found = sample_density(
            bowl, torch.zeros(2).double(), kernel, chains=4, draws=150, warmup=0, random_state=0
        )
    assert not found.converged
    assert any("a larger scale" in concern for concern in found.concerns)


@pytest.mark.filterwarnings("ignore::boxloop.sample.SampleWarning")
@pytest.mark.parametrize(("density", "scale"), [(banana, 0.6), (funnel, 1.2)])
def test_f63_trajectories_that_overflow_have_diverged(density: Any, scale: float) -> None:
    """They are no sign of a missing constraint, and are not called so."""
    d = 2 if density is banana else 10
    kernel = HMC(scale, 5.0 * scale, torch.ones(d).double())
    found = sample_density(
        density, torch.zeros(d).double(), kernel, chains=8, draws=60, warmup=60, random_state=0
    )
    total = int(found.divergences.sum())
    assert total > 100
    assert int(found.nan_proposals.sum()) == 0
    assert not found.converged
    assert not any("constraint" in concern for concern in found.concerns)
    concern = found.concerns[0]
    assert concern.startswith(f"{total} of {8 * 60} trajectories diverged (energy error above 1000;")
    assert "Reparametrise (in a funnel, sample effects divided by their scale)" in concern
    assert f"dataclasses.replace(draws.algorithm, scale={scale / 4:g})" in concern
    smaller = replace(kernel, scale=scale / 4)
    after = sample_density(
        density, torch.zeros(d).double(), smaller, chains=8, draws=60, warmup=60, random_state=0
    )
    assert int(after.divergences.sum()) < total / 2


def test_f63_the_funnel_as_the_advice_has_it() -> None:
    """Effects divided by their scale: a spherical target, without a divergence."""
    found = sample_density(
        lambda v: -v["log_variance"].square() / 18.0 - 0.5 * v["effect"].square().sum(1),
        {"log_variance": torch.zeros(()).double(), "effect": torch.zeros(9).double()},
        chains=8,
        draws=300,
        warmup=300,
        random_state=0,
    )
    assert found.divergences.tolist() == [0] * 8
    assert found.converged


@pytest.mark.parametrize("beyond", [-math.inf, math.nan])
def test_f63_a_wall_is_no_divergence(beyond: float) -> None:
    """The energy is kept up to it; advice is support=, and with support there is nothing left to say."""

    def density(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 0.0, -x[:, 0] - 0.5 * (x[:, 0] - 1.0).square(), beyond)

    start = torch.ones(1).double()
    options: Any = {"chains": 4, "random_state": 0, "start_sd": 0.1}
    if math.isnan(beyond):
        with pytest.warns(UserWarning, match="a constraint may be missing from support="):
            found = sample_density(density, start, HMC(0.3, 0.6), warmup=0, draws=40, **options)
    else:
        found = sample_density(density, start, HMC(0.3, 0.6), warmup=0, draws=40, **options)
    assert found.divergences.tolist() == [0] * 4
    assert int(found.nan_proposals.sum() + found.zero_density_proposals.sum()) > 0
    assert any("support=" in concern for concern in found.concerns)
    found = sample_density(density, start, support=constraints.positive, draws=400, warmup=300, **options)
    assert found.concerns == ()


@pytest.mark.filterwarnings("ignore:trajectories take:boxloop.sample.SampleWarning")
@pytest.mark.parametrize("kernel", [None, "mala", "random_walk"])
def test_f63_chains_in_different_modes(kernel: Any) -> None:
    """Starts on both sides: chains stay where they are, and disagree."""
    start = torch.tensor([[-10.0], [10.0], [10.0], [10.0]]).double()
    found = sample_density(two_modes, start, kernel, draws=500, warmup=300, random_state=0)
    assert not found.converged
    assert any("chains disagree" in concern for concern in found.concerns)


def test_divergences_are_kept_with_draws() -> None:
    """With the draw that they precede: through thinning, saving of the chains, and to ArviZ."""
    options: Any = {"chains": 4, "warmup": 20, "random_state": 0}
    kernel = HMC(0.5, 2.0)
    with pytest.warns(UserWarning, match="diverged"):
        whole = sample_density(banana, torch.zeros(2).double(), kernel, draws=96, **options)
    with pytest.warns(UserWarning, match="diverged"):
        third = sample_density(banana, torch.zeros(2).double(), kernel, draws=32, thin=3, **options)
    assert whole.diverging.shape == (96, 4)
    assert torch.equal(whole.divergences, whole.diverging.sum(0))
    assert torch.equal(whole.thin_draws(3).diverging, whole.diverging.reshape(32, 3, 4).any(1))
    assert torch.equal(whole.thin_draws(5).diverging, whole.diverging[:95].reshape(19, 5, 4).any(1))
    assert third.diverging.shape == (32, 4)
    stood = (whole.positions[1:] == whole.positions[:-1]).all(2)
    assert bool(stood[whole.diverging[1:]].all()), "a diverging trajectory is never accepted"
    pytest.importorskip("arviz_base")
    tree = whole.to_arviz()
    assert tree["sample_stats"]["diverging"].dtype == np.bool_
    assert int(tree["sample_stats"]["diverging"].sum()) == int(whole.divergences.sum())
    walk = sample_density(bowl, torch.zeros(2).double(), "random_walk", draws=150, **options)
    assert walk.divergences is None
    assert walk.thin_draws(2).divergences is None
