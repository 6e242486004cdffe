"""Tests of grouping sequences into batches of similar length and running a model on them."""

import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.rows import STEP, Runner, batches, run_rows, runner

VOCABULARY = 50
LENGTHS = [3, 300, 7, 7, 64, 31, 2, 129, 250, 16, 14, 15, 90]
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def random_sequences(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCABULARY, length) for length in lengths]


def fail(inputs):
    raise AssertionError("nothing is to be computed")


class Recorder:
    """Return each sequence's number of tokens, or each token itself; record the shapes."""

    def __init__(self, each_token=False):
        self.each_token, self.shapes = each_token, []

    def __call__(self, inputs):
        ids, segments = inputs["token_ids"], inputs["segment_ids"]
        assert ids.dtype == segments.dtype == np.int32
        assert ids.shape == segments.shape
        self.shapes.append(ids.shape)
        if self.each_token:
            return np.stack([ids, segments], axis=-1)
        return (ids != 0).sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def encoder():
    keras.utils.set_random_seed(0)
    return new_encoder()


def new_encoder(**kwargs):
    config = RoFormerConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        initializer_range=0.3,  # large, so that every weight affects the output
    )
    return RoFormerEncoder(config, **kwargs)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_is_in_exactly_one_batch(seed, compiled):
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(3.5, 1, rng.integers(1, 300)), 1, 3000).astype(int).tolist()
    runner = Runner(fail, int(rng.integers(8, 5000)), compiled)
    size = int(rng.integers(1, 50))
    actual = list(batches(lengths, runner, size))
    assert sorted(np.concatenate([rows for rows, _ in actual])) == list(range(len(lengths)))
    assert [lengths[row] for rows, _ in actual for row in rows] == sorted(lengths, reverse=True)
    for rows, (height, width) in actual:
        longest = max(lengths[row] for row in rows)
        assert len(rows) <= height <= size
        assert height == 1 or height * width <= runner.tokens
        assert longest <= width <= (max(16, 1.5 * longest) if compiled else longest + STEP - 1)
        assert height < 2 * len(rows) if compiled else height == len(rows)


def test_padding_is_limited_and_compiled_shapes_are_few():
    lengths = np.clip(np.random.default_rng(0).lognormal(3.5, 1, 2000), 1, 2000).astype(int)
    for compiled, min_fraction in ((False, 0.88), (True, 0.75)):
        shapes = [shape for _, shape in batches(lengths.tolist(), Runner(fail, 4096, compiled))]
        positions = sum(height * width for height, width in shapes)
        assert lengths.sum() > min_fraction * positions
        if compiled:
            assert len(set(shapes)) < 20


def test_batches_of_long_sequences_are_smaller():
    lengths = [4000, 3000, 2000, 1000, 500, *[10] * 400]
    shapes = [shape for _, shape in batches(lengths, Runner(fail))]
    assert max(height * width**2 for height, width in shapes if height > 1) <= 1024**2
    assert max(height for height, _ in shapes) == 32


@pytest.mark.parametrize("each_token", [False, True])
def test_outputs_are_in_order_and_without_padding(each_token):
    rows = random_sequences(LENGTHS)
    segments = [np.arange(len(row)) % 2 for row in rows]
    got = run_rows(Recorder(each_token), rows, segments, batch_size=4)
    for output, row, segment in zip(got, rows, segments, strict=True):
        want = np.stack([row, segment], axis=-1) if each_token else [len(row)]
        np.testing.assert_array_equal(output, want)


def test_lists_are_accepted_and_segments_default_to_0():
    (output,) = run_rows(Recorder(each_token=True), [[5, 6, 7]])
    assert output.tolist() == [[5, 0], [6, 0], [7, 0]]
    assert run_rows(fail, []) == []


@pytest.mark.quick_cases("5")
@pytest.mark.parametrize("batch_size", [1, 5, 32])
def test_other_sequences_of_a_batch_do_not_change_outputs(encoder, batch_size):
    rows = random_sequences(LENGTHS)
    for row, states in zip(rows, run_rows(encoder, rows, batch_size=batch_size), strict=True):
        want = np.asarray(encoder({"token_ids": row[None].astype("int32")}))[0]
        assert states.shape == want.shape
        assert np.abs(states - want).max() <= 1e-5


@pytest.mark.slow
def test_new_shapes_cause_few_traces():
    traces = []

    class Traced(RoFormerEncoder):
        def call(self, inputs, training=None):
            traces.append(inputs["token_ids"].shape)
            return super().call(inputs, training)

    model = Traced(new_encoder().config)
    shapes = [1, *range(8, 1000, 56)]
    for length in shapes:
        run_rows(model, random_sequences([length] * (1 + length % 3)))
    if ON_TENSORFLOW:
        assert len(traces) <= 3
    else:  # one shape per bucket, two where batch sizes differ
        assert len(traces) < len(shapes)


@pytest.mark.skipif(not ON_TENSORFLOW, reason="elsewhere everything is compiled")
@pytest.mark.parametrize("compiled", [False, True])
def test_xla_is_used_only_for_models_compiled_by_the_user(compiled):
    model = new_encoder()
    model.compile("sgd", "mse", jit_compile=True) if compiled else None
    model.jit_compile = True  # as Keras chooses on a GPU
    assert runner(model).compiled is compiled
    assert model.jit_compile is compiled


@pytest.mark.usefixtures("eager_steps")
def test_bfloat16_states_are_close(encoder):
    model = new_encoder(dtype="bfloat16")
    for variable, other in zip(model.variables, encoder.variables, strict=True):
        variable.assign(np.asarray(other))
    rows = random_sequences(LENGTHS)
    pairs = zip(run_rows(model, rows), run_rows(encoder, rows), strict=True)
    errors = [np.abs(got.astype("float32") - want).mean() for got, want in pairs]
    assert 1e-4 < np.mean(errors) < 0.02  # the standard deviation of the states is 1
