"""Code that the pages show runs: every script of the gallery, every block of a guide and of the README.

Pages of several seconds run with less of everything here, and as they are printed in the slow suite.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from docs.blocks import PAGES_WITH_OUTPUT, README_NAMES, blocks, run_block, run_blocks, same_words, table_code
from docs.shorter import LONG, SHORTER, changes, shortened
from report.small import few_candidates

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GALLERY = sorted((DOCS / "gallery").glob("*.py"))
SHORT = {"power_of_moment_gaps": ["--repeats", "1"]}
"""A script whose page needs minutes gets words that make it short, whoever runs it."""
PAGES = [
    page
    for page in sorted([ROOT / "README.md", *DOCS.glob("*.md"), *(DOCS / "guides").glob("*.md")])
    if "```python" in page.read_text(encoding="utf-8") and page not in PAGES_WITH_OUTPUT
]


def run_script(script: Path, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the text of a script of the gallery, which draws its picture beside itself."""
    copy = folder / script.name
    monkeypatch.setattr(sys, "argv", [str(copy), *SHORT.get(script.stem, [])])
    exec(compile(text, str(copy), "exec"), {"__name__": "__main__", "__file__": str(copy)})
    assert copy.with_suffix(".png").stat().st_size > 10_000


def over(pages: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("page", pages, ids=lambda path: path.stem)


@over([script for script in GALLERY if changes(script)])
def test_the_gallery_draws(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_script(page, shortened(page), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "script",
    [pytest.param(path, marks=[pytest.mark.slow] if changes(path) else []) for path in GALLERY],
    ids=lambda path: path.stem,
)
def test_the_gallery_prints_what_its_pages_show(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_script(script, script.read_text(encoding="utf-8"), tmp_path, monkeypatch)
    shown = re.findall(
        r"^```text\n(.*?)^```", script.with_suffix(".md").read_text(encoding="utf-8"), re.S | re.M
    )
    printed = capsys.readouterr().out
    assert all(same_words(printed, text) for text in shown), printed


@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_every_script_has_a_page_with_its_picture(script: Path) -> None:
    page = script.with_suffix(".md").read_text(encoding="utf-8")
    assert script.with_suffix(".png").exists()
    assert f"({script.stem}.png)" in page
    assert f"{script.stem}.md" in (DOCS / "gallery" / "index.md").read_text(encoding="utf-8")


@over([page for page in PAGES if page.stem not in LONG])
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports try few of their candidates: other tests cover all of them."""
    monkeypatch.chdir(tmp_path)
    with few_candidates():
        run_blocks(page, shortened(page))


@pytest.mark.slow
@over([page for page in PAGES if changes(page) or page.stem in LONG])
def test_the_code_of_a_page_runs_as_printed(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with few_candidates():
        run_blocks(page, page.read_text(encoding="utf-8"))


def test_the_code_of_the_readmes_table_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "readme"}
    for line, block in blocks(text):
        run_block(ROOT / "README.md", line, block, names)
    exec(README_NAMES, names)
    code = table_code(text)
    assert len(code) >= 10
    for expression in code:
        eval(expression, names)


def test_every_short_page_is_there() -> None:
    assert sum(bool(changes(page)) for page in [*GALLERY, *PAGES]) == len(SHORTER)
    assert {page.stem for page in PAGES} >= LONG


def test_a_broken_block_fails_with_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nx = 1\n```\n\n```python\ny = x + z\n```\n")
    with pytest.raises(NameError) as caught:
        run_blocks(page, page.read_text())
    assert caught.traceback[-1].lineno == 7  # counted from 0


@pytest.mark.parametrize(
    ("printed", "shown", "same"),
    [
        ("gap 0.501 of 9", "gap 0.50 of 9", True),
        ("gap 0.47 of 9", "gap 0.50 of 9", False),
        ("gap 0.50 of 8", "gap 0.50 of 9", False),
        ("loss 0.50 of 9", "gap 0.50 of 9", False),
    ],
)
def test_printed_numbers_are_held_against_those_shown(printed: str, shown: str, same: bool) -> None:
    assert same_words(printed, shown) == same
