"""Words of a text, exactly as bert4keras and jieba find them: the only caller of both jiebas."""

import functools
import logging
import re
import sys
import unicodedata
import warnings
from bisect import bisect_right
from itertools import accumulate
from types import ModuleType

from roformer_tf.internals import jieba_dictionary_changed


def normalize(text: str) -> str:
    """Lower-case a text, decompose it (NFD) and drop its non-spacing marks: "ÉTÉ が" → "ete か"."""
    decomposed = unicodedata.normalize("NFD", text.lower())
    if not _PERHAPS_MARKS.search(decomposed):
        return decomposed
    return "".join([part for part in decomposed if unicodedata.category(part) != "Mn"])


def normalize_aligned(text: str) -> tuple[str, list[int]]:
    """`normalize(text)`, and for each of its characters the index in `text` of its origin.

    "İÉ각" → ("ie각", [0, 1, 2, 2, 2]), the last syllable being three jamo.
    """
    # Lower-casing the whole text knows a final sigma; only "İ" changes the number of characters.
    lowered = zip(
        text.lower(),
        [index for index, character in enumerate(text) for _ in character.lower()],
        strict=True,
    )
    parts = [(part, i) for letter, i in lowered for part in unicodedata.normalize("NFD", letter)]
    # A text's NFD is that of its characters with each run of combining ones sorted by class.
    classes = [unicodedata.combining(part) for part, _ in parts]
    runs = accumulate(number == 0 for number in classes)
    order = sorted(range(len(parts)), key=list(zip(runs, classes, strict=True)).__getitem__)
    kept = [parts[place] for place in order if unicodedata.category(parts[place][0]) != "Mn"]
    return "".join(part for part, _ in kept), [index for _, index in kept]


def segment(text: str) -> list[str]:
    """Words of a text in order, nothing left out: what `jieba.cut(text, HMM=False)` gives.

    A dictionary that the user gave jieba (`load_userdict`, `add_word`, …) counts, in the
    process in which it was given.
    """
    if not _dictionary_changed():
        import rjieba  # loads its dictionary when imported

        try:
            words: list[str] = rjieba.cut(text, False)
            return words
        except UnicodeEncodeError:  # lone surrogates, which jieba takes and UTF-8 cannot hold
            pass
    return list(_jieba().cut(text, HMM=False))


def split(text: str) -> list[str]:
    """Text without control characters, at white space and around punctuation and Chinese.

    "Hi,世界" → ["Hi", ",", "世", "界"].
    """
    return "".join(map(_spaced, text)).split()


def words_of_parts(text: str) -> list[int]:
    """For each part that `split` gives, the number of the word of `segment` that it begins in.

    "中国人民 abc" → [0, 0, 1, 1, 3], its words being 中国, 人民, the space and abc.
    """
    ends = list(accumulate(sum(map(len, split(word))) for word in segment(text)))  # visible ones
    begins = accumulate(map(len, split(text)), initial=0)
    return [bisect_right(ends, begin) for begin in begins][:-1]


def is_chinese(character: str) -> bool:
    """Whether it is a Chinese character to BERT: no extension F and later, no 〇 or 々."""
    code = ord(character)
    return any(first <= code <= last for first, last in _CHINESE)


def is_punctuation(character: str) -> bool:
    """Whether it is punctuation to BERT: category P, and ASCII symbols such as "$" or "+"."""
    return character in _ASCII_SYMBOLS or unicodedata.category(character).startswith("P")


@functools.cache  # of the character alone: one entry for each that was ever met
def _spaced(character: str) -> str:
    """What stands for the character before the text is split at white space."""
    if is_punctuation(character) or is_chinese(character):
        return f" {character} "
    if character in "\t\r\n":
        return " "
    if character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cf"):
        return ""
    return character  # white space too: that is where split() splits


def _dictionary_changed() -> bool:
    """Whether jieba's dictionary is no longer the one that rjieba holds."""
    jieba = sys.modules.get("jieba")  # who never imported it changed nothing
    return jieba is not None and jieba_dictionary_changed(jieba, _TOTAL_FREQUENCY)


@functools.cache
def _jieba() -> ModuleType:
    """Jieba, imported only now: it needs a second for its dictionary, and logs that it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its old regular expressions and pkg_resources
        import jieba
    jieba.setLogLevel(logging.WARNING)
    module: ModuleType = jieba
    return module


_ASCII_SYMBOLS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_PERHAPS_MARKS = re.compile(  # all but blocks without non-spacing marks: to find them is slow
    "[^\0-\u02ff\u0370-\u0482\u1100-\u11ff\u2000-\u20cf\u2100-\u2cee\u2e00-\u3029"
    "\u302e-\u3098\u309b-\ua66e\uac00-\ud7af\uff00-\uffef]"
)
_TOTAL_FREQUENCY = 60_101_967  # of the dictionary that jieba 0.42 and rjieba 0.2 carry
