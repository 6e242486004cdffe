import ast
import string
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import roformer_tf
from roformer_tf.tasks.wording import LANGUAGES, Words, in_language

GOOD = Words("good", "好")


class Pair(NamedTuple):
    name: Words
    number: int


@dataclass(frozen=True)
class Block:
    head: list
    kind: str = "block"


def test_words_stand_in_both_languages_or_not_at_all():
    with pytest.raises(TypeError):
        Words("good")


def test_fields_are_filled_in_each_language_with_its_own_words():
    said = Words("{n:,} are {what}", "{what}的有 {n:,} 个").format(n=1234, what=GOOD)
    assert said == Words("1,234 are good", "好的有 1,234 个")
    assert Words("{a}", "{a}").format(a="{b}") == Words("{b}", "{b}")  # of the data: not a field


def test_latin_words_keep_their_distance_from_chinese_characters():
    f1, macro = Words("F1", "F1"), Words("macro F1", "宏平均 F1")
    template = Words("the {m} is {x}", "模型的{m}为 {x}，{m}高")
    assert template.format(m=f1, x="0.9").zh == "模型的 F1 为 0.9，F1 高"
    assert template.format(m=macro, x="0.9").zh == "模型的宏平均 F1 为 0.9，宏平均 F1 高"
    assert template.format(m=GOOD, x="0.9").zh == "模型的好为 0.9，好高"
    assert Words("{a}", "标签{a}有").format(a="x1").zh == "标签x1有"  # of the data: as it is


def test_one_language_is_taken_at_any_depth():
    value = {"x": [Pair(GOOD, 1), ("a", GOOD)], GOOD: Block([GOOD, "c"])}
    assert in_language(value, "zh") == {"x": [Pair("好", 1), ["a", "好"]], "好": Block(["好", "c"])}
    assert in_language(value, "en")["good"] == Block(["good", "c"])
    assert in_language(Words, "en") is Words
    assert LANGUAGES == ("en", "zh")


def every_words():
    """Each `Words("…", "…")` of the package as it is written: (place, English, Chinese)."""
    package = Path(roformer_tf.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Words":
                parts = [x.value for x in node.args if isinstance(x, ast.Constant)]
                if len(parts) == 2:
                    yield f"{path.name}:{node.lineno}", *parts


def fields(template):
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


ENGLISH_ALONE = {"examples", "texts", "times"}  # 1 text, 2 texts: with their plural
CHINESE_ALONE = {"number", "least"}  # in their place
SAME = {"ROC AUC", "F1", "zh-CN", "MRR@10", "nDCG@10"}


def test_both_languages_have_the_same_fields():
    found = [*every_words()]
    assert len(found) > 100
    for place, en, zh in found:
        assert fields(en) - fields(zh) <= ENGLISH_ALONE, place
        assert fields(zh) - fields(en) <= CHINESE_ALONE, place


def test_chinese_is_chinese_and_english_is_not():
    for place, en, zh in every_words():
        assert not any("\u4e00" <= x <= "\u9fff" for x in en), place
        assert not en or zh, place
        written = any("\u4e00" <= x <= "\u9fff" for x in zh)
        assert written or zh in SAME or not any(x.isalpha() for x in strip_fields(zh)), place
        assert not set(",;?!") & set(strip_fields(zh)), place  # ，；？！


def strip_fields(template):
    return "".join(text for text, *_ in string.Formatter().parse(template))
