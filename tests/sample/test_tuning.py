"""Warm-up: acceptance where it is best, the metric of the target, and nothing that moves afterwards."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from boxloop.chain import advance
from boxloop.loop import Progress
from boxloop.numeric import generator, normal
from boxloop.sample import (
    HMC,
    LEAST_CHANCE,
    MALA,
    SHORTEST,
    PositionMoments,
    PseudoMarginal,
    RandomWalk,
    TrajectoryLength,
    Tuner,
    adapt,
    diagnose,
    make_metric,
    round_to_whole_steps,
    sample_density,
)
from sample.cases import RULES, Gaussian

SAME: dict[str, Any] = {"rtol": 0.0, "atol": 0.0}


def warmed(algorithm: Any, gaussian: Gaussian, chains: int = 16, **options: Any) -> Any:
    start = torch.zeros_like(gaussian.mean)
    given: Any = {"draws": 150, "warmup": 300, "random_state": 0, **options}
    return sample_density(gaussian.log_density, start, algorithm, chains=chains, **given)


@pytest.mark.parametrize("d", [1, 3, 20])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("algorithm", [RandomWalk, MALA])
def test_acceptance_ends_near_its_goal(algorithm: Any, rule: Any, d: int) -> None:
    """The scale is found up to the noise of its last updates, whose steps in log h are 2 t^-1/2 at most."""
    found = warmed(algorithm(rule=rule), Gaussian.of(d))
    assert float(found.acceptance.mean()) == pytest.approx(
        algorithm(rule=rule).target_acceptance(d), abs=0.06
    )


@pytest.mark.parametrize(
    ("d", "rule"), [(1, "metropolis"), (3, "metropolis"), (3, "barker"), (20, "metropolis")]
)
def test_the_harmonic_acceptance_of_trajectories_ends_near_its_goal(d: int, rule: Any) -> None:
    """Tuned is the harmonic mean of the chances: it lies below the mean."""
    gaussian, algorithm = Gaussian.of(d), HMC(rule=rule, trajectory=3.0, jitter=1.0, stages=1)
    goal = algorithm.target_acceptance(d)
    found = warmed(algorithm, gaussian, draws=5, warmup=1000 if d == 20 else 400)
    kernel = found.algorithm.kernel(gaussian.target)
    path = advance(kernel, kernel.init(gaussian.draw(500, generator(0))), 60, generator(1))
    chance = kernel.chance(path.log_ratio)
    harmonic = 1.0 / float((1.0 / chance.clamp(min=LEAST_CHANCE)).mean())
    assert harmonic == pytest.approx(goal, abs=0.12)
    assert float(chance.mean()) > harmonic


@pytest.mark.filterwarnings("ignore::boxloop.sample.SampleWarning")
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("length", [0.5, 1.5])
def test_a_step_goes_no_further_than_a_trajectory_that_is_given(length: float, stages: Any) -> None:
    """Tuned to its acceptance alone a step may come to half a turn, from which squares never change."""
    found = warmed(HMC(trajectory=length, stages=stages), Gaussian.of(10), warmup=200, draws=1)
    assert found.algorithm.trajectory == length
    assert stages * found.algorithm.scale <= length * (1.0 + 1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("d", [1, 3, 20])
def test_one_step_is_the_whole_trajectory_where_it_can_be(d: int) -> None:
    """Nearly all of them are accepted, and that is no fault."""
    found = warmed(HMC(), Gaussian.of(d), chains=64, warmup=600)
    assert found.algorithm.trajectory == pytest.approx(2.0 * found.algorithm.scale)
    assert pytest.approx(found.algorithm.trajectory, rel=0.2) == SHORTEST
    assert float(found.acceptance.mean()) > 0.85
    certain = replace(found, acceptance=torch.ones(64).double())
    assert not certain.sampler_concerns
    short = replace(certain, algorithm=replace(found.algorithm, trajectory=0.1))
    assert "steps are too short" in short.sampler_concerns[0]


@pytest.mark.filterwarnings("ignore::boxloop.sample.SampleWarning")
def test_curved_targets_have_more_and_shorter_steps() -> None:
    """Tuned is the harmonic mean of the chances: the mean is above its goal. Where it bends most, moves are refused."""
    found = sample_density(
        lambda x: -0.5 * x[:, 0] ** 2 - 8.0 * (x[:, 1] - 0.5 * x[:, 0] ** 2) ** 2,
        torch.zeros(2).double(),
        chains=64,
        draws=100,
        warmup=600,
        random_state=0,
    )
    steps = found.algorithm.trajectory / (2.0 * found.algorithm.scale)
    assert steps > 1.5
    assert steps == pytest.approx(round(steps))
    assert 0.6 < float(found.acceptance.mean()) < 0.97


@pytest.mark.parametrize(
    ("scale", "length", "wanted"),
    [(0.5, 2.0, 2), (0.5, 1.7, 2), (0.45, 1.7, 2), (5.0, 1.7, 1), (0.6, 1.7, 1), (0.01, 1.7, 16)],
)
def test_whole_steps_make_up_a_trajectory(scale: float, length: float, wanted: int) -> None:
    found, gone = round_to_whole_steps(scale, length, stages=2, most=32)
    assert gone == min(length, 32 * scale)
    assert gone == pytest.approx(2 * wanted * found)


def test_goals_are_those_of_the_theory() -> None:
    assert [RandomWalk().target_acceptance(d) for d in (1, 50)] == [0.44, 0.234]
    assert MALA().target_acceptance(50) == 0.574
    assert HMC().target_acceptance(50) == 0.651
    assert RandomWalk(rule="barker").target_acceptance(50) == pytest.approx(0.158)
    assert MALA(rule="barker").target_acceptance(50) == 0.347


@pytest.mark.parametrize("algorithm", [RandomWalk, MALA, HMC])
@pytest.mark.parametrize("dense", [False, None])
def test_the_metric_is_that_of_the_target(algorithm: Any, dense: bool | None) -> None:
    """Of the last window, from 0.4 to 0.75 of the warm-up: its covariance up to the noise of some hundred draws."""
    gaussian = Gaussian.of(4, scale=torch.tensor([1.0, 10.0, 0.1, 3.0]))
    metric = warmed(algorithm(dense=dense), gaussian, chains=64).algorithm.metric
    if dense is False:
        wanted = gaussian.covariance.diagonal().sqrt()
        assert metric.shape == (4,)
        assert float((metric / wanted).log().abs().max()) < 0.35
        return
    assert metric.shape == (4, 4)
    assert not bool(metric.triu(1).any())
    # In the metric's own coordinates the target is spherical.
    inner = torch.linalg.solve_triangular(metric, gaussian.factor, upper=False)
    assert float(torch.linalg.svdvals(inner).log().abs().max()) < 0.35


@pytest.mark.filterwarnings("ignore::boxloop.sample.SampleWarning")
def test_wide_targets_have_scales_alone() -> None:
    found = warmed(HMC(), Gaussian.of(65), draws=5, warmup=60)
    assert found.algorithm.metric.shape == (65,)


@pytest.mark.parametrize("algorithm", [RandomWalk, MALA, HMC])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_any_unit_will_do(algorithm: Any, size: float) -> None:
    """The start is one away in units of its own, so 1000 deviations off where these are small. 2 d scores below 5.1."""
    gaussian = Gaussian.of(3, scale=size)
    found = warmed(algorithm(), gaussian, draws=200, warmup=500, start_sd=1.0)
    table = ((found["x"] - gaussian.mean) / gaussian.covariance.diagonal().sqrt()).numpy()
    table = np.concatenate([table, table**2 - 1.0], 2)
    z = table.mean((0, 1)) / diagnose(table).mcse
    assert np.abs(z).max() < 5.1
    assert max(found.diagnosis.r_hat) < 1.1


@pytest.mark.parametrize("most", [1e3, 1e8])
def test_columns_of_many_units(most: float) -> None:
    """Deviations from 1 / most to most in one target, with correlations. 8 scores below 5.1."""
    gaussian = Gaussian.of(4, scale=torch.tensor([1.0 / most, most, 1.0, 30.0]).double())
    if most > 1e3:
        start = gaussian.draw(16, generator(0))
        found = sample_density(gaussian.log_density, start, HMC(), draws=200, warmup=1000, random_state=0)
    else:
        found = warmed(HMC(), gaussian, draws=200, warmup=1000)
    table = ((found["x"] - gaussian.mean) / gaussian.covariance.diagonal().sqrt()).numpy()
    table = np.concatenate([table, table**2 - 1.0], 2)
    z = table.mean((0, 1)) / diagnose(table).mcse
    assert np.abs(z).max() < 5.1
    assert max(found.diagnosis.r_hat) < 1.1


@pytest.mark.parametrize("algorithm", [MALA, RandomWalk])
def test_a_metric_that_was_not_found_is_reported(algorithm: Any) -> None:
    """Without trajectories a few hundred steps do not learn six orders of magnitude: draws say so."""
    gaussian = Gaussian.of(4, scale=torch.tensor([1e-3, 1e3, 1.0, 30.0]))
    found = warmed(algorithm(), gaussian, warmup=500)
    assert not found.converged
    assert any("x[1]" in concern and "R-hat" in concern for concern in found.concerns)


@pytest.mark.parametrize(
    "algorithm",
    [RandomWalk(), MALA(), HMC(), PseudoMarginal(lambda x, v: -x.square().sum(1) + 0.1 * v[:, 0], 1)],
)
def test_nothing_is_tuned_after_warm_up(algorithm: Any) -> None:
    """The tuning that an iteration of draws leaves is the one it got, and the draws are those of one fixed kernel."""
    seen: list[Any] = []

    def watch(progress: Progress[Any]) -> None:
        seen.append(progress.state)

    gaussian = Gaussian.of(2)
    found = warmed(algorithm, gaussian, chains=4, draws=96, warmup=100, observers=[watch])
    after = [state for state in seen if state.steps >= 100]
    assert len(after) >= 4
    for state in after:
        assert state.tuning is after[0].tuning
    # From where warm-up ended, the tuned algorithm alone makes the same draws, iteration by iteration.
    kernel, chains = found.algorithm.kernel(gaussian.target), after[0].chains
    for i in range(3):
        stream = torch.Generator()
        stream.set_state(after[i].stream)
        path = advance(kernel, chains, 32, stream)
        assert_close(path.position, found.positions[32 * i : 32 * i + 32], **SAME)
        chains = path.chains


@pytest.mark.parametrize("kind", [RandomWalk, MALA, HMC])
def test_what_is_given_is_never_changed(kind: Any) -> None:
    gaussian, metric = Gaussian.of(2), torch.tensor([0.7, 1.3]).double()
    for algorithm in (kind(0.9), kind(0.9, metric=metric)):
        assert warmed(algorithm, gaussian, draws=10, warmup=50).algorithm.scale == 0.9
        kept = warmed(algorithm, gaussian, draws=10, warmup=50).algorithm.metric
        assert kept is None if algorithm.metric is None else torch.equal(kept, metric)
    only = warmed(kind(metric=metric), gaussian, draws=10, warmup=200).algorithm
    assert_close(only.metric, metric, **SAME)
    assert only.scale != kind().initial_scale(2)
    if kind is HMC:
        assert warmed(HMC(trajectory=1.7), gaussian, draws=10, warmup=50).algorithm.trajectory == 1.7
        given = warmed(HMC(0.9, 1.1), gaussian, draws=10, warmup=50).algorithm
        assert (given.scale, given.trajectory) == (0.9, 1.1)


@pytest.mark.parametrize("kind", [RandomWalk, MALA, HMC])
@pytest.mark.parametrize("warmup", [0, 1, 2, 3, 5, 17])
def test_hardly_any_warm_up(kind: Any, warmup: int) -> None:
    found = warmed(kind(), Gaussian.of(3), chains=2, draws=20, warmup=warmup)
    assert found.warmup == warmup
    assert bool(torch.isfinite(found.positions).all())
    if warmup == 0:
        assert found.algorithm.scale is None
        assert found.algorithm.metric is None


def test_one_chain_is_tuned_too() -> None:
    found = warmed(None, Gaussian.of(3), chains=1, draws=400, warmup=600)
    assert float(found.acceptance) > 0.4
    assert float((found.algorithm.metric.diagonal() > 0).all())


def test_lengths_of_trajectories_suit_the_target() -> None:
    """On a spherical Gaussian none is longer than a whole turn; squares, which are what tuning looks at, mix well."""
    found = warmed(HMC(), Gaussian(torch.zeros(10).double(), torch.eye(10).double()), chains=64, warmup=600)
    assert found.algorithm.scale <= found.algorithm.trajectory < 2 * math.pi
    squares = (found["x"] ** 2).numpy()
    assert diagnose(squares).ess_bulk.min() > 0.15 * 64 * 150


def test_a_chain_far_out_comes_in() -> None:
    """Where the scale of the others is too long for any move, shorter steps are tried in between."""
    start = torch.zeros(8, 2).double()
    start[0] = 60.0
    found = sample_density(
        lambda x: -0.25 * x.pow(4).sum(1), start, "hmc", draws=200, warmup=600, random_state=0
    )
    assert float(found.positions[:, 0].abs().max()) < 10.0
    assert float(found.acceptance.min()) > 0.2


def test_running_covariances_are_those_of_all_rows() -> None:
    """Windows average blocks of any number; taken together they give the covariance of all positions in them."""
    gaussian = Gaussian.of(3)
    tuner = Tuner(RandomWalk(), 3, 100, 4)
    tuning, kernel = tuner.make_initial_state(), RandomWalk(0.5).kernel(gaussian.target)
    chains, rows = kernel.init(gaussian.draw(4, generator(0))), []
    for i in range(5):
        path = advance(kernel, chains, 8, generator(i))
        chains = path.chains
        tuning = tuner.average_positions(tuning, path)
        rows.append(path.position.reshape(-1, 3))
    whole = torch.cat(rows)
    moments = tuning.moments.value
    assert tuning.n_positions == len(whole)
    assert_close(moments.mean, whole.mean(0), rtol=1e-10, atol=1e-10)
    assert_close(moments.covariance, torch.cov(whole.mT, correction=0), rtol=1e-10, atol=1e-10)
    assert_close(
        PositionMoments.from_positions(whole, dense=False).covariance,
        whole.var(0, correction=0),
        rtol=1e-10,
        atol=1e-10,
    )


def test_factors_of_poor_covariances() -> None:
    few = normal((3, 5), generator(0))
    made = make_metric(torch.cov(few.mT), 3)
    assert bool(torch.isfinite(made).all())
    assert bool((made.diagonal() > 0).all())
    assert make_metric(torch.zeros(3, 3).double(), 10) is None
    assert make_metric(torch.full((3,), torch.nan).double(), 10) is None
    still = torch.tensor([1.0, 0.0]).double()
    assert bool((make_metric(still, 10) > 0).all())
    many = make_metric(torch.eye(2).double() + 0.5, 10**9)
    assert_close(many @ many.mT, torch.eye(2).double() + 0.5, rtol=1e-8, atol=1e-8)


def test_an_adaptation_that_goes_on_is_biased() -> None:
    """Why nothing may move after warm-up: steps that depend on where a chain is have another distribution.

    The scale of each chain's next step is that of its last move, a rule that looks harmless.
    """
    gaussian = Gaussian.of(1)
    scale = torch.full((4000, 1), 2.0).double()
    x = gaussian.draw(4000, generator(0))
    stream = generator(1)
    for _ in range(60):
        kernel = replace(RandomWalk(), scale=scale).kernel(gaussian.target)
        chains = kernel.init(x)
        moved = advance(kernel, chains, 1, stream).chains.position
        far = (x - gaussian.mean).abs() > gaussian.factor[0, 0]
        scale = torch.where(far, 0.4, 3.0).double()  # of where the chain was before the move
        x = moved
    apart = (x - gaussian.mean) / gaussian.factor[0, 0]
    z = (apart.square().mean() - 1.0) / (apart.square().std() / 4000**0.5)
    assert float(z.abs()) > 6.0


def test_tensors_of_scales_are_given() -> None:
    """A scale for each chain is a given one."""
    scale = torch.tensor([[0.5], [1.0], [2.0]]).double()
    found = sample_density(
        lambda x: -0.5 * x.square().sum(1),
        torch.zeros(3, 2).double(),
        RandomWalk(scale),
        draws=400,
        warmup=50,
        random_state=0,
    )
    assert isinstance(found.algorithm.scale, Tensor)
    assert bool((found.acceptance[:-1] > found.acceptance[1:]).all())


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e3])
def test_the_first_step_of_the_length_is_half_the_slope_of_the_logarithm(
    unit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """d log(C / T^(1/2)) / d log T, whatever the unit of the criterion C, and never more than a half."""
    path: Any = SimpleNamespace(details=[None], log_ratio=[None])
    for slope, step in ((0.2, -0.15), (1.1, 0.3), (9.0, 0.5), (-9.0, -0.5)):
        monkeypatch.setattr(adapt, "measure_chees_criterion", lambda *_, s=slope: (s * unit, unit))
        found = TrajectoryLength.from_length(1.0).update(path, torch.ones(1), None, (0.01, 100.0))
        assert found.log_length == pytest.approx(step, rel=1e-12)


def test_later_steps_of_the_length_fall_as_the_root_of_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slope is that of averages that forget a tenth each time; what stays is the average of the lengths."""
    path: Any = SimpleNamespace(details=[None], log_ratio=[None])
    found, lengths, slope, worth, place = TrajectoryLength.from_length(1.0), [], 0.0, 0.0, 0.0
    for number, (fresh, size) in enumerate([(1.2, 1.0), (0.1, 2.0), (-0.4, 1.0), (0.9, 0.5)], 1):
        monkeypatch.setattr(adapt, "measure_chees_criterion", lambda *_, s=fresh, w=size: (s, w))
        found = found.update(path, torch.ones(1), None, (0.01, 100.0))
        slope, worth = 0.9 * slope + fresh, 0.9 * worth + size
        place += 0.5 / math.sqrt(number) * min(1.0, max(-1.0, slope / worth - 0.5))
        lengths.append(place)
        assert found.log_length == pytest.approx(place, rel=1e-12)
        assert found.averaged == pytest.approx(sum(lengths) / number, rel=1e-12)
    for _ in range(9):
        found = found.update(path, torch.ones(1), None, (0.01, 100.0))
    before = found
    found = before.update(path, torch.ones(1), None, (0.01, 100.0))
    assert found.averaged == pytest.approx(0.9 * before.averaged + 0.1 * found.log_length, rel=1e-12)
