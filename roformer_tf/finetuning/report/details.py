"""What a report shows beside the figures: calibration, confusion, mistakes."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from roformer_tf.labelled.task import Example, Label, Prediction, Span, Task, spans
from roformer_tf.tasks.metrics import is_right

MISTAKES = 20
"""That the report shows."""
CHARACTERS = 200
"""Of a text that it shows, or units."""
BEFORE = 60
"""Units that are shown before a sentence's first mistake."""
BINS = 10

Plain: TypeAlias = dict[str, Any]
Marked: TypeAlias = list[list[str]]
"""A text in pieces, each with what it is marked as, or "": [["在", ""], ["北京", "LOC"]]."""


def calibration(task: Task, gold: Sequence[Label], predictions: Sequence[Prediction]) -> Plain:
    """Compare how likely the model said something is with how often it is so.

    That is the answer; of multilabel, every label; of ranking, that two texts are near.
    → {"ece": expected calibration error, the mean distance of the two over bins of equal width,
    "bins": [{"from", "to", "count", "probability": mean, "right": share}], without empty ones}.
    """
    probability, right = _claims(task, gold, predictions)
    number = np.minimum((probability * BINS).astype(int), BINS - 1)
    bins = [_bin(n, probability[number == n], right[number == n]) for n in np.unique(number)]
    distances = [one["count"] * abs(one["probability"] - one["right"]) for one in bins]
    return {"ece": sum(distances) / len(right), "bins": bins}


def confusion(gold: Sequence[Label], predictions: Sequence[Prediction]) -> list[Plain]:
    """How often which label is answered by which, the most frequent first.

    → [{"gold": "good", "predicted": "bad", "count": 12}, …], none of them 0.
    """
    found = Counter(zip(gold, (answer.label for answer in predictions), strict=True))
    return [
        {"gold": label, "predicted": answer, "count": number}
        for (label, answer), number in found.most_common()
    ]


def mistakes(
    task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> list[Plain]:
    """The wrong answers that the model was surest of; of numbers, those farthest off.

    → [{"place": "test.tsv:12", "sureness": 0.98, "gold": "bad", "predicted": "good",
    "texts": ["…"]}]; of tagging, `gold` and `predicted` are the sentence, marked.
    """
    wrong = [
        (_sureness(task, example.label, answer), example, answer)
        for example, answer in zip(examples, predictions, strict=True)
        if example.label is not None and not is_right(task, example.label, answer)
    ]
    wrong.sort(key=lambda found: -found[0])  # stable: equals stay in the data's order
    return [
        {"place": example.place, "sureness": sureness} | _show(task, example, answer)
        for sureness, example, answer in wrong[:MISTAKES]
    ]


def _claims(
    task: Task, gold: Sequence[Any], predictions: Sequence[Prediction]
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (M,) that the model gave, and whether it was so (M,) bool."""
    if task.name in ("multilabel", "ranking"):
        names = task.labels or ("B", "C")
        scores = np.array([answer.scores for answer in predictions])
        return scores.ravel(), np.array([[x in label for x in names] for label in gold]).ravel()
    if task.name == "tagging":
        scores = np.concatenate([answer.scores.max(axis=-1) for answer in predictions])
        answers: Any = [answer.label for answer in predictions]
        return scores, np.concatenate(list(map(_agree, gold, answers)))
    scores = np.array([answer.scores.max() for answer in predictions])
    return scores, np.array([x == y.label for x, y in zip(gold, predictions, strict=True)])


def _agree(labels: Sequence[str], answers: Any) -> np.ndarray:
    """Which units are answered as the data say (units,) bool."""
    return np.array([one == other for one, other in zip(labels, answers, strict=True)])


def _bin(number: int, probability: np.ndarray, right: np.ndarray) -> Plain:
    """What a report says of the claims of about the same probability."""
    return {
        "from": number / BINS,
        "to": (number + 1) / BINS,
        "count": len(right),
        "probability": float(probability.mean()),
        "right": float(right.mean()),
    }


def _sureness(task: Task, label: Any, answer: Prediction) -> float:
    """How wrong an answer is: the highest probability in it of what is not so.

    Of a number, how far it is off; of a triple, by how much the wrong text is ahead.
    """
    if task.name == "regression":
        return abs(float(label) - answer.label)  # type: ignore[operator]
    if task.name == "ranking":
        return float(np.ptp(answer.scores))
    if task.name == "tagging":
        return float(answer.scores.max(axis=-1)[~_agree(label, answer.label)].max())
    if task.name == "multilabel":
        wrong = set(label) ^ set(answer.label)  # type: ignore[arg-type]
        likely = [float(answer.scores[task.labels.index(one)]) for one in wrong]
        answered = [one in answer.label for one in wrong]  # type: ignore[operator]
        return max(x if said else 1 - x for x, said in zip(likely, answered, strict=True))
    return float(answer.scores.max())


def _show(task: Task, example: Example, answer: Prediction) -> Plain:
    """An example, its label and the answer, as the report shows them."""
    if task.name == "tagging":
        return _show_sentence(example, answer, " " if task.spaced_units else "")
    texts = [text[:CHARACTERS] + "…" * (len(text) > CHARACTERS) for text in example.texts]
    return {"gold": example.label, "predicted": answer.label, "texts": texts}


def _show_sentence(example: Example, answer: Prediction, between: str) -> Plain:
    """A sentence around its first mistake, marked twice."""
    labels: Any = example.label
    answers: Any = answer.label
    begin = max(0, int(np.argmin(_agree(labels, answers))) - BEFORE)
    shown = range(begin, min(begin + CHARACTERS, len(labels)))
    return {
        "gold": mark(example.units, spans(labels), shown, between),
        "predicted": mark(example.units, spans(answers), shown, between),
    }


def mark(units: Sequence[str], entities: Sequence[Span], shown: range, between: str) -> Marked:
    """The units that are shown, the entities among them marked; what is left out is "…"."""
    pieces: Marked = [["…", ""]] if shown.start else []
    at = shown.start
    for kind, first, end in entities:
        first, end = max(first, at), min(end, shown.stop)
        if first < end:
            pieces += [[between.join(units[at:first]), ""], [between.join(units[first:end]), kind]]
            at = end
    pieces.append([between.join(units[at : shown.stop]), ""])
    if shown.stop < len(units):
        pieces.append(["…", ""])
    return [piece for piece in pieces if piece[0]]
