"""The table is total: whatever a file of a family holds has its row, and nothing else does."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file

from roformer_tf.checkpoints.names import IGNORED, TIED, table
from roformer_tf.checkpoints.tf1 import read_arrays
from roformer_tf.config import RoFormerConfig

CONFIG = RoFormerConfig(
    vocab_size=11,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    embedding_size=10,
    type_vocab_size=3,
)
ROWS = table(CONFIG)


def counted(shape):
    """An array of a shape whose every element is another number."""
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


def test_no_name_stands_twice():
    for names in zip(*((row.name, row.tf1, row.huggingface) for row in ROWS), strict=True):
        assert len(set(names)) == len(names) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("layout", ["tf1", "huggingface"])
@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_there_and_back_every_weight_is_what_it_was(row, layout, style):
    in_file = counted(row.shape_in(layout))
    ours = row.from_file(in_file, layout, style)
    assert ours.shape == row.shape
    assert sorted(ours.reshape(-1)) == sorted(in_file.reshape(-1))
    np.testing.assert_array_equal(row.to_file(ours, layout, style), in_file)
    mine = counted(row.shape)
    back = row.from_file(row.to_file(mine, layout, style), layout, style)
    np.testing.assert_array_equal(back, mine)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_two_layouts_say_the_same(row):
    in_tf1 = counted(row.shape_in("tf1"))
    kernel = row.tf1.endswith("/kernel")  # Hugging Face holds these as (out, in)
    ours = row.from_file(in_tf1.T if kernel else in_tf1, "huggingface", "interleaved")
    np.testing.assert_array_equal(ours, row.from_file(in_tf1, "tf1", "interleaved"))


def test_only_queries_and_keys_depend_on_the_rotary_style():
    for row in ROWS:
        in_file = counted(row.shape_in("tf1"))
        half, interleaved = (row.from_file(in_file, "tf1", s) for s in ("half", "interleaved"))
        turned = bool(re.search(r"attention/(query|key)/", row.name))
        assert (half != interleaved).any() == turned
    (bias,) = (row for row in ROWS if row.name == "encoder/layer_1/attention/key/bias")
    in_half = bias.from_file(np.arange(24), "tf1", "half")
    np.testing.assert_array_equal(in_half[1], [8, 10, 12, 14, 9, 11, 13, 15])  # the second head


@pytest.mark.parametrize("name", ["word", "char", "word_project", "word_adam"])
def test_whatever_a_released_file_holds_has_its_row(name, unpacked):
    folder = unpacked(name)
    arrays = read_arrays(folder / "bert_model.ckpt")
    rows = {row.tf1: row for row in table(RoFormerConfig.from_file(folder / "bert_config.json"))}
    slots = {held for held in arrays if held not in rows}
    assert bool(slots) == (name == "word_adam")
    assert all(re.search(r"/adam_[mv]$|^global_step$", held) for held in slots)
    assert all(IGNORED.fullmatch(held) for held in slots)
    absent = {row.part for held, row in rows.items() if held not in arrays}
    assert absent == (set() if name == "word_adam" else {"pooler", "seq_relationship"})
    for held, row in rows.items():
        if held in arrays:
            assert arrays[held].shape == row.shape_in("tf1")


@pytest.mark.parametrize("name", ["hf_word", "hf_char"])
def test_whatever_transformers_writes_has_its_row(name, released):
    arrays = load_file(released(name) / "model.safetensors")
    config = RoFormerConfig.from_file(released(name) / "config.json")
    rows = {r.huggingface: r for r in table(config) if r.part in ("encoder", "mlm")}
    assert arrays.keys() - rows.keys() == {"roformer.encoder.embed_positions.weight"}
    assert rows.keys() <= arrays.keys()
    for held, row in rows.items():
        assert arrays[held].shape == row.shape_in("huggingface")


@pytest.mark.parametrize(
    "name",
    [
        "global_step",
        "bert/encoder/layer_0/attention/self/query/kernel/adam_m",
        "cls/predictions/output_bias/adam_v",
        "bert/embeddings/position_embeddings",
        "roformer.encoder.embed_positions.weight",
        *TIED,
    ],
)
def test_names_that_carry_no_weight_are_ignored(name):
    assert IGNORED.fullmatch(name)


@pytest.mark.parametrize(
    "name",
    [
        *(name for row in ROWS for name in (row.tf1, row.huggingface)),
        "my_global_step",
        "bert/encoder/layer_0/attention/self/query/kernel/adam_m/extra",
        "bert/embeddings/position_embeddings_2",
        "roformer/encoder/embed_positions/weight",
        "classifier.dense.weight",
    ],
)
def test_no_other_name_is_ignored(name):
    assert not IGNORED.fullmatch(name)
