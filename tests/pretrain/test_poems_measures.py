"""Figures of known poems, compared with values computed by hand."""

import pytest

from pretrain.poems.forms import BY_TOKEN, lines_of
from pretrain.poems.measures import final_of, measure, rhyme_of, rhymes

WUJUE, QIJUE, WULV = (BY_TOKEN[token] for token in ("wujue", "qijue", "wulv"))
DENG = "白日依山盡，黃河入海流。欲窮千里目，更上一層樓。"  # 流 iu, 樓 ou
JING = "床前明月光，疑是地上霜。舉頭望明月，低頭思故鄉。"  # 霜 uang, 鄉 iang
CHUN = "春眠不覺曉，處處聞啼鳥。夜來風雨聲，花落知多少。"  # 鳥 iao, 少 ao
BAIDI = "朝辭白帝彩雲間，千里江陵一日還。兩岸猿聲啼不住，輕舟已過萬重山。"  # 還 uan or ai, 山 an
WANG = (  # 城 eng, 深 en, 心 in, 金 in
    "國破山河在，城春草木深。感時花濺淚，恨別鳥驚心。"
    "烽火連三月，家書抵萬金。白頭搔更短，渾欲不勝簪。"  # 深 en, 心 in, 金 in, 簪 an
)

FINALS = {"流": "u", "樓": "u", "霜": "ang", "鄉": "ang", "鳥": "ao", "少": "", "深": "in"}
FINALS |= {"心": "in", "金": "in", "簪": "an"}


def test_finals_are_those_of_pinyin_without_tones():
    pytest.importorskip("pypinyin", reason="pypinyin is not installed: pip install -e '.[poems]'")
    finals = {"山": "an", "雲": "vn", "月": "ve", "圓": "van", "光": "uang", "兒": "er", "知": "i"}
    assert {c: final_of(c) for c in finals} == finals
    assert final_of("，") == final_of("a") == final_of("1") == ""


def test_pairs_of_even_lines_are_compared_within_a_poem():
    poems = [lines_of(text) for text in (DENG, JING, CHUN, WANG)]
    measured = rhymes(poems, FINALS.__getitem__)
    # 流樓, 霜鄉, 鳥少 (少 has no final), and six pairs of 深心金簪, of which three rhyme
    assert (measured.pairs, measured.alike) == (9, 1 + 1 + 0 + 3)
    assert measured.share == pytest.approx(5 / 9)
    # Endings: u 2, ang 2, ao 1, none 1, in 3, an 1. 2 + 2 + 6 of 10 · 9 ordered pairs are equal.
    assert measured.chance == pytest.approx(10 / 90)


def test_the_rhyme_is_the_final_of_most_even_lines(monkeypatch):
    monkeypatch.setattr("pretrain.poems.measures.final_of", FINALS.__getitem__)
    assert rhyme_of(lines_of(DENG)) == "u"
    assert rhyme_of(lines_of(WANG)) == "in"  # three of four
    assert rhyme_of(["一", "鳥", "二", "心"]) == ""  # none of two
    assert rhyme_of(["一", "少", "二", "少"]) == ""  # no finals
    assert rhyme_of(["一", "心", "二", "流", "三", "樓", "四", "金"]) == "in"  # the first of two


def test_lines_without_a_final_do_not_rhyme():
    measured = rhymes([["一", "少", "二", "少"]], FINALS.__getitem__)
    assert (measured.pairs, measured.alike, measured.chance) == (1, 0, 0.0)


def test_empty_input_is_not_an_error():
    measured = rhymes([], FINALS.__getitem__)
    assert (measured.pairs, measured.alike, measured.chance, measured.share) == (0, 0, 0.0, 0.0)
    nothing = measure([], set())
    assert (nothing.poems, nothing.of_form, nothing.new_lines, nothing.new_poems) == (
        0,
        0.0,
        0.0,
        0.0,
    )


def test_poems_are_measured_by_the_requested_form(monkeypatch):
    monkeypatch.setattr("pretrain.poems.measures.final_of", FINALS.__getitem__)
    texts_with_forms = [
        (WUJUE, DENG),
        (WUJUE, JING),
        (WUJUE, BAIDI),
        (WULV, WANG),
        (WULV, DENG),
        (QIJUE, ""),
    ]
    known = {"白日依山盡", "黃河入海流", "床前明月光", "城春草木深", "千里江陵一日還"}
    measured = measure(texts_with_forms, known)
    assert measured.poems == 6
    assert measured.of_form == pytest.approx(3 / 6)  # DENG, JING, WANG
    assert (measured.rhymes.pairs, measured.rhymes.alike) == (1 + 1 + 6, 1 + 1 + 3)
    assert measured.new_lines == pytest.approx(1 - 4 / 16)  # 4 of their 4 + 4 + 8 lines are known
    assert measured.new_poems == 0.0
    assert measure(texts_with_forms[:2], {"白日依山盡"}).new_poems == 0.5
