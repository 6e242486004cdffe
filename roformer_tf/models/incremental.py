"""A language model that reads on: the next token's logits, without reading anything twice.

Rows end in the same slot of the caches, however long their prompts are; the slots in front of a
shorter one hold nothing, and its first token has position 0 all the same:

    slot         0    1    2    3    4    5
    row 0      [CLS]  床   前   明   月   光
    row 1        ·    ·   [CLS] 春   眠   不
    positions    0    0    0    1    2    3     of row 1
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.cache import KeyValueCache, compiled_step
from roformer_tf.kernels.forms import Tensor
from roformer_tf.models.onnx_step import KeysAndValues, OnnxStep, shared

UNSEEN, BLIND = np.iinfo(np.int32).max, -1
"""The order of a key that nobody sees, and of a query that sees nothing."""
CHUNK = 128
"""Slots that are added at once: more would be read in vain, fewer compiled for more often."""
STEP = 16
"""Prompts are read in lengths that are multiples of it, so that few shapes are compiled."""

Ints = npt.NDArray[np.int32]


class IncrementalDecoder:
    """Rows that a causal or UniLM language model continues, a token of each at a time.

    A token sees those whose order is not behind its own: in a "causal" model their places, in a
    "unilm" one how many segments began. What is read stays in the caches; `choose` repeats,
    reorders or drops rows.
    """

    def __init__(self, model: Any) -> None:
        self.attention_type = model.config.attention_type
        if self.attention_type not in ("causal", "unilm"):
            raise InputError(
                f'a model with attention_type "{self.attention_type}" sees what is to be written, '
                'and writes nothing. Load one that is "causal" (such as gpt-char) or "unilm" (sim).'
            )
        self.model = model
        config = model.config
        if (config.rope_parameters or {}).get("rope_type") == "dynamic":
            raise InputError(
                "a model whose rope_parameters are of rope_type 'dynamic' turns all keys anew as "
                "the text grows, and keeps none. Write with 'linear' or 'yarn', or without "
                "rope_parameters (from_pretrained(source, rope_parameters=None))."
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
        """What reads on, and keeps keys and values; None: the model itself."""
        self._key_order = np.zeros((0, 0), np.int32)
        """(B, S): of what each slot holds, where that can be seen."""
        self._next = np.zeros((0, 2), np.int32)
        """(B, 2): position and order of the next token of each row."""
        self.slot = 0
        """That of the next token."""

    def begin(self, prompts: Sequence[Sequence[int]], room: int) -> npt.NDArray[np.float32]:
        """Read prompts, rows of token ids, all of segment 0: logits (B, V) of the tokens behind.

        room: how many tokens will be written, for which slots are made; more follow by need.
        """
        self.end()
        length = -(-max(map(len, prompts)) // STEP) * STEP
        ids, positions = (np.zeros((len(prompts), length), np.int32) for _ in range(2))
        query_order = np.full((len(prompts), length), BLIND, np.int32)
        for row, prompt in enumerate(prompts):
            there = slice(length - len(prompt), length)
            ids[row, there], positions[row, there] = prompt, np.arange(len(prompt))
            # As `layers.masks.visible_keys` says it: places, or segments that began, here none.
            query_order[row, there] = (
                positions[row, there] if self.attention_type == "causal" else 0
            )
        slots = length + min(-(-room // STEP) * STEP, CHUNK)
        for cache in self.caches:
            cache.clear(len(prompts), slots)
        self._key_order = np.full((len(prompts), slots), UNSEEN, np.int32)
        self._next = np.stack([positions[:, -1], query_order[:, -1]], axis=1)
        self.slot = 0
        return self._append(ids, np.zeros_like(ids), positions, query_order)

    def append(self, token_ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float32]:
        """Put a token (B,) behind each row: logits (B, V) float32 of the one after it."""
        self._next += 1
        self._hand_over()
        if self.slot == self._key_order.shape[1]:
            for kept in self._kept():
                kept.grow(CHUNK)
            new = np.full((len(self._key_order), CHUNK), UNSEEN, np.int32)
            self._key_order = np.concatenate([self._key_order, new], axis=1)
        ids = np.asarray(token_ids, np.int32)[:, None]
        segments = np.full_like(ids, self.attention_type == "unilm")
        return self._append(ids, segments, self._next[:, :1], self._next[:, 1:])

    def choose(self, rows: Sequence[int]) -> None:
        """Go on with the rows of these numbers, in this order; one may come several times."""
        chosen = np.asarray(rows, np.int32)
        if np.array_equal(chosen, np.arange(len(self._next))):
            return
        for kept in self._kept():
            kept.take(chosen)
        self._key_order, self._next = self._key_order[chosen], self._next[chosen]

    def end(self) -> None:
        """Let go of all keys and values."""
        if self._step is not None:
            self._step.end()
            self._step = None
        for cache in self.caches:
            cache.clear(0, 0)

    def _hand_over(self) -> None:
        """Give keys and values to the fast step, where there is one."""
        if self._step is None and self._fast_step is not None:
            self._fast_step.begin(self._given_up(), self.slot)
            self._step = self._fast_step

    def _given_up(self) -> Iterator[KeysAndValues]:
        """The model's own keys and values, which go as they are taken."""
        for cache in self.caches:
            key, value = map(shared, cache.stored)
            yield key, value
            cache.clear(0, 0)

    def _kept(self) -> Sequence[Any]:
        """Who keeps keys and values."""
        return self.caches if self._step is None else [self._step]

    def _append(
        self, ids: Ints, segments: Ints, positions: Ints, query_order: Ints
    ) -> npt.NDArray[np.float32]:
        length = ids.shape[1]
        # As to the models' calls, token 0 is padding but in the first place, though it be written.
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
        """Logits (B, V) behind T tokens more: what is compiled."""
        visible = key_order[:, None, :] <= query_order[:, :, None]  # (B, T, S)
        hidden = self.model.encoder.continued(
            token_ids, segment_ids, visible, positions, slot, self.caches
        )
        return self.model.logits(hidden[:, -1])
