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

        def show(task, logits, **limits):
            def answer(examples):
                units = [len(example.units) for example in examples]
                return [
                    task.decoding.predict(np.array(logits, "float32")[: n or None]) for n in units
                ]

            app = create_task_app(ServedTask("酒店", task, answer), limits=Limits(**limits))
            host, port = servers.enter_context(running(app))
            browser.get(f"http://{host}:{port}/")
            return Page(browser)

        yield show
        browser.get("about:blank")


TASK = Classification(labels=("坏", "好"))


def test_probabilities_are_shown_as_bars(page):
    shown = page(TASK, [0, 2])
    assert shown.text("h1") == "酒店"
    assert shown.text("#task") == "文本分类"
    assert shown.ask("房间很干净") == ["好", "好", "88.1%", "坏", "11.9%"]
    track, fill = shown.find(".track")[0], shown.find(".fill")[0]
    assert fill.size["width"] / track.size["width"] == pytest.approx(0.881, abs=0.02)


def test_the_request_is_shown_as_a_command_that_gives_the_same_answer(page):
    shown = page(TASK, [0, 2])
    shown.ask("it's 'good' \\ $HOME")
    shown.find("#request summary")[0].click()
    command = shown.text("#request pre")
    answer = subprocess.run(["bash", "-c", f"{command} --silent"], capture_output=True, check=True)
    assert "it'\\''s" in command
    assert json.loads(answer.stdout)["predictions"][0]["label"] == "好"


def test_the_keyboard_suffices(page):
    from selenium.webdriver.common.keys import Keys

    shown = page(TASK, [0, 2])
    assert shown.browser.switch_to.active_element == shown.areas()[0]
    assert shown.ask("好", key=(Keys.CONTROL, Keys.ENTER))[0] == "好"


def test_texts_and_labels_are_never_parsed_as_html(page):
    entity = Tagging(labels=("O", f"B-{HOSTILE}"))
    shown = page(entity, [[0, 9]] + [[9, 0]] * 100)
    assert shown.ask(HOSTILE) == [f"<{HOSTILE}{HOSTILE[1:]}"]
    assert page(Classification(labels=(HOSTILE, "b")), [2, 0]).ask("a")[0] == HOSTILE
    assert shown.find("img") == []
    assert shown.browser.get_log("browser") == []  # neither an error nor a violation of the CSP


def test_pairs_and_triples_have_a_field_for_each_text(page):
    pair = Pair(labels=("0", "1"), text_columns=("a", "b"))
    assert page(pair, [2, 0]).ask("怎么改密码", "密码在哪里改")[0] == "0"
    triple = Ranking(text_columns=("a", "b", "c"))
    assert page(triple, [0, 2]).ask("甲", "乙", "丙") == [
        *("C 更接近 A", "C", "88.1%", "B", "50.0%")
    ]


def test_numbers_and_several_labels(page):
    assert page(Regression(mean=3, deviation=2), [0.25]).ask("好") == ["3.5"]
    several = Multilabel(labels=tuple("甲乙丙"))
    assert page(several, [5, -5, 4]).ask("好")[0] == "甲，丙"
    assert page(several, [-5, -5, -5]).ask("好")[0] == "没有标签"
    many = Classification(labels=tuple(f"{i}" for i in range(30)))
    assert page(many, range(30)).ask("好")[-1] == "另有 25 个标签"


def test_entities_are_marked_in_their_text(page):
    """Positions count code points: characters outside the basic plane do not shift them."""
    task = Tagging(labels=("O", "B-LOC", "I-LOC"))
    logits = 9 * np.eye(3)[[0, 0, 1, 2, 0]]
    shown = page(task, logits)
    shown.browser.execute_script("arguments[0].value = '𠮷在北京。'", shown.areas()[0])
    shown.find("#ask")[0].click()
    shown.wait.until(lambda _: shown.find("#result:not([hidden])"))
    assert shown.text("#result") == "𠮷在北京LOC。"
    assert shown.text("mark") == "北京LOC"
    words = Tagging(labels=("n", "v"), spaced_units=True)
    shown = page(words, [[9, 0], [0, 9]])
    assert "空格" in shown.text("label")
    assert shown.ask("我们 去") == ["我们n 去v"]


@pytest.mark.parametrize("task", [TASK, Ranking(text_columns=("a", "b", "c"))])
def test_an_example_fills_all_fields(page, task):
    shown = page(task, [0, 2])
    shown.find("#example")[0].click()
    assert all(area.get_attribute("value") for area in shown.areas())
    shown.find("#ask")[0].click()
    shown.wait.until(lambda _: shown.find("#result:not([hidden])"))


def test_labels_of_the_users_own_can_be_asked_for(browser, running):
    task, asked = PromptedSpans(labels=("地点",)), []

    def answer(examples, other=None):
        asked.append((other or task).labels)
        return [task.decoding.predict(np.zeros((0, 4), "float32"))] * len(examples)

    with running(create_task_app(ServedTask("m", task, answer))) as (host, port):
        browser.get(f"http://{host}:{port}/")
        shown = Page(browser)
        assert shown.ask("小米手机") == ["没有找到实体"]
        shown.find("#labels")[0].send_keys(" 品牌  价格")
        assert shown.ask("小米手机") == ["没有找到实体"]
    assert asked[-2:] == [("地点",), ("品牌", "价格")]


def test_errors_are_shown_and_can_be_corrected(page):
    shown = page(TASK, [0, 2], max_characters=5)
    refused = "服务没有接受这个请求：text 1 has 6 characters, but at most 5 are allowed"
    assert shown.ask("一二三四五六") == [refused]
    assert shown.ask("   ") == ["请输入文本。"]
    assert shown.ask("好")[0] == "好"
    assert not shown.find("#error")[0].is_displayed()


def test_an_unreachable_service_is_reported(page, browser, running):
    with running(create_task_app(ServedTask("m", TASK, lambda examples: []))) as (host, port):
        browser.get(f"http://{host}:{port}/")
        shown = Page(browser)
    assert shown.ask("好") == ["连接不上服务。"]


def test_changing_the_language_keeps_texts_and_answers(page):
    """The browser's language is the default; a chosen one is kept for the next visit."""
    shown = page(Multilabel(labels=("甲", "乙")), [-5, -5])
    assert shown.ask("很好")[0] == "没有标签"
    chinese = shown.text("body")
    shown.find("#language")[0].click()
    assert shown.areas()[0].get_attribute("value") == "很好"
    english = shown.text("body").replace("中文", "")
    assert "No label" in english
    assert not re.search(
        r"[一-鿿]", english.replace("甲", "").replace("乙", "").replace("酒店", "")
    )
    shown.browser.refresh()
    shown.wait.until(lambda _: shown.areas())
    assert shown.text("#ask") == "Predict"
    assert shown.ask("  ") == ["Enter a text."]
    shown.find("#language")[0].click()
    assert shown.text("#error") == "请输入文本。"
    assert shown.ask("很好")
    assert shown.text("body") == chinese


def test_the_api_documentation_opens_from_the_page(page):
    shown = page(TASK, [0, 2])
    shown.browser.get_log("browser")  # clears messages of earlier tests
    shown.find("#docs")[0].click()
    shown.wait.until(lambda _: "/predict" in shown.text("#swagger-ui"))
    assert shown.browser.get_log("browser") == []
