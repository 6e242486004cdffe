"""A label fills the gap of a sentence about the text: `finetune --method cloze`.

    这是一条{label}新闻。{text}    → [CLS] 这是一条 [MASK] 新闻。 … [SEP]

The head of the masked language model scores the names of the labels, as of any cloze. It knows
these words already, so a dozen examples teach more than with a new head (pattern-exploiting
training, Schick and Schütze, arXiv 2001.07676, without its unlabelled texts).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.choices import GAP, ChoiceBatches, EncodedChoices, encode_cloze
from roformer_tf.tasks.base import Examples, Task, part
from roformer_tf.tasks.choices.cloze import ClozeDecoding, ClozeLabelling, ClozeObjective
from roformer_tf.tasks.classification import (
    Classification,
    ClassificationLabelling,
    ClassificationMetrics,
)
from roformer_tf.tasks.decoding import LabelDecoding
from roformer_tf.tasks.losses import softmax_losses

if TYPE_CHECKING:
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer


class LabelWordsLabelling(ClassificationLabelling):
    """One text with one of the labels, as a cloze with all labels as candidates."""

    task: "LabelWords"
    fixed_long_texts: ClassVar[str] = ClozeLabelling.fixed_long_texts

    def encode(self, examples: Examples, tokenizer: "RoFormerTokenizer") -> EncodedChoices:
        """As of `ClozeLabelling`. Raises InputError for labels that are the same tokens."""
        labels = self.task.labels
        names = {tuple(tokenizer.ids(label)): label for label in labels}
        if len(names) < len(labels):
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

    def training_data(self, examples: Examples, tokenizer: "RoFormerTokenizer") -> TrainingData:
        """Batches of whole examples; their targets (C,) are 1 for the label."""
        ones = np.eye(len(self.task.labels), dtype=np.float32)
        targets = [ones[self.target(example)] for example in examples]
        return ChoiceBatches(self.encode(examples, tokenizer), targets)


class LabelWordsObjective(ClozeObjective):
    """As of a cloze."""

    losses = staticmethod(softmax_losses)  # by which lexical features are weighted


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
