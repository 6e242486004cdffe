"""A language model's next token by ONNX Runtime: the fast form for any number of rows on a CPU.

Its products read weights that were packed once, by all cores, at the memory's rate; TensorFlow's
pack them anew for each token (docs/LOG.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from roformer_tf.checkpoints.names import half_order, interleaved_order
from roformer_tf.engines.choice import installed
from roformer_tf.engines.model import is_sound
from roformer_tf.engines.network import Network, unsupported
from roformer_tf.models.cpu_step import CpuStep, Floats, Ints, KeysAndValues, bias

if TYPE_CHECKING:
    from roformer_tf.engines.onnx_step import StepSession

MULTIPLE = 8
"""ONNX Runtime's attention to kept keys takes heads whose size is one of it."""
EMBEDDINGS = "encoder/embeddings"


class OnnxStep(CpuStep):
    """Reads a token of each row in one graph, which is made at the first and kept.

    Kept with it are the weights that it was made of, packed as the products read them: half a
    gigabyte for 12 layers of 768 and 50,000 words. The weights as they were are the model's own,
    and no copy, until training changes them; then both go at the next `begin`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._session: StepSession | None = None
        self._packed: Mapping[str, Floats] = {}

    @staticmethod
    def can_read(model: Any) -> bool:
        """Whether, besides, ONNX Runtime is there, and has operations for all of the network."""
        if not (CpuStep.can_read(model) and installed("onnx")):
            return False
        import onnxruntime

        config = model.config
        known = not unsupported(config) and config.head_size % MULTIPLE == 0
        return known and is_sound(onnxruntime)

    def begin(self, caches: Iterable[KeysAndValues], filled: int) -> None:
        """See `CpuStep`; where the weights changed, the graph is made anew."""
        super().begin(caches, filled)
        for key, _ in self.caches:
            self._order(half_order, key)
        weights = self._weights()
        if self._session is None or not _same(weights, self._packed):
            self._session, self._packed = None, {}  # before there are others
            from roformer_tf.engines.onnx_step import StepSession

            self._session = StepSession(Network(self.config, weights, "written"))
            self._packed = weights

    def end(self) -> Iterable[KeysAndValues]:
        """See `CpuStep`; only what is taken is put in order, mostly nothing is."""
        return ((self._order(interleaved_order, key), value) for key, value in super().end())

    def read(
        self, token_ids: Ints, segment_ids: Ints, positions: Ints, visible: Any, slot: int
    ) -> Floats:
        """See `CpuStep`."""
        assert self._session is not None, "begin comes first"
        self.filled = slot + 1
        cos, sin = self._turn(positions)
        rows = {
            "word": self._packed[f"{EMBEDDINGS}/word/embeddings"][token_ids[:, None]],
            "segment": self._packed[f"{EMBEDDINGS}/segment/embeddings"][segment_ids[:, None]],
            "cos": cos,
            "sin": sin,
            "bias": bias(visible[:, None, None, : slot + 1]),
        }
        return self._session(rows, slot, self.caches)

    def _order(self, order: Callable[[int, int], Ints], key: Floats) -> Floats:
        """Put the features of a layer's keys in an order: in graphs the pairs of a head are halves.

        In place.
        """
        if self.config.rotary_style == "interleaved":
            size = self.config.head_size
            filled = key[:, :, : self.filled]
            filled[...] = np.take(filled, order(size, size), axis=-1)
        return key


def _same(new: Mapping[str, Floats], old: Mapping[str, Floats]) -> bool:
    """Whether weights are as they were: the same memory, or the same numbers in another."""
    return new.keys() == old.keys() and all(
        x.ctypes.data == old[name].ctypes.data or np.array_equal(x, old[name])
        for name, x in new.items()
    )
