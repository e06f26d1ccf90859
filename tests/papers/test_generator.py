"""Section 5.4 of document 003 at a small size: its table is filled, its orderings hold."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from papers.experiment import Options, Report
from papers.generator import SMALL, experiment


@pytest.fixture(scope="module")
def report() -> Report:
    return experiment(Options(quick=True))


def test_error_falls_with_the_latent_dimension(report: Report) -> None:
    errors = np.asarray(report.curves["errors"])
    assert errors.shape == (len(SMALL.dimensions), SMALL.seeds)
    mean = np.log(errors).mean(1)
    assert mean[SMALL.dimensions.index(8)] < mean[0] - np.log(1.3)
    assert np.asarray(report.curves["errors of pixels"]).min() > 0.0


def test_change_of_slope_is_told_with_its_interval_or_denied(report: Report) -> None:
    knee = report.curves["change of slope"]
    assert knee["low"] <= knee["at"] <= knee["high"]
    told = report.findings[0].ours
    assert told.startswith("slope changes at" if knee["kind"] == "break" else "no change of slope")
    assert (report.findings[0].verdict == "not reproduced") == (knee["kind"] != "break")


def test_relevances_are_shares_and_the_report_is_written(report: Report, tmp_path: Path) -> None:
    relevance = np.asarray(report.curves["relevance"])
    assert len(relevance) == SMALL.learned
    assert ((relevance >= 0.0) & (relevance <= 1.0)).all()
    assert len(report.findings) == 5  # the dimension itself is asked of MNIST alone
    paths = report.write(tmp_path)
    assert json.loads(paths[0].read_text())["settings"]["variables kept"] == SMALL.kept
    assert {path.name for path in paths[2:]} == {"generator-curve.png", "generator-samples.png"}
