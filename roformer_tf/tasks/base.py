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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from roformer_tf.errors import InputError
from roformer_tf.tasks.decoding import Decoding
from roformer_tf.tasks.labelling import Labelling
from roformer_tf.tasks.objective import TrainingObjective
from roformer_tf.tasks.scoring import Metrics
from roformer_tf.tasks.task_settings import (
    Examples,
    Gold,
    Prediction,
    Predictions,
    TaskSettings,
    part,
)
from roformer_tf.translation import Message

__all__ = ["Examples", "Gold", "Prediction", "Predictions", "Task", "part"]

FIXED_LABELS = Message(
    "this model predicts what it was trained for, and cannot be asked for other labels. Two kinds "
    "can: a model of pairs for natural language inference, with the label `entailment` or the "
    "Chinese for it, and a model of entities that was fine-tuned with --task spans "
    "--label-prompts. Give one of these, or remove the labels."
)


@dataclass(frozen=True, kw_only=True)
class Task(TaskSettings):
    """The facts, the settings and the four parts of a task."""

    # Every task declares its own parts. These lines show type checkers their base classes; at run
    # time they would hide a forgotten declaration.
    if TYPE_CHECKING:
        labelling = part(Labelling)
        objective = part(TrainingObjective)
        decoding = part(Decoding)
        metrics = part(Metrics)

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

    @property
    def why_useless(self) -> str:
        """Why a model of this task should not be used; "" if nothing is known against it."""
        return ""

    @classmethod
    def from_examples(cls, training: Examples, **settings: Any) -> "Task":
        """The task that training examples define, such as its labels.

        Raises InputError where nothing can be learned: no example, or a single label.
        """
        shared = {"shared_tokens": bool(cls.labelling.shares_tokens)}
        return cls.from_settings(**{**shared, **settings, **cls.labelling.learned(training)})

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
