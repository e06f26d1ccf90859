"""Le Corff, sections 1.3 and 1.4.1, at a small size."""

import numpy as np
import pytest
import torch

from papers.experiment import Options
from papers.mcmc_scaling import (
    EXPONENTS,
    GOALS,
    acceptance,
    asymptotic_variances,
    check_finite_spaces,
    experiment,
    limit_best,
    limit_chance,
    mean_cost,
    measure,
    scale_for,
    solve_efficiency,
    tune_scale,
)


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


def test_orderings(report):
    """Tuned scales within 4.5 errors, moments within 4: false alarms below 1e-3 of seeds together."""
    verdicts = {finding.claim: finding.verdict for finding in report.findings}
    assert "not reproduced" not in verdicts.values()
    for claim, verdict in verdicts.items():
        if "best scale" in claim or "finite" in claim or claim.startswith("acceptance"):
            assert verdict in ("target met", "reproduced in distribution"), claim
    assert next(v for claim, v in verdicts.items() if claim.startswith("lemmas")) == "reproduced"


def test_more_columns_cost_a_random_walk_most(report):
    """From 2 to 32 columns effective draws fall by 12, 3 and 2 times: each within 10% here, apart by 20 errors."""
    curves = report.curves["against columns"]
    fall = {}
    for name, found in curves.items():
        worth = [calls["effective draws per draw"] / calls["cost"] for calls in found]
        fall[name] = worth[0] / worth[-1]
    assert fall["random walk"] > 2.0 * fall["MALA"] > 2.0 * fall["HMC"]


def test_barker_accepts_and_mixes_less(report):
    """At every scale; the ratio is at most 0.83 in truth, errors are about 5%: below 1 by 4 of them."""
    along = report.curves["along scales"]
    for name in GOALS:
        pairs = zip(along[f"{name}, metropolis"], along[f"{name}, barker"], strict=True)
        for best, barker in pairs:
            assert barker["acceptance"] < best["acceptance"]
            assert barker["effective draws per draw"] < 1.1 * best["effective draws per draw"]


def test_tables_and_the_picture_are_written(report, tmp_path):
    paths = report.write(tmp_path)
    assert {p.suffix for p in paths} == {".json", ".md", ".png"}
    assert paths[2].stat().st_size > 50_000


def test_reports_progress():
    calls = []

    def stop(done, total, what):
        calls.append((done, total))
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        experiment(Options(quick=True, progress=stop))
    assert calls[0][0] == 0
    assert calls[1] == (1, calls[0][1])


@pytest.mark.parametrize(("name", "h", "d"), [("random walk", 0.6, 7), ("MALA", 1.1, 7), ("HMC", 1.2, 7)])
def test_acceptance_in_closed_form(name, h, d):
    """Errors are 0.001, for HMC, whose lengths all chains share, 0.002: false alarms below 1e-5."""
    found = measure(name, h, d, 500, 400, 3)
    assert abs(found.accepted - acceptance(name, h, d)) < 0.01


@pytest.mark.parametrize("name", GOALS)
def test_scales_of_the_closed_form(name):
    h = scale_for(name, GOALS[name], 100)
    assert acceptance(name, h, 100) == pytest.approx(GOALS[name], abs=1e-9)
    ratio = scale_for(name, GOALS[name], 1e6) / scale_for(name, GOALS[name], 1e5)
    assert np.log10(ratio) == pytest.approx(EXPONENTS[name], abs=1e-3)


def test_best_acceptances_of_many_columns():
    """Roberts, Gelman and Gilks 1997; Roberts and Rosenthal 1998; Beskos et al. 2013; Agrawal et al. 2023."""
    found = [limit_best(name, "metropolis") for name in GOALS]
    assert found == pytest.approx([0.234, 0.574, 0.651], abs=1e-3)
    assert [limit_best(name, "barker") for name in ("random walk", "MALA")] == pytest.approx(
        [0.158, 0.347], abs=1.5e-3
    )
    assert limit_chance(1e-6, "barker") == pytest.approx(0.5, abs=1e-6)
    assert mean_cost("MALA", 1.0) == 1.0
    assert mean_cost("HMC", np.pi / 4.0) == pytest.approx(2.5)


def test_warm_up_knows_nothing_of_the_columns():
    """300 steps of 64 chains leave 2%: within 6 of these."""
    for d in (2, 30):
        found = tune_scale("random walk", 0.234, d, 64, 300, 5)
        assert abs(np.log(found / scale_for("random walk", 0.234, d))) < 0.12


def test_autocorrelation_time_of_a_known_chain():
    """Averages of n draws with autocorrelation r^k have n var = tau - 2 r (1 - r^n) / (n (1 - r)^2)."""
    r, n = 0.95, 4000
    tau = (1 + r) / (1 - r)
    square = tau - 2 * r * (1 - r**n) / (n * (1 - r) ** 2)
    assert 1.0 / solve_efficiency(square, n) == pytest.approx(tau, rel=2e-3)


def test_finite_spaces():
    found = check_finite_spaces(3, functions=50)
    assert max(found.invariance, found.reversibility) < 1e-12
    assert found.planted > 1e-3
    assert found.order > -1e-12
    assert min(found.ratios) >= 1.0
    assert found.slack > 0.0


def test_asymptotic_variance_of_two_states():
    """A chain on two states with chances a and b of leaving: variance (2 - a - b) / (a + b) of that under pi."""
    a, b = 0.2, 0.3
    matrix = torch.tensor([[1 - a, a], [b, 1 - b]]).double()
    pi = torch.tensor([b, a]).double() / (a + b)
    f = torch.tensor([[1.0], [0.0]]).double()
    f = f - pi @ f
    expected = float(pi @ f.square()) * (2 - a - b) / (a + b)
    assert float(asymptotic_variances(matrix, pi, f)) == pytest.approx(expected, rel=1e-6)
