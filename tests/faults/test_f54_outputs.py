"""FAULTS 54: no output is an input, a table of an input folder, or a file that the command did not write."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest

import boxloop
from boxloop import GaussianMixture
from boxloop.data import fingerprint_file, open_table, table_writer, write_table
from boxloop.persist import write_atomic
from boxloop.report import check_replaceable, list_page_files
from cli.calls import call, done

WRITES = {
    "fit": (["DATA", "--model", "gaussian-mixture"], ["-o", "--checkpoint", "--json"]),
    "score": (["m.boxloop", "DATA"], ["-o", "--json"]),
    "criticise": (["m.boxloop", "DATA", "--draws", "0"], ["-o", "--figure", "--json"]),
    "compare": (["m.boxloop", "DATA"], ["-o", "--figure", "--json"]),
    "select": (["DATA", "-k", "1"], ["-o", "--figure", "--json"]),
    "outliers": (["DATA"], ["-o", "--json"]),
    "posterior": (
        ["DATA", "--model", "gaussian-mixture", "-k", "1"],
        ["-o", "--figure", "--checkpoint", "--json"],
    ),
    "relate": (["DATA", "--y", "b"], ["-o", "--figure", "--checkpoint", "--json"]),
    "network": (["DATA", "--target", "b"], ["-o", "--page", "--figure", "--json"]),
    "report": (["DATA"], ["-o", "--json"]),
}
"""Each command that reads DATA, and its options that name a file to write."""
OUTPUTS = [(name, option) for name, (_, options) in WRITES.items() for option in options]
NEEDED = {"fit": ["-o", "new.boxloop"]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two tables, one table beside it, and a model; calls run here."""
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(40, 2))
    Path("data").mkdir()
    for name in ("data/a.csv", "data/b.csv", "one.csv"):
        write_table(name, {"a": rows[:, 0], "b": rows[:, 1]})
    GaussianMixture(1).fit(open_table("one.csv")).save("m.boxloop")
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(name: str, option: str, data: str, place: str, folder: Path) -> str:
    """What a command says that must change nothing."""
    before = content(folder)
    words = [data if word == "DATA" else word for word in WRITES[name][0]]
    needed = [] if option == "-o" else NEEDED.get(name, [])
    given = [f"--json={place}"] if option == "--json" else [option, place]
    result = call(name, *words, *needed, *given)
    assert result.exit_code in (1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert content(folder) == before
    return result.stderr


@pytest.mark.parametrize(("name", "option"), OUTPUTS)
def test_no_output_is_a_table_of_the_input_folder(name: str, option: str, folder: Path) -> None:
    place = "data/x.json" if option == "--json" else "data/a.csv"
    if option == "--json":  # its name must end in .json, so only a link to a table is one
        (folder / place).hardlink_to(folder / "data" / "a.csv")
    said = refused(name, option, "data", place, folder)
    assert place in said
    assert "data" in said


@pytest.mark.parametrize(("name", "option"), [pair for pair in OUTPUTS if pair[1] != "--json"])
def test_no_output_is_the_input_by_another_name(name: str, option: str, folder: Path) -> None:
    """A symbolic link, a hard link, and a path that goes round."""
    suffix = ".html" if option == "--page" or name == "report" else ".csv"
    Path(f"soft{suffix}").symlink_to("one.csv")
    Path(f"hard{suffix}").hardlink_to("one.csv")
    for place in (f"soft{suffix}", f"hard{suffix}", "data/../one.csv"):
        assert "one.csv" in refused(name, option, "one.csv", place, folder)


@pytest.mark.parametrize("scheme", ["file://", "local://", "simplecache::file://"])
def test_no_output_is_the_input_by_its_url(scheme: str, folder: Path) -> None:
    """A URL may lead to a folder of this machine."""
    (folder / "parts").mkdir()
    write_table("parts/a.parquet", {"a": np.arange(40.0), "b": np.arange(40.0) % 3})
    url = f"{scheme}{folder}/parts"
    for data, place in (
        (url, "parts/a.parquet"),
        (url, "parts/b.parquet"),
        (f"{url}/a.parquet", "parts/a.parquet"),
    ):
        assert place in refused("score", "-o", data, place, folder)
        assert place in refused("fit", "-o", data, place, folder)


@pytest.mark.parametrize(("name", "option"), OUTPUTS)
def test_no_device_or_pipe_is_replaced(name: str, option: str, folder: Path) -> None:
    """As the user of all rights one could rename a file over /dev/null."""
    place = "pipe.html" if option == "--page" or name == "report" else "pipe.json"
    os.mkfifo(place)
    if option != "--json" and place.endswith(".json"):
        assert "/dev/stdout" in refused(name, option, "one.csv", "/dev/stdout", folder)
    if name != "report" or option == "-o":
        assert "ordinary file" in refused(name, option, "one.csv", place, folder)
    with pytest.raises(OSError, match="ordinary file"):
        write_atomic(place, b"new")
    assert stat.S_ISFIFO(os.stat(place).st_mode)


def test_the_model_that_is_read_is_not_written_to(folder: Path) -> None:
    for name in ("score", "compare"):
        refused(name, "-o", "one.csv", "m.boxloop", folder)


def test_a_new_table_is_no_more_welcome_in_the_input_folder(folder: Path) -> None:
    """It would be read by the next call."""
    assert "outside this folder" in refused("score", "-o", "data", "data/scores.csv", folder)
    for _ in range(2):  # a model is no table, also when it is there from the last call
        done("fit", "data", "--model", "gaussian-mixture", "-o", "data/model.boxloop", "-q")


def test_folders_that_are_written_to_are_not_read(folder: Path) -> None:
    result = call("select", "data", "-k", "1", "--checkpoint", "data")
    assert result.exit_code == 2
    assert "another folder" in result.stderr


@pytest.mark.parametrize("suffix", [".md", ".json", ".png", ".boxloop"])
def test_a_report_replaces_no_file_that_it_did_not_write(suffix: str, folder: Path) -> None:
    """Refused before any work; what an earlier report wrote may be replaced, unless it was changed."""
    (folder / f"page{suffix}").write_text("mine")
    said = refused("report", "-o", "one.csv", "page.html", folder)
    assert f"page{suffix}" in said
    assert "--force" in said


def test_a_page_that_nobody_asked_for_replaces_no_other(folder: Path) -> None:
    (folder / "report.html").write_text("mine")
    result = call("report", "one.csv")
    assert result.exit_code == 1
    assert (folder / "report.html").read_text() == "mine"


def test_what_an_earlier_report_wrote_is_known_by_its_digest(folder: Path) -> None:
    page, *others = list_page_files(folder / "page.html")
    for file in others:
        file.write_text("{}")
    markdown, record = others[0], others[1]
    digests = ", ".join(f'"{file.suffix}": "{fingerprint_file(file)}"' for file in others)
    record.write_text(f'{{"verdict": [], "files": {{{digests}}}}}')
    check_replaceable(others, record)
    markdown.write_text("with notes of mine")
    with pytest.raises(FileExistsError, match=r"page\.md"):
        check_replaceable(others, record)
    with pytest.raises(ValueError, match=r"must end in \.html"):
        list_page_files(page.with_suffix(".md"))


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_table_has_its_mode_while_it_is_written(mode: int, folder: Path) -> None:
    (folder / "s.csv").write_text("old")
    (folder / "s.csv").chmod(mode)
    with table_writer("s.csv") as write:
        write({"a": np.arange(3.0)})
        (unfinished,) = folder.glob(".s.csv*")
        assert stat.S_IMODE(unfinished.stat().st_mode) == mode


@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_a_file_that_is_replaced_keeps_its_mode(mode: int, folder: Path) -> None:
    before = os.umask(0o022)
    try:
        for name in ("m2.boxloop", "s.csv", "g.png", "f.json", "d.parquet"):
            (folder / name).write_text("old")
            (folder / name).chmod(mode)
        done("fit", "one.csv", "--model", "gaussian-mixture", "-o", "m2.boxloop", "-q", "--json", "f.json")
        done("score", "m.boxloop", "one.csv", "-o", "s.csv", "-q")
        done("score", "m.boxloop", "one.csv", "-o", "d.parquet", "-q")
        held = np.random.default_rng(1).normal(size=(40, 2))
        write_table("held.csv", {"a": held[:, 0], "b": held[:, 1]})
        done("criticise", "m.boxloop", "held.csv", "--draws", "0", "--figure", "g.png", "-q")
        (folder / "new.csv").unlink(missing_ok=True)
        write_atomic(folder / "new.csv", b"new")
    finally:
        os.umask(before)
    for name in ("m2.boxloop", "s.csv", "g.png", "f.json", "d.parquet"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == mode, name
        assert (folder / name).read_bytes() != b"old"
    assert stat.S_IMODE((folder / "new.csv").stat().st_mode) == 0o644


def test_f54_a_link_that_leads_nowhere_is_not_replaced_by_a_report(tmp_path: Path) -> None:
    """``exists()`` follows links: the link was replaced without a word."""
    page = tmp_path / "page.html"
    page.with_suffix(".md").symlink_to(tmp_path / "gone.md")
    with pytest.raises(FileExistsError, match=r"page\.md: not written by a report"):
        check_replaceable(list_page_files(page), page.with_suffix(".json"))
    page.with_suffix(".md").unlink()
    check_replaceable(list_page_files(page), page.with_suffix(".json"))


def test_f54_a_table_is_not_replaced_by_a_model(tmp_path: Path) -> None:
    fit = boxloop.GaussianMixture(1).fit([[0.0], [1.0], [3.0]])
    table = tmp_path / "data.csv"
    table.write_text("a\n1\n2\n")
    with pytest.raises(FileExistsError, match=r"data\.csv is there and is no model file"):
        fit.save(table)
    assert table.read_text() == "a\n1\n2\n"
    (tmp_path / "empty").touch()
    (tmp_path / "damaged.boxloop").write_bytes(b"damaged")
    for name in ("empty", "damaged.boxloop", "new.model", "new.model"):
        fit.save(tmp_path / name)
        assert boxloop.load(tmp_path / name).n_iter_ == fit.n_iter_
