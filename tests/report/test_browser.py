"""The page in a real browser: three widths, light and dark, no errors, nothing fetched, tables that sort.

Skipped where Chromium and its driver are not installed.
"""

from __future__ import annotations

import json
import shutil

import pytest
from click.testing import CliRunner

from boxloop.cli import main

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None, reason="chromium and chromedriver are not installed"
)

LOADED = "return document.readyState === 'complete' && location.href === arguments[0]"


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
    from selenium.webdriver.support.ui import WebDriverWait

    driver.get("about:blank")
    driver.set_window_size(width, 900)
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.get(page.as_uri())
    # The driver may answer before a busy browser has run the page's script.
    WebDriverWait(driver, 30).until(lambda d: d.execute_script(LOADED, page.as_uri()))


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
    return [...document.querySelectorAll('p, dt, dd, .level, th, td, a, figcaption, footer')].map(e => {
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


def test_pointing_at_a_picture_gives_the_value(driver, page):
    """Every picture's first spot, by mouse; then the next by keyboard; and the words are those of the table."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    opened(driver, page)
    plots = [p for p in driver.find_elements("css selector", ".plot[data-spots]") if p.is_displayed()]
    assert len(plots) >= 4
    for plot in plots:
        spots = json.loads(plot.get_attribute("data-spots"))
        assert all(0.0 <= x <= 1.0 and 0.0 <= y <= 1.0 for x, y, _ in spots)
        driver.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
        x, y, _ = spots[0]
        size = plot.size
        ActionChains(driver).move_to_element_with_offset(
            plot, round((x - 0.5) * size["width"]), round((y - 0.5) * size["height"])
        ).perform()
        tip = plot.find_element("class name", "tip")
        assert tip.is_displayed()
        near = [w for a, b, w in spots if abs(a - x) * size["width"] < 2 and abs(b - y) * size["height"] < 2]
        assert tip.text in near
        here = [w for *_, w in spots].index(tip.text)
        plot.send_keys(Keys.ARROW_RIGHT)
        assert tip.text == spots[(here + 1) % len(spots)][2]
        plot.send_keys(Keys.ESCAPE)
        assert not tip.is_displayed()
    best = driver.find_element("css selector", "#fit ~ .scroll tbody tr th").text.split(" ", 2)[-1]
    first = json.loads(driver.find_element("css selector", "#fit ~ .pair .plot").get_attribute("data-spots"))
    assert any(word in first[0][2] for word in best.split())


def test_another_candidate_can_be_chosen(driver, page):
    from selenium.webdriver.support.ui import Select

    opened(driver, page)
    choice = Select(driver.find_element("css selector", ".choose select"))
    panels = driver.find_elements("css selector", ".choose details")
    assert [o.text for o in choice.options] == ["(none)", *[p.get_attribute("data-name") for p in panels]]
    assert not any(p.is_displayed() for p in panels)
    choice.select_by_index(2)
    assert [p.is_displayed() for p in panels] == [i == 1 for i in range(len(panels))]
    assert panels[1].get_attribute("open")


def test_it_is_readable_without_scripts(driver, page):
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(driver, page)
        text = driver.find_element("tag name", "body").text
        for words in ("Which model?", "Does it fit?", "Outliers"):
            assert words in text
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_it_opens_within_a_second(driver, page):
    opened(driver, page)
    taken = driver.execute_script("const t = performance.timing; return t.loadEventEnd - t.navigationStart")
    assert taken < 1000
