"""The project speaks of itself alone: no path of one machine, no host of a package index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("src", "papers", "docs", "tests", "benchmarks", ".ci")
# In a worktree .git is a file, with the path of the repository.
FILES = [p for p in ROOT.iterdir() if p.is_file() and p.name != ".git"] + [
    p
    for folder in FOLDERS
    for p in (ROOT / folder).rglob("*")
    if p.is_file() and "__pycache__" not in p.parts
]
# Written apart, so that this file passes its own test.
FOLDERS_OF_A_MACHINE = "|".join(("work", "root", "home/\\w+", "tmp/venv\\w*"))
HOSTS = "|".join(
    f"{name}\\.{end}" for name, end in [("pypi", "org"), ("pythonhosted", "org"), ("anaconda", "org")]
)
FOREIGN = re.compile(rf"(?<![\w.~-])/(?:{FOLDERS_OF_A_MACHINE})/|(?:{HOSTS})|\bdownload\.pytorch\b")
CPU_BUILD = "pip install -c constraints.txt torch --index-url https://download." + "pytorch.org/whl/cpu "
"""PyTorch publishes its build for CPUs there alone: the one address that users need."""


def foreign(text: str) -> list[str]:
    return [
        f"line {i}: {s.strip()}"
        for i, s in enumerate(text.replace(CPU_BUILD, "").splitlines(), 1)
        if FOREIGN.search(s)
    ]


def test_files_speak_of_the_project_alone() -> None:
    found = {}
    for path in FILES:
        try:
            lines = foreign(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        if lines:
            found[str(path.relative_to(ROOT))] = lines
    assert found == {}


@pytest.mark.parametrize("folder", ["work/main", "root/.cache", "tmp/venv0/bin"])
def test_the_test_can_fail(folder: str) -> None:
    assert foreign(f"see /{folder}/x")
    assert foreign("--index-url https://" + ".".join(("pypi", "org")) + "/simple")
