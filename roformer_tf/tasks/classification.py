"""One text or a pair of texts, one of several labels; or labels that are asked for.

A model of natural language inference knows whether a text entails another. So it can be asked for
labels without any training on them (Yin, Hay and Roth, arXiv 1909.00161): each becomes a sentence,
such as 这段话的内容是关于体育的。, and the label whose sentence the text entails most is predicted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.cells import BadCellError, to_number
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.encoding import EncodedTexts, rows_side_by_side
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks import metrics
from roformer_tf.tasks.base import Examples, Gold, Predictions, Task, check_labels, part
from roformer_tf.tasks.decoding import LabelDecoding
from roformer_tf.tasks.labelling import Labelling
from roformer_tf.tasks.metrics import Function, Metric
from roformer_tf.tasks.objective import SoftmaxObjective
from roformer_tf.tasks.scoring import JsonObject, Metrics, confusion
from roformer_tf.tasks.tfidf import LinearModel, Setting, fit_logistic
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

# Names of the label of a pair whose first text entails the second.
ENTAILMENT = ("entailment", "蕴含", "蕴涵")
# The sentence about a label, where the caller gives none.
TEMPLATE = "这段话的内容是关于{}的。"


class ClassificationLabelling(Labelling):
    """Labels that repeat in a column. Target () int32: the label's index among the logits."""

    def guess(self, sample: LabelSample) -> str:
        """Labels that repeat, and are not numbers with decimals."""
        # Numbers with decimals are a regression, cells with several labels a multilabel task.
        fits = len(sample.texts) in self.text_counts and sample.has_few
        if not fits or sample.has_decimals or sample.why_several:
            return ""
        return Message("there are {number} different labels", number=sample.distinct)

    def complete(self, examples: list[Example]) -> list[Example]:
        """Refuse the label "nan" if all other labels are numbers: it means a missing label."""
        missing = [example for example in examples if example.label.casefold() == "nan"]
        numbers = [example for example in examples if to_number(example.label) is not None]
        if missing and numbers and len(missing) + len(numbers) == len(examples):
            bad = missing[0]
            raise InputError(
                f"{bad.source_line} has the label {bad.label!r}, but all others are numbers. "
                "Correct it, or remove it from the file."
            )
        return examples

    def target(self, example: Example) -> np.ndarray:
        """() int32."""
        return np.array(self.number_of(example.label, example), np.int32)


class PairLabelling(ClassificationLabelling):
    """Labels of two texts in one sequence."""

    text_counts: ClassVar[tuple[int, ...]] = (2,)

    def check(self, example: Example) -> None:
        """Refuse the label "-", with which OCNLI, SNLI and others mark pairs without consensus."""
        if example.label == "-":
            raise BadCellError('has the label "-": its annotators did not agree')


class ClassificationMetrics(Metrics):
    """Accuracy, macro F1 and, between two labels, ROC AUC."""

    all: ClassVar[tuple[Metric, ...]] = (metrics.ACCURACY, metrics.MACRO_F1, metrics.ROC_AUC)
    linear_model: ClassVar[str] = "logistic"
    has_probabilities: ClassVar[bool] = True
    by_label: ClassVar[bool] = True
    finds_label_errors: ClassVar[bool] = True

    def usable(self) -> tuple[Metric, ...]:
        """ROC AUC needs exactly two labels."""
        two = len(self.task.labels) == 2
        return tuple(metric for metric in self.all if two or metric != metrics.ROC_AUC)

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """ROC AUC is that of the second label's probability."""
        counts, last = self.count_items(gold, predictions), self.task.labels[-1]
        is_last = np.array([label == last for label in gold])
        of_last = np.array([prediction.scores[-1] for prediction in predictions])
        return super().functions(gold, predictions) | {
            metrics.MACRO_F1: partial(metrics.macro_f1, counts),
            metrics.ROC_AUC: partial(metrics.roc_auc, is_last, of_last),
        }

    def fit_linear(self, targets: np.ndarray, features: Any, setting: Setting) -> LinearModel:
        """A model of each label against the rest; of two labels one model, of the second."""
        labels = np.arange(len(self.task.labels))
        is_label = targets[:, None] == (labels[1:] if len(labels) == 2 else labels)
        return fit_logistic(is_label, features, setting)

    def linear_logits(self, outputs: np.ndarray) -> np.ndarray:
        """Of two labels 0 and the output; of several the logarithms of their probabilities."""
        if outputs.shape[1] == 1:
            return np.hstack([np.zeros_like(outputs), outputs])
        # Independent models: their probabilities do not add up to 1 before a softmax.
        return -np.logaddexp(0, -outputs)

    def details(self, examples: Examples, predictions: Predictions) -> JsonObject:
        """The confusion matrix, too."""
        gold = [example.label for example in examples]
        predicted = [prediction.label for prediction in predictions]
        return super().details(examples, predictions) | {"confusion": confusion(gold, predicted)}


class Classification(Task):
    """One text, one of the labels."""

    name: ClassVar[str] = "classification"
    title: ClassVar[str] = "文本分类 · Classification"
    has_vector_method: ClassVar[bool] = True
    labelling = part(ClassificationLabelling)
    objective = part(SoftmaxObjective)
    decoding = part(LabelDecoding)
    metrics = part(ClassificationMetrics)


class Pair(Classification):
    """Two texts in one sequence, one of the labels."""

    name: ClassVar[str] = "pair"
    title: ClassVar[str] = "文本对分类 · Text pair classification"
    # A checkpoint does not compare two texts: its vectors alone do not show whether they match.
    has_vector_method: ClassVar[bool] = False
    labelling = part(PairLabelling)

    @property
    def accepts_labels(self) -> bool:
        """Whether a label means that the first text entails the second."""
        return len(self._entailment) == 1

    @property
    def _entailment(self) -> list[int]:
        return [i for i, label in enumerate(self.labels) if label.lower() in ENTAILMENT]

    def with_labels(self, labels: Sequence[str], template: str | None = None) -> Task:
        """The task of a model of natural language inference that predicts other labels.

        Raises InputError if no label means entailment, for fewer than two labels or repeated ones,
        and for a template without {}.
        """
        if not self.accepts_labels:
            return super().with_labels(labels, template)
        names, template = check_labels(labels), TEMPLATE if template is None else template
        if len(names) < 2:
            raise InputError(f"labels is {names[0]}, but a label is chosen among at least two.")
        if template.count("{}") != 1:
            raise InputError(
                f"template is {template!r}, but needs one {{}} in the place of the label, as "
                f"{TEMPLATE!r} has it."
            )
        return ZeroShot(
            labels=names,
            hypotheses=tuple(template.replace("{}", name) for name in names),
            entailment=self._entailment[0],
            max_length=self.max_length,
            top_k=self.top_k,
        )


class HypothesisLabelling(ClassificationLabelling):
    """A text, which may entail the sentence about each label."""

    task: "ZeroShot"

    def encode(self, examples: Examples, tokenizer: RoFormerTokenizer) -> EncodedTexts:
        """A sequence for each label: the text and the sentence about the label."""
        sentences = self.task.hypotheses
        # `encode_texts` pairs the first text with each of the rest: (text, sentence).
        several = [example._replace(texts=(*example.texts, *sentences)) for example in examples]
        return super().encode(several, tokenizer)


class EntailmentDecoding(LabelDecoding):
    """Logits of entailment → the label whose sentence is entailed most, by a softmax over them."""

    task: "ZeroShot"

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """Logits of sequences (3,) → of examples (C,): those of entailment."""
        # A list as the index keeps the axis: (1,) of each row, which are joined to (C,).
        of_entailment = [logits[[self.task.entailment]] for logits in row_logits]
        return rows_side_by_side(of_entailment, encoded)


@dataclass(frozen=True, kw_only=True)
class ZeroShot(Classification):
    """One text, one of the labels that the caller names; the model is that of a `Pair`."""

    name: ClassVar[str] = "zero-shot"
    title: ClassVar[str] = "零样本分类 · Zero-shot classification"
    has_vector_method: ClassVar[bool] = False
    labelling = part(HypothesisLabelling)
    decoding = part(EntailmentDecoding)

    hypotheses: tuple[str, ...]
    """The sentence about each label."""
    entailment: int
    """Index of entailment among the logits of a pair."""
