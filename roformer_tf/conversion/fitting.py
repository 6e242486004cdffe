"""Whether a vocabulary belongs to the weights beside it."""

from roformer_tf.checkpoints.sources import Checkpoint
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer


def check_fits(tokenizer: RoFormerTokenizer, checkpoint: Checkpoint, source: str) -> None:
    """Raise InputError for a vocabulary with more tokens than the checkpoint has embeddings."""
    if tokenizer.vocab_size > checkpoint.config.vocab_size:
        raise InputError(
            f"{source}: its vocab.txt has {tokenizer.vocab_size:,} tokens, but its weights "
            f"{checkpoint.config.vocab_size:,} embeddings. Put the vocab.txt there that belongs to "
            "the weights."
        )
