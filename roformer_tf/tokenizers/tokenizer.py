"""RoFormerTokenizer: text ↔ token ids, equal to bert4keras' tokenizer with jieba without HMM."""

import json
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from roformer_tf.checkpoints.huggingface import TOKENIZER, TOKENIZER_CONFIG
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.checkpoints.tf1 import VOCABULARY
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json, remove, write_text
from roformer_tf.tokenizers.huggingface import Units, tokenizer_config, tokenizer_json
from roformer_tf.tokenizers.segmentation import (
    is_chinese,
    is_punctuation,
    normalize,
    normalize_aligned,
    segment,
    split,
)
from roformer_tf.tokenizers.vocabulary import (
    WORD_LIMIT,
    Tokenization,
    check_special_tokens,
    guess_tokenization,
    open_vocabulary,
    parse_vocabulary,
    vocabulary_of,
)

Ints: TypeAlias = npt.NDArray[np.int32]


class RoFormerTokenizer:
    """Text to tokens, tokens to ids and back, for word-level and char-level vocabularies.

    Word-level: jieba's words that the vocabulary holds are tokens as they are; any other word is
    cut at white space, punctuation and Chinese characters, and each part into the longest pieces
    that the vocabulary holds. Char-level: the whole text is cut like that.

    A part that cannot be pieced together is one token that spells it and has the id of `[UNK]`.
    Special tokens in a text, such as "[MASK]", are ordinary text.

    `units`: what a tagging model has tokenized one by one, characters or words. Here it changes
    nothing, because tagging calls the tokenizer with each unit; it is saved for other programs.

    Raises InputError for a vocabulary without the special tokens.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        tokenization: Tokenization,
        lower_case: bool = True,
        units: Units | None = None,
    ) -> None:
        if tokenization not in get_args(Tokenization):
            raise InputError(f'tokenization is {tokenization!r}, but must be "word" or "char".')
        check_special_tokens(vocabulary, "the vocabulary")
        self.vocabulary = dict(vocabulary)
        self.tokenization = tokenization
        self.lower_case = lower_case
        self.units = units
        self.vocab_size = max(self.vocabulary.values()) + 1
        self.tokens: list[str | None] = [None] * self.vocab_size
        for token, number in self.vocabulary.items():
            self.tokens[number] = token  # None remains where a repeated line left a gap
        self.pad_id = self.vocabulary["[PAD]"]
        self.unk_id = self.vocabulary["[UNK]"]
        self.cls_id = self.vocabulary["[CLS]"]
        self.sep_id = self.vocabulary["[SEP]"]
        self.mask_id = self.vocabulary["[MASK]"]
        self._longest = max(map(len, self.vocabulary))
        self._known = _Memory(self._find_ids)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        tokenization: Tokenization | None = None,
        lower_case: bool | None = None,
    ) -> "RoFormerTokenizer":
        """Read the vocabulary from a `vocab.txt`, a folder or zip that holds one, or a release.

        Other settings come from the `tokenizer_config.json` in the same folder, if it has them. If
        not, the text is lower-cased, and the tokenization is "word" where the vocabulary holds
        Chinese words of several characters, else "char".
        Raises InputError where there is no vocabulary, or no right one.
        """
        with open_vocabulary(source) as opened:
            return cls.from_source(opened, tokenization, lower_case)

    @classmethod
    def from_source(
        cls,
        source: OpenedSource,
        tokenization: Tokenization | None = None,
        lower_case: bool | None = None,
    ) -> "RoFormerTokenizer":
        """Read the vocabulary of a source that is open already, as `from_pretrained` does."""
        vocabulary = vocabulary_of(source)
        recorded = _read_config(source)
        if tokenization is None:
            tokenization = recorded.get("tokenization") or guess_tokenization(vocabulary)
        if lower_case is None:
            lower_case = bool(recorded.get("do_lower_case", True))
        units = recorded.get("units")
        return cls(
            vocabulary, tokenization, lower_case, units if units in get_args(Units) else None
        )

    def with_units(self, units: Units | None) -> "RoFormerTokenizer":
        """The same tokenizer, for a model that has these tokenized one by one, or none."""
        if units == self.units:
            return self
        return type(self)(self.vocabulary, self.tokenization, self.lower_case, units)

    def save_pretrained(
        self, folder: str | Path, *, max_length: int | None = None, causal: bool = False
    ) -> None:
        """Write `vocab.txt`, `tokenizer_config.json` and, where one can be, `tokenizer.json`.

        transformers' AutoTokenizer reads them, too. `tokenizer.json` is what the library
        `tokenizers` reads: it gives our ids for a char-level vocabulary, and there is none for a
        word-level one, whose words jieba finds. Where `units` are characters, both give their ids,
        and where they are words, both refuse, with the reason.
        max_length: most tokens of a sequence, to which transformers truncates. causal: whether the
        folder holds a causal language model, after whose prompts no [SEP] may come; a word-level
        one is refused there, with the reason.
        Raises InputError as `vocabulary_text` does.
        """
        lines = self.vocabulary_text()
        settings = (self.vocabulary, self.tokenization, self.lower_case, self.units)
        write_text(Path(folder) / VOCABULARY, lines)
        content = tokenizer_json(*settings, causal=causal)
        if content is None:
            remove(Path(folder) / TOKENIZER)  # of an earlier model in its place
        else:
            write_text(Path(folder) / TOKENIZER, _json_text(content))
        config = tokenizer_config(*settings, max_length=max_length, causal=causal)
        write_text(Path(folder) / TOKENIZER_CONFIG, _json_text(config))

    @property
    def special_ids(self) -> dict[str, int]:
        """Where a text begins and ends and what pads it, under transformers' names."""
        return {
            "bos_token_id": self.cls_id,
            "eos_token_id": self.sep_id,
            "pad_token_id": self.pad_id,
        }

    def vocabulary_text(self) -> str:
        """Content of the `vocab.txt` that holds this vocabulary, a token a line.

        Raises InputError for a vocabulary that no file holds line by line: one with gaps, or with
        several tokens of one id, as repeated lines leave them.
        """
        lines = "".join(f"{token}\n" for token in self.tokens)
        if parse_vocabulary(lines) != self.vocabulary:
            raise InputError(
                "the vocabulary cannot be saved: not every id has exactly one token. "
                "Was a line of its vocab.txt repeated? Remove repeated lines and gaps."
            )
        return lines

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.vocabulary, self.tokenization, self.lower_case, self.units)

    def tokenize(self, text: str) -> list[str]:
        """Tokens without special ones: "今天天气 unaffable" → 今天 天气 un ##aff ##able."""
        return [token for piece in self._pieces(text) for token in self._tokens_of(piece)]

    def ids(self, text: str) -> list[int]:
        """Ids of the tokens, without special ones."""
        return list(chain.from_iterable(map(self._known.__getitem__, self._pieces(text))))

    def word_ids(self, text: str) -> list[int]:
        """For each token the number of its word: 0, 1, …, none left out.

        Word-level, a word is jieba's: a rare 四字成语 that became four tokens is one word.
        Char-level, it is a run without white space and punctuation, or a single Chinese character.
        """
        return self.ids_and_words(text)[1]

    def ids_and_words(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids without special ones, and `word_ids`, from one segmentation."""
        ids, words, _ = self.ids_and_words_of([text])
        return ids.tolist(), words.tolist()

    def ids_and_words_of(self, texts: Iterable[str]) -> tuple[Ints, Ints, Ints]:
        """The ids of many texts, one text's after another's, their words and bounds; all int32.

        Token ids (T,); words (T,), the number of each token's word, counted on from text to text;
        bounds (texts + 1,): the tokens of text i are those from bounds[i] to bounds[i + 1].

        Pieces are only numbered one by one, and what a number stands for is looked up for all.
        """
        numbers: defaultdict[str, int] = defaultdict(count().__next__)  # by first appearance
        pieces = array("i")
        stops = [0]
        for text in texts:
            pieces.extend(map(numbers.__getitem__, self._pieces(text)))
            stops.append(len(pieces))
        ids, sizes = _look_up(pieces, [self._known[piece] for piece in numbers])
        words = np.repeat(np.cumsum(sizes > 0, dtype=np.int32) - 1, sizes)  # 0: white space, …
        ends = np.cumsum(np.append(np.int32(0), sizes), dtype=np.int32)
        return ids, words, ends[stops]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """For each token its span in the text: (first character, last + 1), never empty.

        Tokens from inside one character, such as the jamo of a Korean syllable, share its place.
        These are the first and last of the characters that bert4keras' `rematch` gives, with two
        differences: after "İ", whose lower case is longer, that one counts in the lower-cased
        text, and where sorting combining marks or a token such as a lone control character
        makes it fail, there is an answer here.
        """
        plain, origins = (
            normalize_aligned(text) if self.lower_case else (text, list(range(len(text))))
        )
        spans = []
        start = 0
        for piece in segment(plain) if self.tokenization == "word" else [plain]:
            places = origins[start : start + len(piece)]
            start += len(piece)
            if self.tokenization == "word" and piece in self.vocabulary:
                spans.append((min(places), max(places) + 1))
                continue
            visible = iter([place for c, place in zip(piece, places, strict=True) if split(c)])
            for token in self._cut(piece):
                part = list(islice(visible, len(token.removeprefix("##"))))
                spans.append((min(part), max(part) + 1))
        return spans

    def encode(
        self, text: str, pair: str | None = None, max_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Token ids and segment ids of `[CLS] text [SEP]` or `[CLS] text [SEP] pair [SEP]`.

        Segments are 0 and, for the pair and its [SEP], 1. While there are more than `max_length`
        tokens, the longer of the two texts (the first, if equal) loses its last.
        Raises InputError for a `max_length` that cannot hold the special tokens.
        """
        return self.join(self.ids(text), None if pair is None else self.ids(pair), max_length)

    def join(
        self, first: list[int], second: list[int] | None = None, max_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """What `encode` makes of texts, from their `ids`."""
        others = second or []
        if max_length is not None:
            special = 2 if second is None else 3
            if max_length < special:
                raise InputError(
                    f"max_length is {max_length}, but the special tokens alone are {special}. "
                    f"Give {special} or more, such as 512."
                )
            first, others = _truncate(first, others, max_length - special)
        first = [self.cls_id, *first, self.sep_id]
        if second is not None:
            others = [*others, self.sep_id]
        return first + others, [0] * len(first) + [1] * len(others)

    def __call__(
        self, texts: Sequence[str | tuple[str, str | None]], max_length: int | None = None
    ) -> dict[str, np.ndarray]:
        """Encode texts, or (text, pair) tuples, and pad with 0: what the models take.

        Returns `token_ids` and `segment_ids`, int32 (texts, longest of them in tokens).
        Raises InputError for what is no list of texts.
        """
        rows = [self.encode(text, pair, max_length) for text, pair in as_pairs(texts)]
        shape = (len(rows), max((len(ids) for ids, _ in rows), default=0))
        # 0, and not `pad_id`, which may be another: models take token id 0 for padding.
        token_ids, segment_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for row, (ids, segments) in enumerate(rows):
            token_ids[row, : len(ids)] = ids
            segment_ids[row, : len(ids)] = segments
        return {"token_ids": token_ids, "segment_ids": segment_ids}

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text: special tokens dropped, pieces joined, a space between Latin words.

        White space, case and unknown words of the original are lost.
        Raises InputError for an id that no token has.
        """
        tokens = [self._token(int(number)) for number in ids]
        text = ""
        for token in tokens:
            if _is_special(token):
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

    def _pieces(self, text: str) -> list[str]:
        """Words of a text, and the white space between them: jieba's, or what `split` gives."""
        if self.lower_case:
            text = normalize(text)
        return segment(text) if self.tokenization == "word" else split(text)

    def _find_ids(self, piece: str) -> tuple[int, ...]:
        """Ids of a piece's tokens, `unk_id` for those that the vocabulary lacks."""
        return tuple([self.vocabulary.get(t, self.unk_id) for t in self._tokens_of(piece)])

    def _tokens_of(self, piece: str) -> list[str]:
        """Tokens of a piece: none for white space or control characters."""
        return [piece] if piece in self.vocabulary else self._cut(piece)

    def _cut(self, text: str) -> list[str]:
        """Tokens of a text, without segmentation by jieba."""
        return [token for word in split(text) for token in self._word_pieces(word)]

    def _word_pieces(self, word: str) -> list[str]:
        """Longest pieces from the left, `##` before all but the first, or the word itself."""
        if word in self.vocabulary:
            return [word]
        pieces: list[str] = []
        start = 0
        while start < len(word) <= WORD_LIMIT:
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                if prefix + word[start:end] in self.vocabulary:
                    break
            else:
                return [word]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces or [word]

    def _token(self, number: int) -> str:
        """Token of an id."""
        token = self.tokens[number] if 0 <= number < self.vocab_size else None
        if token is None:
            raise InputError(
                f"no token has the id {number}: the vocabulary ends at {self.vocab_size - 1}. "
                "Decode with the vocabulary that the ids were made with."
            )
        return token


def find_tokenizer(source: OpenedSource) -> RoFormerTokenizer | None:
    """The tokenizer stored with a checkpoint's weights; None without a `vocab.txt`."""
    if source.read(VOCABULARY) is None:
        return None
    return RoFormerTokenizer.from_source(source)


def fitting_tokenizer(source: OpenedSource, vocab_size: int) -> RoFormerTokenizer:
    """The tokenizer that belongs to a checkpoint's weights.

    Raises InputError without a vocabulary, and as `check_fits`.
    """
    tokenizer = find_tokenizer(source)
    if tokenizer is None:
        raise InputError(missing_vocabulary(source.name))
    check_fits(tokenizer, vocab_size, source.name)
    return tokenizer


def missing_vocabulary(name: str) -> str:
    """The message of every command for a model without a vocabulary."""
    return f"{name} has no {VOCABULARY}. Put the one that belongs to its weights there."


def check_fits(tokenizer: RoFormerTokenizer, vocab_size: int, name: str) -> None:
    """Raise InputError for a vocabulary with more ids than the model has embeddings."""
    if tokenizer.vocab_size > vocab_size:
        raise InputError(
            f"{name}: its {VOCABULARY} has {tokenizer.vocab_size:,} ids, but its weights have "
            f"{vocab_size:,} embeddings. Put the {VOCABULARY} that belongs to the weights there."
        )


def as_pairs(texts: Iterable[Any]) -> list[tuple[str, str | None]]:
    """Check what should be texts or pairs: ["一", ("二", "三")] → [("一", None), ("二", "三")].

    Raises InputError for one text in place of a list, and for an item that is neither.
    """
    if isinstance(texts, str):
        raise InputError(f"a list of texts is needed, not one text. Give [{texts[:20]!r}].")
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise InputError(f"a list of texts is needed, not {texts!r}.")
    pairs = [(item, None) if isinstance(item, str) else item for item in texts]
    for number, pair in enumerate(pairs):
        if not _is_pair(pair):
            raise InputError(
                f"text {number} is {repr(pair)[:60]}, but must be a str, or two in a tuple for a "
                "pair of texts. Correct or remove it."
            )
    return cast("list[tuple[str, str | None]]", pairs)


def _json_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def _is_pair(item: Any) -> bool:
    """Whether it is a text, and another one or None."""
    if not isinstance(item, tuple | list | np.ndarray) or len(item) != 2:
        return False
    return isinstance(item[0], str) and (item[1] is None or isinstance(item[1], str))


class _Memory(dict[str, tuple[int, ...]]):
    """Token ids of the pieces met so far, for they come again; what is missing, `find` gives."""

    def __init__(self, find: Callable[[str], tuple[int, ...]]) -> None:
        self._find = find

    def __missing__(self, piece: str) -> tuple[int, ...]:
        ids = self._find(piece)
        if len(piece) <= WORD_LIMIT:
            if len(self) >= _REMEMBERED_WORDS:
                self.clear()
            self[piece] = ids
        return ids


def _look_up(numbers: Sequence[int], table: Sequence[tuple[int, ...]]) -> tuple[Ints, Ints]:
    """Join the table's rows of these numbers: [2, 0, 2], [(5,), (), (7, 8)] → [7, 8, 5, 7, 8].

    Returns them and their sizes, [2, 1, 2].
    """
    row_sizes = np.fromiter(map(len, table), np.int32, len(table))
    joined = np.fromiter(chain.from_iterable(table), np.int32, row_sizes.sum())
    sizes = row_sizes[numbers]
    starts = (np.cumsum(row_sizes) - row_sizes)[numbers]  # in `joined`
    shifts = np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    return joined[shifts + np.arange(len(shifts))], sizes


def _truncate(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Cut off the ends so that both fit into `room` tokens, always taking from the longer one."""
    keep = max(room // 2, room - len(second))  # the first gives way where the room is odd
    first = first[:keep]
    return first, second[: room - len(first)]


def _is_special(token: str) -> bool:
    """Whether the token is shaped like one that is no text, such as [CLS] or [unused1]."""
    return token.startswith("[") and token.endswith("]")


def _read_config(source: OpenedSource) -> dict[str, Any]:
    """Content of the `tokenizer_config.json` in a folder or zip; empty where there is none."""
    if source.path.is_file() and not source.is_zip:
        return {}
    content = source.read(TOKENIZER_CONFIG)
    if content is None:
        return {}
    file = f"{source.path}: {TOKENIZER_CONFIG}"
    try:
        values = parse_json(content)
    except ValueError as error:
        raise InputError(f"{file} is not valid JSON: {error}. Fix or remove it.") from None
    if not isinstance(values, dict):
        raise InputError(f"{file} holds no JSON object. Fix or remove it.")
    return cast("dict[str, Any]", values)


_REMEMBERED_WORDS = 1 << 17  # tens of megabytes at most
_TIGHT = (  # no space after these
    "\uff02\uff03\uff04\uff05\uff06\uff07\uff08\uff09\uff0a\uff0b\uff0c\uff0d\uff0f\uff1a\uff1b"
    "\uff1c\uff1d\uff1e\uff20\uff3b\uff3c\uff3d\uff3e\uff3f\uff40\uff5b\uff5c\uff5d\uff5e\uff5f"
    "\uff60\uff62\uff63\uff64\u3000\u3001\u3003\u3008\u3009\u300a\u300b\u300c\u300d\u300e\u300f"
    "\u3010\u3011\u3014\u3015\u3016\u3017\u3018\u3019\u301a\u301b\u301c\u301d\u301e\u301f\u3030"
    "\u303e\u303f\u2013\u2014\u2018\u2019\u201b\u201c\u201d\u201e\u201f\u2026\u2027\ufe4f\ufe51"
    "\ufe54\u00b7\uff01\uff1f\uff61\u3002+-/={(<["
)
_TIDY = (  # what decode does at the end: pattern, replacement
    (re.compile(" +"), " "),
    (re.compile("' (re|m|s|t|ve|d|ll) "), r"'\1 "),
    (re.compile(f"([{re.escape(_TIGHT)}]) "), r"\1"),
    (re.compile(r"(\d\.) (\d)"), r"\1\2"),
)
