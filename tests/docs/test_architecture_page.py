"""ARCHITECTURE.md shows the tree as it is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


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
