"""Annealed importance sampling. Statistical tests are z-scores beyond 4: a false alarm in 6e-5 each, 6e-4 a run."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from boxloop.distributions import DiagonalGaussian, FullGaussian
from boxloop.numeric import generator
from boxloop.sample import (
    MALA,
    AnnealingPath,
    Ladder,
    RandomWalk,
    Target,
    WeightedDraws,
    annealed_importance,
    choose_temperatures,
)

PRECISION = torch.tensor([[3.0, 1.0], [1.0, 2.0]]).double()
PULL = torch.tensor([2.0, -1.0]).double()
COVARIANCE = torch.linalg.inv(PRECISION)
EXACT = math.log(2 * math.pi) + 0.5 * float(COVARIANCE.logdet() + PULL @ COVARIANCE @ PULL)
BASE = DiagonalGaussian(torch.zeros(1, 2).double(), torch.full((1, 2), 2.0).double())
LINE = DiagonalGaussian(torch.zeros(1, 1).double(), torch.ones(1, 1).double())


def gaussian(x: Tensor) -> Tensor:
    """An unnormalised Gaussian whose integral is exp(EXACT)."""
    return x @ PULL - 0.5 * ((x @ PRECISION) * x).sum(1)


def mala(f, scale):
    return MALA(scale).kernel(Target(f))


def walk(f, scale):
    return RandomWalk(scale).kernel(Target(f))


def annealed(**more):
    given = {"kernels": mala, "temperatures": Ladder.sigmoid(30, 0.8), "chains": 2000, "random_state": 0}
    return annealed_importance(gaussian, BASE, **{**given, **more})


@pytest.mark.parametrize("kernels", [mala, walk])
def test_the_constant_of_a_gaussian(kernels):
    found = annealed(kernels=kernels)
    assert abs(found.log_partition - EXACT) < 4 * found.error
    assert found.error < 0.03
    assert found.effective > 600


def test_weighted_draws_have_the_moments_of_the_density():
    found = annealed().draws
    share = found.log_weight.softmax(0)
    for value, exact in ((found.position, COVARIANCE @ PULL), (found.position**2, None)):
        mean = share @ value
        error = (share.square()[:, None] * (value - mean).square()).sum(0).sqrt()
        exact = COVARIANCE.diagonal() + (COVARIANCE @ PULL) ** 2 if exact is None else exact
        assert float(((mean - exact) / error).abs().max()) < 4


@pytest.mark.parametrize("rungs", [1, 3])
def test_the_mean_weight_is_unbiased_however_coarse_the_ladder(rungs):
    found = annealed(temperatures=Ladder.sigmoid(rungs, 0.5), chains=40_000).draws
    ratio = (found.log_weight - EXACT).exp()
    assert abs(float(ratio.mean()) - 1.0) < 4 * float(ratio.std()) / len(ratio) ** 0.5


def test_the_reported_error_is_the_spread_over_repeats():
    runs = [annealed(chains=200, random_state=seed) for seed in range(30)]
    value = torch.tensor([r.log_partition for r in runs])
    reported = torch.tensor([r.error for r in runs])
    ratio = float(value.var() / reported.square().mean()) * 29
    assert chi2.ppf(3e-5, 29) < ratio < chi2.ppf(1 - 3e-5, 29)


def test_chains_going_down_enclose_the_constant():
    exact_distribution = FullGaussian.from_covariance((COVARIANCE @ PULL)[None], COVARIANCE[None])
    draws = exact_distribution.draw(2000, generator(1))[0]
    found = annealed(temperatures=Ladder.sigmoid(60, 0.8), draws=draws)
    assert abs(found.log_partition - EXACT) < 4 * found.error
    assert abs(found.upper - EXACT) < 4 * found.upper_error
    lows, highs = [], []
    for seed in range(30):  # with few chains on a coarse ladder log Z leans down one way and up the other
        draws = exact_distribution.draw(4, generator(100 + seed))[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            few = annealed(temperatures=Ladder.sigmoid(1, 0.3), chains=4, draws=draws, random_state=seed)
        lows.append(few.log_partition)
        highs.append(few.upper)
    low, high = torch.tensor(lows), torch.tensor(highs)
    assert float((low.mean() - EXACT) / (low.std() / 30**0.5)) < 2
    assert float((high.mean() - EXACT) / (high.std() / 30**0.5)) > -2
    assert low.mean() < EXACT < high.mean()


def test_planted_missing_base_in_the_weights(monkeypatch):
    monkeypatch.setattr(AnnealingPath, "log_ratio", lambda self, x: self.log_density(x))
    found = annealed()
    assert abs(found.log_partition - EXACT) > 10 * found.error


def test_planted_kernel_of_another_distribution():
    """A kernel that leaves the end of the ladder as it is at every temperature: weights no longer average to Z."""
    found = annealed(kernels=lambda f, scale: mala(gaussian, scale), temperatures=Ladder.sigmoid(10, 0.8))
    assert abs(found.log_partition - EXACT) > 10 * found.error


def test_planted_weights_after_the_move(monkeypatch):
    """The increment belongs to where a chain was before it moved at the new temperature."""

    def late(self, position, ladder, stream, *, backwards=False):
        log_weight = position.new_zeros(len(position))
        betas = ladder.temperatures
        for before, after, scale in zip(betas, betas[1:], ladder.scales):
            kernel = self.kernels(self.log_density_at(after), scale)
            for _ in range(5):
                chains = kernel.init(position)
                position = kernel.step(chains, kernel.noise(chains, 1, stream)[0])[0].position
            log_weight = log_weight + (after - before) * self.log_ratio(position)
        return WeightedDraws(position, log_weight)

    monkeypatch.setattr(AnnealingPath, "anneal_chains", late)
    found = annealed(temperatures=Ladder.sigmoid(5, 0.8))
    assert abs(found.log_partition - EXACT) > 10 * found.error


def test_a_pilot_chooses_finer_steps_for_a_narrower_distribution():
    def ladder(width):
        return choose_temperatures(lambda x: -0.5 * (x[:, 0] / width) ** 2, LINE, mala, random_state=0)

    wide, narrow = ladder(0.5), ladder(0.02)
    assert len(narrow.scales) > 2 * len(wide.scales)
    assert narrow.scales[-1] < 0.2 * wide.scales[-1]


def test_a_pilot_leaves_the_estimate_unbiased_and_sharp():
    ladder = choose_temperatures(gaussian, BASE, mala, random_state=5)
    assert (ladder.temperatures[0], ladder.temperatures[-1]) == (0.0, 1.0)
    found = annealed(temperatures=ladder)
    assert abs(found.log_partition - EXACT) < 4 * found.error
    assert found.effective > 1000


def test_a_pilot_tunes_scales_at_given_temperatures():
    ladder = choose_temperatures(gaussian, BASE, mala, Ladder.sigmoid(6).temperatures, random_state=0)
    assert ladder.temperatures == Ladder.sigmoid(6).temperatures
    assert all(0.1 < scale < 5.0 for scale in ladder.scales)


def test_a_density_on_half_a_line():
    """Minus infinity is a value like another: Z = sqrt(2 pi) / 2."""

    def half(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 0, -0.5 * x[:, 0] ** 2, -torch.inf)

    found = annealed_importance(half, LINE, walk, Ladder.sigmoid(10), 4000, 0)
    assert abs(found.log_partition - 0.5 * math.log(2 * math.pi) + math.log(2)) < 4 * found.error
    inside = found.draws.position[found.draws.log_weight > -torch.inf]
    assert bool((inside > 0).all())
    down = annealed_importance(half, LINE, walk, Ladder.sigmoid(10), 100, 0, draws=inside[:100])
    assert math.isfinite(down.upper)


def test_few_weights_are_reported():
    with pytest.warns(UserWarning, match="few weights dominate"):
        found = annealed_importance(
            lambda x: -500.0 * (x[:, 0] - 3) ** 2, LINE, mala, Ladder.sigmoid(1, 0.01), 500, 0
        )
    assert found.concerns
    with pytest.warns(UserWarning, match="no chain .* has a finite weight"):
        annealed_importance(lambda x: x[:, 0] * 0.0 - torch.inf, LINE, walk, Ladder.sigmoid(2), 50, 0)


def test_what_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="not a number at 50 draws"):
        annealed_importance(lambda x: x[:, 0] * torch.nan, LINE, walk, Ladder.sigmoid(2), 50, 0)
    with pytest.raises(ValueError, match="zero at nine in ten draws"):
        choose_temperatures(lambda x: x[:, 0] * 0.0 - torch.inf, LINE, walk, random_state=0)
    with pytest.raises(ValueError, match="at least 2 chains"):
        annealed(chains=1)


@pytest.mark.parametrize(
    "betas", [(0.0,), (0.0, 0.5), (0.1, 1.0), (0.0, 0.6, 0.4, 1.0), (0.0, 0.5, 0.5, 1.0)]
)
def test_ladders_rise_from_0_to_1(betas):
    with pytest.raises(ValueError, match="rise from 0 to 1"):
        Ladder(betas, (1.0,) * (len(betas) - 1))


def test_ladders_have_scales():
    with pytest.raises(ValueError, match="positive scale"):
        Ladder((0.0, 1.0), (0.0,))
    with pytest.raises(ValueError, match="at least one rung"):
        Ladder.sigmoid(0)


def test_the_same_seed_gives_the_same_answer():
    one, two = annealed(chains=50, random_state=3), annealed(chains=50, random_state=3)
    assert one.log_partition == two.log_partition
    assert torch.equal(one.draws.position, two.draws.position)


def test_resampling_is_by_weight():
    """Systematic resampling gives each draw its share of places, to within one."""
    weight = torch.tensor([0.1, 0.0, 0.6, 0.3]).double()
    chosen = WeightedDraws(torch.arange(4.0).double()[:, None], weight.log()).resample(1000, generator(0))
    count = torch.bincount(chosen[:, 0].long(), minlength=4)
    assert bool(((count - 1000 * weight).abs() <= 1).all())
