"""Other vocabularies for a checkpoint: tokens taken out, words put in, embeddings to match.

Everything comes down to `keep_tokens`: which rows stay, and of which rows new ones are the mean.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import tyro

from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.checkpoints.detection import described
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.conversion.convert import (
    OutputConfig,
    check_target,
    convert_checkpoint,
    files_beside,
    print_difference,
)
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.segmentation import normalize
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, fitting_tokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS, simplify_vocabulary

Compound = Sequence[int] | tuple[Sequence[int], Sequence[float]]
"""Ids whose rows' mean is a new row, or (ids, weights) for a weighted one."""

_BY_TOKEN = ("encoder/embeddings/word/embeddings", "mlm/bias")
"""Weights (V, …) with a row for each token."""


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """Give a checkpoint another vocabulary: one of --keep, --simplify and --add."""

    source: Annotated[str, tyro.conf.Positional]
    """A released zip, its name, or a folder with a checkpoint."""
    target: Annotated[Path, tyro.conf.Positional]
    """What is written: a folder or, for tf1, a name that ends in .zip. It must not exist."""
    output: OutputConfig
    keep: Path | None = None
    """A file with the tokens that stay, one a line, in their new order."""
    simplify: bool = False
    """Keep what char-level text can give: no Chinese words, no unused tokens."""
    add: Path | None = None
    """A file with new words, one a line."""
    initialise: Literal["pieces", "characters"] = "pieces"
    """Whose mean a new word's embedding is: its tokens' so far, or its characters'."""

    def __post_init__(self) -> None:
        given = (self.keep is not None) + self.simplify + (self.add is not None)
        if given != 1:
            raise InputError("give one of --keep FILE, --simplify and --add FILE.")


class Changed(NamedTuple):
    """A checkpoint with a vocabulary that fits it."""

    checkpoint: Checkpoint
    tokenizer: RoFormerTokenizer


class Extended(NamedTuple):
    """What `extend` made of a list of words."""

    checkpoint: Checkpoint
    tokenizer: RoFormerTokenizer
    added: tuple[str, ...]
    """The new tokens, as the tokenizer spells them."""
    known: tuple[str, ...]
    """Words that were left out: tokens already, or repeated."""
    unreachable: tuple[str, ...]
    """New tokens that the tokenizer does not give for their own text."""


def change_vocabulary(config: VocabularyConfig) -> None:
    """Read, change, write; print what came of the words."""
    check_target(config.target, config.output.to)
    with OpenedSource(config.source) as source:
        checkpoint = described(source.checkpoint(), source)
        tokenizer = fitting_tokenizer(source, checkpoint.config.vocab_size)
        if config.add is not None:
            extended = extend(checkpoint, tokenizer, _lines(config.add), config.initialise)
            _print_words(extended, tokenizer.tokenization)
            changed = Changed(extended.checkpoint, extended.tokenizer)
        elif config.keep is not None:
            changed = keep_vocabulary(checkpoint, tokenizer, _lines(config.keep))
        else:
            changed = simplify(checkpoint, tokenizer)
        files = files_beside(checkpoint, source)
        difference = convert_checkpoint(*changed, config.target, config.output, files)
    print(f"{tokenizer.vocab_size:,} tokens have become {changed.tokenizer.vocab_size:,}.")
    print_difference(difference, config.target)


def keep_tokens(
    checkpoint: Checkpoint, ids: Sequence[int], compound: Sequence[Compound] = ()
) -> Checkpoint:
    """Take the rows `ids`, in that order; append the mean of several for each of `compound`.

    As bert4keras' `keep_tokens` and `compound_tokens`: the ids in `compound` count in the table
    that is left, not in the old one.
    Raises InputError for an id that has no row.
    """
    size = checkpoint.config.vocab_size
    means = [item if isinstance(item, tuple) else (item, [1.0] * len(item)) for item in compound]
    _check_ids(ids, size, "ids")
    for of, _ in means:
        _check_ids(of, len(ids), "compound")

    def resized(rows: np.ndarray) -> np.ndarray:
        kept = rows[np.asarray(ids, int)]
        new = [
            np.average(kept[np.asarray(of, int)].astype(np.float64), axis=0, weights=weights)
            for of, weights in means
        ]
        return np.concatenate([kept, np.asarray(new, rows.dtype).reshape(-1, *rows.shape[1:])])

    arrays = checkpoint.arrays
    count = len(ids) + len(means)
    return dataclasses.replace(
        checkpoint,
        config=checkpoint.config.replace(vocab_size=count),
        arrays=LazyArrays(
            {n: (count, *s[1:]) if n in _BY_TOKEN else s for n, s in arrays.shapes.items()},
            arrays.dtypes,
            lambda name: resized(arrays[name]) if name in _BY_TOKEN else arrays[name],
        ),
    )


def keep_vocabulary(
    checkpoint: Checkpoint, tokenizer: RoFormerTokenizer, tokens: Sequence[str]
) -> Changed:
    """Keep these tokens alone, in this order.

    Raises InputError for tokens that are unknown or repeated, without the special tokens, and
    where another than [PAD] would get the id 0, which models take for padding.
    """
    unknown = [token for token in tokens if token not in tokenizer.vocabulary]
    if unknown:
        raise InputError(
            f"{len(unknown)} tokens to keep are not in the vocabulary, such as "
            f"{', '.join(unknown[:3])}. Leave them out, or add them afterwards."
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        twice = next(t for number, t in enumerate(tokens) if vocabulary[t] != number)
        raise InputError(f"the token {twice} is to be kept twice. Leave one of the two out.")
    if tokens[:1] != ["[PAD]"]:
        raise InputError("the first token to keep must be [PAD]: models take id 0 for padding.")
    kept = keep_tokens(checkpoint, [tokenizer.vocabulary[token] for token in tokens])
    return Changed(
        kept, RoFormerTokenizer(vocabulary, tokenizer.tokenization, tokenizer.lower_case)
    )


def simplify(checkpoint: Checkpoint, tokenizer: RoFormerTokenizer) -> Changed:
    """Keep the special tokens and what char-level text can give; the model is char-level then."""
    vocabulary, ids = simplify_vocabulary(tokenizer.vocabulary, SPECIAL_TOKENS)
    return Changed(
        keep_tokens(checkpoint, ids), RoFormerTokenizer(vocabulary, "char", tokenizer.lower_case)
    )


def extend(
    checkpoint: Checkpoint,
    tokenizer: RoFormerTokenizer,
    words: Iterable[str],
    initialise: Literal["pieces", "characters"] = "pieces",
) -> Extended:
    """Append words to the vocabulary; each gets the mean of what stood for it so far.

    With "pieces" that is the tokens that its text has given, with "characters" the tokens of its
    characters one by one; [UNK] among them counts like any other. Words are spelled as the
    tokenizer normalizes text. Embeddings that no token had are dropped.
    Raises InputError for a word with white space, or without anything visible.
    """
    tokenizer.vocabulary_text()  # which raises where ids are missing
    vocabulary = dict(tokenizer.vocabulary)
    compound: dict[str, list[int]] = {}
    known = []
    for given in words:
        word = normalize(given) if tokenizer.lower_case else given
        if word in vocabulary:
            known.append(given)
            continue
        texts = [word] if initialise == "pieces" else list(word)
        pieces = [number for text in texts for number in tokenizer.ids_and_words(text)[0]]
        if word.split() != [word] or not pieces:
            raise InputError(f"{given!r} can be no token: a token is visible, without white space.")
        vocabulary[word] = len(vocabulary)
        compound[word] = pieces
    larger = RoFormerTokenizer(vocabulary, tokenizer.tokenization, tokenizer.lower_case)
    return Extended(
        keep_tokens(checkpoint, range(tokenizer.vocab_size), list(compound.values())),
        larger,
        tuple(compound),
        tuple(known),
        tuple(word for word in compound if larger.tokenize(word) != [word]),
    )


def _check_ids(ids: Sequence[int], size: int, name: str) -> None:
    wrong = [number for number in ids if not 0 <= number < size]
    if wrong or not len(ids):
        found = f"{wrong[0]}" if wrong else "nothing"
        raise InputError(f"{name} holds {found}, but ids are 0 to {size - 1}.")


def _lines(path: Path) -> list[str]:
    """The words of a file, one a line; blank lines do not count."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Give a file of words.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text at byte {error.start}.") from None
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise InputError(f"{path} is empty: give one word a line.")
    return words


def _print_words(extended: Extended, tokenization: str) -> None:
    print(f"{len(extended.added):,} words are new.")
    if extended.known:
        print(f"{len(extended.known):,} are known or repeated: {', '.join(extended.known)}")
    if extended.unreachable:
        reason = (
            "jieba does not give them as words: add them to its dictionary"
            if tokenization == "word"
            else "char-level text is taken apart into characters first"
        )
        print(
            f"{len(extended.unreachable):,} will not come out of a text, for {reason}: "
            f"{', '.join(extended.unreachable)}"
        )
