"""The pages are whole: a reference page for every public name, and no link into nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
            "networks",
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


needs_sphinx = pytest.mark.skipif(
    find_spec("sphinx") is None, reason="pip install -c constraints.txt '.[docs]'"
)
needs_browser = pytest.mark.skipif(
    find_spec("selenium") is None or shutil.which("chromium") is None or shutil.which("chromedriver") is None,
    reason="selenium, chromium or chromedriver is not installed",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, built with every warning an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(folder / "trees")]
    done = subprocess.run(
        [*command, str(DOCS), str(folder / "html")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder / "html"


@pytest.mark.slow
@needs_sphinx
def test_the_pages_build_without_a_warning(site: Path) -> None:
    assert (site / "api" / "generated" / "boxloop.GaussianMixture.html").exists()


@pytest.mark.slow
@needs_sphinx
@needs_browser
def test_code_has_a_button_that_copies_it_and_pages_fit_a_phone(site: Path) -> None:
    with open_browser() as driver:
        for width in (390, 1280):
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            for page in (
                "tutorial",
                "from_mclust",
                "how_it_compares",
                "api/index",
                "api/generated/boxloop.load",
            ):
                driver.get((site / f"{page}.html").as_uri())
                inner, whole, code, buttons = driver.execute_script(
                    "const count = (path) => document.querySelectorAll(path).length;"
                    "return [window.innerWidth, document.documentElement.scrollWidth,"
                    "count('div:not(.highlight-text) > .highlight > pre'), count('button.copybtn')]"
                )
                assert whole <= inner, page
                assert buttons == code, page
        session = copied(driver)
        assert "load(f" in session
        assert ">>>" not in session
        driver.get((site / "tutorial.html").as_uri())
        assert copied(driver).splitlines()[:2] == ["import numpy as np", "import pandas as pd"]


@contextmanager
def open_browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def copied(driver: Any) -> str:
    """What the first button of a page copies. Only a real click may copy; the page may move while it loads."""
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    driver.execute_script(
        "document.addEventListener('copy', () => { window.copied = document.activeElement.value; }, true);"
    )

    def click(driver: Any) -> str | None:
        button = driver.find_element(By.CSS_SELECTOR, "button.copybtn")
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        ActionChains(driver).move_to_element(button).click().perform()
        return driver.execute_script("return window.copied")

    return WebDriverWait(driver, 20).until(click)
