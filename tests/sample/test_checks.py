"""The joint-distribution test and simulation-based calibration of every kernel, on two models, by both rules.

False alarms: 58 checks in the normal suite and 58 in the slow one, each at a level of 1e-5, with fixed seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from boxloop.figures import new_axes, png
from boxloop.numeric import normal
from boxloop.sample import (
    RandomWalk,
    RankCheck,
    Target,
    check_joint,
    check_ranks,
    check_reversible,
    compute_z_scores,
    evaluate_antisymmetric_functions,
)
from sample.cases import RULES, Gaussian
from sample.posteriors import ALGORITHMS, MODELS, posterior, with_numbers

LEVEL = 1e-5
CASES = [
    (model, name, rule)
    for model in MODELS
    for name in (*ALGORITHMS, "pseudo-marginal", "correlated", "gibbs")
    for rule in RULES
    if name != "gibbs" or (model == "normal" and rule == "metropolis")
]
every_case = pytest.mark.parametrize(("model", "name", "rule"), CASES)


def made(model: str, name: str, rule: Any) -> tuple[Any, Any, Any]:
    chosen = MODELS[model]
    distribution = with_numbers(chosen) if name in ("pseudo-marginal", "correlated") else chosen
    return distribution.prior, distribution.simulate, posterior(chosen, name, rule)


@every_case
def test_parameters_and_data_in_turn_keep_their_distribution(model: str, name: str, rule: Any) -> None:
    check = check_joint(*made(model, name, rule), chains=2000, iterations=6, level=LEVEL, random_state=1)
    assert len(check.z) >= 5
    assert check.passed, check


@every_case
def test_ranks_of_the_truth_are_even(model: str, name: str, rule: Any) -> None:
    """500 simulations, as many ranks of each parameter. A sweep of blocks is not reversible: it is thinned."""
    thin, draws = (8, 19) if name == "gibbs" else (1, 99)
    check = check_ranks(
        *made(model, name, rule), simulations=500, draws=draws, thin=thin, level=LEVEL, random_state=2
    )
    assert check.ranks.shape[0] == 500
    assert check.passed, check.p_values


@pytest.mark.slow
@every_case
def test_checks_at_length(model: str, name: str, rule: Any) -> None:
    """The same with more of everything: smaller faults would show."""
    parts = made(model, name, rule)
    joint = check_joint(*parts, chains=40_000, iterations=12, steps=2, level=LEVEL, random_state=3)
    assert joint.passed, joint
    thin = 10 if name == "gibbs" else 3
    ranks = check_ranks(*parts, simulations=5000, draws=99, thin=thin, level=LEVEL, random_state=4)
    assert ranks.passed, ranks.p_values


def test_the_normal_posterior_is_the_known_one() -> None:
    """The model behind the checks: mean 3/4 of the rows' mean, variance 1/4. 6 scores below 5."""
    model, stream = MODELS["normal"], torch.Generator().manual_seed(0)
    data = model.simulate(model.prior(3000, stream), stream)
    kernel = posterior(model, "hamiltonian")(data)
    from boxloop.chain import advance

    theta = advance(kernel, kernel.init(torch.zeros(3000, 2).double()), 30, stream).chains.position
    apart = (theta - 0.75 * data.mean(1)) / 0.5
    z = torch.cat([apart.mean(0), (apart.square().mean(0) - 1.0) / 2**0.5]) * 3000**0.5
    assert float(z.abs().max()) < 5.0


def test_levels_are_what_they_say() -> None:
    """At a level of 0.2 a right kernel fails about so often, over 60 repetitions of each check.

    Bonferroni over dependent scores makes it rarer, never more often: the bound is the binomial's 1e-4 quantile.
    """
    most = int(stats.binom.isf(1e-4, 60, 0.2))
    gaussian = Gaussian.of(2)
    kernel = RandomWalk(1.0).kernel(gaussian.target)
    failed = sum(
        not check_reversible(kernel, gaussian.draw, chains=300, level=0.2, random_state=i).reversible
        for i in range(60)
    )
    assert failed <= most
    parts = made("normal", "langevin", "metropolis")
    failed = sum(
        not check_joint(*parts, chains=200, iterations=2, level=0.2, random_state=i).passed for i in range(60)
    )
    assert failed <= most
    failed = sum(
        not check_ranks(*parts, simulations=200, draws=19, bins=10, level=0.2, random_state=i).passed
        for i in range(60)
    )
    assert failed <= most


def test_ranks_are_counted_and_drawn() -> None:
    ranks = np.repeat(np.arange(100), 5)[:, None]
    even = RankCheck(ranks, 99, 20, 1e-3)
    assert even.counts.shape == (20, 1)
    assert (even.counts == 25).all()
    assert even.p_values[0] == pytest.approx(1.0)
    assert even.passed
    skew = RankCheck(np.concatenate([ranks, np.minimum(ranks, 30)], 1), 99, 20, 1e-3)
    assert not skew.passed
    given = new_axes()
    assert skew.plot(given) is given
    assert "column 1" in given.get_title(loc="left")
    assert png(skew.plot(column=0)).startswith(b"\x89PNG")
    # 500 ranks in 20 bins, 25 in each where they are even: in 95% of tables all bars have 12 to 41 (Bonferroni).
    (band,) = (patch for patch in given.patches if patch.get_label() == "by chance, 95 %")
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((12 / 25, 41 / 25))
    # A number of ranks that bins do not divide: expected shares are those of the bins' own sizes.
    uneven = RankCheck(np.tile(np.arange(11), 50)[:, None], 10, 4, 1e-3)
    assert uneven.p_values[0] == pytest.approx(1.0)


def test_ties_are_broken_at_random() -> None:
    """A chain that never moves knows nothing: its ranks are even all the same."""
    still = RandomWalk(1.0).kernel(Target(lambda x: torch.where(x[:, 0] == 0.0, 0.0, -torch.inf)))
    check = check_ranks(
        lambda n, stream: torch.zeros(n, 1).double(),
        lambda theta, stream: theta,
        lambda data: still,
        draws=19,
        bins=10,
        level=LEVEL,
    )
    assert check.passed
    assert len(np.unique(check.ranks)) == 20


def test_words_of_a_check() -> None:
    gaussian = Gaussian.of(1)
    check = check_reversible(RandomWalk(1.0).kernel(gaussian.target), gaussian.draw, chains=500)
    assert str(check).startswith("invariant (largest of")
    assert "reversible" in str(check)
    wrong = check_reversible(
        RandomWalk(1.0).kernel(Target(lambda x: -x.abs().sum(1))), gaussian.draw, chains=20_000
    )
    assert str(wrong).startswith("NOT invariant")


def test_scores_of_a_check() -> None:
    rows = normal((4000, 3), torch.Generator().manual_seed(0))
    rows[:, 1] = 0.0
    rows[:, 2] = 1.0
    z = compute_z_scores(rows)
    assert float(z[0]) == pytest.approx(abs(stats.ttest_1samp(rows[:, 0].numpy(), 0.0).statistic))
    assert z[1:].tolist() == [0.0, float("inf")]
    here, there = rows, rows.roll(1, 0) + 0.5
    assert torch.equal(
        evaluate_antisymmetric_functions(here, there), -evaluate_antisymmetric_functions(there, here)
    )
