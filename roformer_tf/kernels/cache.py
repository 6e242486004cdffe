"""Key-value cache for generation, and steps compiled around it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from roformer_tf.kernels.forms import Tensor, fast


class KeyValueCache:
    """Keys and values of one layer: (B, N, S, H) each, for B texts, N heads and S slots."""

    def __init__(self, heads: int, head_size: int, dtype: str) -> None:
        self.heads, self.head_size, self.dtype = heads, head_size, dtype
        self.stored: list[Tensor] = []
        self.clear(0, 0)

    def clear(self, batch: int, slots: int) -> None:
        """Reset to zeros, with room for a batch of this size and number of slots."""
        shape = (batch, self.heads, slots, self.head_size)
        self.stored = [_zeros(shape, self.dtype) for _ in range(2)]

    def grow(self, slots: int) -> None:
        """Add slots after the existing ones."""
        self.stored = [ops.pad(x, [(0, 0), (0, 0), (0, slots), (0, 0)]) for x in self.stored]

    def take(self, rows: Tensor) -> None:
        """Select texts by index (B',) int32, in this order; an index may be repeated."""
        self.stored = [ops.take(x, rows, axis=0) for x in self.stored]

    def write(self, key: Tensor, value: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values (B, N, T, H) in T slots, starting at slot () int32.

        Returns all stored keys and values, (B, N, S, H) each. Call it within a compiled step.
        """
        new = [ops.cast(x, self.dtype) for x in (key, value)]
        form = _write_in_place if fast() else _write_plainly
        self.stored = [form(x, part, slot) for x, part in zip(self.stored, new, strict=True)]
        key, value = self.stored
        return key, value


def _write_plainly(x: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """x (B, N, S, H) with new (B, N, T, H) written from the slot on."""
    if keras.backend.backend() == "tensorflow":  # its slice_update needs XLA
        stop = slot + ops.shape(new)[2]
        return ops.concatenate([x[:, :, :slot], new, x[:, :, stop:]], axis=2)
    return ops.slice_update(x, (0, 0, slot, 0), new)


def _write_in_place(x: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """The same in x's memory, because a copy of all slots takes longer than attention to them."""
    import tensorflow as tf

    batch, heads, slots, size = tf.unstack(tf.shape(x))
    # Slot s of head n of text b is row (b · N + n) · S + s of (B · N · S, H).
    indices = tf.range(batch * heads)[:, None] * slots + slot + tf.range(tf.shape(new)[2])
    rows = tf.raw_ops.InplaceUpdate(
        x=tf.reshape(x, (-1, size)), i=tf.reshape(indices, (-1,)), v=tf.reshape(new, (-1, size))
    )
    return tf.ensure_shape(tf.reshape(rows, (batch, heads, slots, size)), x.shape)


def _zeros(shape: tuple[int, ...], dtype: str) -> Tensor:
    """Zeros in their own memory, which can be written in place."""
    if not fast():
        return ops.zeros(shape, dtype)
    import tensorflow as tf

    return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=True)


@dataclass(frozen=True)
class Past:
    """The cache of a layer, and the slots and positions of the T new tokens.

    Not a tuple: Keras accepts no call argument that mixes tensors with other objects.
    """

    cache: KeyValueCache
    slot: Tensor
    """() int32: slot of the first new token."""
    positions: Tensor
    """(B, T) int32: positions for the rotation of queries and keys."""


def compiled_step(
    step: Callable[..., Tensor],
    variables: Sequence[keras.Variable],
    caches: Sequence[KeyValueCache],
    axes: Sequence[int],
) -> Callable[..., Tensor]:
    """Compile a step that reads the variables, and reads and writes the caches.

    Its inputs are int32 arrays with the number of axes in `axes`. TensorFlow traces it once for all
    shapes; JAX compiles it once per shape.
    """

    def pure(stored: Any, *inputs: Tensor) -> Any:
        # While this is traced, the caches hold symbolic tensors, and what layers write to them
        # becomes a result of the function.
        _hand_out(stored, caches)
        return step(*inputs), [cache.stored for cache in caches]

    on_jax = keras.backend.backend() == "jax"
    compiled = _jitted(pure, variables) if on_jax else _traced(pure, caches, axes)

    def run(*inputs: Any) -> Tensor:
        # The arguments are collected before tracing replaces the contents of the caches.
        output, stored = compiled([cache.stored for cache in caches], *inputs)
        _hand_out(stored, caches)
        return output

    return run


def _hand_out(stored: Any, caches: Sequence[KeyValueCache]) -> None:
    for cache, pair in zip(caches, stored, strict=True):
        cache.stored = list(pair)


def _traced(
    pure: Callable[..., Any], caches: Sequence[KeyValueCache], axes: Sequence[int]
) -> Callable[..., Any]:
    import tensorflow as tf

    stored = [
        [tf.TensorSpec((None, cache.heads, None, cache.head_size), cache.dtype)] * 2
        for cache in caches
    ]
    inputs = [tf.TensorSpec([None] * count, tf.int32) for count in axes]
    return tf.function(pure, input_signature=[stored, *inputs], autograph=False)


def _jitted(pure: Callable[..., Any], variables: Sequence[keras.Variable]) -> Callable[..., Any]:
    import jax

    def stateless(values: Any, stored: Any, *inputs: Any) -> Any:
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return pure(stored, *inputs)

    # The caches are donated: JAX may write the new ones into the memory of the old ones.
    compiled = jax.jit(stateless, donate_argnums=1)
    return lambda *inputs: compiled([variable.value for variable in variables], *inputs)
