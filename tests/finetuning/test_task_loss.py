"""All losses and gradients against NumPy in float64."""

import keras
import numpy as np
import pytest

from roformer_tf.errors import InputError
from roformer_tf.finetuning.trainer import TaskLoss, check_loss
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.table import TASKS as ALL_TASKS
from roformer_tf.tasks.tagging import Tagging

C = 3
LABELS = ("a", "b", "c")
TASKS = {
    "classification": Classification(labels=LABELS),
    "pair": Pair(labels=LABELS),
    "multilabel": Multilabel(labels=LABELS),
    "regression": Regression(),
    "ranking": Ranking(),
    "tagging": Tagging(labels=LABELS),
}


def batch(task, rows=4, tokens=5, seed=0):
    """Return random targets, logits and weights as in fine-tuning; the last weight is 0."""
    rng = np.random.default_rng(seed)
    shape = (rows, tokens) if task == "tagging" else (rows,)
    outputs = 1 if task in ("regression", "ranking") else C
    logits = rng.normal(scale=2, size=(*shape, outputs))
    if task in ("classification", "pair", "tagging"):
        targets = rng.integers(0, C, shape).astype("int32")
    elif task == "regression":
        targets = rng.normal(size=(rows, 1)).astype("float32")
    else:
        targets = rng.integers(0, 2, (rows, outputs)).astype("float32")
    weights = rng.uniform(0.2, 1, shape)
    weights[-1] = 0
    return targets, logits.astype("float32"), weights.astype("float32")


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def row_losses(task, targets, logits, *, smoothing=0.0, focal=0.0, class_weights=None):
    """The losses of the papers in float64, for each sequence or token."""
    if task == "regression":
        return (targets - logits)[..., 0] ** 2
    if task in ("multilabel", "ranking"):
        p, y = sigmoid(logits), targets
        smoothed = y + smoothing * (0.5 - y)
        losses = -(smoothed * np.log(p) + (1 - smoothed) * np.log(1 - p))
        losses *= np.where(y == 1, 1 - p, p) ** focal
        if class_weights is not None:
            column = np.arange(y.shape[-1])
            losses *= np.asarray(class_weights)[column, y.astype(int)]
        return losses.mean(-1)
    p = softmax(logits)
    smoothed = np.eye(C)[targets] * (1 - smoothing) + smoothing / C
    losses = -(smoothed * np.log(p)).sum(-1)
    losses *= (1 - np.take_along_axis(p, targets[..., None], -1)[..., 0]) ** focal
    return losses if class_weights is None else losses * np.asarray(class_weights)[targets]


def kl(task, a, b):
    """KL(p‖q). A regression's outputs are means of normals of variance ½: d² / (2 · ½)."""
    if task == "regression":
        return ((a - b) ** 2)[..., 0]
    if task in ("multilabel", "ranking"):
        p, q = sigmoid(a), sigmoid(b)
        return (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean(-1)
    return (softmax(a) * np.log(softmax(a) / softmax(b))).sum(-1)


def reference(task, targets, logits, weights, r_drop=0.0, **options):
    losses = row_losses(task, targets, logits, **options)
    if r_drop:
        a, b = np.split(logits, 2)
        divergence = kl(task, a, b) + kl(task, b, a)
        losses = losses + r_drop / 4 * np.concatenate([divergence, divergence])
    return (losses * weights).sum() / weights.sum()


def slopes(function, x, width=1e-5):
    """Return the gradient by central differences."""
    gradient = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = width
        gradient[index] = (function(x + step) - function(x - step)) / (2 * width)
    return gradient


def check(task, loss, data, gradient, **options):
    """Compare the value and the gradient of a loss with the reference."""
    targets, logits, weights = data
    exact = (targets.astype("float64") if targets.dtype != "int32" else targets, weights)
    got = keras.ops.convert_to_numpy(loss(targets, logits, sample_weight=weights))
    assert got.dtype == np.float32
    want = reference(task, exact[0], logits.astype("float64"), weights.astype("float64"), **options)
    assert got == pytest.approx(want, rel=2e-6)
    slope = gradient(lambda x: loss(targets, x, sample_weight=weights), logits)
    expected = slopes(
        lambda x: reference(task, exact[0], x, weights.astype("float64"), **options),
        logits.astype("float64"),
    )
    assert np.abs(slope - expected).max() < 1e-6
    assert (slope[weights == 0] == 0).all()


@pytest.mark.parametrize("task", TASKS)
def test_plain_losses_and_gradients(task, gradient):
    check(task, TaskLoss(TASKS[task], LossConfig()), batch(task), gradient)


@pytest.mark.parametrize("task", [name for name in TASKS if name != "regression"])
@pytest.mark.parametrize(
    "options",
    [{"smoothing": 0.1}, {"focal": 2.0}, {"focal": 0.5}, {"smoothing": 0.2, "focal": 1.0}],
)
def test_smoothed_and_focal_losses_and_gradients(task, options, gradient):
    config = LossConfig(options.get("smoothing", 0.0), options.get("focal", 0.0))
    check(task, TaskLoss(TASKS[task], config), batch(task), gradient, **options)


@pytest.mark.parametrize("task", ["classification", "tagging", "multilabel"])
def test_balanced_losses_and_gradients(task, gradient):
    targets = list(batch(task, rows=30, seed=1)[0])
    loss = TaskLoss(TASKS[task], LossConfig(focal=2.0, class_weights="balanced"), targets)
    weights = TASKS[task].objective.class_weights(targets)
    check(task, loss, batch(task), gradient, focal=2.0, class_weights=weights)


@pytest.mark.parametrize("task", TASKS)
def test_r_drop_adds_half_the_mean_of_both_divergences(task, gradient):
    targets, logits, weights = batch(task, rows=8)
    repeated = np.concatenate([targets[:4], targets[:4]])
    weights = np.concatenate([weights[4:], weights[4:]])
    loss = TaskLoss(TASKS[task], LossConfig(r_drop=3.0))
    check(task, loss, (repeated, logits, weights), gradient, r_drop=3.0)


@pytest.mark.parametrize("task", TASKS)
def test_a_distillation_loss_is_a_weighted_sum(task, gradient):
    """Hinton et al.: the divergence at temperature 2 is multiplied by 4. Weights vary by row."""
    targets, logits, weights = batch(task)
    teacher = batch(task, seed=1)[1]
    mix = np.random.default_rng(2).uniform(size=weights.shape).round(2)
    hard = targets[..., None] if targets.dtype == "int32" else targets
    soft_targets = np.concatenate([hard, teacher, mix[..., None]], axis=-1).astype("float32")
    options = {} if task == "regression" else {"focal": 2.0}
    loss = TaskLoss(TASKS[task], LossConfig(**options, teacher="folder"))
    exact = targets if targets.dtype == "int32" else targets.astype("float64")

    def expected_loss(logits):
        label_losses = row_losses(task, exact, logits, **options)
        divergence = 4 * kl(task, teacher.astype("float64") / 2, logits / 2)
        return (((1 - mix) * label_losses + mix * divergence) * weights).sum() / weights.sum()

    got = float(loss(soft_targets, logits, sample_weight=weights))
    assert got == pytest.approx(expected_loss(logits.astype("float64")), rel=2e-6)
    slope = gradient(lambda x: loss(soft_targets, x, sample_weight=weights), logits)
    assert np.abs(slope - slopes(expected_loss, logits.astype("float64"))).max() < 1e-6


@pytest.mark.parametrize("task", TASKS)
def test_r_drop_of_equal_halves_does_not_change_the_loss(task):
    twice = [np.concatenate([x, x]) for x in batch(task)]
    losses = [
        TaskLoss(TASKS[task], LossConfig(r_drop=r_drop))(*twice[:2], sample_weight=twice[2])
        for r_drop in (0.0, 5.0)
    ]
    assert float(losses[0]) == float(losses[1])


@pytest.mark.parametrize("task", TASKS)
def test_examples_of_weight_zero_do_not_change_the_loss(task):
    targets, logits, weights = batch(task)
    loss = TaskLoss(TASKS[task], LossConfig())
    before = float(loss(targets, logits, sample_weight=weights))
    targets[-1], logits[-1] = -1, 50
    assert float(loss(targets, logits, sample_weight=weights)) == before


@pytest.mark.parametrize("task", TASKS)
def test_a_batch_of_weight_zero_has_zero_loss_and_gradient(task, gradient):
    targets, logits, weights = batch(task)
    loss = TaskLoss(TASKS[task], LossConfig())
    slope = gradient(lambda x: loss(targets, x, sample_weight=0 * weights), logits)
    assert float(loss(targets, logits, sample_weight=0 * weights)) == 0
    assert (slope == 0).all()


def test_small_weights_are_normalized():
    """The windows of a text have a total weight of 1, so a batch may have less than 1."""
    targets, logits, weights = batch("classification")
    loss = TaskLoss(TASKS["classification"], LossConfig())
    small, large = (float(loss(targets, logits, sample_weight=x * weights)) for x in (1e-3, 1.0))
    assert small == pytest.approx(large, rel=1e-5)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("focal", [0.0, 0.5, 2.0])
def test_large_logits_give_finite_losses_and_gradients(task, focal, gradient):
    targets, logits, weights = batch(task)
    if task == "regression":
        focal = 0.0
    loss = TaskLoss(TASKS[task], LossConfig(focal=focal, r_drop=1.0))
    for scale in (1e3, 1e4):
        value = float(loss(targets, scale * logits, sample_weight=weights))
        slope = gradient(lambda x: loss(targets, x, sample_weight=weights), scale * logits)
        assert np.isfinite(value)
        assert np.isfinite(slope).all()


@pytest.mark.parametrize("task", TASKS)
def test_losses_of_bfloat16_logits_are_computed_in_float32(task):
    targets, logits, weights = batch(task)
    loss = TaskLoss(TASKS[task], LossConfig())
    short = keras.ops.cast(logits, "bfloat16")
    got = loss(targets, short, sample_weight=weights)
    exact = keras.ops.convert_to_numpy(keras.ops.cast(short, "float32"))
    assert keras.backend.standardize_dtype(got.dtype) == "float32"
    assert float(got) == float(loss(targets, exact, sample_weight=weights))


@pytest.mark.parametrize(
    "invalid",
    [
        {"label_smoothing": 1.0},
        {"label_smoothing": -0.1},
        {"label_smoothing": float("nan")},
        {"focal": -1.0},
        {"r_drop": float("inf")},
        {"fgm": float("nan")},
    ],
)
def test_invalid_settings_are_rejected(invalid):
    with pytest.raises(InputError, match=next(iter(invalid))):
        LossConfig(**invalid)


@pytest.mark.parametrize(
    ("task", "setting"),
    [
        ("regression", {"label_smoothing": 0.1}),
        ("regression", {"focal": 2.0}),
        ("regression", {"class_weights": "balanced"}),
        ("ranking", {"class_weights": "balanced"}),
        ("spans", {"focal": 2.0}),
        ("question-answering", {"r_drop": 1.0}),
        ("embedding", {"teacher": "folder"}),
        ("crf", {"teacher": "folder"}),
    ],
)
def test_settings_without_effect_on_a_task_are_rejected(task, setting):
    tasks = TASKS | {name: kind(labels=LABELS) for name, kind in ALL_TASKS.items()}
    tasks["crf"] = Tagging(labels=LABELS, crf=True)
    flag = next(iter(setting)).replace("_", "-")
    with pytest.raises(InputError, match=rf"Remove --{flag}\.$"):
        check_loss(tasks[task], LossConfig(**setting))
