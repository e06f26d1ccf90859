"""ARCHITECTURE.md shows the tree as it is."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = Path(__file__).parents[2] / "src" / "boxloop"
STEP = re.compile(r"^ *(\w+) {2,}([\w/]+\.py) {2,}\S", re.MULTILINE)


def load_tree_script():
    spec = importlib.util.spec_from_file_location("tree_of_files", DOCS / "tree.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tree_is_that_of_the_files() -> None:
    """If this fails: ``python docs/tree.py``."""
    tree = load_tree_script()
    page = tree.PAGE.read_text(encoding="utf-8")
    assert tree.fill_page(page) == page


def test_every_file_says_what_it_is() -> None:
    tree = load_tree_script()
    lines = [*tree.describe_files(tree.ROOT / "src" / "boxloop"), *tree.describe_files(tree.ROOT / "papers")]
    assert [line for line in lines if len(line.split()) < 3] == []


def missing_steps(page: str) -> list[str]:
    """Steps of journeys whose file does not define their function."""
    journeys = page.partition("## Five journeys")[2].partition("## Where to add")[0]
    missing = []
    for name, file in STEP.findall(journeys):
        path = SOURCE / file
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.exists() else ()
        if name not in {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.ClassDef)}:
            missing.append(f"{file}: {name}")
    return missing


def test_the_steps_of_journeys_are_those_of_the_files() -> None:
    page = (DOCS.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(STEP.findall(page)) > 40
    assert missing_steps(page) == []


def test_the_test_of_steps_can_fail() -> None:
    page = "## Five journeys\nmelt   fit/em.py   no such step\n  em   fit/gone.py   no such file\n## Where to add"
    assert missing_steps(page) == ["fit/em.py: melt", "fit/gone.py: em"]
