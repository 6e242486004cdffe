"""A language model's next token in NumPy: the fast form for a single row, without ONNX Runtime.

A row times a matrix is one pass over the matrix' memory. OpenBLAS, by which NumPy multiplies, makes
it at the memory's own pace, oneDNN, by which TensorFlow does, at a third of it (docs/LOG.md).

Axes: B rows, N heads, S slots, K head size, H hidden size (N · K), E embedding size, V vocabulary.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from roformer_tf.models.cpu_step import CpuStep, Floats, Ints, KeysAndValues, bias


class NumpyStep(CpuStep):
    """Reads a token of one row by products of NumPy: see `CpuStep`."""

    most_rows = 1  # of more, OpenBLAS copies the matrix before it multiplies

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.weights: Mapping[str, Floats] = {}

    def begin(self, caches: Iterable[KeysAndValues], filled: int) -> None:
        """See `CpuStep`."""
        super().begin(caches, filled)
        self.weights = self._weights()

    def end(self) -> Iterable[KeysAndValues]:
        """See `CpuStep`; the weights are let go of."""
        self.weights = {}
        return super().end()

    def read(
        self, token_ids: Ints, segment_ids: Ints, positions: Ints, visible: Any, slot: int
    ) -> Floats:
        """See `CpuStep`."""
        self.filled = slot + 1
        cos, sin = self._turn(positions)
        turn = cos[:, None], sin[:, None]  # for all heads
        hidden = bias(visible)[:, None]  # (B, 1, S)
        x = self._embedded(token_ids, segment_ids)
        for number, cache in enumerate(self.caches):
            name = f"encoder/layer_{number}"
            attended = self._attended(f"{name}/attention", x, turn, hidden, cache, slot)
            x = self._norm(f"{name}/attention_norm", x + attended)
            inner = self._activated(self._dense(f"{name}/intermediate", x))
            x = self._norm(f"{name}/output_norm", x + self._dense(f"{name}/output", inner))
        return self._scores(x)

    def _embedded(self, token_ids: Ints, segment_ids: Ints) -> Floats:
        name = "encoder/embeddings"
        words = self.weights[f"{name}/word/embeddings"]
        x = words[token_ids] + self.weights[f"{name}/segment/embeddings"][segment_ids]
        x = self._norm(f"{name}/norm", x)
        projected = f"{name}/projection/kernel" in self.weights
        return self._dense(f"{name}/projection", x) if projected else x

    def _attended(
        self,
        name: str,
        x: Floats,
        turn: tuple[Floats, Floats],
        hidden: Floats,
        cache: KeysAndValues,
        slot: int,
    ) -> Floats:
        """What attention gives (B, H); keys and values of x come into the cache."""
        keys, values = cache
        query, key, value = (self._dense(f"{name}/{part}", x) for part in ("query", "key", "value"))
        shape = (len(x), keys.shape[1], keys.shape[3])
        query, key = (self._rotated(part.reshape(shape), *turn) for part in (query, key))
        keys[:, :, slot], values[:, :, slot] = key, value.reshape(shape)
        # softmax(q kᵀ / √K) v, equation 1 of the paper, for one query a head
        query = query * np.float32(shape[-1] ** -0.5)
        scores = np.matmul(keys, query[..., None])[..., 0] + hidden  # (B, N, S)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = np.matmul(shares[:, :, None], values)  # (B, N, 1, K)
        return self._dense(f"{name}/attention_output", mixed.reshape(len(x), -1))

    def _rotated(self, x: Floats, cos: Floats, sin: Floats) -> Floats:
        """x (B, N, K) turned by cos and sin (B, 1, K/2), as `layers.rotary.rotate` does it."""
        half = x.shape[-1] // 2
        pairs = slice(half), slice(half, None)
        if self.config.rotary_style == "interleaved":
            pairs = slice(None, None, 2), slice(1, None, 2)
        first, second = (x[..., pair] for pair in pairs)
        turned = np.empty_like(x)
        # equation 34: (a, b) → (a cos θ − b sin θ, b cos θ + a sin θ)
        turned[..., pairs[0]] = first * cos - second * sin
        turned[..., pairs[1]] = second * cos + first * sin
        return turned

    def _scores(self, x: Floats) -> Floats:
        if not self.config.is_v2:
            x = self._norm("mlm/norm", self._activated(self._dense("mlm/dense", x)))
        logits = np.matmul(x, self.weights["encoder/embeddings/word/embeddings"].T)
        return logits if self.config.is_v2 else logits + self.weights["mlm/bias"]

    def _dense(self, name: str, x: Floats) -> Floats:
        """x (B, D) · kernel + bias, of heads as of features: (B, U)."""
        y = np.matmul(x, self.weights[f"{name}/kernel"].reshape(x.shape[-1], -1))
        bias = self.weights.get(f"{name}/bias")
        return y if bias is None else np.add(y, bias.reshape(-1), out=y)

    def _norm(self, name: str, x: Floats) -> Floats:
        epsilon = np.float32(self.config.layer_norm_eps)
        if self.config.norm_type == "layer_norm":
            x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + epsilon)
        if self.config.norm_type == "layer_norm":
            x = x * self.weights[f"{name}/gamma"] + self.weights[f"{name}/beta"]
        return x

    def _activated(self, x: Floats) -> Floats:
        from scipy.special import erf

        half, one = np.float32(0.5), np.float32(1)
        if self.config.hidden_act == "relu":
            return np.maximum(x, 0)
        if self.config.hidden_act == "gelu":
            return half * x * (one + erf(x * np.float32(math.sqrt(0.5))))
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x**3)
        return half * x * (one + np.tanh(inner))
