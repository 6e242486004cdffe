"""A language model's next token outside of Keras: the fast forms of reading one more on a CPU.

The plain form is the model itself: `RoFormerEncoder.continued`.

Axes: B rows, N heads, S slots, K head size, V vocabulary.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.checkpoints.names import table
from roformer_tf.config import RoFormerConfig
from roformer_tf.internals import all_layers
from roformer_tf.kernels.forms import fast

Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int32]
KeysAndValues: TypeAlias = tuple[Floats, Floats]
"""Of one layer, (B, N, S, K) each."""


class CpuStep(ABC):
    """Reads a token of each row behind those whose keys and values it was given."""

    most_rows: float = math.inf
    """With more rows it is slower than the model itself."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config: RoFormerConfig = model.config
        size = self.config.head_size
        frequencies = self.config.rotary_base ** (-np.arange(0, size, 2, dtype="float64") / size)
        self._frequencies = frequencies.astype("float32")  # as `layers.rotary.angles` has them
        self.caches: list[KeysAndValues] = []
        self.filled = 0
        """How many slots of them hold something; the others are neither read nor copied."""

    @staticmethod
    def can_read(model: Any) -> bool:
        """Whether it gives the model's numbers: whole float32 weights, on TensorFlow and a CPU."""
        names = {row.name for row in table(model.config)}
        return (
            fast()
            and model.config.unusual_form() is None  # RoFormer's own rotation is all it knows
            and model.compute_dtype == "float32"
            and model.named_variables().keys() <= names  # no LoRA beside them
            and not any(layer.quantization_mode for layer in all_layers(model))
        )

    def begin(self, caches: Iterable[KeysAndValues], filled: int) -> None:
        """Go on from keys and values of each layer, by the weights of now.

        filled: how many slots hold something. What is given is copied, a layer after the other.
        """
        self.filled = filled
        self.caches = [(self._copied(key), self._copied(value)) for key, value in caches]

    def end(self) -> Iterable[KeysAndValues]:
        """Give keys and values back."""
        caches, self.caches = self.caches, []
        return caches

    def grow(self, slots: int) -> None:
        """Add as many slots behind the others."""
        room = [(0, 0), (0, 0), (0, slots), (0, 0)]
        self.caches = [(np.pad(key, room), np.pad(value, room)) for key, value in self.caches]

    def take(self, rows: Ints) -> None:
        """Keep the rows of these numbers, in this order; one may come several times."""
        if len(rows) != len(self.caches[0][0]):
            self.caches = [
                (self._copied(key, rows), self._copied(value, rows)) for key, value in self.caches
            ]
            return
        moved = np.flatnonzero(rows != np.arange(len(rows)))  # of beams, few
        there = slice(self.filled)
        for kept in (array for pair in self.caches for array in pair):
            kept[moved, :, there] = kept[rows[moved], :, there]

    @abstractmethod
    def read(
        self, token_ids: Ints, segment_ids: Ints, positions: Ints, visible: Any, slot: int
    ) -> Floats:
        """Logits (B, V) behind a token of each row.

        token_ids, segment_ids, positions (B,) int32, visible (B, S) bool: which slots each may look
        at; slot: where it belongs.
        """

    def _copied(self, array: Floats, rows: Ints | None = None) -> Floats:
        """Keys or values of a layer in memory of their own, or of some rows of it."""
        there = slice(self.filled)
        filled = array[:, :, there] if rows is None else array[rows, :, there]
        copied = np.zeros((len(filled), *array.shape[1:]), array.dtype)
        copied[:, :, there] = filled
        return copied

    def _turn(self, positions: Ints) -> tuple[Floats, Floats]:
        """Cosines and sines (B, K/2) of the angles at positions (B,)."""
        theta = positions[:, None].astype("float32") * self._frequencies
        return np.cos(theta), np.sin(theta)

    def _weights(self) -> dict[str, Floats]:
        """Those of now by their names, in TensorFlow's own memory, to read.

        As long as one is held, nothing is written into it: a variable that changes moves.
        """
        variables = self.model.named_variables().items()
        return {name: shared(variable.value.value()) for name, variable in variables}


HIDDEN = np.float32(-1e9)
"""Added to the score of a key that a row may not look at."""


def bias(visible: Any) -> Floats:
    """visible (B, S) bool → what is added to scores: float32."""
    return np.where(visible, np.float32(0), HIDDEN)


def shared(tensor: Any) -> Floats:
    """A tensor's own memory as an array, to read."""
    return np.asarray(memoryview(tensor))
