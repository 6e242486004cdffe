"""Text → words exactly as bert4keras and jieba split it, and back. The only caller of jieba."""

import functools
import logging
import re
import sys
import unicodedata
import warnings
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from roformer_tf.internals import jieba_dictionary_changed


def normalize(text: str) -> str:
    """Lower-case a text, decompose it (NFD) and drop its non-spacing marks: "ÉTÉ が" → "ete か"."""
    decomposed = unicodedata.normalize("NFD", text.lower())
    if not _PERHAPS_MARKS.search(decomposed):
        return decomposed
    return "".join([part for part in decomposed if unicodedata.category(part) != "Mn"])


def normalize_aligned(text: str) -> tuple[str, list[int]]:
    """`normalize(text)`, and for each of its characters the index of its origin in `text`.

    "İÉ각" → ("ie각", [0, 1, 2, 2, 2]): the last syllable is decomposed into three jamo.
    """
    # Only the whole text can be lower-cased: a final sigma has another form. "İ" is the only
    # character whose lower case has another length.
    lowered = zip(
        text.lower(),
        [index for index, character in enumerate(text) for _ in character.lower()],
        strict=True,
    )
    parts = [(part, i) for letter, i in lowered for part in unicodedata.normalize("NFD", letter)]
    # The NFD of a text is that of its characters, with each run of combining marks sorted by class.
    classes = [unicodedata.combining(part) for part, _ in parts]
    # Class 0 begins a run. The sort by (run, class) is stable, as NFD requires.
    runs = accumulate(number == 0 for number in classes)
    order = sorted(range(len(parts)), key=list(zip(runs, classes, strict=True)).__getitem__)
    kept = [parts[index] for index in order if unicodedata.category(parts[index][0]) != "Mn"]
    return "".join(part for part, _ in kept), [index for _, index in kept]


def segment(text: str) -> list[str]:
    """All words of a text in order, as `jieba.cut(text, HMM=False)` returns them.

    A user's dictionary (`jieba.load_userdict`, `add_word`, …) is used in the process in which it
    was loaded. Without one, rjieba is called: it gives the same words and is written in Rust.
    """
    if not _dictionary_changed():
        import rjieba  # the import loads its dictionary

        try:
            return list(rjieba.cut(text, False))
        except UnicodeEncodeError:  # lone surrogates, which UTF-8 cannot encode
            pass
    return list(_jieba().cut(text, HMM=False))


def split(text: str) -> list[str]:
    """Split a text at white space and around punctuation and Chinese characters.

    Control characters are dropped. "Hi,世界" → ["Hi", ",", "世", "界"].
    """
    return "".join(map(_spaced, text)).split()


def words_of_parts(text: str) -> list[int]:
    """For each part of `split` the number of the word of `segment` in which it begins.

    "中国人民 abc" → [0, 0, 1, 1, 3]: the words are 中国, 人民, the space and abc.
    """
    # Ends and begins are counted in visible characters, which both ways of splitting keep.
    ends = list(accumulate(sum(map(len, split(word))) for word in segment(text)))
    begins = accumulate(map(len, split(text)), initial=0)
    return [bisect_right(ends, begin) for begin in begins][:-1]


def is_chinese(character: str) -> bool:
    """Whether BERT counts it as Chinese: not the extensions from F on, and neither 〇 nor 々."""
    code = ord(character)
    return any(first <= code <= last for first, last in _CHINESE)


def is_punctuation(character: str) -> bool:
    """Whether BERT counts it as punctuation: category P, and ASCII symbols such as "$" or "+"."""
    return character in _ASCII_SYMBOLS or unicodedata.category(character).startswith("P")


def join_tokens(tokens: Iterable[str]) -> str:
    """Readable text from tokens, as bert4keras joins them: special tokens are dropped.

    Subwords are joined, and Latin words are separated by spaces.
    """
    text = ""
    for token in tokens:
        if token.startswith("[") and token.endswith("]"):  # such as [CLS] or [unused1]
            continue
        if token.startswith("##"):
            text += token[2:]
        elif len(token) == 1 and is_chinese(token):
            text += token
        elif len(token) == 1 and is_punctuation(token):
            text += token + " "
        elif text and is_chinese(text[-1]):
            text += token
        else:
            text += " " + token
    for pattern, replacement in _TIDY:
        text = pattern.sub(replacement, text)
    return text.strip()


@functools.cache  # one entry for each character
def _spaced(character: str) -> str:
    """The replacement of a character before the text is split at white space."""
    if is_punctuation(character) or is_chinese(character):
        return f" {character} "
    if character in "\t\r\n":
        return " "
    if character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf"):
        return ""
    return character


def _dictionary_changed() -> bool:
    """Whether jieba's dictionary is no longer the default one, which rjieba has."""
    jieba = sys.modules.get("jieba")  # without an import nothing can have changed it
    return jieba is not None and jieba_dictionary_changed(jieba, _TOTAL_FREQUENCY)


@functools.cache
def _jieba() -> Any:
    """Import jieba when it is needed: its dictionary takes a second to load."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its regular expressions and pkg_resources
        import jieba
    jieba.setLogLevel(logging.WARNING)
    return jieba


_ASCII_SYMBOLS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
# All characters except blocks without non-spacing marks. Most texts have no match, and then the
# slow look-up of each character's category is skipped.
_PERHAPS_MARKS = re.compile(
    "[^\0-\u02ff\u0370-\u0482\u1100-\u11ff\u2000-\u20cf\u2100-\u2cee\u2e00-\u3029"
    "\u302e-\u3098\u309b-\ua66e\uac00-\ud7af\uff00-\uffef]"
)
_TOTAL_FREQUENCY = 60_101_967  # of the default dictionary of jieba 0.42 and rjieba 0.2
_TIGHT = (  # no space follows these
    "\uff02\uff03\uff04\uff05\uff06\uff07\uff08\uff09\uff0a\uff0b\uff0c\uff0d\uff0f\uff1a\uff1b"
    "\uff1c\uff1d\uff1e\uff20\uff3b\uff3c\uff3d\uff3e\uff3f\uff40\uff5b\uff5c\uff5d\uff5e\uff5f"
    "\uff60\uff62\uff63\uff64\u3000\u3001\u3003\u3008\u3009\u300a\u300b\u300c\u300d\u300e\u300f"
    "\u3010\u3011\u3014\u3015\u3016\u3017\u3018\u3019\u301a\u301b\u301c\u301d\u301e\u301f\u3030"
    "\u303e\u303f\u2013\u2014\u2018\u2019\u201b\u201c\u201d\u201e\u201f\u2026\u2027\ufe4f\ufe51"
    "\ufe54\u00b7\uff01\uff1f\uff61\u3002+-/={(<["
)
_TIDY = (  # the last step of `join_tokens`: pattern, replacement
    (re.compile(" +"), " "),
    (re.compile("' (re|m|s|t|ve|d|ll) "), r"'\1 "),
    (re.compile(f"([{re.escape(_TIGHT)}]) "), r"\1"),
    (re.compile(r"(\d\.) (\d)"), r"\1\2"),
)
