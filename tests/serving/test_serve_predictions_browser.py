"""Tests of the page in a real browser: they need Chromium, its driver, and selenium."""

import json
import re
import subprocess
from contextlib import ExitStack

import numpy as np
import pytest

from roformer_tf.serving.serve_predictions import ServedTask
from roformer_tf.serving.settings import Limits
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.extraction.prompted_spans import PromptedSpans
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.tagging import Tagging
from tests.support.service_app import create_task_app
from tests.support.service_page import Page

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def page(browser, running):
    """page(task, logits) → a Page of a service that always predicts these logits."""
    with ExitStack() as servers:

        def open_page(task, logits, **limits):
            def predict(examples):
                units = [len(example.units) for example in examples]
                return [
                    task.decoding.predict(np.array(logits, "float32")[: n or None]) for n in units
                ]

            app = create_task_app(ServedTask("酒店", task, predict), limits=Limits(**limits))
            host, port = servers.enter_context(running(app))
            browser.get(f"http://{host}:{port}/")
            return Page(browser)

        yield open_page
        browser.get("about:blank")


TASK = Classification(labels=("坏", "好"))


def test_probabilities_are_shown_as_bars(page):
    view = page(TASK, [0, 2])
    assert view.text("h1") == "酒店"
    assert view.text("#task") == "文本分类"
    assert view.ask("房间很干净") == ["好", "好", "88.1%", "坏", "11.9%"]
    track, fill = view.find(".track")[0], view.find(".fill")[0]
    assert fill.size["width"] / track.size["width"] == pytest.approx(0.881, abs=0.02)


def test_the_request_is_shown_as_a_working_command(page):
    view = page(TASK, [0, 2])
    view.ask("it's 'good' \\ $HOME")
    view.find("#request summary")[0].click()
    command = view.text("#request pre")
    process = subprocess.run(["bash", "-c", f"{command} --silent"], capture_output=True, check=True)
    assert "it'\\''s" in command
    assert json.loads(process.stdout)["predictions"][0]["label"] == "好"


def test_the_page_works_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    view = page(TASK, [0, 2])
    assert view.browser.switch_to.active_element == view.areas()[0]
    assert view.ask("好", key=(Keys.CONTROL, Keys.ENTER))[0] == "好"


def test_texts_and_labels_are_never_parsed_as_html(page):
    entity = Tagging(labels=("O", f"B-{HOSTILE}"))
    view = page(entity, [[0, 9]] + [[9, 0]] * 100)
    assert view.ask(HOSTILE) == [f"<{HOSTILE}{HOSTILE[1:]}"]
    assert page(Classification(labels=(HOSTILE, "b")), [2, 0]).ask("a")[0] == HOSTILE
    assert view.find("img") == []
    assert view.browser.get_log("browser") == []  # neither an error nor a violation of the CSP


def test_pairs_and_triples_have_a_field_for_each_text(page):
    pair = Pair(labels=("0", "1"), text_columns=("a", "b"))
    assert page(pair, [2, 0]).ask("怎么改密码", "密码在哪里改")[0] == "0"
    triple = Ranking(text_columns=("a", "b", "c"))
    assert page(triple, [0, 2]).ask("甲", "乙", "丙") == [
        *("C 更接近 A", "C", "88.1%", "B", "50.0%")
    ]


def test_numbers_and_several_labels(page):
    assert page(Regression(mean=3, deviation=2), [0.25]).ask("好") == ["3.5"]
    multilabel = Multilabel(labels=tuple("甲乙丙"))
    assert page(multilabel, [5, -5, 4]).ask("好")[0] == "甲，丙"
    assert page(multilabel, [-5, -5, -5]).ask("好")[0] == "没有标签"
    many = Classification(labels=tuple(f"{i}" for i in range(30)))
    assert page(many, range(30)).ask("好")[-1] == "另有 25 个标签"


def test_entities_are_marked_in_their_text(page):
    """Positions count code points: characters outside the basic plane do not shift them."""
    task = Tagging(labels=("O", "B-LOC", "I-LOC"))
    logits = 9 * np.eye(3)[[0, 0, 1, 2, 0]]
    view = page(task, logits)
    view.browser.execute_script("arguments[0].value = '𠮷在北京。'", view.areas()[0])
    view.find("#ask")[0].click()
    view.wait.until(lambda _: view.find("#result:not([hidden])"))
    assert view.text("#result") == "𠮷在北京LOC。"
    assert view.text("mark") == "北京LOC"
    words = Tagging(labels=("n", "v"), spaced_units=True)
    view = page(words, [[9, 0], [0, 9]])
    assert "空格" in view.text("label")
    assert view.ask("我们 去") == ["我们n 去v"]


@pytest.mark.parametrize("task", [TASK, Ranking(text_columns=("a", "b", "c"))])
def test_an_example_fills_all_fields(page, task):
    view = page(task, [0, 2])
    view.find("#example")[0].click()
    assert all(area.get_attribute("value") for area in view.areas())
    view.find("#ask")[0].click()
    view.wait.until(lambda _: view.find("#result:not([hidden])"))


def test_custom_labels_can_be_requested(browser, running):
    task, requested_labels = PromptedSpans(labels=("地点",)), []

    def predict(examples, requested_task=None):
        requested_labels.append((requested_task or task).labels)
        return [task.decoding.predict(np.zeros((0, 4), "float32"))] * len(examples)

    with running(create_task_app(ServedTask("m", task, predict))) as (host, port):
        browser.get(f"http://{host}:{port}/")
        view = Page(browser)
        assert view.ask("小米手机") == ["没有找到实体"]
        view.find("#labels")[0].send_keys(" 品牌  价格")
        assert view.ask("小米手机") == ["没有找到实体"]
    assert requested_labels[-2:] == [("地点",), ("品牌", "价格")]


def test_errors_are_shown_and_can_be_corrected(page):
    view = page(TASK, [0, 2], max_characters=5)
    message = "服务没有接受这个请求：text 1 has 6 characters, but at most 5 are allowed"
    assert view.ask("一二三四五六") == [message]
    assert view.ask("   ") == ["请输入文本。"]
    assert view.ask("好")[0] == "好"
    assert not view.find("#error")[0].is_displayed()


def test_an_unreachable_service_is_reported(page, browser, running):
    with running(create_task_app(ServedTask("m", TASK, lambda examples: []))) as (host, port):
        browser.get(f"http://{host}:{port}/")
        view = Page(browser)
    assert view.ask("好") == ["连接不上服务。"]


def test_changing_the_language_keeps_texts_and_predictions(page):
    """The browser's language is the default; a chosen one is kept for the next visit."""
    view = page(Multilabel(labels=("甲", "乙")), [-5, -5])
    assert view.ask("很好")[0] == "没有标签"
    chinese = view.text("body")
    view.find("#language")[0].click()
    assert view.areas()[0].get_attribute("value") == "很好"
    english = view.text("body").replace("中文", "")
    assert "No label" in english
    assert not re.search(
        r"[一-鿿]", english.replace("甲", "").replace("乙", "").replace("酒店", "")
    )
    view.browser.refresh()
    view.wait.until(lambda _: view.areas())
    assert view.text("#ask") == "Predict"
    assert view.ask("  ") == ["Enter a text."]
    view.find("#language")[0].click()
    assert view.text("#error") == "请输入文本。"
    assert view.ask("很好")
    assert view.text("body") == chinese


def test_the_api_documentation_opens_from_the_page(page):
    view = page(TASK, [0, 2])
    view.browser.get_log("browser")  # clears messages of earlier tests
    view.find("#docs")[0].click()
    view.wait.until(lambda _: "/predict" in view.text("#swagger-ui"))
    assert view.browser.get_log("browser") == []
