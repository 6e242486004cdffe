"""Dropout whose mask is a function of a seed and of an element's place, and so is never stored.

An element's place in memory and both words of the seed are mixed by multiplying and shifting
(Wellons' lowbias32, twice); the element is kept where the 32 bits are not below the rate · 2^32.
That is no generator of cryptographic or Monte Carlo grade: it is as random as dropout needs, which
tests show (rate; independence along rows, across them and between seeds), and costs no more than
copying the tensor, where Philox takes twelve times as long.
"""

from typing import Any

import numpy as np
from keras import layers, ops

from roformer_tf.kernels.forms import Tensor, fast, island, with_gradient


def kept(seed: Tensor, shape: tuple[Any, ...], rate: float) -> Tensor:
    """Draw which elements stay: seed (2,) int, such as Keras' (seed, calls) → bool of the shape.

    Each is False with probability `rate`, to within 2^-32. Beyond 2^32 elements masks repeat.
    """
    first, second = (ops.cast(seed[i], "uint32") for i in range(2))
    first = _mixed(first, second)  # so that neither equal words nor close ones give like masks
    second = _mixed(second, first)
    # Place in memory by Horner's rule, ((b · N + n) · T + t) · S + s, modulo 2^32.
    place = _counted(shape[0])
    for size in shape[1:]:
        place = place[..., None] * ops.cast(size, "uint32") + _counted(size)
    return _mixed(ops.bitwise_xor(place, first), second) >= _word(round(rate * 2**32))


def dropped(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    """Set elements to 0 with probability `rate`, and make up for them: x → like x."""
    return _fast_dropped(x, seed, rate) if fast() else dropped_plainly(x, seed, rate)


def add_dropped(x: Tensor, y: Tensor, seed: Tensor, rate: float) -> Tensor:
    """x + dropped(y): of one shape and dtype → like them."""
    return _fast_add(x, y, seed, rate) if fast() else x + dropped_plainly(y, seed, rate)


def dropped_plainly(x: Tensor, seed: Tensor, rate: float) -> Tensor:
    """The plain form of `dropped`."""
    # Scaled in training, so that inference has nothing to do ("inverted" dropout).
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
    # Shifts and multipliers of lowbias32 (Wellons 2018, "Prospecting for Hash Functions"), found by
    # search for the least bias; the key goes in once, behind the first shift.
    x = (_folded(x, 16) + key) * _word(0x7FEB352D)
    x = _folded(x, 15) * _word(0x846CA68B)
    return _folded(x, 16)


def _folded(x: Tensor, bits: int) -> Tensor:
    return ops.bitwise_xor(x, ops.right_shift(x, _word(bits)))


def _word(value: int) -> Tensor:
    return ops.convert_to_tensor(np.uint32(value))


class Dropout(layers.Dropout):
    """Keras' layer with masks that are a function of its seed: `kernels/dropout.py`.

    Call: x → like x.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Drop elements, in training."""
        if not (training and self.rate):
            return inputs
        return dropped(inputs, self.seed_generator.next(), self.rate)

    def add(self, x: Tensor, y: Tensor, training: bool | None = None) -> Tensor:
        """x + dropped y, in one pass."""
        if not (training and self.rate):
            return x + y
        return add_dropped(x, y, self.seed_generator.next(), self.rate)
