"""Le Corff, section 1.1, at a small size."""

import math

import numpy as np
import pytest
import torch

from boxloop.distributions import DiagonalGaussian
from boxloop.models import EnergyModel, Perceptron
from boxloop.numeric import generator, normal
from papers.energy_model import (
    experiment,
    family_model,
    gradient_errors,
    kl_divergence,
    log_integral,
    maximise_likelihood,
    quartic_well,
    ring,
    two_hills,
)
from papers.experiment import Options

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


def test_no_claim_fails(report):
    assert not [f for f in report.findings if f.verdict in ("not reproduced", "target missed")]


def test_the_fitted_density_matches(report):
    """REPLICATION: on a target with known normaliser, KL by quadrature."""
    kl = report.curves["divergence"]
    assert max(kl["two hills"]["energy"]["1000"]) < 0.05
    assert max(kl["ring"]["energy"]["1000"]) < min(kl["ring"]["Gaussian mixture"]["1000"])


def test_chains_must_persist(report):
    assert report.curves["short run divergence"] > 10 * max(
        report.curves["divergence"]["two hills"]["energy"]["1000"]
    )


def test_scores_of_the_partition_function(report):
    """Mean squared z-score of 40 estimates, within 4 deviations of 1."""
    for check in report.curves["checks"].values():
        assert abs(np.square(check["z"]).mean() - 1.0) < 4 * math.sqrt(2 / 40)


def test_tables_and_the_figure_are_written(report, tmp_path):
    assert [p.name for p in report.write(tmp_path)] == [
        "energy-model.json",
        "energy-model.md",
        "energy-model-fits.png",
    ]


@pytest.mark.parametrize("truth", [two_hills(), ring(), quartic_well()], ids=lambda truth: truth.name)
def test_targets_are_normalised_and_drawn_right(truth):
    """Their grid integrates to one; and the entropy of draws is that of the grid: |z| < 4, 6e-5 each."""
    assert log_integral(truth.log_prob, truth) == pytest.approx(0.0, abs=1e-6)
    assert kl_divergence(truth.log_prob, truth) == pytest.approx(0.0, abs=1e-9)
    points, cell = truth.grid()
    density = truth.log_prob(points)
    found = truth.log_prob(truth.draw(20_000, generator(0)))
    z = (found.mean() - (density.exp() * density * cell).sum()) / (found.std() / 20_000**0.5)
    assert abs(float(z)) < 4


@pytest.mark.parametrize("truth", [two_hills(), ring()], ids=lambda truth: truth.name)
def test_the_identity_of_section_1_1_at_any_network(truth):
    network = Perceptron(truth.columns, (8, 8))
    *layers, last = network.draw_parameters(generator(1))
    d = truth.columns
    base = DiagonalGaussian(torch.zeros(1, d).double(), torch.ones(1, d).double())
    model = EnergyModel.from_network(network, (*layers, normal(tuple(last.shape), generator(2))), base)
    worst, z = gradient_errors(model, truth, generator(3))
    assert worst < 1e-6
    assert abs(z) < 4


def test_maximum_likelihood_by_quadrature_is_the_closed_form():
    rows = 0.4 + 0.8 * normal((300, 1), generator(0))
    best, error = maximise_likelihood(family_model(quartic=False), rows, quartic_well())
    mean, variance = rows.mean(), rows.var(correction=0)
    torch.testing.assert_close(best, torch.stack([-mean / variance, -variance.log()]), rtol=1e-5, atol=1e-6)
    assert float(error[1]) == pytest.approx(math.sqrt(2 / 300), rel=1e-4)
