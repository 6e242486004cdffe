"""The four forms: 絕句 and 律詩, in lines of five or of seven characters.

A poem is one line of text, which begins with a control token: its form and, where two of its even
lines rhyme, their final:

    qijuean朝辭白帝彩雲間，千里江陵一日還。兩岸猿聲啼不住，輕舟已過萬重山。
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from roformer_tf.tokenizers.segmentation import is_chinese

COMMA, STOP = "，。"
MARKS = COMMA + STOP

_AROUND = re.compile(r"[，。？！；：、\s]+")


class Form(NamedTuple):
    """Number of lines, and of characters in each."""

    # Its Chinese name.
    name: str
    # Its name in pinyin, the first part of the control token.
    token: str
    lines: int
    # Characters of a line.
    size: int

    @property
    def characters(self) -> int:
        """Of the poem, without marks."""
        return self.lines * self.size


FORMS = (
    Form("五絕", "wujue", 4, 5),
    Form("七絕", "qijue", 4, 7),
    Form("五律", "wulv", 8, 5),
    Form("七律", "qilv", 8, 7),
)
BY_TOKEN = {form.token: form for form in FORMS}
_BY_SHAPE = {(form.lines, form.size): form for form in FORMS}


def form_of(lines: Sequence[str]) -> Form | None:
    """The form of a poem's lines; None for another one, or if a character is not Chinese.

    >>> form_of(["白日依山盡", "黃河入海流", "欲窮千里目", "更上一層樓"]).name
    '五絕'
    """
    sizes = {len(line) for line in lines}
    form = _BY_SHAPE.get((len(lines), sizes.pop())) if len(sizes) == 1 else None
    return form if form and all(map(is_chinese, "".join(lines))) else None


def lines_of(text: str) -> list[str]:
    """The lines between the marks, in Unicode's normal form C."""
    return [line for line in _AROUND.split(unicodedata.normalize("NFC", text)) if line]


def with_marks(lines: Iterable[str]) -> str:
    """Lines as one text, with a comma and a full stop in turn."""
    return "".join(line + MARKS[number % 2] for number, line in enumerate(lines))


def is_of_form(text: str, form: Form) -> bool:
    """Whether a text is exactly a poem of that form, marks included."""
    lines = lines_of(text)
    return form_of(lines) == form and with_marks(lines) == text


def forms_from(line: str) -> list[Form]:
    """The forms of which this may be the first line."""
    return [form for form in FORMS if form_of([line] * form.lines) == form]
