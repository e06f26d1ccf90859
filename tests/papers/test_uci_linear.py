"""Brownlie (2021), section 6.2 and figure 6.3, at a small size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

from papers.experiment import Options
from papers.uci_linear import (
    EM,
    EXACT,
    FILE,
    METHODS,
    OURS,
    PRETRAINED,
    SGA,
    SWA,
    Table,
    experiment,
    judge,
    load_tables,
    measure_errors,
    split_folds,
)


@pytest.fixture(scope="module")
def report():
    return experiment(Options(quick=True))


def test_bundled_data_are_named(report):
    assert "diabetes" in report.settings["data"]
    assert report.settings["folds in which a distribution could not be learned"] == 0


def test_swa_and_both_ensembles_agree(report):
    """Within 2%: they differ by the Monte Carlo error of 30 draws, 0.3% here."""
    each = report.curves["Diabetes"]
    for method in (EM, OURS, EXACT):
        assert np.mean(each[method]) == pytest.approx(np.mean(each[SWA]), rel=0.02)
    assert {line.verdict for line in report.findings} == {"reproduced in distribution", "target met"}


def test_tables_and_the_picture_are_written(report, tmp_path):
    paths = report.write(tmp_path)
    assert {path.suffix for path in paths} == {".json", ".md", ".png"}
    assert paths[2].stat().st_size > 20_000


def test_folds_are_standardised_by_their_training_rows():
    table = load_tables(None)[0][0]
    folds = split_folds(table, 3)
    assert sum(len(y) for _, y in folds.test) == len(table.y)
    for fold, n in enumerate(folds.train.count):
        x = folds.train.x[fold, :n]
        np.testing.assert_allclose(x[:, :-1].mean(0), 0.0, atol=1e-12)
        np.testing.assert_allclose(x[:, :-1].std(0, correction=0), 1.0, rtol=1e-12)
        assert bool((x[:, -1] == 1.0).all())
        assert len(folds.test[fold][1]) + n == len(table.y)
    firsts = {float(y[0]) for _, y in folds.test}
    assert len(firsts) > 5  # rows are shuffled


def test_a_constant_column_gives_finite_inputs():
    x = torch.cat(
        [torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.ones(40, 1)], 1
    ).double()
    folds = split_folds(Table("t", x, x[:, 0]), 0)
    assert bool(folds.train.x.isfinite().all())


def test_errors_are_those_of_scikit_learn():
    table = load_tables(None)[0][0]
    folds = split_folds(table, 0)
    weights, wanted = [], []
    for fold, n in enumerate(folds.train.count):
        x, y = folds.train.x[fold, :n].numpy(), folds.train.y[fold, :n].numpy()
        fit = LinearRegression(fit_intercept=False).fit(x, y)
        weights.append(torch.from_numpy(fit.coef_))
        test, truth = folds.test[fold]
        wanted.append(np.mean((fit.predict(test.numpy()) - truth.numpy()) ** 2))
    np.testing.assert_allclose(measure_errors(folds, torch.stack(weights)), wanted, rtol=1e-9)


def claims(**ratio: float) -> dict[str, str]:
    """Verdicts on four sets whose errors are those of SWA times a ratio."""
    rng = np.random.default_rng(0)
    found = {}
    for name in ("Energy Efficiency", "Boston Housing", "Concrete", "Yacht"):
        base = rng.normal(10.0, 0.5, size=30)
        found[name] = {
            method: base * ratio.get(method.split(" (")[0].replace(" ", "_"), 1.0) for method in METHODS
        }
        if name != "Energy Efficiency":
            found[name][PRETRAINED] = base * 1.001
    return {line.claim: line.verdict for line in judge(found, real=True)}


def test_verdicts_follow_the_numbers():
    good = claims(**{"pre-trained": 1.1, "online_gradient": 1.02})
    assert set(good.values()) <= {"reproduced in distribution", "target met"}
    energy = "Energy: SWA and the online EM ensemble beat pre-training"
    assert claims(**{"pre-trained": 1.04})[energy] == "not reproduced"
    bad = claims(**{"pre-trained": 1.1, "online_EM": 1.05})
    assert bad[f"Yacht: {EM} ensemble against SWA"] == "not reproduced"
    assert bad[f"Yacht: {OURS} ensemble against SWA"] == "target missed"
    assert claims(online_gradient=0.9)["the online gradient ensemble against SWA"] == "not reproduced"
    assert SGA in METHODS


def test_the_four_sets_are_read_where_they_are(tmp_path: Path):
    rng = np.random.default_rng(0)
    names = ("energy", "boston", "concrete", "yacht")
    parts = {
        f"{name}_{part}": rng.normal(size=(30, 4) if part == "X" else 30) for name in names for part in "Xy"
    }
    np.savez(tmp_path / FILE, **parts)
    found, real = load_tables(tmp_path)
    assert real
    assert [table.name for table in found][:2] == ["Energy Efficiency", "Boston Housing"]
    np.testing.assert_array_equal(found[3].x, parts["yacht_X"])
