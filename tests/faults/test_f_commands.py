"""Faults 44 and 50 through commands and estimators: names that are code, and devices that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import boxloop
from boxloop.data import write_table
from cli.calls import call, clusters, done, table
from estimators import cases
from report.small import few_candidates

EVIL = "<script>alert(1)</script>"
DEVICES = (
    *(
        pytest.param(case.kind, {**case.params, "max_iter": 2}, case.rows(60), id=case.name)
        for case in cases.EVERYONE
    ),
    pytest.param(boxloop.VariationalAutoencoder, {"max_iter": 1}, cases.blobs(60), id="autoencoder"),
    pytest.param(boxloop.EnergyBasedModel, {"max_iter": 1}, cases.blobs(60), id="energy"),
)


def test_f44_a_column_named_script_in_a_report(tmp_path: Path) -> None:
    rows = clusters(120)
    data, page = tmp_path / "rows.csv", tmp_path / "page.html"
    write_table(data, {EVIL: rows[:, 0], "width": rows[:, 2]})
    with few_candidates():
        done("report", data, "-o", page, "--jobs", 1)
    text = page.read_text()
    assert EVIL not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.fixture
def _no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("_no_cuda")
@pytest.mark.parametrize(("kind", "params", "rows"), DEVICES)
def test_f50_cuda_absent(kind: type, params: dict[str, Any], rows: np.ndarray) -> None:
    estimator = kind(**params, device="cuda", random_state=0)
    with pytest.raises(ValueError, match="no CUDA device is available; use device='auto'"):
        estimator.fit(rows)
    assert "model_" not in vars(estimator)


@pytest.mark.usefixtures("_no_cuda")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::boxloop.FitWarning")
def test_f50_auto_falls_back_to_the_processor() -> None:
    rows = cases.factors(60)
    found, wanted = (boxloop.FactorAnalysis(1, device=device).fit(rows) for device in ("auto", "cpu"))
    assert (found.components_ == wanted.components_).all()


@pytest.mark.usefixtures("_no_cuda")
def test_f50_commands(tmp_path: Path) -> None:
    data = table(tmp_path / "rows.csv", clusters(60))
    fit = ["fit", data, "--model", "factor-analysis", "-k", 1, "-o", tmp_path / "m.boxloop", "-q"]
    ended = call(*fit, "--device", "cuda")
    assert ended.exit_code == 1
    assert ended.stderr.startswith("Error: device='cuda' was asked for, but no CUDA device is available")
    assert not (tmp_path / "m.boxloop").exists()
    done(*fit, "--device", "auto")
    assert (tmp_path / "m.boxloop").exists()
