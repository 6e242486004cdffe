"""What a report says, in English and in Chinese: both stand side by side, or there is none.

A word of a report is a `Words`, made with both; what is written for one reader picks one of them
at the very end, by `in_language`. Names, numbers and texts of the data are plain strings, the same
in every language. Here stand the words that several tasks and pages use; what one task alone says
stands with it, and a page's sentences in `finetuning.report.phrases`.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Language: TypeAlias = Literal["en", "zh"]


@dataclass(frozen=True)
class Words:
    """The same in both languages, whole or with fields in braces, as `str.format` has them."""

    en: str
    zh: str

    def format(self, **values: Any) -> "Words":
        """Fill in the fields; values that are words themselves each in their own language.

        >>> Words("its {metric} is {x}", "其{metric}为 {x}").format(metric=F1, x=0.9)
        Words(en='its F1 is 0.9', zh='其 F1 为 0.9')
        """
        en, zh = (in_language(values, language) for language in LANGUAGES)
        template = self.zh
        for name, value in values.items():
            if isinstance(value, Words):
                template = _spaced(template, name, value.zh)
        return Words(self.en.format(**en), template.format(**zh))


_HAN = "[\u4e00-\u9fff]"
_LATIN = re.compile("[A-Za-z0-9]")

Wording: TypeAlias = Words | str
"""Words, or what is the same in every language."""

LANGUAGES: tuple[Language, Language] = ("en", "zh")


def _spaced(template: str, name: str, value: str) -> str:
    """A Chinese template with a space where a Latin word will stand beside a Chinese character."""
    if _LATIN.match(value[:1]):
        template = re.sub(rf"({_HAN})(?={{{name}}})", r"\1 ", template)
    if _LATIN.match(value[-1:]):
        template = re.sub(rf"(?<={{{name}}})({_HAN})", r" \1", template)
    return template


def in_language(value: Any, language: Language) -> Any:
    """Anything with words in it, at any depth, with those of one language in their places."""
    if isinstance(value, Words):
        return getattr(value, language)
    if isinstance(value, dict):
        return {in_language(name, language): in_language(x, language) for name, x in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a NamedTuple
        return type(value)(*(in_language(x, language) for x in value))
    if isinstance(value, list | tuple):
        return [in_language(x, language) for x in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: in_language(getattr(value, field.name), language)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    return value


def enumerated(names: Sequence[str], shown: int = 10) -> Words:
    """The first names, and how many more there are: a, b and 3 more."""
    more = len(names) - shown
    rest = MORE_LABELS.format(number=more) if more > 0 else Words("", "")
    return Words(", ".join(names[:shown]) + rest.en, "、".join(names[:shown]) + rest.zh)


LABEL = Words("label", "标签")
NONE = Words("none", "无")
GIVEN = Words("label", "标注")
PREDICTED = Words("prediction", "预测")
CONFIDENCE = Words("confidence {value:.1%}", "置信度 {value:.1%}")
COUNT = Words("count", "数量")
PRECISION = Words("precision", "精确率")
RECALL = Words("recall", "召回率")
F1 = Words("F1", "F1")
ACCURACY = Words("accuracy", "准确率")
MACRO_F1 = Words("macro F1", "宏平均 F1")
MICRO_F1 = Words("micro F1", "微平均 F1")
NO_EXAMPLE = Words("there is no example of {labels}", "没有标签为 {labels} 的样本")
NO_SPREAD = Words(
    "all samples drawn from the examples have the same value", "对样本重抽样，每次的值都相同"
)
MORE_LABELS = Words(" and {number} more", "等，另有 {number} 个")
FIRST_LABELS = Words(
    "The first {shown} of {all} labels.", "共 {all} 个标签，这里列出前 {shown} 个。"
)
