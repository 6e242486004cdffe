"""Simple methods, fitted to the same examples, with which a fine-tuned model is compared.

TF-IDF and a linear model are tuned on the validation set, as the model is. An untuned baseline
would make the model look better than it is.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.tags.schemes import spans
from roformer_tf.tokenizers.segmentation import segment
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.tasks.task_settings import Prediction

# Maximum characters of training texts that are used: about a minute's work on one core.
MAX_CHARACTERS = 20_000_000
# Maximum characters of training texts, and of validation texts, to select settings.
MAX_SEARCHED = 500_000
REGRESSIONS = {"logistic": Message("logistic regression"), "ridge": Message("ridge regression")}
# Maximum coefficients of a logistic regression of all labels, and maximum probabilities of all
# training examples. With more, its eight fits would take hours.
MAX_COEFFICIENTS = 50_000_000

Examples: TypeAlias = Sequence[Example]
# Units of known entities → their labels.
Entities: TypeAlias = Mapping[tuple[str, ...], tuple[str, ...]]


class Setting(NamedTuple):
    """The settings of TF-IDF and a linear model that are tuned."""

    longest: int = 3
    """Characters of the longest n-gram; 0 for jieba's words."""
    min_df: int = 2
    """Minimum number of training texts that contain an n-gram which counts."""
    strength: float = 10.0
    """C, the inverse of regularisation. More than scikit-learn's default of 1 is usual, because
    most n-grams are in few texts."""

    @property
    def unit(self) -> Message:
        """The unit that is counted, as text for a report."""
        if not self.longest:
            return Message("words")
        return Message("1–{longest} characters", longest=self.longest)


USUAL = Setting()
# Ways to count n-grams to try, at the usual strength.
COUNTED = [Setting(longest, min_df) for longest in (3, 2, 0) for min_df in (1, 2)]
# Strengths to try with the best way to count.
STRENGTHS = (1.0, 10.0, 100.0)


def tfidf_baseline(
    task: Any, training: Examples, test: Examples, valid: Examples, metric: Metric
) -> "tuple[Message, list[Prediction]]":
    """TF-IDF and the task's `linear_model`: the name of the method, and its test predictions.

    metric: selects the settings on the validation set. Without a validation set they are `USUAL`.
    """
    fitted = _at_most(training, MAX_CHARACTERS)
    setting = _tuned(task, training, valid, metric) if valid else USUAL
    counts = NgramCounts(setting.longest, fitted, [*test, *valid])
    features, new_features = counts.features(setting.min_df)
    predictions = task.metrics.fit_linear(fitted, features, new_features, setting.strength)
    gold = [example.label for example in valid]
    decoding = task.decoding.with_choices(gold, predictions[len(test) :]).decoding
    kept, count = len(fitted), len(training)
    part = Message(", fitted to {kept:,} of {all:,} training examples", kept=kept, all=count)
    method = Message(
        "TF-IDF of {unit} + {regression} (min_df {min_df}, C {strength:g}{chosen}){part}",
        unit=setting.unit,
        regression=REGRESSIONS[task.metrics.linear_model],
        min_df=setting.min_df,
        strength=setting.strength,
        chosen=Message(", chosen on the validation set") if valid else "",
        part=part if kept < count else "",
    )
    return method, [decoding.reread(prediction) for prediction in predictions[: len(test)]]


def _tuned(task: Any, training: Examples, valid: Examples, metric: Metric) -> Setting:
    """The setting that is best on the validation set; of equal ones the first.

    First the way to count, then the strength: 8 fits instead of 18.
    """
    training, valid = _at_most(training, MAX_SEARCHED), _at_most(valid, MAX_SEARCHED)
    gold = [example.label for example in valid]

    @lru_cache(1)  # counts are large; settings of equal counts follow each other
    def counts(longest: int) -> NgramCounts:
        return NgramCounts(longest, training, valid)

    @cache  # the best way to count is known at the usual strength
    def goodness(setting: Setting) -> float:
        features = counts(setting.longest).features(setting.min_df)
        predictions = task.metrics.fit_linear(training, *features, setting.strength)
        chosen = task.decoding.with_choices(gold, predictions)
        predictions = [chosen.decoding.reread(prediction) for prediction in predictions]
        return metric.goodness(chosen.metrics.compute(gold, predictions))

    best = max(COUNTED, key=goodness)
    return max((best._replace(strength=strength) for strength in STRENGTHS), key=goodness)


class NgramCounts:
    """Counts of n-grams or words in two sets of examples, which have one text or two each."""

    def __init__(self, longest: int, training: Examples, new: Examples) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        self.longest, self.sets = longest, (training, new)
        settings = {"analyzer": "char", "ngram_range": (1, longest)}
        vectorizer = CountVectorizer(
            dtype=np.float32, **(settings if longest else {"analyzer": _words})
        )
        self.training = vectorizer.fit_transform(_columns(training))
        """Sparse (texts, n-grams): all first texts of the examples, then all second ones."""
        self.new = vectorizer.transform(_columns(new))

    def features(self, min_df: int) -> tuple[Any, Any]:
        """TF-IDF of all texts and features of pairs, for both sets: each sparse (N, F)."""
        from sklearn.feature_extraction.text import TfidfTransformer

        counts = self.training
        frequent = np.bincount(counts.indices, minlength=counts.shape[1]) >= min_df
        if not frequent.any():  # for example if each text is a different character
            frequent[:] = True
        weighing = TfidfTransformer(sublinear_tf=True).fit(counts[:, frequent])
        of_training, of_new = (
            _joined(weighing.transform(counts[:, frequent]), examples)
            for counts, examples in zip((counts, self.new), self.sets, strict=True)
        )
        return of_training, of_new


def _words(text: str) -> list[str]:
    """Words of jieba in lower case."""
    return [word for word in segment(text.lower()) if not word.isspace()]


def _columns(examples: Examples) -> list[str]:
    """All first texts of examples, then all second ones."""
    return [text for texts in zip(*(x.texts for x in examples), strict=True) for text in texts]


def _joined(weights: Any, examples: Examples) -> Any:
    """Features (N, F) of examples of one text or two, from the TF-IDF of their texts."""
    from scipy.sparse import csr_matrix, hstack

    number = len(examples)
    if weights.shape[0] == number:
        return weights
    columns = weights[:number], weights[number:]
    # A linear model cannot compare two texts: products and overlaps are what it can use.
    shared = [[overlap(a, b), overlap(_twos(a), _twos(b))] for a, b in (x.texts for x in examples)]
    products = columns[0].multiply(columns[1])
    return hstack([*columns, products, csr_matrix(shared, dtype=np.float32)], format="csr")


def _twos(text: str) -> list[str]:
    """Every two adjacent characters."""
    return [text[i : i + 2] for i in range(len(text) - 1)]


def _at_most(examples: Examples, characters: int) -> Examples:
    """A random sample of the examples, whose texts have about this many characters."""
    total = sum(len(text) for example in examples for text in example.texts)
    if total <= characters:
        return examples
    few = max(1, len(examples) * characters // total)
    chosen = np.random.default_rng(0).choice(len(examples), few, replace=False)
    return [examples[i] for i in np.sort(chosen)]


def overlap(a: Sequence[str], b: Sequence[str]) -> float:
    """Jaccard similarity of two sets of items; of texts, of their characters."""
    either = set(a) | set(b)
    return len(set(a) & set(b)) / len(either) if either else 0.0


def check_size(features: Any, classes: int) -> None:
    """Raise InputError if a linear model of features (N, F) with so many classes takes hours."""
    if classes * max(features.shape) > MAX_COEFFICIENTS:
        raise InputError(
            f"a logistic regression of {classes:,} labels on {features.shape[0]:,} examples with "
            f"{features.shape[1]:,} features would take hours"
        )


def logistic_probabilities(
    features: Any, targets: np.ndarray, new_features: Any, strength: float
) -> np.ndarray:
    """Fit a logistic regression to each column of targets (N, C) bool → (M, C) float32.

    features (N, F), new_features (M, F).
    """
    from sklearn.linear_model import LogisticRegression

    features, new_features = features.astype(np.float64), new_features.astype(np.float64)
    probabilities = np.zeros((new_features.shape[0], targets.shape[1]), np.float32)
    for number, column in enumerate(targets.T):
        if column.all() or not column.any():
            probabilities[:, number] = column[0]
            continue
        # Each label against the rest, in the dual: on 119 labels of 3,000 texts this is seven times
        # as fast as one model of all labels, and as good.
        model = LogisticRegression(
            C=strength, solver="liblinear", dual=True, tol=1e-2, max_iter=1000, random_state=0
        )
        probabilities[:, number] = model.fit(features, column).predict_proba(new_features)[:, 1]
    return probabilities


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
