"""What is wrong with a call or a file is said in one line, with the right exit code, before any work is done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boxloop import FactorAnalysis
from boxloop.loop import Progress
from boxloop.persist import CheckpointWriter
from cli.calls import call, clusters, done, table


@pytest.mark.parametrize(
    ("model", "options", "flag"),
    [
        ("factor-analysis", ["--covariance", "full"], "--covariance"),
        ("probabilistic-pca", ["--rotation", "varimax"], "--rotation"),
        ("gaussian-mixture", ["--rotation", "varimax"], "--rotation"),
        ("poisson-mixture", ["--covariance", "full"], "--covariance"),
        ("factor-analysis", ["--n-init", "2"], "--n-init"),
        ("factor-analysis", ["--init", "random"], "--init"),
        ("gaussian-mixture", ["--batch-size", "10"], "--batch-size"),
        ("gaussian-mixture", ["--components", "0"], "--components"),
        ("gaussian-mixture", ["--seed", "-1"], "--seed"),
        ("gaussian-mixture", ["--init", "guess"], "--init"),
        ("gaussian-mixture", ["--method", "magic"], "--method"),
        ("gaussian-mixture", ["--tol", "-1"], "--tol"),
        ("gaussian-mixture", ["--nonsense"], "--nonsense"),
        ("k-means", [], "--model"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, model: str, options: list[str], flag: str) -> None:
    result = call("fit", "iris", "--model", model, *options, "-o", tmp_path / "m")
    assert result.exit_code == 2
    assert flag in result.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit"],
        ["fit", "iris", "--model", "gaussian-mixture"],
        ["fit", "iris", "-o", "m"],
        ["score", "m"],
        ["sample", "m"],
        ["sample", "m", "-n", "0"],
        ["show"],
    ],
)
def test_what_is_missing_is_wrong_usage(arguments: list[str]) -> None:
    assert call(*arguments).exit_code == 2


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    data = table(tmp_path / "rows.csv", clusters())
    before = data.read_bytes()
    fit = ["fit", data, "--model", "gaussian-mixture"]
    for options in (
        ["-o", tmp_path / "no" / "m"],
        ["-o", tmp_path],
        ["-o", data],
        ["-o", tmp_path / "m", "--checkpoint", data],
        ["-o", tmp_path / "m", "--checkpoint", tmp_path / "m"],
        ["-o", tmp_path / "m", "--checkpoint", tmp_path / "no" / "c"],
    ):
        assert call(*fit, *options).exit_code == 2
    done(*fit, "-o", tmp_path / "m", "-q")
    assert call("score", tmp_path / "m", data, "-o", data).exit_code == 2
    assert call("sample", tmp_path / "m", "-n", 2, "-o", tmp_path / "m").exit_code == 2
    wrong = call("score", tmp_path / "m", data, "-o", tmp_path / "s.xlsx")
    assert wrong.exit_code == 2
    assert "must end in .csv, .csv.gz or .parquet" in wrong.stderr
    assert data.read_bytes() == before


BAD_TABLES = {
    "torn.csv": ("a,b\n1,2\n3\n", "row 3"),
    "text.csv": ("a,b\n1,x\n", "column 'b' is not numeric"),
    "empty.csv": ("", "the file is empty"),
    "headless.csv": ("1,2\n3,4\n", "a header row with names is required"),
    "infinite.csv": ("a,b\n1,inf\n2,3\n", "column 'b' holds an infinite value"),
    "rowless.csv": ("a,b\n", "0 sample"),
    "few.csv": ("a,b\n1,2\n", "n_components = 3"),
    "junk.parquet": ("not parquet", "junk.parquet"),
    "junk.npy": ("not npy", "junk.npy"),
    "table.xlsx": ("?", "a .npy, .csv, .csv.gz or .parquet file"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_give_one_line(tmp_path: Path, name: str) -> None:
    content, message = BAD_TABLES[name]
    (tmp_path / name).write_text(content)
    result = call("fit", tmp_path / name, "--model", "gaussian-mixture", "-k", 3, "-o", tmp_path / "m")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("command", ["show", "score", "sample"])
@pytest.mark.parametrize("fault", ["absent", "truncated", "flipped", "pickle", "folder", "checkpoint"])
def test_bad_models_give_one_line(tmp_path: Path, command: str, fault: str) -> None:
    path = tmp_path / "m.boxloop"
    FactorAnalysis(1).fit(clusters()).save(path)
    data = bytearray(path.read_bytes())
    path.unlink()
    if fault == "truncated":
        path.write_bytes(data[:-9])
    elif fault == "flipped":
        data[-1] ^= 1
        path.write_bytes(data)
    elif fault == "pickle":
        path.write_bytes(b"\x80\x04K\x01.")
    elif fault == "folder":
        path.mkdir()
    elif fault == "checkpoint":
        CheckpointWriter(path, {})(Progress(7, 1, 1, [0.5], [], stopped=True))
    more = {"show": [], "score": ["iris"], "sample": ["-n", 2]}[command]
    result = call(command, path, *more)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {path}: ")
    assert result.stderr.count("\n") == 1
    assert ("a checkpoint of a fit, not a model" in result.stderr) == (fault == "checkpoint")


def test_a_refused_value_names_the_column(tmp_path: Path) -> None:
    data = table(tmp_path / "rows.csv", -np.ones((9, 3)))
    result = call("fit", data, "--model", "poisson-mixture", "-o", tmp_path / "m")
    assert result.exit_code == 1
    assert "column 'height'" in result.stderr
