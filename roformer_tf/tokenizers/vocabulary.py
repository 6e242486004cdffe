"""Vocabularies: read, written, built from a corpus, cut down. A token's id is its line."""

import io
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from roformer_tf.checkpoints import registry
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.checkpoints.tf1 import VOCABULARY
from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.tokenizers.segmentation import (
    is_chinese,
    is_punctuation,
    normalize,
    segment,
    split,
)

Tokenization = Literal["word", "char"]
"""Whether Chinese text becomes jieba's words, as far as the vocabulary has them, or characters."""

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORD_LIMIT = 200
"""Characters of a word that is still cut into pieces; a longer one is unknown."""


@contextmanager
def open_vocabulary(source: str | Path) -> Iterator[OpenedSource]:
    """Open what is given for its vocabulary: a source, or a vocabulary file by whatever name.

    Raises InputError where there is none of these.
    """
    try:
        if registry.find(str(source)) is None:
            Path(source).stat()
    except OSError as error:
        raise _unreadable(Path(source), error) from None
    with OpenedSource(source) as opened:
        yield opened


def read_vocabulary(source: str | Path) -> dict[str, int]:
    """Token → id from a vocabulary file, a folder or zip that holds `vocab.txt`, or a release's.

    As in bert4keras, a line's token is its first field, a blank line gives the token "", and a
    repeated line takes the next id without using it up: lines a, b, a, c give a=2, b=1, c=2.
    Raises InputError where there is no such file, or it is no vocabulary.
    """
    with open_vocabulary(source) as opened:
        return vocabulary_of(opened)


def vocabulary_of(source: OpenedSource) -> dict[str, int]:
    """Read the vocabulary of a source that is open already, as `read_vocabulary` does."""
    path = source.path / VOCABULARY if source.path.is_dir() else source.path
    try:
        is_file = source.path.is_file() and not source.is_zip
        content = path.read_bytes() if is_file else source.read(VOCABULARY)
        if content is None:
            raise InputError(f"{source.path} holds no {VOCABULARY}. Give a folder or zip with one.")
        vocabulary = parse_vocabulary(content.decode("utf-8"))
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text at byte {error.start}. Give a vocab.txt, one token a line."
        ) from None
    check_special_tokens(vocabulary, str(path))
    return vocabulary


def check_special_tokens(vocabulary: Mapping[str, int], source: str) -> None:
    """Raise InputError, naming `source`, unless the vocabulary has all special tokens."""
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise InputError(
            f"{source} lacks {', '.join(missing)}, which every RoFormer needs. "
            "Give the vocab.txt that belongs to the model, or add the missing lines."
        )


def write_vocabulary(path: str | Path, tokens: Sequence[str]) -> None:
    """Write one token a line, in the order of their ids.

    Raises InputError for tokens that would not read back: repeated, blank or with white space.
    """
    seen: set[str] = set()
    for number, token in enumerate(tokens):
        if token.split() != [token]:
            raise InputError(f"token {number} is {token!r}: a token has no white space.")
        if token in seen:
            raise InputError(f"token {number}, {token!r}, is in the vocabulary twice. Remove one.")
        seen.add(token)
    write_text(path, "".join(f"{token}\n" for token in tokens))


def guess_tokenization(vocabulary: Iterable[str]) -> Tokenization:
    """Return "word" where the vocabulary holds Chinese words of several characters, else "char"."""
    has_words = any(len(token) > 1 and all(map(is_chinese, token)) for token in vocabulary)
    return "word" if has_words else "char"


def count_pieces(
    texts: Iterable[str], tokenization: Tokenization, lower_case: bool = True
) -> Counter[str]:
    """How often each word occurs in the texts; counts of several workers can simply be added.

    Words are jieba's or, for characters, what lies between white space, punctuation and Chinese
    characters. Words that no vocabulary should hold are left out: white space, controls, private
    use, lone surrogates, and what is longer than 200 characters.
    """
    words = segment if tokenization == "word" else split
    normal = map(normalize, texts) if lower_case else texts
    counts = Counter(chain.from_iterable(map(words, normal)))
    unfit = [w for w in counts if len(w) > WORD_LIMIT or not w.isprintable() or not split(w)]
    for word in unfit:
        del counts[word]
    return counts


def build_vocabulary(counts: Mapping[str, int], size: int, tokenization: Tokenization) -> list[str]:
    """At most `size` tokens: the special ones, then by falling frequency, of equals the shorter.

    Words of several characters compete with single characters and `##` continuations; these
    count wherever they stand, inside words too, so that a character is in before any word that
    holds it. ASCII letters and digits are always in, alone and as continuations, so that a rare
    word can be spelled (capitals only where the counts have some).
    Raises InputError where `size` cannot hold the special tokens and the letters.
    """
    totals = _count_characters(counts)
    for word, count in counts.items():
        if len(word) > 1 and (tokenization == "word" or split(word) == [word]):
            totals[word] = count
    always = {prefix + letter for letter in _letters(totals) for prefix in ("", "##")}
    room = size - len(SPECIAL_TOKENS) - len(always)
    if room < 0:
        raise InputError(
            f"a vocabulary of {size} tokens has no room for the special tokens and the ASCII "
            f"letters and digits. Give at least {size - room}, rather some thousands."
        )
    ranked = sorted(
        totals.keys() | always, key=lambda t: (-totals[t], len(t.removeprefix("##")), t)
    )
    others = islice((token for token in ranked if token not in always), room)
    chosen = always.union(others)
    return [*SPECIAL_TOKENS, *(token for token in ranked if token in chosen)]


def simplify_vocabulary(
    vocabulary: Mapping[str, int], first: Sequence[str]
) -> tuple[dict[str, int], list[int]]:
    """Cut down to `first` and what char-level text can give: (new token → id, kept old ids).

    As bert4keras' `load_vocab(simplified=True, startswith=first)`: tokens of several characters
    with a Chinese one or punctuation go, `##中` and every `[…]` token that is not in `first` too.
    Raises InputError for a token in `first` that the vocabulary lacks.
    """
    missing = [token for token in first if token not in vocabulary]
    if missing:
        raise InputError(f"the vocabulary lacks {', '.join(missing)}, so it cannot keep them.")
    by_id = sorted(vocabulary, key=vocabulary.__getitem__)
    kept = dict.fromkeys([*first, *(token for token in by_id if not _is_redundant(token))])
    return {token: new for new, token in enumerate(kept)}, [vocabulary[token] for token in kept]


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot read the vocabulary {path}: {error.strerror}. "
        "Give a vocab.txt, a folder or released zip that holds one, or a released name."
    )


def parse_vocabulary(text: str) -> dict[str, int]:
    """Token → id from the text of a vocabulary file."""
    vocabulary: dict[str, int] = {}
    for line in io.StringIO(text, newline=None):
        fields = line.split()
        vocabulary[fields[0] if fields else ""] = len(vocabulary)
    return vocabulary


def _count_characters(counts: Mapping[str, int]) -> Counter[str]:
    """How often each character begins a word, and, after `##`, is inside one: ab → a, ##b."""
    totals: Counter[str] = Counter()
    for piece, count in counts.items():
        for word in split(piece):
            totals[word[0]] += count
            for character in word[1:]:
                totals["##" + character] += count
    return totals


def _letters(totals: Mapping[str, int]) -> str:
    """ASCII letters and digits; the capitals only where there are any."""
    capitals = string.ascii_uppercase
    has_capitals = any(letter in totals or "##" + letter in totals for letter in capitals)
    return string.digits + string.ascii_lowercase + (capitals if has_capitals else "")


def _is_redundant(token: str) -> bool:
    """Whether char-level text never gives the token."""
    stem = token.removeprefix("##")
    return len(token) > 1 and any(is_chinese(c) or is_punctuation(c) for c in stem)
