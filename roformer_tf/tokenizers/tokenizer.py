"""RoFormerTokenizer: text ↔ token ids, equal to bert4keras' tokenizer with jieba without HMM."""

import logging
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, get_args

import numpy as np

from roformer_tf.checkpoints.archives import TOKENIZER, TOKENIZER_CONFIG, VOCABULARY
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError, check_choice
from roformer_tf.files import remove, write_json, write_text
from roformer_tf.tokenizers.padding import Ints, as_pairs, look_up, truncate
from roformer_tf.tokenizers.segmentation import (
    join_tokens,
    normalize,
    normalize_aligned,
    segment,
    split,
)
from roformer_tf.tokenizers.tokenizer_json import Units, tokenizer_config, tokenizer_json
from roformer_tf.tokenizers.vocabulary import (
    WORD_LIMIT,
    Tokenization,
    check_special_tokens,
    gives_segments,
    guess_tokenization,
    has_vocabulary,
    parse_vocabulary,
    tokenizer_settings,
    vocabulary_of,
)

logger = logging.getLogger(__name__)

# Maximum number of words in the cache, which then takes some tens of megabytes.
_CACHE_SIZE = 1 << 17


class RoFormerTokenizer:
    """Text to tokens, tokens to ids and back, for word-level and char-level vocabularies.

    Word-level: a word of jieba that is in the vocabulary is one token. Any other word is split at
    white space, punctuation and Chinese characters, and each part into the longest subwords that
    are in the vocabulary. Char-level: the whole text is split like such a word.

    A part without matching subwords is one token, which spells it and has the id of `[UNK]`.
    Special tokens in a text, such as "[MASK]", are ordinary text.

    `units`: what a tagging model tokenizes separately, characters or words. It changes nothing
    here, because tagging calls the tokenizer with each unit; it is saved for other programs.
    `segments`: whether a model predicts with the second text of a pair in segment 1.

    Raises InputError for a vocabulary without the special tokens.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        tokenization: Tokenization,
        lower_case: bool = True,
        units: Units | None = None,
        segments: bool = True,
    ) -> None:
        check_choice("tokenization", tokenization, get_args(Tokenization))
        check_special_tokens(vocabulary, "the vocabulary")
        self.vocabulary = dict(vocabulary)
        self.tokenization = tokenization
        self.lower_case = lower_case
        self.units = units
        self.segments = segments
        self.vocab_size = max(self.vocabulary.values()) + 1
        self.tokens: list[str | None] = [None] * self.vocab_size
        for token, number in self.vocabulary.items():
            self.tokens[number] = token  # None remains if a repeated line left a gap
        self.pad_id = self.vocabulary["[PAD]"]
        self.unk_id = self.vocabulary["[UNK]"]
        self.cls_id = self.vocabulary["[CLS]"]
        self.sep_id = self.vocabulary["[SEP]"]
        self.mask_id = self.vocabulary["[MASK]"]
        self._longest = max(map(len, self.vocabulary))
        self._ids_of = _Cache(self._find_ids)

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        tokenization: Tokenization | None = None,
        lower_case: bool | None = None,
    ) -> "RoFormerTokenizer":
        """Read the vocabulary from a `vocab.txt`, a folder or zip with one, or a release.

        Other settings come from the `tokenizer_config.json` in the same folder, if it has them.
        Defaults: the text is lower-cased; the tokenization is "word" if the vocabulary has Chinese
        words of several characters, else "char".
        Raises InputError if there is no vocabulary, or if it is not valid.
        """
        with OpenedSource(source) as opened:
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
        recorded = tokenizer_settings(source)
        if tokenization is None:
            tokenization = recorded.get("tokenization") or guess_tokenization(vocabulary)
        if lower_case is None:
            lower_case = bool(recorded.get("do_lower_case", True))
        units, segments = recorded.get("units"), gives_segments(recorded)
        return cls(vocabulary, tokenization, lower_case, units, segments)

    def replaced(self, **changes: Any) -> "RoFormerTokenizer":
        """A tokenizer with the same settings except the changed ones, such as `units`."""
        names = ("vocabulary", "tokenization", "lower_case", "units", "segments")
        return type(self)(**{name: getattr(self, name) for name in names} | changes)

    def save_pretrained(
        self, folder: str | Path, *, max_length: int | None = None, causal: bool = False
    ) -> None:
        """Write `vocab.txt`, `tokenizer_config.json` and, if it is possible, `tokenizer.json`.

        transformers' AutoTokenizer reads them, too; tokenizers/tokenizer_json.py has a table of
        what other programs can do with them.

        Args:
            folder: the model's folder.
            max_length: maximum tokens of a sequence, to which transformers truncates.
            causal: whether the folder is that of a causal language model, whose prompts have no
                [SEP] at the end.

        Raises InputError as `vocabulary_text` does.
        """
        lines = self.vocabulary_text()
        write_text(Path(folder) / VOCABULARY, lines)
        content = tokenizer_json(self, causal=causal)
        if content is None:
            remove(Path(folder) / TOKENIZER)  # of a model that was in the folder before
        else:
            write_json(Path(folder) / TOKENIZER, content)
        config = tokenizer_config(self, max_length=max_length, causal=causal)
        write_json(Path(folder) / TOKENIZER_CONFIG, config)

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the tokens that begin, end and pad a text, under transformers' names."""
        return {
            "bos_token_id": self.cls_id,
            "eos_token_id": self.sep_id,
            "pad_token_id": self.pad_id,
        }

    def vocabulary_text(self) -> str:
        """Content of the `vocab.txt` with this vocabulary, a token a line.

        Raises InputError for a vocabulary that such a file cannot record: one with gaps, or with
        several tokens for an id, which repeated lines of a `vocab.txt` cause.
        """
        lines = "".join(f"{token}\n" for token in self.tokens)
        if parse_vocabulary(lines) != self.vocabulary:
            raise InputError(
                "the vocabulary cannot be saved: not every id has exactly one token. "
                "Was a line of its vocab.txt repeated? Remove repeated lines and gaps."
            )
        return lines

    def __reduce__(self) -> tuple[Any, ...]:
        settings = self.tokenization, self.lower_case, self.units, self.segments
        return type(self), (self.vocabulary, *settings)

    def tokenize(self, text: str) -> list[str]:
        """Tokens without special ones: "今天天气 unaffable" → 今天 天气 un ##aff ##able."""
        return [token for word in self._words(text) for token in self._tokens_of(word)]

    def ids(self, text: str) -> list[int]:
        """Ids of the tokens, without special ones."""
        return list(chain.from_iterable(map(self._ids_of.__getitem__, self._words(text))))

    def word_ids(self, text: str) -> list[int]:
        """For each token the number of its word: 0, 1, …, without gaps.

        Word-level, a word is jieba's: a rare 四字成语 of four tokens is one word. Char-level, it is
        a sequence without white space and punctuation, or a single Chinese character.
        """
        return self.ids_and_words(text)[1]

    def ids_and_words(self, text: str) -> tuple[list[int], list[int]]:
        """Token ids without special ones, and `word_ids`, from one segmentation."""
        ids, words, _ = self.ids_and_words_of([text])
        return ids.tolist(), words.tolist()

    def ids_and_words_of(self, texts: Iterable[str]) -> tuple[Ints, Ints, Ints]:
        """Token ids of many texts, joined, with their words and bounds; all int32.

        Token ids (T,); words (T,), the number of each token's word, counted over all texts; bounds
        (texts + 1,): the tokens of text i are those from bounds[i] to bounds[i + 1].
        """
        # Only the numbering of the words is a Python loop. Their ids are then looked up by NumPy,
        # once for each different word.
        numbers: defaultdict[str, int] = defaultdict(count().__next__)  # by first appearance
        word_numbers = array("i")
        stops = [0]
        for text in texts:
            word_numbers.extend(map(numbers.__getitem__, self._words(text)))
            stops.append(len(word_numbers))
        ids, sizes = look_up(word_numbers, [self._ids_of[word] for word in numbers])
        # White space and control characters have no tokens (size 0), and count as no word.
        words = np.repeat(np.cumsum(sizes > 0, dtype=np.int32) - 1, sizes)
        ends = np.cumsum(np.append(np.int32(0), sizes), dtype=np.int32)
        return ids, words, ends[stops]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """For each token its span in the text: (first character, last + 1), never empty.

        Tokens from inside one character, such as the jamo of a Korean syllable, have the same span.
        Spans are equal to those of bert4keras' `rematch`, with two exceptions. After "İ", whose
        lower case is longer, `rematch` counts in the lower-cased text. And it fails if combining
        marks are sorted, or for a token such as a single control character.
        """
        plain, origins = (
            normalize_aligned(text) if self.lower_case else (text, list(range(len(text))))
        )
        spans = []
        start = 0
        for word in segment(plain) if self.tokenization == "word" else [plain]:
            # jieba's words cover the text without gaps, so their lengths give their positions.
            indices = origins[start : start + len(word)]
            start += len(word)
            if self.tokenization == "word" and word in self.vocabulary:
                # min and max: sorted combining marks can make the indices descend.
                spans.append((min(indices), max(indices) + 1))
                continue
            # Tokens consist of the characters that `split` keeps, in order.
            visible = iter([i for c, i in zip(word, indices, strict=True) if split(c)])
            for token in self._split_word(word):
                part = list(islice(visible, len(token.removeprefix("##"))))
                spans.append((min(part), max(part) + 1))
        return spans

    def encode(
        self, text: str, pair: str | None = None, max_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Token ids and segment ids of `[CLS] text [SEP]` or `[CLS] text [SEP] pair [SEP]`.

        Segments are 0 and, for the pair and its [SEP], 1. While there are more than `max_length`
        tokens, the last token of the longer text (if equal, the first text) is removed.
        Raises InputError for another type than str, and for a `max_length` that is too small for
        the special tokens.
        """
        as_pairs([(text, pair)])
        return self.join(self.ids(text), None if pair is None else self.ids(pair), max_length)

    def join(
        self, first: list[int], second: list[int] | None = None, max_length: int | None = None
    ) -> tuple[list[int], list[int]]:
        """`encode` for texts whose `ids` are known."""
        pair = second or []
        if max_length is not None:
            if not isinstance(max_length, int | np.integer):
                raise InputError(
                    f"max_length is {repr(max_length)[:60]}, but must be a whole number. Give "
                    'pairs as a list of tuples, such as [("一", "二")].'
                )
            special = 2 if second is None else 3
            if max_length < special:
                raise InputError(
                    f"max_length is {max_length}, but the special tokens alone are {special}. "
                    f"Give {special} or more, such as 512."
                )
            first, pair = truncate(first, pair, max_length - special)
        first = [self.cls_id, *first, self.sep_id]
        if second is not None:
            pair = [*pair, self.sep_id]
        return first + pair, [0] * len(first) + [1] * len(pair)

    def __call__(
        self, texts: Sequence[str | tuple[str, str | None]], max_length: int | None = None
    ) -> dict[str, np.ndarray]:
        """Encode texts, or (text, pair) tuples, and pad with 0: the input of the models.

        Returns `token_ids` and `segment_ids`, int32 (texts, tokens of the longest text).
        Raises InputError for an argument that is no list of texts.
        """
        rows = [self.encode(text, pair, max_length) for text, pair in as_pairs(texts)]
        # Padding is 0 and not `pad_id`, which can differ: models take token id 0 for padding.
        longest = max((len(ids) for ids, _ in rows), default=0)
        arrays = np.zeros((2, len(rows), longest), np.int32)  # ids and segments
        for number, row in enumerate(rows):
            arrays[:, number, : len(row[0])] = row
        return {"token_ids": arrays[0], "segment_ids": arrays[1]}

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text: special tokens dropped, subwords joined, a space between Latin words.

        White space, case and unknown words of the original are lost.
        Raises InputError for an id that no token has.
        """
        try:
            numbers = [int(number) for number in ids]
        except TypeError:  # None, or a batch of sequences
            raise InputError(
                f"the ids of one sequence are needed, not {shortened(ids)}. Give [id, id, …]."
            ) from None
        return join_tokens([self._token(number) for number in numbers])

    def _words(self, text: str) -> list[str]:
        """Words of a text: jieba's, which include white space, or the parts of `split`."""
        if self.lower_case:
            text = normalize(text)
        return segment(text) if self.tokenization == "word" else split(text)

    def _find_ids(self, word: str) -> tuple[int, ...]:
        """Ids of a word's tokens, `unk_id` for those that are not in the vocabulary."""
        return tuple([self.vocabulary.get(t, self.unk_id) for t in self._tokens_of(word)])

    def _tokens_of(self, word: str) -> list[str]:
        """Tokens of a word: none for white space or control characters."""
        return [word] if word in self.vocabulary else self._split_word(word)

    def _split_word(self, text: str) -> list[str]:
        """Tokens of a text, without segmentation by jieba."""
        return [token for word in split(text) for token in self._subwords(word)]

    def _subwords(self, word: str) -> list[str]:
        """WordPiece: the longest subword at each position, `##` before all but the first.

        If there is none at some position, the whole word is one token.
        """
        if word in self.vocabulary:
            return [word]
        subwords: list[str] = []
        start = 0
        # unaffable → un, ##aff, ##able. A word over the limit skips the loop and is one token.
        while start < len(word) <= WORD_LIMIT:
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                if prefix + word[start:end] in self.vocabulary:
                    break
            else:
                return [word]
            subwords.append(prefix + word[start:end])
            start = end
        return subwords or [word]

    def _token(self, number: int) -> str:
        """The token of an id."""
        token = self.tokens[number] if 0 <= number < self.vocab_size else None
        if token is None:
            raise InputError(
                f"no token has the id {number}: the vocabulary ends at {self.vocab_size - 1}. "
                "Decode with the vocabulary that the ids were encoded with."
            )
        return token


def find_tokenizer(source: OpenedSource, config: RoFormerConfig) -> RoFormerTokenizer | None:
    """The tokenizer stored with a checkpoint's weights; None without a vocabulary.

    config: that of the checkpoint. Raises InputError as `check_fits`.
    """
    if not has_vocabulary(source):
        return None
    tokenizer = RoFormerTokenizer.from_source(source)
    check_fits(tokenizer, config.vocab_size, source.name)
    # With one type of segment, segment 1 has no embedding.
    tokenizer.segments &= config.type_vocab_size > 1
    return tokenizer


def fitting_tokenizer(source: OpenedSource, config: RoFormerConfig) -> RoFormerTokenizer:
    """The tokenizer that belongs to a checkpoint's weights.

    Raises InputError if there is no vocabulary, or one with too many tokens.
    """
    tokenizer = find_tokenizer(source, config)
    if tokenizer is None:
        raise InputError(missing_vocabulary(source.name))
    return tokenizer


def missing_vocabulary(name: str) -> str:
    """The message for a model without a vocabulary."""
    return f"{name} has no {VOCABULARY}. Put the {VOCABULARY} that belongs to its weights there."


def check_fits(tokenizer: RoFormerTokenizer, vocab_size: int, name: str) -> None:
    """Raise InputError for a vocabulary with more ids than the model has embeddings.

    Far fewer give a warning: embeddings may be padded to a multiple of 2, 4, 8, … or 128.
    """
    problem = (
        f"{name}: its {VOCABULARY} has {tokenizer.vocab_size:,} ids, but its weights have "
        f"{vocab_size:,} embeddings. Put the {VOCABULARY} that belongs to the weights there."
    )
    if tokenizer.vocab_size > vocab_size:
        raise InputError(problem)
    if tokenizer.pad_id:
        first = tokenizer.tokens[0]
        logger.warning("%s: models ignore %s, since they take its id, 0, for padding.", name, first)
    # The largest power of 2 that divides the size.
    if vocab_size - tokenizer.vocab_size >= min(vocab_size & -vocab_size, 128):
        logger.warning(problem)


class _Cache(dict[str, tuple[int, ...]]):
    """Token ids of words, which repeat in texts; `find` computes those of a new word."""

    def __init__(self, find: Callable[[str], tuple[int, ...]]) -> None:
        self._find = find

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = self._find(word)
        if len(word) <= WORD_LIMIT:  # for longer ones, such as base64, a cache would not help
            if len(self) >= _CACHE_SIZE:
                self.clear()
            self[word] = ids
        return ids
