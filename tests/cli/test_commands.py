"""fit, score, sample, show: one after the other, on every kind of file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from boxloop import GaussianMixture, fit, load
from boxloop.cli import MODELS, STARTS
from boxloop.data import open_source, open_table, write_table
from cli.calls import NAMES, call, clusters, counts, done, table

COUNTED = {"multinomial-mixture", "poisson-mixture", "bernoulli-mixture", "bayesian-multinomial-mixture"}
QUICK = {"bernoulli-mixture": ["--binarize", 8], "autoencoder": ["--hidden", "8", "--learning-rate", "0.02"]}
"""Options that make a fit quick where it is not."""


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("model", MODELS)
def test_round_trip(tmp_path: Path, model: str, suffix: str) -> None:
    rows = counts() if model in COUNTED else clusters()
    if model == "autoencoder":  # it takes whole rows
        rows = np.nan_to_num(rows)
    data, out = table(tmp_path / f"rows{suffix}", rows), tmp_path / "model.boxloop"
    options = ["--model", model, "-k", 2, *QUICK.get(model, [])]
    fitted = json.loads(done("fit", data, *options, "-o", out, "--json").stdout)
    assert fitted["data"] == {"rows": 200, "columns": list(NAMES)}
    assert fitted["converged"]
    scored = json.loads(done("score", out, data, "-o", tmp_path / f"s{suffix}", "--json").stdout)
    assert scored["rows"] == 200
    assert scored["log_likelihood"] == pytest.approx(fitted["log_likelihood"], rel=1e-12)
    scores = open_source(tmp_path / f"s{suffix}")
    kind = ["log_density", "component", "probability"]
    if "mixture" not in model:
        word = "code" if model == "autoencoder" else "factor"
        kind = ["log_density", f"{word}_0", f"{word}_0_sd", f"{word}_1", f"{word}_1_sd"]
    assert scores.names == tuple(kind)
    estimator = load(out)
    np.testing.assert_array_equal(scores.rows[:, 0].numpy(), estimator.score_samples(open_table(data)))
    done("sample", out, "-n", 50, "-o", tmp_path / f"d{suffix}", "--seed", 3)
    drawn = open_source(tmp_path / f"d{suffix}")
    assert (drawn.n_rows, drawn.names) == (50, NAMES)
    np.testing.assert_array_equal(np.asarray(drawn.rows), estimator.set_params(random_state=3).sample(50)[0])
    shown = json.loads(done("show", out, "--json").stdout)
    assert shown["estimator"] == MODELS[model] == type(estimator).__name__
    assert shown["columns"] == list(NAMES)
    assert shown["iterations"] == fitted["iterations"]


@pytest.mark.parametrize("model", MODELS)
def test_what_people_read(tmp_path: Path, model: str) -> None:
    data, out = table(tmp_path / "rows.csv", counts()), tmp_path / "model.boxloop"
    text = done("fit", data, "--model", model, "-k", 2, *QUICK.get(model, []), "-o", out).stdout
    for word in (
        *NAMES,
        "log predictive density per row" if model.startswith("bayesian") else "log-likelihood per row",
        "±",
        "AIC",
        "BIC",
        "iterations",
        "converged",
        "time",
        MODELS[model],
    ):
        assert word in text
    text = done("show", out).stdout
    options = "hidden=(8,)" if model == "autoencoder" else "n_components=2"
    assert all(word in text for word in (*NAMES, MODELS[model], options, "converged"))
    text = done("score", out, data).stdout
    assert all(word in text for word in ("rows", "±", "least likely", "row "))


def test_a_row_of_the_summary_agrees_with_scikit_learns_definitions(tmp_path: Path) -> None:
    found = json.loads(
        done("fit", "iris", "--model", "gaussian-mixture", "-k", 3, "-o", tmp_path / "m", "--json").stdout
    )
    estimator, source = load(tmp_path / "m"), open_table("iris")
    density = estimator.score_samples(source)
    assert found["aic"] == pytest.approx(estimator.aic(source))
    assert found["bic"] == pytest.approx(estimator.bic(source))
    assert found["log_likelihood"] == pytest.approx(density.mean())
    assert found["standard_error"] == pytest.approx(density.std(ddof=1) / np.sqrt(150))
    assert [part["weight"] for part in found["components"]] == pytest.approx(estimator.weights_.tolist())
    low = json.loads(done("score", tmp_path / "m", "iris", "--json").stdout)["least_likely"]
    assert [one["row"] for one in low] == np.argsort(density)[:5].tolist()


def test_whole_numbers_as_weights_are_repeated_rows(tmp_path: Path) -> None:
    rows, weight = clusters(60), np.arange(60) % 3
    columns = dict(zip(NAMES, rows.T, strict=True))
    write_table(tmp_path / "weighted.csv", {**columns, "w": weight, "kind": np.array(["a", "b"] * 30)})
    table(tmp_path / "repeated.csv", np.repeat(rows, weight, axis=0))
    options = ["--model", "gaussian-mixture", "-k", 2, "--init", "kmeans", "--tol", "1e-10", "--json"]
    chosen = ["--weights", "w", "--drop", "kind"]
    a = json.loads(done("fit", tmp_path / "weighted.csv", *options, *chosen, "-o", tmp_path / "a").stdout)
    b = json.loads(done("fit", tmp_path / "repeated.csv", *options, "-o", tmp_path / "b").stdout)
    assert a["data"]["columns"] == list(NAMES)
    for name in ("log_likelihood", "standard_error", "aic", "bic"):
        assert a[name] == pytest.approx(b[name], rel=1e-6)


def test_options_reach_the_estimator(tmp_path: Path) -> None:
    options = ["--covariance", "diag", "--tol", "0.01", "--max-iter", 7, "--n-init", 2, "--init", "random"]
    more = ["--seed", 5, "--dtype", "float32", "--device", "cpu", "--method", "online", "--batch-size", 20]
    done("fit", "iris", "--model", "gaussian-mixture", "-k", 2, *options, *more, "-o", tmp_path / "m")
    expected = GaussianMixture(
        2,
        covariance_type="diag",
        tol=0.01,
        max_iter=7,
        n_init=2,
        init_params="random",
        random_state=5,
        dtype="float32",
        device="cpu",
        method="online",
        batch_size=20,
    )
    assert load(tmp_path / "m").get_params() == expected.get_params()


def test_the_starts_on_offer_are_those_there_are() -> None:
    assert set(STARTS) == {"auto", *fit.STARTS}


def test_columns_are_found_by_name_when_scoring(tmp_path: Path) -> None:
    rows = clusters()
    columns = dict(zip(NAMES, rows.T, strict=True))
    write_table(tmp_path / "plain.csv", columns)
    write_table(tmp_path / "other.csv", {"kind": np.array(["x"] * 200), **dict(reversed(columns.items()))})
    done("fit", tmp_path / "plain.csv", "--model", "factor-analysis", "-k", 1, "-o", tmp_path / "m")
    a, b = (
        json.loads(done("score", tmp_path / "m", tmp_path / name, "--json").stdout)
        for name in ("plain.csv", "other.csv")
    )
    assert a["log_likelihood"] == b["log_likelihood"]
    missing = call("score", tmp_path / "m", "iris")
    assert missing.exit_code == 1
    assert missing.stderr.startswith("Error: iris: there is no column 'height'")


def test_columns_option_and_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", clusters())
    done("fit", tmp_path / "x.npy", "--model", "gaussian-mixture", "--columns", "x2,x0", "-o", tmp_path / "m")
    assert list(load(tmp_path / "m").feature_names_in_) == ["x2", "x0"]
    assert done("score", tmp_path / "m", tmp_path / "x.npy").exit_code == 0


def test_samples_go_to_standard_output(tmp_path: Path) -> None:
    table(tmp_path / "rows.csv", counts())
    done("fit", tmp_path / "rows.csv", "--model", "poisson-mixture", "-k", 2, "-o", tmp_path / "m")
    lines = done("sample", tmp_path / "m", "-n", 4).stdout.splitlines()
    assert lines[0] == ",".join(NAMES)
    assert len(lines) == 5
    assert all(cell.isdigit() for line in lines[1:] for cell in line.split(","))
    assert done("sample", tmp_path / "m", "-n", 4).stdout.splitlines() == lines


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    result = done("fit", "iris", "--model", "gaussian-mixture", "--quiet", "-o", tmp_path / "m")
    assert result.output == ""


def test_many_columns_and_components_are_abbreviated(tmp_path: Path) -> None:
    text = done(
        "fit",
        "digits",
        "--model",
        "poisson-mixture",
        "-k",
        9,
        "--max-iter",
        5,
        "--tol",
        1,
        "-o",
        tmp_path / "m",
    ).stdout
    assert "the 16 of 64 columns" in text
    assert "the first 7 of 9" in text
    assert len(text.splitlines()) < 50


@pytest.mark.filterwarnings("default")
def test_warnings_are_one_line_on_standard_error(tmp_path: Path) -> None:
    rows = np.column_stack([clusters()[:, :2], np.ones(200)])
    data = table(tmp_path / "rows.csv", rows)
    options = ["--max-iter", 1, "--tol", 0, "--json", "-o", tmp_path / "m"]
    result = done("fit", data, "--model", "gaussian-mixture", "-k", 3, *options)
    json.loads(result.stdout)
    warned = result.stderr.splitlines()
    assert all(line.startswith("Warning: ") for line in warned)
    assert any("constant column(s) 'depth'" in line for line in warned)
    assert any("EM reached max_iter=1" in line for line in warned)
