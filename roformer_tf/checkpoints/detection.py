"""What kind of model a checkpoint is, inferred from its config, its name and its weights."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from roformer_tf.checkpoints import embedding_config
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig, Pooling
from roformer_tf.errors import InputError

if TYPE_CHECKING:
    from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource

GPT = "chinese_roformer-gpt-char"
"""Prefix of the released GPT models, whose configs do not record that they are causal."""
TASK_FILE = "task.json"
"""File of a fine-tuned model: its task, labels, columns and maximum length."""
LEXICAL_FILE = "lexical.npz"
"""File of a fine-tuned model whose predictions are combined with those of TF-IDF."""
POOLING, TRANSFORMER_SETTINGS = "1_Pooling/config.json", "sentence_bert_config.json"
"""Files of sentence-transformers: how it pools, and the maximum number of tokens."""


def parts(checkpoint: Checkpoint) -> set[str]:
    """The parts of a model that the checkpoint has, such as "encoder", "mlm", "pooler"."""
    return {name.split("/")[0] for name in checkpoint.arrays}


def is_language_model(checkpoint: Checkpoint) -> bool:
    """Whether it has a language model's head, or is a RoFormerV2, whose head has no weights."""
    config = checkpoint.config
    # RoFormerV2's logits are products with the word embeddings, which need equal sizes.
    tied = config.is_v2 and config.embedding_size == config.hidden_size
    return tied or "mlm" in parts(checkpoint)


def attention_type(checkpoint: Checkpoint, source: OpenedSource) -> str:
    """The mask that it was trained with: "causal", "unilm" or "bidirectional".

    The config has priority. Without an entry there, a language model is "causal" if it is named
    like the released GPT models. It is "unilm" if it also has a pooler, as only the released sim
    models have.
    """
    if checkpoint.config.attention_type is not None:
        return checkpoint.config.attention_type
    is_gpt = any(name.casefold().startswith(GPT) for name in source.names)
    if is_gpt and "mlm" in parts(checkpoint):
        return "causal"
    return "unilm" if {"pooler", "mlm"} <= parts(checkpoint) else "bidirectional"


def is_called_gpt(checkpoint: Checkpoint, source: OpenedSource) -> bool:
    """Whether a model has "gpt" in its name, but no attention type in its config.

    It may be causal, so commands warn.
    """
    missing = checkpoint.config.attention_type is None
    return missing and any("gpt" in name.casefold() for name in source.names)


def embedding_settings(checkpoint: Checkpoint, source: OpenedSource) -> EmbeddingConfig:
    """How the model computes sentence vectors, by its embedding.json.

    Without that file, a sim model uses its pooler, and any other model the mean, or the first token
    if sentence-transformers has trained it for that. Raises InputError for a damaged file, and for
    a pooling for which the checkpoint has no weights.
    """
    content = source.read(embedding_config.FILE)
    if content is None:
        is_unilm = attention_type(checkpoint, source) == "unilm"
        is_sim = is_unilm and {"pooler", "mlm"} <= parts(checkpoint)
        pooling = source.read_object(POOLING)
        is_cls = pooling.get("pooling_mode_cls_token") or pooling.get("pooling_mode") == "cls"
        limit = source.read_object(TRANSFORMER_SETTINGS).get("max_seq_length")
        length = limit or checkpoint.config.max_position_embeddings
        return EmbeddingConfig("pooler" if is_sim else "cls" if is_cls else "mean", length)
    name = f"{source.name}: its {embedding_config.FILE}"
    config = embedding_config.parse(content, name)
    check_pooling(config.pooling, checkpoint, name)
    return config


def check_pooling(pooling: Pooling, checkpoint: Checkpoint, name: str) -> None:
    """Raise InputError for the pooling "pooler", set in `name`, if the checkpoint has no pooler."""
    if pooling == "pooler" and "pooler" not in parts(checkpoint):
        raise InputError(
            f"{name} asks for a pooler, but the model has none. Give --pooling mean or cls, or a "
            "model with one, such as a sim model."
        )


def described(checkpoint: Checkpoint, source: OpenedSource) -> Checkpoint:
    """The checkpoint, with "causal" in its config if only its name showed it."""
    if attention_type(checkpoint, source) != "causal":
        return checkpoint
    causal = checkpoint.config.replace(attention_type="causal")
    return dataclasses.replace(checkpoint, config=causal)


def transformers_class(checkpoint: Checkpoint) -> str:
    """The class of transformers that loads most of the checkpoint's parts."""
    existing = parts(checkpoint)
    if "token_classifier" in existing:
        return "RoFormerForTokenClassification"
    if "qa_outputs" in existing:
        return "RoFormerForQuestionAnswering"
    # transformers classifies by the first token only
    if "classifier" in existing and checkpoint.config.pooling == "cls":
        return "RoFormerForSequenceClassification"
    if not is_language_model(checkpoint):
        return "RoFormerModel"
    causal = checkpoint.config.attention_type == "causal"
    return "RoFormerForCausalLM" if causal else "RoFormerForMaskedLM"
