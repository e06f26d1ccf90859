"""``boxloop relate``: finds what two views share, says how surely, and writes a file that other commands take."""

from __future__ import annotations

import gzip
import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.metrics import r2_score

from boxloop import RelevantFeatures, load
from boxloop.cli import (
    SelectedColumns,
    explained_share,
    hold_out_rows,
    label_accuracy,
    merge_concerns,
    read_columns,
)
from boxloop.data import ArraySource, load_dataset, write_table
from boxloop.estimators import RelevantClassifier
from boxloop.loop import Progress, run
from cli.calls import call, done

LINEAR = ["--features", "linear"]


def found(*words: object) -> dict:
    return json.loads(done("relate", *words, "--json").stdout)


def planted(n: int = 1000) -> dict[str, np.ndarray]:
    """One shared quantity: ``b`` is a plus noise of variance 1, all else is noise."""
    rng = np.random.default_rng(0)
    a, noise, other, last = rng.normal(size=(4, n))
    return {"a": a, "other": other, "b": a + noise, "last": last}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    write_table(tmp_path / "shared.csv", planted())
    return tmp_path / "shared.csv"


def test_what_was_planted_is_found(shared: Path) -> None:
    """Statistical: shares within 4 errors of one half, six columns and pairs judged; false alarm below 1e-3."""
    report = found(shared, "--y", "b,last", *LINEAR)
    first, second = report["variables"]
    assert (first["significant"], second["significant"]) == (True, False)
    assert abs(first["relevance"] - 0.5) < 4 * first["relevance_error"]
    assert (first["x"][0]["column"], first["y"][0]["column"]) == ("a", "b")
    assert abs(first["x"][0]["loading"]) > 0.98
    assert report["verdict"] == "1 of 2 pairs of variables is significant: -k 2 is enough"
    shares = {(line["view"], line["column"]): line for line in report["columns"]}
    for key in (("y", "b"), ("x", "a")):
        assert shares[key]["significant"]
        assert abs(shares[key]["share"] - 0.5) < 4 * shares[key]["error"]
    assert not shares["y", "last"]["significant"]
    assert not shares["x", "other"]["significant"]
    assert report["rows"] == {"fit": 800, "held_out": 200}


def test_nothing_is_found_where_nothing_is(shared: Path) -> None:
    report = found(shared, "--x", "a,other", "--y", "last", *LINEAR)
    assert report["verdict"].startswith("0 of 1 pairs of variables are significant: no dependence")
    assert not any(line["significant"] for line in report["columns"])


def test_numbers_are_those_of_the_library(tmp_path: Path) -> None:
    data = load_dataset("wine")
    at = [data.names.index(name) for name in ("alcohol", "proline")]
    y, x = data.rows[:, at], np.delete(data.rows, at, axis=1)
    sides = [SelectedColumns((), ArraySource(torch.from_numpy(rows))) for rows in (x, y)]
    mask = hold_out_rows(*sides, 0.2, 10**5, 3).numpy()
    fit = RelevantFeatures(2, x_features="linear", y_features="linear", random_state=3).fit(
        x[~mask], y[~mask]
    )
    judged = fit.significance(x[mask], y[mask], permutations=99)
    words = ["wine", "--y", "alcohol,proline", *LINEAR, "--seed", 3, "--permutations", 99]
    report = found(*words, "-o", tmp_path / "m")
    for name, value in (
        ("relevance", judged.relevance),
        ("relevance_error", judged.relevance_error),
        ("adjusted_p_value", judged.adjusted_p_value),
        ("fit_relevance", fit.relevance_),
    ):
        np.testing.assert_allclose([one[name] for one in report["variables"]], value, rtol=1e-9)
    share = {line["column"]: line["share"] for line in report["columns"] if line["view"] == "y"}
    expected = r2_score(y[mask], fit.predict(x[mask]), multioutput="raw_values")
    np.testing.assert_allclose([share["alcohol"], share["proline"]], expected, rtol=1e-9)
    back = fit.expect(given=y[mask], direction="x_given_y").mean
    expected = r2_score(x[mask], back, multioutput="raw_values")
    shares = [line["share"] for line in report["columns"] if line["view"] == "x"]
    np.testing.assert_allclose(shares, expected, rtol=1e-9)
    for one in report["variables"]:
        sizes = [abs(line["loading"]) for line in one["x"]]
        assert sizes == sorted(sizes, reverse=True)
        assert {line["loading"] > 0 for line in one["x"]} == {True, False}
    loading = fit.loadings(x[mask], y[mask])[1][:, 0]
    assert {a["column"]: a["loading"] for a in report["variables"][0]["y"]} == pytest.approx(
        dict(zip(("alcohol", "proline"), loading, strict=True))
    )
    np.testing.assert_allclose(load(tmp_path / "m").relevance_, fit.relevance_, rtol=1e-12)


def test_shares_have_honest_errors() -> None:
    """Statistical: 400 z-scores of a share of known size; their mean square leaves [0.75, 1.3] once in 10,000."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(500, 400))
    y = 0.7 * x + rng.normal(size=x.shape)
    share, error = explained_share(y, 0.7 * x)
    z = (share - 0.49 / 1.49) / error
    assert 0.75 < (z**2).mean() < 1.3
    x, y = x[:, :9], y[:, :9]
    drop = [explained_share(np.delete(y, i, 0), np.delete(0.7 * x, i, 0))[0] for i in range(len(y))]
    jackknife = np.sqrt((len(y) - 1) * np.var(drop, axis=0))
    np.testing.assert_allclose(error[:9], jackknife, rtol=0.02)
    assert np.isnan(explained_share(np.ones((5, 1)), np.zeros((5, 1)))[0]).all()


def test_chance_is_rarely_called_a_share() -> None:
    """Statistical: of 900 columns that are unrelated, at most the promised 5%; the t-test errs on the safe side."""
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(2, 200, 900))
    slope = (x[:150] * y[:150]).sum(0) / (x[:150] ** 2).sum(0)
    share, error = explained_share(y[150:], slope * x[150:])
    assert (stats.t.sf(share / error, 49) < 0.05).mean() < 0.05


def words_table(n: int = 300) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    kind = rng.integers(3, size=n)
    rows = rng.normal(size=(n, 2)) + 3.0 * np.eye(3)[kind][:, :2]
    return {"u": rows[:, 0], "v": rows[:, 1], "kind": np.array(["red", "green", "blue"])[kind]}


@pytest.mark.parametrize("form", ["t.csv", "t.csv.gz", "t.parquet", "parts"])
def test_a_text_column_is_a_view_of_labels(tmp_path: Path, form: str) -> None:
    made, place = words_table(), tmp_path / form
    if form == "parts":
        place.mkdir()
        for part in range(2):
            half = slice(150 * part, 150 * part + 150)
            write_table(place / f"{part}.csv", {name: column[half] for name, column in made.items()})
    else:
        write_table(place, made)
    report = found(place, "--y", "kind", *LINEAR, "-o", tmp_path / "m.boxloop")
    assert report["y"] == {"columns": ["kind"], "labels": ["blue", "green", "red"], "features": "finite"}
    assert len(report["variables"]) == 2
    assert report["labels"][0]["accuracy"] > 0.8
    fit = load(tmp_path / "m.boxloop")
    assert fit.y_schema_.names == ("kind",)
    done("score", tmp_path / "m.boxloop", place, "-o", tmp_path / "s.csv")
    scored = pd.read_csv(tmp_path / "s.csv")
    rows = pd.DataFrame({"u": made["u"], "v": made["v"]})
    np.testing.assert_allclose(scored[["variable_1", "variable_2"]], fit.transform(rows), rtol=1e-9)
    loadings = json.loads(done("show", tmp_path / "m.boxloop", "--json").stdout)["loadings"]["y"]
    mask = hold_out_rows(*(SelectedColumns((), None, made["kind"]) for _ in "xy"), 0.2, 10**5, 0).numpy()
    loading = fit.loadings(rows[~mask], made["kind"][~mask])[1]
    np.testing.assert_allclose([loadings[name] for name in ("blue", "green", "red")], loading, rtol=1e-9)
    weight = scored[["weight_blue", "weight_green", "weight_red"]]
    np.testing.assert_allclose(weight, fit.predict(rows), rtol=1e-9)


def test_labels_can_come_first_and_be_numbers(tmp_path: Path) -> None:
    made = words_table()
    code = np.unique(made["kind"], return_inverse=True)[1]
    write_table(tmp_path / "t.csv", {**made, "code": code})
    by_words = found(tmp_path / "t.csv", "--x", "kind", "--y", "u,v", *LINEAR, "-o", tmp_path / "m")
    by_codes = found(
        tmp_path / "t.csv", "--x", "code", "--y", "u,v", "--x-features", "finite", "--y-features", "linear"
    )
    assert by_codes["x"]["labels"] == [0, 1, 2]
    assert [one["relevance"] for one in by_words["variables"]] == pytest.approx(
        [one["relevance"] for one in by_codes["variables"]]
    )
    done("score", tmp_path / "m", tmp_path / "t.csv", "-o", tmp_path / "s.csv")
    assert pd.read_csv(tmp_path / "s.csv").groupby(made["kind"])["inferred_u"].nunique().eq(1).all()


def test_a_label_of_one_row_stays_in_the_fit() -> None:
    labels = np.array(["a"] * 50 + ["b"] * 49 + ["c"], dtype=object)
    side = SelectedColumns(("kind",), None, labels)
    for seed in range(20):
        mask = hold_out_rows(side, side, 0.2, 100, seed)
        assert not mask[-1]
        assert 19 <= int(mask.sum()) <= 20


def test_two_tables_are_one_that_is_split(tmp_path: Path, shared: Path) -> None:
    made = planted()
    write_table(tmp_path / "left.parquet", {"a": made["a"], "other": made["other"]})
    write_table(tmp_path / "right.csv", {"b": made["b"], "last": made["last"]})
    one = found(shared, "--y", "b,last", *LINEAR)
    two = found(tmp_path / "left.parquet", tmp_path / "right.csv", *LINEAR)
    assert one["variables"] == two["variables"]
    assert one["columns"] == two["columns"]


def test_rows_that_stay_in_their_file_give_the_same(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [shared, "--y", "b,last", *LINEAR]
    held = found(*words)
    monkeypatch.setattr("boxloop.data.read.MEMORY", 0)
    read = found(*words)
    for one, other in zip(held["columns"], read["columns"], strict=True):
        assert one["share"] == pytest.approx(other["share"], rel=1e-9)
    assert held["verdict"] == read["verdict"]


@pytest.mark.filterwarnings("default")
def test_networks_learn_what_lines_miss(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2000, 2))
    y = x[:, 0] ** 2 + 0.3 * rng.normal(size=2000)
    write_table(tmp_path / "t.csv", {"a": x[:, 0], "b": x[:, 1], "y": y})
    assert not found(tmp_path / "t.csv", "--y", "y", *LINEAR)["columns"][0]["significant"]
    words = [
        "relate",
        tmp_path / "t.csv",
        "--y",
        "y",
        "-k",
        1,
        "--max-iter",
        30,
        "--checkpoint",
        tmp_path / "c",
    ]
    report = json.loads(done(*words, "--json", "-o", tmp_path / "m").stdout)
    assert report["columns"][0]["share"] > 0.5
    assert report["x"]["features"] == report["y"]["features"] == "network"
    again = done(*words, "--json")
    assert "Continuing from" in again.stderr
    assert json.loads(again.stdout)["variables"] == report["variables"]
    kept = load(tmp_path / "m")
    assert (kept.verbose, kept.checkpoint) == (0, None)


def test_one_direction_alone(shared: Path) -> None:
    report = found(shared, "--y", "b,last", *LINEAR, "--direction", "x_given_y")
    assert {line["view"] for line in report["columns"]} == {"x"}
    assert list(report["diagnosis"]) == ["x_given_y"]
    assert "Share of y" not in done("relate", shared, "--y", "b", *LINEAR, "--direction", "x_given_y").stdout


@pytest.mark.parametrize("width", [80, 100, 120])
def test_tables_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = done("relate", "wine", "--y", "alcohol,proline", *LINEAR).stdout
    tables = shown.partition("Relevance:")[0].splitlines()[3:]
    assert max(map(len, tables)) <= width
    assert "…" not in shown
    for word in ("od280/od315_of_diluted_wines", "0.0020", "held out", "Concerns:"):
        assert word in shown


def test_the_figure_and_the_file(tmp_path: Path, shared: Path) -> None:
    shown = done(
        "relate", shared, "--y", "b", *LINEAR, "--figure", tmp_path / "f.png", "-o", tmp_path / "m"
    ).stdout
    assert (tmp_path / "f.png").read_bytes()[:4] == b"\x89PNG"
    assert f"Written: {tmp_path / 'm'}" in " ".join(shown.split("\n"))
    held = json.loads(done("show", tmp_path / "m", "--json").stdout)
    assert (held["estimator"], held["columns"]) == ("RelevantFeatures", ["a", "other", "last", "b"])
    fit = load(tmp_path / "m")
    made = planted()
    x, y = pd.DataFrame({n: made[n] for n in ("a", "other", "last")}), made["b"]
    mask = hold_out_rows(
        *(SelectedColumns((), ArraySource(torch.zeros(1000, 1))) for _ in "xy"), 0.2, 10**5, 0
    ).numpy()
    expected = fit.loadings(x[~mask], y[~mask])
    for side, names, loading in zip("xy", (["a", "other", "last"], ["b"]), expected, strict=True):
        np.testing.assert_allclose([held["loadings"][side][n] for n in names], loading, rtol=1e-6, atol=1e-9)
    assert "x: other" in done("show", tmp_path / "m").stdout


def test_a_classifier_is_shown_and_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = load_dataset("iris")
    labels = np.asarray(data.classes)[data.target.astype(int)]
    model = RelevantClassifier(features="linear", random_state=0).fit(
        pd.DataFrame(data.rows, columns=data.names), labels
    )
    monkeypatch.setattr("boxloop.cli.models.load", lambda path: model)
    done("score", "m", "iris", "-o", tmp_path / "s.csv")
    scored = pd.read_csv(tmp_path / "s.csv")
    assert (scored["class"] == model.predict(pd.DataFrame(data.rows, columns=data.names))).all()
    assert "virginica" in done("show", "m").stdout


def test_commands_that_need_a_density_say_so(tmp_path: Path) -> None:
    done("relate", "iris", "--y", "target", *LINEAR, "-o", tmp_path / "m", "-q")
    for words in (
        ["sample", tmp_path / "m", "-n", 2],
        ["criticise", tmp_path / "m", "iris"],
        ["compare", tmp_path / "m", "iris"],
        ["outliers", "iris", "--model", tmp_path / "m"],
    ):
        result = call(*words)
        assert result.exit_code == 1
        assert "two views, which have no density" in result.stderr
        assert result.stderr.count("\n") == 1


REFUSED = {
    "no y": (
        ["t.csv"],
        2,
        "second view are missing. Name them with --y A,B, or give a second table",
    ),
    "both": (["t.csv", "--x", "u", "--y", "u"], 2, "--x and --y both name 'u'"),
    "unknown": (["t.csv", "--y", "knd"], 1, "no column 'knd' (did you mean 'kind'?)"),
    "nothing left": (["t.csv", "--y", "u,v,kind,id,gappy,same"], 1, "column 'kind' holds no numbers"),
    "text among numbers": (["t.csv", "--y", "u"], 1, "name it alone with --x, or leave it out with --drop"),
    "names": (["t.csv", "--y", "id", "--x", "u"], 1, "300 different texts in 300 rows, too many for labels"),
    "one label": (["t.csv", "--y", "same", "--x", "u"], 1, "the same label in every row"),
    "gappy": (["t.csv", "--y", "gappy", "--x", "u"], 1, "missing value (NaN) in column 'gappy'"),
    "no word": (["t.csv", "--y", "gap", "--x", "u"], 1, "column 'gap' is empty in row 4 (counted from 0)"),
    "rows": (["t.csv", "iris", "--x", "u"], 1, "t.csv has 300 rows and iris has 150"),
    "few": (["few.csv", "--y", "a"], 1, "few.csv: 5 rows are too few to fit and to test: 20 are needed"),
    "linear labels": (["t.csv", "--y", "kind", "--x", "u", "--y-features", "linear"], 2, "holds labels"),
    "finite pair": (
        ["t.csv", "--x", "u,v", "--y", "kind", "--x-features", "finite"],
        2,
        "labels are one column",
    ),
    "passes": (
        ["t.csv", "--x", "u", "--y", "v", "--features", "linear", "--max-iter", 3],
        2,
        "are for networks",
    ),
    "too many": (
        ["t.csv", "--x", "u", "--y", "kind", "-k", 3],
        2,
        "-k 3: these features have at most 2 pairs",
    ),
    "orders": (["t.csv", "--x", "u", "--y", "v", "--permutations", 9], 2, "--permutations 9 cannot reach"),
    "torn": (["torn.csv", "--y", "b", "--x", "a"], 1, "row 4 (the header is row 1): Expected 2 columns"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.chdir(tmp_path)
    gap = np.array(["yes", "no"] * 150)
    gap[4] = ""
    gappy = np.where(np.arange(300) == 7, np.nan, 1.0)
    more = {"id": np.array([f"n{j}" for j in range(300)]), "gappy": gappy, "same": np.array(["s"] * 300)}
    write_table("t.csv", {**words_table(), **more, "gap": gap})
    write_table("few.csv", {"a": np.arange(5.0), "b": np.arange(5.0) ** 2})
    Path("torn.csv").write_text("a,b\n1,x\n2,y\n3\n")
    words, code, said = REFUSED[fault]
    result = call("relate", *words, "-o", "m", "--json")
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert said in result.stderr.splitlines()[-1]
    assert not Path("m").exists()


@pytest.mark.filterwarnings("default")
def test_ctrl_c_in_training_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(progress: Progress) -> None:
        if not progress.stopped:
            signal.raise_signal(signal.SIGINT)

    def stopped(*args: object, observers: list, **options: object) -> object:
        return run(*args, observers=[*observers, interrupt], **options)

    monkeypatch.setattr("boxloop.estimators._training.run", stopped)
    result = call("relate", "iris", "--y", "target", "-o", tmp_path / "m")
    assert (result.exit_code, result.stdout) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_small_parts(tmp_path: Path) -> None:
    assert merge_concerns({"y": ("rough",), "x": ("rough",)}) == ["rough"]
    assert merge_concerns({"y": ("rough",)}) == ["y inferred from x: rough"]
    truth, guess = np.eye(2)[[0, 0, 1, 1]], np.array([[1, 0], [0, 1], [0, 1], [-0.1, 1.1]])
    assert label_accuracy(truth, guess)["accuracy"] == 0.75
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"a\nx\ny\nx\ny\n"))
    assert read_columns(str(tmp_path / "t.csv.gz"), ["a"], (), "--y").labels.tolist() == ["x", "y", "x", "y"]
