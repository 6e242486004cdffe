"""A report in a browser, at desktop and phone width; needs Chromium and its driver."""

import pytest

from roformer_tf.finetuning.report.analysis import analyse
from roformer_tf.finetuning.report.pages import html_page
from roformer_tf.tasks.table import TASKS
from roformer_tf.translation import LANGUAGES
from tests.support.report_run import make_run

pytestmark = pytest.mark.browser

LONG = "runs/" + "a_very_long_name_of_a_folder_" * 6


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", TASKS)
def test_no_page_scrolls_horizontally(name, language, width, browser, tmp_path):
    settings = {"checkpoint": LONG, "train": LONG, "text_columns": ["x" * 80]}
    page = tmp_path / "report.html"
    page.write_text(
        html_page(analyse(make_run(name, settings=settings)), language), encoding="utf-8"
    )
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    outside = """return [...document.querySelectorAll("p, .tile, li, img, .mistake, pre")]
        .filter((x) => x.getBoundingClientRect().right > window.innerWidth + 1).length"""
    assert browser.execute_script(outside) == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_embedded_font_is_loaded_and_comes_first(language, browser, tmp_path):
    """If it was not the first font, text laid out before it had loaded stayed as boxes."""
    page = tmp_path / "report.html"
    page.write_text(html_page(analyse(make_run()), language), encoding="utf-8")
    browser.get(page.as_uri())
    loaded = """const done = arguments[0];
        document.fonts.ready.then(() => done([...document.fonts].map((x) => x.status)))"""
    assert browser.execute_async_script(loaded) == ["loaded"]
    first = browser.execute_script("return getComputedStyle(document.body).fontFamily")
    assert first.split(",")[0].strip('"') == "Packed"
