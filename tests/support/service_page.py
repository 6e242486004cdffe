"""The test page of the service, used through a browser."""


class Page:
    """A user's actions on the page, and the page's visible texts."""

    def __init__(self, browser):
        from selenium.webdriver.support.wait import WebDriverWait

        self.browser = browser
        self.wait = WebDriverWait(browser, 30)
        self.wait.until(lambda _: self.areas())

    def find(self, selector):
        return self.browser.find_elements("css selector", selector)

    def areas(self):
        return [area for area in self.find("textarea") if area.is_displayed()]

    def text(self, selector):
        return self.find(selector)[0].text

    def ask(self, *texts, key=None):
        """Type texts, send them, and wait for the result. Return its lines."""
        self.browser.execute_script("result.hidden = error.hidden = true")  # hide an earlier result
        for area, text in zip(self.areas(), texts, strict=True):
            area.clear()
            area.send_keys(text)
        if key:
            self.areas()[-1].send_keys(*key)
        else:
            self.find("#ask")[0].click()
        shown = "#result:not([hidden]), #error:not([hidden])"
        answer = self.wait.until(lambda _: self.find(shown))[0].text
        return [line.strip() for line in answer.splitlines()]
