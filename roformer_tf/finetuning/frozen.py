"""A classifier with a frozen encoder: logistic regression on its vectors, stored in its head.

With a dozen examples of each label, training all weights learns less than this. The result is an
ordinary model for sequence classification.

Axes: N examples, H hidden size, C labels.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.labelled.encoding import EncodedTexts, mean_of_rows
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import folds
from roformer_tf.models.heads import pooled
from roformer_tf.models.rows import check_finite, run_rows

# C of the logistic regression, the inverse of regularisation, to try on standardized vectors.
STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FOLDS = 4

# For each fold the rest and its examples.
Folds: TypeAlias = list[tuple[list[Example], list[Example]]]


def cross_validation(examples: Sequence[Example], task: Any, seed: int) -> Folds:
    """`FOLDS` folds, or as many as the rarest label has examples. InputError for fewer than two."""
    label, rarest = Counter(example.label for example in examples).most_common()[-1]
    if rarest < 2:
        raise InputError(
            f"a cross-validation needs two examples of each label in a training set, and {label!r} "
            "has one. Give more of them, or --method full."
        )
    return folds(examples, task, min(FOLDS, rarest), seed)


def fit_head(
    model: Any, encoded: EncodedTexts, targets: np.ndarray, folds: Sequence[np.ndarray]
) -> np.ndarray:
    """Fit the head of a `RoFormerForSequenceClassification`; its encoder stays as it is.

    targets (N,) int. folds: numbers of the examples of each, which have all examples together. The
    regularisation has the lowest cross-entropy in this cross-validation. Returns its logits (N, C)
    float64, those of each example from a head that was fitted to the other folds.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    vectors, numbers = _vectors(model, encoded), np.arange(len(targets))
    mean, deviation = vectors.mean(axis=0), vectors.std(axis=0) + 1e-6
    data = (vectors - mean) / deviation, targets
    splits = [(np.setdiff1d(numbers, fold), fold) for fold in folds]
    # Logarithms of probabilities are logits, too, whose cross-entropy is that of the label alone.
    best, lowest, chosen = np.empty(0), np.inf, LogisticRegression()
    for strength in STRENGTHS:
        regression = LogisticRegression(C=strength, max_iter=1000)
        logits = cross_val_predict(regression, *data, cv=splits, method="predict_log_proba")
        loss = -logits[numbers, targets].mean()
        if loss < lowest:
            best, lowest, chosen = logits, loss, regression
    weights, bias = _coefficients(chosen.fit(*data))
    # The head reads vectors as they are: (v − m) / d · W + b = v · (W / d) + b − m · (W / d).
    weights = weights / deviation[:, None]
    _store(model.classifier, weights, bias - mean @ weights)
    return best


def why_no_room(config: RoFormerConfig, labels: int) -> str:
    """Why a head cannot store the logistic regression of so many labels; "" if it can."""
    units = config.hidden_size
    if config.pooling != "cls" or 2 * labels <= units:
        return ""
    return f"a head of {units} units stores at most {units // 2} labels, and the data have {labels}"


def _vectors(model: Any, encoded: EncodedTexts) -> np.ndarray:
    """What the head pools of each example, (N, H) float64; of several windows the mean."""

    def forward(inputs: dict[str, np.ndarray]) -> Any:
        return pooled(model.encoder, None, model.config.pooling, inputs)

    rows = run_rows(forward, encoded.token_ids, encoded.segment_ids)
    check_finite(rows)
    return np.stack(mean_of_rows(rows, encoded)).astype(np.float64)


def _coefficients(regression: Any) -> tuple[np.ndarray, np.ndarray]:
    """Weights (H, C) and bias (C,) of a softmax regression, whose logits have the mean 0."""
    weights, bias = regression.coef_.T, regression.intercept_
    if weights.shape[1] == 1:  # of two labels: the logit of the second, minus that of the first
        weights, bias = np.hstack([-weights, weights]) / 2, np.stack([-bias[0], bias[0]]) / 2
    return weights, bias


def _store(classifier: Any, weights: np.ndarray, bias: np.ndarray) -> None:
    """Have a `TextClassifier` compute pooled (B, H) @ weights (H, C) + bias (C,)."""
    hidden, labels = weights.shape
    if not classifier.of_first:
        classifier.out_proj.kernel.assign(weights)
        classifier.out_proj.bias.assign(bias)
        return
    # Through a layer with an activation, because a(z) - a(-z) = z for gelu and relu: one unit for
    # each logit, and one for its negative. All other units are 0.
    padding = ((0, 0), (0, hidden - 2 * labels))
    classifier.dense.kernel.assign(np.pad(np.hstack([weights, -weights]), padding))
    classifier.dense.bias.assign(np.pad(np.hstack([bias, -bias]), padding[1]))
    identity = np.eye(labels)
    classifier.out_proj.kernel.assign(np.pad(np.vstack([identity, -identity]), padding[::-1]))
    classifier.out_proj.bias.assign(np.zeros(labels))
