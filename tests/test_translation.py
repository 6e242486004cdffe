"""Every message has a translation with the same fields."""

import gettext
import re
import string
from pathlib import Path

import pytest

import roformer_tf
from roformer_tf.errors import InputError
from roformer_tf.translation import (
    ASKED,
    FOLDER,
    Message,
    Translator,
    choose_language,
    either,
    terminal_language,
)
from tests.support.help_texts import help_texts

PACKAGE = Path(roformer_tf.__file__).parent
PO = FOLDER / "zh" / "LC_MESSAGES" / "roformer_tf.po"
ZH = Translator("zh")
SAME = {"the CPU", "ROC AUC", "F1", "MRR@10", "nDCG@10"}
"""Terms that are not translated."""
TRANSLATE = (
    f"translate the new entries of {PO.name} into Chinese, then run `make translations` again"
)
CODE = re.compile(r"""\".*?\"|'.*?'|`.*?`|\[.*?\]""")


@pytest.fixture(scope="module")
def catalog():
    from babel.messages.pofile import read_po

    with PO.open("rb") as file:
        return {message.id: message for message in read_po(file, locale="zh") if message.id}


def test_every_message_is_translated_and_nothing_else(catalog):
    from babel.messages.extract import DEFAULT_KEYWORDS, extract_from_dir

    keywords = DEFAULT_KEYWORDS | {"Message": None, "say": None}
    methods = [("**.py", "python"), ("**.jinja", "jinja2")]
    options = {"**.jinja": {"extensions": "jinja2.ext.do", "silent": "false"}}
    extracted = {
        message for _, _, message, *_ in extract_from_dir(PACKAGE, methods, options, keywords)
    }
    extracted |= {*help_texts()}
    assert len(extracted) > 500
    assert extracted - catalog.keys() == set(), f"run `make translations`; {TRANSLATE}"
    assert catalog.keys() - extracted == set(), "run `make translations`, which removes them"
    missing = [x.id for x in catalog.values() if not x.string or x.fuzzy]
    assert missing == [], TRANSLATE


def test_the_compiled_catalog_is_that_of_the_text(catalog):
    from babel.messages.mofile import read_mo

    with PO.with_suffix(".mo").open("rb") as file:
        compiled = {item.id: item.string for item in read_mo(file) if item.id}
    expected = {text: message.string for text, message in catalog.items()}
    assert compiled == expected, "run `make translations`"
    translations = gettext.translation("roformer_tf", FOLDER, ["zh"])
    assert all(translations.gettext(text) == x.string for text, x in catalog.items())


def fields(template):
    return sorted((name, form) for _, name, form, _ in string.Formatter().parse(template) if name)


def test_translations_have_the_same_fields_and_are_chinese(catalog):
    for text, message in catalog.items():
        chinese = message.string
        assert {name for name, _ in fields(text)} == {name for name, _ in fields(chinese)}, text
        words = "".join(part for part, *_ in string.Formatter().parse(chinese))
        assert not any("\u4e00" <= x <= "\u9fff" for x in text)
        has_chinese = any("\u4e00" <= x <= "\u9fff" for x in words)
        assert has_chinese or text in SAME or not any(map(str.isalpha, words)), text
        assert not set(",;?!") & set(CODE.sub("", words)), text  # ，；？！


def test_a_message_is_english_text_that_can_be_translated():
    message = Message("recall@{cut}", cut=10)
    assert message == "recall@10"
    assert (Translator("en")(message), ZH(message)) == ("recall@10", "召回率@10")
    nested = Message("there is no example of {labels}", labels=["a", "b"])
    assert nested == "there is no example of a, b"
    assert ZH(nested) == "没有标签为 a、b 的样本"
    unit = Message("1–{longest} characters", longest=2)
    assert "1–2 字 TF-IDF" in ZH(
        Message(
            "TF-IDF of {unit} + {regression} (min_df {min_df}, C {strength:g}{chosen}){part}",
            unit=unit,
            regression="",
            min_df=1,
            strength=1.0,
            chosen="",
            part="",
        )
    )


def test_values_are_filled_in_once_and_unknown_text_stays():
    assert ZH("there is no example of {labels}", labels="{labels}") == "没有标签为 {labels} 的样本"
    assert ZH("{of the data}") == "{of the data}"
    assert ZH("") == ""


@pytest.mark.parametrize(
    ("language", "text"), [("en", "a, b and 1 more"), ("zh", "a、b等，另有 1 个")]
)
def test_a_listing_counts_the_remaining_items(language, text):
    assert Translator(language).listing(["a", "b", "c"], shown=2) == text


@pytest.mark.parametrize(
    ("names", "english", "chinese"),
    [
        (["a"], "a", "a"),
        (["a", "b"], "a or b", "a 或 b"),
        (["a", "b", Message("a number")], "a, b or a number", "a、b 或 数字"),
    ],
)
def test_alternatives_are_joined(names, english, chinese):
    assert (either(names), ZH(either(names))) == (english, chinese)


@pytest.mark.parametrize(
    ("variables", "requested", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "", "zh"),
        ({"LC_MESSAGES": "zh_TW.UTF-8", "LANG": "en_US.UTF-8"}, "auto", "zh"),
        ({"LC_ALL": "C", "LC_MESSAGES": "zh_CN", "LANG": "zh_CN"}, "", "en"),
        ({"LC_ALL": "", "LANG": "zh_CN"}, "french", "zh"),
        ({"LC_ALL": "zh_CN.UTF-8"}, "en", "en"),
        ({}, "zh", "zh"),
        ({}, "", "en"),
    ],
)
def test_the_terminal_uses_the_requested_language_or_the_locale(
    variables, requested, language, monkeypatch
):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    token = ASKED.set(requested)
    assert terminal_language() == language
    ASKED.reset(token)


def test_chinese_windows_is_recognized(monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("locale.setlocale", lambda _: "Chinese (Simplified)_China.936")
    assert terminal_language() == "zh"


def test_an_error_in_python_is_in_the_language_of_the_locale(monkeypatch):
    error = InputError(Message("{path} is a folder. Give a file in it.", path="data"))
    assert str(error) == "data is a folder. Give a file in it."
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert str(error) == "data 是文件夹。请给出其中的某个文件。"
    assert str(InputError("as it is")) == "as it is"
    assert str(InputError()) == ""


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (["房间很干净", "服务太差！！"], "zh"),
        (["the room was clean", "bad service"], "en"),
        (["房间很干净", "the room was clean"], "en"),
        (["iPhone 很好用，比上一代快多了"], "zh"),
        (["𠮷野家", "12345"], "zh"),
        (["ひらがなとカタカナ"], "en"),
        ([], "en"),
    ],
)
def test_the_language_is_that_of_most_letters_whatever_the_locale(texts, language, monkeypatch):
    for locale in ("zh_CN.UTF-8", "en_US.UTF-8", "C"):
        monkeypatch.setenv("LANG", locale)
        monkeypatch.setenv("LC_ALL", locale)
        assert choose_language("auto", texts) == language


def test_a_requested_language_is_used():
    assert choose_language("en", ["房间很干净"]) == "en"
    assert choose_language("zh", ["a clean room"]) == "zh"
