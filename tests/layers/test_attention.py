"""Tests of both attention layers against NumPy in float64, and as layers of Keras models.

`RotaryMultiHeadAttention` (the Keras subclass) and `RoFormerSelfAttention` (the fused form) are
compared with the same reference.
"""

import keras
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.layers.attention import RotaryMultiHeadAttention
from roformer_tf.layers.linear_attention import RotaryLinearAttention
from roformer_tf.layers.masks import both, same_sequence, visible_keys
from roformer_tf.layers.self_attention import RoFormerSelfAttention
from roformer_tf.machine import multiplies_bfloat16

B, T, S, D, N, H = 2, 7, 5, 12, 3, 4
ids = np.array([[1, 1, 1, 2, 2, 0, 0], [3, 3, 1, 1, 1, 1, 1]], "int32")  # (B, T)


def to_float64(x):
    return ops.convert_to_numpy(x).astype("float64")


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def tensor(*shape, dtype="float32", seed=0):
    """Return `random` as a tensor. Keras converts an array that is passed twice to two tensors."""
    return ops.cast(random(*shape, seed=seed), dtype)


each_layer = pytest.mark.parametrize(
    "kind", [RotaryMultiHeadAttention, RoFormerSelfAttention], ids=["keras", "fused"]
)


def call(layer, x, **arguments):
    """Return the self-attention of x by either layer; the fused one takes masks alone."""
    if not isinstance(layer, RoFormerSelfAttention):
        return layer(x, x, **arguments)
    ids = arguments.pop("sequence_ids", None)
    if ids is not None:
        arguments["attention_mask"] = both(same_sequence(ids), arguments.get("attention_mask"))
    return layer(x, **arguments)


def with_random_weights(layer, seed=7):
    """Give a built layer random positive and negative weights, biases included."""
    rng = np.random.default_rng(seed)
    layer.set_weights([0.5 * rng.normal(size=w.shape) for w in layer.weights])
    return layer


def attend(query, value, weights, *, visible=None, style="interleaved", base=10_000.0, dtype=None):
    """Compute the layer in NumPy → output, probabilities (B, N, T, S).

    The weights are in Keras' order. Computes in float64, or rounds each result to `dtype`.
    """

    def rounded(x):
        return np.asarray(x if dtype is None else np.asarray(x).astype(dtype), "float64")

    wq, bq, wk, bk, wv, bv, wo, bo = map(rounded, weights)
    q = rounded(rounded(np.einsum("btd,dnh->btnh", query, wq)) + bq)
    k = rounded(rounded(np.einsum("bsd,dnh->bsnh", value, wk)) + bk)
    v = rounded(rounded(np.einsum("bsd,dnh->bsnh", value, wv)) + bv)
    q, k = (rounded(_rotated(x, style, base)) for x in (q, k))
    scores = rounded(np.einsum("btnh,bsnh->bnts", rounded(q / np.sqrt(q.shape[-1])), k))
    if visible is not None:
        scores = np.where(visible[:, None], scores, -1e30)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    probabilities = rounded(scores / scores.sum(-1, keepdims=True))
    mixed = rounded(np.einsum("bnts,bsnh->btnh", probabilities, v))
    return rounded(rounded(np.einsum("btnh,nhd->btd", mixed, wo)) + bo), probabilities


def _rotated(x, style, base):
    """Rotate each pair by its 2 × 2 matrix, one after the other."""
    rotated, size = x.copy(), x.shape[-1]
    for position in range(x.shape[1]):
        for m in range(size // 2):
            theta = position * base ** (-2 * m / size)
            pair = [2 * m, 2 * m + 1] if style == "interleaved" else [m, m + size // 2]
            matrix = [[np.cos(theta), -np.sin(theta)], [np.sin(theta), np.cos(theta)]]
            rotated[:, position][..., pair] = x[:, position][..., pair] @ np.transpose(matrix)
    return rotated


def make(kind=RotaryMultiHeadAttention, **arguments):
    layer = kind(N, H, **arguments)
    layer.build((B, T, D), (B, T, D))
    return with_random_weights(layer)


def same(ids):
    return (ids[:, :, None] == ids[:, None, :]) & (ids[:, None, :] != 0)


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("base", [10_000.0, 7.0])
@pytest.mark.parametrize("dropout", [0.0, 0.3])  # Keras takes another code path with dropout
@each_layer
def test_attention_equals_numpy(kind, style, base, dropout):
    x, layer = tensor(B, T, D), make(kind, rotary_style=style, rotary_base=base, dropout=dropout)
    want, _ = attend(x, x, layer.get_weights(), style=style, base=base)
    np.testing.assert_allclose(to_float64(call(layer, x)), want, atol=1e-5)


def test_queries_and_keys_may_have_different_lengths():
    query, value, layer = random(B, T, D), random(B, S, D, seed=1), make()
    want, _ = attend(query, value, layer.get_weights())
    np.testing.assert_allclose(to_float64(layer(query, value)), want, atol=1e-5)
    mask = np.random.default_rng(3).random((B, T, S)) < 0.6
    mask[..., 0] = True
    want, _ = attend(query, value, layer.get_weights(), visible=mask)
    np.testing.assert_allclose(
        to_float64(layer(query, value, attention_mask=mask)), want, atol=1e-5
    )


@each_layer
def test_packed_sequences_are_isolated_and_padding_is_masked(kind):
    x, layer, real = tensor(B, T, D), make(kind), ids != 0
    want, _ = attend(x, x, layer.get_weights(), visible=same(ids))
    got = to_float64(call(layer, x, sequence_ids=ids))
    np.testing.assert_allclose(got[real], want[real], atol=1e-5)
    assert np.isfinite(got).all()
    # each sequence processed separately, from position 0 on, gives the same numbers
    for row, start, stop in [(0, 0, 3), (0, 3, 5), (1, 0, 2), (1, 2, 7)]:
        alone = to_float64(call(layer, x[row : row + 1, start:stop]))
        np.testing.assert_allclose(got[row, start:stop], alone[0], atol=1e-5)


@each_layer
def test_an_attention_mask_is_combined_with_sequence_ids(kind):
    x, layer, real = tensor(B, T, D), make(kind), ids != 0
    causal = np.tril(np.ones((B, T, T), bool))
    want, _ = attend(x, x, layer.get_weights(), visible=same(ids) & causal)
    ways = [{"attention_mask": causal}]
    ways += [{"use_causal_mask": True}] if kind is RotaryMultiHeadAttention else []
    for arguments in ways:
        got = to_float64(call(layer, x, sequence_ids=ids, **arguments))
        np.testing.assert_allclose(got[real], want[real], atol=1e-5)


@pytest.mark.parametrize("batch", [1, B])
@pytest.mark.parametrize("heads", [1, N])
def test_a_mask_per_head_is_combined_with_sequence_ids(batch, heads):
    """The batch size differs from the number of heads: broadcasting cannot confuse the two axes."""
    x, layer, real = tensor(N, T, D), make(), np.tile(ids, (2, 1))[:N] != 0
    documents = np.tile(ids, (2, 1))[:N]
    mask = np.random.default_rng(4).random((N if batch > 1 else 1, heads, T, T)) < 0.7
    mask[..., range(T), range(T)] = True
    visible = same(documents)[:, None] & mask  # (B, N, T, T)
    _, scores = layer(
        x, x, sequence_ids=documents, attention_mask=mask, return_attention_scores=True
    )
    for head in range(N):
        allowed = np.broadcast_to(visible, (N, N, T, T))[:, head]
        _, want = attend(x, x, layer.get_weights(), visible=allowed)
        got = to_float64(scores)[:, head]
        np.testing.assert_allclose(got[real], want[:, head][real], atol=1e-5)


def test_a_mask_per_head_is_combined_with_the_mask_of_keras():
    tokens = np.array([[5, 3, 2, 0, 0], [4, 4, 0, 0, 0]])
    embedded = keras.layers.Embedding(8, D, mask_zero=True)(tokens)
    layer, bare = make(), ops.copy(embedded)
    everything = np.ones((2, 1, 5, 5), bool)
    got = to_float64(layer(embedded, embedded, attention_mask=everything))
    want = to_float64(layer(bare, bare, attention_mask=np.repeat(tokens[:, None] != 0, 5, 1)))
    np.testing.assert_allclose(got[tokens != 0], want[tokens != 0], atol=1e-5)


def test_sequence_ids_may_be_a_padding_mask():
    x, layer, real = tensor(B, T, D), make(), ids > 0
    want = to_float64(layer(x, x, sequence_ids=real.astype("int32")))
    np.testing.assert_array_equal(to_float64(layer(x, x, sequence_ids=real)), want)


def test_one_frozen_projection_may_be_a_name():
    layer = make(frozen="query")
    assert not layer.query_dense.trainable
    assert layer.get_config()["frozen"] == ["query"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequence_ids": np.ones((B, T), "int32")}, "query has 7 tokens, the value 5"),
        ({"rotary_positions": np.ones((T, 2), "int32")}, "query has 7 tokens, the value 5"),
        ({"rotary_positions": np.ones((1, 2), "int32")}, "query has 7 tokens, the value 5"),
    ],
)
def test_cross_attention_has_no_documents_and_no_axes(arguments, message):
    with pytest.raises(InputError, match=message):
        make()(tensor(B, T, D), tensor(B, S, D), **arguments)


@pytest.mark.parametrize("layer", [RotaryMultiHeadAttention, RotaryLinearAttention])
@pytest.mark.parametrize("length", [T - 1, T + 1])
def test_sequence_ids_of_another_length_are_refused(layer, length):
    """Linear attention of fewer ids gave fewer outputs, without an error."""
    x = tensor(B, T, D)
    with pytest.raises(InputError, match=f"sequence_ids are of {length} tokens, the query has {T}"):
        layer(2, 4)(x, x, sequence_ids=np.ones((B, length), "int32"))


@pytest.mark.parametrize("layer", [RotaryMultiHeadAttention, RotaryLinearAttention])
def test_sequence_ids_may_be_those_of_the_whole_batch(layer):
    x, ids, attention = tensor(B, T, D), np.array([[1, 1, 2, 2, 2, 0, 0]]), layer(2, 4)
    want = attention(x, x, sequence_ids=np.repeat(ids, B, 0))
    np.testing.assert_allclose(attention(x, x, sequence_ids=ids), want, atol=1e-6)


def compiled(function):
    """Compile a function of tensors by XLA."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


@pytest.mark.quick_cases("keras-as it is-*", "*-compiled-mask (2, 1, 7)", "fused-as it is-*7, 7)")
@pytest.mark.parametrize(
    "shape", [(B, 1, T), (1, 1, T), (1, T, T), (1, T)], ids=lambda shape: f"mask {shape}"
)
@pytest.mark.parametrize("how", [lambda function: function, compiled], ids=["as it is", "compiled"])
@each_layer
def test_a_mask_without_a_query_axis_applies_to_selected_positions(kind, how, shape):
    if kind is RoFormerSelfAttention and len(shape) == 2:
        pytest.skip("a mask of a RoFormer has a batch")
    x, layer = tensor(B, T, D), make(kind)
    mask = np.random.default_rng(5).random(shape) < 0.6
    mask[..., 0] = True
    positions = np.array([[6, 0, 3], [2, 2, 5]], "int32")
    want, _ = attend(x, x, layer.get_weights(), visible=np.broadcast_to(mask, (B, T, T)))
    want = np.take_along_axis(want, positions[..., None], 1)
    got = how(lambda x, at: call(layer, x, attention_mask=ops.array(mask), positions=at))(
        x, ops.array(positions)
    )
    np.testing.assert_allclose(to_float64(got), want, atol=1e-5)


@pytest.mark.quick_cases("*-7", "fusible--1", "causal-1048576")
@pytest.mark.parametrize("wrong", [-1, T, 2**20])
@pytest.mark.parametrize("arguments", [{}, {"use_causal_mask": True}], ids=["fusible", "causal"])
def test_a_position_outside_the_sequence_is_refused_or_clipped(wrong, arguments):
    x, layer = tensor(B, T, D), make()
    positions = np.array([[6, wrong, 3], [0, wrong, 5]], "int32")
    with pytest.raises(InputError, match=rf"contain {wrong}, but the sequences have 7 .* 0 to 6"):
        layer(x, x, positions=positions, sequence_ids=ids, **arguments)
    traced = compiled(lambda x, at: layer(x, x, positions=at, sequence_ids=ids, **arguments))
    got = traced(x, ops.array(positions))
    want = layer(x, x, positions=np.clip(positions, 0, T - 1), sequence_ids=ids, **arguments)
    real = np.take_along_axis(ids, np.clip(positions, 0, T - 1), 1) != 0
    np.testing.assert_allclose(to_float64(got)[real], to_float64(want)[real], atol=1e-5)


@pytest.mark.parametrize("arguments", [{}, {"use_causal_mask": True}], ids=["fusible", "causal"])
@pytest.mark.parametrize("training", [True, False])
def test_selected_positions_equal_those_of_the_full_output(arguments, training):
    x, layer = tensor(B, T, D), make()
    positions = np.array([[6, 0, 3], [2, 2, 5]], "int32")
    arguments = {"sequence_ids": ids, "training": training, **arguments}
    full, scores = layer(x, x, return_attention_scores=True, **arguments)
    want = np.take_along_axis(to_float64(full), positions[..., None], 1)
    real = np.take_along_axis(ids, positions, 1) != 0
    got = to_float64(layer(x, x, positions=positions, **arguments))
    np.testing.assert_allclose(got[real], want[real], atol=1e-5)
    got, again = layer(x, x, positions=positions, return_attention_scores=True, **arguments)
    np.testing.assert_allclose(to_float64(got)[real], want[real], atol=1e-5)
    np.testing.assert_array_equal(to_float64(again), to_float64(scores))


def test_positions_are_selected_from_outputs_of_any_shape():
    x, layer = tensor(B, T, D), RotaryMultiHeadAttention(N, H, output_shape=(3, 4))
    positions = np.array([[6, 0], [2, 5]], "int32")
    got, want = to_float64(layer(x, x, positions=positions)), to_float64(layer(x, x))
    assert got.shape == (B, 2, 3, 4)
    np.testing.assert_allclose(got, want[np.arange(B)[:, None], positions], atol=1e-6)
    symbolic = layer(keras.Input((T, D)), keras.Input((T, D)), positions=positions)
    assert symbolic.shape == (B, 2, 3, 4)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
@each_layer
def test_a_mask_need_not_be_boolean(kind, dtype):
    x, layer = tensor(B, T, D), make(kind)
    mask = np.tril(np.ones((B, T, T), bool))
    got = call(layer, x, sequence_ids=np.ones_like(ids), attention_mask=mask.astype(dtype))
    want = call(layer, x, attention_mask=mask)
    np.testing.assert_allclose(to_float64(got), to_float64(want), atol=1e-6)


def test_masks_propagated_by_keras_are_used():
    tokens = np.array([[5, 3, 2, 0, 0]])
    embedded = keras.layers.Embedding(8, D, mask_zero=True)(tokens)
    layer = make()
    implied = to_float64(layer(embedded, embedded))
    arguments = to_float64(layer(*2 * [ops.copy(embedded)[:, :3]]))
    np.testing.assert_allclose(implied[:, :3], arguments, atol=1e-5)


@pytest.mark.parametrize("how", ["eager", "functional", "per head"])
@pytest.mark.parametrize("scores", [False, True])
def test_selected_positions_have_their_own_mask(how, scores):
    """With the mask of all tokens, the mean of the next layer fails, or counts padding."""
    tokens, at = np.array([[5, 3, 2, 0, 0], [1, 4, 6, 7, 2]]), np.array([[2, 4, 0], [3, 3, 1]])
    embedding, layer = keras.layers.Embedding(8, D, mask_zero=True), make()
    mean = keras.layers.GlobalAveragePooling1D()
    more = {"return_attention_scores": scores}
    more |= {"attention_mask": np.ones((2, 1, 5, 5), bool)} if how == "per head" else {}

    def compute(tokens, at):
        x = embedding(tokens)
        selected = layer(x, x, positions=at, **more)
        return mean(selected[0] if scores else selected)

    if how == "functional":
        inputs = keras.Input((5,), dtype="int32"), keras.Input((3,), dtype="int32")
        got = keras.Model(inputs, compute(*inputs))((tokens, at))
    else:
        got = compute(tokens, at)
    real = tokens != 0
    table = to_float64(embedding.embeddings)
    want, _ = attend(*2 * [table[tokens]], layer.get_weights(), visible=same(real.astype(int)))
    kept = np.take_along_axis(real, at, 1)[..., None]
    want = (np.take_along_axis(want, at[..., None], 1) * kept).sum(1) / kept.sum(1)
    np.testing.assert_allclose(to_float64(got), want, atol=1e-5)


def test_attention_scores_are_returned():
    x, layer = tensor(B, T, D), make()
    want, probabilities = attend(x, x, layer.get_weights(), visible=same(ids))
    got, scores = layer(x, x, sequence_ids=ids, return_attention_scores=True)
    real = ids != 0
    np.testing.assert_allclose(to_float64(got)[real], want[real], atol=1e-5)
    scores = to_float64(scores).transpose(0, 2, 1, 3)  # (B, T, N, S)
    np.testing.assert_allclose(scores[real], probabilities.transpose(0, 2, 1, 3)[real], atol=1e-5)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@each_layer
def test_half_precision_is_accurate_beyond_position_256(kind, half):
    x = tensor(1, 400, D, dtype=half)
    layer = kind(N, H, dtype=f"mixed_{half}")
    layer.build(x.shape, x.shape)
    with_random_weights(layer)
    packed = np.repeat([[1, 2]], [300, 100], axis=1)
    got = call(layer, x, sequence_ids=packed)
    assert keras.backend.standardize_dtype(got.dtype) == layer.compute_dtype
    assert {keras.backend.standardize_dtype(w.dtype) for w in layer.weights} == {"float32"}
    x = to_float64(x)
    want, _ = attend(x, x, layer.get_weights(), visible=same(packed))
    rounded, _ = attend(x, x, layer.get_weights(), visible=same(packed), dtype=half)
    # Partial sums are rounded as well, most on CPUs without bfloat16 instructions.
    times = 1.6 if half == "float16" or multiplies_bfloat16() else 2.5
    assert np.abs(to_float64(got) - want).max() <= times * np.abs(rounded - want).max()


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has float64 only if enabled")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("kind", "key_dim"),
    [
        (RoFormerSelfAttention, 8),  # not a power of 4: its square root is rounded
        (RotaryMultiHeadAttention, 16),  # otherwise Keras rounds 1 / √key_dim to float32
    ],
)
def test_float64_is_computed_in_float64_throughout(kind, key_dim, training):
    x = tensor(1, 400, D, dtype="float64")
    layer = kind(N, key_dim, dtype="float64")
    layer.build(x.shape, x.shape)
    with_random_weights(layer)
    packed = np.repeat([[1, 2]], [300, 100], axis=1)
    got = call(layer, x, sequence_ids=packed, training=training)
    want, _ = attend(x, x, layer.get_weights(), visible=same(packed))
    np.testing.assert_allclose(to_float64(got), want, rtol=0, atol=1e-11)


@each_layer
def test_dropout_is_active_only_in_training(kind):
    x, layer = tensor(B, T, D), make(kind, dropout=0.5)
    quiet = to_float64(call(layer, x, training=False))
    np.testing.assert_array_equal(quiet, to_float64(call(layer, x)))
    assert np.abs(to_float64(call(layer, x, training=True)) - quiet).max() > 1e-2


def functional_model(length=None, **arguments):
    features = keras.Input((length, D), name="features")
    sequence_ids = keras.Input((length,), dtype="int32", name="sequence_ids")
    layer = RotaryMultiHeadAttention(N, H, name="rotary", **arguments)
    attended = layer(features, features, sequence_ids=sequence_ids)
    return keras.Model([features, sequence_ids], keras.layers.Dense(1)(attended))


@pytest.mark.parametrize("scores", [False, True])
def test_output_shape_at_positions_is_static_in_a_functional_model(scores):
    features = keras.Input((T, D))
    positions = keras.Input((3,), dtype="int32")
    attended = RotaryMultiHeadAttention(N, H)(
        features, features, positions=positions, return_attention_scores=scores
    )
    shapes = [x.shape for x in (attended if scores else [attended])]
    assert shapes == [(None, 3, D), (None, N, T, T)][: len(shapes)]


@pytest.mark.quick_cases("None")
@pytest.mark.parametrize("length", [None, T])
def test_a_functional_model_is_saved_and_loaded(length, tmp_path):
    model = functional_model(length, rotary_style="half", rotary_base=500.0, dropout=0.1)
    model.get_layer("rotary").set_weights(make().get_weights())
    x = [random(B, T, D), ids]
    model.compile("sgd", "mse")
    model.fit(x, random(B, T, 1), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    layer = loaded.get_layer("rotary")
    assert (layer.rotary_style, layer.rotary_base, layer.dropout) == ("half", 500.0, 0.1)
    np.testing.assert_array_equal(model.predict(x, verbose=0), loaded.predict(x, verbose=0))


def test_the_functional_model_uses_the_sequence_ids():
    model = functional_model()
    layer, last = model.get_layer("rotary"), model.layers[-1]
    with_random_weights(layer)
    x = random(B, T, D)
    want, _ = attend(x, x, layer.get_weights(), visible=same(ids))
    got, real = model.predict([x, ids], verbose=0), ids != 0
    np.testing.assert_allclose(got[real], (want @ last.get_weights()[0])[real], atol=1e-5)


def test_the_config_recreates_the_layer():
    layer = RotaryMultiHeadAttention(
        2, 6, value_dim=5, dropout=0.2, use_bias=False, rotary_style="half", rotary_base=3.0
    )
    again = RotaryMultiHeadAttention.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()


def test_same_sequence_masks_padding_and_other_documents():
    np.testing.assert_array_equal(ops.convert_to_numpy(same_sequence(ids)), same(ids))


def may_attend(kind, documents, segments, query, key):
    """Return whether one token of a sequence may attend to another, by explicit rules."""
    if documents[query] != documents[key] or documents[key] == 0:
        return False
    if key <= query or kind in (None, "bidirectional"):
        return True
    return kind == "unilm" and not any(segments[query + 1 : key + 1])  # all of one source segment


LENGTH = 9  # of all sequences: JAX recompiles for each shape
SEQUENCES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=LENGTH, max_size=LENGTH
)
PACKED = [(1, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 1), (3, 0), (3, 0), (0, 0)]


@pytest.mark.parametrize("kind", [None, "bidirectional", "causal", "unilm"])
@given(rows=st.tuples(SEQUENCES, SEQUENCES))
@example(rows=(PACKED, [(1, 0)] * LENGTH))
def test_visible_keys_follow_the_rule_of_each_kind(kind, rows):
    documents, segments = np.array(rows, "int32").transpose(2, 0, 1)  # (B, T) each
    want = [
        [[may_attend(kind, d, s, query, key) for key in range(LENGTH)] for query in range(LENGTH)]
        for d, s in zip(documents, segments, strict=True)
    ]
    visible = ops.convert_to_numpy(visible_keys(kind, documents, segments))
    assert visible.dtype == bool
    np.testing.assert_array_equal(visible, want)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key_dim": 5}, "key_dim is 5"),
        ({"key_dim": 4, "rotary_style": "gpt"}, "rotary_style is 'gpt'"),
        ({"key_dim": 4, "rotary_base": 0}, "rotary_base is 0, but must be above 0"),
        ({"key_dim": 4, "rotary_base": float("nan")}, "rotary_base is nan"),
    ],
)
def test_invalid_rotary_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        RotaryMultiHeadAttention(2, **arguments)


def test_inputs_with_an_extra_axis_are_refused():
    x = random(2, 3, 4, D)
    with pytest.raises(InputError, match=r"\(2, 3, 4, 12\)"):
        RotaryMultiHeadAttention(N, H, attention_axes=2)(x, x)


def test_activity_regularizers_apply_to_projections_as_in_keras():
    def penalty(cls, **arguments):
        layer = cls(N, H, activity_regularizer=keras.regularizers.L2(0.1), **arguments)
        layer.build((B, T, D), (B, T, D))
        with_random_weights(layer)
        x = tensor(B, T, D)
        layer(x, x, training=True)
        return [float(loss) for loss in layer.losses]

    want = penalty(keras.layers.MultiHeadAttention)
    assert len(want) == 4
    assert min(want) > 0
    # the last output is that of the attention itself, which is rotated in our layer
    assert penalty(RotaryMultiHeadAttention)[:3] == pytest.approx(want[:3], rel=1e-6)
    assert penalty(RotaryMultiHeadAttention)[3] > 0


@pytest.mark.parametrize(("mode", "bound"), [("int8", 0.02), ("int4", 0.25)])
@pytest.mark.parametrize("positions", [None, [[6, 0, 3], [2, 2, 5]]])
@pytest.mark.usefixtures("no_garbage_collection")
@each_layer
def test_quantized_projections_change_the_output_little(kind, mode, bound, positions):
    layer = make(kind)
    at = None if positions is None else np.array(positions, "int32")
    x = tensor(B, T, D)
    before = to_float64(call(layer, x, positions=at))
    projections = ("query", "key", "value", "output")
    projected = [to_float64(getattr(layer, f"{name}_dense")(x)) for name in projections[:3]]
    for name in projections:
        getattr(layer, f"{name}_dense").quantize(mode)
    after = to_float64(call(layer, x, positions=at))
    error = max(
        np.abs(to_float64(getattr(layer, f"{name}_dense")(x)) - full).max() / np.abs(full).max()
        for name, full in zip(projections, projected, strict=False)
    )
    assert 0 < error < bound  # error of a single projection, quantized by Keras
    assert 0 < np.abs(after - before).max() < 4 * bound * np.abs(before).max()


def test_a_subclass_can_override_the_rotation():
    class Unrotated(RotaryMultiHeadAttention):
        def _rotate(self, x, length):
            return x

    x = tensor(1, 6, 8)
    layer, backwards = Unrotated(2, 4), ops.flip(x, 1)
    flipped = keras.ops.convert_to_numpy(layer(backwards, backwards))
    y = keras.ops.convert_to_numpy(layer(x, x))
    assert np.abs(flipped[:, ::-1] - y).max() < 1e-6  # order has no effect


@pytest.mark.parametrize("shape", [(2, 5, 5), (2, 1, 5, 5), (5, 5)])
def test_masks_of_each_rank_are_accepted_as_in_keras(shape):
    x = tensor(2, 5, 8)
    mask = np.broadcast_to(np.tril(np.ones((5, 5), "int32")), shape)
    layer = RotaryMultiHeadAttention(2, 4)
    want = keras.ops.convert_to_numpy(layer(x, x, use_causal_mask=True))
    got = keras.ops.convert_to_numpy(layer(x, x, attention_mask=mask))
    assert np.abs(got - want).max() < 2e-6


def test_only_one_private_method_of_keras_is_overridden():
    private = {x for x in vars(RotaryMultiHeadAttention) if x.startswith("_") and x[1] != "_"}
    theirs = {x for x in private if hasattr(keras.layers.MultiHeadAttention, x)}
    assert theirs == {"_compute_attention"}


def test_new_arguments_of_keras_call_are_passed_on(monkeypatch):
    theirs = keras.layers.MultiHeadAttention.call

    def extended_call(self, query, value, *arguments, warmth=1.0, **settings):
        return warmth * theirs(self, query, value, *arguments, **settings)

    x, layer = tensor(B, T, D), make()
    before = to_float64(layer(x, x, sequence_ids=ids))
    monkeypatch.setattr(keras.layers.MultiHeadAttention, "call", extended_call)
    after = to_float64(layer(x, x, sequence_ids=ids, warmth=3.0))
    np.testing.assert_allclose(after[ids != 0], 3 * before[ids != 0], atol=1e-5)


@pytest.mark.parametrize("options", [{"sliding_window": 2}, {"use_gate": True}], ids=str)
def test_options_of_later_keras_versions_are_passed_on(options):
    """With queries of zeros, rotation has no effect: the outputs equal those of Keras."""
    try:
        theirs = keras.layers.MultiHeadAttention(N, H, **options)
    except (TypeError, ValueError):
        pytest.skip(f"Keras {keras.__version__} does not have it")
    theirs.build((B, T, 2), (B, T, 2))
    ours = RotaryMultiHeadAttention(N, H, **options)
    ours.build((B, T, 2), (B, T, 2))
    ours.set_weights(with_random_weights(theirs).get_weights())
    for layer in (ours, theirs):
        layer.query_dense.set_weights([np.zeros(w.shape) for w in layer.query_dense.get_weights()])
    x = tensor(B, T, 2)
    np.testing.assert_allclose(to_float64(ours(x, x)), to_float64(theirs(x, x)), atol=1e-6)


@each_layer
def test_lora_applies_to_the_projections(kind):
    x, layer = tensor(B, T, D), make(kind)
    before = to_float64(call(layer, x))
    layer.value_dense.enable_lora(2)
    np.testing.assert_allclose(to_float64(call(layer, x)), before, atol=1e-5)
    layer.value_dense.lora_kernel_b.assign(np.ones(layer.value_dense.lora_kernel_b.shape))
    weights = [to_float64(getattr(layer, f"{x}_dense").kernel) for x in ("query", "key", "value")]
    biases = [to_float64(getattr(layer, f"{x}_dense").bias) for x in ("query", "key", "value")]
    projections = [y for pair in zip(weights, biases, strict=True) for y in pair]
    output = [to_float64(layer.output_dense.kernel), to_float64(layer.output_dense.bias)]
    want, _ = attend(x, x, projections + output)
    np.testing.assert_allclose(to_float64(call(layer, x)), want, atol=1e-4)
