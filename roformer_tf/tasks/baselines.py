"""Simple methods fitted to the same examples, for a fine-tuned model to be compared with.

TF-IDF and a linear model are tuned on the validation set, as the model is: an untuned baseline
would make the model look better than it is.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.tags import spans
from roformer_tf.tokenizers.segmentation import segment
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.tasks.task_settings import Prediction

MOST_CHARACTERS = 20_000_000
"""Most characters of training texts that are used: about a minute's work on one core."""
MOST_SEARCHED = 500_000
"""Most characters of training texts, and of validation texts, for the choice of settings."""
REGRESSIONS = {"logistic": Message("logistic regression"), "ridge": Message("ridge regression")}
MOST_COEFFICIENTS = 50_000_000
"""Most coefficients of a logistic regression of all labels, and most probabilities of all training
examples: with more, its eight fits would take hours."""

Entities: TypeAlias = Mapping[tuple[str, ...], tuple[str, ...]]
"""Units of known entities → their labels."""


class Setting(NamedTuple):
    """The settings of TF-IDF and a linear model that are tuned."""

    longest: int = 3
    """Characters of the longest n-gram; 0 for jieba's words."""
    min_df: int = 2
    """Training texts that an n-gram must be in to count."""
    strength: float = 10.0
    """C, the inverse of regularisation. Most n-grams are in few texts: more than scikit-learn's
    default of 1 is usual."""

    @property
    def unit(self) -> Message:
        """What is counted, for people."""
        if not self.longest:
            return Message("words")
        return Message("1–{longest} characters", longest=self.longest)


USUAL = Setting()
COUNTED = [Setting(longest, min_df) for longest in (3, 2, 0) for min_df in (1, 2)]
"""Ways to count n-grams that are tried, at the usual strength."""
STRENGTHS = (1.0, 10.0, 100.0)
"""Strengths that are tried with the best way to count."""


class BaselineSets(NamedTuple):
    """The examples that a baseline is fitted to and tested on."""

    training: Sequence[Example]
    test: Sequence[Example]
    valid: Sequence[Example] = ()
    """By which settings are chosen, and what the task chooses itself, such as thresholds."""


def tfidf_baseline(
    task: Any, regression: str, sets: BaselineSets, metric: Metric
) -> "tuple[Message, list[Prediction]]":
    """TF-IDF and a linear model, tuned on the validation set: its name, and its test predictions.

    regression: a key of `REGRESSIONS`; metric: by which the settings are chosen. Without a
    validation set they are the usual ones.
    """
    training, test, valid = sets
    chosen = _at_most(training, MOST_CHARACTERS)
    setting = _tuned(task, training, valid, metric) if valid else USUAL
    features, others = NgramCounts(setting.longest, chosen, [*test, *valid]).features(
        setting.min_df
    )
    predictions = task.metrics.fit_linear(chosen, features, others, setting.strength)
    gold = [example.label for example in valid]
    decoding = task.decoding.with_choices(gold, predictions[len(test) :]).decoding
    kept, given = len(chosen), len(training)
    part = Message(", fitted to {kept:,} of {all:,} training examples", kept=kept, all=given)
    method = Message(
        "TF-IDF of {unit} + {regression} (min_df {min_df}, C {strength:g}{chosen}){part}",
        unit=setting.unit,
        regression=REGRESSIONS[regression],
        min_df=setting.min_df,
        strength=setting.strength,
        chosen=Message(", chosen on the validation set") if valid else "",
        part=part if kept < given else "",
    )
    return method, [decoding.reread(one) for one in predictions[: len(test)]]


def _tuned(
    task: Any, training: Sequence[Example], valid: Sequence[Example], metric: Metric
) -> Setting:
    """The setting that is best on the validation set; of equal ones the first.

    First the way to count, then the strength: 8 fits instead of 18.
    """
    training, valid = _at_most(training, MOST_SEARCHED), _at_most(valid, MOST_SEARCHED)
    gold = [one.label for one in valid]
    known: dict[Setting, float] = {}
    counts = NgramCounts(USUAL.longest, training, valid)

    def goodness(setting: Setting) -> float:
        nonlocal counts
        if setting.longest != counts.longest:
            counts = NgramCounts(setting.longest, training, valid)
        if setting not in known:
            features = counts.features(setting.min_df)
            predictions = task.metrics.fit_linear(training, *features, setting.strength)
            chosen = task.decoding.with_choices(gold, predictions)
            predictions = [chosen.decoding.reread(one) for one in predictions]
            scores = chosen.metrics.compute(gold, predictions)
            known[setting] = metric.goodness(scores)
        return known[setting]

    best = max(COUNTED, key=goodness)
    return max((best._replace(strength=strength) for strength in STRENGTHS), key=goodness)


class NgramCounts:
    """How often n-grams or words are in examples of one text or two."""

    def __init__(
        self, longest: int, training: Sequence[Example], others: Sequence[Example]
    ) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        self.longest, self.sets = longest, (training, others)
        settings = {"analyzer": "char", "ngram_range": (1, longest)}
        vectorizer = CountVectorizer(
            dtype=np.float32, **(settings if longest else {"analyzer": _words})
        )
        self.training = vectorizer.fit_transform(_side_by_side(training))
        """Sparse (texts, n-grams): all first texts of the examples, then all second ones."""
        self.others = vectorizer.transform(_side_by_side(others))

    def features(self, min_df: int) -> tuple[Any, Any]:
        """TF-IDF of every text and, of a pair, what both have: of both sets, sparse (N, F)."""
        from sklearn.feature_extraction.text import TfidfTransformer

        counts = self.training
        frequent = np.bincount(counts.indices, minlength=counts.shape[1]) >= min_df
        if not frequent.any():  # such as where each text is a character of its own
            frequent[:] = True
        weighing = TfidfTransformer(sublinear_tf=True).fit(counts[:, frequent])
        of_training, of_others = (
            _joined(weighing.transform(counts[:, frequent]), examples)
            for counts, examples in zip((counts, self.others), self.sets, strict=True)
        )
        return of_training, of_others


def _words(text: str) -> list[str]:
    """jieba's words in lower case."""
    return [word for word in segment(text.lower()) if not word.isspace()]


def _side_by_side(examples: Sequence[Example]) -> list[str]:
    """All first texts of examples, then all second ones."""
    return [text for texts in zip(*(x.texts for x in examples), strict=True) for text in texts]


def _joined(weights: Any, examples: Sequence[Example]) -> Any:
    """Features (N, F) of examples of one text or two, from the TF-IDF of their texts."""
    from scipy.sparse import csr_matrix, hstack

    number = len(examples)
    if weights.shape[0] == number:
        return weights
    columns = weights[:number], weights[number:]
    shared = [[overlap(a, b), overlap(_twos(a), _twos(b))] for a, b in (x.texts for x in examples)]
    together = columns[0].multiply(columns[1])
    return hstack([*columns, together, csr_matrix(shared, dtype=np.float32)], format="csr")


def _twos(text: str) -> list[str]:
    """Every two adjacent characters."""
    return [text[i : i + 2] for i in range(len(text) - 1)]


def _at_most(examples: Sequence[Example], characters: int) -> Sequence[Example]:
    """A random part of the examples, whose texts have about as many characters as the limit."""
    total = sum(len(text) for example in examples for text in example.texts)
    if total <= characters:
        return examples
    few = max(1, len(examples) * characters // total)
    chosen = np.random.default_rng(0).choice(len(examples), few, replace=False)
    return [examples[i] for i in np.sort(chosen)]


def overlap(a: Sequence[str], b: Sequence[str]) -> float:
    """Items that both have ÷ items that either has (Jaccard); characters, if they are texts."""
    either = set(a) | set(b)
    return len(set(a) & set(b)) / len(either) if either else 0.0


def check_size(features: Any, classes: int) -> None:
    """Raise InputError for so many classes that a linear model of features (N, F) takes hours."""
    if classes * max(features.shape) > MOST_COEFFICIENTS:
        raise InputError(
            f"a logistic regression of {classes:,} labels on {features.shape[0]:,} examples with "
            f"{features.shape[1]:,} features would take hours"
        )


def logistic_probabilities(
    features: Any, targets: np.ndarray, others: Any, strength: float
) -> np.ndarray:
    """Fit a logistic regression to each column of targets (N, C) bool; (M, C) float32 for others.

    One against the rest, in the dual: on 119 labels of 3,000 texts seven times as fast as one
    model of all labels, and as good.
    """
    from sklearn.linear_model import LogisticRegression

    features, others = features.astype(np.float64), others.astype(np.float64)
    probabilities = np.zeros((others.shape[0], targets.shape[1]), np.float32)
    for number, column in enumerate(targets.T):
        if column.all() or not column.any():
            probabilities[:, number] = column[0]
            continue
        model = LogisticRegression(
            C=strength, solver="liblinear", dual=True, tol=1e-2, max_iter=1000, random_state=0
        )
        probabilities[:, number] = model.fit(features, column).predict_proba(others)[:, 1]
    return probabilities


def known_entities(training: Sequence[Example], test: Sequence[Example]) -> list[tuple[str, ...]]:
    """Label the entities of training wherever they occur, the longest first, from left to right."""
    counted = Counter(label for example in training for label in example.label)
    # A unit that is unknown is outside, or a word by itself.
    usual = [label for label in ("O", "S") if label in counted]
    other = usual[0] if usual else counted.most_common(1)[0][0]
    known = _entities_of(training)
    if other == "O":  # A single character that was once a name is far more often a plain word.
        known = {units: labels for units, labels in known.items() if len("".join(units)) > 1}
    lengths = sorted({len(units) for units in known}, reverse=True)
    return [tuple(_match(example.units, known, lengths, other)) for example in test]


def _entities_of(training: Sequence[Example]) -> Entities:
    """The labels that each entity's units have most often."""
    counts: defaultdict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
    for example in training:
        labels = example.label
        for _, first, end in spans(labels):
            counts[example.units[first:end]][tuple(labels[first:end])] += 1
    return {units: labels.most_common(1)[0][0] for units, labels in counts.items()}


def _match(
    units: tuple[str, ...], known: Entities, lengths: Sequence[int], other: str
) -> list[str]:
    """Labels of the units: at each one the longest known entity that begins there, or none."""
    labels: list[str] = []
    while (at := len(labels)) < len(units):
        candidates = (units[at : at + length] for length in lengths)
        labels += next((known[one] for one in candidates if one in known), (other,))
    return labels
