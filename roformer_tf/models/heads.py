"""The RoFormerFor… models: an encoder with a head."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_tf.config import POINTER_SIZE, RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.kernels.cross_entropy import chunks_that_fit
from roformer_tf.kernels.dropout import Dropout
from roformer_tf.kernels.forms import Tensor, spares_logits
from roformer_tf.layers.masks import within
from roformer_tf.models.encoder import RoFormerEncoder, first_positions, sequences
from roformer_tf.models.generation import GenerationMixin
from roformer_tf.models.head_layers import (
    ConditionalRandomField,
    MaskedLMHead,
    Pooler,
    TextClassifier,
    head_dense,
    mean_of_tokens,
)
from roformer_tf.models.inputs import encoder_inputs
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.models.rows import BATCH_SIZE, check_finite, run_rows
from roformer_tf.tokenizers.padding import as_pairs


class EncoderModel(PretrainedModel):
    """An encoder, to which each class adds a head."""

    default_name: str

    def __init__(self, config: RoFormerConfig, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(config, name=name or self.default_name, **kwargs)
        self.encoder = RoFormerEncoder(config, dtype=self.dtype_policy)


class LanguageModel(EncoderModel):
    """An encoder and the head that scores the vocabulary."""

    further_inputs: tuple[str, ...] = ("labels",)
    has_pooler = False
    default_mask: str | None = None
    """The attention type of a config that has none."""

    def __init__(self, config: RoFormerConfig, name: str | None = None, **kwargs: Any) -> None:
        config = config.replace(attention_type=config.attention_type or self.default_mask)
        super().__init__(config, name, **kwargs)
        self.mlm = MaskedLMHead(config, name="mlm", dtype=self.dtype_policy)
        if self.has_pooler:
            self.pooler = Pooler(config, name="pooler", dtype=self.dtype_policy)
        self.build()

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Any:
        """Logits or losses at every position, or at the masked ones."""
        hidden = self.encoder(
            encoder_inputs(inputs), training=training, positions=inputs.get("masked_positions")
        )
        return self.logits_or_losses(hidden, inputs, training)

    def logits(self, hidden: Tensor, training: bool | None = None) -> Tensor:
        """Logits over the vocabulary: hidden (…, H) → (…, V) float32."""
        return self.mlm(hidden, self.encoder.embeddings.words(), training=training)

    def logits_or_losses(
        self, hidden: Tensor, inputs: Mapping[str, Tensor], training: bool | None = None
    ) -> Tensor:
        """Logits of hidden (B, P, H) → (B, P, V); or the losses, if the inputs have `labels`.

        The loss of a label below 0, such as transformers' −100, is 0.
        """
        # In prediction the logits are the result; in training only the losses are needed.
        if "labels" not in inputs:
            return self.logits(hidden, training)
        # The losses are computed without storing logits in float32.
        words = self.encoder.embeddings.words()
        labels = inputs["labels"]
        chunks = self._loss_chunks(labels.shape) if training else 1
        # A negative label is no index; its loss is replaced below, so that any valid one will do.
        known = ops.maximum(labels, 0)
        losses = self.mlm.token_losses(hidden, words, known, training, chunks)
        return ops.where(labels < 0, 0.0, losses)

    def _loss_chunks(self, shape: tuple[int | None, int | None]) -> int:
        """The number of chunks in which losses of labels (B, P) are computed in training.

        On JAX there are as many as needed to limit the memory for logits. On TensorFlow there is
        one, which is faster, unless the encoder rematerializes to save memory.
        """
        rows, predictions = shape
        if predictions is None:
            return 1
        minimum = LOSS_CHUNKS if self.encoder.rematerialize else 1
        if rows is None or not spares_logits():
            return minimum
        return max(minimum, chunks_that_fit(rows, predictions, self.config.vocab_size))


LOSS_CHUNKS = 8
"""Minimum number of chunks of logits if the encoder rematerializes."""


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForMaskedLM(LanguageModel):
    """An encoder with the masked-language-model head of the released checkpoints.

    Call: the encoder's dict → logits (B, T, V) float32. With `masked_positions` (B, P) int32 in it,
    logits (B, P, V) only there: the vocabulary projection is most of a small model's work. With
    `labels` (B, P) or (B, T) int32 in it, their cross-entropies in nats, float32 in the shape of
    the labels: what a training step needs, without logits in float32. Labels below 0 are ignored.
    Raises InputError for a known position outside 0 to T − 1. In a compiled step, such as those of
    `fit`, the nearest valid position is used.
    """

    architecture = "RoFormerForMaskedLM"
    default_name = "masked_lm"
    further_inputs = ("masked_positions", "labels")

    def checked(self, inputs: Any) -> dict[str, Any]:
        """The inputs; raises InputError also for a masked position out of range."""
        inputs = super().checked(inputs)
        positions, length = inputs.get("masked_positions"), inputs["token_ids"].shape[1]
        if positions is not None and length is not None:
            within(positions, length)
        return inputs


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForCausalLM(GenerationMixin, LanguageModel):
    """A causal language model, such as the released gpt-char.

    Call: the encoder's dict → logits (B, T, V) float32; those at a position are for the next token.
    With `labels` (B, T) int32 in it, such as the next tokens, their cross-entropies in nats, (B, T)
    float32. `attention_type="unilm"` selects the mask of the released sim-char models: attention is
    bidirectional in segment 0 and causal in segment 1.
    """

    architecture = "RoFormerForCausalLM"
    default_name = "causal_lm"
    default_mask = "causal"

    def __init__(self, config: RoFormerConfig, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(config, name, **kwargs)
        if self.config.attention_type != "causal":  # the only mask of transformers' class
            self.architecture = RoFormerForMaskedLM.architecture


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForSentenceSimilarity(GenerationMixin, LanguageModel):
    """The released sim-char models: sentence vectors, and a language model over a second text.

    Call: the encoder's dict → a dict of `embedding` (B, H) float32, the linear pooler's output
    at the first token, not normalized, and `logits` (B, T, V) float32. The mask is UniLM's, which
    is bidirectional for a single text, whose segments are all 0. With `labels` (B, T) int32 in the
    inputs, such as the next tokens, the dict has `losses` instead of logits: their cross-entropies
    in nats, (B, T) float32.
    """

    architecture = "RoFormerForMaskedLM"
    default_name = "sentence_similarity"
    default_mask = "unilm"
    has_pooler = True

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> dict[str, Tensor]:
        """The sentence vectors, and logits over the vocabulary at every position."""
        hidden = self.encoder(encoder_inputs(inputs), training=training)
        name = "losses" if "labels" in inputs else "logits"
        return {
            "embedding": self.pooler(hidden),
            name: self.logits_or_losses(hidden, inputs, training),
        }

    def embed(
        self, texts: Sequence[str], max_length: int | None = None, batch_size: int = BATCH_SIZE
    ) -> np.ndarray:
        """Vectors of texts, (texts, H) float32 of length 1: their products are cosines.

        max_length: tokens to which longer texts are cut. Default: all of a text is read, while
        `load` and the commands read at most 512 tokens unless the model records another limit.
        Texts of similar length form batches, so that there is little padding. Raises InputError for
        a model without a tokenizer, for an argument that is no list of texts, and for vectors that
        are not finite.
        """
        tokenizer = self.own_tokenizer
        rows = [tokenizer.encode(text, pair, max_length) for text, pair in as_pairs(texts)]
        vectors = self.embed_rows([ids for ids, _ in rows], [s for _, s in rows], batch_size)
        check_finite(vectors)
        return np.stack(vectors) if rows else np.zeros((0, self.config.hidden_size), "float32")

    def embed_rows(
        self, token_ids: Sequence[Any], segment_ids: Sequence[Any], batch_size: int
    ) -> list[np.ndarray]:
        """`run_rows` of an embedder, which is traced again only if a layer has changed."""
        embedder = self.compiled_parts.kept(
            self, "embedder", lambda: SentenceEmbedder(self.encoder, self.pooler)
        )
        return run_rows(embedder, token_ids, segment_ids, batch_size)


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForSequenceClassification(EncoderModel):
    """An encoder that classifies a text or a pair of texts.

    Call: the encoder's dict → logits (B, C) float32, for C = `num_labels`. `pooling="cls"` is
    transformers' head, two dense layers on the first token; `pooling="mean"` is one dense layer on
    the mean of all tokens, as in the released fine-tuning script.
    Raises InputError if neither the checkpoint nor the caller gives the number of labels.
    """

    default_name = "sequence_classification"

    def __init__(
        self,
        config: RoFormerConfig,
        num_labels: int | None = None,
        pooling: str | None = None,
        **kwargs: Any,
    ) -> None:
        config = _labelled(config, num_labels=num_labels, pooling=pooling)
        super().__init__(config, **kwargs)
        self.classifier = TextClassifier(config, name="classifier", dtype=self.dtype_policy)
        if config.pooling == "cls":  # transformers has no head on the mean
            self.architecture = "RoFormerForSequenceClassification"
        self.build()

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Logits of the labels."""
        # The last layer computes only the positions that the head needs.
        needed = first_positions(inputs) if self.classifier.of_first else None
        hidden = self.encoder(encoder_inputs(inputs), training=training, positions=needed)
        return self.classifier(hidden, sequences(inputs), training=training)


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForTokenClassification(EncoderModel):
    """An encoder that classifies every token.

    Call: the encoder's dict → logits (B, T, C) float32, for C = `num_labels`.
    With `crf` in the config it also has a conditional random field, whose transition scores are in
    `crf`. With `labels` (B, T) int32 in the inputs (see `kernels.crf`), the result is then the
    negative log-likelihood of the labels of each sequence in nats, divided evenly among its
    labelled tokens, (B, T) float32.
    Raises InputError if neither the checkpoint nor the caller gives the number of labels.
    """

    architecture = "RoFormerForTokenClassification"
    default_name = "token_classification"
    takes_units = True

    def __init__(
        self, config: RoFormerConfig, num_labels: int | None = None, **kwargs: Any
    ) -> None:
        config = _labelled(config, num_labels=num_labels)
        super().__init__(config, **kwargs)
        self.drop = Dropout(config.hidden_dropout_prob, dtype=self.dtype_policy)
        self.classifier = head_dense(
            config, config.num_labels, "token_classifier", self.dtype_policy
        )
        self.crf = ConditionalRandomField(config.num_labels, name="crf") if config.crf else None
        self.further_inputs = ("labels",) if config.crf else ()
        self.build()

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Logits of every token; with `labels`, their negative log-likelihood."""
        hidden = self.drop(
            self.encoder(encoder_inputs(inputs), training=training), training=training
        )
        logits = ops.cast(self.classifier(hidden), "float32")
        if self.crf is None or "labels" not in inputs:
            return logits
        return self.crf(logits, inputs["labels"])


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForSpanExtraction(EncoderModel):
    """An encoder with the head of GlobalPointer, which scores every span of tokens.

    Call: the encoder's dict → pointers (B, T, 2K + 2C) float32, for K = 64 and C = `num_labels`:
    query and key of a token, K numbers each, then C scores of a span that begins there, and C of
    one that ends there. `tasks.extraction.global_pointer` computes the scores of spans from them.
    They have 2K + 2C numbers for each token instead of C for each pair of tokens.
    Raises InputError if neither the checkpoint nor the caller gives the number of labels.
    """

    default_name = "span_extraction"
    takes_units = True

    def __init__(
        self, config: RoFormerConfig, num_labels: int | None = None, **kwargs: Any
    ) -> None:
        config = _labelled(config, num_labels=num_labels)
        super().__init__(config, **kwargs)
        self.drop = Dropout(config.hidden_dropout_prob, dtype=self.dtype_policy)
        size = 2 * (POINTER_SIZE + config.num_labels)
        self.pointer = head_dense(config, size, "global_pointer", self.dtype_policy)
        self.build()

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Pointers of every token."""
        hidden = self.encoder(encoder_inputs(inputs), training=training)
        return ops.cast(self.pointer(self.drop(hidden, training=training)), "float32")


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForQuestionAnswering(EncoderModel):
    """An encoder that finds the answer of a question in its context, as transformers' class does.

    Call: the encoder's dict → logits (B, T, 2) float32 of the answer's first and last token.
    """

    architecture = "RoFormerForQuestionAnswering"
    default_name = "question_answering"

    def __init__(self, config: RoFormerConfig, name: str | None = None, **kwargs: Any) -> None:
        # Two outputs a token, whatever the number of labels in the config of the checkpoint.
        super().__init__(config.replace(num_labels=2), name, **kwargs)
        self.qa_outputs = head_dense(config, 2, "qa_outputs", self.dtype_policy)
        self.build()

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Logits of every token."""
        hidden = self.encoder(encoder_inputs(inputs), training=training)
        return ops.cast(self.qa_outputs(hidden), "float32")


# Sentence vectors: hidden states are pooled, then normalized


def pooled(
    encoder: RoFormerEncoder,
    pooler: Pooler | None,
    pooling: str,
    inputs: Mapping[str, Tensor],
    training: bool | None = None,
) -> Tensor:
    """Pooled hidden states, (B, H) float32, not normalized."""
    if pooling == "mean":
        vectors = mean_of_tokens(encoder(inputs, training=training), sequences(inputs))
    else:
        # Only the first token of the last layer is computed.
        first = encoder(inputs, training=training, positions=first_positions(inputs))
        # (B, 1, H): the pooler takes the first token itself.
        vectors = first[:, 0] if pooler is None else pooler(first)
    return ops.cast(vectors, "float32")


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForSentenceEmbedding(EncoderModel):
    """An encoder and a pooling, as `config.pooling` says.

    "pooler": the output of the linear pooler at the first token, as in the released sim models;
    "mean": the mean of all tokens; "cls": the first token. Call: the encoder's dict → vectors
    (B, H) float32, not normalized.
    """

    default_name = "sentence_embedding"

    def __init__(self, config: RoFormerConfig, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(config, name, **kwargs)
        self.pooler: Pooler | None = None
        if config.pooling == "pooler":
            self.pooler = Pooler(config, name="pooler", dtype=self.dtype_policy)
        self.build()

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """The vectors of a batch."""
        return pooled(self.encoder, self.pooler, self.config.pooling, inputs, training)


class SentenceEmbedder(keras.Model):
    """Vectors of length 1 from the encoder, and by default the pooler, of a sim model.

    Call: the encoder's dict → vectors (B, H) float32 of length 1: their products are cosines. It
    does not score the vocabulary, which is most of the work of a sim model.
    """

    def __init__(self, encoder: RoFormerEncoder, pooler: Pooler, pooling: str = "pooler") -> None:
        super().__init__()
        self.encoder, self.pooler, self.pooling = encoder, pooler, pooling
        self.built = True  # both parts have their weights already

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Pool and normalize."""
        vectors = pooled(self.encoder, self.pooler, self.pooling, inputs, training)
        return ops.normalize(vectors, axis=-1)


# Configs


def _labelled(config: RoFormerConfig, **changes: Any) -> RoFormerConfig:
    """The config with the changes that are not None; InputError without a number of labels."""
    config = config.replace(**{key: x for key, x in changes.items() if x is not None})
    if not config.num_labels:
        raise InputError(
            "the checkpoint has no classification head, so that the number of labels is unknown. "
            "Give num_labels, such as num_labels=2."
        )
    return config
