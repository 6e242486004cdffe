"""Change the vocabulary of a checkpoint: simplify it, or add words, and adapt the embeddings.

`keep_tokens` does all changes: it keeps some rows, and appends means of rows as new ones.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np

from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.conversion.convert import (
    OutputConfig,
    Stored,
    check_target,
    convert_checkpoint,
    extra_files,
    print_difference,
)
from roformer_tf.errors import InputError
from roformer_tf.terminal import say
from roformer_tf.tokenizers.segmentation import normalize
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, fitting_tokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS, simplify_vocabulary
from roformer_tf.translation import Message

_BY_TOKEN = ("encoder/embeddings/word/embeddings", "mlm/bias")
"""Weights (V, …) with a row for each token."""
Changed: TypeAlias = tuple[Checkpoint, RoFormerTokenizer]
"""A checkpoint and its new vocabulary."""


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    r"""Change the vocabulary of a checkpoint by --simplify or --add.

    Examples:
        roformer-tf checkpoints vocabulary chinese_roformer-base chars --to own \
            --simplify
        roformer-tf checkpoints vocabulary chinese_roformer-base larger.zip --to tf1 \
            --add words.txt
    """

    source: Annotated[str, "MODEL"]
    """A released zip, its name, or a folder with a checkpoint."""
    target: Annotated[Path, "DIR"]
    """The folder or, for tf1, the zip to write. It must not exist."""
    output: OutputConfig
    simplify: bool = False
    """Keep the tokens that char-level text can have: no Chinese words, no unused tokens."""
    add: Path | None = None
    """A file with new words, one a line. The embedding of each is the mean over the tokens into
    which it was split so far."""

    def __post_init__(self) -> None:
        if self.simplify == (self.add is not None):
            raise InputError("give either --simplify or --add FILE.")


def change_vocabulary(config: VocabularyConfig) -> None:
    """Read, change and write a checkpoint; print which words are new."""
    check_target(config.target)
    with OpenedSource(config.source) as source:
        checkpoint = source.checkpoint().described
        tokenizer = fitting_tokenizer(source, checkpoint.config)
        if config.add is not None:
            changed, vocabulary = add_words(checkpoint, tokenizer, config.add)
        else:
            changed, vocabulary = simplify(checkpoint, tokenizer)
        stored = Stored(changed, vocabulary, extra_files(checkpoint, source))
        difference = convert_checkpoint(stored, config.target, config.output)
    say(
        "tokens: {before:,} before, {now:,} now.",
        before=tokenizer.vocab_size,
        now=vocabulary.vocab_size,
    )
    print_difference(difference, config.target)


def keep_tokens(
    checkpoint: Checkpoint, ids: Sequence[int], compound: Sequence[Sequence[int]] = ()
) -> Checkpoint:
    """Keep the rows `ids`, in that order; append the mean of several rows for each of `compound`.

    Equal to bert4keras' `keep_tokens` and `compound_tokens`: the ids in `compound` are those of the
    kept rows, not of the old table.
    """

    def resized(table: np.ndarray) -> np.ndarray:
        kept = table[np.asarray(ids, int)]
        new = [kept[np.asarray(rows, int)].mean(axis=0, dtype=np.float64) for rows in compound]
        # The reshape gives an empty list of new rows the right shape.
        return np.concatenate([kept, np.asarray(new, table.dtype).reshape(-1, *table.shape[1:])])

    # Only the two weights with a row for each token change; the others are passed through.
    arrays = checkpoint.arrays
    count = len(ids) + len(compound)
    return dataclasses.replace(
        checkpoint,
        config=checkpoint.config.replace(vocab_size=count),
        arrays=LazyArrays(
            {n: (count, *s[1:]) if n in _BY_TOKEN else s for n, s in arrays.shapes.items()},
            arrays.dtypes,
            lambda name: resized(arrays[name]) if name in _BY_TOKEN else arrays[name],
        ),
    )


def simplify(checkpoint: Checkpoint, tokenizer: RoFormerTokenizer) -> Changed:
    """Keep the special tokens and those that char-level text can have; the result is char-level."""
    vocabulary, ids = simplify_vocabulary(tokenizer.vocabulary, SPECIAL_TOKENS)
    smaller = tokenizer.replaced(vocabulary=vocabulary, tokenization="char")
    return keep_tokens(checkpoint, ids), smaller


def extend(checkpoint: Checkpoint, tokenizer: RoFormerTokenizer, words: Iterable[str]) -> Changed:
    """Append words to the vocabulary; the embedding of each is the mean of its previous tokens'.

    [UNK] counts like any other token. Words are normalized like text. Embeddings without a token
    are dropped. Raises InputError for a word with white space, or without any visible character.
    """
    tokenizer.vocabulary_text()  # raises an error if ids are missing
    vocabulary = dict(tokenizer.vocabulary)
    compound: dict[str, list[int]] = {}
    for original in words:
        word = normalize(original) if tokenizer.lower_case else original
        if word in vocabulary:  # known, or repeated
            continue
        # The previous tokens: those into which the word was split until now.
        # By the old tokenizer: earlier words of the list do not change how later ones are split.
        ids = tokenizer.ids(word)
        if word.split() != [word] or not ids:
            raise InputError(
                f"{original!r} cannot be a token: it has white space or no visible character."
            )
        vocabulary[word] = len(vocabulary)
        compound[word] = ids
    larger = tokenizer.replaced(vocabulary=vocabulary)
    # All old tokens keep their ids, so the ids in `compound` are valid in the new table.
    return keep_tokens(checkpoint, range(tokenizer.vocab_size), list(compound.values())), larger


def add_words(checkpoint: Checkpoint, tokenizer: RoFormerTokenizer, path: Path) -> Changed:
    """`extend` by the words of a file, one a line; prints which are new."""
    new, larger = extend(checkpoint, tokenizer, _lines(path))
    added = [word for word in larger.vocabulary if word not in tokenizer.vocabulary]
    say("{number:,} words are new.", number=len(added))
    # Those into which their own text is not tokenized.
    if unreachable := [word for word in added if larger.tokenize(word) != [word]]:
        reason = Message("char-level text is split into characters first")
        if tokenizer.tokenization == "word":
            reason = Message(
                "jieba does not split text into these words (in Python: jieba.load_userdict)"
            )
        say(
            "{number:,} will not be used, because {reason}: {words}",
            number=len(unreachable),
            reason=reason,
            words=", ".join(unreachable),
        )
    return new, larger


def _lines(path: Path) -> list[str]:
    """The words of a file, one a line; empty lines are skipped."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Give a file of words.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text at byte {error.start}.") from None
    # Split at \n only: str.splitlines would also split at characters that can be tokens.
    words = [line.strip() for line in lines if line.strip()]
    if not words:
        raise InputError(f"{path} is empty: give one word a line.")
    return words
