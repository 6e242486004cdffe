"""The table of names has exactly one row for every tensor of every family's files."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file

from roformer_tf.checkpoints.names import IGNORED, TIED, complete_config, table
from roformer_tf.checkpoints.tf1 import read_tensors
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError

CONFIG = RoFormerConfig(
    vocab_size=11,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=20,
    embedding_size=10,
    type_vocab_size=3,
)
LABELLED = CONFIG.replace(num_labels=5)
V2_CONFIG = LABELLED.replace(norm_type="rms_norm", use_bias=False)
ROWS = table(LABELLED)
LAYOUTS = ("tf1", "huggingface")


def distinct(shape):
    """Return an array of this shape with distinct elements."""
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


@pytest.mark.parametrize("config", [CONFIG, LABELLED, V2_CONFIG], ids=["plain", "labelled", "v2"])
def test_no_name_occurs_twice(config):
    rows = table(config)
    for names in zip(*((row.name, row.tf1, row.huggingface) for row in rows), strict=True):
        assert len(set(names)) == len(names) == len(rows)


def test_v2_has_no_norm_weights_biases_and_head():
    dropped_rows = [row for row in ROWS if row not in table(V2_CONFIG)]
    assert all(row in ROWS for row in table(V2_CONFIG))
    dropped = re.compile(r"encoder/.*(norm/(beta|gamma)|/bias)|mlm/.*")
    assert {row.name for row in dropped_rows} == {r.name for r in ROWS if dropped.fullmatch(r.name)}
    per_layer = len(("query", "key", "value", "output", "intermediate", "output"))
    encoder = [row for row in table(V2_CONFIG) if row.part == "encoder"]
    # Two embeddings, the projection E → H, and the kernels of the layers.
    assert len(encoder) == 2 + 1 + per_layer * V2_CONFIG.num_hidden_layers


def test_without_labels_there_are_no_rows_for_them():
    heads = {"classifier", "token_classifier", "crf", "global_pointer"}
    assert {row.part for row in ROWS} - {row.part for row in table(CONFIG)} == heads
    assert {row.shape[-1] for row in ROWS if "out_proj" in row.name} == {5}


def test_heads_have_their_names_in_other_libraries():
    """Heads have the names of transformers, JunnYu, Google and pytorch-crf.

    In TF1, classifiers have our names.
    """
    names = {
        "classifier/dense": ("classifier/dense", "classifier.dense"),
        "classifier/out_proj": ("classifier/out_proj", "classifier.out_proj"),
        "token_classifier": ("token_classifier", "classifier"),
        "pooler/dense": ("bert/pooler/dense", "roformer.pooler.dense"),
    }
    rows = {row.name: (row.tf1, row.huggingface) for row in ROWS}
    for ours, (tf1, huggingface) in names.items():
        assert rows[f"{ours}/kernel"] == (f"{tf1}/kernel", f"{huggingface}.weight")
        assert rows[f"{ours}/bias"] == (f"{tf1}/bias", f"{huggingface}.bias")
    for name in ("start_transitions", "transitions", "end_transitions"):
        assert rows[f"crf/{name}"] == (f"crf/{name}", f"crf.{name}")
    pair, theirs = "cls/seq_relationship/output", "cls.seq_relationship"
    assert rows["seq_relationship/kernel"] == (f"{pair}_weights", f"{theirs}.weight")
    assert rows["seq_relationship/bias"] == (f"{pair}_bias", f"{theirs}.bias")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_converting_a_weight_there_and_back_is_the_identity(row, layout, style):
    in_file = distinct(row.shape_in(layout))
    ours = row.from_file(in_file, layout, style)
    assert ours.shape == row.shape
    assert sorted(ours.reshape(-1)) == sorted(in_file.reshape(-1))
    np.testing.assert_array_equal(row.to_file(ours, layout, style), in_file)
    array = distinct(row.shape)
    back = row.from_file(row.to_file(array, layout, style), layout, style)
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_both_layouts_give_the_same_weights(row):
    in_tf1 = distinct(row.shape_in("tf1"))
    kernel = row.tf1.endswith("/kernel")  # Hugging Face stores these as (out, in)
    ours = row.from_file(in_tf1.T if kernel else in_tf1, "huggingface", "interleaved")
    np.testing.assert_array_equal(ours, row.from_file(in_tf1, "tf1", "interleaved"))


def test_only_queries_and_keys_depend_on_the_rotary_style():
    for row in ROWS:
        in_file = distinct(row.shape_in("tf1"))
        half, interleaved = (row.from_file(in_file, "tf1", s) for s in ("half", "interleaved"))
        is_rotated = bool(re.search(r"attention/(query|key)/", row.name))
        assert (half != interleaved).any() == is_rotated
    (bias,) = (row for row in ROWS if row.name == "encoder/layer_1/attention/key/bias")
    in_half = bias.from_file(np.arange(24), "tf1", "half")
    np.testing.assert_array_equal(in_half[1], [8, 10, 12, 14, 9, 11, 13, 15])  # second head


PARTS = {  # what a released file contains besides the encoder
    "word": {"mlm"},
    "char": {"mlm"},
    "word_project": {"mlm"},
    "gpt_char": {"mlm"},
    "sim_char": {"mlm", "pooler"},
    "sim_char_ft": {"mlm", "pooler"},
    "v2_char": set(),
    "word_adam": {"mlm", "pooler", "seq_relationship"},
}


@pytest.mark.parametrize("name", PARTS)
def test_every_tensor_of_a_released_file_has_a_row(name, unpacked):
    folder = unpacked(name)
    shapes = read_tensors(folder / "bert_model.ckpt").shapes
    config = RoFormerConfig.from_file(folder / "bert_config.json")
    rows = {row.tf1: row for row in table(complete_config(config, shapes, "tf1", folder))}
    slots = {name_in_file for name_in_file in shapes if name_in_file not in rows}
    assert bool(slots) == (name == "word_adam")
    assert all(re.search(r"/adam_[mv]$|^global_step$", name_in_file) for name_in_file in slots)
    assert all(IGNORED.fullmatch(name_in_file) for name_in_file in slots)
    parts = {"encoder", *PARTS[name]}
    assert {
        name_in_file for name_in_file, row in rows.items() if row.part in parts
    } == shapes.keys() - slots
    assert all(
        shapes[name_in_file] == row.shape_in("tf1")
        for name_in_file, row in rows.items()
        if name_in_file in shapes
    )


@pytest.mark.parametrize(
    ("name", "head"),
    [("hf_word", {"mlm"}), ("hf_char", {"mlm"}), ("hf_word_seqcls", {"classifier"})],
)
def test_every_tensor_of_transformers_has_a_row(name, head, released):
    arrays = load_file(released(name) / "model.safetensors")
    config = RoFormerConfig.from_file(released(name) / "config.json")
    rows = {r.huggingface: r for r in table(config) if r.part in {"encoder", *head}}
    assert arrays.keys() - rows.keys() == {"roformer.encoder.embed_positions.weight"}
    assert rows.keys() <= arrays.keys()
    for name_in_file, row in rows.items():
        assert arrays[name_in_file].shape == row.shape_in("huggingface")


def test_every_tensor_of_the_v2_folder_has_a_row(released):
    arrays = load_file(released("hf_v2_char") / "model.safetensors")
    config = RoFormerConfig.from_file(released("hf_v2_char") / "config.json")
    rows = {row.huggingface for row in table(config) if row.part == "encoder"}
    assert rows == {name for name in arrays if not IGNORED.fullmatch(name)}


@pytest.mark.parametrize(
    "name",
    [
        "global_step",
        "bert/encoder/layer_0/attention/self/query/kernel/adam_m",
        "cls/predictions/output_bias/adam_v",
        "cls/predictions/output_bias/lamb_v",
        "cls/predictions/output_bias/Adam",  # TensorFlow's own optimizer
        "cls/predictions/output_bias/Adam_1",
        "beta1_power",
        "beta2_power",
        "bert/embeddings/position_embeddings",
        "roformer.encoder.embed_positions.weight",
        *TIED,
    ],
)
def test_names_without_weights_are_ignored(name):
    assert IGNORED.fullmatch(name)


@pytest.mark.parametrize(
    "name",
    [
        *(name for row in ROWS for name in (row.tf1, row.huggingface)),
        "my_global_step",
        "bert/encoder/layer_0/attention/self/query/kernel/adam_m/extra",
        "bert/encoder/Adam_2",
        "bert/embeddings/position_embeddings_2",
        "roformer/encoder/embed_positions/weight",
        "classifier.dense.weight",
    ],
)
def test_no_other_name_is_ignored(name):
    assert not IGNORED.fullmatch(name)


# --- Inferring the architecture from the tensors -------------------------------------------------


def shapes_of(config, layout, *parts):
    """Return the shapes of a file with these parts, by their names in the file."""
    rows = (row for row in table(config) if row.part in parts)
    return {row.name_in(layout): row.shape_in(layout) for row in rows}


def completed(config, shapes, layout):
    return complete_config(config, shapes, layout, "my.zip")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("parts", [("encoder",), ("encoder", "pooler", "classifier")])
def test_v2_is_inferred_from_its_tensors(layout, parts):
    """V2 is inferred from the tensors, because no `bert_config.json` declares it.

    Heads have biases in V2 too.
    """
    plain, v2 = CONFIG.replace(hidden_act="relu"), V2_CONFIG.replace(hidden_act="relu")
    for config in (plain, v2.replace(num_labels=0)):
        actual = completed(config, shapes_of(v2, layout, *parts), layout)
        assert actual == v2.replace(num_labels=5 if "classifier" in parts else 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_norm_or_bias_of_the_encoder_identifies_roformer(layout):
    v1, v2 = (shapes_of(config, layout, "encoder") for config in (CONFIG, V2_CONFIG))
    for name in v1.keys() - v2.keys():
        assert not completed(CONFIG, v2 | {name: v1[name]}, layout).is_v2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", [CONFIG, V2_CONFIG], ids=["v1", "v2"])
def test_without_an_encoder_the_config_decides(config, layout):
    shapes = shapes_of(config.replace(num_labels=5), layout, "pooler", "classifier")
    assert completed(config, shapes, layout).is_v2 == config.is_v2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_config_of_v2_with_weights_of_roformer_is_refused(layout):
    (bias,) = (row for row in ROWS if row.name == "encoder/layer_1/output/bias")
    shapes = shapes_of(V2_CONFIG, layout, "encoder") | {bias.name_in(layout): bias.shape_in(layout)}
    message = (
        rf"my\.zip: its config has norm_type 'rms_norm'.* weights contain {bias.name_in(layout)},"
    )
    with pytest.raises(InputError, match=message):
        completed(V2_CONFIG, shapes, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("config", [CONFIG, V2_CONFIG], ids=["v1", "v2"])
def test_another_number_of_layers_is_refused(config, layers, layout):
    shapes = shapes_of(config, layout, "encoder")
    message = rf"my\.zip: its config has num_hidden_layers {layers}, .* of layers 0 to 1\. Give"
    with pytest.raises(InputError, match=message):
        completed(config.replace(num_hidden_layers=layers), shapes, layout)


def test_optimizer_slots_do_not_change_the_config():
    shapes = shapes_of(V2_CONFIG, "tf1", "encoder")
    slots = {f"{name}/adam_{m}": shape for name, shape in shapes.items() for m in "mv"}
    assert completed(V2_CONFIG, shapes | slots | {"global_step": ()}, "tf1") == V2_CONFIG


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("head", ["classifier", "token_classifier"])
def test_the_number_of_labels_is_inferred_from_the_head(layout, head):
    shapes = shapes_of(LABELLED, layout, "encoder", head)
    assert completed(CONFIG, shapes, layout).num_labels == 5
    assert completed(CONFIG.replace(num_labels=3), shapes, layout).num_labels == 3
    assert completed(CONFIG, shapes_of(CONFIG, layout, "encoder"), layout).num_labels == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_for_pairs_implies_bidirectional_attention(layout):
    """BERT's sentence-pair head implies bidirectional attention, but a pooler alone does not.

    The released sim-char models have only a pooler and use UniLM's attention.
    """
    pooled = shapes_of(CONFIG, layout, "encoder", "mlm", "pooler")
    assert completed(CONFIG, pooled, layout).attention_type is None
    paired = pooled | shapes_of(CONFIG, layout, "seq_relationship")
    assert completed(CONFIG, paired, layout).attention_type == "bidirectional"
    causal = CONFIG.replace(attention_type="causal")
    assert completed(causal, paired, layout).attention_type == "causal"
