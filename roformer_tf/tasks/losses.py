"""Losses of logits and of vectors, in float32 operations of Keras, which is imported when called.

Losses of logits (axes: … sequences or tokens, C logits) return a loss for each sequence or token.
Losses of vectors (B examples, S texts of an example, H features, C candidates) compare a whole
batch. Vectors are the pooling's output; their lengths count only in `classifier_features`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from roformer_tf.errors import check_numbers
from roformer_tf.tasks import keras_ops as ops

# A tensor of the running backend, a Keras tensor or a NumPy array.
Tensor: TypeAlias = Any

# A logit whose probability is 0.
FAR_BELOW = -1e30
# Factor of cosines before a softmax: a temperature of 0.05.
SCALE = 20.0
# Subtracted from the scores of what must not count in a softmax, as in bert4keras and
# sentence-transformers.
FAR = 1e12
# Of a teacher: the temperature of both models' probabilities, and the weight of their divergence
# in the loss of a labelled example.
TEMPERATURE = 2.0
TEACHER_WEIGHT = 0.5
# As a teacher: its predictions are in the files.
COLUMNS = "columns"


@dataclass(frozen=True)
class LossConfig:
    """Changes of the loss for few, unequal or doubtful examples."""

    label_smoothing: float = 0.0
    """Fraction of a label's probability that is spread evenly over all labels, such as 0.1."""
    focal: float = 0.0
    """Exponent of the focal loss, such as 2: examples that are right already count less."""
    class_weights: Literal["none", "balanced"] = "none"
    """"balanced": all examples of a rare label count as much as all of a frequent one."""
    r_drop: float = 0.0
    """R-Drop: weight of the divergence of two passes with different dropout, such as 1. Doubles the
    time."""
    fgm: float = 0.0
    """FGM: length of an adversarial step of the word embeddings, such as 0.5. Each batch is
    computed before and after the step, which doubles the time."""
    teacher: Annotated[str | None, "MODEL"] = None
    """Distillation: a fine-tuned model of the same task and labels, whose probabilities are targets
    besides the labels: half of the loss is the divergence from them at a temperature of 2.
    "columns": they are in --train already, in the columns that `predict` writes. For paraphrases:
    any model with vectors; its cosines between the texts replace the softmax over a batch, the
    second stage of RoFormer-Sim."""

    def __post_init__(self) -> None:
        check_numbers(self, "label_smoothing", at_least=0, below=1)
        check_numbers(self, "focal", "r_drop", "fgm", at_least=0)

    @property
    def balanced(self) -> bool:
        """Whether there are class weights."""
        return self.class_weights == "balanced"


PLAIN = LossConfig()


@dataclass(frozen=True)
class VectorConfig:
    """Training of sentence vectors, for the tasks that have them."""

    loss: Literal["auto", "softmax", "cosent", "classifier"] = "auto"
    """For vectors: "softmax" over the cosines of a batch, times 20, if texts match each other;
    "cosent" if pairs have scores; "classifier" for RoFormer-Sim's supervised form, which predicts
    the score from [a, b, |a - b|]. Default: softmax or cosent, depending on the data."""
    hard_negatives: int = 0
    """For vectors: additional negatives for each example, besides the texts of its batch: those
    with the most similar vectors that do not match it. For reranking: wrong documents for each
    query, the first ones of the search; 0 means 7."""
    dimensions: tuple[int, ...] = ()
    """For vectors: sizes to which they may be cut later, such as 64 128 256. The full size is
    always trained, too."""
    micro_batches: int = 1
    """For vectors: parts in which a batch is encoded, one after the other and twice, for batches
    that do not fit into memory. The gradient is that of the whole batch."""

    def __post_init__(self) -> None:
        check_numbers(self, "hard_negatives", at_least=0)
        check_numbers(self, "micro_batches", at_least=1)


def softmax_losses(
    labels: Tensor,
    logits: Tensor,
    config: LossConfig = PLAIN,
    class_weights: Sequence[Any] | None = None,
) -> Tensor:
    """Cross-entropy of labels (…) or (…, 1) and logits (…, C): (…).

    The focal loss is this times (1 − p)^focal, where p is the label's probability
    (arXiv 1708.02002).
    """
    classes = logits.shape[-1]
    labels = labels[..., 0] if len(labels.shape) == len(logits.shape) else labels
    chosen = ops.one_hot(ops.cast(labels, "int32"), classes, dtype=logits.dtype)  # (…, C)
    wanted = (1 - config.label_smoothing) * chosen + config.label_smoothing / classes
    losses = -ops.sum(wanted * ops.log_softmax(logits), axis=-1)
    if config.focal:
        # Through log (1 − p), because the gradient of (1 − p)^focal may be infinite at p = 1.
        rest = ops.where(chosen > 0, FAR_BELOW, logits)
        log_rest = ops.logsumexp(rest, axis=-1) - ops.logsumexp(logits, axis=-1)
        losses = losses * ops.exp(config.focal * log_rest)
    if class_weights is not None:
        losses = losses * ops.sum(chosen * ops.array(class_weights, "float32"), axis=-1)
    return losses


def sigmoid_losses(
    targets: Tensor,
    logits: Tensor,
    config: LossConfig = PLAIN,
    class_weights: Sequence[Any] | None = None,
) -> Tensor:
    """Cross-entropy of targets 0 and 1 (…, C) and logits (…, C), mean over the C: (…).

    Smoothing moves a target towards ½. `class_weights` (C, 2): weights of each label's 0 and 1.
    """
    targets = ops.cast(targets, "float32")
    wanted = (1 - config.label_smoothing) * targets + config.label_smoothing / 2
    losses = ops.binary_crossentropy(wanted, logits, from_logits=True)
    if config.focal:
        # log (1 − p) of the target's probability p is the log-sigmoid of the opposite logit.
        losses = losses * ops.exp(config.focal * ops.log_sigmoid((1 - 2 * targets) * logits))
    if class_weights is not None:
        weights = ops.array(class_weights, "float32")
        losses = losses * (weights[:, 0] + (weights[:, 1] - weights[:, 0]) * targets)
    return ops.mean(losses, axis=-1)


def span_losses(targets: Tensor, logits: Tensor, *settings: Any) -> Tensor:
    """Cross-entropy of the first and the last token of a span, mean of both: (B,).

    logits (B, T, 2), targets (B, T, 2) int: 2 for right tokens, 1 for other possible ones, 0 for
    the rest. The probability of several right tokens is their sum. The settings, as in
    `softmax_losses`, are for labels: they do not count.
    """
    possible = ops.where(targets > 0, logits, FAR_BELOW)
    right = ops.where(targets > 1, logits, FAR_BELOW)
    # Padding has no possible token: both terms are equal, and the loss is 0.
    losses = ops.logsumexp(possible, axis=1) - ops.logsumexp(right, axis=1)
    return ops.mean(losses, axis=-1)


def squared_errors(targets: Tensor, logits: Tensor, *settings: Any) -> Tensor:
    """Squared distance of targets (…, 1) and logits (…, 1): (…). Settings as in `span_losses`."""
    return ops.mean(ops.square(ops.cast(targets, "float32") - logits), axis=-1)


def softmax_divergence(logits: Tensor, other: Tensor) -> Tensor:
    """KL(p‖q) + KL(q‖p) of the distributions p, q of two logits (…, C): (…)."""
    # Σ (p − q)(log p − log q) = Σ (p − q)(logits − other): normalizers cancel, as Σ (p − q) = 0.
    return ops.sum((ops.softmax(logits) - ops.softmax(other)) * (logits - other), axis=-1)


def sigmoid_divergence(logits: Tensor, other: Tensor) -> Tensor:
    """The same for C independent probabilities; the mean over C, as in their loss."""
    return ops.mean((ops.sigmoid(logits) - ops.sigmoid(other)) * (logits - other), axis=-1)


def number_divergence(logits: Tensor, other: Tensor) -> Tensor:
    """The same for numbers (…, 1), as means of normal distributions."""
    # The squared error is the log-likelihood of a normal distribution of variance ½. The divergence
    # of two of these is 2 · difference².
    return 2 * ops.mean(ops.square(logits - other), axis=-1)


def softmax_distillation(teacher: Tensor, logits: Tensor) -> Tensor:
    """T² · KL(p‖q) of the distributions p, q of two logits (…, C), each divided by T: (…).

    T is `TEMPERATURE`. T² because the gradient of the divergence shrinks by it (Hinton et al.,
    arXiv 1503.02531, section 2). The entropy of p, which that paper's cross-entropy also has, has
    no gradient.
    """
    log_p, log_q = (ops.log_softmax(x / TEMPERATURE) for x in (teacher, logits))
    return TEMPERATURE**2 * ops.sum(ops.exp(log_p) * (log_p - log_q), axis=-1)


def sigmoid_distillation(teacher: Tensor, logits: Tensor) -> Tensor:
    """The same for C independent probabilities; the mean over C, as in their loss."""
    p, q = teacher / TEMPERATURE, logits / TEMPERATURE
    # KL = p (log p − log q) + (1 − p) (log (1 − p) − log (1 − q)), and log (1 − σ(x)) = log σ(−x).
    yes = ops.sigmoid(p) * (ops.log_sigmoid(p) - ops.log_sigmoid(q))
    no = ops.sigmoid(-p) * (ops.log_sigmoid(-p) - ops.log_sigmoid(-q))
    return TEMPERATURE**2 * ops.mean(yes + no, axis=-1)


def mixed(losses: Tensor, soft: Tensor, share: Tensor) -> Tensor:
    """The mean of the usual losses and the divergence from a teacher, of weight `share`."""
    return (1 - share) * losses + share * soft


def unit(vectors: Tensor) -> Tensor:
    """Vectors of length 1, whose products are cosines; a vector of 0 stays 0."""
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    # A length of at least 1e−12, squared.
    return vectors * ops.rsqrt(ops.maximum(squares, 1e-24))


def in_batch_softmax(targets: Tensor, vectors: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy of the right candidate for each first text, from cosines × 20: a scalar.

    vectors (B, S, H): anchors, the text that belongs to each, and negatives. All texts of the batch
    except the anchors are candidates: C = (S − 1) B. targets (B, C) int: 1 for an anchor's own
    candidate, 0 for negatives, below 0 for what does not count. weights (B,) of the anchors.
    """
    sides = unit(vectors)
    # Second texts come first, then third ones: candidate i is the positive of anchor i.
    candidates = ops.reshape(ops.transpose(sides[:, 1:], (1, 0, 2)), (-1, vectors.shape[-1]))
    scores = SCALE * ops.matmul(sides[:, 0], ops.transpose(candidates))  # (B, C)
    return _contrastive(targets, scores, weights)


def _contrastive(targets: Tensor, scores: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean cross-entropy of scores (B, C), for targets as in `in_batch_softmax`."""
    # Each anchor has exactly one target above 0, so the sum selects its score.
    right = ops.sum(ops.where(targets > 0, scores, 0.0), axis=1)
    losses = ops.logsumexp(ops.where(targets < 0, -FAR, scores), axis=1) - right
    return _weighted_mean(losses, weights)


def listwise_softmax(targets: Tensor, scores: Tensor, weights: Tensor) -> Tensor:
    """Cross-entropy of distributions over the candidates of each example: a scalar.

        −Σ p_c · log softmax(scores)_c      (ListNet's top-one loss, Cao et al., 2007)

    targets (B, C): p, below 0 for what is no candidate; scores (B, C), weights (B,). With a teacher
    targets are (B, C, 3): p, the teacher's logit, and the weight of `softmax_distillation`.
    """
    taught = len(targets.shape) > 2
    right = targets[..., 0] if taught else targets
    scores = ops.where(right < 0, -FAR, scores)
    losses = -ops.sum(ops.where(right > 0, right * ops.log_softmax(scores), 0.0), axis=1)
    if taught:
        teacher = ops.where(right < 0, -FAR, targets[..., 1])
        losses = mixed(losses, softmax_distillation(teacher, scores), targets[:, 0, 2])
    return _weighted_mean(losses, weights)


def mean_log_probabilities(logits: Tensor, row_index: Tensor, tokens: Tensor) -> Tensor:
    """Mean log-probability of candidates' tokens in the rows that have masks for them.

    logits (D, P, V), row_index (B, C, R) the rows of each candidate, tokens (B, C, P), 0 beyond its
    own → (B, C, R); 0 for a candidate without tokens.
    """
    positions, vocabulary = ops.shape(logits)[1], logits.shape[2]
    flat = ops.reshape(ops.log_softmax(logits), (-1,))
    # The index of [row, position, token] in the flat array.
    # Beyond a candidate's own tokens the id is 0: what the lookup reads there is dropped.
    starts = row_index[..., None] * positions + ops.arange(positions, dtype="int32")  # (B, C, R, P)
    logarithms = ops.take(flat, starts * vocabulary + tokens[:, :, None])
    counts = ops.cast(tokens > 0, "float32")[:, :, None]  # (B, C, 1, P)
    total = ops.sum(logarithms * counts, axis=-1)
    return total / ops.maximum(ops.sum(counts, axis=-1), 1.0)


def _weighted_mean(losses: Tensor, weights: Tensor) -> Tensor:
    """Mean of losses; 0 if all weights are, as in a batch of padding."""
    return ops.sum(losses * weights) / ops.maximum(ops.sum(weights), 1.0)


def cosent(targets: Tensor, vectors: Tensor, weights: Tensor) -> Tensor:
    """CoSENT (Su Jianlin, kexue.fm, 8847): a scalar.

        log(1 + Σ exp(20 (cos_i − cos_j)))   over all pairs with score_i < score_j

    vectors (B, 2, H), targets (B,) scores; an example of weight 0 is in no pair.
    """
    sides = unit(vectors)
    scores = SCALE * ops.sum(sides[:, 0] * sides[:, 1], axis=-1)  # (B,)
    counts = weights > 0
    # [i, j]: pair j has the higher score, so it should have the higher cosine, too.
    ordered = (targets[:, None] < targets[None, :]) & counts[:, None] & counts[None, :]
    differences = ops.where(ordered, scores[:, None] - scores[None, :], -FAR)
    # The 1 of log(1 + Σ exp …) is one more term, exp 0.
    return ops.logsumexp(ops.pad(ops.reshape(differences, (-1,)), [(1, 0)]))


def classifier_features(vectors: Tensor) -> Tensor:
    """[a, b, |a − b|] of pairs, not normalised: (B, 2, H) → (B, 3H)."""
    a, b = vectors[:, 0], vectors[:, 1]
    return ops.concatenate([a, b, ops.abs(a - b)], axis=-1)


def classes(targets: Tensor, logits: Tensor, weights: Tensor) -> Tensor:
    """Mean cross-entropy of classes: targets (B,) int32, logits (B, K), weights (B,) → scalar."""
    losses = ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)
    return _weighted_mean(losses, weights)


def neighbours(targets: Tensor, vectors: Tensor, weights: Tensor) -> Tensor:
    """Stage 1 of RoFormer-Sim: each vector's partner among all others, cosines × 20: a scalar.

    vectors (R, H), of which 2i and 2i + 1 mean the same; targets (R, R) as in `in_batch_softmax`,
    below 0 on the diagonal; weights (R,).
    """
    sides = unit(vectors)
    return _contrastive(targets, SCALE * ops.matmul(sides, ops.transpose(sides)), weights)


def distilled(targets: Tensor, vectors: Tensor, weights: Tensor) -> Tensor:
    """Stage 2 of RoFormer-Sim: 100 · mean((cosines − a teacher's)²) of all pairs: a scalar.

    vectors (R, H), targets (R, R) the teacher's cosines, weights (R,).
    """
    sides = unit(vectors)
    errors = ops.square(ops.matmul(sides, ops.transpose(sides)) - targets)
    return 100 * _weighted_mean(errors, weights[:, None] * weights[None, :])


def second_texts(losses: Tensor, segment_ids: Tensor) -> Tensor:
    """Mean loss of the tokens of segment 1, each predicted from those before it: a scalar.

    losses (R, T): at each position the loss of the next token; segment_ids (R, T), 0 for padding.
    """
    return _weighted_mean(losses[:, :-1], ops.cast(segment_ids[:, 1:], "float32"))
