"""Decoding with key-value caches: the logits of the next token.

All texts end in the same slot of the caches, whatever the lengths of their prompts. The slots
before a shorter one are empty, and its first token has position 0 nevertheless:

    slot         0    1    2    3    4    5
    row 0      [CLS]  床   前   明   月   光
    row 1        ·    ·   [CLS] 春   眠   不
    positions    0    0    0    1    2    3     of row 1

`OnnxStep` is the fast form of a step, with ONNX Runtime on a CPU, which packs the weights for its
products once, TensorFlow for each token (docs/LOG.md). The plain form is the model itself:
`RoFormerEncoder.continued`.

Axes: B texts, T tokens, N heads, S slots, K head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from keras import ops

from roformer_tf.checkpoints.names import half_order, table
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.choice import installed
from roformer_tf.engines.model import is_sound
from roformer_tf.engines.network import Network
from roformer_tf.errors import InputError
from roformer_tf.internals import all_layers
from roformer_tf.kernels.cache import KeyValueCache, compiled_step
from roformer_tf.kernels.forms import Tensor, fast
from roformer_tf.layers.scaling import frequencies

if TYPE_CHECKING:
    from roformer_tf.engines.step_session import StepSession

Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int32]
# Of one layer, (B, N, S, K) each.
KeysAndValues: TypeAlias = tuple[Floats, Floats]

# The order of a key that is never visible, and of a query that sees nothing.
UNSEEN, BLIND = np.iinfo(np.int32).max, -1
# Slots that are added at a time: more cost time while empty, fewer cost more compilations.
CHUNK = 128
# Lengths of prompts are padded to multiples of it, so that few shapes are compiled.
STEP = 16
# ONNX Runtime's attention to cached keys needs heads whose size is a multiple of it.
MULTIPLE = 8
EMBEDDINGS = "encoder/embeddings"
# Added to the score of a masked key.
HIDDEN = np.float32(-1e9)


class IncrementalDecoder:
    """Texts that a causal or UniLM language model continues, one token at a time.

    A token sees all tokens whose order is not above its own. In a "causal" model the order is the
    position, in a "unilm" one the number of the segment. Keys and values stay in the caches;
    `choose` repeats, reorders or drops texts.
    """

    def __init__(self, model: Any) -> None:
        self.attention_type = model.config.attention_type
        if self.attention_type not in ("causal", "unilm"):
            raise InputError(
                f'a model with attention_type "{self.attention_type}" cannot generate: its tokens '
                'see the ones after them. Load one that is "causal" (such as gpt-char) or "unilm" '
                "(sim)."
            )
        self.model = model
        config = model.config
        if (config.rope_parameters or {}).get("rope_type") == "dynamic":
            raise InputError(
                "rope_type 'dynamic' rotates all keys again as the text grows, so that none can be "
                "cached. Generate with 'linear' or 'yarn', or without rope_parameters "
                "(from_pretrained(source, rope_parameters=None))."
            )
        self.caches = [
            KeyValueCache(config.num_attention_heads, config.head_size, model.compute_dtype)
            for _ in range(config.num_hidden_layers)
        ]
        self._read = compiled_step(
            self._logits, model.variables, self.caches, axes=(2, 2, 2, 2, 2, 0)
        )
        self._fast_step = OnnxStep(model) if OnnxStep.can_read(model) else None
        self._step: OnnxStep | None = None
        """The fast step, with its own caches; None: the model itself."""
        self._key_order = np.zeros((0, 0), np.int32)
        """(B, S): the order of each slot's key."""
        self._next = np.zeros((0, 2), np.int32)
        """(B, 2): position and order of the next token of each row."""
        self.slot = 0
        """The slot of the next token."""

    def begin(self, prompts: Sequence[Sequence[int]], room: int) -> npt.NDArray[np.float32]:
        """Process prompts of token ids, all of segment 0: logits (B, V) of the next tokens.

        room: the expected number of new tokens, for which slots are created; `append` adds more.
        """
        self.end()
        length = -(-max(map(len, prompts)) // STEP) * STEP
        ids, positions = (np.zeros((len(prompts), length), np.int32) for _ in range(2))
        query_order = np.full((len(prompts), length), BLIND, np.int32)
        for row, prompt in enumerate(prompts):
            there = slice(length - len(prompt), length)
            ids[row, there], positions[row, there] = prompt, np.arange(len(prompt))
            # As in `layers.masks.visible_keys`: positions, or the number of the segment, here 0.
            query_order[row, there] = (
                positions[row, there] if self.attention_type == "causal" else 0
            )
        # All prompts end in the same slot, so that padding precedes the shorter ones.
        slots = length + min(-(-room // STEP) * STEP, CHUNK)
        for cache in self.caches:
            cache.clear(len(prompts), slots)
        self._key_order = np.full((len(prompts), slots), UNSEEN, np.int32)
        self._next = np.stack([positions[:, -1], query_order[:, -1]], axis=1)
        self.slot = 0
        return self._append(ids, np.zeros_like(ids), positions, query_order)

    def append(self, token_ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float32]:
        """Append a token (B,) to each text: logits (B, V) float32 of the next one."""
        self._next += 1  # position and order both grow by one
        if self._step is None and self._fast_step is not None:
            self._fast_step.begin(self.caches, self.slot)
            self._step = self._fast_step
        # All slots are used: a text became longer than `begin` expected.
        if self.slot == self._key_order.shape[1]:
            for cache in self._current_caches():
                cache.grow(CHUNK)
            new = np.full((len(self._key_order), CHUNK), UNSEEN, np.int32)
            self._key_order = np.concatenate([self._key_order, new], axis=1)
        ids = np.asarray(token_ids, np.int32)[:, None]
        segments = np.full_like(ids, self.attention_type == "unilm")
        return self._append(ids, segments, self._next[:, :1], self._next[:, 1:])

    def choose(self, rows: Sequence[int]) -> None:
        """Continue with the texts of these numbers, in this order; one may occur several times."""
        chosen = np.asarray(rows, np.int32)
        if np.array_equal(chosen, np.arange(len(self._next))):
            return
        for cache in self._current_caches():
            cache.take(chosen)
        self._key_order, self._next = self._key_order[chosen], self._next[chosen]

    def end(self) -> None:
        """Release all keys and values."""
        if self._step is not None:
            self._step.end()
            self._step = None
        for cache in self.caches:
            cache.clear(0, 0)

    def _current_caches(self) -> Sequence[Any]:
        """The objects that hold keys and values."""
        return self.caches if self._step is None else [self._step]

    def _append(
        self, ids: Ints, segments: Ints, positions: Ints, query_order: Ints
    ) -> npt.NDArray[np.float32]:
        length = ids.shape[1]
        # As in the models' calls, token 0 is padding except in the first position.
        seen = (query_order != BLIND) & ((ids != 0) | (positions == 0))
        there = slice(self.slot, self.slot + length)
        self._key_order[:, there] = np.where(seen, query_order, UNSEEN)
        slot = np.int32(self.slot)
        self.slot += length
        if self._step is not None:
            visible = self._key_order <= query_order
            return self._step.read(ids[:, 0], segments[:, 0], positions[:, 0], visible, int(slot))
        logits = self._read(ids, segments, positions, query_order, self._key_order, slot)
        return np.asarray(ops.convert_to_numpy(logits))

    def _logits(
        self,
        token_ids: Tensor,
        segment_ids: Tensor,
        positions: Tensor,
        query_order: Tensor,
        key_order: Tensor,
        slot: Tensor,
    ) -> Tensor:
        """Logits (B, V) after T more tokens: the function that is compiled."""
        # One comparison excludes padding, too: UNSEEN is above every query, BLIND below every key.
        visible = key_order[:, None, :] <= query_order[:, :, None]  # (B, T, S)
        hidden = self.model.encoder.continued(
            token_ids, segment_ids, visible, positions, slot, self.caches
        )
        # All texts end in the last slot, whatever their lengths.
        return self.model.logits(hidden[:, -1])


class OnnxStep:
    """Runs one decoding step in a graph, which is created for the first text and kept.

    The graph has a packed copy of the weights: half a gigabyte for 12 layers of 768 and 50,000
    words. If training has changed the model's weights, the next `begin` creates a new graph.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config: RoFormerConfig = model.config
        speed, _ = frequencies(self.config.head_size, self.config.rotary_base)
        self._frequencies = speed.astype("float32")  # as `angles` has them
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

    def begin(self, caches: Sequence[KeyValueCache], filled: int) -> None:
        """Continue from the model's own keys and values of each layer, which are moved here.

        filled: the number of slots in use. If the weights have changed, the graph is made again.
        """
        self.filled, self.caches = filled, []
        for cache in caches:
            key, value = (self._copied(_shared(x)) for x in cache.stored)
            self.caches.append((key, value))
            cache.clear(0, 0)  # before the next layer is copied
        if self.config.rotary_style == "interleaved":  # graphs have the style "half"
            # Keys only: values are not rotated, so that the order of their dimensions is the same.
            order = half_order(self.config.head_size, self.config.head_size)
            for key, _ in self.caches:
                key[:, :, :filled] = np.take(key[:, :, :filled], order, axis=-1)
        # Views of TensorFlow's memory, which does not change while it is referenced: a variable
        # that changes gets new memory.
        variables = self.model.named_variables().items()
        weights = {name: _shared(variable.value.value()) for name, variable in variables}
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


def _shared(tensor: Any) -> Floats:
    """A view of a tensor's memory as an array, to be read only."""
    return np.asarray(memoryview(tensor))
