"""In which language a report is written."""

from collections.abc import Iterable
from typing import Literal

from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.wording import Language

AskedLanguage = Literal["auto", "zh", "en"]

_HAN = (("\u3400", "\u4dbf"), ("\u4e00", "\u9fff"), ("\U00020000", "\U0003ffff"))
"""The first and the last of each block of Chinese characters."""
ENOUGH = 100_000
"""Characters that are looked at."""


def choose_language(asked: AskedLanguage, examples: Iterable[Example]) -> Language:
    """The language asked for; "auto" is Chinese where most letters of the texts are Chinese.

    A report shows the texts that the model got wrong: whoever is to judge them reads their
    language. The machine's locale says less of the reader, who often sits at another one, where it
    is English or none; and the same data and settings are to give the same report everywhere.
    """
    if asked != "auto":
        return asked
    han = letters = 0
    for example in examples:
        for text in example.texts:
            han += sum(map(_is_han, text))
            letters += sum(map(str.isalpha, text))
        if letters > ENOUGH:
            break
    return "zh" if 2 * han > letters else "en"


def _is_han(character: str) -> bool:
    """Whether it is a Chinese character."""
    return any(first <= character <= last for first, last in _HAN)
