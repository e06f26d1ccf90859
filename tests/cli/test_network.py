"""``boxloop network``: predicts a column with error bars, beside simple methods, and writes a file that others take."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, root_mean_squared_error

from boxloop import load
from boxloop.cli import read_supervised_table
from boxloop.data import load_dataset, write_table
from boxloop.estimators import NetworkClassifier, NetworkRegressor
from boxloop.progress import ProgressBar
from cli.calls import call, done

SHORT = ["--hidden", "5", "--epochs", "10", "--collect", "10", "--chains", "0"]


def found(*words: object) -> dict:
    return json.loads(done("network", *words, "--json").stdout)


def named(report: dict) -> dict[str, dict]:
    return {line["name"]: line for line in report["predictors"]}


def bent(n: int = 400) -> dict[str, np.ndarray]:
    """A parabola that no straight line follows, a column of chance, labels of two kinds, and text."""
    rng = np.random.default_rng(0)
    a, b, noise = rng.normal(size=(3, n))
    y = a**2 + 0.3 * noise
    return {
        "a": a,
        "b": b,
        "y": y,
        "flag": (a > 0).astype(float),
        "stars": np.clip(np.round(y), 0, 4),
        "name": np.array([f"row {i}" for i in range(n)]),
        "kind": np.array(["low", "high"])[(y > 1).astype(int)],
    }


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_table(tmp_path / "t.csv", bent())
    return tmp_path / "t.csv"


def test_a_bend_is_followed_and_a_line_is_left_to_the_line(table: Path, tmp_path: Path) -> None:
    """Statistical: leads are 10 errors and more, where 4 would be chance in 1e-4 of the cases."""
    words = ["--columns", "a,b", "--chains", 0, "--epochs", 60, "--collect", 40, "--hidden", 20]
    report = found(table, "--target", "y", *words)
    lines = named(report)
    assert list(lines) == ["network", "mean network alone", "linear regression", "mean"]
    assert lines["linear regression"]["lead"] > 4 * lines["linear regression"]["lead_error"]
    assert lines["network"]["rmse"] < 0.5 < 1.0 < lines["linear regression"]["rmse"]
    verdict = {concern["what"]: concern for concern in report["concerns"]}
    assert verdict["Against simple methods"]["level"] == "good"
    rng = np.random.default_rng(1)
    a = rng.normal(size=300)
    write_table(tmp_path / "line.csv", {"a": a, "y": 2 * a + 0.5 * rng.normal(size=300)})
    verdict = {
        concern["what"]: concern
        for concern in found(tmp_path / "line.csv", "--target", "y", *SHORT)["concerns"]
    }
    assert verdict["Against simple methods"]["level"] in ("doubtful", "bad")
    assert "linear regression" in verdict["Against simple methods"]["why"]


def test_numbers_of_a_regression_are_those_of_the_library() -> None:
    report = found("diabetes", "--target", "target", *SHORT, "--seed", 3)
    data = read_supervised_table("diabetes", "target", None, (), "auto", 0.2, 3)
    source = load_dataset("diabetes")
    np.testing.assert_array_equal(data.X, source.rows)
    np.testing.assert_array_equal(data.y, source.target)
    (X, y), (new, truth) = data.fit_data, data.held_out_data
    fit = NetworkRegressor((5,), epochs=10, collect=10, random_state=3).fit(X, y)
    mean, deviation = fit.predict(new, return_std=True)
    lines = named(report)
    assert lines["network"]["rmse"] == pytest.approx(root_mean_squared_error(truth, mean), rel=1e-9)
    distribution = fit.predict_distribution(new)
    assert lines["network"]["log_score"] == pytest.approx(distribution.log_prob(truth).mean(), rel=1e-9)
    low, high = distribution.interval(0.9)
    assert lines["network"]["coverage"] == pytest.approx(((low < truth) & (truth < high)).mean())
    plain = stats.norm(y.mean(), np.std(y, ddof=1) * (1 + 1 / len(y)) ** 0.5)
    assert lines["mean"]["log_score"] == pytest.approx(plain.logpdf(truth).mean(), rel=1e-9)
    lead = distribution.log_prob(truth) - plain.logpdf(truth)
    assert lines["mean"]["lead"] == pytest.approx(lead.mean(), rel=1e-9)
    assert lines["mean"]["lead_error"] == pytest.approx(stats.sem(lead), rel=1e-9)
    worst = report["worst_rows"][0]
    place = int(np.argmin(distribution.log_prob(truth)))
    assert worst["row"] == np.flatnonzero(data.held_out)[place]
    assert (worst["observed"], worst["predicted"]) == pytest.approx((truth[place], mean[place]))
    assert worst["std"] == pytest.approx(deviation[place])
    assert report["rows"] == {"fit": len(y), "held_out": len(truth)}
    assert {concern["what"]: concern["level"] for concern in report["concerns"]}["Weight decay"] in (
        "good",
        "doubtful",
    )


def test_numbers_of_a_classification_are_those_of_scikit_learn() -> None:
    report = found("wine", "--target", "target", *SHORT)
    lines = named(report)
    data = read_supervised_table("wine", "target", None, (), "auto", 0.2, 0)
    (X, y), (new, truth) = data.fit_data, data.held_out_data
    centre, scale = X.mean(), X.std(ddof=0)
    plain = LogisticRegression(max_iter=5000).fit((X - centre) / scale, y)
    share = plain.predict_proba((new - centre) / scale)
    assert lines["logistic regression"]["log_score"] == pytest.approx(-log_loss(truth, share), rel=1e-6)
    assert lines["logistic regression"]["accuracy"] == (plain.classes_[share.argmax(1)] == truth).mean()
    fit = NetworkClassifier((5,), epochs=10, collect=10, random_state=0).fit(X, y)
    assert lines["network"]["log_score"] == pytest.approx(-log_loss(truth, fit.predict_proba(new)), rel=1e-9)
    shares = pd.Series(y).value_counts(normalize=True)
    assert lines["shares of classes"]["log_score"] == pytest.approx(np.log(shares[truth]).mean(), rel=1e-9)
    counts = pd.Series(truth).value_counts()
    assert (counts == [int(0.2 * n) for n in pd.Series(np.concatenate([y, truth])).value_counts()]).all()


@pytest.mark.parametrize(
    ("target", "words", "kind", "why"),
    [
        ("y", [], "regression", "numbers"),
        ("kind", [], "classification", "2 classes, as it holds labels"),
        (
            "flag",
            [],
            "classification",
            "2 classes, as it has two values; --kind regression treats it as numbers",
        ),
        ("flag", ["--kind", "regression"], "regression", "numbers, by --kind"),
        ("stars", [], "regression", "numbers; --kind classification treats its 5 values as classes"),
        ("stars", ["--kind", "classification"], "classification", "5 classes, by --kind"),
    ],
)
def test_the_kind_of_the_target_is_reported(
    table: Path, target: str, words: list[str], kind: str, why: str
) -> None:
    report = found(table, "--target", target, "--columns", "a,b", *SHORT, *words)
    assert (report["kind"], report["kind_reason"]) == (kind, why)


def test_text_is_left_out_and_that_is_said(table: Path) -> None:
    report = found(table, "--target", "y", "--drop", "stars", *SHORT)
    assert report["columns"] == ["a", "b", "flag"]
    assert list(report["left_out"]) == ["name", "kind"]
    shown = done("network", table, "--target", "y", *SHORT).stdout
    assert "Not used, as they hold no numbers: name, kind" in shown


def test_what_it_refuses(table: Path, tmp_path: Path) -> None:
    def failed(code: int, *words: object) -> str:
        result = call("network", *words)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result.stderr

    assert "'kind' holds labels" in failed(2, table, "--target", "kind", "--kind", "regression")
    assert "must not name the target" in failed(2, table, "--target", "y", "--columns", "a,y")
    assert "column 'name' holds no numbers" in failed(1, table, "--target", "y", "--columns", "a,name")
    assert "400 different texts" in failed(1, table, "--target", "name")
    assert "did you mean" in failed(1, table, "--target", "star")
    assert "must end in .html" in failed(2, table, "--target", "y", "--page", tmp_path / "page.pdf")
    assert "does not exist" in failed(2, table, "--target", "y", "--page", tmp_path / "no" / "page.html")
    twice = ["-o", tmp_path / "one.html", "--page", tmp_path / "one.html"]
    assert "given twice" in failed(2, table, "--target", "y", *twice)
    assert "fewer than 8 held-out rows" in failed(1, table, "--target", "y", "--held-out", 0.01)
    gappy = bent(60)
    gappy["b"][7] = np.nan
    write_table(tmp_path / "missing.csv", gappy)
    said = failed(1, tmp_path / "missing.csv", "--target", "y")
    assert "column 'b' has an empty cell in row 7" in said
    gappy = bent(60)
    gappy["y"][9] = np.nan
    write_table(tmp_path / "missing.csv", gappy)
    assert "column 'y' has an empty cell in row 9" in failed(1, tmp_path / "missing.csv", "--target", "y")
    write_table(tmp_path / "few.csv", bent(30))
    assert "at least 40 rows are needed, got 30" in failed(1, tmp_path / "few.csv", "--target", "y")
    write_table(tmp_path / "same.csv", {**bent(60), "kind": np.full(60, "one")})
    assert "one class" in failed(1, tmp_path / "same.csv", "--target", "kind")
    write_table(tmp_path / "text.csv", {"y": np.arange(60.0), "kind": bent(60)["kind"]})
    assert "no column of numbers is left" in failed(1, tmp_path / "text.csv", "--target", "y")


def test_show_and_score_take_the_file(table: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.boxloop"
    done("network", table, "--target", "y", "--columns", "a,b", *SHORT, "-o", model, "-q")
    fit = load(model)
    assert fit.verbose == 0
    shown = json.loads(done("show", model, "--json").stdout)
    assert (shown["columns"], shown["weights"], shown["classes"]) == (["a", "b"], 21, None)
    assert "weight decay" in done("show", model).stdout
    done("score", model, table, "-o", tmp_path / "s.csv")
    rows = pd.read_csv(table)[["a", "b"]]
    scored = pd.read_csv(tmp_path / "s.csv")
    mean, deviation = fit.predict(rows, return_std=True)
    np.testing.assert_allclose(scored["predicted"], mean, rtol=1e-12)
    np.testing.assert_allclose(scored["std"], deviation, rtol=1e-12)
    assert (scored["epistemic_std"] < scored["std"]).all()
    report = json.loads(done("score", model, table, "--json").stdout)
    first = report["summary"][0]
    assert (first["what"], report["rows"]) == ("predicted", 400)
    assert (first["mean"], first["lowest"]) == pytest.approx((mean.mean(), mean.min()))
    for words in (
        ["sample", model, "-n", 2],
        ["criticise", model, table],
        ["outliers", table, "--model", model],
    ):
        assert "which predicts a column" in call(*words).stderr


def test_the_file_of_a_classifier(tmp_path: Path) -> None:
    model = tmp_path / "m.boxloop"
    done("network", "iris", "--target", "target", *SHORT, "--members", 2, "-o", model, "-q")
    done("score", model, "iris", "-o", tmp_path / "s.parquet")
    scored = pd.read_parquet(tmp_path / "s.parquet")
    share = load(model).predict_proba(
        pd.DataFrame(load_dataset("iris").rows, columns=load_dataset("iris").names)
    )
    np.testing.assert_allclose(scored.filter(regex="probability_"), share, rtol=1e-12)
    assert (scored["class"] == np.array(["setosa", "versicolor", "virginica"])[share.argmax(1)]).all()
    shown = done("show", model).stdout
    assert "setosa, versicolor, virginica" in shown
    assert "temperature" in shown


@pytest.mark.filterwarnings("ignore:interrupted")
def test_ctrl_c_leaves_nothing(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ProgressBar, "stage", lambda *_, **more: stop)
    words = ["network", table, "--target", "y", *SHORT, "--progress", "-o", tmp_path / "m.boxloop"]
    result = call(*words)
    assert result.exit_code == 130
    assert not (tmp_path / "m.boxloop").exists()
