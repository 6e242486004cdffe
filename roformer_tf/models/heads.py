"""The RoFormerFor… models: an encoder with a head."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.kernels.crf import sequence_losses
from roformer_tf.kernels.cross_entropy import pieces_that_fit, token_losses
from roformer_tf.kernels.dense import product_with_rows
from roformer_tf.kernels.dropout import Dropout
from roformer_tf.kernels.forms import Tensor, spares_logits, wide
from roformer_tf.layers.masks import within
from roformer_tf.layers.transformer import activation, dense, norm
from roformer_tf.models.encoder import RoFormerEncoder, first_positions, sequences
from roformer_tf.models.generation import GenerationMixin
from roformer_tf.models.inputs import encoder_inputs
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.models.rows import BATCH_SIZE, check_finite, run_rows
from roformer_tf.models.sentence_embedding import (
    Pooler,
    SentenceEmbedder,
    head_dense,
    mean_of_tokens,
)
from roformer_tf.tokenizers.padding import as_pairs


class MaskedLMHead(layers.Layer):
    """dense → activation → norm → product with the word embeddings, plus a bias (tied decoder).

    RoFormerV2 has no more than the product, with dropout before it.
    Axes: E embedding size, V vocabulary. Call: hidden (…, H), word embeddings (V, E)
    → logits (…, V) float32.
    """

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        policy, size = self.dtype_policy, config.embedding_size
        self.drop: Dropout | None = None
        if config.is_v2:
            if size != config.hidden_size:
                raise InputError(
                    f"embedding_size is {size} and hidden_size {config.hidden_size}, but a "
                    "RoFormerV2 scores hidden states by the word embeddings. Make them equal."
                )
            self.drop = Dropout(config.hidden_dropout_prob, dtype=policy)
            return
        self.transform_dense = dense(
            config, config.hidden_size, size, "dense", policy, activation(config)
        )
        self.transform_norm = norm(config, "norm", policy)

    def build(self, input_shape: Any = None) -> None:
        """Make all weights; shapes come from the config alone."""
        self.bias = None
        if self.config.is_v2:
            return
        self.transform_dense.build((None, self.config.hidden_size))
        self.transform_norm.build((None, self.config.embedding_size))
        self.bias = self.add_weight(
            (self.config.vocab_size,), initializer="zeros", name="bias", autocast=False
        )

    def transform(self, hidden: Tensor, training: bool | None = None) -> Tensor:
        """The input of the decoder: hidden (…, H) → (…, E)."""
        if self.drop is not None:
            return self.drop(hidden, training=training)
        return self.transform_norm(self.transform_dense(hidden))

    def call(self, hidden: Tensor, word_embeddings: Tensor, training: bool | None = None) -> Tensor:
        """Score every token of the vocabulary."""
        x = self.transform(hidden, training=training)
        logits = product_with_rows(x, ops.cast(word_embeddings, x.dtype))
        logits = ops.cast(logits, wide(x))
        if self.bias is not None:
            logits = logits + ops.cast(self.bias, logits.dtype)
        return ops.cast(logits, "float32")

    def token_losses(
        self,
        hidden: Tensor,
        word_embeddings: Tensor,
        labels: Tensor,
        training: bool | None = None,
        pieces: int = 1,
    ) -> Tensor:
        """Cross-entropy of each label, in nats: hidden (B, P, H), labels (B, P) → (B, P) float32.

        In several pieces along P, logits are there for one piece at a time, and computed again for
        the gradients.
        """
        x = self.transform(hidden, training=training)
        # Copies: no variables, see `recomputed`.
        bias = None if self.bias is None else ops.copy(self.bias)
        return token_losses(x, ops.copy(word_embeddings), bias, labels, pieces)


class LanguageModel(PretrainedModel):
    """An encoder and the head that scores the vocabulary."""

    further_inputs: tuple[str, ...] = ("labels",)

    def __init__(self, config: RoFormerConfig, name: str, **kwargs: Any) -> None:
        super().__init__(config, name=name, **kwargs)
        self.encoder = RoFormerEncoder(config, dtype=self.dtype_policy)
        self.mlm = MaskedLMHead(config, name="mlm", dtype=self.dtype_policy)
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Make the head's weights; the encoder has made its own."""
        self.mlm.build()

    def parts(self) -> dict[str, keras.layers.Layer]:
        """The encoder and the head."""
        return {"encoder": self.encoder, "mlm": self.mlm}

    def logits(self, hidden: Tensor, training: bool | None = None) -> Tensor:
        """Score the vocabulary: hidden (…, H) → (…, V) float32."""
        return self.mlm(hidden, self.encoder.embeddings.words(), training=training)

    def logits_or_losses(
        self, hidden: Tensor, inputs: Mapping[str, Tensor], training: bool | None = None
    ) -> Tensor:
        """Logits of hidden (B, P, H) → (B, P, V); or the losses, if the inputs have `labels`."""
        if "labels" not in inputs:
            return self.logits(hidden, training)
        words = self.encoder.embeddings.words()
        labels = inputs["labels"]
        pieces = self._loss_pieces(labels.shape) if training else 1
        return self.mlm.token_losses(hidden, words, labels, training, pieces)

    def _loss_pieces(self, shape: tuple[int | None, int | None]) -> int:
        """The number of chunks in which losses of labels (B, P) are computed in training.

        By JAX as many as keep the logits within bounds, whatever the vocabulary; by TensorFlow all
        at once, which takes less time, unless memory is to be spared.
        """
        rows, predictions = shape
        if predictions is None:
            return 1
        least = LOSS_PIECES if self.encoder.rematerialize else 1
        if rows is None or not spares_logits():
            return least
        return max(least, pieces_that_fit(rows, predictions, self.config.vocab_size))


# Minimum number of chunks of logits, of which one is in memory at a time, to save memory.
LOSS_PIECES = 8


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForMaskedLM(LanguageModel):
    """An encoder with the masked-language-model head of the released checkpoints.

    Call: the encoder's dict → logits (B, T, V) float32; given `masked_positions` (B, P) int32
    too, logits (B, P, V) only there: the vocabulary projection is most of a small model's work.
    Given `labels` (B, P) int32 as well, or (B, T), the cross-entropy of each in nats instead, of
    the labels' shape and float32: what a training step needs, without logits in float32.
    Positions count from 0 to T − 1. Raises InputError for another one where its value is known; in
    a step that is compiled, such as those of `fit`, the nearest in the row is taken.
    """

    architecture = "RoFormerForMaskedLM"
    further_inputs = ("masked_positions", "labels")

    def __init__(self, config: RoFormerConfig, name: str = "masked_lm", **kwargs: Any) -> None:
        super().__init__(config, name, **kwargs)

    def checked(self, inputs: Any) -> dict[str, Any]:
        """The inputs; raises InputError also for a masked position out of range."""
        inputs = super().checked(inputs)
        positions, length = inputs.get("masked_positions"), inputs["token_ids"].shape[1]
        if positions is not None and length is not None:
            within(positions, length)
        return inputs

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Score the vocabulary at every position, or at the masked ones."""
        hidden = self.encoder(
            encoder_inputs(inputs), training=training, positions=inputs.get("masked_positions")
        )
        return self.logits_or_losses(hidden, inputs, training)


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForCausalLM(GenerationMixin, LanguageModel):
    """A causal language model, such as the released gpt-char.

    Call: the encoder's dict → logits (B, T, V) float32; those at a position score the token
    after it. Given `labels` (B, T) int32 too, such as the next tokens, the cross-entropy of each in
    nats instead, (B, T) float32. `attention_type="unilm"` gives the mask of the released sim-char
    models: segment 0 is read in both directions, segment 1 written from left to right.
    """

    architecture = "RoFormerForCausalLM"

    def __init__(self, config: RoFormerConfig, name: str = "causal_lm", **kwargs: Any) -> None:
        super().__init__(_by_default(config, "causal"), name, **kwargs)
        if self.config.attention_type != "causal":  # transformers generates with no other
            self.architecture = RoFormerForMaskedLM.architecture

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Score the next token at every position."""
        hidden = self.encoder(encoder_inputs(inputs), training=training)
        return self.logits_or_losses(hidden, inputs, training)


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForSentenceSimilarity(GenerationMixin, LanguageModel):
    """The released sim-char models: sentence vectors, and a language model over a second text.

    Call: the encoder's dict → a dict of `embedding` (B, H) float32, the linear pooler's output
    at the first token, not normalised, and `logits` (B, T, V) float32. The mask is UniLM's, which
    for one text, whose segments are all 0, hides nothing. Given `labels` (B, T) int32 too, such as
    the next tokens, `losses` in place of logits: the cross-entropy of each in nats, (B, T) float32.
    """

    architecture = "RoFormerForMaskedLM"

    def __init__(
        self, config: RoFormerConfig, name: str = "sentence_similarity", **kwargs: Any
    ) -> None:
        super().__init__(_by_default(config, "unilm"), name, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Make the weights of the head and of the pooler."""
        super().build()
        self.pooler = Pooler(self.config, name="pooler", dtype=self.dtype_policy)
        self.pooler.build()

    def parts(self) -> dict[str, keras.layers.Layer]:
        """The encoder, the head and the pooler."""
        return super().parts() | {"pooler": self.pooler}

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> dict[str, Tensor]:
        """Give the sentence vectors, and score the vocabulary at every position."""
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

        Texts of like length go together, so that little is padded. Raises InputError for a model
        that came without a tokenizer, for what is no list of texts, and for vectors that are not
        finite.
        """
        tokenizer = self.own_tokenizer
        rows = [tokenizer.encode(text, pair, max_length) for text, pair in as_pairs(texts)]
        vectors = self.embed_rows([ids for ids, _ in rows], [s for _, s in rows], batch_size)
        check_finite(vectors)
        return np.stack(vectors) if rows else np.zeros((0, self.config.hidden_size), "float32")

    @cached_property
    def embed_rows(self) -> Callable[..., list[np.ndarray]]:
        """`run_rows` of an embedder, which is made and traced once.

        It is a function, since an attribute that is a layer would be saved as a part of the model.
        """
        return partial(run_rows, SentenceEmbedder(self.encoder, self.pooler))


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForSequenceClassification(PretrainedModel):
    """An encoder that classifies a text or a pair of texts.

    Call: the encoder's dict → logits (B, C) float32, for C = `num_labels`. `pooling="cls"` is
    transformers' head, two dense layers on the first token; `pooling="mean"` one dense layer on
    the mean of all tokens, as the released fine-tuning script has it.
    Raises InputError where neither the checkpoint nor the caller says how many labels there are.
    """

    def __init__(
        self,
        config: RoFormerConfig,
        num_labels: int | None = None,
        pooling: str | None = None,
        name: str = "sequence_classification",
        **kwargs: Any,
    ) -> None:
        given = {"num_labels": num_labels, "pooling": pooling}
        config = config.replace(**{key: x for key, x in given.items() if x is not None})
        super().__init__(_labelled(config), name=name, **kwargs)
        self.encoder = RoFormerEncoder(config, dtype=self.dtype_policy)
        self.classifier = TextClassifier(config, name="classifier", dtype=self.dtype_policy)
        if config.pooling == "cls":  # transformers has no head on the mean
            self.architecture = "RoFormerForSequenceClassification"
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Make the head's weights; the encoder has made its own."""
        self.classifier.build()

    def parts(self) -> dict[str, keras.layers.Layer]:
        """The encoder and the head."""
        return {"encoder": self.encoder, "classifier": self.classifier}

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Score the labels."""
        needed = first_positions(inputs) if self.classifier.of_first else None
        hidden = self.encoder(encoder_inputs(inputs), training=training, positions=needed)
        return self.classifier(hidden, sequences(inputs), training=training)


@keras.saving.register_keras_serializable(package="roformer_tf")
class RoFormerForTokenClassification(PretrainedModel):
    """An encoder that classifies every token.

    Call: the encoder's dict → logits (B, T, C) float32, for C = `num_labels`.
    With `crf` in the config it has a conditional random field as well: given `labels` (B, T) int32
    among the inputs, the call gives the negative log-likelihood of each row's labels in nats,
    shared out evenly among its tokens with one, (B, T) float32. `kernels.crf` says what labels may
    be. Its logits are then a part of what a label scores: `crf` holds what it scores behind
    another.
    Raises InputError where neither the checkpoint nor the caller says how many labels there are.
    """

    architecture = "RoFormerForTokenClassification"

    def __init__(
        self,
        config: RoFormerConfig,
        num_labels: int | None = None,
        name: str = "token_classification",
        **kwargs: Any,
    ) -> None:
        config = config if num_labels is None else config.replace(num_labels=num_labels)
        super().__init__(_labelled(config), name=name, **kwargs)
        self.encoder = RoFormerEncoder(config, dtype=self.dtype_policy)
        self.drop = Dropout(config.hidden_dropout_prob, dtype=self.dtype_policy)
        self.classifier = head_dense(
            config, config.num_labels, "token_classifier", self.dtype_policy
        )
        self.crf = ConditionalRandomField(config.num_labels, name="crf") if config.crf else None
        self.further_inputs = ("labels",) if config.crf else ()
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Make the head's weights; the encoder has made its own."""
        self.classifier.build((None, None, self.config.hidden_size))
        if self.crf is not None:
            self.crf.build()

    def parts(self) -> dict[str, keras.layers.Layer]:
        """The encoder, the head, and the transition scores if there are any."""
        found = {"encoder": self.encoder, "token_classifier": self.classifier}
        return found if self.crf is None else found | {"crf": self.crf}

    def call(self, inputs: Mapping[str, Tensor], training: bool | None = None) -> Tensor:
        """Score the labels of every token; given `labels`, their negative log-likelihood."""
        hidden = self.drop(
            self.encoder(encoder_inputs(inputs), training=training), training=training
        )
        logits = ops.cast(self.classifier(hidden), "float32")
        if self.crf is None or "labels" not in inputs:
            return logits
        return self.crf(logits, inputs["labels"])


class ConditionalRandomField(layers.Layer):
    """Transition scores of a linear-chain conditional random field, in float32.

    Weights: `start_transitions` (C,), `transitions` (C, C) from each label to each next one,
    `end_transitions` (C,). Call: logits (B, T, C), labels (B, T) → losses (B, T), as
    `kernels.crf.sequence_losses` has them.
    """

    def __init__(self, num_labels: int, **kwargs: Any) -> None:
        super().__init__(dtype="float32", **kwargs)
        self.num_labels = num_labels

    def build(self, input_shape: Any = None) -> None:
        """Make the weights, all 0: at first every order of labels is equally good."""
        count = self.num_labels
        self.start = self.add_weight((count,), "zeros", name="start_transitions")
        self.transitions = self.add_weight((count, count), "zeros", name="transitions")
        self.end = self.add_weight((count,), "zeros", name="end_transitions")

    def call(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Give the negative log-likelihood of each row's labels, divided among its tokens."""
        weights = (ops.convert_to_tensor(x) for x in (self.start, self.transitions, self.end))
        return sequence_losses(logits, labels, *weights)


class TextClassifier(layers.Layer):
    """Pool, then drop → dense → activation → drop → out_proj ("cls") or drop → out_proj ("mean").

    Call: hidden (B, T, H), sequence_ids (B, T), 0 for padding → logits (B, C) float32.
    """

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_size, self.of_first = config.hidden_size, config.pooling == "cls"
        self.drop = Dropout(config.hidden_dropout_prob, dtype=self.dtype_policy)
        if self.of_first:
            self.dense = head_dense(config, config.hidden_size, "dense", self.dtype_policy)
            self.activation = activation(config)
        self.out_proj = head_dense(config, config.num_labels, "out_proj", self.dtype_policy)

    def build(self, input_shape: Any = None) -> None:
        """Make all weights; shapes come from the config alone."""
        if self.of_first:
            self.dense.build((None, self.hidden_size))
        self.out_proj.build((None, self.hidden_size))

    def call(self, hidden: Tensor, sequence_ids: Tensor, training: bool | None = None) -> Tensor:
        """Score the labels of each row."""
        if self.of_first:
            x = self.activation(self.dense(self.drop(hidden[:, 0], training=training)))
        else:
            x = mean_of_tokens(hidden, sequence_ids)
        return ops.cast(self.out_proj(self.drop(x, training=training)), "float32")


def _by_default(config: RoFormerConfig, attention_type: str) -> RoFormerConfig:
    """The config with this mask, unless it already has one."""
    if config.attention_type is not None:
        return config
    return config.replace(attention_type=attention_type)


def _labelled(config: RoFormerConfig) -> RoFormerConfig:
    """The config; raises InputError without a number of labels."""
    if not config.num_labels:
        raise InputError(
            "the checkpoint has no classification head that would tell the number of labels. "
            "Give num_labels, such as num_labels=2."
        )
    return config
