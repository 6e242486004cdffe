"""A task: a few facts, the settings that `task.json` keeps, and four parts that use them.

part        decides                                                    base class
labelling   which columns, how cells become examples and targets       `labelling.Labelling`
objective   which model is trained, and by which loss                  `objective.TrainingObjective`
decoding    what logits mean, and how predictions are written          `decoding.Decoding`
metrics     figures, their intervals, a baseline, the worst mistakes   `scoring.Metrics`

How to add a task:

1. Write a module in this folder. Start from the most similar one: `classification` (one label),
   `multilabel` (several), `regression` (a number), `ranking` (an example has several sequences),
   `tagging` (a label for each unit) or `vectors` (each text has a vector, and a batch one loss).
2. Write the four parts as subclasses. Required are `Labelling.target`, `Metrics.all` and
   `functions` and, of `Decoding`, `predict`, `cell_names` and `as_json` (`LabelDecoding` has
   them).
   An objective has `losses` and `divergence`, and `soft_losses` if a teacher may train it;
   `SoftmaxObjective` and `SigmoidObjective` may do.
   All other defaults suit one text with one of several labels; override what does not suit.
3. Subclass `Task`, name the parts (`labelling = part(MyLabelling)`), and set `name` and `title`.
   Settings of its own are dataclass fields with defaults, such as those of `vectors`.
4. Add the class to `table.TASKS`. No other module needs to know the task.

What differs                             where it belongs
columns with other names                 `labelled.column_names`
cells that are lists or dictionaries     `Labelling.read_row`
long texts, several sequences, offsets   `Labelling.encode`, which may return a subclass of
                                         `EncodedTexts`; `Decoding.read_rows` gets the same object
another head                             `models.heads` and `TrainingObjective.model_name`; without
                                         Keras `engines.network` and `Decoding.graph_part`
figures                                  `metrics` has F1, exact match, accuracy, correlations, …

`tests/tasks/test_table.py` adds a task in these four steps, and trains, reports and serves it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from roformer_tf.checkpoints.archives import TASK_FILE
from roformer_tf.errors import InputError
from roformer_tf.files import json_text, write_text
from roformer_tf.labelled.examples import LongTexts
from roformer_tf.tasks.decoding import Decoding
from roformer_tf.tasks.labelling import Labelling
from roformer_tf.tasks.objective import TrainingObjective
from roformer_tf.tasks.parts import Examples, Gold, Prediction, Predictions, part
from roformer_tf.tasks.scoring import Metrics
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.tasks.tags.schemes import Scheme
    from roformer_tf.tokenizers.tokenizer_json import Units

__all__ = ["Examples", "Gold", "Prediction", "Predictions", "Task", "part"]

FIXED_LABELS = Message(
    "this model predicts what it was trained for, and cannot be asked for other labels. Two kinds "
    "can: a model of pairs for natural language inference, with the label `entailment` or the "
    "Chinese for it, and a model of entities that was fine-tuned with --task spans "
    "--label-prompts. Give one of these, or remove the labels."
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The facts, the settings and the four parts of a task.

    The settings are all that determines its predictions, except the weights of its model. Every
    `task.json` has all of these, so some serve a single task.
    """

    # Every task declares its own parts. These lines show type checkers their base classes; at run
    # time they would hide a forgotten declaration.
    if TYPE_CHECKING:
        labelling = part(Labelling)
        objective = part(TrainingObjective)
        decoding = part(Decoding)
        metrics = part(Metrics)

    name: ClassVar[str]
    """As `--task` has it."""
    title: ClassVar[str]
    """For people, in Chinese and English: "文本分类 · Classification"."""
    headline: ClassVar[tuple[str, str] | None] = None
    """A prediction on the service's page, in both languages, {} for the label. Default: the label
    alone."""
    separate_texts: ClassVar[bool] = False
    """Whether each text is encoded separately, and a loss compares the vectors of a batch."""
    compares: ClassVar[bool] = False
    """Whether a loss compares the sequences of an example, such as its candidates."""
    reranks: ClassVar[bool] = False
    """Whether an example's candidates are documents that a search returned, in its order."""
    has_vector_method: ClassVar[bool] = False
    """Whether a logistic regression on the vectors of a frozen encoder may be the model."""
    generates: ClassVar[bool] = False
    """Whether the model also learns to generate the second text of a sequence from the first."""
    pipeline_tag: ClassVar[str] = "text-classification"
    """The category of such models on Hugging Face's hub."""

    labels: tuple[str, ...] = ()
    """In the order of the logits; none where a prediction is no label, or one of two fixed ones."""
    text_columns: tuple[str, ...] = ("text",)
    """Names of the columns that the texts were in."""
    label_column: str | None = None
    """Name of the column that the labels were in; files without one have no name for it."""
    label_values: tuple[str, ...] = ()
    """The labels in the data, in the order of `labels`, where --label-names gives other names."""
    label_separator: str = ","
    """Between the labels of a multilabel example."""
    spaced_units: bool = False
    """For tagging: whether white space separates a raw text's units; else they are characters."""
    scheme: "Scheme" = ""
    """For tagging: which predicted tags may follow each other; "" for any."""
    crf: bool = False
    """For tagging: whether the model has a conditional random field."""
    transitions: tuple[tuple[float, ...], ...] = ()
    """Its scores, where the model cannot give them, as an exported graph: (C + 2, C) of labels at
    the beginning of a text, after each label, and at its end."""
    max_length: int = 512
    """Maximum tokens of a sequence."""
    long_texts: LongTexts = "head"
    """What happens to longer texts: cut, cut in the middle, or read in overlapping windows."""
    thresholds: tuple[float, ...] = ()
    """For multilabel: a label is predicted above its threshold; none means 0.5 for all."""
    mean: float = 0.0
    """Of the numbers in training: a regression predicts in `deviation`s from it."""
    deviation: float = 1.0
    top_k: int | None = None
    """How many of the most probable labels a prediction lists. Default: all, or `LISTED` of many.

    It is about how predictions are written, not about the model: `task.json` does not keep it."""

    def __post_init__(self) -> None:
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise InputError(
                f"there are {len(self.thresholds)} thresholds for {len(self.labels)} labels"
            )

    @property
    def outputs(self) -> int:
        """Logits of a sequence, or of a token: C."""
        return len(self.labels) or 1

    @property
    def units(self) -> "Units | None":
        """What is tokenized one by one, if anything is, for the tokenizer's files."""
        return None

    @cached_property
    def label_numbers(self) -> dict[str, int]:
        """Index of each label among the logits. A dictionary: `labels.index` is slow for many."""
        return {label: number for number, label in enumerate(self.labels)}

    def save(self, folder: str | Path) -> None:
        """Write `task.json`."""
        write_text(Path(folder) / TASK_FILE, self.to_json())

    def to_json(self) -> str:
        """The content of `task.json`."""
        values = {"name": self.name} | asdict(self)
        del values["top_k"]
        return json_text(values)

    @property
    def why_useless(self) -> str:
        """Why a model of this task should not be used; "" if nothing is known against it."""
        return ""

    @classmethod
    def from_examples(cls, training: Examples, **settings: Any) -> "Task":
        """The task that training examples define, such as its labels.

        Raises InputError where nothing can be learned: no example, or a single label.
        """
        return cls.from_settings(**(settings | cls.labelling.learned(training)))

    @classmethod
    def from_settings(cls, **settings: Any) -> "Task":
        """The task that the settings of a `task.json` describe, maybe of a subclass."""
        return cls(**settings)

    @classmethod
    def adapted(cls, task: "Task", examples: Examples) -> "Task":
        """A trained task, adapted to the kind of examples that it is evaluated on.

        The class is the one in the `table`.
        """
        return task

    @property
    def accepts_labels(self) -> bool:
        """Whether `with_labels` gives a task."""
        return False

    def with_labels(self, labels: Sequence[str], template: str | None = None) -> "Task":
        """The task that predicts these labels instead of those of training.

        template: of a sentence about a label, which is {} in it, for tasks that use one. Raises
        InputError: most tasks know only the labels of training.
        """
        raise InputError(FIXED_LABELS)


def check_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels that the caller asks for. Raises InputError unless they are different texts."""
    listed = () if isinstance(labels, str) else tuple(labels)
    if not listed or not all(isinstance(x, str) and x.strip() for x in listed):
        raise InputError(
            f"labels is {labels!r}, but must be a list of texts, such as 体育 and 财经."
        )
    if len(set(listed)) < len(listed):
        raise InputError(f"labels is {', '.join(listed)}: give each label once.")
    return listed
