"""Sequences of any lengths → the model's output for each, in batches with little padding.

Lengths 500, 9, 130, 12 → batches (1, 504), (1, 136), (2, 16): the longest first, those of similar
length together, and no more tokens in a batch than the caches of a CPU hold.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.errors import DamagedError
from roformer_tf.tokenizers.padding import Ints, bucket, padded

# {"token_ids": (B, T), "segment_ids": (B, T)} int32 → (B, …), or (B, T, …) for each token.
Forward: TypeAlias = Callable[[dict[str, np.ndarray]], Any]

BATCH_SIZE = 32
# Lengths of batches are multiples of it: whole vectors, and few shapes in libraries' caches.
STEP = 8
# Tokens of a batch that keep a GPU or TPU busy.
ACCELERATED = 16_384


class Runner(NamedTuple):
    """A model, and the sizes of batches that are fastest."""

    run: Forward
    tokens: int = 1024
    """Tokens of a batch with padding; a longer sequence is a batch of its own."""
    compiled: bool = False
    """Whether every new shape is compiled, so that there should be few shapes."""
    step: int = STEP
    """Lengths of batches are multiples of it."""


def runner(model: Any) -> Runner:
    """How to run a Keras model on its device, or a graph (`engines.model.GraphModel`) on the CPU.

    TensorFlow traces for the first shape of a batch, and once or twice more for all others; XLA,
    which Keras chooses on a GPU, would compile each shape for seconds.
    """
    if not hasattr(model, "predict_on_batch"):
        tokens, step = getattr(model, "tokens", Runner(model).tokens), getattr(model, "step", STEP)
        return Runner(model, tokens, step=step)
    import keras

    # If the user has compiled the model, that decides about XLA.
    if keras.backend.backend() == "tensorflow":
        silence_retracing_warnings()
        if not model.compiled:
            model.jit_compile = False
    run = Runner(model.predict_on_batch, compiled=model.jit_compile)
    accelerated = not all(name.startswith("cpu") for name in keras.distribution.list_devices())
    return run._replace(tokens=ACCELERATED) if accelerated else run


def silence_retracing_warnings() -> None:
    """From now on, hide TensorFlow's warnings that Keras' prediction meets new shapes or models."""
    logging.getLogger("tensorflow").addFilter(_is_other_warning)


def _is_other_warning(record: logging.LogRecord) -> bool:
    """Whether a warning is not about retracing by Keras' prediction.

    TensorFlow counts these over all models of a process, and after five warns of loops.
    """
    message = record.getMessage()
    return not ("triggered tf.function retracing" in message and "predict" in message)


def run_rows(
    model: Any,
    token_ids: Sequence[Any],
    segment_ids: Sequence[Any] | None = None,
    batch_size: int = BATCH_SIZE,
    positions: Sequence[Ints] | None = None,
) -> list[np.ndarray]:
    """The model's output for each sequence, in their order; arguments as of `outputs_of_rows`."""
    outputs = dict(outputs_of_rows(model, token_ids, segment_ids, batch_size, positions))
    return [outputs[row] for row in range(len(token_ids))]


def outputs_of_rows(
    model: Any,
    token_ids: Sequence[Any],
    segment_ids: Sequence[Any] | None = None,
    batch_size: int = BATCH_SIZE,
    positions: Sequence[Ints] | None = None,
) -> Iterator[tuple[int, np.ndarray]]:
    """The index of each sequence and the model's output for it, batch by batch, without padding.

    model: a Keras model or another `Forward`. token_ids and segment_ids (default 0): for each
    sequence (T,) int → (…), or (T, …) where the model has an output for each token. batch_size: the
    maximum number of sequences in a batch. positions: for each sequence (k,) int32, if the model
    takes `masked_positions` → (k, V). Logits of all sequences may not fit into memory: tens of
    thousands for each position.
    """
    ids = [np.asarray(row, np.int32) for row in token_ids]
    if segment_ids is None:
        segment_ids = [np.zeros_like(row) for row in ids]
    segments = [np.asarray(row, np.int32) for row in segment_ids]
    # What an output that is not of the whole sequence has a row for.
    each = ids if positions is None else positions
    with_model = runner(model)
    for rows, shape in batches([len(row) for row in ids], with_model, batch_size):
        inputs = {
            "token_ids": padded([ids[row] for row in rows], shape),
            "segment_ids": padded([segments[row] for row in rows], shape),
        }
        if positions is not None:
            masked = [positions[row] for row in rows]
            inputs["masked_positions"] = padded(masked, (shape[0], max(map(len, masked))))
        # Not strict: a batch can have empty sequences after the last one (see `batches`).
        for row, output in zip(rows.tolist(), np.asarray(with_model.run(inputs)), strict=False):
            # One axis, (H,): the output of the whole sequence.
            yield row, output[: len(each[row])] if output.ndim > 1 else output


def check_finite(outputs: Iterable[Any]) -> None:
    """Raise DamagedError where a model's outputs, an array for each text, are not all finite.

    Weights are checked when a checkpoint is read. Those of an exported graph are not, and products
    may overflow in a narrow dtype: so outputs are checked where they are used.
    """
    for number, output in enumerate(outputs):
        if not np.isfinite(output).all():
            raise DamagedError(
                f"the model's output for text {number + 1:,} is not finite: its weights are "
                "damaged, its training has diverged, or its precision is too low. Give another "
                "model, or float32."
            )


def grouped(items: Iterable[Any], key: Callable[[Any], Hashable]) -> dict[Any, list[int]]:
    """The indices of the items that have the same key, by the key."""
    groups: dict[Any, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(key(item), []).append(index)
    return groups


def batches(
    lengths: Sequence[int], runner: Runner, batch_size: int = BATCH_SIZE
) -> Iterator[tuple[Ints, tuple[int, int]]]:
    """Numbers of the sequences of each batch, the longest first, and the shape to pad them to.

    Where shapes are compiled, lengths are buckets, and the size of a batch that is not full is
    rounded up to a power of two by empty sequences.
    """
    # The longest batch first: if memory is too small, it fails at once.
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    while len(order):
        longest = int(lengths[order[0]])
        step = runner.step
        length = bucket(longest) if runner.compiled else -(-longest // step) * step
        full = max(1, min(batch_size, runner.tokens // length))
        rows, order = order[:full], order[full:]
        # 5 sequences → 8, so that a compiled model meets few batch sizes.
        filled = 1 << (len(rows) - 1).bit_length() if runner.compiled else len(rows)
        yield rows, (min(full, filled), length)
