"""The settings of a task, which `task.json` keeps, and the base class of its four parts."""

from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from roformer_tf.checkpoints.archives import TASK_FILE
from roformer_tf.errors import InputError
from roformer_tf.files import json_text, write_text
from roformer_tf.labelled.examples import Example, Label, LongTexts

if TYPE_CHECKING:
    from roformer_tf.tasks.tags.schemes import Scheme
    from roformer_tf.tokenizers.tokenizer_json import Units

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


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """All that determines the predictions of a task, except the weights of its model.

    Every `task.json` has all of these, so some serve a single task.
    """

    name: ClassVar[str]
    """As `--task` has it."""

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
    shared_tokens: bool = False
    """Whether the segments of two texts show which tokens both have. Not in models that other
    programs trained."""
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
        """The content of `task.json`; settings of sequence labels only where they are set."""
        values = {"name": self.name} | asdict(self)
        del values["top_k"]
        # Folders of other tasks stay readable by versions that do not have these settings.
        for name in ("label_values", "scheme", "crf", "transitions", "shared_tokens"):
            if not values[name]:
                del values[name]
        return json_text(values)
