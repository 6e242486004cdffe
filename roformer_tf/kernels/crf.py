"""A linear-chain conditional random field: how likely a sequence of labels is, as a whole.

log p(y | x) = score(y) − log Σ_z exp score(z)    over all sequences z as long as y
score(y) = start[y_1] + Σ emissions[t, y_t] + Σ transitions[y_{t−1}, y_t] + end[y_n]

(Lafferty, McCallum and Pereira 2001). Axes: B rows, T tokens, C labels. Only some tokens of a row
have a label; the others stand between them without being in the sequence.
"""

from typing import Any

from keras import ops

from roformer_tf.kernels.forms import Tensor

NO_LABEL = -1
"""Among labels: a token that is in no sequence."""


def sequence_losses(
    emissions: Tensor, labels: Tensor, start: Tensor, transitions: Tensor, end: Tensor
) -> Tensor:
    """−log p of each row's labels in nats, shared out evenly among its tokens that have one.

    emissions (B, T, C) float32; labels (B, T) int: `NO_LABEL`, 0 to C − 1, and on tokens without a
    label C for the beginning of a text and C + 1 for its end; start (C,), transitions (C, C) from
    label to next label, end (C,) float32 → (B, T) float32. A row without C or C + 1 is a piece of
    a text: nothing is scored for how it begins, or how it ends.

    No loop is differentiated, which XLA could not do on TensorFlow: the gradient is known. It is
    what the model expects less what the labels are, of each emission and each transition; so it
    is given to a sum that is linear in them, and of value 0.
    """
    fixed = [ops.stop_gradient(x) for x in (emissions, start, transitions, end)]
    losses, (to_emissions, *others) = _losses_and_gradients(labels, *fixed)
    linear = ops.sum(to_emissions * emissions, axis=(1, 2))  # (B,)
    for gradient, weights in zip(others, (start, transitions, end), strict=True):
        linear += ops.sum(gradient * weights, axis=tuple(range(1, len(gradient.shape))))
    losses = losses + (linear - ops.stop_gradient(linear))
    judged = ops.cast(_judged(labels, emissions.shape[-1]), losses.dtype)  # (B, T)
    return judged * (losses / ops.maximum(ops.sum(judged, axis=1), 1))[:, None]


def _losses_and_gradients(
    labels: Tensor, emissions: Tensor, start: Tensor, transitions: Tensor, end: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """−log p of each row (B,), and its gradient with respect to each of the four."""
    count = emissions.shape[-1]
    judged = _judged(labels, count)[..., None]  # (B, T, 1)
    opens = ops.cast(ops.any(labels == count, axis=1), emissions.dtype)[:, None]  # (B, 1)
    closes = ops.cast(ops.any(labels == count + 1, axis=1), emissions.dtype)[:, None]
    gold = ops.cast(judged, emissions.dtype) * ops.one_hot(labels, count, dtype=emissions.dtype)
    begins, ends = opens * start, closes * end  # (B, C)

    forward, seen, total = _forward(emissions, gold, judged, begins, transitions)
    backward = _backward(emissions, judged, transitions, ends)
    last, last_gold = forward[:, -1], seen[:, -1]
    at_end = ops.softmax(last + ends)
    # What is known before each token: the message and the label of the last one with a label.
    forward_before, gold_before = _shifted(forward), _shifted(seen)
    first = judged & ~ops.any(gold_before > 0, axis=-1, keepdims=True)  # (B, T, 1)
    behind_one = ops.cast(judged & ~first, emissions.dtype)[..., None]  # (B, T, 1, 1)

    expected = ops.where(judged, ops.softmax(forward + backward), 0)  # (B, T, C)
    pairs = (
        forward_before[..., :, None]
        + transitions
        + (emissions + backward)[..., None, :]  # (B, T, from C, to C)
    )
    pairs = behind_one * ops.exp(pairs - ops.logsumexp(pairs, axis=(2, 3), keepdims=True))
    gold_pairs = gold_before[..., :, None] * gold[..., None, :]  # 0 at the first
    to_emissions = expected - gold
    to_transitions = ops.sum(pairs - gold_pairs, axis=1)  # (B, C, C)
    to_start = opens * ops.sum(ops.where(first, to_emissions, 0), axis=1)  # (B, C)
    some = ops.cast(ops.any(judged, axis=1), emissions.dtype)  # (B, 1)
    to_end = some * closes * (at_end - last_gold)

    highest = ops.logsumexp(last + ends, axis=-1) * some[:, 0]
    score = (
        ops.sum(gold * emissions, axis=(1, 2))
        + ops.sum(gold_pairs * transitions, axis=(1, 2, 3))
        + ops.sum(ops.where(first, gold, 0) * begins[:, None], axis=(1, 2))
        + ops.sum(last_gold * ends, axis=-1)
    )
    gradients = (to_emissions, to_start, to_transitions, to_end)
    return total + highest - score, gradients


def _forward(
    emissions: Tensor, gold: Tensor, judged: Tensor, begins: Tensor, transitions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Messages from the left, normalised; the last label so far; and log of what was normalised.

    (B, T, C) each, and (B,).
    """
    count = emissions.shape[-1]

    def step(carry: tuple[Tensor, Tensor, Tensor], at: Tensor) -> Any:
        message, label, total = carry
        scores, own, has_label = at[:, :count], at[:, count:-1], at[:, -1:] > 0
        begun = ops.any(label > 0, axis=-1, keepdims=True)
        into = ops.logsumexp(message[:, :, None] + transitions, axis=1)
        new = ops.where(begun, into, begins) + scores
        size = ops.logsumexp(new, axis=-1, keepdims=True)
        carry = (
            ops.where(has_label, new - size, message),
            ops.where(has_label, own, label),
            total + ops.where(has_label, size, 0)[:, 0],
        )
        return carry, carry

    nothing = ops.zeros_like(emissions[:, 0])
    start = (nothing, nothing, nothing[:, 0])
    (*_, total), (messages, labels, _) = ops.scan(step, start, _by_token(emissions, gold, judged))
    return ops.swapaxes(messages, 0, 1), ops.swapaxes(labels, 0, 1), total


def _backward(emissions: Tensor, judged: Tensor, transitions: Tensor, ends: Tensor) -> Tensor:
    """Messages from the right, up to a constant: (B, T, C)."""

    def step(message: Tensor, at: Tensor) -> Any:
        scores, has_label = at[:, :-1], at[:, -1:] > 0
        new = ops.logsumexp(transitions + (scores + message)[:, None, :], axis=2)
        new = new - ops.max(new, axis=-1, keepdims=True)
        message = ops.where(has_label, new, message)
        return message, message

    _, messages = ops.scan(step, ends, ops.flip(_by_token(emissions, judged), axis=0))
    messages = ops.swapaxes(ops.flip(messages, axis=0), 0, 1)
    # Into a token comes what the next one gives.
    return ops.concatenate([messages[:, 1:], ends[:, None]], axis=1)


def _by_token(*arrays: Tensor) -> Tensor:
    """Arrays (B, T, …) side by side, for a loop over tokens: (T, B, …) float32.

    One array: given several, Keras' scan (3.15) fails on TensorFlow where T is not known.
    """
    side_by_side = ops.concatenate([ops.cast(x, "float32") for x in arrays], axis=-1)
    return ops.swapaxes(side_by_side, 0, 1)


def _judged(labels: Tensor, count: int) -> Tensor:
    """Which tokens have a label: (B, T) bool."""
    return (labels >= 0) & (labels < count)


def _shifted(x: Tensor) -> Tensor:
    """What stood one token before: (B, T, C), 0 at first."""
    return ops.concatenate([ops.zeros_like(x[:, :1]), x[:, :-1]], axis=1)
