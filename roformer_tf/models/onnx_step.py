"""One decoding step of a language model with ONNX Runtime on a CPU: the fast form.

ONNX Runtime packs the weights for its products once, TensorFlow for each token (docs/LOG.md). The
plain form is the model itself: `RoFormerEncoder.continued`.

Axes: B texts, N heads, S slots, K head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from roformer_tf.checkpoints.names import half_order, table
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.choice import installed
from roformer_tf.engines.model import is_sound
from roformer_tf.engines.network import Network
from roformer_tf.internals import all_layers
from roformer_tf.kernels.forms import fast
from roformer_tf.layers.scaling import frequencies

if TYPE_CHECKING:
    from roformer_tf.engines.step_session import StepSession

Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int32]
# Of one layer, (B, N, S, K) each.
KeysAndValues: TypeAlias = tuple[Floats, Floats]

# ONNX Runtime's attention to cached keys needs heads whose size is a multiple of it.
MULTIPLE = 8
EMBEDDINGS = "encoder/embeddings"
# Added to the score of a masked key.
HIDDEN = np.float32(-1e9)


class OnnxStep:
    """Runs one decoding step in a graph, which is created for the first text and kept.

    The graph has a packed copy of the weights: half a gigabyte for 12 layers of 768 and 50,000
    words. If training has changed the model's weights, the next `begin` creates a new graph.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config: RoFormerConfig = model.config
        speed, _ = frequencies(self.config.head_size, self.config.rotary_base)
        self._frequencies = speed.astype("float32")  # as `layers.rotary.angles` has them
        self.caches: list[KeysAndValues] = []
        self.filled = 0
        """Number of slots in use; the others are neither read nor copied."""
        self._session: StepSession | None = None
        self._packed: Mapping[str, Floats] = {}

    @staticmethod
    def can_read(model: Any) -> bool:
        """Whether it computes the same as the model: float32 weights on TensorFlow and a CPU.

        ONNX Runtime must be installed and support heads of this size.
        """
        config = model.config
        names = {row.name for row in table(config)}
        readable = (
            fast()
            and config.unusual_form() is None  # only RoFormer's own rotation
            and model.compute_dtype == "float32"
            and model.named_variables().keys() <= names  # no LoRA
            and not any(layer.quantization_mode for layer in all_layers(model))
        )
        if not (readable and installed("onnx")):
            return False
        # Imported last: the other conditions are cheaper.
        import onnxruntime

        return config.head_size % MULTIPLE == 0 and is_sound(onnxruntime)

    def begin(self, caches: Iterable[KeysAndValues], filled: int) -> None:
        """Continue from keys and values of each layer, which are copied.

        filled: the number of slots in use. If the weights have changed, the graph is made again.
        """
        self.filled = filled
        self.caches = [(self._copied(key), self._copied(value)) for key, value in caches]
        if self.config.rotary_style == "interleaved":  # graphs have the style "half"
            # Keys only: values are not rotated, so that the order of their dimensions is the same.
            order = half_order(self.config.head_size, self.config.head_size)
            for key, _ in self.caches:
                key[:, :, :filled] = np.take(key[:, :, :filled], order, axis=-1)
        # Views of TensorFlow's memory, which does not change while it is referenced: a variable
        # that changes gets new memory.
        variables = self.model.named_variables().items()
        weights = {name: shared(variable.value.value()) for name, variable in variables}
        if self._session is None or not _same(weights, self._packed):
            self._session, self._packed = None, {}  # released before the new ones are created
            from roformer_tf.engines.step_session import StepSession

            self._session = StepSession(Network(self.config, weights, "next_token"))
            self._packed = weights

    def end(self) -> None:
        """Release keys and values."""
        self.caches = []

    def grow(self, slots: int) -> None:
        """Append slots."""
        room = [(0, 0), (0, 0), (0, slots), (0, 0)]
        self.caches = [(np.pad(key, room), np.pad(value, room)) for key, value in self.caches]

    def take(self, rows: Ints) -> None:
        """Keep the texts of these numbers, in this order; one may occur several times."""
        # Another number of texts needs new arrays; otherwise only moved rows are copied.
        if len(rows) != len(self.caches[0][0]):
            self.caches = [
                (self._copied(key, rows), self._copied(value, rows)) for key, value in self.caches
            ]
            return
        moved = np.flatnonzero(rows != np.arange(len(rows)))  # in beam search only a few
        there = slice(self.filled)
        for kept in (array for pair in self.caches for array in pair):
            # NumPy copies the right side first, so that two texts can exchange their rows.
            kept[moved, :, there] = kept[rows[moved], :, there]

    def read(
        self, token_ids: Ints, segment_ids: Ints, positions: Ints, visible: Any, slot: int
    ) -> Floats:
        """Logits (B, V) after one token of each text.

        token_ids, segment_ids, positions (B,) int32; visible (B, S) bool: the slots that each
        attends to; slot: the one of the new token.
        """
        assert self._session is not None, "begin comes first"
        self.filled = slot + 1
        # (B, K/2): each text has a position of its own, although all use the same slot.
        theta = positions[:, None].astype("float32") * self._frequencies
        rows = {
            "word": self._packed[f"{EMBEDDINGS}/word/embeddings"][token_ids[:, None]],
            "segment": self._packed[f"{EMBEDDINGS}/segment/embeddings"][segment_ids[:, None]],
            "cos": np.cos(theta),
            "sin": np.sin(theta),
            "bias": np.where(visible[:, None, None, : slot + 1], np.float32(0), HIDDEN),
        }
        return self._session(rows, slot, self.caches)

    def _copied(self, array: Floats, rows: Ints | None = None) -> Floats:
        """A copy of the keys or values of a layer, of all texts or of some."""
        there = slice(self.filled)
        filled = array[:, :, there] if rows is None else array[rows, :, there]
        copied = np.zeros((len(filled), *array.shape[1:]), array.dtype)
        copied[:, :, there] = filled
        return copied


def _same(new: Mapping[str, Floats], old: Mapping[str, Floats]) -> bool:
    """Whether weights are unchanged: the same memory, or the same numbers."""
    return new.keys() == old.keys() and all(
        x.ctypes.data == old[name].ctypes.data or np.array_equal(x, old[name])
        for name, x in new.items()
    )


def shared(tensor: Any) -> Floats:
    """A view of a tensor's memory as an array, to be read only."""
    return np.asarray(memoryview(tensor))
