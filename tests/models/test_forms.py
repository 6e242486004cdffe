"""Tests of encoders of every form against one float64 encoder in NumPy that supports all forms."""

import dataclasses
import json
import math

import keras
import numpy as np
import pytest
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForMaskedLM
from roformer_tf.models.incremental import IncrementalDecoder, OnnxStep

FORMS = {
    "a quarter": {"rotary_share": 0.25},
    "half a head, in halves": {"rotary_share": 0.5, "rotary_style": "half"},
    "values": {"rotary_value": True},
    "a half of values, in halves": {
        "rotary_value": True,
        "rotary_style": "half",
        "rotary_share": 0.5,
    },
    "linear": {"rope_parameters": {"rope_type": "linear", "factor": 4.0}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
    "dynamic in a window": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 2.0},
        "local_attention": 8,
    },
    "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}, "rotary_share": 0.5},
    "log-n": {"use_logn_attn": True},
    "log-n of a trained length": {"use_logn_attn": True, "trained_length": 5},
    "a window": {"local_attention": 8, "global_attn_every_n_layers": 2},
    "a window and log-n": {"local_attention": 70, "use_logn_attn": True, "trained_length": 9},
    "learned": {"position_embedding_type": "learned", "max_position_embeddings": 90},
    "learned, projected": {
        "position_embedding_type": "learned",
        "embedding_size": 24,
        "max_position_embeddings": 90,
    },
    "sinusoidal": {"position_embedding_type": "sinusoidal"},
    "t5": {"position_embedding_type": "t5", "relative_attention_max_distance": 30},
    "t5 in a window": {"position_embedding_type": "t5", "local_attention": 8},
    "none": {"position_embedding_type": "none"},
}
each_form = pytest.mark.parametrize("form", FORMS)
LENGTH, TRAINED = 70, 16


@pytest.fixture
def encoder_of(tiny):
    """Return a function: encoder_of("yarn", …) → a small encoder with a trained length of 16."""

    def make(form, cls=RoFormerEncoder, dtype="float32", **options):
        keras.utils.set_random_seed(5)
        config = {"max_position_embeddings": TRAINED} | FORMS[form]
        return cls(tiny(**config | options), dtype=dtype)

    return make


def random_inputs(seed=0, length=LENGTH):
    rng = np.random.default_rng(seed)
    return {
        "token_ids": rng.integers(1, 50, (2, length)).astype("int32"),
        "segment_ids": np.sort(rng.integers(0, 2, (2, length))).astype("int32"),
    }


def expected(encoder, inputs):
    """Return the hidden states (B, T, H) of the last layer in float64."""
    config = encoder.config
    weights = {
        name.removeprefix("encoder/"): ops.convert_to_numpy(x).astype("float64")
        for name, x in encoder.named_variables().items()
    }
    ids, segments = inputs["token_ids"], inputs["segment_ids"]
    batch, length = ids.shape
    documents = inputs.get("sequence_ids", np.ones_like(ids))
    x = weights["embeddings/word/embeddings"][ids]
    x = x + weights["embeddings/segment/embeddings"][segments]
    positions = np.zeros_like(ids)
    for b, t in np.ndindex(batch, length):
        same = t and documents[b, t] == documents[b, t - 1]
        positions[b, t] = positions[b, t - 1] + 1 if same else 0
    if config.position_embedding_type == "learned":
        x = x + weights["embeddings/position/embeddings"][positions]
    if config.position_embedding_type == "sinusoidal":
        frequencies = 10_000.0 ** -(np.arange(x.shape[-1]) // 2 * 2 / x.shape[-1])
        theta = positions[..., None] * frequencies
        x = x + np.where(np.arange(x.shape[-1]) % 2, np.cos(theta), np.sin(theta)) / math.sqrt(
            x.shape[-1]
        )
    x = _norm(weights, "embeddings/norm", x, config)
    if "embeddings/projection/kernel" in weights:
        x = x @ weights["embeddings/projection/kernel"] + weights["embeddings/projection/bias"]
    visible = documents[:, :, None] == documents[:, None, :]
    visible &= documents[:, None, :] != 0
    if config.attention_type == "causal":
        visible &= np.tri(length, dtype=bool)
    if config.attention_type == "unilm":  # every 1 starts a new segment
        segments_started = segments.cumsum(axis=1)
        visible &= segments_started[:, None, :] <= segments_started[:, :, None]
    for number in range(config.num_hidden_layers):
        layer_visible = visible
        if config.local_attention and number % config.global_attn_every_n_layers:
            distances = np.abs(np.arange(length)[:, None] - np.arange(length))
            layer_visible = visible & (distances <= config.local_attention / 2)
        x = _layer(weights, f"layer_{number}", x, layer_visible, config)
    return x


def _layer(weights, name, x, visible, config):
    length = x.shape[1]

    def dense(part, y, pattern):
        kernel, bias = weights[f"{name}/{part}/kernel"], weights[f"{name}/{part}/bias"]
        return np.einsum(pattern, y, kernel) + bias

    query, key, value = (
        dense(f"attention/{part}", x, "btd,dnh->btnh") for part in ("query", "key", "value")
    )
    if config.position_embedding_type == "rotary":
        query, key = _rotated(query, config), _rotated(key, config)
        value = _rotated(value, config) if config.rotary_value else value
    scores = np.einsum("btnh,bsnh->bnts", query, key) / math.sqrt(config.head_size)
    if config.use_logn_attn:
        trained = config.trained_length or config.max_position_embeddings
        log_n_scale = np.maximum(np.log(visible.sum(-1).clip(1)) / math.log(trained), 1)
        scores = scores * log_n_scale[:, None, :, None]
    if config.position_embedding_type == "t5":
        table = weights["relative_attention_bias/embeddings"]
        buckets = [_bucket(distance, config) for distance in range(1 - length, length)]
        distances = np.arange(length) - np.arange(length)[:, None]
        scores = scores + table[np.array(buckets)[distances + length - 1]].transpose(2, 0, 1)
    scores = np.where(visible[:, None], scores, -1e30)
    probabilities = np.exp(scores - scores.max(-1, keepdims=True))
    probabilities = probabilities / probabilities.sum(-1, keepdims=True)
    mixed = np.einsum("bnts,bsnh->btnh", probabilities, value)
    x = x + dense("attention/attention_output", mixed, "btnh,nhd->btd")
    x = _norm(weights, f"{name}/attention_norm", x, config)
    inner = dense("intermediate", x, "btd,df->btf")
    inner = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
    return _norm(weights, f"{name}/output_norm", x + dense("output", inner, "btf,fd->btd"), config)


def _norm(weights, name, x, config):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config.layer_norm_eps)
    return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def _rotated(x, config):
    """Rotate by complex numbers; positions are counted per sequence, not per document."""
    features = round(config.head_size * config.rotary_share)
    pairs, length = features // 2, x.shape[1]
    base, factor = config.rotary_base, 1.0
    frequencies = base ** (-np.arange(pairs) * 2.0 / features)
    scaling = config.rope_parameters or {"rope_type": "none"}
    if scaling["rope_type"] == "linear":
        frequencies = frequencies / scaling["factor"]
    if scaling["rope_type"] == "dynamic":
        longer = scaling["factor"] * max(length, TRAINED) / TRAINED - scaling["factor"] + 1
        frequencies = (base * longer ** (features / (features - 2))) ** (
            -np.arange(pairs) * 2 / features
        )
    if scaling["rope_type"] == "yarn":  # no pair completes a rotation in 16 tokens
        frequencies = np.where(np.arange(pairs) > 0, frequencies / scaling["factor"], frequencies)
        factor = 1 + 0.1 * math.log(scaling["factor"])
    x = x.copy()
    for m in range(pairs):
        first, second = (2 * m, 2 * m + 1)
        if config.rotary_style == "half":
            first, second = m, m + pairs
        phase = factor * np.exp(1j * np.arange(length) * frequencies[m])[:, None]
        rotated = (x[..., first] + 1j * x[..., second]) * phase
        x[..., first], x[..., second] = rotated.real, rotated.imag
    return x


def _bucket(distance, config):
    side_buckets = config.relative_attention_num_buckets
    first = 0
    if config.attention_type == "causal":
        distance = max(-distance, 0)
    else:
        side_buckets //= 2
        first, distance = side_buckets * (distance > 0), abs(distance)
    if distance < side_buckets // 2:
        return first + distance
    ratio = config.relative_attention_max_distance / (side_buckets // 2)
    logarithmic = math.floor(
        math.log(distance / (side_buckets // 2), ratio) * (side_buckets - side_buckets // 2) + 1e-9
    )
    return first + min(side_buckets // 2 + logarithmic, side_buckets - 1)


@pytest.mark.quick_cases(  # each form once, combined where possible
    *("a half of values*", "linear-*", "dynamic in*", "yarn-*", "log-n of*"),
    *("a window and*unilm", "learned, projected*"),
    *("sinusoidal-*", "t5 in a window-causal", "t5-unilm", "none-*"),
)
@pytest.mark.parametrize(
    ("form", "attention_type"),
    [
        *((form, "bidirectional") for form in FORMS),
        *((form, "causal") for form in ("t5", "t5 in a window", "a window and log-n")),
        *((form, "unilm") for form in ("t5", "a window and log-n")),
    ],
)
def test_hidden_states_equal_numpy(form, attention_type, encoder_of, to_float64, record_property):
    encoder, inputs = encoder_of(form, attention_type=attention_type), random_inputs()
    want = expected(encoder, inputs)
    got = to_float64(encoder(inputs))
    actual = np.abs(got - want).max()
    record_property("difference", (form[:15], attention_type, float(actual), 5e-5))
    assert actual <= 5e-5
    # the training path, and the output at selected positions
    np.testing.assert_allclose(to_float64(encoder(inputs, training=True)), want, atol=5e-5)
    selected = np.array([[0, 3, 69], [40, 5, 8]], "int32")
    selected_states = to_float64(encoder(inputs, positions=selected, training=True))
    np.testing.assert_allclose(
        selected_states, np.take_along_axis(want, selected[..., None], 1), atol=5e-5
    )


@each_form
@pytest.mark.slow
def test_a_packed_document_gives_the_same_as_alone(form, encoder_of, to_float64):
    encoder, inputs = encoder_of(form), random_inputs()
    inputs["sequence_ids"] = np.array([[1] * 40 + [2] * 25 + [0] * 5, [7] * 3 + [8] * 67], "int32")
    got = to_float64(encoder(inputs))
    real = inputs["sequence_ids"] != 0
    np.testing.assert_allclose(got[real], expected(encoder, inputs)[real], atol=5e-5)
    # Except for angles that depend on the full length, and values rotated by absolute position.
    if "dynamic" not in form and "rotary_value" not in FORMS[form]:
        alone = {key: x[:1, 40:65] for key, x in inputs.items() if key != "sequence_ids"}
        np.testing.assert_allclose(got[:1, 40:65], to_float64(encoder(alone)), atol=5e-5)


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.quick_cases("t5 in a window")
@pytest.mark.parametrize("form", ["t5 in a window", "values", "yarn"])
def test_gradients_equal_those_of_the_plain_forms(form, encoder_of, weight_gradients):
    encoder, inputs = encoder_of(form), random_inputs()
    plain, fast = (weight_gradients(encoder, inputs, plain=plain) for plain in (True, False))
    encoder.rematerialize = True
    again = weight_gradients(encoder, inputs, plain=False)
    for name, want in plain.items():
        scale = max(np.abs(want).max(), 1e-3)
        assert np.abs(want).max() > 0, name
        assert np.abs(fast[name] - want).max() <= 2e-5 * scale, name
        assert np.abs(again[name] - want).max() <= 2e-5 * scale, name


@pytest.fixture
def weight_gradients():
    """Return a function: weight_gradients(encoder, inputs, plain) → gradients by name."""

    def by_name(encoder, inputs, plain):
        import tensorflow as tf

        from roformer_tf.kernels.forms import plain_forms

        upstream = np.random.default_rng(1).normal(size=(2, LENGTH, 32)).astype("float32")
        variables = encoder.named_variables()

        @tf.function
        def gradients():
            with tf.GradientTape() as tape:
                total = tf.reduce_sum(encoder(inputs, training=True) * upstream)
            return tape.gradient(total, [x.value for x in variables.values()])

        if plain:
            with plain_forms():
                actual = gradients()
        else:
            actual = gradients()
        actual = map(tf.convert_to_tensor, actual)
        return {
            name: x.numpy()
            for name, x in zip(variables, actual, strict=True)
            if not name.endswith("key/bias")  # 0 except for rounding errors
        }

    if keras.backend.backend() != "tensorflow":
        pytest.skip("JAX has the plain forms alone")
    return by_name


@pytest.mark.quick_cases("log-n", "dynamic")
@pytest.mark.parametrize("form", ["t5 in a window", "log-n", "dynamic", "learned", "sinusoidal"])
def test_one_graph_accepts_sequences_of_any_length(form, encoder_of, to_float64):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("JAX compiles each shape anew")
    import tensorflow as tf

    encoder = encoder_of(form)
    spec = tf.TensorSpec((None, None), "int32")
    traced = tf.function(encoder.__call__, input_signature=[
        {"token_ids": spec, "segment_ids": spec, "sequence_ids": spec}
    ])  # fmt: skip
    for length in (5, 32, 70):
        inputs = random_inputs(length=length)
        inputs["sequence_ids"] = np.sort(inputs["token_ids"] % 3)[:, ::-1].copy()
        real = inputs["sequence_ids"] != 0
        want = expected(encoder, inputs)[real]
        np.testing.assert_allclose(to_float64(traced(inputs))[real], want, atol=5e-5)


@pytest.mark.quick_cases(
    "half a head, in halves",
    "values",
    "yarn",
    "a window and log-n",
    "learned, projected",
    "t5 in a window",
)
@each_form
def test_a_saved_model_is_loaded_unchanged(form, encoder_of, tmp_path, to_float64):
    model = encoder_of(form, RoFormerForMaskedLM, attention_type="bidirectional")
    model.save_pretrained(tmp_path)
    again = RoFormerForMaskedLM.from_pretrained(tmp_path)
    inputs = random_inputs()
    np.testing.assert_array_equal(to_float64(again(inputs)), to_float64(model(inputs)))
    assert dataclasses.replace(again.config, unknown={}) == model.config
    saved = json.loads((tmp_path / "config.json").read_text())
    ours = FORMS[form].keys() - {"rotary_style", "position_embedding_type", "embedding_size"}
    assert ours <= saved.keys()
    want = {"values": "roformer", "learned": "bert"}.get(form, "roformer_tf")
    assert saved["model_type"] == want


@pytest.mark.quick_cases("yarn", "learned", "t5")
@each_form
def test_a_seed_gives_all_forms_the_same_weights(form, encoder_of):
    embedding_size = FORMS[form].get("embedding_size", 32)
    rotary = encoder_of("none", position_embedding_type="rotary", embedding_size=embedding_size)
    ours, theirs = (x.named_variables() for x in (encoder_of(form), rotary))
    assert {name for name in ours if name not in theirs} <= {
        *("encoder/embeddings/position/embeddings", "encoder/relative_attention_bias/embeddings")
    }
    for name, variable in theirs.items():
        np.testing.assert_array_equal(*map(ops.convert_to_numpy, (variable, ours[name])), name)


def test_a_default_model_saves_no_keys_of_other_forms(tiny, tmp_path):
    RoFormerEncoder(tiny()).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    keys = {key for form in FORMS.values() for key in form}
    assert keys & saved.keys() == {
        *("rotary_style", "rotary_value", "embedding_size", "max_position_embeddings")
    }
    assert saved["rotary_value"] is False  # a key of transformers


@pytest.mark.quick_cases(
    *("values-causal", "a window and log-n-unilm"),
)
@pytest.mark.parametrize(
    ("form", "attention_type"),
    [
        *((form, "causal") for form in ("values", "yarn", "log-n", "t5 in a window")),
        *((form, "unilm") for form in ("learned", "sinusoidal", "a window and log-n", "t5")),
    ],
)
def test_incremental_decoding_equals_the_full_model(form, attention_type, encoder_of):
    model = encoder_of(form, RoFormerForCausalLM, attention_type=attention_type)
    assert not OnnxStep.can_read(model)
    prompts = [[1, *range(4, 24)], [1, 30, 31]]
    decoder = IncrementalDecoder(model)
    logits = decoder.begin(prompts, room=8)
    new_tokens = np.random.default_rng(0).integers(1, 50, (2, 7))
    ids, segments = np.zeros((2, 2, 28), "int32")
    for row, prompt in enumerate(prompts):
        end = len(prompt) + 7  # the padding after it has no effect
        ids[row, :end] = [*prompt, *new_tokens[row]]
        segments[row, len(prompt) : end] = attention_type == "unilm"
    full = ops.convert_to_numpy(model({"token_ids": ids, "segment_ids": segments}))
    for step in range(8):
        for row, prompt in enumerate(prompts):
            want = full[row, len(prompt) - 1 + step]
            np.testing.assert_allclose(logits[row], want, atol=2e-5)
        if step < 7:
            logits = decoder.append(new_tokens[:, step])


def test_length_dependent_angles_cannot_be_decoded_incrementally(encoder_of):
    model = encoder_of("dynamic", RoFormerForCausalLM)
    with pytest.raises(InputError, match="rotates all keys again"):
        IncrementalDecoder(model)


@pytest.mark.quick_cases("t5 in a window")
@pytest.mark.parametrize("form", ["t5 in a window", "yarn"])
def test_bfloat16_is_accurate_within_its_precision(form, encoder_of, to_float64):
    full, half = encoder_of(form), encoder_of(form, dtype="mixed_bfloat16")
    half.set_weights(full.get_weights())
    inputs = random_inputs()
    want = to_float64(full(inputs))
    actual = np.abs(to_float64(half(inputs, training=True)) - want)
    assert actual.mean() < 0.02 * np.abs(want).max()


@pytest.mark.parametrize("form", ["t5 in a window", "values"])
@pytest.mark.slow
def test_quantization_changes_hidden_states_little(
    form, encoder_of, to_float64, no_garbage_collection
):
    encoder, inputs = encoder_of(form), random_inputs()
    want = to_float64(encoder(inputs))
    encoder.quantize("int8")
    assert np.abs(to_float64(encoder(inputs)) - want).mean() < 0.1
