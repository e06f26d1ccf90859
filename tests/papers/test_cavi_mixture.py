"""Le Corff, sections 3.2 and 3.3, at a small size."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from boxloop.numeric import generator
from papers.cavi_mixture import (
    DOF,
    PRIOR,
    SCALE,
    STRENGTH,
    Problem,
    TwoComponents,
    ascend,
    ascend_conjugate,
    conjugate_prior,
    exact_posterior,
    experiment,
    information_ratio,
    labelled_evidence,
    sweep_difference,
)
from papers.experiment import Options

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


def test_every_claim_holds(report):
    bad = [f.claim for f in report.findings if f.verdict not in ("reproduced", "target met")]
    assert bad == []
    assert len(report.findings) == 14


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
    assert found.error < 1e-6


def test_the_evidence_of_one_labelling_at_a_time():
    """Every labelling of a few rows in turn: given it the rows are jointly normal."""
    problem = Problem.drawn(7, 3, 2.0, 2)
    labels = torch.cartesian_prod(*[torch.arange(3)] * 7)
    together = (labels[:, :, None] == labels[:, None, :]).double()
    joint = torch.distributions.MultivariateNormal(
        torch.zeros(7).double(), torch.eye(7).double() + PRIOR * together
    )
    known = (joint.log_prob(problem.x) - 7 * math.log(3)).logsumexp(0)
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
    under_q = ascend(problem, 0).model.variance.sqrt().numpy()
    assert np.mean(np.sort(under_q) / np.sort(deviation)) == pytest.approx(information_ratio(2.0), abs=0.04)


def test_formulas_and_engine_agree_at_every_sweep():
    assert sweep_difference(Problem.drawn(15, 3, 1.5, 5), 5, 4) < 1e-12


def test_the_conjugate_evidence_of_one_row_and_of_one_component():
    x = torch.tensor([0.7], dtype=torch.float64)
    predictive = stats.t(DOF, scale=math.sqrt(SCALE / DOF * (1 + 1 / STRENGTH)))
    assert labelled_evidence(x, 2) == pytest.approx(predictive.logpdf(0.7), rel=1e-12)
    rows = torch.tensor([0.7, -1.0, 2.2], dtype=torch.float64)
    known = 0.0  # one row after another, each from the predictive distribution of those before it
    for i, value in enumerate(rows.tolist()):
        seen = rows[:i].numpy()
        strength, dof = STRENGTH + i, DOF + i
        centre = seen.sum() / strength
        scale = SCALE + (seen**2).sum() - strength * centre**2
        predictive = stats.t(dof, loc=centre, scale=math.sqrt(scale / dof * (1 + 1 / strength)))
        known += float(predictive.logpdf(value))
    assert labelled_evidence(rows, 1) == pytest.approx(known, rel=1e-12)
    # A single component has no labels to be unsure of: the bound is the evidence.
    assert ascend_conjugate(rows, 1, 0, 1)[0][-1] == pytest.approx(known, rel=1e-10)


def test_the_base_of_annealing_is_the_prior():
    """Draws against exact moments (fourth moments of the logs exist; means have 4 degrees of freedom, so their
    medians are looked at), and importance weights that average to one: 7 z-scores below 5, one run in 200,000."""
    prior = TwoComponents(conjugate_prior(2))
    rows = prior.draw(40_000, generator(0))[0]
    logs, mean, variance = rows[:, 2:], prior.mean[0, 2:], prior.covariance().diagonal()[0, 2:]
    z = (logs.mean(0) - mean) / (variance / len(rows)).sqrt()
    assert float(z.abs().max()) < 5
    share = (rows[:, :2] > 0).double().mean(0)
    assert float(((share - 0.5) / (0.25 / len(rows)) ** 0.5).abs().max()) < 5
    peer = stats.norm(0.0, 1.0)
    inner = torch.as_tensor(peer.logpdf(rows.numpy())).sum(
        1
    )  # a lighter density, integrated under the heavier one
    ratio = (inner - prior.log_prob(rows)[0]).exp()
    assert abs(float(ratio.mean()) - 1.0) < 5 * float(ratio.std()) / len(rows) ** 0.5
