"""Tests of the page of a causal language model in a real browser."""

import threading

import pytest

from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.models.incremental import IncrementalDecoder
from roformer_tf.serving.serve_generation import ServedGenerator
from tests.support.random_model import random_causal_lm
from tests.support.service_app import create_generation_app
from tests.support.service_page import Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return random_causal_lm(tmp_path_factory.mktemp("poems") / "model", max_position_embeddings=512)


@pytest.fixture
def steps(monkeypatch):
    """A semaphore that releases the decoder by numbers of tokens."""
    semaphore, append = threading.Semaphore(0), IncrementalDecoder.append

    def waiting_append(decoder, ids):
        assert semaphore.acquire(timeout=60)
        return append(decoder, ids)

    monkeypatch.setattr(IncrementalDecoder, "append", waiting_append)
    yield semaphore
    semaphore.release(10_000)


@pytest.fixture
def page(browser, running, model, steps):
    with running(create_generation_app(ServedGenerator("诗", model))) as (host, port):
        browser.get(f"http://{host}:{port}/")
        yield Page(browser)
        steps.release(10_000)
        browser.get("about:blank")


def begin(page, text, **settings):
    """Fill the form and send it."""
    (area,) = page.areas()
    area.clear()
    area.send_keys(text)
    if settings and not page.find("details[open]"):
        page.find("summary")[0].click()
    for name, value in settings.items():
        page.find(f"#setting-{name}")[0].clear()
        page.find(f"#setting-{name}")[0].send_keys(str(value))
    page.find("#ask")[0].click()


def generated_texts(page):
    return [item.text for item in page.find(".written")]


def expected_texts(model, text, **settings):
    return model.generate([text], **settings)[0]


def test_a_text_appears_while_it_is_generated(page, model, steps):
    assert page.text("#task") == "文本生成"
    settings = {"max_tokens": 12, "min_tokens": 12}
    begin(page, "今天", **settings)
    steps.release(3)
    page.wait.until(lambda _: len("".join(generated_texts(page))) > 2)
    (partial,) = generated_texts(page)
    assert page.find("#stop")[0].is_displayed()
    assert not page.find("#ask")[0].is_enabled()
    steps.release(10_000)
    page.wait.until(lambda _: page.find("#ask")[0].is_enabled())
    (text,) = expected_texts(model, "今天", **settings)
    assert generated_texts(page) == ["今天" + text]
    assert text.startswith(partial.removeprefix("今天"))
    assert len(partial) < len("今天" + text)
    assert not page.find("#stop")[0].is_displayed()
    assert page.browser.get_log("browser") == []


def test_a_stopped_text_stays_and_frees_the_service(page, model, steps):
    begin(page, "今天", max_tokens=300, min_tokens=300)
    steps.release(5)
    page.wait.until(lambda _: len("".join(generated_texts(page))) > 4)
    page.find("#stop")[0].click()
    page.wait.until(lambda _: page.find("#ask")[0].is_enabled())
    assert "已停止" in page.text("#result")
    (partial,) = generated_texts(page)
    page.find("#language")[0].click()
    assert "stopped" in page.text("#result")
    assert generated_texts(page) == [partial]
    page.find("#language")[0].click()
    steps.release(20)  # far fewer than the stopped request had left
    begin(page, "公园", max_tokens=4, min_tokens=4)
    page.wait.until(lambda _: page.find("#ask")[0].is_enabled())
    assert generated_texts(page) == [
        "公园" + expected_texts(model, "公园", max_tokens=4, min_tokens=4)[0]
    ]


def test_settings_reach_the_service(page, model, steps):
    steps.release(10_000)
    settings = {"samples": 3, "temperature": 1.5, "seed": 4, "max_tokens": 9}
    begin(page, "公园", **settings, stop="天 我们")
    page.wait.until(lambda _: page.find("#ask")[0].is_enabled() and generated_texts(page))
    want = expected_texts(model, "公园", **settings, stop=("天", "我们"))
    assert generated_texts(page) == ["公园" + text for text in want]
    assert "随机种子 4" in page.text("#result")
    defaults = GenerationConfig()
    placeholder = page.find("#setting-repetition_penalty")[0].get_attribute("placeholder")
    assert float(placeholder) == defaults.repetition_penalty
    begin(page, "公园", top_p="2")
    page.wait.until(lambda _: page.find("#error:not([hidden])"))
    assert "top_p is 2," in page.text("#error")
    assert page.text("#error").startswith("服务没有接受这个请求：")
