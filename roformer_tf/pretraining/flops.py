"""What a step of pretraining costs, in floating-point operations.

Neither Keras nor a backend is loaded.
"""

import math
from typing import Any

from roformer_tf.checkpoints.names import table
from roformer_tf.config import RoFormerConfig, block_length
from roformer_tf.corpus.masking import predictions_per_row
from roformer_tf.pretraining.stages import Stage


def step_flops(
    config: RoFormerConfig,
    length: int,
    batch_size: int,
    predictions: int,
    keys: float | None = None,
) -> float:
    """Operations that a step needs at least, a multiplication and an addition counting as two.

    For `batch_size` rows of `length` tokens of which `predictions` are predicted. Forward 2 · P a
    token for the P weights of the layers' matrices, 4 · L · H · T a token for scores and their use;
    backward twice that: 6 · P + 12 · L · H · T. In the last layer only keys and values are counted
    for all tokens; the rest, and the head, for the predicted ones alone, as the model computes
    them. A causal language model predicts all of them: `predictions` is `length` then. What its
    mask hides counts, too, since the products are computed whole, unless `keys` says how many a
    query looks at in the mean, T by itself. A local layer's scores are those of its blocks, and the
    last one, if it is local, attends at all tokens, too. Lookups, norms, activations and what
    rematerialisation computes again do not count.
    """
    hidden, embedding = config.hidden_size, config.embedding_size
    projection = 6 * embedding * hidden if embedding != hidden else 0
    transform = 0 if config.is_v2 else 6 * hidden * embedding
    row = float(length * projection)
    row += predictions * (transform + 6 * embedding * config.vocab_size)
    for layer in range(config.num_hidden_layers):
        answers = length if layer < config.num_hidden_layers - 1 else predictions
        if local := config.is_local(layer):
            seen, queries = _keys_in_blocks(config, length), length
        else:
            seen, queries = float(length), answers
        if keys is not None:
            seen = min(keys, 2 * config.window + 1) if local else keys
        row += 6 * 2 * hidden**2 * length  # keys and values
        row += (6 * 2 * hidden**2 + 12 * hidden * seen) * queries
        row += 6 * 2 * hidden * config.intermediate_size * answers
    return batch_size * row


def _keys_in_blocks(config: RoFormerConfig, length: int) -> float:
    """Keys that a local layer multiplies a query by: `kernels/local_attention.py` fills blocks."""
    block = block_length(config.window)
    beside = 2 if config.attention_type == "causal" else 3
    return math.ceil(length / block) * block * beside * block / length


def stage_flops(settings: Any, stage: Stage, architecture: RoFormerConfig) -> float:
    """Operations of one step of a stage; `settings` are those of `pretrain`."""
    predicted = stage.length
    if settings.objective == "masked":
        predicted = predictions_per_row(stage.length, settings.masking.mask_rate)
    else:
        architecture = architecture.replace(attention_type="causal")
    return step_flops(architecture, stage.length, stage.batch_size, predicted)


def parameters(config: RoFormerConfig) -> int:
    """Count the weights of a language model: encoder, and the head that scores the vocabulary."""
    sizes = {weight.name: weight.shape for weight in table(config) if weight.part in _PARTS}
    return sum(math.prod(shape) for shape in sizes.values())


_PARTS = ("encoder", "mlm")
