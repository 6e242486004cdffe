"""Linear attention with rotation: time and memory grow linearly with the length of a sequence.

RoFormer, section 3.3, equation 19: scores are products of feature maps φ that are never negative.
The features are rotated in the numerator only, so that the denominator is a sum of positive
numbers:

    output_m = Σ_n (R_m φ(q_m)) · (R_n φ(k_n)) v_n / Σ_n φ(q_m) · φ(k_n)

The sum over keys and values is computed first: Σ_n R_n φ(k_n) v_nᵀ has M × V numbers for any
length. With a mask, sequences are split into chunks: scores of pairs within a chunk, sums for the
chunks before it (and, if it is not causal, after it). Only these sums grow with K².

Axes: B batch, T queries, S keys, N heads, H head size, M features of a map, V value size,
C tokens of a chunk, K chunks.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from roformer_tf.errors import InputError, check_choice
from roformer_tf.kernels.forms import Tensor, wide
from roformer_tf.kernels.local_attention import in_blocks
from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.axes import rotate_along_axes
from roformer_tf.layers.masks import check_one_length
from roformer_tf.layers.rotary import Rotation

LEAST = 1e-30
"""Added to FAVOR+'s features: a query that matches no key attends to all keys equally."""
CHUNK = 128
"""Tokens of a chunk. Half as many or twice as many take longer on two cores."""


def elu_features(x: Tensor) -> Tensor:
    """elu(x) + 1, the map of arXiv 2006.16236: (…, H) → (…, H), above 0."""
    # For negative x this is e^x, not e^x − 1 + 1, which would be rounded to 0.
    return ops.maximum(x, 0.0) + ops.exp(ops.minimum(x, 0.0))


def orthogonal_features(features: int, head_size: int, seed: int) -> np.ndarray:
    """Random directions for FAVOR+, (M, H) float64, orthogonal in blocks of H.

    Their lengths are drawn separately, like those of normal vectors (arXiv 2009.14794, section
    2.4), so that each direction has the distribution of a normal vector.
    """
    rng = np.random.default_rng(seed)
    blocks = -(-features // head_size)
    q, r = np.linalg.qr(rng.normal(size=(blocks, head_size, head_size)))
    # The signs make the distribution of Q uniform over all rotations.
    q = q * np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None]
    lengths = np.linalg.norm(rng.normal(size=(features, head_size)), axis=1)
    return np.swapaxes(q, 1, 2).reshape(-1, head_size)[:features] * lengths[:, None]


def favor_features(x: Tensor, directions: Tensor, axes: int | tuple[int, ...] = -1) -> Tensor:
    """FAVOR+: exp(w · y − |y|² / 2) / √M for y = x / H^¼, so that φ(q) · φ(k) ≈ exp(q · k / √H).

    x (B, T, N, H), directions w (M, H) → (B, T, N, M). To avoid an overflow, the features are
    divided by e to the largest exponent along `axes`. By default it is the largest one of each
    token: that is right for queries, because their scale cancels in the quotient.
    """
    # H^¼ in queries and in keys: their product is divided by √H.
    y = x * x.shape[-1] ** -0.25
    exponents = ops.matmul(y, ops.transpose(directions))
    exponents = exponents - ops.sum(y * y, axis=-1, keepdims=True) / 2
    largest = ops.max(exponents, axis=axes, keepdims=True)
    mapped = ops.exp(exponents - ops.stop_gradient(largest)) + LEAST
    return mapped * directions.shape[0] ** -0.5


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rotated_query: Tensor,
    rotated_key: Tensor,
    sequence_ids: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Σ_n (q′_m · k′_n) v_n / Σ_n q_m · k_n over the visible keys n of query m.

    Features query (B, T, N, M) and key (B, S, N, M); rotated features for the numerator; value
    (B, S, N, V) → (B, T, N, V). With `sequence_ids` (B, T) int, tokens attend to
    each other only if these are equal and not 0. With `causal` they attend to previous tokens and
    themselves. Both need T = S. Without visible keys the output is 0.
    """
    if sequence_ids is None and not causal:
        memory = ops.einsum("bsnm,bsnv->bnmv", rotated_key, value)
        above = ops.einsum("btnm,bnmv->btnv", rotated_query, memory)
        below = ops.einsum("btnm,bnm->btn", query, ops.sum(key, axis=1))
        return _quotient(above, below)
    batch, length = ops.shape(query)[:2]
    ids = 1 if sequence_ids is None else ops.cast(sequence_ids, "int32")  # or a padding mask
    sequence_ids = ops.broadcast_to(ids, (batch, length))
    # Sort the tokens by document, with the order within a document unchanged (the sort is stable).
    # Then the only document that two neighbouring chunks can share is at their boundary.
    order = ops.argsort(sequence_ids, axis=1)
    arrays = (query, key, value, rotated_query, rotated_key, sequence_ids)
    q, k, v, tq, tk, ids = (in_blocks(_along(x, order), CHUNK) for x in arrays)
    output = _by_chunks(q, k, v, tq, tk, ids, causal)
    # Not −1 for the length, which an empty batch would leave open.
    output = ops.reshape(output, (batch, ops.shape(output)[1] * CHUNK, *output.shape[3:]))
    # The argsort of a permutation is its inverse: the tokens return to their original order.
    return _along(output[:, :length], ops.argsort(order, axis=1))


def _quotient(above: Tensor, below: Tensor) -> Tensor:
    """above (…, V) / below (…); 0 if below is 0, in the gradient, too."""
    nothing = below == 0
    quotient = above / ops.where(nothing, ops.ones_like(below), below)[..., None]
    return ops.where(nothing[..., None], ops.zeros_like(above), quotient)


def _along(x: Tensor, order: Tensor) -> Tensor:
    """x (B, T, …) with its tokens in another order (B, T)."""
    order = ops.reshape(order, (*ops.shape(order), *[1] * (len(x.shape) - 2)))
    return ops.take_along_axis(x, order, axis=1)


def _by_chunks(
    q: Tensor, k: Tensor, v: Tensor, tq: Tensor, tk: Tensor, ids: Tensor, causal: bool
) -> Tensor:
    """`linear_attention` of chunks of sequences in which each document is a run of tokens.

    Features (B, K, C, N, M), rotated ones tq and tk; value v (B, K, C, N, V); ids (B, K, C), 0 for
    the padding of the last chunk → (B, K, C, N, V).
    """
    visible = (ids[..., :, None] == ids[..., None, :]) & (ids[..., None, :] != 0)
    if causal:
        place = ops.arange(CHUNK, dtype="int32")
        visible = visible & (place[None, :] <= place[:, None])
    visible = ops.cast(visible, q.dtype)[:, :, None]  # (B, K, 1, C, C)
    # Twice: the numerator has the rotated features, the denominator those that are all positive.
    scores = ops.einsum("bkcnm,bksnm->bkncs", tq, tk) * visible
    above = ops.einsum("bkncs,bksnv->bkcnv", scores, v)
    scores = ops.einsum("bkcnm,bksnm->bkncs", q, k) * visible
    below = ops.transpose(ops.sum(scores, axis=-1), (0, 1, 3, 2))  # (B, K, C, N)
    for backwards in (False,) if causal else (False, True):
        # What the other chunks add; the tokens of the chunk itself are in the sums above already.
        memory, total, ours = _carried(k, tk, v, ids, backwards)
        ours = ours[..., None]  # (B, K, C, 1)
        above = above + ops.einsum("bkcnm,bknmv->bkcnv", tq, memory) * ours[..., None]
        below = below + ops.einsum("bkcnm,bknm->bkcn", q, total) * ours
    return _quotient(above, below)


def _carried(
    k: Tensor, tk: Tensor, v: Tensor, ids: Tensor, backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """For each chunk, sums over the previous chunks (or the next ones) of the shared document.

    Σ k′ vᵀ (B, K, N, M, V), Σ k (B, K, N, M), and the tokens of the chunk that belong to that
    document, (B, K, C).
    """
    # (B, K): the document that may continue in the neighbouring chunk
    # ids are sorted, so that only the document at the edge can continue in another chunk.
    last = ids[:, :, 0 if backwards else -1]
    mine = ops.cast((ids == last[..., None]) & (ids != 0), k.dtype)[..., None, None]
    memory = ops.einsum("bksnm,bksnv->bknmv", tk * mine, v)
    total = ops.sum(k * mine, axis=2)
    # At the end there is no neighbour, and 0 is no document.
    none = ops.zeros_like(last[:, :1])
    before = ops.concatenate([last[:, 1:], none] if backwards else [none, last[:, :-1]], axis=1)
    # The sums over chunks are a product with a mask (B, K, K), not a loop: XLA has no gradient of a
    # loop of unknown length. By operation counts (4 heads of 64), the product is a tenth of the
    # layer at 32,768 tokens, and equals the rest at some 300,000.
    place = ops.arange(ops.shape(ids)[1], dtype="int32")
    earlier = place[None, :] > place[:, None] if backwards else place[None, :] < place[:, None]
    # joined[b, i, j]: whether chunk j precedes i and ends in the document in which i − 1 ends;
    # with `backwards`, whether j follows i and begins in the document in which i + 1 begins.
    joined = ops.cast((last[:, None, :] == before[..., None]) & earlier, k.dtype)
    memory = ops.einsum("bij,bjnmv->binmv", joined, memory)
    total = ops.einsum("bij,bjnm->binm", joined, total)
    ours = ops.cast((ids == before[..., None]) & (ids != 0), k.dtype)
    return memory, total, ours


OPTIONS = {
    *("output_shape", "use_bias", "kernel_initializer", "bias_initializer", "value_dim"),
    *("kernel_regularizer", "bias_regularizer", "activity_regularizer"),
    *("kernel_constraint", "bias_constraint", "name", "dtype", "trainable", "frozen"),
    *("rotary_style", "rotary_base"),
}
"""Options of the parent that mean the same here."""


@keras.saving.register_keras_serializable(package="roformer_tf")
class RotaryLinearAttention(RotaryMultiHeadAttention):
    """Attention whose time and memory grow linearly with the length (RoFormer, section 3.3).

    Axes: B batch, T queries, S keys, N heads, H head size (even), D features.
    Call: query (B, T, D), value (B, S, D) → (B, T, D), in the compute dtype; float32 inside.

    `feature_map`: "elu", elu(x) + 1, or "favor", FAVOR+'s orthogonal random features, which are
    drawn by `seed`. The larger `num_features` (default: 4 · H; even), the closer they are to
    softmax. `causal`: whether a token attends only to itself and previous ones. Names and shapes of
    the trained weights are those of `RotaryMultiHeadAttention`.
    Raises InputError for other options, such as dropout, which needs scores.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        feature_map: str = "elu",
        num_features: int | None = None,
        causal: bool = False,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        check_choice("feature_map", feature_map, ("elu", "favor"))
        if num_features is not None and feature_map == "elu":
            raise InputError("elu has as many features as a head: omit num_features.")
        features = num_features or 4 * key_dim
        if features < 2 or features % 2:
            raise InputError(
                f"num_features is {num_features}, but dimensions are rotated in pairs. Give an "
                "even number above 0."
            )
        if wrong := sorted(set(kwargs) - OPTIONS):
            raise InputError(
                f"linear attention has no {', '.join(wrong)}, because it computes no scores. Omit "
                f"it. It has: {', '.join(sorted(OPTIONS))}."
            )
        super().__init__(num_heads, key_dim, **kwargs)
        self.feature_map, self.num_features = feature_map, num_features
        self.causal, self.random_seed = causal, seed
        size = features if feature_map == "favor" else key_dim
        self.feature_rotation = Rotation(size, self.rotation.style, self.rotation.base)

    def build(self, query_shape: Any, value_shape: Any = None, key_shape: Any = None) -> None:
        """Create the projections, and draw FAVOR+'s directions."""
        super().build(query_shape, value_shape, key_shape)
        if self.feature_map == "favor":
            # A weight, so that it is saved: another version of NumPy could draw others.
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

    def call(  # type: ignore[override]  # without the arguments that need scores
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        sequence_ids: Tensor | None = None,
        rotary_positions: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attend. Default value: the query; default key: the value.

        Keys that a Keras mask excludes are not attended to; `mask` is that of the query where it is
        the only tensor.

        With `sequence_ids` (B, T) int, tokens attend to each other only if they are equal and not 0
        (with T = S, as for `causal` or `use_causal_mask`). `rotary_positions` (T, A) or (B, T, A)
        int are positions along A axes; default: 0, 1, 2, …
        """
        if value is None:
            value, value_mask = query, query_mask if mask is None else mask
        key = value if key is None else key
        # Copies have no Keras masks, of which the projections would warn.
        query, key, value = (ops.copy(x) for x in (query, key, value))
        projected = self.query_dense(query), self.key_dense(key), self.value_dense(value)
        q, k, v = (ops.cast(x, wide(query)) for x in projected)
        q, k = self._features(q, k)
        for known in (value_mask, key_mask):
            if known is not None:  # a key without features is in no sum
                k = k * ops.cast(known, k.dtype)[:, :, None, None]
        tq, tk = (rotate_along_axes(x, rotary_positions, self.feature_rotation) for x in (q, k))
        causal = self.causal or use_causal_mask
        if causal or sequence_ids is not None or rotary_positions is not None:
            check_one_length(query, value, sequence_ids)
        heads = linear_attention(q, k, v, tq, tk, sequence_ids, causal)
        return self.output_dense(ops.cast(heads, self.compute_dtype))

    def _features(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """φ of queries (B, T, N, H) and keys (B, S, N, H), (…, M)."""
        if self.feature_map == "elu":
            return elu_features(query), elu_features(key)
        directions = ops.cast(self.directions, query.dtype)
        # The same number for all keys of a head, because their relative sizes are the weights.
        return favor_features(query, directions), favor_features(key, directions, (1, 3))

    def compute_output_shape(
        self, query_shape: Any, value_shape: Any = None, key_shape: Any = None
    ) -> Any:
        """The shape of the output; default values as of `call`."""
        return super().compute_output_shape(query_shape, value_shape or query_shape, key_shape)

    def get_config(self) -> dict[str, Any]:
        """All arguments, to create the layer again."""
        config = super().get_config()
        names = OPTIONS | {"num_heads", "key_dim"}
        return {name: config[name] for name in names & config.keys()} | {
            "feature_map": self.feature_map,
            "num_features": self.num_features,
            "causal": self.causal,
            "seed": self.random_seed,
        }
