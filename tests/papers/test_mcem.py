"""Le Corff, section 2.6, which is empty: what the project puts there, at a small size."""

from dataclasses import replace

import numpy as np
import pytest

from boxloop.fit import MonteCarloPlan
from papers.experiment import Options
from papers.mcem import (
    QUICK,
    Trail,
    distance_at_end,
    experiment,
    follow_trail,
    logistic_groups,
    measure_collapses,
    one_draw,
    reference,
    small_problems,
    start,
)


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


@pytest.mark.slow
def test_every_target_is_met(report):
    assert {f.claim: f.verdict for f in report.findings if f.verdict != "target met"} == {}
    assert len(report.findings) == 11


@pytest.mark.slow
def test_tables_and_the_figure_are_written(report, tmp_path):
    paths = report.write(tmp_path)
    assert {p.suffix for p in paths} == {".json", ".md", ".png"}


def test_one_draw_collapses_where_units_are_few():
    """None among 6 would have a chance of 1e-4 if four in five collapsed, and 24 of 24 did at full size."""
    gone = measure_collapses(
        small_problems()["12 groups of 3"], replace(QUICK, repeats=6, short=200), seed=100
    )
    assert np.isfinite(gone["m = 1, full replacement"]).any()
    assert not np.isfinite(gone["m = k²"]).any()
    assert not np.isfinite(gone["stochastic approximation"]).any()


def test_a_run_of_one_draw_ends_without_variance_or_far_away():
    rows = logistic_groups(1, 60, 6)
    trail = follow_trail(rows, reference(start(), rows), MonteCarloPlan(one_draw), 300, seed=2)
    assert trail.spent[-1] == 300
    assert trail.distance[-1] > 0.1


def test_a_part_of_the_draws_is_averaged():
    draws = np.arange(1.0, 101.0)
    trail = Trail(draws, np.where(draws > 50, 2.0, 7.0), draws)
    level, error = distance_at_end([trail, trail], 0.5)
    assert level == 2.0
    assert error == 0.0
