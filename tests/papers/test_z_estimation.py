"""Le Corff, appendix A, at a small size."""

import numpy as np
import pytest

from boxloop.numeric import generator
from papers.experiment import Options
from papers.z_estimation import PROBLEMS, bootstrap_error, experiment, growing_noise


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


def test_every_example_has_its_verdict(report):
    verdicts = {finding.claim: finding.verdict for finding in report.findings}
    slips = [claim for claim, verdict in verdicts.items() if verdict == "not reproduced"]
    assert [claim[:3] for claim in slips] == ["A.5", "A.8", "A.8"]
    assert "target missed" not in verdicts.values()
    assert list(verdicts.values()).count("reproduced") == 4


def test_tables_and_the_picture_are_written(report, tmp_path):
    paths = report.write(tmp_path)
    assert {p.suffix for p in paths} == {".json", ".md", ".png"}
    assert "ΦᵀΦβ" in paths[1].read_text()
    assert paths[2].stat().st_size > 50_000


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_closed_variances_are_those_of_a_long_sample(problem):
    """One sample of 200 000 rows: the sandwich over the closed form; the median's density is smoothed, and lower."""
    rows = problem.draw(200_000, generator(3))
    estimate = problem.estimate(rows, None)
    ratio = 200_000 * float(estimate.covariance[problem.place, problem.place]) / problem.spread
    assert ratio == pytest.approx(1.1 if "median" in problem.name else 1.0, abs=0.08)


def test_the_bootstrap_is_the_sandwich():
    """80 resamples: within 4.5 of the 8% that so few leave, false alarms below 1e-5."""
    problem = PROBLEMS[0]
    rows = problem.draw(400, generator(0))
    ours = float(problem.estimate(rows, None).standard_errors[0])
    found = bootstrap_error(problem, rows, 80, generator(1))
    assert abs(np.log(found / ours)) < 4.5 / np.sqrt(2 * 79)


def test_noise_grows():
    rows = growing_noise(20_000, generator(0))
    residual = (rows[:, 1] - 1.0 - 2.0 * rows[:, 0]).abs()
    assert float(residual[rows[:, 0].abs() > 1].mean()) > 2.0 * float(residual[rows[:, 0].abs() < 0.3].mean())
