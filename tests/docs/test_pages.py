"""The pages are whole: a reference page for every public name, and no link into nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ROOMS = [
    "boxloop",
    *(
        f"boxloop.{room}"
        for room in [
            "criticise",
            "select",
            "models",
            "distributions",
            "fit",
            "twoview",
            "weights",
            "data",
            "figures",
        ]
    ),
]
SOURCES = [
    path
    for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *DOCS.rglob("*.rst")]
    if not {"_build", "_templates", "generated"} & set(path.relative_to(ROOT).parts)
]
ELSEWHERE = ("http://", "https://", "mailto:")


def listed(page: str) -> set[str]:
    """Names that a reference page has an entry for: in a summary, or described by hand."""
    summaries = re.findall(r"^\.\. autosummary::\n(?:   :.*\n)*\n((?:   \S+\n)+)", page, re.M)
    words = {word for block in summaries for word in block.split()}
    words |= set(re.findall(r"^\.\. py:data:: (\S+)$", page, re.M))
    return {word.rpartition(".")[2] for word in words}


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def targets(page: Path) -> Iterator[str]:
    """What a page links to: links and pictures, contents, and reStructuredText references to pages."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.S | re.M):
        yield from (
            f"{line}.md|{line}.rst" for line in block.split("\n") if line and not line.startswith(":")
        )
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    yield from re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose))
    yield from (f"{name}.md|{name}.rst" for name in re.findall(r":doc:`(?:[^`<]*<)?([^`>]+)>?`", text))


def missing(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    return [link for link in targets(page) if not link.startswith(ELSEWHERE) and not leads(page, link)]


def leads(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    base = DOCS if path.startswith("/") else page.parent
    files = [base / name.lstrip("/") for name in path.split("|")] if path else [page]
    there = [file for file in files if file.exists()]
    if not there or not anchor:
        return bool(there)
    headings = re.findall(r"^#+ (.*)$", there[0].read_text(encoding="utf-8"), re.M)
    return anchor in {slug(heading) for heading in headings}


@pytest.mark.parametrize("room", ROOMS)
def test_every_public_name_has_a_reference_page(room: str) -> None:
    page = (DOCS / "api" / f"{room.rpartition('.')[2]}.rst").read_text(encoding="utf-8")
    assert listed(page) == set(import_module(room).__all__)


def by_task() -> set[str]:
    """Names that the overview by task refers to, whole."""
    page = (DOCS / "api" / "index.md").read_text(encoding="utf-8")
    return set(re.findall(r"(?:\{py:obj\}`~|`)(boxloop\.[\w.]+)`", page))


def test_every_top_level_name_is_in_the_overview_by_task() -> None:
    assert {f"boxloop.{name}" for name in import_module("boxloop").__all__} - by_task() == set()


def test_names_in_the_overview_by_task_are_public() -> None:
    modules = {name.rpartition(".")[0] for name in by_task()}
    public = {f"{module}.{name}" for module in modules for name in import_module(module).__all__}
    assert by_task() - public == set()


def test_the_reference_test_can_fail() -> None:
    page = ".. autosummary::\n   :toctree: generated\n\n   One\n   ~boxloop.two\n\n.. py:data:: THREE\n"
    assert listed(page) == {"One", "two", "THREE"}


@pytest.mark.parametrize("page", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    assert missing(page) == []


@pytest.mark.parametrize(
    "text",
    [
        "[x](gone.md)",
        "![x](gone.png)",
        "[x](#no-such)",
        "```{toctree}\ngone\n```",
        ":doc:`/gone`",
        ":doc:`a <gone>`",
    ],
)
def test_the_link_test_can_fail(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{text}\n")
    assert len(missing(page)) == 1


def test_links_that_lead_somewhere_pass(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A title\n\n[x](page.md) [y](#a-title) [z](https://example.org) `[w](gone.md)`\n")
    assert missing(page) == []


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sphinx") is None, reason="pip install -c constraints.txt '.[docs]'")
def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "trees")]
    done = subprocess.run(
        [*command, str(DOCS), str(tmp_path / "html")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html" / "api" / "generated" / "boxloop.GaussianMixture.html").exists()
