"""The page of a network: whole, safe, small, the same every time, and legible in a browser."""

from __future__ import annotations

import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from boxloop.data import write_table
from cli.calls import done
from report.test_report import MEGABYTES, Reader

SHORT = ["--hidden", "5", "--epochs", "10", "--collect", "10", "--chains", "0"]
EVIL = '<b>price</b> & "more"</script>'


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("network")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200))
    kind = np.array(["<i>low</i>", "high"])[(a + b > 0).astype(int)]
    write_table(folder / "t.csv", {"a": a, "<u>b": b, EVIL: a**2 + b, "kind": kind})
    made = {}
    for name, words in {
        "numbers": ["--target", EVIL, "-o", folder / "m.boxloop"],
        "classes": ["--target", "kind", "--columns", "a,<u>b"],
    }.items():
        made[name] = folder / f"{name}.html"
        done("network", folder / "t.csv", *words, *SHORT, "--page", made[name], "-q")
    return made


@pytest.mark.parametrize("name", ["numbers", "classes"])
def test_the_page_is_whole_and_safe(pages: dict[str, Path], name: str) -> None:
    text = pages[name].read_text()
    assert len(text) < MEGABYTES
    page = Reader()
    page.feed(text)
    assert page.open == []
    assert page.outside == []
    assert len(set(page.ids)) == len(page.ids) >= 5
    assert all(picture["alt"] for picture in page.pictures)
    assert len(page.pictures) == 6
    for evil in ("<b>price", "<u>b", "<i>low"):
        assert evil not in text
    words = " ".join(page.text)
    assert "Concerns" in words
    assert ("linear regression" if name == "numbers" else "logistic regression") in words
    for anchor in re.findall(r'href="#([^"]+)"', text):
        assert anchor in page.ids


def test_the_command_on_the_page_makes_it_again(pages: dict[str, Path], tmp_path: Path) -> None:
    reader = Reader()
    reader.feed(pages["classes"].read_text())
    line = next(text for text in reader.text if text.startswith("boxloop network"))
    assert "--page" not in line
    done(*shlex.split(line)[1:], "--page", tmp_path / "again.html", "-q")
    assert (tmp_path / "again.html").read_text() == pages["classes"].read_text()


selenium = pytest.mark.skipif(
    find_spec("selenium") is None or shutil.which("chromium") is None or shutil.which("chromedriver") is None,
    reason="selenium, chromium or chromedriver is not installed",
)


@selenium
@pytest.mark.parametrize("name", ["numbers", "classes"])
def test_in_a_browser(pages: dict[str, Path], name: str) -> None:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        for width in (360, 800, 1400):
            driver.set_window_size(width, 900)
            driver.get(pages[name].as_uri())
            inner, whole = driver.execute_script(
                "return [window.innerWidth, document.documentElement.scrollWidth]"
            )
            assert whole <= inner
        assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
        widths = driver.execute_script("return [...document.images].map(i => i.naturalWidth)")
        assert min(widths) > 100
    finally:
        driver.quit()
