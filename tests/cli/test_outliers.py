"""``boxloop outliers``: finds what was planted, says why, and writes a line for each row."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from boxloop import GaussianMixture
from boxloop.data import load_dataset, open_table, write_table
from boxloop.fit import fit as fit_module
from boxloop.loop import Progress, run
from boxloop.select import OutlierDetector
from cli.calls import call, done


def found(*words: object) -> dict:
    return json.loads(done("outliers", *words, "--json").stdout)


def test_planted_rows_are_the_least_likely_and_the_right_column_is_blamed() -> None:
    data = load_dataset("planted_outliers")
    lowest = found("planted_outliers", "--top", 10)["outliers"]
    planted = set(np.flatnonzero(data.target))
    assert {one["row"] for one in lowest} == planted
    for one in lowest:
        first = one["columns"][0]
        row = data.rows[one["row"]]
        assert np.sign(first["value"]) == -np.sign(np.median(row))  # the planted value has the wrong sign
        assert row[data.names.index(first["column"])] == first["value"]


def test_numbers_are_those_of_the_library(tmp_path: Path) -> None:
    data = load_dataset("wine")
    rows = pd.DataFrame(data.rows, columns=data.names)
    learnt, doubt = rows[::2], rows[1::2].reset_index(drop=True)
    for name, part in (("learnt", learnt), ("doubt", doubt)):
        part.to_parquet(tmp_path / f"{name}.parquet")
    detector = OutlierDetector(GaussianMixture(random_state=4), level=0.1, random_state=4).fit(learnt)
    train = ["--train", tmp_path / "learnt.parquet"]
    report = found(tmp_path / "doubt.parquet", *train, "--level", 0.1, "--seed", 4, "--top", 99)
    assert report["flagged"] == (detector.predict(doubt) == -1).sum() > 0
    assert report["threshold"] == pytest.approx(detector.offset_, rel=1e-9)
    density, p_value, why = detector.score_samples(doubt), detector.p_values(doubt), detector.reasons(doubt)
    assert [one["row"] for one in report["outliers"]] == np.argsort(density, kind="stable").tolist()
    for one in report["outliers"]:
        row = one["row"]
        assert one["log_density"] == pytest.approx(density[row], rel=1e-9)
        assert one["p_value"] == p_value[row]
        assert one["flagged"] == (p_value[row] <= 0.1)
        for rank, part in enumerate(one["columns"], 1):
            assert (part["column"], part["value"]) == (why[f"column {rank}"][row], doubt[part["column"]][row])
            assert part["drop"] == pytest.approx(why[f"drop {rank}"][row], rel=1e-6)


@pytest.mark.filterwarnings("ignore:the noise variance")
def test_a_row_ties_with_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that calibrated the detector are scored again, in other tiles and to other last digits: p stays the same."""
    data = load_dataset("wine")
    write_table(tmp_path / "rows.csv", dict(zip("abcde", data.rows[:, :5].T, strict=True)))
    files = []
    for step in (7, 50, 178):
        monkeypatch.setattr("boxloop.data.stream.tile_rows", lambda d, step=step: step)
        monkeypatch.setattr("boxloop.data.source.tile_rows", lambda d, step=step: step)
        files.append(tmp_path / f"{step}.parquet")
        options = ["--model", "factor-analysis", "-k", 2, "-o", files[-1]]
        report = [
            found(tmp_path / "rows.csv", *rule, *options)["flagged"]
            for rule in (["--contamination", 0.1], [])
        ]
        judged = pd.read_parquet(files[-1])
        assert report == [18, judged["outlier"].sum()]
        assert ((judged["p_value"] <= 0.05) == (judged["outlier"] == 1)).all()
    first, *others = map(pd.read_parquet, files)
    for other in others:
        assert (other["p_value"] == first["p_value"]).all()


def test_rows_are_judged_tile_by_tile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is too large to be held is read in pieces: the same table, and no tile is all of it."""
    rows = np.random.default_rng(0).normal(size=(700, 3))
    rows[::100, 1] += 7.0
    write_table(tmp_path / "rows.csv", dict(zip("abc", rows.T, strict=True)))
    arguments = [tmp_path / "rows.csv", "--train", tmp_path / "rows.csv", "--top", 3, "-o"]
    whole = found(*arguments, tmp_path / "whole.csv")
    seen, own = [], OutlierDetector.score_samples

    def noted(self: OutlierDetector, X: Any) -> Any:
        seen.append(X.n_rows)
        return own(self, X)

    monkeypatch.setattr("boxloop.data.read.MEMORY", 0)
    monkeypatch.setattr("boxloop.data.stream.tile_rows", lambda d: 64)
    monkeypatch.setattr(OutlierDetector, "score_samples", noted)
    parts = found(*arguments, tmp_path / "parts.csv")
    assert sum(seen) == 2 * 700
    assert max(seen) <= 64
    assert (parts["rows"], parts["flagged"]) == (whole["rows"], whole["flagged"])
    one, two = (pd.read_csv(tmp_path / f"{name}.csv", keep_default_na=False) for name in ("whole", "parts"))
    assert list(one) == list(two)
    assert one["row"].tolist() == two["row"].tolist() == list(range(700))
    for name in one:
        if name.startswith(("row", "outlier", "column")):
            assert one[name].tolist() == two[name].tolist()
        else:
            a, b = (pd.to_numeric(table[name]).to_numpy() for table in (one, two))
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_columns_of_the_rows_in_doubt_are_found_by_name(tmp_path: Path) -> None:
    data = load_dataset("iris")
    columns = dict(zip("abcd", data.rows.T, strict=True))
    write_table(tmp_path / "learnt.csv", columns)
    write_table(tmp_path / "doubt.csv", {"kind": np.array(["x"] * 150), **dict(reversed(columns.items()))})
    one, two = (
        found(tmp_path / f"{name}.csv", "--train", tmp_path / "learnt.csv") for name in ("learnt", "doubt")
    )
    assert one["outliers"] == two["outliers"]
    missing = call("outliers", "iris", "--train", tmp_path / "learnt.csv")
    assert missing.exit_code == 1
    assert "iris: there is no column 'a'" in missing.stderr


def test_contamination_flags_that_share() -> None:
    report = found("wine", "--contamination", 0.1)
    assert report["flagged"] == 18
    assert report["level"] is None
    assert report["outliers"][0]["p_value"] is None


def test_ordinary_rows_are_learnt_from(tmp_path: Path) -> None:
    data = load_dataset("planted_outliers")
    parts = {"ordinary.csv": data.rows[data.target == 0], "doubt.csv": data.rows[data.target == 1]}
    for name, rows in parts.items():
        write_table(tmp_path / name, dict(zip(data.names, rows.T, strict=True)))
    report = found(tmp_path / "doubt.csv", "--train", tmp_path / "ordinary.csv", "--level", 0.01)
    assert (report["rows"], report["flagged"]) == (10, 10)
    assert "DATA are also the training rows" not in done("outliers", "iris", "--train", "iris").stdout
    assert "DATA are also the training rows" in done("outliers", "iris").stdout


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("rule", [("--level", 0.05), ("--contamination", 0.05)])
def test_one_line_for_each_row(tmp_path: Path, suffix: str, rule: tuple[str, float]) -> None:
    path = tmp_path / f"judged{suffix}"
    report = found("iris", *rule, "-o", path, "--top", 3)
    table = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
    assert len(table) == 150
    assert ("p_value" in table) == (rule[0] == "--level")
    assert table["outlier"].sum() == report["flagged"]
    assert (table["drop_1"].notna() >= (table["outlier"] == 1)).all()
    first = report["outliers"][0]
    assert table["column_1"][first["row"]] == first["columns"][0]["column"]


def test_a_model_file_is_used_as_it_is(tmp_path: Path) -> None:
    model = GaussianMixture(2, random_state=0).fit(open_table("iris"))
    model.save(tmp_path / "m.boxloop")
    report = found("iris", "--model", tmp_path / "m.boxloop", "--top", 150)
    density = model.score_samples(open_table("iris"))
    for one in report["outliers"]:
        assert one["log_density"] == pytest.approx(density[one["row"]])
    for option in (
        ["-k", 2],
        ["--covariance", "diag"],
        ["--columns", "a"],
        ["--drop", "a"],
        ["--dtype", "float32"],
    ):
        refused = call("outliers", "iris", "--model", tmp_path / "m.boxloop", *option)
        assert refused.exit_code == 2
        assert "used as it is" in refused.stderr


@pytest.mark.filterwarnings("default")
def test_too_few_rows_for_the_level_is_said() -> None:
    result = done("outliers", "iris", "--level", 0.001)
    assert "Warning: 75 calibration rows give no p-value below" in result.stderr
    assert "0 of 150 rows are flagged" in result.stdout


def test_missing_values_are_no_reason(tmp_path: Path) -> None:
    rows = load_dataset("planted_outliers").rows.copy()
    rows[::7, 0] = np.nan
    write_table(tmp_path / "missing.csv", dict(zip("abcdef", rows.T, strict=True)))
    for one in found(tmp_path / "missing.csv", "--top", 60)["outliers"]:
        if one["row"] % 7 == 0:
            assert "a" not in [part["column"] for part in one["columns"]]


@pytest.mark.filterwarnings("default")
def test_ctrl_c_in_the_fit_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(progress: Progress) -> None:
        if not progress.stopped:
            signal.raise_signal(signal.SIGINT)

    def stopped(*args: object, observers: list, **options: object) -> object:
        return run(*args, observers=[*observers, interrupt], **options)

    monkeypatch.setattr(fit_module, "run", stopped)
    result = call("outliers", "iris", "-k", 2, "-o", tmp_path / "judged.csv")
    assert result.exit_code == 130
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_one_rule_at_a_time() -> None:
    result = call("outliers", "iris", "--level", 0.1, "--contamination", 0.1)
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr
