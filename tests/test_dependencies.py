"""Each dependency has a written reason, and each import a declared dependency."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE = PROJECT["project"]["dependencies"]
EXTRAS = [r for group in PROJECT["project"]["optional-dependencies"].values() for r in group]
BUILD = PROJECT["build-system"]["requires"]
IMPORTED_AS = {"sklearn": "scikit-learn", "arviz_base": "arviz-base", "arviz_stats": "arviz-stats"}


def package(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement).group().lower()


def third_party(path: Path) -> set[str]:
    """Packages outside the standard library that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.partition(".")[0])
    return {IMPORTED_AS.get(name, name) for name in found - sys.stdlib_module_names - {"boxloop"}}


def test_every_dependency_has_a_reason() -> None:
    declared = {package(r) for r in CORE + EXTRAS + BUILD} - {"boxloop"}
    page = (ROOT / "docs" / "dependencies.md").read_text()
    explained = dict(re.findall(r"^\| `([\w.-]+)` \|(?: [^|]* \|)? ([^|]+) \|$", page, flags=re.MULTILINE))
    assert set(explained) == declared
    assert all(reason.strip() for reason in explained.values())


def test_every_import_is_declared() -> None:
    declared = {package(r) for r in CORE + EXTRAS}
    used = {path.name: third_party(path) - declared for path in (ROOT / "src").rglob("*.py")}
    assert {name: missing for name, missing in used.items() if missing} == {}


def test_every_dependency_has_a_lower_bound() -> None:
    """Those are what ``make test-lowest`` installs."""
    assert [r for r in CORE if ">=" not in r] == []


def test_extras_that_are_named_are_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for names in re.findall(r"boxloop\[([a-z,]+)\]|\"\.\[([a-z,]+)\]\"", text):
            unknown = set("".join(names).split(",")) - set(PROJECT["project"]["optional-dependencies"])
            assert unknown == set(), f"{page.name} names extras that are not there"


def test_torch_is_pinned_for_development_only() -> None:
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().splitlines()
    assert not any("==" in r for r in CORE)


def test_every_install_of_the_makefile_is_constrained() -> None:
    lines = (ROOT / "Makefile").read_text().splitlines()
    assert [s for s in lines if "pip install" in s and "-c constraints.txt" not in s] == []
