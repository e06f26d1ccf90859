"""Every command, given what it cannot use: one message with a remedy, an exit code, no traceback, and no long work."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import Result

from boxloop import GaussianMixture
from boxloop.cli import COMMANDS, main
from boxloop.data import open_table
from cli.calls import call

READS_DATA = {
    "report": ["FILE", "-o", "page.html", "--jobs", "1"],
    "fit": ["FILE", "--model", "gaussian-mixture", "-o", "new.boxloop"],
    "score": ["m.boxloop", "FILE"],
    "criticise": ["m.boxloop", "FILE", "--draws", "9"],
    "compare": ["m.boxloop", "FILE"],
    "select": ["FILE", "-k", "1-2"],
    "outliers": ["FILE"],
    "posterior": [
        "FILE",
        "--model",
        "gaussian-mixture",
        "-k",
        "2",
        "--draws",
        "20",
        "--warmup",
        "10",
        "--chains",
        "2",
    ],
    "relate": ["FILE", "--y", "b", "--permutations", "99"],
    "network": ["FILE", "--target", "b", "--epochs", "2", "--collect", "2", "--chains", "0"],
}
READS_MODEL = {
    "score": ["FILE", "good.csv"],
    "criticise": ["FILE", "good.csv"],
    "compare": ["FILE", "good.csv"],
    "outliers": ["good.csv", "--model", "FILE"],
    "sample": ["FILE", "-n", "2"],
    "show": ["FILE"],
}
OTHERS = {"datasets", "doctor", "completion"}
"""Commands that read no file of the user's."""

TEXT = "a,b\n" + "".join(f"x{i % 3},y{i % 2}\n" for i in range(60))
ROW = "a,b\n1.5,2.5\n"
CONTENT = {
    "empty.csv": b"",
    "header.csv": b"a,b\n",
    "text.csv": TEXT.encode(),
    "binary.csv": bytes(range(256)) * 40,
    "binary.npy": bytes(range(256)) * 40,
    "binary.parquet": bytes(range(256)) * 40,
    "table.xyz": ROW.encode(),
    "short.csv": b"a,b\n1\n2,3\n",
    "infinite.csv": b"a,b\n" + b"1,2\n" * 40 + b"inf,3\n",
    "empty.npy": b"",
    "empty.parquet": b"",
}
LABELS = {"text.csv": {"relate"}}
"""Where text is no mistake: columns of it are labels."""
NO_DATA = ["missing.csv", "folder", "other", "m.boxloop", "none/x.csv", "", *CONTENT]
"""What is no table of numbers in the columns a and b, whatever the command."""
NO_MODEL = ["missing.boxloop", "folder", "good.csv", "wine", "", *CONTENT]
SMALL = {"row.csv": ROW, "column.csv": "a\n" + "\n".join(f"{i}.5" for i in range(40)) + "\n"}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files that cannot be used, one table that can, and a model of it; calls run here."""
    monkeypatch.chdir(tmp_path)
    for name, content in CONTENT.items():
        Path(name).write_bytes(content)
    for name, text in SMALL.items():
        Path(name).write_text(text)
    Path("folder").mkdir()
    Path("other").mkdir()
    Path("other/notes.txt").write_text("no table")
    rows = np.random.default_rng(0).normal(size=(40, 2))
    Path("good.csv").write_text("a,b\n" + "".join(f"{a},{b}\n" for a, b in rows))
    GaussianMixture(1).fit(open_table("good.csv")).save("m.boxloop")
    return tmp_path


def given(name: str, words: list[str], file: str) -> Result:
    return call(name, *(file if word == "FILE" else word for word in words))


def check_refused(result: Result, file: str) -> None:
    """One line on standard error that names the file; a bug would have left another exception."""
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert len(lines[0]) > len("Error: ") + 10
    if file:
        assert Path(file).name in lines[0], lines[0]


def test_every_command_is_tried() -> None:
    assert {*READS_DATA, *READS_MODEL, *OTHERS} == set(COMMANDS)


@pytest.mark.parametrize("file", NO_DATA)
@pytest.mark.parametrize("name", READS_DATA)
def test_what_is_no_table(name: str, file: str, place: Path) -> None:
    before = sorted(place.rglob("*"))
    result = given(name, READS_DATA[name], file)
    if name in LABELS.get(file, ()) and result.exit_code == 0:
        return
    check_refused(result, file)
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize("file", NO_MODEL)
@pytest.mark.parametrize("name", READS_MODEL)
def test_what_is_no_model(name: str, file: str) -> None:
    check_refused(given(name, READS_MODEL[name], file), file)


@pytest.mark.filterwarnings("default")  # fits of one row warn
@pytest.mark.parametrize("file", SMALL)
@pytest.mark.parametrize("name", READS_DATA)
def test_one_row_or_one_column(name: str, file: str) -> None:
    """Used, where a command can; else refused in a line."""
    result = given(name, READS_DATA[name], file)
    if result.exit_code:
        check_refused(result, "")


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help, or what is missing by its name."""
    monkeypatch.setenv("SHELL", "/bin/bash")  # a machine that runs tests may have none
    result = call(name)
    needs = [p for p in main.get_command(click.Context(main), name).params if p.required]
    if not needs:
        assert result.exit_code == 0, result.output
        return
    assert result.exit_code == 2
    assert "Missing" in result.stderr
    assert isinstance(result.exception, SystemExit)
