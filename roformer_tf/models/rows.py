"""Rows of any lengths → what a model gives for each, in batches with little padding.

Row lengths 500, 9, 130, 12 → (1, 504), (1, 136), (2, 16): longest first, rows of like length
together, and no more tokens at once than the processor's caches bear.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.tokenizers.padding import Ints, bucket, padded

Forward: TypeAlias = Callable[[dict[str, np.ndarray]], Any]
"""{"token_ids": (B, T), "segment_ids": (B, T)} int32 → (B, …), or (B, T, …) for each token."""

BATCH_SIZE = 32
STEP = 8
"""Lengths are multiples of it: whole vectors, and fewer shapes for the libraries to remember."""
ACCELERATED = 16_384
"""Tokens of a batch that keep a GPU or TPU busy. A processor's caches hold fewer."""


class Runner(NamedTuple):
    """A model, and the batches that it is fastest with."""

    run: Forward
    tokens: int = 1024
    """Of a batch, padding included; rows of more come alone."""
    compiled: bool = False
    """Whether every new shape is compiled, so that there should be few."""
    step: int = STEP
    """Lengths of batches are multiples of it; 1 where padding is work like any other."""


def runner(model: Any) -> Runner:
    """How to run a Keras model on the device at hand; another `Forward` is a processor's.

    A graph (`engines.model.GraphModel`) knows itself what batches it is fastest with.

    TensorFlow makes a plan for the first shape of a batch, and then one or two others, which
    serve for all shapes; XLA, which Keras chooses on a GPU, would compile each for seconds.
    """
    if not hasattr(model, "predict_on_batch"):
        tokens, step = getattr(model, "tokens", Runner(model).tokens), getattr(model, "step", STEP)
        return Runner(model, tokens, step=step)
    import keras

    if keras.backend.backend() == "tensorflow":
        say_nothing_of_plans()
        if not model.compiled:
            model.jit_compile = False
    run = Runner(model.predict_on_batch, compiled=model.jit_compile)
    accelerated = not all(name.startswith("cpu") for name in keras.distribution.list_devices())
    return run._replace(tokens=ACCELERATED) if accelerated else run


def say_nothing_of_plans() -> None:
    """From now on, have TensorFlow not warn that Keras' prediction meets new shapes or models."""
    logging.getLogger("tensorflow").addFilter(_is_no_word_of_plans)


def _is_no_word_of_plans(record: logging.LogRecord) -> bool:
    """Whether TensorFlow tells something else than that Keras' prediction has new shapes again.

    It counts them over all models of a process, and after five gives advice on loops.
    """
    message = record.getMessage()
    return not ("triggered tf.function retracing" in message and "predict" in message)


def run_rows(
    model: Any,
    token_ids: Sequence[Any],
    segment_ids: Sequence[Any] | None = None,
    batch_size: int = BATCH_SIZE,
) -> list[np.ndarray]:
    """What a model gives for each row, in the order of the rows, padding cut off.

    model: a Keras model or another `Forward`; token_ids and segment_ids (default 0): for each row
    (T,) int → (…), or (T, …) where the model answers for each token. At most `batch_size` rows go
    together.
    """
    ids = [np.asarray(row, np.int32) for row in token_ids]
    if segment_ids is None:
        segment_ids = [np.zeros_like(row) for row in ids]
    segments = [np.asarray(row, np.int32) for row in segment_ids]
    answers: list[Any] = [None] * len(ids)
    with_model = runner(model)
    for rows, shape in batches([len(row) for row in ids], with_model, batch_size):
        inputs = {
            "token_ids": padded([ids[row] for row in rows], shape),
            "segment_ids": padded([segments[row] for row in rows], shape),
        }
        for row, answer in zip(rows, np.asarray(with_model.run(inputs)), strict=False):
            answers[row] = answer[: len(ids[row])] if answer.ndim > 1 else answer
    return answers


def check_finite(outputs: Iterable[Any]) -> None:
    """Raise InputError where a model's outputs, an array for each text, are not all finite.

    To be called where they become results. Weights are checked when a checkpoint is read; but
    those of an exported graph are not, and products may overflow in a narrow dtype.
    """
    for number, output in enumerate(outputs):
        if not np.isfinite(output).all():
            raise InputError(
                f"the model's output for text {number + 1:,} is not finite: its weights are "
                "damaged, its training has diverged, or its precision is too low. Give another "
                "model, or float32."
            )


def batches(
    lengths: Sequence[int], runner: Runner, batch_size: int = BATCH_SIZE
) -> Iterator[tuple[Ints, tuple[int, int]]]:
    """Numbers of the rows of each batch, the longest first, and the shape to pad them to.

    Where shapes are compiled, lengths are buckets, and a batch that is not full has a power of two
    of rows, the last ones empty.
    """
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    while len(order):
        longest = int(lengths[order[0]])
        step = runner.step
        length = bucket(longest) if runner.compiled else -(-longest // step) * step
        full = max(1, min(batch_size, runner.tokens // length))
        rows, order = order[:full], order[full:]
        filled = 1 << (len(rows) - 1).bit_length() if runner.compiled else len(rows)
        yield rows, (min(full, filled), length)
