"""``boxloop outliers``: finds what was planted, says why, and writes a line for each row."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from boxloop import GaussianMixture
from boxloop.data import bundled, open_table, write_table
from boxloop.estimate import plan
from boxloop.run import Progress, run
from boxloop.select import OutlierDetector
from cli.calls import call, done


def found(*words: object) -> dict:
    return json.loads(done("outliers", *words, "--json").stdout)


def test_planted_rows_are_the_least_likely_and_the_right_column_is_blamed() -> None:
    data = bundled("planted_outliers")
    lowest = found("planted_outliers", "--top", 10)["outliers"]
    planted = set(np.flatnonzero(data.target))
    assert {one["row"] for one in lowest} == planted
    for one in lowest:
        first = one["columns"][0]
        row = data.rows[one["row"]]
        assert np.sign(first["value"]) == -np.sign(np.median(row))  # the planted value has the wrong sign
        assert row[data.names.index(first["column"])] == first["value"]


def test_numbers_are_those_of_the_library() -> None:
    rows = pd.DataFrame(bundled("wine").rows, columns=bundled("wine").names)
    detector = OutlierDetector(GaussianMixture(random_state=4), level=0.1, random_state=4).fit(rows)
    told = found("wine", "--level", 0.1, "--seed", 4, "--top", 178)
    assert told["flagged"] == (detector.predict(rows) == -1).sum()
    assert told["threshold"] == detector.offset_
    density, p_value = detector.score_samples(rows), detector.p_values(rows)
    for one in told["outliers"]:
        assert one["log_density"] == pytest.approx(density[one["row"]])
        assert one["p_value"] == p_value[one["row"]]
        assert one["flagged"] == (p_value[one["row"]] <= 0.1)


def test_contamination_flags_that_share() -> None:
    told = found("wine", "--contamination", 0.1)
    assert told["flagged"] == 18
    assert told["level"] is None
    assert told["outliers"][0]["p_value"] is None


def test_ordinary_rows_are_learnt_from(tmp_path: Path) -> None:
    data = bundled("planted_outliers")
    parts = {"ordinary.csv": data.rows[data.target == 0], "doubt.csv": data.rows[data.target == 1]}
    for name, rows in parts.items():
        write_table(tmp_path / name, dict(zip(data.names, rows.T, strict=True)))
    told = found(tmp_path / "doubt.csv", "--train", tmp_path / "ordinary.csv", "--level", 0.01)
    assert (told["rows"], told["flagged"]) == (10, 10)
    assert "judged themselves" not in done("outliers", "iris", "--train", "iris").stdout
    assert "judged themselves" in done("outliers", "iris").stdout


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("rule", [("--level", 0.05), ("--contamination", 0.05)])
def test_one_line_for_each_row(tmp_path: Path, suffix: str, rule: tuple[str, float]) -> None:
    path = tmp_path / f"judged{suffix}"
    told = found("iris", *rule, "-o", path, "--top", 3)
    table = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
    assert len(table) == 150
    assert ("p_value" in table) == (rule[0] == "--level")
    assert table["outlier"].sum() == told["flagged"]
    assert (table["drop_1"].notna() >= (table["outlier"] == 1)).all()
    first = told["outliers"][0]
    assert table["column_1"][first["row"]] == first["columns"][0]["column"]


def test_a_model_file_is_used_as_it_is(tmp_path: Path) -> None:
    model = GaussianMixture(2, random_state=0).fit(open_table("iris"))
    model.save(tmp_path / "m.boxloop")
    told = found("iris", "--model", tmp_path / "m.boxloop", "--top", 150)
    density = model.score_samples(open_table("iris"))
    for one in told["outliers"]:
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
    rows = bundled("planted_outliers").rows.copy()
    rows[::7, 0] = np.nan
    write_table(tmp_path / "holes.csv", dict(zip("abcdef", rows.T, strict=True)))
    for one in found(tmp_path / "holes.csv", "--top", 60)["outliers"]:
        if one["row"] % 7 == 0:
            assert "a" not in [part["column"] for part in one["columns"]]


@pytest.mark.filterwarnings("default")
def test_ctrl_c_in_the_fit_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(progress: Progress) -> None:
        if not progress.stopped:
            signal.raise_signal(signal.SIGINT)

    def stopped(*args: object, observers: list, **options: object) -> object:
        return run(*args, observers=[*observers, interrupt], **options)

    monkeypatch.setattr(plan, "run", stopped)
    result = call("outliers", "iris", "-k", 2, "-o", tmp_path / "judged.csv")
    assert result.exit_code == 130
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_one_rule_at_a_time() -> None:
    result = call("outliers", "iris", "--level", 0.1, "--contamination", 0.1)
    assert result.exit_code == 2
    assert "exclude each other" in result.stderr
