"""Every kind of source is read, and every bad source is refused with one clear message."""

import json
import re
import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from roformer_tf.checkpoints import tf1
from roformer_tf.checkpoints.arrays import LazyArrays
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.errors import InputError

PACKAGE = Path(tf1.__file__).parents[1]


def equal(first, second):
    """Return whether two checkpoints have the same config and identical weights."""
    assert first.config == second.config
    assert first.arrays.keys() == second.arrays.keys()
    return all((first.arrays[name] == second.arrays[name]).all() for name in first.arrays)


def change_config(folder, **changes):
    """Change keys of a folder's config; None removes a key."""
    (path,) = (p for p in folder.iterdir() if p.name in ("bert_config.json", "config.json"))
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def change_tensors(folder, changes):
    """Change tensors of a Hugging Face folder; None removes a tensor."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: array for name, array in tensors.items() if array is not None}, path)


@pytest.mark.parametrize("name", ["word", "char", "word_project", "word_adam"])
def test_a_zip_and_its_unpacked_folder_are_the_same_checkpoint(name, released, unpacked, read):
    assert equal(read(released(name)), read(unpacked(name)))
    assert equal(read(str(released(name))), read(released(name)))


@pytest.mark.parametrize(("zipped", "folder"), [("word", "hf_word"), ("char", "hf_char")])
def test_a_zip_and_its_converted_folder_have_the_same_weights(zipped, folder, released, read):
    first, second = read(released(zipped)).arrays, read(released(folder)).arrays
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)


def test_files_at_the_top_of_a_zip_and_unrelated_files_are_accepted(unpacked, tmp_path, read):
    folder = unpacked("char")
    (folder / "readme.txt").write_text("你好", encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "flat.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
        archive.writestr("__MACOSX/._bert_model.ckpt.index", b"junk")
    assert equal(read(tmp_path / "flat.zip"), read(folder))


def test_only_the_index_and_data_files_are_needed(unpacked, read):
    folder = unpacked("char")
    expected = read(folder)
    for name in ("checkpoint", "bert_model.ckpt.meta", "vocab.txt"):
        (folder / name).unlink()
    assert equal(read(folder), expected)


def test_optimizer_slots_are_excluded_and_other_heads_are_kept(released, recorded, read):
    arrays = read(released("word_adam")).arrays
    assert {name.split("/")[0] for name in arrays} == {
        "encoder",
        "mlm",
        "pooler",
        "seq_relationship",
    }
    assert not [name for name in arrays if "adam" in name or "global_step" in name]
    values = recorded("word_adam")
    pooled = np.tanh(
        values["hidden_last"][:, 0] @ arrays["pooler/dense/kernel"] + arrays["pooler/dense/bias"]
    )
    np.testing.assert_allclose(pooled, values["pooled_tanh"], atol=1e-5)
    scores = np.exp(pooled @ arrays["seq_relationship/kernel"] + arrays["seq_relationship/bias"])
    np.testing.assert_allclose(
        scores / scores.sum(-1, keepdims=True), values["nsp_probs"], atol=1e-5
    )


def test_ignored_tensors_are_listed(released, read):
    assert read(released("word")).ignored == ()
    assert read(released("hf_word")).ignored == ("roformer.encoder.embed_positions.weight",)
    ignored = read(released("word_adam")).ignored
    assert len(ignored) == 91
    assert all(name == "global_step" or name[-7:] in ("/adam_m", "/adam_v") for name in ignored)


@pytest.mark.parametrize("name", ["word", "v2_char", "hf_word"])
def test_shapes_and_dtypes_are_known_without_reading(name, released):
    with OpenedSource(released(name)) as source:
        checkpoint = source.checkpoint()
        arrays = checkpoint.arrays
        assert checkpoint.layout == ("huggingface" if name[:2] == "hf" else "tf1")
        assert len(arrays) == len(list(arrays)) == len(arrays.shapes) == len(arrays.dtypes)
        for key in arrays:
            array = arrays[key]
            assert (array.shape, array.dtype) == (arrays.shapes[key], arrays.dtypes[key])
        assert "encoder/embeddings/norm/delta" not in arrays
        with pytest.raises(KeyError, match="norm/delta"):
            arrays["encoder/embeddings/norm/delta"]


def test_an_array_is_read_at_each_access(released, monkeypatch):
    reads = []
    original = tf1.read_tensors

    def recording_read(prefix):
        tensors = original(prefix)
        read = lambda name: reads.append(name) or tensors[name]  # noqa: E731
        return LazyArrays(tensors.shapes, tensors.dtypes, read)

    monkeypatch.setattr(tf1, "read_tensors", recording_read)
    with OpenedSource(released("word")) as source:
        arrays = source.checkpoint().arrays
        assert "mlm/bias" in arrays
        assert reads == []
        arrays["mlm/bias"][:] = 7
        assert not (arrays["mlm/bias"] == 7).any()
        assert reads == ["cls/predictions/output_bias"] * 2


def test_a_zip_is_unpacked_once_when_weights_are_needed(released, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with OpenedSource(released("word")) as source:
        assert source.read("vocab.txt").startswith(b"[PAD]\n")
        assert list(tmp_path.iterdir()) == []
        first, second = source.checkpoint(), source.checkpoint(rotary_style="half")
        (folder,) = tmp_path.iterdir()
        assert source.folder == folder
        name = "encoder/layer_0/attention/query/kernel"
        assert (first.arrays[name] != second.arrays[name]).any()
    assert list(tmp_path.iterdir()) == []


def test_only_checkpoints_locates_and_unzips_sources():
    own_folders = {"checkpoints", "readers"}  # readers unzip spreadsheets, but no checkpoints
    other_files = [path for path in PACKAGE.rglob("*.py") if path.parent.name not in own_folders]
    assert len(other_files) > 100
    actual = re.compile(
        r"\bzipfile\.(ZipFile|Path|is_zipfile)|archives import .*\bFiles\b|\blocate\b"
    )
    assert [path for path in other_files if actual.search(path.read_text(encoding="utf-8"))] == []


def test_a_source_keeps_its_given_name(released, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    name = "chinese_roformer_L-12_H-768_A-12"
    shutil.copy(released("word"), tmp_path / "checkpoints" / f"{name}.zip")
    with OpenedSource(name) as source:
        assert (source.name, str(source.path)) == (name, f"checkpoints/{name}.zip")
    with OpenedSource(tmp_path) as source:
        assert (source.name, source.path, source.folder) == (str(tmp_path), tmp_path, tmp_path)


def test_a_damaged_tensor_is_named_and_others_are_readable(unpacked):
    folder = unpacked("word")
    path = folder / "bert_model.ckpt.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last tensor by name
    path.write_bytes(content)
    with OpenedSource(folder) as source:
        arrays = source.checkpoint().arrays
        with pytest.raises(InputError, match=r"tensor cls/.*/dense/kernel of .*bert_model\.ckpt"):
            arrays["mlm/dense/kernel"]
        for name in arrays.shapes.keys() - {"mlm/dense/kernel"}:
            arrays[name]


@pytest.mark.parametrize("name", ["v2_char", "hf_v2_char"])
def test_a_v2_is_inferred_from_its_tensors(name, unpacked, read):
    folder = unpacked(name)
    change_config(folder, norm_type=None, use_bias=None)
    config = read(folder).config
    assert (config.norm_type, config.use_bias) == ("rms_norm", False)


def test_a_second_copy_of_the_tied_decoder_is_ignored(unpacked, read):
    folder = unpacked("hf_word")
    expected = read(folder)
    tensors = load_file(folder / "model.safetensors")
    words = tensors["roformer.embeddings.word_embeddings.weight"]
    copies = {
        "cls.predictions.decoder.weight": words.copy(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy(),
    }
    change_tensors(folder, copies)
    assert equal(read(folder), expected)
    change_tensors(folder, {"cls.predictions.decoder.weight": words + 1})
    with pytest.raises(InputError, match=r"separate decoder.*tied weights"):
        read(folder)


def test_overrides_replace_keys_of_the_config(released, read):
    config = read(released("word"), rotary_style="half", hidden_dropout_prob=0.0).config
    assert (config.rotary_style, config.hidden_dropout_prob) == ("half", 0.0)
    with pytest.raises(InputError, match=r"has no colour\. It has: .*hidden_size"):
        read(released("word"), colour="red")


# --- Bad sources -------------------------------------------------------------------------------


def test_a_missing_path_is_named(tmp_path, read):
    with pytest.raises(InputError, match=r"nowhere\.zip does not exist\. Give"):
        read(tmp_path / "nowhere.zip")


def test_a_folder_without_a_checkpoint_is_refused_with_the_expected_files(tmp_path, read):
    with pytest.raises(InputError, match=r"contains no checkpoint\. A checkpoint is bert_config"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["tf_model.h5", "model_state.pdparams", "adapter_model.bin"])
def test_weights_of_other_libraries_are_named(name, unpacked, read):
    folder = unpacked("hf_word")
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(InputError, match=rf"no checkpoint\. {name} cannot be read: open it in"):
        read(folder)


@pytest.mark.parametrize("limit", ["512", -1, True])
def test_a_maximum_length_that_is_no_number_is_refused(limit, unpacked, read):
    folder = unpacked("hf_word")
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}), "utf-8")
    with pytest.raises(InputError, match=r"model_max_length in tokenizer_config.json of .* must"):
        read(folder)


@pytest.mark.parametrize("name", ["word", "hf_word"])
def test_a_folder_with_only_a_config_is_not_a_checkpoint(name, unpacked, read):
    folder = unpacked(name)
    for path in folder.iterdir():
        if not path.name.endswith("config.json"):
            path.unlink()
    with pytest.raises(InputError, match="contains no checkpoint"):
        read(folder)


def test_a_runs_folder_points_to_its_model(unpacked, tmp_path, read):
    shutil.move(unpacked("hf_word"), tmp_path / "run" / "model")
    with pytest.raises(InputError, match=r"training run: its model is in .*model\."):
        read(tmp_path / "run")


def test_two_checkpoints_in_one_folder_are_ambiguous(unpacked, read):
    folder = unpacked("word")
    for name in ("index", "data-00000-of-00001"):
        shutil.copy(folder / f"bert_model.ckpt.{name}", folder / f"other.ckpt.{name}")
    with pytest.raises(InputError, match=r"several checkpoints: bert_model.*other.*Keep one"):
        read(folder)


def test_two_layouts_in_one_folder_are_ambiguous(unpacked, read):
    folder = shutil.copytree(unpacked("hf_word"), unpacked("word"), dirs_exist_ok=True)
    with pytest.raises(InputError, match=r"several checkpoints: .*\.index, model\.safetensors"):
        read(folder)


@pytest.mark.parametrize("seed", range(12))
def test_a_zip_with_a_changed_byte_is_refused_or_reads_the_same(seed, released, tmp_path, read):
    content = bytearray(released("char").read_bytes())
    rng = np.random.default_rng(seed)
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path = tmp_path / "changed.zip"
    path.write_bytes(content)  # a changed name, date or .meta file may go unnoticed
    try:
        checkpoint = read(path)
    except InputError:
        return
    assert equal(checkpoint, read(released("char")))


@pytest.mark.parametrize("name", ["word", "hf_word"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 2004}, r"has the shape \(2003, 32\).*requires \(2004, 32\)"),
        ({"intermediate_size": 64}, r"has the shape .*96.*requires .*64"),
        ({"hidden_size": 64, "embedding_size": 64}, r"has the shape .*32.*requires .*64"),
        ({"num_hidden_layers": 1}, r"num_hidden_layers 1, but its weights are of layers 0 to 1"),
        ({"embedding_size": 16}, r"has the shape \(2003, 32\).*requires \(2003, 16\)"),
        ({"hidden_size": None}, "lacks 'hidden_size'"),
        ({"hidden_size": 36, "embedding_size": None}, "no even head size"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(name, changes, message, unpacked, read):
    folder = unpacked(name)
    change_config(folder, **changes)
    with pytest.raises(InputError, match=message) as error:
        read(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize(
    ("name", "activation"), [("v2_char", "relu"), ("hf_v2_char", "relu"), ("word", "gelu")]
)
def test_a_missing_activation_is_that_of_the_architecture(name, activation, unpacked, read):
    folder = unpacked(name)
    change_config(folder, hidden_act=None)
    assert read(folder).config.hidden_act == activation
    assert read(folder, hidden_act="gelu_new").config.hidden_act == "gelu_new"


@pytest.mark.parametrize("last", [None, 99_999])
def test_more_layers_than_tensors_are_refused_quickly(last, unpacked, read):
    """Too many layers are refused before their names are listed.

    Listing the tensors of 100,000 layers takes minutes.
    """
    folder = unpacked("hf_word")
    names = ["roformer.embeddings.word_embeddings.weight"]
    tensors = load_file(folder / "model.safetensors")
    tensors_left = {name: tensors[name] for name in names}
    if last is not None:
        tensors_left[f"roformer.encoder.layer.{last}.output.dense.bias"] = np.zeros(32, "float32")
    save_file(tensors_left, folder / "model.safetensors")
    change_config(folder, num_hidden_layers=100_000)
    with pytest.raises(InputError, match=r"num_hidden_layers 100,000, but .* \d tensors\."):
        read(folder)


def test_foreign_tensors_are_refused_or_ignored(unpacked, read, caplog):
    folder = unpacked("hf_word")
    expected = read(folder)
    change_tensors(folder, {f"strange.{i}.weight": np.zeros(3, "float32") for i in range(12)})
    with pytest.raises(
        InputError, match=r"tensors that no .* \(12\): .*strange\.7\.weight and 2 more"
    ):
        read(folder)
    assert not caplog.records
    checkpoint = read(folder, ignore_unknown=True)
    assert equal(checkpoint, expected)
    assert all(f"strange.{i}.weight" in caplog.text for i in range(12))
    assert len(set(checkpoint.ignored) - set(expected.ignored)) == 12


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_nested_without_end_is_refused(name, unpacked, read):
    folder = unpacked("hf_word")
    if "index" in name:
        (folder / "model.safetensors").unlink()
    (folder / name).write_text("[" * 100_000)
    with pytest.raises(InputError, match=rf"{folder / name}"):
        read(folder)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "null", '{"vocab_size": 3'])
def test_a_config_that_is_not_a_json_object_is_refused(content, unpacked, read):
    folder = unpacked("char")
    (folder / "bert_config.json").write_text(content)
    with pytest.raises(InputError, match=r"bert_config\.json (is not valid|contains no) JSON"):
        read(folder)


def test_an_error_names_the_zip_instead_of_the_unpacked_folder(unpacked, tmp_path, read):
    folder = unpacked("char")
    change_config(folder, vocab_size=1502)
    with zipfile.ZipFile(tmp_path / "wrong.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    with pytest.raises(InputError, match=r"has the shape \(1501, 32\)") as error:
        read(tmp_path / "wrong.zip")
    assert str(error.value).startswith(f"{tmp_path / 'wrong.zip'}: ")
    (folder / "bert_config.json").write_text("{}")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    with pytest.raises(InputError, match="lacks 'vocab_size'") as error:
        read(tmp_path / "empty.zip")
    assert str(error.value).startswith(f"{tmp_path / 'empty.zip'}/bert_config.json lacks")
