import pytest

from roformer_tf.finetuning.report.language import choose_language
from roformer_tf.labelled.examples import Example


def of(*texts):
    return [Example((text,), "0", "") for text in texts]


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
def test_auto_is_what_most_letters_of_the_texts_are(texts, language, monkeypatch):
    for locale in ("zh_CN.UTF-8", "en_US.UTF-8", "C"):
        monkeypatch.setenv("LANG", locale)
        monkeypatch.setenv("LC_ALL", locale)
        assert choose_language("auto", of(*texts)) == language


def test_what_is_asked_for_wins():
    assert choose_language("en", of("房间很干净")) == "en"
    assert choose_language("zh", of("a clean room")) == "zh"
