"""Few examples: the head of a classifier starts as a logistic regression on the encoder's vectors.

A new, random head spoils what the encoder has learned before it has learned anything itself
(arXiv 2202.10054). From a few examples of each label it hardly recovers.
"""

from collections.abc import Sequence

import numpy as np

from roformer_tf.labelled.examples import Example
from roformer_tf.models.encoder import sequences
from roformer_tf.models.heads import RoFormerForSequenceClassification
from roformer_tf.models.inputs import encoder_inputs
from roformer_tf.models.rows import run_rows
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.classification import ClassificationMetrics
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

# Mean number of training examples of a label, at most. With 7 the training alone was as good.
FEW = 5
# Inverse of the penalty on the weights of standardized features. Of 0.001, 0.003, … 1,
# cross-validation chose 0.03 to 0.1 for 4 and 8 examples of 15 labels.
STRENGTH = 0.03


def suits(task: Task, examples: Sequence[Example]) -> bool:
    """Whether these are few examples of several labels, one for each text or pair of texts."""
    labels = {example.label for example in examples}
    classifies = isinstance(task.metrics, ClassificationMetrics)
    return classifies and len(labels) > 1 and len(examples) <= FEW * len(labels)


def fit_head(
    model: RoFormerForSequenceClassification,
    task: Task,
    tokenizer: RoFormerTokenizer,
    examples: Sequence[Example],
) -> None:
    """Set the last layer of a model to a logistic regression on its inputs."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    encoded = task.labelling.encode(examples, tokenizer)

    def features(inputs: dict[str, np.ndarray]) -> np.ndarray:
        hidden = model.encoder(encoder_inputs(inputs), training=False)
        return np.asarray(model.classifier.features(hidden, sequences(inputs), training=False))

    outputs = run_rows(features, encoded.token_ids, encoded.segment_ids)
    rows = np.stack(outputs).astype("float64")
    scaler = StandardScaler().fit(rows)
    targets = np.array([task.labelling.target(example) for example in examples])
    regression = LogisticRegression(C=STRENGTH, max_iter=1000)
    regression.fit(scaler.transform(rows), targets[encoded.example])
    coefficients, intercepts = regression.coef_, regression.intercept_
    if len(coefficients) == 1:  # of the second of two labels
        coefficients = np.concatenate([-coefficients, coefficients]) / 2
        intercepts = np.concatenate([-intercepts, intercepts]) / 2
    kernel = np.zeros((rows.shape[1], task.outputs))
    bias = np.full(task.outputs, intercepts.min())  # of labels without an example
    kernel[:, regression.classes_] = (coefficients / scaler.scale_).T
    bias[regression.classes_] = intercepts - scaler.mean_ @ kernel[:, regression.classes_]
    model.classifier.out_proj.kernel.assign(kernel)
    model.classifier.out_proj.bias.assign(bias)
