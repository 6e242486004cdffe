"""Attention in blocks that skips those in which nobody sees anybody: on JAX with a GPU, in Pallas.

FlashAttention-2 (arXiv 2307.08691) whose loops run over the stretch of the row that a block's
tokens have to do with (`documents.ranges`), so that a packed row costs what its documents cost.
Scores live in a block's registers alone, and so does dropout's mask, which is the one that
`kernels/dropout.py` draws. On a processor the same code runs interpreted, for tests.

Axes: B rows, N heads, T queries, S keys, H head size. One program of a kernel has one block of one
head of one row, in the inner loops with one block of its counterparts after the other.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from roformer_tf.kernels.documents import PackedMask, Ranges, ranges
from roformer_tf.kernels.dropout import kept_at, mixed_seed
from roformer_tf.kernels.forms import Tensor

BLOCK = 64
"""Most queries, and most keys, of a block."""
LEAST = 16
"""Fewest of either, and of features: a tensor core multiplies no less."""
LOG2_E = math.log2(math.e)
LOWEST = -1e30  # a finite −∞: the difference of two is no NaN


class Settings(NamedTuple):
    """What the kernels are compiled for."""

    queries: int
    """T before it was padded to whole blocks; dropout counts places by it."""
    keys: int
    """S, likewise."""
    heads: int
    """N on all devices together."""
    rate: float
    """Of dropout."""
    interpret: bool


class Tokens(NamedTuple):
    """What the kernels read beside queries, keys and values."""

    query_ids: Tensor  # (B, T), as in PackedMask; what pads to whole blocks has id 0
    query_ranks: Tensor
    key_ids: Tensor  # (B, S)
    key_ranks: Tensor
    key_starts: Tensor  # (B, blocks of T): the first block of keys that a block of queries sees,
    key_ends: Tensor  # and the one behind the last
    query_starts: Tensor  # (B, blocks of S): of a block of keys that of queries, likewise
    query_ends: Tensor
    rows: Tensor  # (B,), (N,): their numbers, of which each of several devices has its part
    heads: Tensor
    words: Tensor  # (2,) uint32, of dropout's seed


AXES = (
    "b n t h, b n s h, b n s h, "  # query, key, value
    "b t, b t, b s, b s, b i, b i, b j, b j, b, n, w"  # Tokens
)
"""Axes of what the kernels read. Several devices may share the rows and the heads, b and n."""
FORWARD = f"{AXES} -> b n t h, b n t"
BACKWARD = f"{AXES}, b n t h, b n t, b n t -> "


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    documents: PackedMask,
    seed: Tensor | None = None,
    rate: float = 0.0,
    interpret: bool | None = None,
) -> Tensor:
    """dropped(softmax(query · keyᵀ)) · value among those that `documents` lets see each other.

    query, which brings its scale, (B, N, T, H), key, value (B, N, S, H), seed (2,) int → (B, N, T,
    H) in value's dtype, softmax in float32. A query that sees nothing gets 0. The same weights are
    dropped as by `kernels.attention.attend_plainly`. Interpreted is what no GPU would run; unset,
    where there is none.
    """
    import jax
    import jax.numpy as jnp

    interpret = jax.default_backend() != "gpu" if interpret is None else interpret
    rows, heads, length, size = query.shape
    settings = Settings(length, key.shape[2], heads, float(rate), interpret)
    block_q, block_k = _block(length), _block(key.shape[2])
    features = max(LEAST, _power_of_two(size))
    of_queries, of_keys = ranges(documents)
    tokens = Tokens(
        *_numbered(documents.query_ids, documents.query_ranks, block_q),
        *_numbered(documents.key_ids, documents.key_ranks, block_k),
        *_blocks(of_queries, block_q, block_k, settings.keys),
        *_blocks(of_keys, block_k, block_q, settings.queries),
        rows=jnp.arange(rows, dtype="int32"),
        heads=jnp.arange(heads, dtype="int32"),
        words=jnp.stack(mixed_seed(seed)) if rate else jnp.zeros(2, "uint32"),
    )
    padded = [  # with zeros, which add nothing
        jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % block), (0, features - size)))
        for x, block in ((query, block_q), (key, block_k), (value, block_k))
    ]
    return _attention(settings)(*padded, tokens)[:, :, :length, :size]


def _power_of_two(number: int) -> int:
    """The least that is no smaller."""
    return 1 << max(0, number - 1).bit_length()


def _block(length: int) -> int:
    return min(BLOCK, max(LEAST, _power_of_two(length)))


def _whole(x: Tensor, block: int, fill: int = 0) -> Tensor:
    """(B, T) → whole blocks of T."""
    import jax.numpy as jnp

    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block)), constant_values=fill)


def _numbered(ids: Tensor, ranks: Tensor | None, block: int) -> tuple[Tensor, Tensor]:
    """Ids and ranks (B, T) int32 in whole blocks; what pads has id 0: nobody sees it."""
    import jax.numpy as jnp

    ranks = jnp.zeros(ids.shape, "int32") if ranks is None else jnp.broadcast_to(ranks, ids.shape)
    ids, ranks = (_whole(x.astype("int32"), block) for x in (ids, ranks))
    return ids, ranks


def _blocks(tokens: Ranges, block: int, other: int, size: int) -> tuple[Tensor, Tensor]:
    """From the stretch of each token, of `size` counterparts, to that of each block, in blocks."""
    starts, ends = _whole(tokens.starts, block, size), _whole(tokens.ends, block)
    starts, ends = (x.reshape(x.shape[0], -1, block) for x in (starts, ends))
    return starts.min(-1) // other, -(-ends.max(-1) // other)


@functools.cache  # one function for equal settings, so that JAX compiles it once
def _attention(settings: Settings) -> Callable[..., Tensor]:
    """The differentiable function (query, key, value, tokens) → output, all in whole blocks."""
    import jax

    forward = _on_each_device(functools.partial(_forward, settings), FORWARD)
    backward = _on_each_device(
        functools.partial(_backward, settings), f"{BACKWARD}b n t h, b n s h, b n s h"
    )

    @jax.custom_vjp
    def attention(query: Tensor, key: Tensor, value: Tensor, tokens: Tokens) -> Tensor:
        return forward(query, key, value, *tokens)[0]

    def ahead(query: Tensor, key: Tensor, value: Tensor, tokens: Tokens) -> Any:
        output, total = forward(query, key, value, *tokens)
        return output, ((query, key, value, *tokens), output, total)

    def back(kept: Any, upstream: Tensor) -> Any:
        arguments, output, total = kept
        # Σ_j w_j dw_j of softmax' gradient is dO · O, dropout or not (arXiv 2205.14135, B.2).
        products = upstream.astype("float32") * output.astype("float32")
        return *backward(*arguments, upstream, total, products.sum(-1)), None

    attention.defvjp(ahead, back)
    return attention


def _on_each_device(function: Callable[..., Any], rule: str) -> Callable[..., Any]:
    """Have each of several devices do its rows and heads: XLA alone would give all to every one."""
    import jax
    from jax.experimental.custom_partitioning import custom_partitioning

    if jax.device_count() == 1:
        return function

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        shardings = (jax.tree.map(lambda x: x.sharding, each) for each in (results, arguments))
        return mesh, function, *shardings

    split = custom_partitioning(function)
    # What every device needs whole; JAX wants them in the order in which the rule names them.
    split.def_partition(
        partition, sharding_rule=rule, need_replication_factors=("t", "h", "s", "i", "j", "w")
    )
    return split


def _forward(settings: Settings, *arguments: Tensor) -> Any:
    """Output (B, N, T, H) and, of each query, log2 of the sum of its weights before the division.

    arguments: query, key, value, and the fields of Tokens.
    """
    query, _, value, *_ = arguments
    results = (query.shape, value.dtype), (query.shape[:3], "float32")
    return _called(settings, _forward_kernel, "t", FORWARD, arguments, results)


def _backward(settings: Settings, *arguments: Tensor) -> Any:
    """The gradients of queries, keys and values.

    arguments: as of `_forward`, then the output's gradient (B, N, T, H), log2 of the sums and Σ of
    output · its gradient, (B, N, T) float32 each.
    """
    query, key, value, *_ = arguments
    of_query, of_key, of_value = ((x.shape, x.dtype) for x in (query, key, value))
    (to_query,) = _called(
        settings, _query_kernel, "t", f"{BACKWARD}b n t h", arguments, (of_query,)
    )
    rule = f"{BACKWARD}b n s h, b n s h"
    to_keys = _called(settings, _key_kernel, "s", rule, arguments, (of_key, of_value))
    return to_query, *to_keys


def _called(
    settings: Settings,
    kernel: Callable[..., None],
    blocked: str,
    rule: str,
    arguments: tuple[Tensor, ...],
    results: Any,
) -> Any:
    """Run a kernel for each block of the axis `blocked`, "t" or "s", of each head of each row.

    Of an argument it has that block, or all where it has another axis; results: (shape, dtype).
    """
    import jax
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    block = _block(settings.queries if blocked == "t" else settings.keys)

    def spec(axes: str, shape: tuple[int, ...]) -> Any:
        names = axes.split()
        sizes = tuple(
            None if name in "bn" else block if name == blocked else size
            for name, size in zip(names, shape, strict=True)
        )

        def place(i: Any, head: Any, row: Any) -> tuple[Any, ...]:
            return tuple({"b": row, "n": head, blocked: i}.get(name, 0) for name in names)

        return pl.BlockSpec(sizes, place)

    sides = (side.split(", ") for side in rule.split(" -> "))
    shapes = [x.shape for x in arguments], [shape for shape, _ in results]
    taken, given = ([*map(spec, axes, each)] for axes, each in zip(sides, shapes, strict=True))
    rows, heads, length, _ = arguments[0 if blocked == "t" else 1].shape
    return pl.pallas_call(
        functools.partial(kernel, settings),
        grid=(length // block, heads, rows),
        in_specs=taken,
        out_specs=given,
        out_shape=[jax.ShapeDtypeStruct(*result) for result in results],
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=2),
        interpret=settings.interpret,
        name=f"block_attention_{kernel.__name__.removeprefix('_')}",
    )(*arguments)


# The kernels. Their references are to a program's own blocks, or to all of a row and head.


def _forward_kernel(settings: Settings, *references: Any) -> None:
    """A block of queries, one block after the other of the keys that any of it sees."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    query_of, key_of, value_of = references[:3]
    tokens, (output_of, total_of) = Tokens(*references[3:14]), references[14:]
    query, number = query_of[...], pl.program_id(0)
    size = _block(settings.keys)

    def step(j: Any, state: Any) -> Any:
        summed, highest, total = state
        keys = pl.ds(j * size, size)
        visible = _visible(tokens, slice(None), keys)
        scores = triton.dot(query, key_of[keys, :], trans_b=True) * LOG2_E
        scores = jnp.where(visible, scores, LOWEST)
        higher = jnp.maximum(highest, scores.max(1))
        # Of a query that has seen nothing yet, all differences are 0: hence the mask again.
        weights = jnp.where(visible, jnp.exp2(scores - higher[:, None]), 0.0)
        lost = jnp.exp2(highest - higher)
        total = total * lost + weights.sum(1)
        weights = _dropped(settings, tokens, weights, number * query.shape[0], j * size)
        value = value_of[keys, :]
        summed = summed * lost[:, None] + triton.dot(weights.astype(value.dtype), value)
        return summed, higher, total

    start = (
        jnp.zeros(query.shape, "float32"),
        jnp.full(query.shape[:1], LOWEST, "float32"),
        jnp.zeros(query.shape[:1], "float32"),
    )
    first, end = tokens.key_starts[number], tokens.key_ends[number]
    summed, highest, total = jax.lax.fori_loop(first, end, step, start)
    total = jnp.where(total == 0, 1.0, total)  # of a query that sees nothing
    output_of[...] = (summed / total[:, None]).astype(output_of.dtype)
    total_of[...] = highest + jnp.log2(total)


def _query_kernel(settings: Settings, *references: Any) -> None:
    """The gradient of a block of queries, over the same keys."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    query_of, key_of, value_of = references[:3]
    tokens = Tokens(*references[3:14])
    upstream_of, total_of, products_of, gradient_of = references[14:]
    query, upstream, number = query_of[...], upstream_of[...], pl.program_id(0)
    total, products = total_of[...][:, None], products_of[...][:, None]
    size = _block(settings.keys)

    def step(j: Any, summed: Tensor) -> Tensor:
        keys = pl.ds(j * size, size)
        key = key_of[keys, :]
        visible = _visible(tokens, slice(None), keys)
        scores = triton.dot(query, key, trans_b=True) * LOG2_E
        weights = jnp.where(visible, jnp.exp2(scores - total), 0.0)
        to_weights = triton.dot(upstream, value_of[keys, :], trans_b=True)
        to_weights = _dropped(settings, tokens, to_weights, number * query.shape[0], j * size)
        to_scores = weights * (to_weights - products)
        return summed + triton.dot(to_scores.astype(key.dtype), key)

    first, end = tokens.key_starts[number], tokens.key_ends[number]
    summed = jax.lax.fori_loop(first, end, step, jnp.zeros(query.shape, "float32"))
    gradient_of[...] = summed.astype(gradient_of.dtype)


def _key_kernel(settings: Settings, *references: Any) -> None:
    """The gradients of a block of keys and of their values, over the queries that see any of it."""
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    query_of, key_of, value_of = references[:3]
    tokens = Tokens(*references[3:14])
    upstream_of, total_of, products_of, to_key_of, to_value_of = references[14:]
    key, value, number = key_of[...], value_of[...], pl.program_id(0)
    size = _block(settings.queries)

    def step(i: Any, state: Any) -> Any:
        to_key, to_value = state
        queries = pl.ds(i * size, size)
        query, upstream = query_of[queries, :], upstream_of[queries, :]
        places = i * size, number * key.shape[0]
        # Keys before queries here, so that nothing but a block that is read lies the other way.
        visible = _visible(tokens, queries, slice(None)).T
        scores = triton.dot(key, query, trans_b=True) * LOG2_E
        weights = jnp.where(visible, jnp.exp2(scores - total_of[queries][None, :]), 0.0)
        used = _dropped(settings, tokens, weights, *places, keys_first=True)
        to_value += triton.dot(used.astype(upstream.dtype), upstream)
        to_weights = triton.dot(value, upstream, trans_b=True)
        to_weights = _dropped(settings, tokens, to_weights, *places, keys_first=True)
        to_scores = weights * (to_weights - products_of[queries][None, :])
        return to_key + triton.dot(to_scores.astype(query.dtype), query), to_value

    zeros = jnp.zeros(key.shape, "float32")
    first, end = tokens.query_starts[number], tokens.query_ends[number]
    to_key, to_value = jax.lax.fori_loop(first, end, step, (zeros, zeros))
    to_key_of[...] = to_key.astype(to_key_of.dtype)
    to_value_of[...] = to_value.astype(to_value_of.dtype)


def _visible(tokens: Tokens, queries: Any, keys: Any) -> Tensor:
    """Which of a block's queries see which of its keys: (queries, keys) bool."""
    ids, ranks = (x[queries][:, None] for x in (tokens.query_ids, tokens.query_ranks))
    key_ids, key_ranks = (x[keys][None, :] for x in (tokens.key_ids, tokens.key_ranks))
    return (ids == key_ids) & (key_ids != 0) & (key_ranks <= ranks)


def _dropped(
    settings: Settings,
    tokens: Tokens,
    weights: Tensor,
    query: Any,
    key: Any,
    keys_first: bool = False,
) -> Tensor:
    """Drop of the weights of a block, or of their gradient; query, key: the places of the first."""
    if not settings.rate:
        return weights
    import jax.numpy as jnp

    axes = (1, 0) if keys_first else (0, 1)
    counted = (jnp.arange(weights.shape[axis], dtype="uint32") for axis in axes)
    query, key = (
        jnp.expand_dims(first.astype("uint32") + count, axes[1 - i])
        for i, (first, count) in enumerate(zip((query, key), counted, strict=True))
    )
    head = tokens.rows[...] * settings.heads + tokens.heads[...]
    place = (head.astype("uint32") * settings.queries + query) * settings.keys + key
    stays = kept_at(place, tokens.words[0], tokens.words[1], settings.rate)
    return jnp.where(stays, weights * (1 / (1 - settings.rate)), 0.0)
