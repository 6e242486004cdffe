"""Simple methods, fitted to the same examples, with which a fine-tuned model is compared.

TF-IDF and a linear model are tuned on the validation set, as the model is. An untuned baseline
would make the model look better than it is.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.tags.schemes import spans
from roformer_tf.tasks.tfidf import Counts, Examples, Setting, TfIdfModel, counted
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.tasks.task_settings import Prediction

# Maximum characters of training texts that are used: about a minute's work on one core.
MAX_CHARACTERS = 20_000_000
# Maximum characters of training texts, and of validation texts, to select settings.
MAX_SEARCHED = 500_000
REGRESSIONS = {"logistic": Message("logistic regression"), "ridge": Message("ridge regression")}

# Units of known entities → their labels.
Entities: TypeAlias = Mapping[tuple[str, ...], tuple[str, ...]]

USUAL = Setting()
# How settings were chosen: without and with folds.
CHOSEN = (Message(", chosen on the validation set"), Message(", chosen by cross-validation"))
# Ways to count n-grams to try, at the usual strength.
COUNTED = [Setting(longest, min_df) for longest in (3, 2, 0) for min_df in (1, 2)]
# Strengths to try with the best way to count.
STRENGTHS = (1.0, 10.0, 100.0)


class FittedTfIdf(NamedTuple):
    """TF-IDF and a linear model, and what they are called in a report."""

    name: Message
    model: TfIdfModel
    seconds: float
    # From a cross-validation: logits (N, C) for the validation set, whose examples are those of
    # training. Each comes from a model that was not fitted to the example.
    held_out: np.ndarray | None = None

    def predictions(self, task: Any, test: Examples, valid: Examples) -> "list[Prediction]":
        """Those for the test set, with the task's choices on the validation set."""
        gold = [example.label for example in valid]
        chosen = task.decoding.with_choices(gold, self.model.predictions(task, valid))
        if self.held_out is not None and test is valid:
            return chosen.decoding.predict_all(self.held_out)
        return self.model.predictions(chosen, test)


def fit_tfidf(
    task: Any,
    training: Examples,
    valid: Examples,
    metric: Metric,
    folds: Sequence[tuple[Examples, Examples]] = (),
) -> FittedTfIdf:
    """TF-IDF and the task's `linear_model`, fitted to the training set.

    metric: selects the settings on the validation set. Without a validation set they are `USUAL`.
    folds: of a cross-validation, for each the rest and its examples; `valid` is these examples in
    this order, and the settings are selected on them.
    Raises InputError where that would take hours.
    """
    began = time.perf_counter()
    fitted = _at_most(training, MAX_CHARACTERS)
    setting = _tuned(task, folds or [(training, valid)], metric) if valid else USUAL
    part = Message(
        ", fitted to {kept:,} of {all:,} training examples", kept=len(fitted), all=len(training)
    )
    name = Message(
        "TF-IDF of {unit} + {regression} (min_df {min_df}, C {strength:g}{chosen}){part}",
        unit=setting.unit,
        regression=REGRESSIONS[task.metrics.linear_model],
        min_df=setting.min_df,
        strength=setting.strength,
        chosen=CHOSEN[bool(folds)] if valid else "",
        part=part if len(fitted) < len(training) else "",
    )

    def fit(examples: Examples) -> TfIdfModel:
        return TfIdfModel.fit(task, examples, setting, _counts(examples, setting.longest))

    model = fit(fitted)
    parts = [fit(rest).logits(task, part) for rest, part in folds]
    held_out = np.concatenate(parts) if parts else None
    return FittedTfIdf(name, model, time.perf_counter() - began, held_out)


def _tuned(task: Any, splits: Sequence[tuple[Examples, Examples]], metric: Metric) -> Setting:
    """The setting that is best on the validation sets; of equal ones the first.

    splits: training and validation sets. First the way to count, then the strength: 8 fits instead
    of 18.
    """
    splits = [(_at_most(a, MAX_SEARCHED), _at_most(b, MAX_SEARCHED)) for a, b in splits]
    gold = [example.label for _, valid in splits for example in valid]

    @lru_cache(1)  # counts are large; settings of equal counts follow each other
    def counts(longest: int) -> list[Sequence[Sequence[Counts]]]:
        return [_counts(training, longest) for training, _ in splits]

    @cache  # the best way to count is known at the usual strength
    def goodness(setting: Setting) -> float:
        predictions: list[Prediction] = []
        for (training, valid), of_split in zip(splits, counts(setting.longest), strict=True):
            model = TfIdfModel.fit(task, training, setting, of_split)
            predictions += model.predictions(task, valid)
        chosen = task.decoding.with_choices(gold, predictions)
        predictions = [chosen.decoding.reread(prediction) for prediction in predictions]
        return metric.goodness(chosen.metrics.compute(gold, predictions))

    best = max(COUNTED, key=goodness)
    return max((best._replace(strength=strength) for strength in STRENGTHS), key=goodness)


def _counts(examples: Examples, longest: int) -> Sequence[Sequence[Counts]]:
    return [counted(example, longest) for example in examples]


def _at_most(examples: Examples, characters: int) -> Examples:
    """A random sample of the examples, whose texts have about this many characters."""
    total = sum(len(text) for example in examples for text in example.texts)
    if total <= characters:
        return examples
    few = max(1, len(examples) * characters // total)
    chosen = np.random.default_rng(0).choice(len(examples), few, replace=False)
    return [examples[i] for i in np.sort(chosen)]


def known_entities(training: Examples, test: Examples) -> list[tuple[str, ...]]:
    """Label the training set's entities wherever they occur: longest match, left to right."""
    counted = Counter(label for example in training for label in example.label)
    # An unknown unit is outside all entities, or, in word segmentation, a word of its own.
    usual = [label for label in ("O", "S") if label in counted]
    other = usual[0] if usual else counted.most_common(1)[0][0]
    known = _entities_of(training)
    if other == "O":  # a single character that was once a name is usually a plain word
        known = {units: labels for units, labels in known.items() if len("".join(units)) > 1}
    lengths = sorted({len(units) for units in known}, reverse=True)
    return [tuple(_match(example.units, known, lengths, other)) for example in test]


def _entities_of(training: Examples) -> Entities:
    """By the units of each entity, their most frequent labels."""
    counts: defaultdict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
    for example in training:
        labels = example.label
        for _, first, end in spans(labels):
            counts[example.units[first:end]][tuple(labels[first:end])] += 1
    return {units: labels.most_common(1)[0][0] for units, labels in counts.items()}


def _match(
    units: tuple[str, ...], known: Entities, lengths: Sequence[int], other: str
) -> list[str]:
    """The labels of the units: at each position the longest known entity that begins there."""
    labels: list[str] = []
    while (start := len(labels)) < len(units):
        candidates = (units[start : start + length] for length in lengths)
        labels += next((known[entity] for entity in candidates if entity in known), (other,))
    return labels
