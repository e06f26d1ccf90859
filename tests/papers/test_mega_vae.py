"""Beaulac (2023), section 8.3, at a small size."""

import numpy as np
import pytest
import torch

from papers.experiment import Options
from papers.mega_vae import (
    Problem,
    Setting,
    draw_clusters,
    draw_samples,
    evaluate,
    experiment,
    fit,
    judge,
    sampling_floor,
    train_features,
)


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


@pytest.mark.slow
def test_the_penalty_lowers_the_gap_of_test_rows(report):
    """Two seeds each; the fall is ten times their standard deviation."""
    images = report.curves["images"]
    gaps = {alpha: np.mean([run["gap"] for run in runs]) for alpha, runs in images.items()}
    assert gaps["100"] < gaps["10"] < gaps["0"]


@pytest.mark.slow
def test_no_fit_is_nearer_than_the_rows_are_to_themselves(report):
    for problem, trials in report.curves["three data sets"].items():
        level = report.curves["two samples of rows"][problem]
        assert all(run["Fréchet x"] > level["Fréchet x"] for run in trials["0"])


@pytest.mark.slow
def test_every_data_set_weight_and_seed_is_there(report):
    table = report.curves["three data sets"]
    assert len(table) == 3
    for trials in table.values():
        assert list(trials) == ["0", "0.1", "1", "validation"]
        assert {len(runs) for runs in trials.values()} == {2}


@pytest.mark.slow
def test_the_time_is_beside_that_of_the_paper(report):
    (line,) = (f for f in report.findings if "evaluations" in f.claim)
    assert "1246 s" in line.paper
    assert line.verdict == "target met"


@pytest.mark.slow
def test_pictures_are_written(report, tmp_path):
    names = {path.name for path in report.write(tmp_path)}
    assert {"mega-vae.json", "mega-vae-samples.png", "mega-vae-trade.png"} <= names


def test_a_worse_model_has_worse_measures():
    """Two clusters in place of three, by hand: every measure must be worse."""
    whole = draw_clusters(400, 0)
    kept = whole.train[whole.train[:, 1] < 2.0]
    setting = Setting(2, 32, 30, 8, 64, 1e-2)
    good = evaluate(fit(whole, 0.0, 0, setting), whole, 0, 400)
    bad = evaluate(fit(Problem("two", kept, whole.test), 0.0, 0, setting), whole, 0, 400)
    assert bad["elbo"] < good["elbo"]
    assert bad["gap"] > good["gap"]
    assert bad["MMD"] > good["MMD"]
    assert bad["Fréchet x"] > good["Fréchet x"]
    assert sampling_floor(whole, 400, 0)["MMD"] < bad["MMD"]


def test_samples_and_means_share_their_codes():
    problem = draw_clusters(200, 1)
    network = fit(problem, 0.0, 0, Setting(2, 16, 5, 4, 64, 1e-2))
    x, mean = draw_samples(network, 4000, 3)
    noise = x - mean
    assert x.shape == mean.shape == (4000, 2)
    z = noise.mean(0) / (noise.std(0) / 4000**0.5)
    assert float(z.abs().max()) < 4.5  # false alarm 1e-5
    again = draw_samples(network, 4000, 3)
    assert torch.equal(x, again[0])


def test_features_separate_digits():
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=200)
    images = rng.normal(size=(200, 9)) + 3.0 * labels[:, None]
    features = train_features(images, labels, 0)(torch.from_numpy(images))
    assert features.shape == (200, 32)
    difference = features[labels == 1].mean(0) - features[labels == 0].mean(0)
    assert float(difference.norm() / features.std(0).norm()) > 1.0


def test_a_penalty_that_only_costs_does_not_help():
    """The verdict follows the numbers: made-up fits whose gap stays and whose bound falls."""
    runs = [{"elbo": -1.0, "gap": 1.0, "MMD": 0.1, "Fréchet x": 1.0, "Fréchet mean": 1.0, "alpha": 0.0}] * 3
    worse = [{**run, "elbo": -2.0 - 0.1 * i} for i, run in enumerate(runs)]
    better = [{**run, "elbo": -1.0 + 0.01 * i, "gap": 0.5 + 0.01 * i} for i, run in enumerate(runs)]
    strong = {"0": runs, "1": worse}
    for trial, verdict in ((worse, "target missed"), (better, "target met")):
        table = {"made up": {"0": runs, "0.1": trial, "1": trial, "validation": trial}}
        assert judge(strong, table, (1.0, "CPU"), 500, real=False)[-1].verdict == verdict
