"""Vocabularies: read from a source, built from a corpus, reduced. The id of a token is its line."""

import io
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Literal

from roformer_tf.checkpoints.archives import CONFIG, TOKENIZER, TOKENIZER_CONFIG, VOCABULARY
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.segmentation import (
    is_chinese,
    is_punctuation,
    normalize,
    segment,
    split,
)
from roformer_tf.translation import Translator

Tokenization = Literal["word", "char"]
"""Whether Chinese text is split into jieba's words, as far as the vocabulary has them, or into
characters."""

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SEGMENTS = "token_type_ids"
GENERAL = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""transformers' classes that do what `tokenizer.json` describes; the second since version 5."""
_ADDED_TOKENS, _SPECIAL_TOKENS_MAP = "added_tokens.json", "special_tokens_map.json"
_RULES = {
    "model": "WordPiece",
    "normalizer": "BertNormalizer",
    "pre_tokenizer": "BertPreTokenizer",
}
"""Types of the parts of a BERT's `tokenizer.json`."""
WORD_LIMIT = 200
"""Maximum characters of a word that is split into subwords; a longer word is [UNK]."""


def check_special_tokens(vocabulary: Mapping[str, int], source: str) -> None:
    """Raise InputError, with the name `source`, unless the vocabulary has all special tokens."""
    missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
    if missing:
        raise InputError(
            f"{source} lacks {', '.join(missing)}, which every RoFormer needs. "
            "Give the vocab.txt that belongs to the model, or add the missing lines."
        )


def guess_tokenization(vocabulary: Iterable[str]) -> Tokenization:
    """Return "word" if the vocabulary has Chinese words of several characters, else "char"."""
    has_words = any(len(token) > 1 and all(map(is_chinese, token)) for token in vocabulary)
    return "word" if has_words else "char"


def count_words(
    texts: Iterable[str], tokenization: Tokenization, lower_case: bool = True
) -> Counter[str]:
    """Frequency of each word in the texts; the counts of several workers can be added.

    Words are jieba's. For the tokenization "char", text is split at white space and around
    punctuation and Chinese characters. Words that are unfit for a vocabulary are skipped: white
    space, control and private-use characters, lone surrogates, and words over 200 characters.
    """
    words = segment if tokenization == "word" else split
    normal = map(normalize, texts) if lower_case else texts
    counts = Counter(chain.from_iterable(map(words, normal)))
    fit = (w for w in counts if len(w) <= WORD_LIMIT and w.isprintable() and split(w))
    return Counter({word: counts[word] for word in fit})


def build_vocabulary(counts: Mapping[str, int], size: int, tokenization: Tokenization) -> list[str]:
    """At most `size` tokens: the special ones, then the most frequent ones, shorter ones first.

    Words of several characters compete with single characters and `##` continuations. Characters
    are also counted inside words, so that a character comes before any word that contains it.
    ASCII letters and digits are always included, alone and as continuations, so that rare words
    can be spelled; capitals only if the counts have some.
    Raises InputError if `size` is too small for the special tokens and the letters.
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
            f"letters and digits. Give at least {size - room}; some thousands are usual."
        )
    # Ties are broken by the token itself, so that the order of the corpus does not matter.
    ranked = sorted(
        totals.keys() | always, key=lambda t: (-totals[t], len(t.removeprefix("##")), t)
    )
    chosen = always.union(islice((token for token in ranked if token not in always), room))
    return [*SPECIAL_TOKENS, *(token for token in ranked if token in chosen)]


def simplify_vocabulary(
    vocabulary: Mapping[str, int], first: Sequence[str]
) -> tuple[dict[str, int], list[int]]:
    """Keep `first` and the tokens that char-level text can have: (new token → id, kept old ids).

    Equal to bert4keras' `load_vocab(simplified=True, startswith=first)`. It removes tokens of
    several characters with a Chinese character or punctuation, such as `##中`, and every `[…]`
    token that is not in `first`, whose tokens the vocabulary must have.
    """
    # The kept tokens remain in the order of their old ids, after those of `first`.
    by_id = sorted(vocabulary, key=vocabulary.__getitem__)
    kept = dict.fromkeys([*first, *(token for token in by_id if not _is_redundant(token))])
    return {token: new for new, token in enumerate(kept)}, [vocabulary[token] for token in kept]


def parse_vocabulary(text: str, by_line: bool = False) -> dict[str, int]:
    """Token → id from the text of a vocabulary file.

    As in bert4keras, the token of a line is its first word, an empty line is the token "", and a
    repeated line gets the next id without using it up: lines a, b, a, c give a=2, b=1, c=2.
    `by_line`: as in transformers, a token has the number of its last line: c=3.
    """
    vocabulary: dict[str, int] = {}
    # Without Notepad's mark, and without blank lines at the end.
    lines = io.StringIO(text.removeprefix("\ufeff").rstrip(), newline=None)
    for number, line in enumerate(lines):
        vocabulary[(line.split() or [""])[0]] = number if by_line else len(vocabulary)
    return vocabulary


def _count_characters(counts: Mapping[str, int]) -> Counter[str]:
    """Frequency of each character at the start of a word, and with `##` inside: ab → a, ##b."""
    totals: Counter[str] = Counter()
    for text, count in counts.items():
        for word in split(text):
            totals[word[0]] += count
            for character in word[1:]:
                totals["##" + character] += count
    return totals


def _letters(totals: Mapping[str, int]) -> str:
    """ASCII letters and digits; capitals only if the counts have some."""
    capitals = string.ascii_uppercase
    has_capitals = any(letter in totals or "##" + letter in totals for letter in capitals)
    return string.digits + string.ascii_lowercase + (capitals if has_capitals else "")


def _is_redundant(token: str) -> bool:
    """Whether char-level text never has this token."""
    stem = token.removeprefix("##")
    return len(token) > 1 and any(is_chinese(c) or is_punctuation(c) for c in stem)


# The files of a tokenizer in a source


def vocabulary_of(source: OpenedSource) -> dict[str, int]:
    """Token → id, from a vocabulary file, or a folder or zip with one.

    transformers 5 saves no `vocab.txt`: there the vocabulary is in `tokenizer.json`.

    Raises InputError if there is no such file, or if it is no vocabulary.
    """
    path = source.path / VOCABULARY if source.path.is_dir() else source.path
    try:
        is_vocabulary = source.path.is_file() and not source.is_zip
        content = path.read_bytes() if is_vocabulary else source.read(VOCABULARY)
        text = None if content is None else content.decode()
        by_line = source.read(CONFIG) is not None  # a model of transformers
        pieces = _wordpieces(source)
        vocabulary = pieces if text is None else parse_vocabulary(text, by_line)
        if vocabulary is None:
            raise InputError(
                f"{source.path} contains no {VOCABULARY}. Give a folder or zip with one."
            )
    except OSError as error:
        raise InputError(
            f"cannot read the vocabulary {path}: {error.strerror}. "
            "Give a vocab.txt, a folder or released zip that contains one, or a released name."
        ) from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8 text at byte {error.start}. Give a vocab.txt, one token a line."
        ) from None
    check_special_tokens(vocabulary, str(path))
    differing = [x for x, number in (pieces or {}).items() if vocabulary.get(x, number) != number]
    if differing:
        raise InputError(
            f"{path} and the {TOKENIZER} next to it have different ids of {differing[0]!r}. Remove "
            "the one that does not belong to the weights."
        )
    return vocabulary


def has_vocabulary(source: OpenedSource) -> bool:
    """Whether a folder or zip has a `vocab.txt`, or a `tokenizer.json` with a vocabulary."""
    return source.read(VOCABULARY) is not None or _wordpieces(source) is not None


def tokenizer_settings(source: OpenedSource) -> dict[str, Any]:
    """Content of the `tokenizer_config.json` in a folder or zip; empty if there is none.

    In transformers, only a general tokenizer follows its `tokenizer.json`, and neither it nor a
    BERT's segments by jieba. Raises InputError for other rules than those of a RoFormer.
    """
    recorded, content = source.read_object(TOKENIZER_CONFIG), source.read_object(TOKENIZER)
    is_ours = "tokenization" in recorded
    _check_rules(source, content, is_ours)
    settings = {"do_lower_case": True, "strip_accents": None} | recorded
    is_general = settings.get("tokenizer_class") in GENERAL
    if is_general and content and not is_ours:
        normalizer = content["normalizer"]
        settings["do_lower_case"] = normalizer["lowercase"]
        settings["strip_accents"] = normalizer["strip_accents"]
        settings["tokenize_chinese_chars"] = normalizer["handle_chinese_chars"]
    if is_general or _is_bert(settings):
        settings.setdefault("tokenization", "char")
    lower_case, strip_accents = settings["do_lower_case"], settings["strip_accents"]
    # None: accents are stripped if the text is lower-cased, as `normalize` does.
    if strip_accents not in (None, lower_case) or not settings.get("tokenize_chinese_chars", True):
        raise InputError(
            f"{source.name}: its tokenizer has strip_accents other than do_lower_case, or "
            "tokenize_chinese_chars false, which is not supported. Give another model; or, if its "
            f"texts have no accents, remove strip_accents from {TOKENIZER_CONFIG}."
        )
    return settings


def gives_segments(settings: Mapping[str, Any]) -> bool:
    """Whether transformers gives a model `token_type_ids`, by its `tokenizer_config.json`.

    Since its version 5, which writes the key `backend`, only if the tokenizer's settings name them,
    or if it is a BERT's.
    """
    usual = (SEGMENTS,) if _is_bert(settings) or "backend" not in settings else ()
    return SEGMENTS in settings.get("model_input_names", usual)


def _is_bert(settings: Mapping[str, Any]) -> bool:
    return str(settings.get("tokenizer_class")).startswith("Bert")


def _check_rules(source: OpenedSource, content: Mapping[str, Any], is_ours: bool) -> None:
    """Raise InputError for rules and tokens of transformers that are not supported here.

    content: of the `tokenizer.json`, which has other rules if it `is_ours`.
    """
    further = source.read_object(_SPECIAL_TOKENS_MAP).get("additional_special_tokens", [])
    tokens = [x if isinstance(x, str) else x["content"] for x in further]
    tokens += source.read_object(_ADDED_TOKENS)
    tokens += [x["content"] for x in content.get("added_tokens", [])]
    different = [f"the added token {x}" for x in sorted({*tokens}.difference(SPECIAL_TOKENS))]
    if content and not is_ours:
        for part, usual in _RULES.items():
            kind = (content.get(part) or {}).get("type")
            if kind != usual:
                different.append(f"the {part} {kind} instead of {usual}")
        processor = content.get("post_processor") or {}
        steps = [x["id"] for step in processor.get("single", []) for x in step.values()]
        if processor.get("type") != "BertProcessing" and steps != ["[CLS]", "A", "[SEP]"]:
            different.append("a post_processor that does not give [CLS] A [SEP]")
    if different:
        raise InputError(
            f"{source.name}: its tokenizer has {Translator('en').listing(different)}, which is not "
            f"supported. Give another model; or, if its texts do not need this, keep {VOCABULARY}, "
            f"and remove {TOKENIZER}, {_ADDED_TOKENS} and {_SPECIAL_TOKENS_MAP}."
        )


def _wordpieces(source: OpenedSource) -> dict[str, int] | None:
    """Token → id of a `tokenizer.json`; None without one, and for other models than WordPiece."""
    model = source.read_object(TOKENIZER).get("model")
    if not isinstance(model, dict) or model.get("type") != "WordPiece":
        return None
    return dict(model.get("vocab", {}))
