"""`pretrain --rows` uses the settings of preparation and rejects flags that contradict them."""

import json
from types import SimpleNamespace

import pytest

from roformer_tf.cli import main
from roformer_tf.pretraining import command
from roformer_tf.pretraining.initialization import new_architecture
from roformer_tf.pretraining.settings import (
    InitializationConfig,
    PretrainConfig,
    read_architecture,
)
from roformer_tf.training.run_files import plain


@pytest.fixture
def on_rows(pretrained, pretrain_flags):
    """A function that returns flags for the rows of the finished run.

    The rows have 32 tokens, are tokenized by characters, and a tenth is held out.
    """

    def flags(output, **changes):
        settings_of_rows = dict.fromkeys(
            ("corpus", "vocab_size", "tokenization", "length", "held_out")
        )
        changes = {"rows": pretrained / "rows", "precision": "float32"} | changes
        return pretrain_flags(output, **settings_of_rows | changes)

    return flags


@pytest.mark.parametrize(
    ("flags", "result"),
    [
        ("--length 64", "--length is 64, but they were prepared with 32"),
        ("--length 512", "--length is 512, but they were prepared with 32"),  # 512 is the default
        ("--tokenization word", "--tokenization is word, but they were prepared with char"),
        ("--lower-case False", "--lower-case is False, but they were prepared with True"),
        ("--whole-words", "--whole-words is True"),
        ("--fill 0.5", "--fill is 0.5, but they were prepared with 0.99"),
        ("--held-out 0.2", "--held-out is 0.2, but they were prepared with 0.1"),
        ("--duplicates exact", "--duplicates is exact, but they were prepared with keep"),
        ("--similarity 0.5", "--similarity is 0.5"),
        ("--field body", "--field is body, but they were prepared with text"),
        ("--strict", "--strict is True, but they were prepared with False"),
        ("--min-characters 3", "--min-characters is 3, but they were prepared with 0"),
        ("--drop-repeated-lines", "--drop-repeated-lines is True, but they were"),
        ("--engine dask --scheduler tcp://h:1", "--engine is dask, but they"),
        ("--length 31 --fill 1", "--fill is 1.0, but they were prepared with 0.99; --length is 31"),
    ],
)
def test_contradicting_preparation_flags_are_refused(
    on_rows, pretrained, tmp_path, capsys, flags, result
):
    assert main(["pretrain", *on_rows(tmp_path / "run"), *flags.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    result = result.removesuffix(", but they")
    assert f"--rows {pretrained / 'rows'} are already prepared, so these have no effect: " in err
    assert result in err
    assert "Remove them, give those of the rows, or prepare other rows." in err
    assert list(tmp_path.iterdir()) == []


def test_the_default_length_without_rows_is_512():
    config = PretrainConfig(corpus=("x.txt",), vocab_size=100, output="run")
    assert [stage.length for stage in config.plan()] == [512]
    assert plain(config)["length"] is None  # set when the run starts


@pytest.mark.parametrize(
    ("flags", "want"),
    [
        ({}, (0.1, 0.1)),
        ({"dropout": 0.3}, (0.3, 0.3)),
        ({"attention_dropout": 0.0}, (0.1, 0.0)),
        ({"dropout": 0.3, "attention_dropout": 0.2}, (0.3, 0.2)),
    ],
)
def test_attention_dropout_may_differ_from_dropout(flags, want):
    config = InitializationConfig(**flags)
    shape = new_architecture(config, 32)
    assert (shape.hidden_dropout_prob, shape.attention_probs_dropout_prob) == want


def test_a_new_architecture_has_positions_for_the_longest_rows():
    usual = read_architecture(None).max_position_embeddings
    for length, want in ((32, usual), (usual + 1, usual + 1)):
        architecture = new_architecture(InitializationConfig(), length)
        assert architecture.max_position_embeddings == want


def test_an_architecture_needs_no_vocabulary_size(tmp_path):
    """The vocabulary of the data gives it."""
    file = tmp_path / "architecture.json"
    shape = read_architecture(None).to_dict()
    del shape["vocab_size"]
    file.write_text(json.dumps(shape))
    config = InitializationConfig(architecture=str(file))
    assert new_architecture(config, 32).num_hidden_layers == shape["num_hidden_layers"]


@pytest.mark.parametrize("rematerialize", [False, True])
def test_rematerialize_is_passed_to_the_encoder(
    rematerialize, pretrained, pretrain_flags, tmp_path, monkeypatch
):
    actual = []
    monkeypatch.setattr(command, "_run", lambda run: actual.append(run.model.model.encoder))
    arguments = {"rows": pretrained / "rows", "corpus": None, "vocab_size": None}
    extra_flags = ["--rematerialize"] if rematerialize else []
    assert main(["pretrain", *pretrain_flags(tmp_path / "run", **arguments), *extra_flags]) == 0
    assert [encoder.rematerialize for encoder in actual] == [rematerialize]


@pytest.mark.parametrize(
    ("dtype", "rate", "result"),
    [
        ("bfloat16", 0.0, "; attention by cuDNN"),
        ("float32", 0.0, "; attention plain, because its kernel takes no float32"),
        ("bfloat16", 0.1, "; attention plain, because its kernel has no dropout"),
    ],
)
def test_the_attention_kernel_is_printed_on_a_gpu(monkeypatch, dtype, rate, result):
    config = SimpleNamespace(attention_probs_dropout_prob=rate)
    model = SimpleNamespace(compute_dtype=dtype, config=config)
    monkeypatch.setattr(command, "flashes", lambda: True)
    assert command._attention(model).startswith(result)
    monkeypatch.setattr(command, "flashes", lambda: False)
    assert command._attention(model) == ""
