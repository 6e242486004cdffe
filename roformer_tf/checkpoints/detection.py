"""What a checkpoint is for, told from its config and the parts that it holds."""

from pathlib import Path

from roformer_tf.checkpoints.sources import Checkpoint


def parts(checkpoint: Checkpoint) -> set[str]:
    """The parts of a model that it holds, such as "encoder", "mlm", "pooler"."""
    return {name.split("/")[0] for name in checkpoint.arrays}


def is_language_model(checkpoint: Checkpoint) -> bool:
    """Whether it is a language model: it holds the head, or is a RoFormerV2, which needs none."""
    config = checkpoint.config
    tied = config.is_v2 and config.embedding_size == config.hidden_size
    return tied or "mlm" in parts(checkpoint)


def attention_type(checkpoint: Checkpoint) -> str:
    """The mask that it was trained with: its config's or, where that is silent, its family's.

    The released sim models alone hold both a pooler and a language model, and are "unilm". A
    released gpt model holds what a char model does: nothing in it says "causal".
    """
    if checkpoint.config.attention_type is not None:
        return checkpoint.config.attention_type
    return "unilm" if {"pooler", "mlm"} <= parts(checkpoint) else "bidirectional"


def is_causal_by_name(checkpoint: Checkpoint, source: str) -> bool:
    """Whether only the name tells a gpt model, as of the released ones, whose files do not."""
    return checkpoint.config.attention_type is None and "gpt" in Path(source).name.casefold()


def transformers_class(checkpoint: Checkpoint) -> str:
    """The class of transformers that has the most of its parts."""
    held = parts(checkpoint)
    if "token_classifier" in held:
        return "RoFormerForTokenClassification"
    if "classifier" in held and checkpoint.config.pooling == "cls":
        return "RoFormerForSequenceClassification"
    if not is_language_model(checkpoint):
        return "RoFormerModel"
    causal = checkpoint.config.attention_type == "causal"
    return "RoFormerForCausalLM" if causal else "RoFormerForMaskedLM"
