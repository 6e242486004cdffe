"""Read only the vocabulary of a source, without a tokenizer."""

from pathlib import Path

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.tokenizers.vocabulary import vocabulary_of


def read_vocabulary(source: str | Path) -> dict[str, int]:
    """Token → id, from a vocabulary file, a folder or zip with one, or a model's name."""
    with OpenedSource(source) as opened:
        return vocabulary_of(opened)
