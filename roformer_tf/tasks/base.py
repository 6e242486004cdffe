"""A task: its settings, which `task.json` keeps, and the four parts that work by them.

part        answers                                                  base class
labelling   which columns, how examples become rows and targets      `parts.Labelling`
objective   which model is trained, and by which loss                `parts.TrainingObjective`
decoding    what logits mean, and how a prediction is written        `parts.Decoding`
metrics     figures, their intervals, a baseline, worst mistakes     `scoring.Metrics`

A task is a subclass that names its four parts and states a few facts. The rest of the package
knows no task by name: a new one is a module of this folder and an entry in `table`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from roformer_tf.tasks.parts import Decoding, Labelling, TrainingObjective
from roformer_tf.tasks.scoring import Metrics
from roformer_tf.tasks.task_settings import Examples, Prediction, TaskSettings, part

__all__ = ["Prediction", "Task", "part"]


@dataclass(frozen=True, kw_only=True)
class Task(TaskSettings):
    """A task: a few facts, its settings, and its four parts, each bound to these settings."""

    if TYPE_CHECKING:  # every task declares its own
        labelling = part(Labelling[Any])
        objective = part(TrainingObjective[Any])
        decoding = part(Decoding[Any])
        metrics = part(Metrics[Any])

    title: ClassVar[str]
    """For people, in Chinese and English: "文本分类 · Classification"."""
    headline: ClassVar[tuple[str, str] | None] = None
    """A prediction on the service's page, in both languages, {} for the label. Default: the label
    alone."""
    texts_apart: ClassVar[bool] = False
    """Whether each text is a row of its own, and a loss compares the vectors of a whole batch."""
    writes: ClassVar[bool] = False
    """Whether the model also learns to generate the second text of a row from the first."""
    pipeline_tag: ClassVar[str] = "text-classification"
    """The category of such models on Hugging Face's hub."""

    @classmethod
    def from_examples(cls, training: Examples, **settings: Any) -> "Task":
        """The task that training examples define, such as its labels.

        Raises InputError where nothing can be learned: no example, or a single label.
        """
        return cls(**{**settings, **cls.labelling.learned(training)})

    @classmethod
    def from_settings(cls, **settings: Any) -> "Task":
        """The task that the settings of a `task.json` describe."""
        return cls(**settings)

    @classmethod
    def adapted(cls, task: "Task", examples: Examples) -> "Task":
        """A trained task, adapted to examples that it is evaluated on, if they are of another kind.

        The class is the one of the `table`.
        """
        return task
