"""Linear attention with rotation: time and memory grow with the row, not with its square.

RoFormer, section 3.3, equation 19: scores are products of feature maps φ that are never negative.
Rotation comes after the map, and in the numerator alone, so that the denominator stays a sum of
positive numbers:

    output_m = Σ_n (R_m φ(q_m)) · (R_n φ(k_n)) v_n / Σ_n φ(q_m) · φ(k_n)

Since a product of sums needs no pairs, keys and values are summed up first: Σ_n R_n φ(k_n) v_nᵀ is
M × H numbers however long the row is. Where not everything sees everything, rows are cut into
chunks: pairs within a chunk, sums across.

Axes: B batch, T queries, S keys, N heads, H head size, M features of a map, V value size,
C tokens of a chunk, K chunks.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.axes import rotate_along_axes
from roformer_tf.layers.rotary import Rotation

LEAST = 1e-30
"""Added to FAVOR+'s features: where a query finds none of the keys', it looks at all alike."""
CHUNK = 128
"""Tokens of a chunk: half of them or twice as many take longer on two cores."""


def elu_features(x: Tensor) -> Tensor:
    """elu(x) + 1, the map of arXiv 2006.16236: (…, H) → (…, H), above 0."""
    # Written so that of large negative numbers something is left: e^x, not e^x − 1 + 1.
    return ops.maximum(x, 0.0) + ops.exp(ops.minimum(x, 0.0))


def orthogonal_features(features: int, head_size: int, seed: int) -> np.ndarray:
    """Directions for FAVOR+, (M, H) float64: normal ones, of which each H are orthogonal.

    Their lengths are those of normal vectors, drawn apart from them (arXiv 2009.14794, section
    2.4): so each alone is distributed as if they were independent.
    """
    rng = np.random.default_rng(seed)
    blocks = [
        # the signs make Q's distribution uniform over all rotations
        (q * np.sign(np.diagonal(r))).T
        for q, r in (
            np.linalg.qr(rng.normal(size=(head_size, head_size)))
            for _ in range(-(-features // head_size))
        )
    ]
    lengths = np.linalg.norm(rng.normal(size=(features, head_size)), axis=1)
    return np.concatenate(blocks)[:features] * lengths[:, None]


def favor_features(x: Tensor, directions: Tensor, largest: Tensor | None = None) -> Tensor:
    """FAVOR+: exp(w · y − |y|² / 2) / √M for y = x / H^¼, so that φ(q) · φ(k) ≈ exp(q · k / √H).

    x (B, T, N, H), directions w (M, H) → (B, T, N, M). All are divided by one number that keeps
    the exponential in range: e to the `largest` exponent, broadcast to (B, T, N, 1); unset, each
    token's own, as queries may have it, whose scale the quotient loses.
    """
    exponents = favor_exponents(x, directions)
    if largest is None:
        largest = ops.max(exponents, axis=-1, keepdims=True)
    mapped = ops.exp(exponents - ops.stop_gradient(largest)) + LEAST
    return mapped * directions.shape[0] ** -0.5


def favor_exponents(x: Tensor, directions: Tensor) -> Tensor:
    """w · y − |y|² / 2 of `favor_features`: (B, T, N, M)."""
    y = x * x.shape[-1] ** -0.25
    return ops.matmul(y, ops.transpose(directions)) - ops.sum(y * y, axis=-1, keepdims=True) / 2


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rotated_query: Tensor | None = None,
    rotated_key: Tensor | None = None,
    sequence_ids: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Σ_n (q′_m · k′_n) v_n / Σ_n q_m · k_n over the n that m may see.

    Features query (B, T, N, M) and key (B, S, N, M), rotated or, where unset, as they are in the
    numerator too; value (B, S, N, V) → (B, T, N, V). With `sequence_ids` (B, T) int, two tokens see
    each other where these are equal and not 0; `causal`, only what does not stand behind (T = S
    for both). A token that sees nothing gets zeros.
    """
    rotated_query = query if rotated_query is None else rotated_query
    rotated_key = key if rotated_key is None else rotated_key
    if sequence_ids is None and not causal:
        memory = ops.einsum("bsnm,bsnv->bnmv", rotated_key, value)
        above = ops.einsum("btnm,bnmv->btnv", rotated_query, memory)
        below = ops.einsum("btnm,bnm->btn", query, ops.sum(key, axis=1))
        return _quotient(above, below)
    if sequence_ids is None:
        sequence_ids = ops.ones(ops.shape(query)[:2], "int32")
    # Documents one behind the other, their tokens in order (both sorts are stable): then a chunk
    # shares a document with the one before it only if it begins with what that ended with.
    order = ops.argsort(sequence_ids, axis=1)
    features = (query, key, value, rotated_query, rotated_key)
    q, k, v, tq, tk, ids = (_along(x, order) for x in (*features, sequence_ids))
    return _along(_by_chunks(q, k, v, tq, tk, ids, causal), ops.argsort(order, axis=1))


def _quotient(above: Tensor, below: Tensor) -> Tensor:
    """above (…, V) / below (…); 0 where nothing was seen, in the gradient, too."""
    nothing = below == 0
    quotient = above / ops.where(nothing, ops.ones_like(below), below)[..., None]
    return ops.where(nothing[..., None], ops.zeros_like(above), quotient)


def _along(x: Tensor, order: Tensor) -> Tensor:
    """Rows x (B, T, …) with their tokens in another order (B, T)."""
    order = ops.reshape(order, (*ops.shape(order), *[1] * (len(x.shape) - 2)))
    return ops.take_along_axis(x, order, axis=1)


def _by_chunks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rotated_query: Tensor,
    rotated_key: Tensor,
    sequence_ids: Tensor,
    causal: bool = False,
) -> Tensor:
    """`linear_attention` of rows in which each document is one run of tokens."""
    length = ops.shape(query)[1]
    features = (query, key, value, rotated_query, rotated_key)
    q, k, v, tq, tk = (_chunked(x) for x in features)  # (B, K, C, N, M or V)
    ids = _chunked(sequence_ids)  # (B, K, C), 0 in what fills up the last one
    visible = (ids[..., :, None] == ids[..., None, :]) & (ids[..., None, :] != 0)
    if causal:
        place = ops.arange(CHUNK)
        visible = visible & (place[None, :] <= place[:, None])
    visible = ops.cast(visible, q.dtype)[:, :, None]  # (B, K, 1, C, C)
    scores = ops.einsum("bkcnm,bksnm->bkncs", tq, tk) * visible
    above = ops.einsum("bkncs,bksnv->bkcnv", scores, v)
    scores = ops.einsum("bkcnm,bksnm->bkncs", q, k) * visible
    below = ops.transpose(ops.sum(scores, axis=-1), (0, 1, 3, 2))  # (B, K, C, N)
    for backwards in (False,) if causal else (False, True):
        memory, total, ours = _carried(k, tk, v, ids, backwards)
        ours = ours[..., None]  # (B, K, C, 1)
        above = above + ops.einsum("bkcnm,bknmv->bkcnv", tq, memory) * ours[..., None]
        below = below + ops.einsum("bkcnm,bknm->bkcn", q, total) * ours
    answer = _quotient(above, below)
    flat = ops.reshape(answer, (ops.shape(answer)[0], -1, *answer.shape[3:]))
    return flat[:, :length]


def _chunked(x: Tensor) -> Tensor:
    """Rows (B, T, …) in chunks, filled up with zeros: (B, K, C, …)."""
    batch, length, *rest = ops.shape(x)
    missing = -length % CHUNK
    x = ops.concatenate([x, ops.zeros((batch, missing, *rest), x.dtype)], axis=1)
    return ops.reshape(x, (batch, (length + missing) // CHUNK, CHUNK, *rest))


def _carried(
    k: Tensor, tk: Tensor, v: Tensor, ids: Tensor, backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """What the chunks before each one (or behind it) have summed up of the document between them.

    Σ k′ vᵀ (B, K, N, M, V), Σ k (B, K, N, M), and for which tokens of a chunk these count, (B, K,
    C): those of the document with which the neighbour ended.
    """
    near, far = (0, -1) if backwards else (-1, 0)
    last = ids[:, :, near]  # (B, K): the document that goes on, or not
    mine = ops.cast((ids == last[..., None]) & (ids != 0), k.dtype)[..., None, None]
    memory = ops.einsum("bksnm,bksnv->bknmv", tk * mine, v)
    total = ops.sum(k * mine, axis=2)
    # A chunk that is of one document hands on what it was handed; any other one begins anew.
    handed = ops.cast(ids[:, :, far] == last, k.dtype)
    before = _neighbour(last, backwards)
    handed = handed * ops.cast(before == last, k.dtype)

    def step(state: tuple[Tensor, Tensor], chunk: tuple[Tensor, ...]) -> Any:
        (sums, totals), (more, others, goes_on) = state, chunk
        after = (
            sums * goes_on[:, None, None, None] + more,
            totals * goes_on[:, None, None] + others,
        )
        return after, state  # each chunk gets what was there before it

    start = ops.zeros_like(memory[:, 0]), ops.zeros_like(total[:, 0])
    chunks = [ops.swapaxes(x, 0, 1) for x in (memory, total, handed)]  # (K, B, …)
    _, (memory, total) = ops.scan(step, start, tuple(chunks), reverse=backwards)
    ours = ops.cast((ids == before[..., None]) & (ids != 0), k.dtype)
    return ops.swapaxes(memory, 0, 1), ops.swapaxes(total, 0, 1), ours


def _neighbour(last: Tensor, backwards: bool) -> Tensor:
    """Of (B, K) the entry of the chunk before, or behind; 0, which is no document, at the end."""
    none = ops.zeros_like(last[:, :1])
    parts = [last[:, 1:], none] if backwards else [none, last[:, :-1]]
    return ops.concatenate(parts, axis=1)


FEATURE_MAPS = ("elu", "favor")
OPTIONS = {
    *("output_shape", "use_bias", "kernel_initializer", "bias_initializer", "value_dim"),
    *("kernel_regularizer", "bias_regularizer", "activity_regularizer"),
    *("kernel_constraint", "bias_constraint", "name", "dtype", "trainable", "frozen"),
}
"""Options of the parent that mean the same here."""


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryLinearAttention(RotaryMultiHeadAttention):
    """Attention in time and memory that grow with the row alone (RoFormer, section 3.3).

    Axes: B batch, T queries, S keys, N heads, H head size (even), D features.
    Call: query (B, T, D), value (B, S, D) → (B, T, D), in the compute dtype; float32 inside.

    `feature_map`: "elu", elu(x) + 1, or "favor", FAVOR+'s random features, orthogonal, drawn by
    `seed`, which approach softmax the more `num_features` there are (unset, 4 · H; even, for they
    are rotated in pairs). `causal`: whether a token sees only itself and earlier ones. Names and
    shapes of the trained weights are those of `RotaryMultiHeadAttention`.
    Raises InputError for other options, dropout among them: there are no scores to be dropped.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        feature_map: str = "elu",
        num_features: int | None = None,
        causal: bool = False,
        rotary_style: str = "interleaved",
        rotary_base: float = 10_000.0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        if feature_map not in FEATURE_MAPS:
            raise InputError(f'feature_map is {feature_map!r}, but must be "elu" or "favor".')
        if num_features is not None and feature_map == "elu":
            raise InputError("elu has as many features as a head: leave num_features out.")
        features = num_features or 4 * key_dim
        if features < 2 or features % 2:
            raise InputError(
                f"num_features is {num_features}, but dimensions are rotated in pairs. Give an "
                "even number above 0."
            )
        if wrong := sorted(set(kwargs) - OPTIONS):
            raise InputError(
                f"linear attention has no {', '.join(wrong)}: it has no scores, which that is of. "
                f"Leave it out. It has: {', '.join(sorted(OPTIONS))}."
            )
        rotary: Mapping[str, Any] = {"rotary_style": rotary_style, "rotary_base": rotary_base}
        super().__init__(num_heads, key_dim, **rotary, **kwargs)
        self.feature_map, self.num_features = feature_map, num_features
        self.causal, self.random_seed = causal, seed
        size = features if feature_map == "favor" else key_dim
        self.feature_rotation = Rotation(size, rotary_style, rotary_base)

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        """Make the projections, and draw FAVOR+'s directions."""
        super().build(query_shape, value_shape or query_shape, key_shape)
        if self.feature_map == "favor":
            # A weight, so that a saved layer keeps its own, whatever another NumPy would draw.
            drawn = orthogonal_features(
                self.feature_rotation.head_size, self.key_dim, self.random_seed
            )
            self.directions = self.add_weight(
                drawn.shape,
                lambda shape, dtype=None: ops.convert_to_tensor(drawn.astype("float32"), dtype),
                dtype="float32",
                trainable=False,
                name="directions",
            )

    def call(  # type: ignore[override]  # what there are no scores for is left out
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        rotary_positions: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
    ) -> Tensor:
        """Attend; a value that is not given is the query, and a key the value.

        With `sequence_ids` (B, T) int, only within one document: ids that are equal and not 0 (T =
        S then, as with `causal` or `use_causal_mask`). Tokens stand one behind the other, or at
        `rotary_positions` (T, A) or (B, T, A) int along A axes.
        """
        value = query if value is None else value
        key = value if key is None else key
        dtype = wide(query)
        q, k, v = (
            ops.cast(project(x), dtype)
            for project, x in (
                (self.query_dense, query),
                (self.key_dense, key),
                (self.value_dense, value),
            )
        )
        q, k = self._features(q, k, sequence_ids)
        tq, tk = (self._rotated(x, rotary_positions) for x in (q, k))
        causal = self.causal or use_causal_mask
        heads = linear_attention(q, k, v, tq, tk, sequence_ids, causal)
        return self.output_dense(ops.cast(heads, self.compute_dtype))

    def _features(
        self, query: Tensor, key: Tensor, sequence_ids: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """φ of queries (B, T, N, H) and keys (B, S, N, H), (…, M)."""
        if self.feature_map == "elu":
            return elu_features(query), elu_features(key)
        directions = ops.cast(self.directions, query.dtype)
        exponents = favor_exponents(key, directions)
        # One number for all keys of a head, for their sizes beside each other are the weights.
        largest = ops.max(exponents, axis=(1, 3), keepdims=True)
        return favor_features(query, directions), favor_features(key, directions, largest)

    def _rotated(self, x: Tensor, positions: Tensor | None) -> Tensor:
        if positions is not None:
            return rotate_along_axes(x, positions, self.feature_rotation)
        return self.feature_rotation.rotate(x, ops.arange(ops.shape(x)[1]))

    def compute_output_spec(  # type: ignore[override]
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Shape and dtype of what `call` gives, on Keras tensors."""
        value = query if value is None else value
        return super().compute_output_spec(query, value, value if key is None else key)

    def get_config(self) -> dict[str, Any]:
        """Everything needed to make the layer again."""
        config = super().get_config()
        config = {key: config[key] for key in OPTIONS & config.keys()}
        return config | {
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "feature_map": self.feature_map,
            "num_features": self.num_features,
            "causal": self.causal,
            "rotary_style": self.feature_rotation.style,
            "rotary_base": self.feature_rotation.base,
            "seed": self.random_seed,
        }
