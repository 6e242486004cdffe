"""The machine's limit: the matrix products of a case, alone, each in the faster precision."""

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

# Seconds for which one product is repeated.
AT_LEAST = 0.02

# Size of the plain product whose rate stands for the machine.
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
    """`times` products of `stack` matrices (rows, inner) with as many (inner, columns)."""

    times: int
    stack: int
    rows: int
    inner: int
    columns: int

    @property
    def operations(self) -> int:
        """Multiplications and additions of all of them."""
        return 2 * self.times * self.stack * self.rows * self.inner * self.columns


def products(shape: dict[str, Any], lengths: list[int], predictions: int = 0) -> list[Product]:
    """Every matrix product that one forward pass over rows of these lengths needs.

    That is without padding and, with `predictions` of each row scored by a masked language model's
    head, without what the last layer would do at other positions.
    """
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    tokens, width = sum(lengths), hidden // heads

    def layers(number: int, there: int | None) -> list[Product]:
        """The products of so many layers that answer at so many positions of a row, or at all."""
        answered = tokens if there is None else there * len(lengths)
        projections = (
            [Product(number, 1, tokens, hidden, 3 * hidden)]  # queries, keys, values
            if there is None
            else [
                Product(number, 1, tokens, hidden, 2 * hidden),
                Product(number, 1, answered, hidden, hidden),
            ]
        )
        attention = [
            Product(number, rows * heads, length if there is None else there, *sizes)
            for length, rows in Counter(lengths).items()
            for sizes in ((width, length), (length, width))  # queries by keys, shares by values
        ]
        rest = [
            Product(number, 1, answered, hidden, hidden),  # attention's output
            Product(number, 1, answered, hidden, shape["intermediate_size"]),
            Product(number, 1, answered, shape["intermediate_size"], hidden),
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
    """The products of a training step: the forward one, and those of both gradients."""
    return one_by_one(products(shape, [length] * batch, predictions), calls_of_each=3)


def inference(*, shape: dict[str, Any], texts: str, checkpoint: str) -> Prepared:
    """The products of a forward pass."""
    rows = inputs.rows_of(texts, shape["vocab_size"])
    return one_by_one(products(shape, list(map(len, rows))), calls_of_each=1)


def one_by_one(steps: list[Product], calls_of_each: int) -> Prepared:
    """Products one after the other, each in the precision in which it is faster."""

    @cache  # at the first round, when nobody else is at work
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
    """Every member of the zip, read and inflated in chunks that are dropped."""
    return fresh_processes(READ, f"{checkpoint}/tf1.zip")


def square(*, dtype: str) -> Prepared:
    """One product of two large matrices: the rate that is given as the machine's."""
    product = Product(1, 1, SQUARE, SQUARE, SQUARE)
    multiply = calls(product, dtype)[0]
    return Prepared(timed(multiply), {"operations": product.operations})


def calls(product: Product, dtype: str) -> list[Call]:
    """The product itself, and those of its two gradients."""
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
    """Time that the calls take together, each repeated; the first, which traces, not counted."""
    return sum(map(_seconds, work))


def _seconds(call: Call) -> float:
    call()
    began, times = time.perf_counter(), 0
    while time.perf_counter() - began < AT_LEAST:
        call()
        times += 1
    return (time.perf_counter() - began) / times


if __name__ == "__main__":
    serve([mlm_step, inference, square, startup], ("tensorflow",))
