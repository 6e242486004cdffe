"""Dropout whose mask is a function of a seed and of an element's index, so that it is not stored.

The index and both words of the seed are mixed by multiplications and shifts (Wellons' lowbias32,
twice). An element is kept if the resulting 32 bits are not below rate · 2^32. This is no generator
for cryptography or Monte Carlo methods, but random enough for dropout: tests check the rate and the
independence along rows, across rows and between seeds. It takes as long as copying the tensor;
Philox takes twelve times as long.
"""

from typing import Any

import numpy as np
from keras import layers, ops

from roformer_tf.kernels.forms import Tensor, fast, island, with_gradient


def kept(seed: Tensor, shape: tuple[Any, ...], rate: float) -> Tensor:
    """Draw the kept elements: seed (2,) int, such as Keras' (seed, calls) → bool of the shape.

    Each is False with probability `rate`, to within 2^-32. Beyond 2^32 elements masks repeat.
    """
    first, second = (ops.cast(seed[i], "uint32") for i in range(2))
    first = _mixed(first, second)  # so that similar seeds do not have similar masks
    second = _mixed(second, first)
    # The index in memory by Horner's rule, ((b · N + n) · T + t) · S + s, modulo 2^32.
    index = _counted(shape[0])
    for size in shape[1:]:
        index = index[..., None] * ops.cast(size, "uint32") + _counted(size)
    # A word is below rate · 2³² with probability `rate`: then the element is dropped.
    return _mixed(ops.bitwise_xor(index, first), second) >= _word(round(rate * 2**32))


def dropped(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    """Set elements to 0 with probability `rate`, and scale the others: x → like x."""
    return _fast_dropped(x, seed, rate) if fast() else dropped_plainly(x, seed, rate)


def add_dropped(x: Tensor, y: Tensor, seed: Tensor, rate: float) -> Tensor:
    """x + dropped(y), for tensors of the same shape and dtype."""
    return _fast_add(x, y, seed, rate) if fast() else x + dropped_plainly(y, seed, rate)


def dropped_plainly(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    """The plain form of `dropped`."""
    # Scaled in training, so that inference needs no scale ("inverted" dropout).
    scale, zero = (ops.convert_to_tensor(value, x.dtype) for value in (1 / (1 - rate), 0.0))
    return ops.where(kept(seed, ops.shape(x), rate), x * scale, zero)


def _fast_dropped(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    @with_gradient
    def dropping(x: Tensor) -> Any:
        # d x = mask · upstream: the same function of the same seed draws the same mask.
        return drop(x, seed, rate), lambda upstream: drop(upstream, seed, rate)

    return dropping(x)


def _fast_add(x: Tensor, y: Tensor, seed: Tensor, rate: float) -> Tensor:
    @with_gradient
    def add(x: Tensor, y: Tensor) -> Any:
        return _add(x, y, seed, rate), lambda upstream: (upstream, drop(upstream, seed, rate))

    return add(x, y)


drop = island(dropped_plainly)
"""The fast form of `dropped`, without its gradient."""

_add = island(lambda x, y, seed, rate: x + dropped_plainly(y, seed, rate))


def _counted(size: Any) -> Tensor:
    return ops.cast(ops.arange(size, dtype="int32"), "uint32")


def _mixed(x: Tensor, key: Tensor) -> Tensor:
    # Shifts and multipliers of lowbias32 (Wellons 2018, "Prospecting for Hash Functions"), which
    # were searched for the least bias. The key is added once, after the first shift.
    x = (_folded(x, 16) + key) * _word(0x7FEB352D)
    x = _folded(x, 15) * _word(0x846CA68B)
    return _folded(x, 16)


def _folded(x: Tensor, bits: int) -> Tensor:
    return ops.bitwise_xor(x, ops.right_shift(x, _word(bits)))


def _word(value: int) -> Tensor:
    return ops.convert_to_tensor(np.uint32(value))


class Dropout(layers.Dropout):
    """Keras' layer with the masks of this module.

    Call: x → like x.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Drop elements, in training."""
        if not (training and self.rate):
            return inputs
        return dropped(inputs, self.seed_generator.next(), self.rate)

    def add(self, x: Tensor, y: Tensor, training: bool | None = None) -> Tensor:
        """x + dropout of y, in one pass."""
        if not (training and self.rate):
            return x + y
        return add_dropped(x, y, self.seed_generator.next(), self.rate)
