"""The page in a real browser: three widths, light and dark, no errors, nothing fetched, tables that sort.

Skipped where Chromium and its driver are not installed.
"""

from __future__ import annotations

import shutil

import pytest
from click.testing import CliRunner

from boxloop.cli import main

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="chromium and chromedriver are not installed"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("browser") / "report.html"
    result = CliRunner().invoke(main, ["report", "wine", "-o", str(path), "--jobs", "1", "-q"])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="module")
def driver():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield found
    found.quit()


def opened(driver, page, width=1280, dark=False):
    driver.set_window_size(width, 900)
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(page.as_uri())


@pytest.mark.parametrize("width", [360, 800, 1400])
def test_no_width_needs_scrolling_sideways(driver, page, width):
    opened(driver, page, width)
    inner, whole = driver.execute_script("return [window.innerWidth, document.documentElement.scrollWidth]")
    assert whole <= inner


def test_no_error_and_no_request(driver, page):
    driver.get_log("performance")
    opened(driver, page)
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    sent = [
        entry["message"] for entry in driver.get_log("performance") if "requestWillBeSent" in entry["message"]
    ]
    assert not [message for message in sent if '"url":"http' in message]


def test_every_picture_is_drawn(driver, page):
    opened(driver, page)
    widths = driver.execute_script("return [...document.images].map(i => i.naturalWidth)")
    assert len(widths) >= 7
    assert min(widths) > 100


def test_dark_and_light_are_legible(driver, page):
    """Contrast of text with its ground at least 4.5 (WCAG AA), in both schemes."""
    script = """
    const rgb = c => c.match(/[0-9.]+/g).slice(0, 3).map(Number);
    const light = c => { const [r, g, b] = rgb(c).map(v => { v /= 255;
      return v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4); });
      return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
    const ground = e => { while (e) { const c = getComputedStyle(e).backgroundColor;
      if (!c.startsWith('rgba(0, 0, 0, 0')) return c; e = e.parentElement; } return 'rgb(255, 255, 255)'; };
    return [...document.querySelectorAll('p, dt, dd, .mood, th, td, a, figcaption, footer')].map(e => {
      const a = light(getComputedStyle(e).color), b = light(ground(e));
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); });
    """
    for dark in (False, True):
        opened(driver, page, dark=dark)
        assert min(driver.execute_script(script)) >= 4.5


def test_tables_sort_by_mouse_and_keyboard(driver, page):
    from selenium.webdriver.common.keys import Keys

    opened(driver, page)
    rows = "document.querySelectorAll('#columns ~ div tbody tr')"
    column = f"return [...{rows}].map(row => parseFloat(row.cells[1].textContent))"
    head = driver.find_element("css selector", "#columns ~ div thead th:nth-child(2)")
    driver.execute_script("arguments[0].scrollIntoView()", head)
    head.send_keys(Keys.ENTER)
    rising = driver.execute_script(column)
    assert rising == sorted(rising)
    driver.execute_script("arguments[0].click()", head)
    assert driver.execute_script(column) == rising[::-1]


def test_it_is_readable_without_scripts(driver, page):
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(driver, page)
        text = driver.find_element("tag name", "body").text
        for words in ("Which model?", "Does it fit?", "Strange rows"):
            assert words in text
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_it_opens_within_a_second(driver, page):
    opened(driver, page)
    taken = driver.execute_script("const t = performance.timing; return t.loadEventEnd - t.navigationStart")
    assert taken < 1000
