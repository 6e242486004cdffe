"""What a task is: all that reading, training, judging and answering ask of one.

A task is a class, and what its answers depend on beside the weights are the fields of an instance,
which `task.json` keeps. Everything else in the package asks it and knows no task by name: a new one
is a new module here and an entry in `table`.
"""

import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from roformer_tf.checkpoints.detection import TASK_FILE
from roformer_tf.engines.network import Meaning, Part
from roformer_tf.errors import InputError, check_number
from roformer_tf.files import write_text
from roformer_tf.labelled.batches import RowBatches, TrainingData
from roformer_tf.labelled.cells import read_label
from roformer_tf.labelled.columns import LabelSample
from roformer_tf.labelled.encoding import (
    EncodedTexts,
    Rows,
    encode_texts,
    mean_of_rows,
    window_targets,
)
from roformer_tf.labelled.examples import Example, Label, LongTexts
from roformer_tf.labelled.splits import Question, example_key, text_question
from roformer_tf.tasks.details import MISTAKES, JsonObject, shortened
from roformer_tf.tasks.label_issues import LabelIssue
from roformer_tf.tasks.losses import balanced_weights, softmax_divergence, softmax_losses
from roformer_tf.tasks.metrics import (
    Counts,
    Ends,
    LabelItem,
    Measure,
    Metric,
    Scores,
    bootstrap,
    count,
    once,
    wilson,
)
from roformer_tf.tasks.probabilities import LISTED, MANY_LABELS
from roformer_tf.tasks.schemes import Scheme
from roformer_tf.tokenizers.huggingface import Units
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from typing_extensions import Self

    from roformer_tf.checkpoints.sources import Checkpoint, OpenedSource
    from roformer_tf.config import RoFormerConfig
    from roformer_tf.kernels.forms import Tensor
    from roformer_tf.models.pretrained import PretrainedModel


class Prediction(NamedTuple):
    """What a model answers to one example."""

    label: Label
    """As spelled in training; of several labels, possibly none: ()."""
    scores: np.ndarray
    """float32: probabilities, one for each logit of the example, or what the task says."""


NO_SPREAD = Message("all samples drawn from the examples have the same value")
"""Why a figure has no interval."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task and all that its answers depend on beside the weights.

    Axes: B rows, T tokens, C logits. What is not abstract holds for a task whose examples have one
    text and one of several labels.
    """

    name: ClassVar[str]
    """As `--task` has it."""
    title: ClassVar[str]
    """For people, in Chinese and English: "文本分类 · Classification"."""
    headline: ClassVar[tuple[str, str] | None] = None
    """How the page words an answer in both, {} for the label; None, as the label alone."""
    metrics: ClassVar[tuple[Metric, ...]]
    """The usual one, by which the best weights are kept, first."""
    text_counts: ClassVar[tuple[int, ...]] = (1,)
    """How many texts an example may have."""
    has_units: ClassVar[bool] = False
    """Whether each character or word of an example has a label: its files are CoNLL."""
    rows_each: ClassVar[int] = 1
    """Rows that an example is trained on, if no text is read in windows."""
    pipeline_tag: ClassVar[str] = "text-classification"
    """What Hugging Face's hub files such models under."""
    graph_part: ClassVar[Part] = "classifier"
    """What of a network gives the logits, where a graph answers in the place of Keras."""
    pooling: ClassVar[str] = "cls"
    """What a text's answer is read from unless asked otherwise: its first token, or all."""
    poolings: ClassVar[tuple[str, ...]] = ("cls", "mean")
    """What it may be read from."""
    released: ClassVar[str] = "chinese_roformer-base"
    """The checkpoint to begin with, if nothing speaks for another."""
    label_optional: ClassVar[bool] = False
    """Whether a file may have texts alone, which then belong together."""
    texts_apart: ClassVar[bool] = False
    """Whether each text is a row of its own, and a loss compares the vectors of a whole batch."""
    writes: ClassVar[bool] = False
    """Whether the model learns to write the second text of a row, behind the first."""
    vector_settings: ClassVar[tuple[str, ...]] = ()
    """Fields of `finetuning.losses.VectorConfig` that it has a use for."""
    longest: ClassVar[int] = 1024
    """Most tokens of a row where nobody says how many."""
    long_texts_fixed: ClassVar[str] = ""
    """What becomes of long texts, where it cannot be chosen: "all is read, in windows."."""
    fewest_labels: ClassVar[int] = 2
    """Different labels without which nothing can be learnt."""
    refused_loss_settings: ClassVar[Mapping[str, str]] = {}
    """Fields of a loss' settings that the task has no use for, and why: "is about labels, …"."""
    lists_labels: ClassVar[bool] = False
    """Whether an answer has a probability of each of the labels, of which some may be enough."""
    chosen_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that `with_choices` sets."""
    sureness_kind: ClassVar[Literal["confidence", "error", "lead", "distance"]] = "confidence"
    """What `sureness` measures, for the words of a report."""
    joined_by: ClassVar[str] = ""
    """Between several values in a cell of a TSV; "" for what the training data had."""

    labels: tuple[str, ...] = ()
    """In the order of the logits; none where an answer is no label, or always of the same two."""
    text_columns: tuple[str, ...] = ("text",)
    """Names of the columns that the texts were in."""
    label_column: str | None = None
    """Name of the column that the labels were in; files without one have no name for it."""
    label_separator: str = ","
    """Between the labels of a multilabel example."""
    spaced_units: bool = False
    """For tagging: whether a raw text's units are what white space separates, not characters."""
    scheme: Scheme = ""
    """For tagging: by which answered tags follow each other; "" for any way."""
    crf: bool = False
    """For tagging: whether the model has learnt, too, what labels score behind each other."""
    transitions: tuple[tuple[float, ...], ...] = ()
    """Where these are not the model's to tell, as of an exported graph, what they score: (C + 2, C)
    at the beginning of a text, behind each label, at its end."""
    max_length: int = 512
    """Most tokens of a row."""
    long_texts: LongTexts = "head"
    """What becomes of longer texts: cut, cut in the middle, or read in overlapping windows."""
    thresholds: tuple[float, ...] = ()
    """For multilabel: above which probability each label is answered; none, 0.5 for all."""
    mean: float = 0.0
    """Of the numbers in training; a regression's model answers in `deviation`s from it."""
    deviation: float = 1.0
    top_k: int | None = None
    """How many labels an answer lists, the likeliest; None is all, or of many `LISTED`.

    It is about how answers are written, not about the model: it is not kept in `task.json`."""

    def __post_init__(self) -> None:
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise InputError(
                f"there are {len(self.thresholds)} thresholds for {len(self.labels)} labels"
            )

    # Rows of a file → examples → a task

    @classmethod
    def guess(cls, sample: LabelSample) -> str:
        """Why the columns of a file speak for the task; "" if they do not."""
        return ""

    @classmethod
    def read_label(cls, value: Any, separator: str) -> Label:
        """A cell as label. Raises BadCellError where it is none."""
        return read_label(value)

    @classmethod
    def check(cls, example: Example) -> None:
        """Raise BadCellError for an example from which nothing can be learnt."""
        return

    @classmethod
    def complete(cls, examples: list[Example]) -> list[Example]:
        """The labelled examples of a whole file, as training takes them.

        Raises InputError for one that does not go with the others.
        """
        return examples

    def for_prediction(self, example: Example) -> Example:
        """An example without label, as the model takes it."""
        return example

    @classmethod
    def labels_in(cls, label: Label) -> set[str]:
        """The labels that an example's label consists of."""
        return {str(label)}

    @classmethod
    def strata(cls, examples: Sequence[Example]) -> list[Any]:
        """What of each example should be as frequent in training as in validation and test."""
        return [sorted(cls.labels_in(example.label)) for example in examples]

    @classmethod
    def split_keys(cls, example: Example) -> Sequence[bytes]:
        """Of examples that share one of these all go into the same of the sets that are parted."""
        return [example_key(example.texts)]

    @classmethod
    def question(cls, example: Example) -> Question:
        """What is asked of an example, and its answer: equal questions should have equal ones."""
        return text_question(example)

    @classmethod
    def from_examples(cls, training: Sequence[Example], **settings: Any) -> "Self":
        """The task that training examples define: its labels.

        Raises InputError where there is nothing to learn: no example, or a single label.
        """
        found = {label for example in training for label in cls.labels_in(example.label)}
        if len(found) < cls.fewest_labels:
            shown = f"only {next(iter(found))!r}" if found else "none"
            raise InputError(
                f"the training examples have {shown} as a label: nothing can be learnt. "
                "Give examples of at least two labels, or another --label-column."
            )
        return cls(labels=tuple(sorted(found, key=_natural)), **settings)

    def for_judging(self, examples: Sequence[Example]) -> "Self":
        """The task as other labelled examples than those of training are judged by it."""
        return self

    def remarks(self, training: Sequence[Example]) -> list[str]:
        """What to tell of the training examples, as the task takes them."""
        return []

    # Examples → rows, targets → a loss

    def encode(self, examples: Sequence[Example], tokenizer: RoFormerTokenizer) -> EncodedTexts:
        """Make rows of at most `max_length` tokens."""
        return encode_texts(examples, tokenizer, self.max_length, self.long_texts)

    @abstractmethod
    def target(self, example: Example) -> np.ndarray:
        """What the loss compares an example's logits with.

        Raises InputError, with the example's place, for a label that training has not seen.
        """

    def row_targets(self, encoded: EncodedTexts, examples: Sequence[Example]) -> tuple[Rows, Rows]:
        """What the loss compares each row's logits with, and how much each row weighs."""
        return window_targets(encoded, [self.target(example) for example in examples])

    def training_data(
        self, examples: Sequence[Example], tokenizer: RoFormerTokenizer
    ) -> TrainingData:
        """What is trained on, in batches. Raises InputError as `target`."""
        encoded = self.encode(examples, tokenizer)
        targets, weights = self.row_targets(encoded, examples)
        return RowBatches(encoded, targets, weights, labels=self.outputs if self.crf else 0)

    def why_long_texts_fixed(self) -> str:
        """What becomes of long texts, where it cannot be chosen; "" where it can."""
        of_several = "the longer text is cut." if len(self.text_columns) > 1 else ""
        return self.long_texts_fixed or of_several

    def with_vector_settings(self, **settings: Any) -> "Self":
        """The task with a loss of vectors, and the lengths to which they may be cut.

        Raises InputError for what does not go with its data.
        """
        return self

    @property
    def outputs(self) -> int:
        """Logits of a row, or of a token: C."""
        return len(self.labels) or 1

    @property
    def units(self) -> Units | None:
        """What is tokenized one by one, if anything is, for the tokenizer's files."""
        return None

    def config_values(self) -> dict[str, Any]:
        """What the model's `config.json` tells transformers of the task: names and kind of labels.

        With them its pipelines say what is meant: each logit's label, and what scores are. None
        stands for a key that is not written, whatever the checkpoint has there.
        """
        names = self.labels_outside()
        return {
            "problem_type": None,
            "sentence_transformers": None,
            "id2label": {str(number): label for number, label in enumerate(names)},
            "label2id": {label: number for number, label in enumerate(names)},
        }

    def described_in(self, config: "RoFormerConfig") -> "RoFormerConfig":
        """The config of a model for the task, with all that other programs need to know of it.

        transformers has a table of rotary positions: here it has as many as a row has tokens.
        """
        unknown = {**config.unknown, **self.config_values()}
        positions = config.max_position_embeddings
        if config.unusual_form() is None:
            positions = max(positions, self.max_length)
        return config.replace(
            unknown={key: value for key, value in unknown.items() if value is not None},
            max_position_embeddings=positions,
            label_mean=self.mean,
            label_deviation=self.deviation,
        )

    def labels_outside(self) -> tuple[str, ...]:
        """The labels as a pipeline of transformers is to read them, in the order of the logits."""
        return self.labels

    @classmethod
    def model_class(cls) -> "type[PretrainedModel]":
        """The Keras model that gives the logits, made of a config with `num_labels` outputs."""
        from roformer_tf.models.heads import RoFormerForSequenceClassification

        return RoFormerForSequenceClassification

    @classmethod
    def source_class(cls) -> "type[PretrainedModel]":
        """The Keras model whose weights are taken of a checkpoint, whatever else that holds."""
        from roformer_tf.models.encoder import RoFormerEncoder

        return RoFormerEncoder

    @classmethod
    def choose_pooling(cls, checkpoint: "Checkpoint", source: "OpenedSource") -> str:
        """What a text's answer is read from where nobody says so; the checkpoint is the source's.

        Raises InputError where the source contradicts itself.
        """
        return cls.pooling

    def first_weights(self) -> dict[str, np.ndarray]:
        """Weights of a new model, by name, that are known before any training."""
        return {}

    @classmethod
    def losses(
        cls,
        targets: "Tensor",
        logits: "Tensor",
        smoothing: float = 0.0,
        focal: float = 0.0,
        class_weights: list[Any] | None = None,
    ) -> "Tensor":
        """Loss of each row (B,), or of each token (B, T); logits (B, C) or (B, T, C) float32."""
        return softmax_losses(targets, logits, smoothing, focal, class_weights)

    @property
    def pair_classes(self) -> int:
        """Classes that a classifier tells by both vectors of a pair, in training alone; 0, none."""
        return 0

    def batch_loss(
        self,
        targets: "Tensor",
        outputs: Any,
        weights: "Tensor",
        inputs: Any = None,
        classifier: Any = None,
    ) -> "Tensor":
        """Where texts are apart, a batch's loss by all of its vectors: a scalar float32.

        targets (B, …), outputs (B, S, H) vectors, weights (B,), and the batch's inputs; classifier:
        the dense layer of `pair_classes`, if there are any.
        """
        raise NotImplementedError(f"a {self.name} has a loss for each row")

    @classmethod
    def divergence(cls, logits: "Tensor", others: "Tensor") -> "Tensor":
        """KL(p‖q) + KL(q‖p) of what two logits mean, in the shape of `losses`, for R-Drop."""
        return softmax_divergence(logits, others)

    def balanced_weights(self, targets: Sequence[np.ndarray]) -> np.ndarray:
        """Class weights by which a rare label counts for as much as a frequent one: (C,)."""
        return balanced_weights(targets, self.outputs)

    # Logits → answers

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """Logits of rows → of examples, as `answer` reads them."""
        return mean_of_rows(row_logits, encoded)

    def order_scores(self) -> dict[str, list[Any]]:
        """What labels score for their order, for programs that read an exported graph's logits.

        {"start": (C,), "transitions": (C, C), "end": (C,)}; none where each answer is by itself.
        """
        return {}

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> "Self":
        """The task with what answers depend on, beside logits, of weights by their names."""
        return self

    def with_weights(self, model: Any) -> "Self":
        """The same of a model's weights; one without any, such as a graph, tells nothing."""
        if not hasattr(model, "named_variables"):
            return self
        return self.with_arrays(model.named_variables())

    @abstractmethod
    def answer(self, logits: np.ndarray) -> Prediction:
        """Read the logits of one example."""

    def sequence_losses(
        self, logits: Sequence[np.ndarray], examples: Sequence[Example]
    ) -> np.ndarray:
        """With a conditional random field: loss of each example (N,) float64 by its logits.

        Their mean is the loss of all: nats by the unit.
        """
        raise NotImplementedError(f"a {self.name} has no conditional random field")

    def answers(self, logits: Sequence[np.ndarray]) -> list[Prediction]:
        """Read the logits of several examples."""
        return [self.answer(one) for one in logits]

    def run(self, model: Any, encoded: EncodedTexts, batch_size: int) -> list[np.ndarray]:
        """What the model gives for each row, as `read_rows` takes it: `models.rows.run_rows`."""
        from roformer_tf.models.rows import run_rows

        return run_rows(model, encoded.token_ids, encoded.segment_ids, batch_size)

    def read_rows(
        self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts
    ) -> list[Prediction]:
        """Answers to all examples by what the model gives for their rows."""
        return self.answers(self.combine(row_logits, encoded))

    def behind(self, prediction: Prediction, before: int) -> Prediction:
        """An answer as it is where the examples of its set come behind so many others."""
        return prediction

    def example_losses(
        self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts, examples: Sequence[Example]
    ) -> np.ndarray | None:
        """Loss of each example (N,) float64, where it is not that of its rows by `losses`.

        Their mean is the loss of all.
        """
        if not self.crf:
            return None
        return self.sequence_losses(self.combine(row_logits, encoded), examples)

    def with_choices(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> "Self":
        """The task with what is chosen on the validation set, such as thresholds."""
        return self

    def with_choices_of(self, other: "Task") -> "Self":
        """The task with what was chosen for another one."""
        chosen = {name: getattr(other, name) for name in self.chosen_fields}
        return dataclasses.replace(self, **chosen)

    def reread(self, prediction: Prediction) -> Prediction:
        """An answer as what was chosen since has it."""
        return prediction

    def graph_meaning(self) -> Meaning | None:
        """What a graph gives beside its logits: what they mean; None where they do not tell."""
        return Meaning("probabilities", "softmax")

    def graph_outputs(self, logits: "Tensor") -> "dict[str, Tensor]":
        """The same of a Keras model that is exported: by its name, if there is any."""
        from keras import ops

        meaning = self.graph_meaning()
        if meaning is None:
            return {}
        if meaning.function == "linear":
            return {meaning.name: logits * meaning.scale + meaning.offset}
        return {meaning.name: getattr(ops, meaning.function)(logits)}

    # Answers → metrics

    def usable_metrics(self) -> tuple[Metric, ...]:
        """Those of `metrics` that the labels allow."""
        return self.metrics

    @classmethod
    def metric(cls, name: str) -> Metric:
        """A metric by its name."""
        return next(metric for metric in cls.metrics if metric.name == name)

    @abstractmethod
    def measure(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Measure:
        """The metrics as a function of how often each example counts."""

    def compute_metrics(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Scores:
        """Compare answers with the labels in the data: each of `usable_metrics` by its name.

        None for one that these labels and answers cannot give: see `reason`.
        """
        return once(self.measure(gold, predictions), len(gold))

    def why_undefined(self, gold: Sequence[Label]) -> dict[str, Message]:
        """Of each metric that these labels cannot give, whatever is predicted: why not."""
        return {}

    def reason(self, metric: Metric, gold: Sequence[Label], has_value: bool = False) -> Message:
        """Why a metric has no value for a set with these labels, or else no interval."""
        if has_value:
            return NO_SPREAD
        return self.why_undefined(gold).get(metric.name) or metric.undefined or NO_SPREAD

    def missing(self, gold: Sequence[Label]) -> list[str]:
        """The labels of training, or types of entities, that a set with these labels lacks."""
        return [kind for kind, number in self.count_kinds(gold).items() if not number]

    def _without_missing(self, gold: Sequence[Label], *metrics: Metric) -> dict[str, Message]:
        """`why_undefined` for metrics that need an example of every label of training."""
        if not (missing := self.missing(gold)):
            return {}
        reason = Message("there is no example of {labels}", labels=missing)
        return {metric.name: reason for metric in metrics}

    def intervals(
        self,
        gold: Sequence[Label],
        predictions: Sequence[Prediction],
        resamples: int = 1000,
        seed: int = 0,
    ) -> dict[str, Ends | None]:
        """The 95 % interval of each metric; None where there is no value, or no spread of it.

        Wilson's where a metric is a share of independent trials, else a bootstrap that draws
        examples within their labels: no sample lacks a label that the data have.
        """
        measure = self.measure(gold, predictions)
        figures = once(measure, len(gold))
        ends = bootstrap(measure, len(gold), resamples, seed, self._rarest(gold))
        for name, trials in self.trials(gold, predictions).items():
            share = figures[name]
            ends[name] = None if share is None else wilson(share, trials)
        return {name: None if figures[name] is None else ends[name] for name in figures}

    def trials(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> dict[str, int]:
        """Metrics that are shares of independent trials, and how many trials these are."""
        return {}

    def _rarest(self, gold: Sequence[Label]) -> np.ndarray:
        """A number for the rarest label of each example (N,) int64; of one without, its own."""
        counts = self.count_kinds(gold)
        rising = sorted(counts, key=counts.__getitem__)
        numbers = {kind: number for number, kind in enumerate(rising, start=1)}
        found = [[numbers.get(item[0], 0) for item in self.items(label)] for label in gold]
        return np.array([min(some, default=0) for some in found], np.int64)

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Whether a whole example is answered as the data say."""
        return bool(label == prediction.label)

    def items(self, label: Label) -> set[LabelItem]:
        """What can be right or wrong by itself in an answer, each beginning with its kind."""
        return {(label,)}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of `items`: labels, or types of entities."""
        return self.labels

    def count_items(self, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Counts:
        """Count what is in the data, what is answered, and what is both."""
        answers = [self.items(prediction.label) for prediction in predictions]
        return count(self.kinds, [self.items(label) for label in gold], answers)

    def count_kinds(self, gold: Sequence[Label]) -> dict[str, int]:
        """How often each label stands in the data, or entities of each type."""
        found = Counter(item[0] for label in gold for item in self.items(label))
        return {kind: found[kind] for kind in self.kinds}

    def baseline(
        self,
        training: Sequence[Example],
        test: Sequence[Example],
        valid: Sequence[Example] = (),
        metric: Metric | None = None,
    ) -> tuple[str, list[Prediction]]:
        """Learn from the training examples by a simple method, and answer the test's.

        → the method in words, and its answers; none where there is no such method. `valid` is for
        what is tuned and chosen, by `metric` or the task's first one.
        """
        return "", []

    def calibrated(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> list[Prediction]:
        """The predictions with probabilities that are as often right as they say, as far as known.

        Fitted to these labelled examples; the most probable label stays the same.
        """
        return list(predictions)

    def label_issues(
        self,
        examples: Sequence[Example],
        predictions: Sequence[Prediction],
        second_opinion: Sequence[Prediction] = (),
    ) -> list[LabelIssue] | None:
        """Examples whose labels are probably wrong, the most doubtful first.

        Both kinds of predictions are of models that were not trained on the examples; where there
        is a second opinion, it has to agree. None for tasks where an example does not have one of
        several labels, each with a probability.
        """
        return None

    # Examples and answers → a report

    def describe_labels(self, gold: Sequence[Label]) -> JsonObject:
        """What labels a set has: how often each, or where its numbers lie."""
        return {"labels": self.count_kinds(gold), "numbers": {}}

    def details(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> JsonObject:
        """What to look at beside the metrics, as report.json has it."""
        return {"mistakes": self.mistakes(examples, predictions)}

    def mistakes(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> list[JsonObject]:
        """The wrong answers that the model was surest of.

        → [{"place": "test.tsv:12", "sureness": 0.98, …}], with what `describe` gives.
        """
        wrong = [
            (self.sureness(example.label, answer), example, answer)
            for example, answer in zip(examples, predictions, strict=True)
            if example.label is not None and not self.is_right(example.label, answer)
        ]
        wrong.sort(key=lambda found: -found[0])  # stable: equals stay in the data's order
        return [
            {"place": example.place, "sureness": sureness} | self.describe(example, answer)
            for sureness, example, answer in wrong[:MISTAKES]
        ]

    def sureness(self, label: Label, prediction: Prediction) -> float:
        """How wrong an answer is: the highest probability in it of what is not so."""
        return float(prediction.scores.max())

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """An example, its label and the answer, as report.json has them."""
        texts = [shortened(text) for text in example.texts]
        return {"gold": example.label, "predicted": prediction.label, "texts": texts}

    # Answers → what is written of them

    @property
    def listed(self) -> int | None:
        """How many labels an answer lists; None for all, in their own order."""
        if self.top_k is None:
            return LISTED if self.lists_labels and len(self.labels) > MANY_LABELS else None
        return min(self.top_k, len(self.labels))

    def with_top_k(self, top_k: int | None) -> "Self":
        """The task with answers that list so many labels. Raises InputError where it has none."""
        if top_k is None:
            return self
        if not self.lists_labels:
            raise InputError(
                f"top_k is {top_k}, but a {self.name} model does not choose among labels by their "
                "probabilities. Leave --top-k out."
            )
        check_number("top_k", top_k, at_least=1)
        return dataclasses.replace(self, top_k=top_k)

    @abstractmethod
    def cell_names(self) -> list[str]:
        """Names of the cells of an answer: what was answered, and its probabilities."""

    @abstractmethod
    def cells(self, example: Example, prediction: Prediction) -> list[Any]:
        """The cells: texts, numbers, tuples of them; what is a list is written as JSON."""

    @abstractmethod
    def as_json(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """An answer as the service replies it."""

    # task.json, and what else stands in a model's folder

    def save_beside(  # noqa: B027
        self, folder: str | Path, config: "RoFormerConfig"
    ) -> None:
        """Write what other programs want to know of the model, if anything."""

    def save(self, folder: str | Path) -> None:
        """Write `task.json`; what versions before did not know only where it says something."""
        values = {"name": self.name} | asdict(self)
        del values["top_k"]
        for name in ("scheme", "crf", "transitions"):
            if not values[name]:
                del values[name]
        write_text(
            Path(folder) / TASK_FILE, json.dumps(values, ensure_ascii=False, indent=2) + "\n"
        )

    @cached_property
    def label_numbers(self) -> dict[str, int]:
        """Place of each label among the logits. A dictionary: `labels.index` is slow for many."""
        return {label: number for number, label in enumerate(self.labels)}

    def number_of(self, label: Any, example: Example) -> int:
        """Place of a label among the logits. Raises InputError where it has none."""
        try:
            return self.label_numbers[label]
        except (KeyError, TypeError):  # or a value that is no label at all
            known = ", ".join(self.labels[:10]) + ("…" if len(self.labels) > 10 else "")
            raise InputError(
                f"{example.place}: the label {label!r} stands nowhere in the training data, "
                f"which has {known}. Correct it, or add examples of it to --train."
            ) from None


def _natural(label: str) -> tuple[bool, float, str]:
    """Sort "2" before "10", numbers before words."""
    try:
        number = float(label)
    except ValueError:
        return True, 0.0, label
    # "nan" is a word here: NaN is neither before nor behind a number, and sorts at random.
    return (True, 0.0, label) if math.isnan(number) else (False, number, label)
