"""Take the pictures of README and the quick start with Chromium.

    python docs/screenshots.py RUN

RUN is the folder of a fine-tuning. The service of its model must run on port 8000.
"""

import shutil
import sys
import time
from pathlib import Path

from selenium import webdriver

FIGURES = Path(__file__).parent / "figures"
PAUSE = 2  # seconds until a page has drawn its figures
WIDTH = 820
REPORT_HEIGHT, SERVICE_HEIGHT = 820, 680


def main(run: str) -> None:
    """Save report.png and service.png."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--hide-scrollbars", "--lang=zh-CN"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with webdriver.Chrome(options, service) as browser:
        browser.set_window_size(WIDTH, REPORT_HEIGHT)
        browser.get((Path(run).resolve() / "report.html").as_uri())
        time.sleep(PAUSE)
        browser.save_screenshot(str(FIGURES / "report.png"))

        browser.set_window_size(WIDTH, SERVICE_HEIGHT)
        browser.get("http://127.0.0.1:8000")
        browser.find_element("css selector", "textarea").send_keys("房间很干净，服务也好")
        browser.find_element("css selector", "#ask").click()
        time.sleep(PAUSE)
        browser.save_screenshot(str(FIGURES / "service.png"))


if __name__ == "__main__":
    main(sys.argv[1])
