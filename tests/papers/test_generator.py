"""Learning relevant features, section 5.4, at a small size: its table is filled, its orderings hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from boxloop.estimators import RelevantFeatures
from boxloop.numeric import generator, normal
from boxloop.twoview import GaussianNoise
from papers.experiment import Options, Report
from papers.generator import SMALL, DimensionCurve, Setting, draw_curve, experiment, train_generators


@pytest.fixture(scope="module")
def report() -> Report:
    return experiment(Options(quick=True))


def test_error_falls_with_the_latent_dimension(report: Report) -> None:
    errors = np.asarray(report.curves["errors"])
    assert errors.shape == (len(SMALL.dimensions), SMALL.seeds)
    mean = np.log(errors).mean(1)
    assert mean[SMALL.dimensions.index(8)] < mean[0] - np.log(1.3)
    assert np.asarray(report.curves["errors of pixels"]).min() > 0.0


def test_reports_change_of_slope_with_its_interval(report: Report) -> None:
    knee = report.curves["change of slope"]
    assert knee["low"] <= knee["at"] <= knee["high"]
    words = report.findings[0].ours
    assert words.startswith("slope changes at" if knee["kind"] == "break" else "no change of slope")
    assert (report.findings[0].verdict == "not reproduced") == (knee["kind"] != "break")


def test_relevances_are_shares_and_the_report_is_written(report: Report, tmp_path: Path) -> None:
    relevance = np.asarray(report.curves["relevance"])
    assert len(relevance) == SMALL.learned
    assert ((relevance >= 0.0) & (relevance <= 1.0)).all()
    assert len(report.findings) == 5  # the dimension itself is asked of MNIST alone
    paths = report.write(tmp_path)
    assert json.loads(paths[0].read_text())["settings"]["variables kept"] == SMALL.kept
    assert {path.name for path in paths[2:]} == {"generator-curve.png", "generator-samples.png"}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_finds_the_number_of_latent_variables() -> None:
    """12 noisy columns of 4 independent variables: the error falls up to four, and little beyond."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4)) @ rng.normal(size=(4, 12)) + 0.3 * rng.normal(size=(600, 12))
    rows = torch.from_numpy(X)
    linear = {"x_features": "linear", "y_features": "linear", "channel": GaussianNoise(0.3)}
    features = RelevantFeatures(12, **linear, random_state=0).fit(rows[:500])
    setting = Setting(12, 12, (), 0, (), 64, 30, (1, 2, 3, 4, 5, 6, 8, 10), 2, rate=0.01)
    done: list[tuple[int, int, str]] = []
    curve = train_generators(features, rows[:500], rows[500:], setting, 0, 2, lambda *what: done.append(what))
    assert curve.errors.shape == (8, 2)
    assert done[-1] == (16, 16, "latent dimension 10")
    best = [-curve.fits[k].score(rows[500:]) for k in curve.dimensions]
    assert all(one in errors for one, errors in zip(best, curve.errors, strict=True))
    drop = curve.best[:-1] - curve.best[1:]
    assert drop[3:].max() < 0.2 * drop[:3].min()


def test_figure_shows_two_lines_only_where_there_are_two() -> None:
    dimensions = (1, 2, 3, 4, 6, 8, 11, 15, 19, 24, 32, 48)
    x, noise = np.asarray(dimensions, dtype=float), np.exp(0.02 * normal((12, 3), generator(0)).numpy())
    broken, straight = (np.minimum(x, 10.0) ** -0.7, x**-0.4)
    for values, lines in ((broken, 8), (straight, 5)):
        curve = DimensionCurve(dimensions, values[:, None] * noise, {})
        axis = draw_curve(curve, curve).axes[0]
        assert len(axis.lines) == lines
        assert ("no change of slope" in axis.get_title(loc="left")) == (lines == 5)
