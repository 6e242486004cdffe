"""Paraphrases: one model that computes sentence vectors and generates texts of equal meaning."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.paraphrases import ParaphraseBatches
from roformer_tf.labelled.text_sides import EncodedSides, encode_separately
from roformer_tf.readers.records import text_key
from roformer_tf.tasks import losses
from roformer_tf.tasks.base import Examples, part
from roformer_tf.tasks.losses import Tensor
from roformer_tf.tasks.vectors import retrieval
from roformer_tf.tasks.vectors.sentence_vectors import BELONGS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer


class ParaphraseLabelling(retrieval.RetrievalLabelling):
    """Groups of texts of the same meaning; the first two of each are evaluated."""

    text_counts: ClassVar[tuple[int, ...]] = (2,)

    def complete(self, examples: list[Example]) -> list[Example]:
        """Groups of different texts. Raises InputError for a label, which has no meaning here."""
        groups = []
        for example in examples:
            if not isinstance(example.label, int | None):
                raise InputError(
                    f"{example.source_line}: the texts have the label {example.label}, but texts "
                    "that mean the same need none. Give pairs that do, without a column of labels."
                )
            # Of equal texts the first one is kept: in reverse order it overwrites the others.
            different = {text_key([text]): text for text in reversed(example.texts)}
            texts = tuple(reversed(different.values()))
            groups.append(example._replace(texts=texts, label=BELONGS))
        return groups

    def learned(self, training: Examples) -> dict[str, Any]:
        """As retrieval. Raises InputError if all groups have the same texts."""
        # Groups differ in size; retrieval expects examples of equally many texts.
        return super().learned(first_pairs(training))

    def notes(self, training: Examples) -> list[str]:
        """The meaning of the examples, and the losses."""
        texts = sum(len(example.texts) for example in training)
        similar = "a teacher's cosines" if self.task.teacher else "in-batch softmax"
        return [
            f"{texts:,} texts in {len(training):,} groups that mean the same; each epoch takes two "
            f"of a group, in both orders; loss of the second text, and {similar}"
        ]

    def why_long_texts_fixed(self) -> str:
        """A long text loses its end."""
        return self.fixed_long_texts

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedSides:
        """A sequence for each of the first two texts."""
        return encode_separately(first_pairs(examples), tokenizer, self.task.max_length)

    def evaluated_texts(self, examples: Examples, tokenizer: RoFormerTokenizer) -> list[str]:
        """The first two texts of each group."""
        return super().evaluated_texts(first_pairs(examples), tokenizer)

    def training_data(self, examples: Examples, tokenizer: RoFormerTokenizer) -> TrainingData:
        """Sequences of two texts, in both orders."""
        return ParaphraseBatches(examples, tokenizer, self.task.max_length)


class ParaphraseObjective(retrieval.RetrievalObjective):
    """As RoFormer-Sim: a UniLM generates one text from another, and their vectors are similar."""

    model_name: ClassVar[str] = "RoFormerForSentenceSimilarity"
    poolings: ClassVar[tuple[str, ...]] = ("pooler",)
    vector_settings: ClassVar[tuple[str, ...]] = ()
    # Stage 2 of RoFormer-Sim distils a teacher; stage 1 has no labels but the pairs themselves.
    soft_losses = staticmethod(losses.distilled)

    def choose_pooling(self, checkpoint: Checkpoint, source: OpenedSource) -> str:
        """The linear pooler, with new weights if the checkpoint has none."""
        return self.poolings[0]

    def with_vector_settings(self, config: losses.VectorConfig, teacher: str | None) -> Any:
        """The task with or without a teacher."""
        return dataclasses.replace(self.task, teacher=teacher is not None)

    def batch_loss(self, targets: Tensor, outputs: Any, weights: Tensor, inputs: Any) -> Tensor:
        """The loss of the second texts' tokens, plus the loss of the vectors."""
        similarity = self.soft_losses if self.task.teacher else losses.neighbours
        generated = losses.second_texts(outputs["losses"], inputs["segment_ids"])
        return generated + similarity(targets, outputs["embedding"], weights)


class ParaphraseDecoding(retrieval.RetrievalDecoding):
    """As retrieval; the model's `embed_rows` computes the vectors."""

    def run(self, model: Any, encoded: EncodedTexts, batch_size: int) -> list[np.ndarray]:
        """A vector (H,) for each sequence; nothing is generated."""
        # The Keras model also computes the vocabulary's logits, which vectors do not need.
        if not hasattr(model, "embed_rows"):  # a graph, which has no other output
            return super().run(model, encoded, batch_size)
        return list(model.embed_rows(encoded.token_ids, encoded.segment_ids, batch_size))


@dataclass(frozen=True, kw_only=True)
class Paraphrase(retrieval.Retrieval):
    """Groups of texts of the same meaning, trained as RoFormer-Sim was."""

    name: ClassVar[str] = "paraphrase"
    title: ClassVar[str] = "同义句 · Paraphrases"
    generates: ClassVar[bool] = True
    labelling = part(ParaphraseLabelling)
    objective = part(ParaphraseObjective)
    decoding = part(ParaphraseDecoding)

    teacher: bool = False
    """Whether the vectors were trained on a teacher's cosines."""


def first_pairs(examples: Examples) -> list[Example]:
    """The first two texts of each group."""
    return [example._replace(texts=example.texts[:2]) for example in examples]
