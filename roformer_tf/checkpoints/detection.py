"""The purpose of a checkpoint, inferred from its config, its name and its weights."""

import dataclasses
from collections.abc import Iterable

from roformer_tf.checkpoints import embedding_config
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig, Pooling
from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.errors import InputError

GPT = "chinese_roformer-gpt-char"
"""Prefix of the released gpt models, whose files do not contain "causal"."""
TASK_FILE = "task.json"
"""What a model was fine-tuned for: its labels, its columns, how long texts are read."""


def parts(checkpoint: Checkpoint) -> set[str]:
    """The parts of a model that it holds, such as "encoder", "mlm", "pooler"."""
    return {name.split("/")[0] for name in checkpoint.arrays}


def is_language_model(checkpoint: Checkpoint) -> bool:
    """Whether it is a language model: it holds the head, or is a RoFormerV2, which needs none."""
    config = checkpoint.config
    tied = config.is_v2 and config.embedding_size == config.hidden_size
    return tied or "mlm" in parts(checkpoint)


def attention_type(checkpoint: Checkpoint, source: OpenedSource) -> str:
    """The mask that it was trained with: "causal", "unilm" or "bidirectional".

    Its config's own word counts first. Where that is silent, a language model is "causal" if its
    name begins as those of the released gpt models do, and "unilm" if it holds a pooler too, as
    the released sim models alone. Models that write are the causal and the unilm ones.
    """
    if checkpoint.config.attention_type is not None:
        return checkpoint.config.attention_type
    if _writes_by_name(checkpoint, source.names):
        return "causal"
    return "unilm" if {"pooler", "mlm"} <= parts(checkpoint) else "bidirectional"


def is_called_gpt(checkpoint: Checkpoint, source: OpenedSource) -> bool:
    """Whether a config is silent about a model with "gpt" in its name: it may well be causal."""
    silent = checkpoint.config.attention_type is None
    return silent and any("gpt" in name.casefold() for name in source.names)


def embedding_settings(checkpoint: Checkpoint, source: OpenedSource) -> EmbeddingConfig:
    """How it gives vectors: as its embedding.json says, or as its parts speak for.

    Without that file it is the pooler of a sim model, and of any other the mean. Raises InputError
    for a damaged file, and for a pooling that the checkpoint has no weights for.
    """
    content = source.read(embedding_config.FILE)
    if content is None:
        is_sim = {"pooler", "mlm"} <= parts(checkpoint)
        is_sim = is_sim and attention_type(checkpoint, source) == "unilm"
        length = checkpoint.config.max_position_embeddings
        return EmbeddingConfig("pooler" if is_sim else "mean", length)
    name = f"{source.name}: its {embedding_config.FILE}"
    config = embedding_config.parse(content, name)
    check_pooling(config.pooling, checkpoint, name)
    return config


def check_pooling(pooling: Pooling, checkpoint: Checkpoint, name: str) -> None:
    """Raise InputError for the pooler of a checkpoint that has none; `name` is who asks for it."""
    if pooling == "pooler" and "pooler" not in parts(checkpoint):
        raise InputError(
            f"{name} asks for a pooler, but the model has none. Give --pooling mean or cls, or a "
            "model with one, such as a sim model."
        )


def described(checkpoint: Checkpoint, source: OpenedSource) -> Checkpoint:
    """The checkpoint; its config says "causal" where so far only the name did."""
    if attention_type(checkpoint, source) != "causal":
        return checkpoint
    causal = checkpoint.config.replace(attention_type="causal")
    return dataclasses.replace(checkpoint, config=causal)


def _writes_by_name(checkpoint: Checkpoint, names: Iterable[str]) -> bool:
    """Whether it is called as the released gpt models are, and has the head that they have."""
    return "mlm" in parts(checkpoint) and any(name.casefold().startswith(GPT) for name in names)


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
