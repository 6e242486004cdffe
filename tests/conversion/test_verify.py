"""`checkpoints verify` compares our outputs with those of other libraries, run in the test."""

import dataclasses
from importlib.util import find_spec

import numpy as np
import pytest

from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.config import RoFormerConfig
from roformer_tf.conversion import verify as module
from roformer_tf.conversion.convert import OutputConfig, Stored, convert_checkpoint
from roformer_tf.conversion.verify import (
    SENTENCES,
    VerifyConfig,
    differences,
    encode,
    our_outputs,
    print_differences,
    verify,
)
from roformer_tf.errors import DifferenceError, InputError
from roformer_tf.models.heads import (
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

needs_bert4keras = pytest.mark.skipif(
    not (find_spec("bert4keras") and find_spec("tf_keras")),
    reason="bert4keras is not installed: `make test` does it",
)
slow = pytest.mark.slow


def run(source, against, **flags):
    verify(VerifyConfig(source=str(source), against=against, **flags))


@pytest.fixture
def outputs(capsys):
    """A function that returns the differences in the printed table by output."""

    def read():
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        start = lines.index(["output", "difference", "bound"])
        return {line[0]: float(line[1]) for line in lines[start + 1 :] if len(line) == 3}

    return read


@pytest.fixture
def installed(monkeypatch):
    """Make both libraries appear to be installed."""
    monkeypatch.setattr(module, "find_spec", lambda name: True)


# --- Against bert4keras ------------------------------------------------------------------------


@needs_bert4keras
@pytest.mark.parametrize(
    ("name", "flags", "heads"),
    [
        pytest.param("word_adam", {}, {"pooled", "logits"}, marks=slow),
        pytest.param("word", {}, {"logits"}, marks=slow),
        pytest.param("gpt_char", {"attention_type": "causal"}, {"logits"}, marks=slow),
        pytest.param("sim_char", {}, {"pooled", "logits"}, marks=slow),
        pytest.param("sim_char_ft", {}, {"pooled", "logits"}, marks=slow),
        pytest.param("v2_char", {}, {"logits"}, marks=slow),
        pytest.param("hf_v2_char", {}, {"logits"}, marks=slow),
        pytest.param("hf_char", {}, {"logits"}, marks=slow),
        pytest.param("hf_word_seqcls", {}, set(), marks=slow),
    ],
)
def test_bert4keras_agrees_on_every_layer(name, flags, heads, released, outputs):
    run(released(name), "bert4keras", **flags)
    actual = outputs()
    layers = 3 if "v2" in name or name == "hf_char" else 2
    assert actual.keys() == {"embeddings", *(f"layer_{i}" for i in range(layers))} | heads
    assert 0 < max(actual.values()) <= 2e-5


@needs_bert4keras
@slow
@pytest.mark.parametrize(
    ("bias", "first"),
    [
        ("encoder/embeddings/norm/beta", "embeddings"),
        ("encoder/layer_0/attention/value/bias", "layer_0"),
        ("encoder/layer_1/output/bias", "layer_1"),
        ("mlm/bias", "logits"),
    ],
)
def test_a_changed_bias_is_found_in_its_layer(
    bias, first, released, tmp_path, outputs, monkeypatch
):
    with OpenedSource(released("word")) as source:
        checkpoint = source.checkpoint()
        arrays = dict(checkpoint.arrays)
        arrays[bias].reshape(-1)[3] += 0.01
        changed = dataclasses.replace(
            checkpoint,
            arrays=LazyArrays(
                checkpoint.arrays.shapes, checkpoint.arrays.dtypes, arrays.__getitem__
            ),
        )
        convert_checkpoint(
            Stored(changed, None, {}), tmp_path / "other.zip", OutputConfig(to="tf1")
        )
    original = module.their_outputs

    def outputs_of_other(against, source, *rest):
        with OpenedSource(tmp_path / "other.zip") as other:
            return original(against, other, *rest)

    monkeypatch.setattr(module, "their_outputs", outputs_of_other)
    with pytest.raises(
        DifferenceError, match=rf"^{first} is the first output that differs: by .*e"
    ):
        run(released("word"), "bert4keras")
    actual = outputs()
    names = list(actual)
    assert all(actual[name] <= 1e-5 for name in names[: names.index(first)])
    assert actual[first] > 2e-5


@needs_bert4keras
@slow
@pytest.mark.parametrize(
    "changes",
    [
        {},  # with std 0.02, variances are about 1e-3, so the value of ε matters
        {"hidden_act": "gelu_new"},
        {"rotary_style": "half"},
        {"embedding_size": 16, "layer_norm_eps": 1e-9},
        {"attention_type": "causal"},
    ],
)
def test_new_models_of_any_config_agree(changes, released, tmp_path, outputs):
    save(RoFormerForMaskedLM(small_config(**changes)), tmp_path, released)
    run(tmp_path, "bert4keras")
    assert len(outputs()) == 4


def save(model, folder, released):
    model.tokenizer = RoFormerTokenizer.from_pretrained(released("char"))
    model.save_pretrained(folder)


def small_config(**changes):
    config = RoFormerConfig(
        vocab_size=1501,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
    )
    return config.replace(**changes)


@pytest.mark.usefixtures("installed")
def test_the_error_of_the_other_library_is_shown(released, tmp_path, monkeypatch):
    (tmp_path / "other_libraries.py").write_text("raise SystemExit('out of luck')")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "verify.py"))
    with pytest.raises(InputError, match=r"bert4keras failed \(exit code 1\) with:\nout of luck$"):
        run(released("word"), "bert4keras")


# --- Against transformers ----------------------------------------------------------------------


@pytest.mark.hf
@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("word", {}),
        ("char", {}),
        ("gpt_char", {}),  # causal because of its name
        ("gpt_char", {"attention_type": "bidirectional"}),
        ("sim_char", {}),
        ("word_project", {}),
        ("hf_word", {}),
        ("hf_word_seqcls", {}),
    ],
)
def test_transformers_agrees_on_every_layer(name, flags, released, outputs):
    run(released(name), "transformers", **flags)
    actual = outputs()
    assert {"embeddings", "layer_0", "layer_1", "logits"} <= actual.keys()
    assert 0 < max(actual.values()) <= 2e-5


@pytest.mark.hf
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_transformers_agrees_on_a_regression_of_large_numbers(pooling, released, tmp_path, outputs):
    config = small_config(num_labels=1, pooling=pooling, label_mean=2020.0, label_deviation=3.0)
    save(RoFormerForSequenceClassification(config), tmp_path, released)
    run(tmp_path, "transformers")
    assert ("logits" in outputs()) is (pooling == "cls")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("model_class", "changes"),
    [
        (RoFormerForSequenceClassification, {"num_labels": 3}),
        (RoFormerForTokenClassification, {"num_labels": 3, "crf": True}),
        (RoFormerForMaskedLM, {"embedding_size": 16}),
    ],
)
def test_a_bert_unsupported_by_transformers_is_refused(model_class, changes, released, tmp_path):
    config = small_config(position_embedding_type="learned", **changes)
    save(model_class(config), tmp_path, released)
    with pytest.raises(InputError, match=r"is a BERT with .*, which transformers does not support"):
        run(tmp_path, "transformers")


@pytest.mark.hf
def test_v2_is_refused_for_transformers(released):
    with pytest.raises(InputError, match=r"RoFormerV2, which transformers does not support"):
        run(released("v2_char"), "transformers")


# --- The parts ---------------------------------------------------------------------------------


def test_sentences_are_short_and_long_and_pairs(released):
    with OpenedSource(released("word")) as source:
        inputs = encode(source, source.checkpoint())
    lengths = (inputs["token_ids"] != 0).sum(1)
    assert len(SENTENCES) == len(lengths) == 8
    assert lengths.min() < 5
    assert lengths.max() > 128
    assert (inputs["segment_ids"] == 1).any(1).sum() == sum(isinstance(s, tuple) for s in SENTENCES)
    tokenizer = RoFormerTokenizer.from_pretrained(released("word"))
    assert (inputs["token_ids"] == tokenizer.unk_id).mean() < 0.2


def test_our_outputs_equal_the_recorded_ones(released, recorded):
    """Our outputs equal recorded ones.

    A comparison with another library alone would miss an error in the shared input.
    """
    arrays = recorded("sim_char")
    inputs = {key: arrays[key] for key in ("token_ids", "segment_ids")}
    with OpenedSource(released("sim_char")) as source:
        actual = our_outputs("bert4keras", source, inputs, "unilm")
    not_padding = inputs["token_ids"] != 0
    for name, want in zip(("embeddings", "layer_0", "layer_1"), arrays["hidden"], strict=True):
        np.testing.assert_allclose(actual[name][not_padding], want[not_padding], atol=1e-5)
    np.testing.assert_allclose(actual["pooled"], arrays["pooled"], atol=1e-5)
    positions = arrays["lm_at"][not_padding[tuple(arrays["lm_at"].T)]]
    want = arrays["lm_logits"][not_padding[tuple(arrays["lm_at"].T)]]
    np.testing.assert_allclose(actual["logits"][tuple(positions.T)], want, atol=2e-5)


def test_only_real_tokens_and_common_outputs_are_compared():
    token_ids = np.array([[0, 5, 0], [7, 8, 0]])
    ours = {"layer_0": np.zeros((2, 3, 4)), "pooled": np.zeros((2, 4)), "logits": np.zeros((2, 3))}
    theirs = {"layer_0": np.zeros((2, 3, 4)), "pooled": np.zeros((2, 4)), "more": np.ones(1)}
    theirs["layer_0"][0, 2] = theirs["layer_0"][1, 2] = 9  # padding
    assert differences(ours, theirs, token_ids) == {"layer_0": 0, "pooled": 0}
    theirs["layer_0"][0, 0, 1] = 0.5  # id 0 in the first position is not padding
    theirs["pooled"][1, 1] = np.nan
    assert differences(ours, theirs, token_ids) == {"layer_0": 0.5, "pooled": np.inf}


@pytest.mark.parametrize(
    ("largest", "first"),
    [
        ({"embeddings": 1e-5, "layer_0": 9e-6, "logits": 2e-5}, None),
        ({"embeddings": 1e-6, "layer_0": 1.1e-5, "layer_1": 0.3, "logits": 1.0}, "layer_0"),
        ({"embeddings": np.inf}, "embeddings"),
        ({"embeddings": 0.0, "layer_0": 0.0, "logits": 2.1e-5}, "logits"),
    ],
)
def test_the_first_difference_beyond_its_bound_is_named(largest, first, capsys):
    if first is None:
        print_differences(largest)
        assert "All differences are within their bounds." in capsys.readouterr().out
        return
    with pytest.raises(DifferenceError, match=f"^{first} is the first output that differs"):
        print_differences(largest)
    assert capsys.readouterr().out.count("\n") == 1 + len(largest)


# --- Refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("against", "printed"),
    [
        ("bert4keras", "pip install --no-deps bert4keras==0.11.5"),
        ("transformers", "pip install torch 'transformers>=5'"),
    ],
)
def test_a_missing_library_is_reported_with_the_command_that_installs_it(
    against, printed, released, monkeypatch
):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(InputError) as error:
        run(released("word"), against)
    assert printed in str(error.value)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rotary_base": 50.0}, "rotary_base 50, which bert4keras does not support"),
        ({"rotary_value": True}, "rotary_value True, which bert4keras does not support"),
        ({"position_embedding_type": "t5"}, "'t5', which bert4keras does not support"),
    ],
)
def test_models_unsupported_by_bert4keras_are_refused(changes, message, released, tmp_path):
    from roformer_tf.models.encoder import RoFormerEncoder

    save(RoFormerEncoder(small_config(**changes)), tmp_path, released)
    with pytest.raises(InputError, match=message):
        run(tmp_path, "bert4keras")


@pytest.mark.usefixtures("installed")
def test_a_missing_vocabulary_is_refused(unpacked):
    folder = unpacked("word")
    (folder / "vocab.txt").unlink()
    with pytest.raises(InputError, match=r"has no vocab\.txt"):
        run(folder, "bert4keras")
