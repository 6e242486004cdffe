"""What the four parts of a task share: their base class, and the types of what they exchange."""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from roformer_tf.labelled.examples import Example, Label

Examples: TypeAlias = Sequence[Example]
# The labels in the data.
Gold: TypeAlias = Sequence[Label]


class Prediction(NamedTuple):
    """What a model predicts for one example."""

    label: Label
    """As spelled in training; of several labels, possibly none: ()."""
    scores: np.ndarray
    """float32: probabilities, one for each logit of the example, or what the task defines."""
    soft: np.ndarray | None = None
    """What a student learns from, where that is more than the scores."""


Predictions: TypeAlias = Sequence[Prediction]


class Part(ABC):
    """A part of a task, which works by the settings of that task.

    Before the task of a training is defined there are none: `task` is None. The methods that read
    files, choose a model or name metrics are called then.
    """

    task: Any
    """The settings. A subclass may annotate it with its own task, for type checkers."""

    # Any instead of a type parameter: parts of one task read settings that others do not have.
    def __init__(self, task: Any) -> None:
        self.task = task


PartT = TypeVar("PartT", covariant=True)


class part(Generic[PartT]):  # noqa: N801 (like `property`)
    """Declare a part in the body of a task: `labelling = part(PairLabelling)`.

    `task.labelling` is the part with the settings of that task, `Pair.labelling` one without any.
    """

    # A callable, because type checkers refuse an abstract class for `type[PartT]`.
    def __init__(self, kind: Callable[[Any], PartT]) -> None:
        self.kind = kind

    def __get__(self, task: object, owner: type) -> PartT:
        """The part with the settings of a task, or without."""
        return self.kind(task)
