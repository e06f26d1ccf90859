"""Pages that show output show what their code prints. If one fails: ``python docs/outputs.py PAGE``."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from docs.blocks import PAGES_WITH_OUTPUT, same_words
from docs.outputs import fill_page, run_page

SECONDS = re.compile(r"^ +time +[\d.]+ s$", re.MULTILINE)
"""A line that no two runs share."""


def outdated(text: str) -> list[tuple[int, str]]:
    """Outputs of a page that its code does not print: the line of the code, and what it prints."""
    return [
        (output.line, output.printed)
        for output in run_page(text)
        if not same_words(SECONDS.sub("", output.printed), SECONDS.sub("", text[output.start : output.end]))
    ]


@pytest.mark.parametrize("page", PAGES_WITH_OUTPUT, ids=lambda path: path.stem)
def test_a_page_shows_what_its_code_prints(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert "```text" in text
    assert outdated(text) == []


def test_output_that_differs_is_found_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = "```python\nx = 2\nprint(x + 1)\n```\n\n```text\n4\n```\n\nEnd.\n"
    assert [printed for _, printed in outdated(page)] == ["3\n"]
    filled = fill_page(page)
    assert filled == page.replace("4", "3")
    assert outdated(filled) == []


def test_a_command_that_fails_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="boxloop fit no-such-table"):
        outdated("```\nboxloop fit no-such-table --model factor-analysis -o x.boxloop\n```\n\n```text\n```\n")


def test_what_is_said_of_mclusts_figures_is_so() -> None:
    """Eleven of the twelve agree to 0.01, and the other is 0.64 higher here."""
    page = (PAGES_WITH_OUTPUT[1].parent / "from_mclust.md").read_text(encoding="utf-8")
    ours = np.array(re.findall(r"^[123]((?: +-[\d.]+){4})$", page, re.MULTILINE))
    theirs = np.array(
        re.findall(r"^\| [123] \|" + r" (-[\d.]+) \|" * 4 + "$", page, re.MULTILINE), dtype=float
    )
    gain = np.array([line.split() for line in ours], dtype=float) - theirs
    assert "Eleven of the twelve agree to 0.01" in page
    assert np.count_nonzero(np.abs(gain) > 0.01) == 1
    assert gain[2, 1] == pytest.approx(0.64, abs=0.01)
