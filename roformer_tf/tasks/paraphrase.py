"""Sentences that mean the same: one model that tells how near two are, and writes another."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.cells import BadCellError
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.labelled.examples import GROUP, Example
from roformer_tf.labelled.paraphrases import ParaphraseBatches
from roformer_tf.labelled.text_sides import encode_separately
from roformer_tf.readers.records import text_key
from roformer_tf.tasks.embedding import BELONGS, Embedding
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

    from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
    from roformer_tf.kernels.forms import Tensor
    from roformer_tf.models.pretrained import PretrainedModel


@dataclass(frozen=True, kw_only=True)
class Paraphrase(Embedding):
    """Groups of texts that mean the same, trained on as RoFormer-Sim is.

    A UniLM writes one behind another, and the vectors of both are near each other. It is judged by
    its vectors, as an embedding whose texts belong together: by the first two of each group.
    """

    name: ClassVar[str] = "paraphrase"
    title: ClassVar[str] = "同义句 · Paraphrases"
    text_counts: ClassVar[tuple[int, ...]] = (2,)
    pooling: ClassVar[str] = "pooler"
    poolings: ClassVar[tuple[str, ...]] = ("pooler",)
    writes: ClassVar[bool] = True
    vector_settings: ClassVar[tuple[str, ...]] = ("teacher",)
    long_texts_fixed: ClassVar[str] = "the end of a long text is cut."

    teacher: bool = False
    """Whether vectors were trained to have a teacher's cosines."""

    @classmethod
    def check(cls, example: Example) -> None:
        """Refuse a group that is one text."""
        if len({text_key([text]) for text in example.texts}) < 2:
            raise BadCellError("has the same text twice, from which nothing can be learnt")

    @classmethod
    def complete(cls, examples: list[Example]) -> list[Example]:
        """Groups of different texts. Raises InputError for a label, which means nothing here."""
        found = []
        for example in examples:
            if example.label not in (None, GROUP):
                raise InputError(
                    f"{example.place}: the texts have the label {example.label}, but texts that "
                    "mean the same need none. Give pairs that do, without a column of labels."
                )
            different = {text_key([text]): text for text in reversed(example.texts)}
            texts = tuple(reversed(different.values()))
            found.append(example._replace(texts=texts, label=BELONGS))
        return found

    @classmethod
    def from_examples(cls, training: Sequence[Example], **settings: Any) -> "Self":
        """Raises InputError where all groups are of the same texts."""
        pairs = [one._replace(texts=one.texts[:2]) for one in training]
        return super().from_examples(pairs, **settings)

    def with_vector_settings(  # type: ignore[override]
        self, *, teacher: str | None = None
    ) -> "Self":
        """The task with a teacher, or without."""
        return dataclasses.replace(self, teacher=teacher is not None)

    def remarks(self, training: Sequence[Example]) -> list[str]:
        """What the examples are taken for."""
        texts = sum(len(example.texts) for example in training)
        similar = "a teacher's cosines" if self.teacher else "in-batch softmax"
        return [
            f"{texts:,} texts in {len(training):,} groups that mean the same; each epoch takes two "
            f"of a group, in both orders; loss of the second text, and {similar}"
        ]

    def encode(self, examples: Sequence[Example], tokenizer: RoFormerTokenizer) -> EncodedTexts:
        """A row for each of the first two texts, to be judged by."""
        pairs = [example._replace(texts=example.texts[:2]) for example in examples]
        return encode_separately(pairs, tokenizer, self.max_length)

    def judged_texts(self, examples: Sequence[Example], tokenizer: RoFormerTokenizer) -> list[str]:
        """The first two texts of each group."""
        return [text for example in examples for text in example.texts[:2]]

    def why_long_texts_fixed(self) -> str:
        """Their ends are cut."""
        return self.long_texts_fixed

    def training_data(
        self, examples: Sequence[Example], tokenizer: RoFormerTokenizer
    ) -> TrainingData:
        """Rows of two texts, in both orders."""
        return ParaphraseBatches.of(examples, tokenizer, self.max_length)

    def batch_loss(
        self,
        targets: "Tensor",
        outputs: "Any",
        weights: "Tensor",
        inputs: Any = None,
        classifier: Any = None,
    ) -> "Tensor":
        """The loss of the second texts' tokens, and that of the vectors."""
        from roformer_tf.tasks import vector_losses as losses

        similarity = losses.distilled if self.teacher else losses.neighbours
        written = losses.second_texts(outputs["losses"], inputs["segment_ids"])
        return written + similarity(targets, outputs["embedding"], weights)

    @classmethod
    def model_class(cls) -> "type[PretrainedModel]":
        """A sim model."""
        from roformer_tf.models.heads import RoFormerForSentenceSimilarity

        return RoFormerForSentenceSimilarity

    @classmethod
    def choose_pooling(cls, checkpoint: "Checkpoint", source: "OpenedSource") -> str:
        """The linear pooler, which a model that never had one gets anew."""
        return cls.pooling

    def run(self, model: Any, encoded: EncodedTexts, batch_size: int) -> list[np.ndarray]:
        """A vector (H,) of each row; nothing is written."""
        return list(model.embed_rows(encoded.token_ids, encoded.segment_ids, batch_size))
