"""The machine's limit: only the matrix products of a case, each in the faster precision."""

import os
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.peers import inputs
from benchmarks.peers.worker import Figures, Prepared, fresh_processes, serve, timed

Call = Callable[[], Any]

# Minimum seconds for which one product is repeated.
MIN_SECONDS = 0.02

# Size of the square product that measures the machine's FLOP/s.
SQUARE = 4096


READ = """
import sys, time, zipfile
began = time.perf_counter()
with zipfile.ZipFile(sys.argv[1]) as archive:
    for name in archive.namelist():
        with archive.open(name) as member:
            while member.read(1 << 20):
                pass
print(0, time.perf_counter() - began, 0)
"""


class Product(NamedTuple):
    """A product of `stack` matrices (rows, inner) by (inner, columns), computed `times` times."""

    times: int
    stack: int
    rows: int
    inner: int
    columns: int

    @property
    def operations(self) -> int:
        """Number of multiplications and additions."""
        return 2 * self.times * self.stack * self.rows * self.inner * self.columns


def products(shape: dict[str, Any], lengths: list[int], predictions: int = 0) -> list[Product]:
    """Return every matrix product that a forward pass over rows of these lengths needs.

    Padding is excluded. With `predictions` of each row scored by the language-model head, the last
    layer is computed only at those positions.
    """
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    tokens, width = sum(lengths), hidden // heads

    def layers(number: int, outputs: int | None) -> list[Product]:
        """Products of `number` layers with output at `there` positions of a row (None: all)."""
        output_tokens = tokens if outputs is None else outputs * len(lengths)
        projections = (
            [Product(number, 1, tokens, hidden, 3 * hidden)]  # queries, keys, values
            if outputs is None
            else [
                Product(number, 1, tokens, hidden, 2 * hidden),
                Product(number, 1, output_tokens, hidden, hidden),
            ]
        )
        attention = [
            Product(number, rows * heads, length if outputs is None else outputs, *sizes)
            for length, rows in Counter(lengths).items()
            for sizes in ((width, length), (length, width))  # queries × keys, weights × values
        ]
        rest = [
            Product(number, 1, output_tokens, hidden, hidden),  # attention's output
            Product(number, 1, output_tokens, hidden, shape["intermediate_size"]),
            Product(number, 1, output_tokens, shape["intermediate_size"], hidden),
        ]
        return projections + attention + rest

    if not predictions:
        return layers(shape["num_hidden_layers"], None)
    scored = predictions * len(lengths)
    head = [
        Product(1, 1, scored, hidden, hidden),
        Product(1, 1, scored, hidden, shape["vocab_size"]),
    ]
    return layers(shape["num_hidden_layers"] - 1, None) + layers(1, predictions) + head


def mlm_step(*, shape: dict[str, Any], batch: int, length: int, predictions: int) -> Prepared:
    """The products of a training step: each forward product and its two gradients."""
    return one_by_one(products(shape, [length] * batch, predictions), calls_of_each=3)


def inference(*, shape: dict[str, Any], texts: str, checkpoint: str) -> Prepared:
    """The products of a forward pass."""
    rows = inputs.rows_of(texts, shape["vocab_size"])
    return one_by_one(products(shape, list(map(len, rows))), calls_of_each=1)


def one_by_one(steps: list[Product], calls_of_each: int) -> Prepared:
    """Run the products one after the other, each in the precision in which it is faster."""

    @cache  # runs in the first round, when no other contender is busy
    def fastest() -> list[list[Call]]:
        both = [
            [calls(step, dtype)[:calls_of_each] for dtype in ("bfloat16", "float32")]
            for step in steps
        ]
        return [min(pair, key=seconds) for pair in both]

    def run(count: int) -> Figures:
        each = (seconds(item) * step.times for item, step in zip(fastest(), steps, strict=True))
        return {"seconds": count * sum(each)}

    return Prepared(run, {"operations": calls_of_each * sum(step.operations for step in steps)})


def startup(*, checkpoint: str) -> Prepared:
    """Read and inflate every member of the zip, and discard the data."""
    return fresh_processes(READ, f"{checkpoint}/tf1.zip")


def square(*, dtype: str) -> Prepared:
    """One product of two large matrices, which measures the machine's FLOP/s."""
    product = Product(1, 1, SQUARE, SQUARE, SQUARE)
    multiply = calls(product, dtype)[0]
    return Prepared(timed(multiply), {"operations": product.operations})


def calls(product: Product, dtype: str) -> list[Call]:
    """Return functions that compute the product and its two gradients."""
    import tensorflow as tf

    stack = (product.stack,) if product.stack > 1 else ()
    a, b, upstream = (
        tf.cast(tf.random.normal((*stack, *shape)), dtype)
        for shape in (
            (product.rows, product.inner),
            (product.inner, product.columns),
            (product.rows, product.columns),
        )
    )
    multiply = tf.function(tf.linalg.matmul)
    return [
        partial(multiply, a, b),
        partial(multiply, upstream, b, transpose_b=True),
        partial(multiply, a, upstream, transpose_a=True),
    ]


def seconds(work: list[Call]) -> float:
    """Return the total time of the calls, each averaged over repetitions after a first call.

    The first call traces the function and is not timed.
    """
    return sum(map(_seconds, work))


def _seconds(call: Call) -> float:
    call()
    began, times = time.perf_counter(), 0
    while time.perf_counter() - began < MIN_SECONDS:
        call()
        times += 1
    return (time.perf_counter() - began) / times


if __name__ == "__main__":
    serve([mlm_step, inference, square, startup], ("tensorflow",))
