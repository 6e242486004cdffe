"""The head of the masked language model scores what fills a gap of a text.

It knows words already; a new head would have to learn them from the examples. `--task
multiple-choice` has candidates for a gap, or pairs where some text has none. With `finetune
--method cloze`, the names of labels fill the gap of a sentence about the text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
from roformer_tf.engines.network import Part as NetworkPart
from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.choices import GAP, ChoiceBatches, EncodedChoices, encode_cloze
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.tasks.base import Examples, Task, part
from roformer_tf.tasks.choices.multiple_choice import (
    ChoiceDecoding,
    ChoiceLabelling,
    Choices,
    ListObjective,
)
from roformer_tf.tasks.classification import (
    Classification,
    ClassificationLabelling,
    ClassificationMetrics,
)
from roformer_tf.tasks.decoding import LabelDecoding
from roformer_tf.tasks.losses import Tensor, mean_log_probabilities, softmax_losses
from roformer_tf.tasks.objective import OF_LABELS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer


class ClozeLabelling(ChoiceLabelling):
    """Rows with masks in the gap of the text."""

    fixed_long_texts: ClassVar[str] = "the ends that are farthest from the gap are cut."

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedChoices:
        """A row for each number of tokens of an example's candidates, and one without the text."""
        return encode_cloze(examples, tokenizer, self.task.max_length)


class ClozeObjective(ListObjective):
    """A candidate's score is its mean log-probability in the text, less that without a text."""

    model_name: ClassVar[str] = "RoFormerForMaskedLM"
    trains_new_head: ClassVar[bool] = False
    reads_head: ClassVar[bool] = True
    losses = staticmethod(softmax_losses)  # of labels, by which lexical features are weighted

    def choose_pooling(self, checkpoint: Checkpoint, source: OpenedSource) -> str:
        """No pooling counts. Raises InputError for a checkpoint without the head."""
        if not checkpoint.is_language_model:
            raise InputError(
                f"{source.name} has no head that scores the vocabulary, which fills the gaps of "
                "these texts. Give a --checkpoint with one, such as chinese_roformer-tf-mini."
            )
        return self.poolings[0]

    def scores(self, outputs: Tensor, inputs: Any) -> Tensor:
        """Logits at masks (D, P, V) → scores of candidates (B, C)."""
        means = mean_log_probabilities(outputs, inputs["row_index"], inputs["tokens"])
        # R = 2 rows for each candidate, in the text and without it. The difference keeps words that
        # are frequent anywhere from winning.
        return means[..., 0] - means[..., 1]


class ClozeDecoding(ChoiceDecoding):
    """Rows of masks → scores of candidates."""

    graph_part: ClassVar[NetworkPart] = "masked"

    def run(self, model: Any, encoded: EncodedTexts, batch_size: int) -> list[np.ndarray]:
        """For each row (C,) float64: the mean log-probability of the example's candidates in it.

        0 for candidates of another number of tokens than the row has masks.
        """
        from roformer_tf.models.rows import outputs_of_rows

        assert isinstance(encoded, EncodedChoices)
        outputs = [np.zeros(0)] * len(encoded.token_ids)
        rows = outputs_of_rows(model, encoded.token_ids, None, batch_size, encoded.masks)
        for row, logits in rows:
            tokens = encoded.tokens[encoded.example[row]]  # (C, P)
            count = len(encoded.masks[row])
            exact = logits.astype(np.float64)
            # Logits (masks, V) → log-probabilities.
            exact -= np.logaddexp.reduce(exact, axis=-1, keepdims=True)
            # (C,). For a candidate of another length the mean has no meaning: it becomes 0.
            means = exact[np.arange(count), tokens[:, :count]].mean(axis=1)
            outputs[row] = np.where((tokens > 0).sum(axis=1) == count, means, 0)
        return outputs

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """For each example (C,): the score in the text, less that without a text."""
        assert isinstance(encoded, EncodedChoices)
        return [
            # Row a has the text, row b has none; both have a mask for each token of candidate i.
            np.array([row_logits[a][i] - row_logits[b][i] for i, (a, b) in enumerate(rows)])
            for rows in encoded.candidate_rows
        ]


class Cloze(Choices):
    """Texts with a gap, and several candidates that may fill it."""

    labelling = part(ClozeLabelling)
    objective = part(ClozeObjective)
    decoding = part(ClozeDecoding)


class MultipleChoice(Choices):
    """The task of `--task multiple-choice`: a cloze if every training text has a gap."""

    @classmethod
    def from_settings(cls, **settings: Any) -> Task:
        """The task with these settings: a cloze, or pairs."""
        return (Cloze if settings.get("gaps") else cls)(**settings)


class LabelWordsLabelling(ClassificationLabelling):
    """One text with one of the labels, as a cloze with all labels as candidates.

        这是一条{label}新闻。{text}    → [CLS] 这是一条 [MASK] 新闻。 … [SEP]

    The head knows the names of the labels already, so a dozen examples teach more than with a new
    head (pattern-exploiting training, Schick and Schütze, arXiv 2001.07676, without its unlabelled
    texts).
    """

    task: "LabelWords"
    fixed_long_texts: ClassVar[str] = ClozeLabelling.fixed_long_texts

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedChoices:
        """As in `ClozeLabelling`. Raises InputError for labels that are the same tokens."""
        labels = self.task.labels
        names = {tuple(tokenizer.ids(label)): label for label in labels}
        if len(names) < len(labels):
            # In `names` a later label has replaced an earlier one of the same tokens.
            same = next(x for x in labels if names[tuple(tokenizer.ids(x))] != x)
            raise InputError(
                f"the label {same} and another one are the same tokens for this checkpoint. Give "
                "words that it knows as --label-names."
            )
        sentence = self.task.pattern.replace("{label}", "[MASK]")
        # A gap in the text itself would be the first.
        texts = [sentence.replace("{text}", GAP.sub("", example.texts[0])) for example in examples]
        rows = [x._replace(texts=(text, *labels)) for x, text in zip(examples, texts, strict=True)]
        return encode_cloze(rows, tokenizer, self.task.max_length)

    def training_data(self, examples: Examples, tokenizer: RoFormerTokenizer) -> TrainingData:
        """Batches of whole examples; their targets (C,) are 1 for the label."""
        ones = np.eye(len(self.task.labels), dtype=np.float32)
        targets = [ones[self.target(example)] for example in examples]
        return ChoiceBatches(self.encode(examples, tokenizer), targets)


class LabelWordsObjective(ClozeObjective):
    """The labels of an example are its candidates."""

    refused_settings: ClassVar[Mapping[str, str]] = dict.fromkeys(
        OF_LABELS, "is for --method full, not for cloze."
    )


class LabelWordsDecoding(LabelDecoding, ClozeDecoding):
    """Scores of the labels in the gap (C,) → the most probable label, by a softmax over them."""


@dataclass(frozen=True, kw_only=True)
class LabelWords(Task):
    """One text, one of the labels, whose names fill the gap of a sentence."""

    name: ClassVar[str] = Classification.name
    title: ClassVar[str] = Classification.title
    compares: ClassVar[bool] = True
    labelling = part(LabelWordsLabelling)
    objective = part(LabelWordsObjective)
    decoding = part(LabelWordsDecoding)
    metrics = part(ClassificationMetrics)

    pattern: str
    """The sentence, with {text} and {label}."""


class TextClassification(Classification):
    """The task of `--task classification`: `Classification`, or `LabelWords` with a pattern."""

    @classmethod
    def from_settings(cls, **settings: Any) -> Task:
        """The task with these settings."""
        return (LabelWords if "pattern" in settings else Classification)(**settings)
