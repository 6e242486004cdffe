"""What simple methods make of the same examples, for a fine-tuned model to be measured against."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.entities import spans
from roformer_tf.tasks.wording import Words

MOST_CHARACTERS = 20_000_000
"""Of the training texts that are read: about a minute's work on one core."""
TF_IDF = Words(
    "TF-IDF of 1–3 characters + {regression}{part}", "1–3 字 TF-IDF + {regression}{part}"
)
FITTED_TO_PART = Words(
    ", fitted to {kept} of {given} training examples",
    "（用 {given} 条训练样本中的 {kept} 条拟合）",
)
REGRESSIONS = {
    "logistic": Words("logistic regression", "逻辑回归"),
    "ridge": Words("ridge regression", "岭回归"),
}
MOST_COEFFICIENTS = 50_000_000
"""Of a logistic regression: the solver keeps some twenty copies, 8 GB. The probabilities of all
training examples, which it computes hundreds of times, are held to the same number."""
RARE = 2
"""Times that a piece of text must stand in training to count."""

Entities: TypeAlias = Mapping[tuple[str, ...], tuple[str, ...]]
"""Units of known entities → their labels."""


class TfIdfFeatures(NamedTuple):
    """Examples as features that a linear model can be fitted to."""

    method: Words
    """In words, for a report."""
    training: Sequence[Example]
    """Those that are fitted to."""
    features: Any
    """Of these, sparse (N, F) float32."""
    other_features: Any
    """Of the examples to answer, sparse (M, F) float32."""


def tfidf(training: Sequence[Example], others: Sequence[Example], regression: str) -> TfIdfFeatures:
    """TF-IDF of 1 to 3 characters; of a pair, what both texts have, too.

    `regression` is the linear model's name, one of `REGRESSIONS`.
    """
    chosen = _at_most(training, MOST_CHARACTERS)
    kept, given = len(chosen), len(training)
    part = FITTED_TO_PART.format(kept=f"{kept:,}", given=f"{given:,}") if kept < given else ""
    method = TF_IDF.format(regression=REGRESSIONS[regression], part=part)
    return TfIdfFeatures(method, chosen, *_features(chosen, others))


def _at_most(examples: Sequence[Example], characters: int) -> Sequence[Example]:
    """So many of the examples, taken by chance, that their texts are about within the limit."""
    found = sum(len(text) for example in examples for text in example.texts)
    if found <= characters:
        return examples
    few = max(1, len(examples) * characters // found)
    chosen = np.random.default_rng(0).choice(len(examples), few, replace=False)
    return [examples[i] for i in np.sort(chosen)]


def overlap(a: Sequence[str], b: Sequence[str]) -> float:
    """Pieces that both have ÷ pieces that either has (Jaccard); characters, if they are texts."""
    either = set(a) | set(b)
    return len(set(a) & set(b)) / len(either) if either else 0.0


def class_probabilities(
    features: Any, targets: np.ndarray, others: Any, classes: int
) -> np.ndarray:
    """Learn classes (N,) from features (N, F), and predict those of others: (M, C) float32.

    Raises InputError for so many classes that it would take hours.
    """
    if classes * max(features.shape) > MOST_COEFFICIENTS:
        raise InputError(
            f"a logistic regression of {classes:,} labels on {features.shape[0]:,} examples with "
            f"{features.shape[1]:,} features would take hours"
        )
    from sklearn.linear_model import LogisticRegression

    found = np.unique(targets).astype(int)
    scores = np.zeros((others.shape[0], classes), np.float32)
    scores[:, found] = 1
    if len(found) > 1:
        # Less regularised than by default: most pieces stand in few texts.
        fitted = LogisticRegression(C=10, max_iter=1000).fit(features, targets)
        scores[:, found] = fitted.predict_proba(others)
    return scores


def _features(training: Sequence[Example], test: Sequence[Example]) -> tuple[Any, Any]:
    """TF-IDF of every text and, of a pair, what both texts have: sparse (N, F) float32 each."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = [text for example in training for text in example.texts]
    settings = {"ngram_range": (1, 3), "sublinear_tf": True, "dtype": np.float32}
    rare = RARE if len(texts) > 100 else 1  # a handful of texts has hardly a piece twice
    pieces = TfidfVectorizer(analyzer="char", min_df=rare, **settings)
    try:
        pieces.fit(texts)
    except ValueError:  # no piece is left, as where each text is a character of its own
        pieces = TfidfVectorizer(analyzer="char", **settings).fit(texts)
    return _describe(pieces, training), _describe(pieces, test)


def _describe(pieces: Any, examples: Sequence[Example]) -> Any:
    """Features (N, F) of examples of one text or two."""
    from scipy.sparse import csr_matrix, hstack

    columns = [pieces.transform(texts) for texts in zip(*(x.texts for x in examples), strict=True)]
    if len(columns) == 1:
        return columns[0]
    shared = [[overlap(a, b), overlap(_twos(a), _twos(b))] for a, b in (x.texts for x in examples)]
    return hstack([*columns, columns[0].multiply(columns[1]), csr_matrix(shared)], format="csr")


def _twos(text: str) -> list[str]:
    """Every two adjacent characters."""
    return [text[i : i + 2] for i in range(len(text) - 1)]


def known_entities(training: Sequence[Example], test: Sequence[Example]) -> list[tuple[str, ...]]:
    """Label what stands in training as an entity, the longest first, from left to right."""
    counted = Counter(label for example in training for label in example.label)
    # A unit that is unknown is outside, or a word by itself.
    usual = [label for label in ("O", "S") if label in counted]
    other = usual[0] if usual else counted.most_common(1)[0][0]
    known = _entities_of(training)
    if other == "O":  # a character that is somewhere a name by itself is far oftener a plain word
        known = {units: labels for units, labels in known.items() if len("".join(units)) > 1}
    lengths = sorted({len(units) for units in known}, reverse=True)
    return [tuple(_match(example.units, known, lengths, other)) for example in test]


def _entities_of(training: Sequence[Example]) -> Entities:
    """The labels that each entity's units have most often."""
    found: defaultdict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
    for example in training:
        labels = example.label
        for _, first, end in spans(labels):
            found[example.units[first:end]][tuple(labels[first:end])] += 1
    return {units: labels.most_common(1)[0][0] for units, labels in found.items()}


def _match(
    units: tuple[str, ...], known: Entities, lengths: Sequence[int], other: str
) -> list[str]:
    """Labels of the units, where the first known entity begins the longest one."""
    labels: list[str] = []
    while (at := len(labels)) < len(units):
        pieces = (units[at : at + length] for length in lengths)
        labels += next((known[piece] for piece in pieces if piece in known), (other,))
    return labels
