"""FAULTS 55 (and 44): names, labels and file names are text wherever they go: HTML, Markdown, CSV, terminal."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from boxloop import GaussianMixture
from boxloop.cli import echo_styled, echo_table, echo_text
from boxloop.data import escape_formulas, open_table, write_table
from boxloop.report import escape_controls, escape_markdown, load_template
from cli.calls import call, done
from report.small import few_candidates

TAG, FORMULA, PIPE, ANSI, TURNED = (
    "<script>alert(1)</script>",
    '=HYPERLINK("http://example.org")',
    "a|b*c*[d](javascript:e)",
    "\x1b[31mred\x9b2J",
    "x\u202ey",
)
NAMES = (TAG, FORMULA, PIPE, ANSI, TURNED)
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What a terminal acts on, but for the end of a line."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with every one of these names, under such a name, and a model of it."""
    place = tmp_path_factory.mktemp("text")
    rows = np.random.default_rng(0).normal(size=(120, len(NAMES)))
    with (place / f"{TAG.replace('/', '')}\x1b[1m.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(NAMES)
        out.writerows(rows.tolist())
    GaussianMixture(1).fit(open_table(table(place))).save(place / "m.boxloop")
    return place


def table(place: Path) -> Path:
    return next(place.glob("*m.csv"))


def test_names_in_a_report(folder: Path) -> None:
    """On the page, in Markdown and in the terminal; the JSON keeps them as they are."""
    with few_candidates():
        shown = done("report", table(folder), "-o", folder / "r.html", "--jobs", "1").stdout
    assert STEERS.search(shown) is None
    page, text = (folder / "r.html").read_text(), (folder / "r.md").read_text()
    assert TAG not in page
    assert page.count("<script>") == 1  # ours
    assert STEERS.search(page.replace("\t", " ")) is None
    before, _, after = text.partition("## How this was made")
    assert "<script>" not in before
    assert all(
        line.startswith("    ") for line in after.splitlines() if "<script>" in line
    )  # code: a tag is text
    assert "&lt;script&gt;" in text
    assert r"a\|b\*c\*\[d\](javascript:e)" in text
    assert STEERS.search(text.replace("\t", " ")) is None
    assert len({len(cells) for cells in tables_of(before)}) > 2
    assert all(len(set(cells)) == 1 for cells in tables_of(before))
    assert [column["name"] for column in json.loads((folder / "r.json").read_text())["columns"]] == list(
        NAMES
    )


def tables_of(text: str) -> list[list[int]]:
    """How many cells each line of each table of Markdown has."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()] for block in blocks]


@pytest.mark.parametrize(
    "words",
    [
        ["show", "m.boxloop"],
        ["score", "m.boxloop", "DATA"],
        ["criticise", "m.boxloop", "DATA", "--draws", "0"],
        ["compare", "m.boxloop", "DATA"],
        ["outliers", "DATA"],
        ["fit", "DATA", "--model", "gaussian-mixture", "-o", "n.boxloop"],
        [
            "posterior",
            "DATA",
            "--model",
            "gaussian-mixture",
            "-k",
            "1",
            "--draws",
            "9",
            "--warmup",
            "9",
            "--chains",
            "2",
        ],
        ["relate", "DATA", "--y", TURNED, "--permutations", "19"],
        [
            "network",
            "DATA",
            "--target",
            TURNED,
            "--hidden",
            "4",
            "--epochs",
            "2",
            "--collect",
            "2",
            "--chains",
            "0",
        ],
        ["fit", "DATA", "--model", "gaussian-mixture", "-o", "n.boxloop", "--columns", ANSI + "?"],
        ["fit", ANSI, "--model", "gaussian-mixture", "-o", "n.boxloop"],
        ["show", ANSI],
        ["select", "DATA", "-k", ANSI],
        [ANSI],
    ],
    ids=lambda words: words[0] + words[-1][:2] if words[0] != ANSI else "no command",
)
@pytest.mark.parametrize("json_too", [False, True], ids=["tables", "JSON"])
@pytest.mark.filterwarnings("default")
def test_nothing_steers_a_terminal(
    words: list[str], json_too: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    given = [table(folder).name if word == "DATA" else word for word in words]
    result = call(*given, *(["--json=-"] if json_too else []))
    assert STEERS.search(result.stdout + result.stderr) is None, (result.stdout + result.stderr)[:2000]
    if json_too and result.exit_code == 0:
        json.loads(result.stdout)


def test_what_is_printed_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    echo_text(f"{ANSI}\nnext")
    echo_styled(ANSI, "bold", TURNED)
    echo_table(ANSI, [TURNED, "b"], [[ANSI, "1"]])
    shown = capsys.readouterr().out
    assert STEERS.search(shown) is None
    assert r"\x1b[31mred\x9b2J" in shown


def test_commands_print_through_one_door() -> None:
    """So that no new line of output is forgotten."""
    import boxloop.cli

    for path in Path(boxloop.cli.__file__).parent.glob("*.py"):
        if path.name not in ("console.py", "errors.py", "completion.py"):
            text = path.read_text()
            assert not re.search(r"click\.(s?echo|secho)\(|console\.print\(|\bprint\(", text), path.name


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_headers_that_came_from_data_are_no_formulas(suffix: str, folder: Path) -> None:
    place = folder / f"drawn{suffix}"
    done("sample", folder / "m.boxloop", "-n", 3, "-o", place)
    names = open_table(place).names
    assert names == (NAMES if suffix == ".parquet" else (NAMES[0], f"'{FORMULA}", *NAMES[2:]))
    head = next(csv.reader(done("sample", folder / "m.boxloop", "-n", 3).stdout.splitlines()))
    assert f"'{FORMULA}" in head
    assert FORMULA not in head


def test_texts_are_no_formulas_on_request(folder: Path) -> None:
    """Cells keep their text by default: a program may read them."""
    place, held = folder / "moments.csv", folder / "held.csv"
    write_table(held, dict(zip(NAMES, np.random.default_rng(1).normal(size=(len(NAMES), 60)), strict=True)))
    words = [
        "criticise",
        folder / "m.boxloop",
        held,
        "--draws",
        0,
        "--test",
        "first",
        "-o",
        place,
        "-q",
    ]
    done(*words)
    assert FORMULA in place.read_text().replace('""', '"')
    done(*words, "--safe-csv")
    with place.open(newline="") as file:
        rows = list(csv.DictReader(file))
    cells = [cell for row in rows for cell in row.values()]
    assert f"'{FORMULA}" in cells
    numbers = [row["z"] for row in rows]
    assert any(value.startswith("-") for value in numbers)  # a number is no formula
    assert not any(cell.lstrip().startswith(("=", "+", "@")) for cell in cells)


@pytest.mark.parametrize("text", ["=1", "+1", "-a", "@x", " =1", "\t=1", "\r=1", "\uff1d1"])
def test_every_beginning_of_a_formula(text: str) -> None:
    found = escape_formulas({text: np.array([text, "b"]), f"'{text}": np.array([-1.0, 2.0])}, cells=True)
    assert all(not name.lstrip().startswith(("=", "+", "-", "@", "\uff1d")) for name in found)
    assert len(found) == 2
    assert [column.tolist() for column in found.values()] == [[f"'{text}", "b"], [-1.0, 2.0]]


@pytest.mark.parametrize("name", NAMES)
def test_markdown_has_no_tag_and_no_cell_from_data(name: str) -> None:
    line = escape_markdown(f"{name}\n{name}")
    assert "<" not in line
    assert "\n" not in line
    assert re.search(r"(?<!\\)[|*\[`]", line) is None
    assert STEERS.search(line) is None
    assert escape_controls("caf\u00e9 \u4e2d\u200d\n") == "caf\u00e9 \u4e2d\u200d\n"


def test_every_page_escapes() -> None:
    for name in ("report.html.jinja", "network.html.jinja"):
        assert load_template(name).environment.autoescape is True
    text = (Path(load_template("report.md.jinja").filename)).read_text()
    free = {"report.command", "found.seed", "table.digest", "name", "version", "model"}
    for value in re.findall(r"\{\{([^}]*)\}\}", text):
        ours = re.match(
            r'\s*(show\(|.*\| length|report\.parts\.meaning|table\.(n_rows|kind)|", (with )?")', value
        )
        assert "markdown" in value or ours or value.split("|")[0].strip() in free, value


def test_a_table_is_written_as_it_is_by_the_library(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", {FORMULA: np.array([1.0])})
    assert open_table(tmp_path / "t.csv").names == (FORMULA,)
