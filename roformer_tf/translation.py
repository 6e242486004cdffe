"""English messages and their Chinese translations: gettext catalogues in `locale/`.

The English text is the key. `make translations` collects the messages of Python files (`_("…")`,
`Message("…")`), of templates and of help pages, updates `locale/zh/LC_MESSAGES/roformer_tf.po` and
compiles it.
"""

import gettext
import locale
import os
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from functools import cache, reduce
from pathlib import Path
from typing import Any, Literal, TypeAlias

Language: TypeAlias = Literal["en", "zh"]
AskedLanguage: TypeAlias = Literal["auto", "zh", "en"]
LANGUAGES: tuple[Language, Language] = ("en", "zh")

DOMAIN = "roformer_tf"
FOLDER = Path(__file__).parent / "locale"

HAN = (("\u3400", "\u4dbf"), ("\u4e00", "\u9fff"), ("\U00020000", "\U0003ffff"))
"""The first and the last of each block of Chinese characters."""
ENOUGH = 100_000
"""Characters that are read at most to recognize the language of texts."""

ASKED: ContextVar[str] = ContextVar("ASKED", default="auto")
"""The language that --language asks for on the command line."""


class Message(str):
    """English text that can be shown in other languages: a message with its values filled in.

    >>> Message("recall@{cut}", cut=10)
    'recall@10'
    """

    template: str
    values: Mapping[str, Any]

    def __new__(cls, template: str, **values: Any) -> "Message":
        """The template has fields as `str.format` takes them; values may be messages, too."""
        # As a string it is the English text, for code that does not know messages.
        message = super().__new__(cls, _filled(template, values, "en"))
        message.template, message.values = template, values
        return message


def either(names: Sequence[str]) -> str:
    """A, b or c; names may be messages."""
    *first, last = names
    if not first:
        return last
    listed = reduce(lambda left, name: Message("{first}, {last}", first=left, last=name), first)
    return Message("{first} or {last}", first=listed, last=last)


class Translator:
    """Translates into one language. Usually named `_`, as tools that collect messages expect."""

    def __init__(self, language: Language) -> None:
        self.language = language

    def __call__(self, text: str, **values: Any) -> str:
        """A message, or a template with its values, in the language."""
        if isinstance(text, Message):
            values = dict(text.values)
            text = text.template
        if not text:  # gettext has its headers under ""
            return ""
        return _filled(_catalogue(self.language).gettext(text), values, self.language)

    def listing(self, names: Sequence[str], shown: int = 10) -> str:
        """The first names, and how many more there are: a, b and 3 more."""
        _ = self
        text = _(", ").join(_(x) if isinstance(x, Message) else x for x in names[:shown])
        more = len(names) - shown
        return text + _(" and {number} more", number=more) if more > 0 else text


def _filled(template: str, values: Mapping[str, Any], language: Language) -> str:
    """The template with its values, each in the language; a list or tuple as a listing."""
    translator = Translator(language)
    shown = {}
    for name, value in values.items():
        if isinstance(value, Message):
            value = translator(value)
        elif isinstance(value, list | tuple):
            value = translator.listing(value)
        shown[name] = value
    return template.format(**shown) if shown else template


@cache
def _catalogue(language: Language) -> gettext.NullTranslations:
    """The translations of a language; English needs none."""
    if language == "en":
        return gettext.NullTranslations()
    return gettext.translation(DOMAIN, FOLDER, [language])


def terminal_language() -> Language:
    """The language of help and messages: that of `ASKED`, otherwise that of the locale."""
    # In the order of POSIX: the first that is set and not empty counts.
    variables = map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))
    # Windows has none of them; its name of the locale is such as "Chinese (Simplified)_China.936".
    name = next(filter(None, variables), None) or locale.setlocale(locale.LC_CTYPE)
    chosen = ASKED.get() if ASKED.get() in LANGUAGES else name
    return "zh" if chosen.lower().startswith(("zh", "chinese")) else "en"


def choose_language(asked: AskedLanguage, texts: Iterable[str]) -> Language:
    """The language asked for; "auto" is Chinese where most letters of the texts are Chinese.

    A report shows texts of the data, and its readers know their language. The locale of the machine
    is a worse guess, because many users work on a remote one. And the same data and settings should
    give the same report everywhere.
    """
    if asked != "auto":
        return asked
    han = letters = 0
    for text in texts:
        han += sum(any(first <= x <= last for first, last in HAN) for x in text)
        letters += sum(map(str.isalpha, text))
        if letters > ENOUGH:
            break
    return "zh" if 2 * han > letters else "en"
