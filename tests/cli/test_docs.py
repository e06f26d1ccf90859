"""The page of commands: every example in it runs, and what it says of options and codes is so."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from boxloop.cli import COMMANDS, EXIT_CODES
from cli.calls import done
from report.small import few_candidates

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
EXAMPLES = [line for block in re.findall(r"```\n(.*?)```", PAGE, re.S) for line in block.splitlines()]


def test_every_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report tries few of its candidates here; the test below has them all."""
    import torch

    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    try:
        with few_candidates():
            for line in EXAMPLES:
                name, *words = shlex.split(line)
                assert name == "boxloop"
                printed = done(*words).stdout
                if words[-1] == "--json":
                    json.loads(printed)
    finally:
        torch.set_num_threads(threads)
    assert {path.name for path in tmp_path.iterdir()} >= {
        "iris.html",
        "three.boxloop",
        "scores.csv",
        "summary.json",
    }


@pytest.mark.slow
def test_the_report_with_all_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done(*shlex.split(EXAMPLES[0])[1:])
    facts = json.loads((tmp_path / "iris.json").read_text(encoding="utf-8"))
    assert EXAMPLES[0].startswith("boxloop report")
    assert len(facts["candidates"]) > 10


def test_every_command_is_on_the_page() -> None:
    assert [name for name in COMMANDS if f"| `{name}" not in PAGE] == []


def test_exit_codes_are_those_of_the_program() -> None:
    assert re.findall(r"\| (\d+) \| (.*) \|", PAGE) == [(str(c), m) for c, m in EXIT_CODES.items()]
