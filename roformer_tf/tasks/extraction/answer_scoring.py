"""Answers compared with references, as the evaluation of CMRC 2018 does (arXiv 1810.07366).

Texts are lower-cased, and white space around them and punctuation are removed. Exact match: the
rest is equal. F1: of the longest common sequence of units without a gap; units are Chinese
characters and words of other characters. Of several references the best one counts.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from roformer_tf.labelled.examples import Example, Label
from roformer_tf.tasks import metrics
from roformer_tf.tasks.metrics import Function, Metric
from roformer_tf.tasks.parts import Examples, Gold, Prediction, Predictions
from roformer_tf.tasks.scoring import JsonObject, Metrics, NamedPredictions
from roformer_tf.translation import Message

EXACT_MATCH = metrics.EXACT_MATCH._replace(
    meaning=Message("fraction of answers that equal a reference, without punctuation")
)
F1 = metrics.F1._replace(
    meaning=Message(
        "mean over the questions of F1, of the characters that an answer has in common with the "
        "best reference"
    )
)
BEST_SENTENCE = Message("the sentence with the most characters of the question")
ANSWERED, UNANSWERED = "answer", "no answer"

# What CMRC's evaluation removes; it keeps other punctuation, such as "." and ",".
PUNCTUATION = re.compile(r"[-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』]")
# A Chinese character; a word or number; or a single other character. As nltk's word_tokenize does
# it, a comma before a digit is part of a word (1,000), and so is a point (3.5, S.K.), unless only
# closing brackets follow before the next Chinese character or the end.
_UNITS = re.compile(
    r"[\u4e00-\u9fa5]"
    r"|(?:[^\s\u4e00-\u9fa5;@#$%&?!()\[\]{}<>\",.]|,(?=\d)|\.(?![)\]}> ]*(?:[\u4e00-\u9fa5]|$)))+"
    r"|\S"
)
_SENTENCE = re.compile(r"[^。！？!?；;\n]+[。！？!?；;\n]*|[。！？!?；;\n]+")


def exact_match(answer: str, references: Sequence[tuple[str, int]]) -> bool:
    """Whether an answer equals a reference; of no references, whether it is ""."""
    if not references:
        return not answer
    return any(_plain(answer) == _plain(text) for text, _ in references)


def answer_f1(answer: str, references: Sequence[tuple[str, int]]) -> float:
    """F1 of an answer and the best of its references; of no references 1 for ""."""
    if not references:
        return float(not answer)
    return max(_f1(units(answer), units(text)) for text, _ in references)


@lru_cache(1 << 16)
def units(text: str) -> tuple[str, ...]:
    """Chinese characters, and words and numbers in lower case, without punctuation.

    Words on both sides of a removed sign are one: 80-95cm is 8095cm.
    """
    return tuple(_UNITS.findall(PUNCTUATION.sub("", text.lower())))


def text_of(answers: Label) -> str:
    """The text of a predicted answer, "" if there is none."""
    return str(answers[0][0]) if answers else ""


def kind_of_answers(answers: Label) -> str:
    """Whether a question has an answer."""
    return ANSWERED if answers else UNANSWERED


def best_sentence(question: str, context: str) -> tuple[str, int]:
    """The sentence with the most different characters of the question, and where it begins."""
    asked = set(units(question))
    matches = _SENTENCE.finditer(context)
    # Of equally similar sentences `max` returns the first one of the context.
    best = max(matches, key=lambda match: len(asked.intersection(units(match[0]))))
    text = best[0]
    return text.strip(), best.start() + len(text) - len(text.lstrip())


class AnswerMetrics(Metrics):
    """F1 and exact match of answers."""

    all: ClassVar[tuple[Metric, ...]] = (F1, EXACT_MATCH)

    def functions(self, gold: Gold, predictions: Predictions) -> dict[Metric, Function]:
        """Means over the questions."""
        pairs = zip(predictions, gold, strict=True)
        each = np.array([answer_f1(text_of(x.label), answers) for x, answers in pairs])
        return super().functions(gold, predictions) | {F1: partial(metrics.mean, each)}

    def is_right(self, label: Label, prediction: Prediction) -> bool:
        """Exact match."""
        return exact_match(text_of(prediction.label), label)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Whether there is an answer, if there may be none."""
        return (ANSWERED, UNANSWERED) if self.task.unanswerable else ()

    def items(self, label: Label) -> set[tuple[Any, ...]]:
        """Whether there is an answer."""
        return {(kind_of_answers(label),)}

    def rule(self, training: Examples, test: Examples, valid: Examples) -> NamedPredictions:
        """The sentence that is most like the question; nothing is learned."""
        scores = np.array([1.0, 0.0], np.float32)
        return BEST_SENTENCE, [Prediction((best_sentence(*x.texts),), scores) for x in test]

    def describe(self, example: Example, prediction: Prediction) -> JsonObject:
        """The references, the answer, the question and the context."""
        answered = example._replace(label=prediction.label)
        gold, predicted = map(self.task.decoding.gold_cell, (example, answered))
        return super().describe(example, prediction) | {"gold": gold, "predicted": predicted}


def _plain(text: str) -> str:
    return PUNCTUATION.sub("", text.lower().strip())


def _f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    # The longest sequence without gaps that both contain.
    # With `autojunk`, frequent units of a reference of 200 units or more would not count.
    common = SequenceMatcher(None, answer, reference, autojunk=False).find_longest_match().size
    return 2 * common / (len(answer) + len(reference)) if common else 0.0
