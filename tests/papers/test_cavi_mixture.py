"""Document 002, sections 3.2 and 3.3, at a small size."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate

from boxloop.replicate import Options
from boxloop.replicate.cavi_mixture import experiment
from boxloop.replicate.cavi_mixture_trials import (
    PRIOR,
    Problem,
    ascend,
    exact_posterior,
    information_ratio,
    sweep_difference,
)


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


def test_every_claim_holds(report):
    bad = [f.claim for f in report.findings if f.verdict not in ("reproduced", "target met")]
    assert bad == []
    assert len(report.findings) >= 10


def test_tables_and_the_figure_are_written(report, tmp_path):
    paths = report.write(tmp_path)
    assert {p.suffix for p in paths} == {".json", ".md", ".png"}


def test_the_evidence_against_scipy():
    problem = Problem.drawn(6, 2, 2.0, 1)
    x = problem.x.numpy()

    def density(b, a):
        rows = 0.5 * (np.exp(-0.5 * (x - a) ** 2) + np.exp(-0.5 * (x - b) ** 2)) / math.sqrt(2 * math.pi)
        return float(np.prod(rows)) * math.exp(-0.5 * (a * a + b * b) / PRIOR) / (2 * math.pi * PRIOR)

    known, _ = integrate.dblquad(density, -20, 20, -20, 20, epsabs=1e-16, epsrel=1e-8)
    found = exact_posterior(problem)
    assert found.log_evidence == pytest.approx(math.log(known), abs=1e-6)
    assert found.error < 1e-8


def test_the_evidence_of_one_labelling_at_a_time():
    """Every labelling of a few rows in turn: given it the rows are jointly normal."""
    problem = Problem.drawn(7, 3, 2.0, 2)
    labels = torch.cartesian_prod(*[torch.arange(3)] * 7)
    together = (labels[:, :, None] == labels[:, None, :]).double()
    law = torch.distributions.MultivariateNormal(
        torch.zeros(7).double(), torch.eye(7).double() + PRIOR * together
    )
    known = (law.log_prob(problem.x) - 7 * math.log(3)).logsumexp(0)
    assert exact_posterior(problem).log_evidence == pytest.approx(float(known), abs=1e-7)


def test_ordered_means_far_apart_are_normal():
    problem = Problem.drawn(40, 2, 10.0, 3)
    deviation = exact_posterior(problem).ordered()[1]
    precision = 20 + 1 / PRIOR
    assert deviation == pytest.approx([precision**-0.5] * 2, rel=1e-6)
    best = ascend(problem, 0)
    assert best.model.variance.sqrt().numpy() == pytest.approx(deviation, rel=1e-6)
    assert best.fall < 1e-12


def test_the_limit_of_many_rows_is_that_of_many_rows():
    assert information_ratio(12.0) == pytest.approx(1.0, abs=1e-6)
    problem = Problem.drawn(4000, 2, 2.0, 4)
    deviation = exact_posterior(problem).ordered()[1]
    believed = ascend(problem, 0).model.variance.sqrt().numpy()
    assert np.mean(np.sort(believed) / np.sort(deviation)) == pytest.approx(information_ratio(2.0), abs=0.04)


def test_formulas_and_engine_agree_at_every_sweep():
    assert sweep_difference(Problem.drawn(15, 3, 1.5, 5), 5, 4) < 1e-12
