"""TF-IDF of n-grams or words, and a linear model of it: fitted by scikit-learn, used by NumPy.

Fine-tuned models are compared with it, or combined. It is fitted to the same examples, and tuned on
the validation set, as the model is: an untuned baseline would make the model look better than it
is. Importing scikit-learn takes a second, so predictions do without it. Each example is computed
separately: its prediction does not depend on the rest of a batch.
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.parts import Examples, Prediction
from roformer_tf.tokenizers.segmentation import segment
from roformer_tf.translation import Message

# Maximum coefficients of all labels: 160 MB. Of more n-grams the most frequent ones count. On 119
# labels of 3,024 long texts, 16,000 n-grams cost 0.8 points of accuracy, and 100,000 none.
MAX_COEFFICIENTS = 20_000_000
# Maximum features of all examples that are not 0, times labels. With more, nine fits take hours.
MAX_PRODUCTS = 5_000_000_000
# Coefficients that are stored: the largest ones, in float16. On those 119 labels this costs 0.2
# points of accuracy of 55, and is a file of 3 MB instead of 20.
MAX_STORED = 1_000_000
# Maximum characters of training texts that are used: about a minute's work on one core.
MAX_CHARACTERS = 20_000_000
# Maximum characters of training texts, and of validation texts, to select settings.
MAX_SEARCHED = 500_000
REGRESSIONS = {"logistic": Message("logistic regression"), "ridge": Message("ridge regression")}
# Of a character. Three of them fit into 64 bits, so different n-grams have different keys.
BITS = 21
SPACES = re.compile(r"\s\s+")

# The different n-grams of a text, (n,) uint64 ascending, and how often each occurs, (n,).
Counts: TypeAlias = tuple[np.ndarray, np.ndarray]
# Features of an example that are not 0: columns (n,) and values (n,) float64.
SparseRow: TypeAlias = tuple[np.ndarray, np.ndarray]


class Setting(NamedTuple):
    """The settings of TF-IDF and a linear model; all but the last are tuned."""

    # Characters of the longest n-gram, at most 3; 0 for jieba's words.
    longest: int = 3
    # Minimum number of training texts that contain an n-gram which counts.
    min_df: int = 2
    # C, the inverse of regularisation. More than scikit-learn's default of 1 is usual, because most
    # n-grams are in few texts.
    strength: float = 10.0
    # Whether rare labels count as much as frequent ones: class weights.
    balanced: bool = False


class LinearModel(NamedTuple):
    """A linear model with C outputs."""

    coefficients: np.ndarray  # (features, C)
    intercepts: np.ndarray  # (C,)


@dataclass(frozen=True)
class TfIdf:
    """TF-IDF of texts: one text has F features; a pair has those of both, products, and overlaps.

    As in scikit-learn's TfidfTransformer(sublinear_tf=True).
    """

    longest: int  # as in `Setting`
    ngrams: np.ndarray  # (F,) uint64 ascending: keys of n-grams or words
    idf: np.ndarray  # (F,) float32

    @classmethod
    def fit(cls, setting: Setting, counts: Sequence[Counts], most: int) -> "TfIdf":
        """The `most` frequent n-grams of texts, and how rare each is."""
        ngrams, texts = np.unique(np.concatenate([x for x, _ in counts]), return_counts=True)
        frequent = texts >= setting.min_df
        if not frequent.any():  # for example if each text is a different character
            frequent[:] = True
        if np.sum(frequent) > most:
            frequent[np.argsort(-texts, kind="stable")[most:]] = False
        idf = np.log((1 + len(counts)) / (1 + texts[frequent])) + 1
        return cls(setting.longest, ngrams[frequent], idf.astype(np.float32))

    def width(self, texts: int) -> int:
        """The number of features of examples of one text or two."""
        return len(self.ngrams) if texts == 1 else 3 * len(self.ngrams) + 2

    def row(self, example: Example) -> SparseRow:
        """Features of an example."""
        return self.row_of(example, counted(example, self.longest))

    def row_of(self, example: Example, counts: Sequence[Counts]) -> SparseRow:
        """Features of an example whose n-grams are counted."""
        if len(counts) == 1:
            return self._weights(*counts[0])
        (first, of_first), (second, of_second) = (self._weights(*each) for each in counts)
        # A linear model cannot compare two texts: products and overlaps are what it can use.
        both, at, and_at = np.intersect1d(first, second, assume_unique=True, return_indices=True)
        a, b = example.texts
        # Columns of a pair: F of the first text, F of the second, F products, 2 overlaps.
        size = len(self.ngrams)
        last = 3 * size + np.arange(2)
        overlaps = overlap(a, b), overlap(pairwise(a), pairwise(b))
        return (
            np.concatenate([first, size + second, 2 * size + both, last]),
            np.concatenate([of_first, of_second, of_first[at] * of_second[and_at], overlaps]),
        )

    def _weights(self, ngrams: np.ndarray, counts: np.ndarray) -> SparseRow:
        """The weights of a text's n-grams; their squares add up to 1."""
        # Without the last key, every index is within the array; `known` then drops absent keys.
        columns = np.searchsorted(self.ngrams[:-1], ngrams)
        known = self.ngrams[columns] == ngrams
        columns, counts = columns[known], counts[known]
        weights = (1 + np.log(counts)) * self.idf[columns]
        return columns, weights / (np.sqrt(np.sum(weights**2)) or 1)


def counted(example: Example, longest: int) -> list[Counts]:
    """The n-grams of each text of an example, with up to `longest` characters, or its words."""
    return [np.unique(_keys(text, longest), return_counts=True) for text in example.texts]


def _keys(text: str, longest: int) -> np.ndarray:
    """The key (n,) uint64 of every n-gram or word of a text, in lower case."""
    text = text.lower()
    if not longest:
        # A digest, since keys are stored: `hash` of a text differs between processes.
        words = (word.encode(errors="replace") for word in segment(text) if not word.isspace())
        return np.frombuffer(b"".join(blake2b(x, digest_size=8).digest() for x in words), "<u8")
    # As scikit-learn's CountVectorizer: several white spaces are one.
    codes = np.frombuffer(SPACES.sub(" ", text).encode("utf-32-le", "replace"), "<u4")
    characters = codes.astype(np.uint64)
    keys: list[np.ndarray] = [characters]
    for length in range(1, longest):
        # The key of its first n − 1 characters, shifted by one character, and the last one.
        keys.append((keys[-1][:-1] << BITS) | characters[length:])
    return np.concatenate(keys)


def overlap(a: Iterable[Any], b: Iterable[Any]) -> float:
    """Jaccard similarity of two sets of items; of texts, of their characters."""
    first, second = set(a), set(b)
    return len(first & second) / len(first | second) if first or second else 0.0


@dataclass(frozen=True)
class TfIdfModel:
    """TF-IDF and the linear model of a task, `Metrics.linear_model`."""

    tfidf: TfIdf
    linear: LinearModel

    @classmethod
    def fit(
        cls, task: Any, examples: Examples, setting: Setting, counts: Sequence[Sequence[Counts]]
    ) -> "TfIdfModel":
        """Fit to examples, of which the n-grams are counted.

        Raises InputError where that would take hours.
        """
        from scipy.sparse import csr_matrix

        # All first texts of the examples, then all second ones.
        of_texts = [text for texts in zip(*counts, strict=True) for text in texts]
        tfidf = TfIdf.fit(setting, of_texts, MAX_COEFFICIENTS // task.outputs)
        columns, values = zip(*map(tfidf.row_of, examples, counts), strict=True)
        # The index pointers of a CSR matrix: row i is the numbers from ends[i] to ends[i + 1].
        ends = np.cumsum([0, *map(len, columns)])
        shape = len(examples), tfidf.width(len(examples[0].texts))
        features = csr_matrix((np.concatenate(values), np.concatenate(columns), ends), shape)
        if features.nnz * task.outputs > MAX_PRODUCTS:
            raise InputError(
                f"a linear model of {task.outputs:,} labels on texts with {features.nnz:,} "
                "different n-grams would take hours"
            )
        targets = np.stack([task.labelling.target(example) for example in examples])
        return cls(tfidf, task.metrics.fit_linear(targets, features, setting))

    def compact(self, most: int = MAX_STORED) -> "TfIdfModel":
        """The model with its largest coefficients only, in float16."""
        coefficients, intercepts = self.linear
        # Repeated for a pair, which has the n-grams three times; its overlaps get the next two.
        idf = np.resize(self.tfidf.idf, len(coefficients))[:, None]
        sizes = np.abs(coefficients) * idf  # how much a feature can change an output
        if sizes.size > most:
            smallest = np.partition(sizes, -most, axis=None)[-most]
            coefficients = np.where(sizes < smallest, 0, coefficients)
        linear = LinearModel(coefficients.astype(np.float16), intercepts.astype(np.float32))
        return TfIdfModel(self.tfidf, linear)

    def logits(self, task: Any, examples: Examples) -> np.ndarray:
        """(N, C) float64, as `Decoding.predict` takes them."""
        coefficients, intercepts = self.linear
        outputs = np.empty((len(examples), len(intercepts)))
        for output, (columns, values) in zip(outputs, map(self.tfidf.row, examples), strict=True):
            output[:] = values @ coefficients[columns] + intercepts
        return task.metrics.linear_logits(outputs)

    def predictions(self, task: Any, examples: Examples) -> list[Prediction]:
        """Predict each example."""
        return task.decoding.predict_all(self.logits(task, examples))


def fit_logistic(targets: np.ndarray, features: Any, setting: Setting) -> LinearModel:
    """Fit a logistic regression to each column of targets (N, C) bool; features (N, F)."""
    from sklearn.linear_model import LogisticRegression

    classes = targets.shape[1]
    coefficients = np.zeros((features.shape[1], classes), np.float32)
    intercepts = np.zeros(classes)
    for number, column in enumerate(targets.T):
        if column.all() or not column.any():
            # As if there were half an example more of either kind.
            intercepts[number] = np.log((column.sum() + 0.5) / ((~column).sum() + 0.5))
            continue
        # Each label against the rest, in the dual: on 119 labels of 3,000 texts this is seven times
        # as fast as one model of all labels, and as good.
        model = LogisticRegression(
            C=setting.strength,
            class_weight="balanced" if setting.balanced else None,
            solver="liblinear",
            dual=True,
            tol=1e-2,
            max_iter=1000,
            random_state=0,
        )
        model.fit(features, column)
        coefficients[:, number], intercepts[number] = model.coef_[0], model.intercept_[0]
    return LinearModel(coefficients, intercepts)


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

    def predictions(self, task: Any, test: Examples, valid: Examples) -> list[Prediction]:
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
    balanced: bool = False,
) -> FittedTfIdf:
    """TF-IDF and the task's `linear_model`, fitted to the training set.

    metric: selects the settings on the validation set. Without a validation set they are `USUAL`.
    folds: of a cross-validation, for each the rest and its examples; `valid` is these examples in
    this order, and the settings are selected on them. balanced: whether labels have class weights.
    Raises InputError where that would take hours.
    """
    began = time.perf_counter()
    fitted = _at_most(training, MAX_CHARACTERS)
    setting = USUAL._replace(balanced=balanced)
    if valid:
        setting = _tuned(task, folds or [(training, valid)], metric, balanced)
    part = Message(
        ", fitted to {kept:,} of {all:,} training examples", kept=len(fitted), all=len(training)
    )
    words = Message("words")
    characters = Message("1–{longest} characters", longest=setting.longest)
    name = Message(
        "TF-IDF of {unit} + {regression} (min_df {min_df}, C {strength:g}{chosen}){part}",
        unit=characters if setting.longest else words,
        regression=REGRESSIONS[task.metrics.linear_model],
        min_df=setting.min_df,
        strength=setting.strength,
        chosen=CHOSEN[bool(folds)] if valid else "",
        part=part if len(fitted) < len(training) else "",
    )

    def fit(examples: Examples) -> TfIdfModel:
        counts = [counted(example, setting.longest) for example in examples]
        return TfIdfModel.fit(task, examples, setting, counts)

    model = fit(fitted)
    parts = [fit(rest).logits(task, part) for rest, part in folds]
    held_out = np.concatenate(parts) if parts else None
    return FittedTfIdf(name, model, time.perf_counter() - began, held_out)


def _tuned(
    task: Any, splits: Sequence[tuple[Examples, Examples]], metric: Metric, balanced: bool
) -> Setting:
    """The setting that is best on the validation sets; of equal ones the first.

    splits: training and validation sets. First the way to count, then the strength: 8 fits instead
    of 18.
    """
    splits = [(_at_most(a, MAX_SEARCHED), _at_most(b, MAX_SEARCHED)) for a, b in splits]
    gold = [example.label for _, valid in splits for example in valid]

    @lru_cache(1)  # counts are large; settings of equal counts follow each other
    def counts(longest: int) -> list[Sequence[Sequence[Counts]]]:
        return [[counted(x, longest) for x in training] for training, _ in splits]

    @cache  # the best way to count is known at the usual strength
    def goodness(setting: Setting) -> float:
        predictions: list[Prediction] = []
        for (training, valid), of_split in zip(splits, counts(setting.longest), strict=True):
            model = TfIdfModel.fit(task, training, setting, of_split)
            predictions += model.predictions(task, valid)
        _, scores = task.metrics.with_choices(gold, predictions)
        return metric.goodness(scores)

    best = max((setting._replace(balanced=balanced) for setting in COUNTED), key=goodness)
    return max((best._replace(strength=strength) for strength in STRENGTHS), key=goodness)


def _at_most(examples: Examples, characters: int) -> Examples:
    """A random sample of the examples, whose texts have about this many characters."""
    total = sum(len(text) for example in examples for text in example.texts)
    if total <= characters:
        return examples
    few = max(1, len(examples) * characters // total)
    chosen = np.random.default_rng(0).choice(len(examples), few, replace=False)
    return [examples[i] for i in np.sort(chosen)]
