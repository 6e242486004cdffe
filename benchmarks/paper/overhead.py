"""Cost of rotation in a training step: rotary, learned and no positions in turn, in one process."""

import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from roformer_tf.config import RoFormerConfig

# The released small size, with the demo's vocabulary.
SIZE = RoFormerConfig(
    vocab_size=20_000,
    hidden_size=384,
    num_hidden_layers=6,
    num_attention_heads=6,
    intermediate_size=1536,
)
BATCH, LENGTH, MASKED, ROUNDS = 8, 512, 76, 9
KINDS = ("none", "learned", "rotary")


def overhead_table() -> Iterator[str]:
    """Yield lines with a step's time (median, minimum, maximum) and its ratio to no positions."""
    from roformer_tf.kernels.forms import plain_forms

    yield f"a step of {BATCH} rows of {LENGTH}, 6 layers of 384, bfloat16; medians of {ROUNDS}"
    for forms, scope in (("fast forms", nullcontext), ("plain forms", plain_forms)):
        with scope():
            steps = {kind: _step(kind) for kind in KINDS}
            times: dict[str, list[float]] = {kind: [] for kind in KINDS}
            for number in range(ROUNDS + 2):  # the first two rounds compile and warm up
                for kind, step in steps.items():
                    began = time.perf_counter()
                    step()
                    if number > 1:
                        times[kind].append(time.perf_counter() - began)
        without = statistics.median(times["none"])
        for kind, actual in times.items():
            ratios = [item / base for item, base in zip(actual, times["none"], strict=True)]
            yield (
                f"  {forms:12}{kind:9}{1000 * statistics.median(actual):7.0f} ms "
                f"({1000 * min(actual):.0f} to {1000 * max(actual):.0f})  "
                f"{statistics.median(actual) / without:.3f} of none, round by round "
                f"{min(ratios):.3f} to {max(ratios):.3f}"
            )


def _step(kind: str) -> Any:
    """Return a function that runs one training step of `pretrain`."""
    import keras

    from roformer_tf.models.heads import RoFormerForMaskedLM
    from roformer_tf.pretraining.settings import StepConfig
    from roformer_tf.pretraining.train_step import MaskedTokenLoss, PretrainingModel
    from roformer_tf.training.devices import choose_jit
    from roformer_tf.training.optimizers import make_optimizer
    from roformer_tf.training.settings import OptimizerConfig

    keras.utils.set_random_seed(0)
    model = RoFormerForMaskedLM(SIZE.replace(position_embedding_type=kind), dtype="mixed_bfloat16")
    trained = PretrainingModel(model, StepConfig())
    optimizer = make_optimizer(OptimizerConfig(), model.trainable_variables, 1000)
    trained.compile(optimizer, MaskedTokenLoss(), jit_compile=choose_jit())
    rng = np.random.default_rng(0)
    shape, masked = (BATCH, LENGTH), (BATCH, MASKED)
    labels = rng.integers(1, SIZE.vocab_size, masked, np.int32)
    inputs = {
        "labels": labels,
        "token_ids": rng.integers(1, SIZE.vocab_size, shape, np.int32),
        "sequence_ids": np.sort(rng.integers(1, 3, shape, np.int32)),
        "masked_positions": np.sort(rng.integers(1, LENGTH - 1, masked, np.int32)),
    }
    weights = np.ones(masked, np.float32)
    return lambda: trained.train_on_batch(inputs, labels, weights)
