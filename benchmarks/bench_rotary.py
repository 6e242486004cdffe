"""The rotation as it runs, beside the paper's form: one call forward and backward.

    python benchmarks/bench_rotary.py

Alternated rounds in one process, 8 × 512 tokens, 6 heads of 64, TensorFlow without XLA.
"""

import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from roformer_tf.layers.rotary import rotate, rotate_as_in_the_paper

ROUNDS = 20


def compiled(function: Callable[..., tf.Tensor]) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Make a graph of the call and its gradient."""

    @tf.function
    def call(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x, tf.range(x.shape[1]))
        return tape.gradient(y, x, upstream)

    return call


def seconds(call: Callable[..., tf.Tensor], *arguments: tf.Tensor) -> float:
    """Time one call, its result fetched."""
    began = time.perf_counter()
    call(*arguments).numpy()
    return time.perf_counter() - began


def main() -> None:
    """Print the median of each form and their ratio."""
    calls = {"paper": compiled(rotate_as_in_the_paper), "ours": compiled(rotate)}
    print(f"{os.cpu_count()} cores, TensorFlow {tf.__version__}, {ROUNDS} rounds")
    for dtype in ("float32", "bfloat16"):
        x, upstream = (tf.cast(tf.random.normal((8, 512, 6, 64)), dtype) for _ in range(2))
        for call in calls.values():
            seconds(call, x, upstream)  # tracing
        times = [[seconds(call, x, upstream) for call in calls.values()] for _ in range(ROUNDS)]
        paper, ours = np.median(times, axis=0) * 1e3
        print(f"{dtype:9} paper {paper:5.1f} ms   ours {ours:5.1f} ms   ratio {paper / ours:.2f}")


if __name__ == "__main__":
    main()
