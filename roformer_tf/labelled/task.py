"""What a fine-tuned model answers: labels → targets for training, logits → answers.

| task | texts of an example | label | logits | answer |
| --- | --- | --- | --- | --- |
| classification | one | one of the labels | (C,) | the likeliest label |
| pair | two | one of the labels | (C,) | the likeliest label |
| multilabel | one | any of the labels | (C,) | all that are likelier than their thresholds |
| regression | one or two | a number | (1,) | a number |
| ranking | three: A, B, C | "B" or "C", the one nearer to A | (2,): of (A, B) and (A, C) | B or C |
| tagging | one, in units | one of the labels per unit | (units, C) | the likeliest label per unit |
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.files import write_text

TaskName = Literal["classification", "multilabel", "pair", "regression", "ranking", "tagging"]
LongTexts = Literal["head", "head-tail", "windows"]
Label: TypeAlias = str | tuple[str, ...] | float
"""As spelled in the data: one label, several (multilabel), one per unit (tagging), or a number."""

Span: TypeAlias = tuple[str, int, int]
"""Type, first unit, last unit + 1."""

RANKED = ("B", "C")
FILE = "task.json"
"""Beside the weights of a fine-tuned model."""

MARKS = {"B": "B", "I": "I", "E": "E", "S": "S", "M": "I", "L": "E", "U": "S"}
"""What a tag of an entity begins with → how BIOES has it: M is of BMES, L and U are of BILOU."""


class Example(NamedTuple):
    """One labelled example, as it stands in the data."""

    texts: tuple[str, ...]
    """One text, a pair, or A, B and C; for tagging the units joined."""
    label: Label | None
    """None where the data has no label."""
    place: str
    """Where it stands, such as "train.tsv:12"."""
    units: tuple[str, ...] = ()
    """For tagging: what has a label each, characters or words."""


class Prediction(NamedTuple):
    """What a model answers to one example."""

    label: Label
    """As spelled in training; of a multilabel task, possibly none: ()."""
    scores: np.ndarray
    """float32: probabilities (C,), of (A, B) and (A, C) (2,), or (units, C); a number (1,)."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task and all that its answers depend on beside the weights."""

    name: TaskName
    labels: tuple[str, ...] = ()
    """In the order of the logits; none for regression and ranking."""
    text_columns: tuple[str, ...] = ("text",)
    """Names of the columns that the texts were in."""
    label_column: str | None = None
    """Name of the column that the labels were in; files without one have no name for it."""
    label_separator: str = ","
    """Between the labels of a multilabel example."""
    spaced_units: bool = False
    """For tagging: whether a raw text's units are what white space separates, not characters."""
    max_length: int = 512
    """Most tokens of a row."""
    long_texts: LongTexts = "head"
    """What becomes of longer texts: cut, cut in the middle, or read in overlapping windows."""
    thresholds: tuple[float, ...] = ()
    """For multilabel: above which probability each label is answered; none, 0.5 for all."""
    mean: float = 0.0
    """Of the numbers in training; a regression's model answers in `deviation`s from it."""
    deviation: float = 1.0

    def __post_init__(self) -> None:
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise InputError(
                f"there are {len(self.thresholds)} thresholds for {len(self.labels)} labels"
            )

    @property
    def outputs(self) -> int:
        """Logits of an example, or of a unit: C, or 1."""
        return len(self.labels) or 1

    def target(self, example: Example) -> np.ndarray:
        """What the loss compares the logits with.

        classification, pair: () int32. multilabel: (C,) float32 of 0 and 1. regression: (1,)
        float32. ranking: (2,) float32, 1 for the nearer of (A, B) and (A, C). tagging: (units,)
        int32. Raises InputError, with the example's place, for a label that training has not seen.
        """
        label = example.label
        if self.name == "regression":
            return np.array([(float(label) - self.mean) / self.deviation], np.float32)  # type: ignore[arg-type]
        if self.name == "ranking":
            return np.array([label == name for name in RANKED], np.float32)
        if self.name == "tagging":
            return np.array([self._number(one, example) for one in label], np.int32)  # type: ignore[union-attr]
        if self.name == "multilabel":
            target = np.zeros(len(self.labels), np.float32)
            target[[self._number(one, example) for one in label]] = 1  # type: ignore[union-attr]
            return target
        return np.array(self._number(label, example), np.int32)

    def answer(self, logits: np.ndarray) -> Prediction:
        """Read the logits of one example, in the shape of the table above."""
        if self.name == "regression":
            value = logits.astype(np.float32) * self.deviation + self.mean
            return Prediction(float(value[0]), value)
        if self.name in ("ranking", "multilabel"):
            scores = sigmoid(logits)
            if self.name == "ranking":
                return Prediction(RANKED[int(np.argmax(logits))], scores)
            return Prediction(self.likely(scores), scores)
        scores = softmax(logits)
        best = np.argmax(logits, axis=-1)
        if self.name == "tagging":
            return Prediction(tuple(self.labels[i] for i in best), scores)
        return Prediction(self.labels[int(best)], scores)

    def reread(self, prediction: Prediction) -> Prediction:
        """A multilabel answer by these thresholds; others as they are."""
        if self.name != "multilabel":
            return prediction
        return prediction._replace(label=self.likely(prediction.scores))

    def likely(self, probabilities: np.ndarray) -> tuple[str, ...]:
        """The labels of a multilabel example whose probabilities (C,) are above the thresholds."""
        above = probabilities > (np.array(self.thresholds) if self.thresholds else 0.5)
        return tuple(self.labels[i] for i in np.flatnonzero(above))

    def save(self, folder: str | Path) -> None:
        """Write `task.json`."""
        write_text(
            Path(folder) / FILE, json.dumps(asdict(self), ensure_ascii=False, indent=2) + "\n"
        )

    @classmethod
    def load(cls, folder: str | Path) -> "Task":
        """Read `task.json`. Raises InputError where a folder has none, or a damaged one."""
        path = Path(folder) / FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            lists = {key: tuple(x) for key, x in values.items() if isinstance(x, list)}
            return cls(**values | lists)
        except FileNotFoundError:
            raise InputError(
                f"{folder} holds no fine-tuned model: there is no {FILE}. Give the model/ folder "
                "of a run of `roformer-tf finetune`."
            ) from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InputError(f"cannot read {path}: {error}. Fine-tune again.") from None

    def _number(self, label: Any, example: Example) -> int:
        """Place of a label among the logits."""
        try:
            return self.labels.index(label)
        except ValueError:
            known = ", ".join(self.labels[:10]) + ("…" if len(self.labels) > 10 else "")
            raise InputError(
                f"{example.place}: the label {label!r} stands nowhere in the training data, "
                f"which has {known}. Correct it, or add examples of it to --train."
            ) from None


def make_task(name: TaskName, training: Sequence[Example], **settings: Any) -> Task:
    """The task that training examples define: its labels, or the mean of its numbers.

    Raises InputError where there is nothing to learn: no example, or a single label.
    """
    labels = [example.label for example in training]
    if name == "regression":
        numbers = np.array(labels, np.float64)
        if len(set(labels)) < 2:
            raise InputError("all training examples have the same number: nothing can be learnt.")
        return Task(
            name=name, mean=float(numbers.mean()), deviation=float(numbers.std()), **settings
        )
    if name == "ranking":
        return Task(name=name, **settings)
    several = name in ("multilabel", "tagging")
    found: set[Any] = {one for label in labels for one in (label if several else [label])}  # type: ignore[union-attr]
    if len(found) < (1 if name == "multilabel" else 2):
        shown = f"only {next(iter(found))!r}" if found else "none"
        raise InputError(
            f"the training examples have {shown} as a label: nothing can be learnt. "
            "Give examples of at least two labels, or another --label-column."
        )
    return Task(name=name, labels=tuple(sorted(found, key=_natural)), **settings)


def as_bioes(tag: str) -> str | None:
    """A tag as BIOES spells it, "M-LOC" as "I-LOC"; None for one that marks no entity, as "NN"."""
    mark, dash, kind = tag.partition("-")
    if tag == "O":
        return tag
    return f"{MARKS[mark]}-{kind}" if dash and mark in MARKS else None


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64, given as float32."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return (exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(np.float32)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """1 / (1 + e⁻ˣ), in float64, given as float32."""
    return (0.5 * (1 + np.tanh(logits.astype(np.float64) / 2))).astype(np.float32)


def _natural(label: str) -> tuple[bool, float, str]:
    """Sort "2" before "10", numbers before words."""
    try:
        number = float(label)
    except ValueError:
        return True, 0.0, label
    # "nan" is a word here: NaN is neither before nor behind a number, and sorts at random.
    return (True, 0.0, label) if math.isnan(number) else (False, number, label)


def spans(labels: Sequence[str]) -> list[Span]:
    """Entities that labels of `MARKS` mark, as seqeval reads them: I- after O begins one.

    ("B-LOC", "I-LOC", "O") → [("LOC", 0, 2)]. Labels without such prefixes, as for parts of
    speech, mark every unit other than "O" by itself.
    """
    from seqeval.metrics.sequence_labeling import get_entities

    return [(kind, first, last + 1) for kind, first, last in get_entities([*map(_tag, labels)])]


def _tag(label: str) -> str:
    """The label in BIOES, or as an entity of one unit."""
    return as_bioes(label) or (label if label in {*"BIES"} else f"S-{label}")
