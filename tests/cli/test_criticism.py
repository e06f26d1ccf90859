"""``criticise``, ``compare`` and ``select``: tables on screen, JSON, files and clear errors."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from boxloop import load, mega
from boxloop.cli import main
from boxloop.criticise import First
from boxloop.data import open_table
from boxloop.select import ModelSearchCV


def call(*words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("criticism")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(600, 3)) @ np.array([[1, 0.6, 0], [0, 1, 0], [0, 0, 1]])
    frame = pd.DataFrame(rows, columns=["age", "height", "shoe"])
    frame[:300].to_csv(place / "train.csv", index=False)
    frame[300:].to_csv(place / "test.csv", index=False)
    for name, kind in (("full", "full"), ("diag", "diag")):
        call(
            "fit",
            place / "train.csv",
            "--model",
            "gaussian-mixture",
            "--covariance",
            kind,
            "-o",
            place / f"{name}.boxloop",
            "-q",
        )
    return place


def test_criticise_names_what_is_missing(folder):
    words = (
        "criticise",
        folder / "diag.boxloop",
        folder / "test.csv",
        "--train",
        folder / "train.csv",
        "--draws",
        99,
    )
    said = call(*words)
    assert "second: age x height" in said
    assert "\n1 moment differs significantly" in said
    assert "p-value 0.01, the data contradict the model at the 5% level" in said
    found = json.loads(call(*words, "--json"))
    assert found["misfits"][0]["entry"] == "age x height"
    assert found["parameter_error"] == "included"


def test_criticise_finds_nothing_wrong_with_the_right_model(folder):
    said = call(
        "criticise",
        folder / "full.boxloop",
        folder / "test.csv",
        "--train",
        folder / "train.csv",
        "--draws",
        99,
    )
    assert "No moment differs significantly" in said


def test_criticise_without_the_training_rows_says_so(folder):
    said = call("criticise", folder / "full.boxloop", folder / "test.csv", "--draws", 0, "--test", "fourier")
    assert "error of the fitted parameters is left out" in said


def test_criticise_on_the_rows_of_the_fit(folder):
    said = call(
        "criticise",
        folder / "full.boxloop",
        folder / "train.csv",
        "--train",
        folder / "train.csv",
        "--draws",
        49,
    )
    assert "DATA are the training rows" in said


def test_criticise_writes_a_table_and_a_picture(folder):
    call(
        "criticise",
        folder / "diag.boxloop",
        folder / "test.csv",
        "--draws",
        19,
        "-o",
        folder / "gaps.csv",
        "--figure",
        folder / "gaps.png",
    )
    table = pd.read_csv(folder / "gaps.csv")
    assert {"function", "entry", "gap", "error", "z", "p_adjusted"} <= set(table.columns)
    assert (folder / "gaps.png").read_bytes()[:4] == b"\x89PNG"


def test_compare_marks_the_best_only_when_it_is(folder):
    said = call("compare", folder / "full.boxloop", folder / "diag.boxloop", folder / "test.csv")
    assert "full.boxloop is best" in said
    found = json.loads(
        call("compare", folder / "full.boxloop", folder / "diag.boxloop", folder / "test.csv", "--json")
    )
    assert found["best"].endswith("full.boxloop")
    call(
        "compare",
        folder / "full.boxloop",
        folder / "test.csv",
        "-o",
        folder / "table.csv",
        "--figure",
        folder / "c.png",
    )
    assert (folder / "c.png").read_bytes()[:4] == b"\x89PNG"
    assert len(pd.read_csv(folder / "table.csv")) == 1


def test_compare_refuses_models_of_different_columns(folder):
    call(
        "fit",
        folder / "train.csv",
        "--model",
        "gaussian-mixture",
        "--drop",
        "shoe",
        "-o",
        folder / "two.boxloop",
        "-q",
    )
    result = CliRunner().invoke(
        main, ["compare", str(folder / "full.boxloop"), str(folder / "two.boxloop"), str(folder / "test.csv")]
    )
    assert result.exit_code == 1
    assert "different columns" in result.output


def test_select_chooses_and_writes_the_model(folder):
    words = ("select", folder / "train.csv", "-k", "1,2", "--covariance", "full,diag", "--folds", 3)
    assert "Chosen: covariance_type = full, n_components = 1." in call(
        *words, "-o", folder / "chosen.boxloop"
    )
    assert "GaussianMixture" in call("show", folder / "chosen.boxloop")
    kept = ("--json", "--checkpoint", folder / "cells", "--figure", folder / "s.png")
    found = json.loads(call(*words, *kept))
    assert (folder / "s.png").read_bytes()[:4] == b"\x89PNG"
    assert found["chosen"] == {"covariance_type": "full", "n_components": 1}
    assert json.loads(call(*words, *kept)) == found


def test_ctrl_c_in_the_last_fit_of_select_writes_nothing(folder, monkeypatch):
    def interrupted(self, rows):
        found = fit(self, rows)
        found.best_estimator_.interrupted_ = True
        return found

    fit = ModelSearchCV.fit
    monkeypatch.setattr(ModelSearchCV, "fit", interrupted)
    words = ["select", folder / "train.csv", "-k", "1", "--folds", "2", "-o", folder / "half.boxloop"]
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 130
    assert not (folder / "half.boxloop").exists()


@pytest.mark.parametrize("numbers", ["", "0", "x", "3-1", "1-y"])
def test_select_refuses_what_is_no_list_of_numbers(folder, numbers):
    result = CliRunner().invoke(main, ["select", str(folder / "train.csv"), "-k", numbers])
    assert result.exit_code == 2


def test_a_weighted_fit_is_criticised_with_its_weights(folder, tmp_path):
    """As in Python; without the weights the rows of the fit are others, and refused."""
    weight = np.random.default_rng(1).uniform(0.5, 2.0, 300)
    for name in ("train", "test"):
        pd.read_csv(folder / f"{name}.csv").assign(w=weight).to_csv(tmp_path / f"{name}.csv", index=False)
    train, held, model = (tmp_path / name for name in ("train.csv", "test.csv", "m.boxloop"))
    call("fit", train, "--model", "gaussian-mixture", "-k", 1, "--weights", "w", "-o", model)
    words = ["criticise", model, held, "--train", train, "--draws", 19, "--test", "first"]
    found = json.loads(call(*words, "--weights", "w", "--json"))
    names = ["age", "height", "shoe"]
    rows, fitted = (open_table(place, "w", columns=names) for place in (held, train))
    expected = mega(load(model), rows, functions=[First()], train=fitted, draws=19)
    assert found["p_value"] == expected.p_value
    assert found["parameter_error"] == "included"
    refused = CliRunner().invoke(main, [str(word) for word in words])
    assert refused.exit_code == 1
    assert "with its weights" in refused.output
