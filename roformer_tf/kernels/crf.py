"""A linear-chain conditional random field: the probability of a whole sequence of labels.

log p(y | x) = score(y) − log Σ_z exp score(z)    over all sequences z of the same length
score(y) = start[y_1] + Σ emissions[t, y_t] + Σ transitions[y_{t−1}, y_t] + end[y_n]

(Lafferty, McCallum and Pereira 2001). Axes: B batch, T tokens, C labels. Only some tokens have a
label; the tokens between them are skipped.
"""

from typing import Any

from keras import ops

from roformer_tf.kernels.forms import Tensor


def sequence_losses(
    emissions: Tensor, labels: Tensor, start: Tensor, transitions: Tensor, end: Tensor
) -> Tensor:
    """−log p of the labels of each sequence in nats, divided evenly among its labelled tokens.

    emissions (B, T, C) float32; labels (B, T) int: −1 for a skipped token, 0 to C − 1, and on
    tokens without a label C for the beginning of a text and C + 1 for its end; start (C,),
    transitions (C, C) from label to next label, end (C,) float32 → (B, T) float32. A sequence
    without C (or C + 1) is a part of a text, and the score of its start (or end) is not added.

    No loop is differentiated, which XLA cannot do on TensorFlow, because the gradient is known: the
    expected value minus the label, for each emission and transition. It is attached as a term that
    is linear in them and has the value 0.
    """
    fixed = [ops.stop_gradient(x) for x in (emissions, start, transitions, end)]
    losses, (to_emissions, *to_weights) = _losses_and_gradients(labels, *fixed)
    linear = ops.sum(to_emissions * emissions, axis=(1, 2))  # (B,)
    for gradient, weights in zip(to_weights, (start, transitions, end), strict=True):
        linear += ops.sum(gradient * weights, axis=tuple(range(1, len(gradient.shape))))
    losses = losses + (linear - ops.stop_gradient(linear))
    labelled = ops.cast(_labelled(labels, emissions.shape[-1]), losses.dtype)  # (B, T)
    return labelled * (losses / ops.maximum(ops.sum(labelled, axis=1), 1))[:, None]


def _losses_and_gradients(
    labels: Tensor, emissions: Tensor, start: Tensor, transitions: Tensor, end: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """−log p of each sequence (B,), and its gradients with respect to the last four arguments."""
    count = emissions.shape[-1]
    labelled = _labelled(labels, count)[..., None]  # (B, T, 1)
    # 1 if the sequence has the beginning (or end) of its text, 0 if it was cut there.
    opens = ops.cast(ops.any(labels == count, axis=1), emissions.dtype)[:, None]  # (B, 1)
    closes = ops.cast(ops.any(labels == count + 1, axis=1), emissions.dtype)[:, None]
    gold = ops.cast(labelled, emissions.dtype) * ops.one_hot(labels, count, dtype=emissions.dtype)
    begins, ends = opens * start, closes * end  # (B, C)

    forward, seen, total = _forward(emissions, gold, labelled, begins, transitions)
    backward = _backward(emissions, labelled, transitions, ends)
    last, last_gold = forward[:, -1], seen[:, -1]
    # Skipped tokens pass messages on unchanged, so the last token of the array has the message
    # of the last labelled token, also if padding follows it.
    at_end = ops.softmax(last + ends)
    # Before each token: the message and the label of the last labelled token.
    forward_before, gold_before = _shifted(forward), _shifted(seen)
    # No label was seen before it, so that `start` applies instead of a transition.
    first = labelled & ~ops.any(gold_before > 0, axis=-1, keepdims=True)  # (B, T, 1)
    after_one = ops.cast(labelled & ~first, emissions.dtype)[..., None]  # (B, T, 1, 1)

    # p(y_t = c | x). The forward message of t includes its emission, the backward one does not.
    # Both are known up to a constant, which the softmax removes.
    expected = ops.where(labelled, ops.softmax(forward + backward), 0)  # (B, T, C)
    # p(y_{t−1} = a, y_t = b | x) for neighbouring labelled tokens, however many tokens are skipped
    # between them.
    pairs = (
        forward_before[..., :, None]
        + transitions
        + (emissions + backward)[..., None, :]  # (B, T, from C, to C)
    )
    pairs = after_one * ops.exp(pairs - ops.logsumexp(pairs, axis=(2, 3), keepdims=True))
    gold_pairs = gold_before[..., :, None] * gold[..., None, :]  # 0 at the first
    to_emissions = expected - gold
    to_transitions = ops.sum(pairs - gold_pairs, axis=1)  # (B, C, C)
    to_start = opens * ops.sum(ops.where(first, to_emissions, 0), axis=1)  # (B, C)
    # A sequence without any label has a loss and gradients of 0.
    some = ops.cast(ops.any(labelled, axis=1), emissions.dtype)  # (B, 1)
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
    emissions: Tensor, gold: Tensor, labelled: Tensor, begins: Tensor, transitions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalized messages from the left, the last label so far, (B, T, C) each; log-norm (B,)."""
    count = emissions.shape[-1]

    def step(carry: tuple[Tensor, Tensor, Tensor], at: Tensor) -> Any:
        message, label, total = carry
        scores, own, has_label = at[:, :count], at[:, count:-1], at[:, -1:] > 0
        # `label` is the one-hot vector of the last label; before the first one it is all 0.
        begun = ops.any(label > 0, axis=-1, keepdims=True)
        # Sum over the previous label: (B, from C, to C) → (B, C).
        into = ops.logsumexp(message[:, :, None] + transitions, axis=1)
        new = ops.where(begun, into, begins) + scores
        # Messages are normalized at each token. The sum of the logarithms removed, `total`, is what
        # log Σ exp score lacks at the end.
        size = ops.logsumexp(new, axis=-1, keepdims=True)
        carry = (
            ops.where(has_label, new - size, message),
            ops.where(has_label, own, label),
            total + ops.where(has_label, size, 0)[:, 0],
        )
        return carry, carry

    nothing = ops.zeros_like(emissions[:, 0])
    start = (nothing, nothing, nothing[:, 0])
    (*_, total), (messages, labels, _) = ops.scan(step, start, _by_token(emissions, gold, labelled))
    return ops.swapaxes(messages, 0, 1), ops.swapaxes(labels, 0, 1), total


def _backward(emissions: Tensor, labelled: Tensor, transitions: Tensor, ends: Tensor) -> Tensor:
    """Messages from the right, up to a constant: (B, T, C)."""

    def step(message: Tensor, at: Tensor) -> Any:
        scores, has_label = at[:, :-1], at[:, -1:] > 0
        new = ops.logsumexp(transitions + (scores + message)[:, None, :], axis=2)
        # Only differences between labels matter here, so any number that keeps exp finite will do:
        # not the maximum, which Keras refuses for an empty batch.
        new = new - ops.logsumexp(new, axis=-1, keepdims=True)
        message = ops.where(has_label, new, message)
        return message, message

    _, messages = ops.scan(step, ends, ops.flip(_by_token(emissions, labelled), axis=0))
    messages = ops.swapaxes(ops.flip(messages, axis=0), 0, 1)
    # A token receives the message of the next token, the last one that of the end.
    return ops.concatenate([messages[:, 1:], ends[:, None]], axis=1)


def _by_token(*arrays: Tensor) -> Tensor:
    """Concatenate arrays (B, T, …) for a loop over tokens: (T, B, …) float32.

    With several arrays, Keras' scan (3.15) fails on TensorFlow if T is unknown.
    """
    concatenated = ops.concatenate([ops.cast(x, "float32") for x in arrays], axis=-1)
    return ops.swapaxes(concatenated, 0, 1)


def _labelled(labels: Tensor, count: int) -> Tensor:
    """Which tokens have a label: (B, T) bool."""
    return (labels >= 0) & (labels < count)


def _shifted(x: Tensor) -> Tensor:
    """The values of the previous token: (B, T, C), 0 for the first."""
    return ops.concatenate([ops.zeros_like(x[:, :1]), x[:, :-1]], axis=1)
