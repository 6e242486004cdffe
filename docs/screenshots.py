"""Take the pictures of README and the documentation with Chromium.

    python docs/screenshots.py --run RUN --comparison COMPARISON --poems POEMS

RUN is the folder of a fine-tuning, whose model's service must run on port 8000. COMPARISON is the
output of `python -m benchmarks.positions`, POEMS that of `make poems`. Each may be omitted.
"""

import argparse
import shutil
import time
from pathlib import Path

from selenium import webdriver

FIGURES = Path(__file__).parent / "figures"
PAUSE = 2  # seconds until a page has drawn its figures
WIDTH = 820
# Heights of the windows; the pictures lack the 143 pixels of the browser's own bars.
REPORT, SERVICE, COMPARISON, POEMS = 820, 750, 690, 960


def main() -> None:
    """Save report.png, service.png, comparison.png and poems.png."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("run", "comparison", "poems"):
        parser.add_argument(f"--{name}", type=Path)
    folders = parser.parse_args()
    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--hide-scrollbars"):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"intl.accept_languages": "zh-CN"})
    options.binary_location = shutil.which("chromium") or ""
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options, service) as browser:
        browser.implicitly_wait(30)  # seconds, for parts that a script of the page adds

        def save(name: str) -> None:
            time.sleep(PAUSE)
            browser.save_screenshot(str(FIGURES / f"{name}.png"))

        def show(page: Path, height: int) -> None:
            browser.set_window_size(WIDTH, height)
            browser.get(page.resolve().as_uri())

        if folders.run:
            show(folders.run / "report.html", REPORT)
            save("report")
            browser.set_window_size(WIDTH, SERVICE)
            browser.get("http://127.0.0.1:8000")
            browser.find_element("css selector", "textarea").send_keys("房间很干净，服务也好")
            browser.find_element("css selector", "#ask").click()
            save("service")
        if folders.comparison:
            show(folders.comparison / "comparison.html", COMPARISON)
            save("comparison")
        if folders.poems:
            show(folders.poems / "poems.html", POEMS)
            save("poems")


if __name__ == "__main__":
    main()
