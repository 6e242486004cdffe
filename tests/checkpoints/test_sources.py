"""Every kind of source is read, and every bad one gets one clear message."""

import json
import shutil
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from roformer_tf.checkpoints.sources import read
from roformer_tf.errors import InputError


def equal(first, second):
    """Two checkpoints hold the same architecture and, bit for bit, the same weights."""
    assert first.config == second.config
    assert first.arrays.keys() == second.arrays.keys()
    return all((first.arrays[name] == second.arrays[name]).all() for name in first.arrays)


def change_config(folder, **changes):
    """Change keys of a folder's config; None takes one away."""
    (path,) = (p for p in folder.iterdir() if p.name in ("bert_config.json", "config.json"))
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}))


def change_tensors(folder, changes):
    """Change tensors of a Hugging Face folder; None takes one away."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | changes
    save_file({name: array for name, array in tensors.items() if array is not None}, path)


@pytest.mark.parametrize("name", ["word", "char", "word_project", "word_adam"])
def test_a_zip_and_its_unpacked_folder_are_the_same_checkpoint(name, released, unpacked):
    assert equal(read(released(name)), read(unpacked(name)))
    assert equal(read(str(released(name))), read(released(name)))


@pytest.mark.parametrize(("zipped", "folder"), [("word", "hf_word"), ("char", "hf_char")])
def test_a_zip_and_the_folder_converted_from_it_hold_the_same_weights(zipped, folder, released):
    first, second = read(released(zipped)).arrays, read(released(folder)).arrays
    assert first.keys() == second.keys()
    assert all((first[name] == second[name]).all() for name in first)


def test_files_at_the_top_of_a_zip_and_strangers_beside_them_are_no_hindrance(unpacked, tmp_path):
    folder = unpacked("char")
    (folder / "readme.txt").write_text("你好", encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "flat.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
        archive.writestr("__MACOSX/._bert_model.ckpt.index", b"junk")
    assert equal(read(tmp_path / "flat.zip"), read(folder))


def test_only_the_index_and_data_files_are_needed(unpacked):
    folder = unpacked("char")
    whole = read(folder)
    for name in ("checkpoint", "bert_model.ckpt.meta", "vocab.txt"):
        (folder / name).unlink()
    assert equal(read(folder), whole)


def test_optimizer_slots_are_left_out_and_further_heads_are_kept(released, recorded):
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


def test_a_second_copy_of_the_tied_decoder_is_ignored(unpacked):
    folder = unpacked("hf_word")
    whole = read(folder)
    tensors = load_file(folder / "model.safetensors")
    words = tensors["roformer.embeddings.word_embeddings.weight"]
    copies = {
        "cls.predictions.decoder.weight": words.copy(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].copy(),
    }
    change_tensors(folder, copies)
    assert equal(read(folder), whole)
    change_tensors(folder, {"cls.predictions.decoder.weight": words + 1})
    with pytest.raises(InputError, match=r"decoder of its own.*tied weights"):
        read(folder)


def test_overrides_replace_keys_of_the_config(released):
    config = read(released("word"), rotary_style="half", hidden_dropout_prob=0.0).config
    assert (config.rotary_style, config.hidden_dropout_prob) == ("half", 0.0)
    with pytest.raises(InputError, match=r"has no colour\. It has: .*hidden_size"):
        read(released("word"), colour="red")


# --- Bad sources -------------------------------------------------------------------------------


def test_a_missing_path_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.zip does not exist\. Give"):
        read(tmp_path / "nowhere.zip")


def test_a_folder_without_a_checkpoint_is_told_what_one_is(tmp_path):
    with pytest.raises(InputError, match=r"holds no checkpoint\. A checkpoint is bert_config"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["word", "hf_word"])
def test_a_folder_with_a_config_alone_holds_no_checkpoint(name, unpacked):
    folder = unpacked(name)
    for path in folder.iterdir():
        if not path.name.endswith("config.json"):
            path.unlink()
    with pytest.raises(InputError, match="holds no checkpoint"):
        read(folder)


def test_a_runs_folder_points_to_its_model(unpacked, tmp_path):
    shutil.move(unpacked("hf_word"), tmp_path / "run" / "model")
    with pytest.raises(InputError, match=r"run's folder: its model lies in .*model\."):
        read(tmp_path / "run")


def test_a_pickle_is_never_opened(unpacked):
    folder = unpacked("hf_word")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pickle, which is never opened.*model\.safetensors"):
        read(folder)


def test_two_checkpoints_in_one_folder_are_ambiguous(unpacked):
    folder = unpacked("word")
    for name in ("index", "data-00000-of-00001"):
        shutil.copy(folder / f"bert_model.ckpt.{name}", folder / f"other.ckpt.{name}")
    with pytest.raises(InputError, match=r"several checkpoints: bert_model.*other.*Leave one"):
        read(folder)


def test_two_layouts_in_one_folder_are_ambiguous(unpacked):
    folder = shutil.copytree(unpacked("hf_word"), unpacked("word"), dirs_exist_ok=True)
    with pytest.raises(InputError, match=r"several checkpoints: .*\.index, model\.safetensors"):
        read(folder)


@pytest.mark.parametrize("size", [0, 1, 21, 1000, 20_000, 200_000, -400, -30, -1])
def test_a_truncated_zip_is_refused(size, released, tmp_path):
    path = tmp_path / "cut.zip"
    path.write_bytes(released("char").read_bytes()[:size])
    with pytest.raises(InputError, match=r"cut\.zip .*[Ff]etch it again"):
        read(path)


@pytest.mark.parametrize("seed", range(12))
def test_a_zip_with_a_changed_byte_is_refused_or_reads_the_same(seed, released, tmp_path):
    content = bytearray(released("char").read_bytes())
    rng = np.random.default_rng(seed)
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    path = tmp_path / "changed.zip"
    path.write_bytes(content)  # the name, date or .meta of a file may change unnoticed
    try:
        checkpoint = read(path)
    except InputError:
        return
    assert equal(checkpoint, read(released("char")))


@pytest.mark.parametrize(
    ("offset", "value"),
    [(8, 1), (10, 99)],  # of a member's entry in the directory: "encrypted", unknown compression
)
def test_a_zip_that_python_cannot_unpack_is_refused(offset, value, released, tmp_path):
    content = bytearray(released("char").read_bytes())
    start = -1
    while (start := content.find(b"PK\x01\x02", start + 1)) >= 0:
        content[start + offset] = value
    path = tmp_path / "strange.zip"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"strange\.zip cannot be unpacked"):
        read(path)


def test_a_zip_of_something_else_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("cat.txt", "meow")
    with pytest.raises(InputError, match=r"photos\.zip holds no bert_config\.json"):
        read(tmp_path / "photos.zip")
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a/bert_config.json", "{}")
        archive.writestr("b/bert_config.json", "{}")
    with pytest.raises(InputError, match=r"two\.zip holds 2 bert_config\.json"):
        read(tmp_path / "two.zip")


def test_a_file_that_is_no_zip_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(InputError, match=r"vocab\.txt is no whole zip file"):
        read(tmp_path / "vocab.txt")


@pytest.mark.parametrize("name", ["word", "hf_word"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 2004}, r"has the shape \(2003, 32\).*asks for \(2004, 32\)"),
        ({"intermediate_size": 64}, r"has the shape .*96.*asks for .*64"),
        ({"hidden_size": 64, "embedding_size": 64}, r"has the shape .*32.*asks for .*64"),
        ({"num_hidden_layers": 1}, "16 tensors that no RoFormer of its config has"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"hidden_size": 36, "embedding_size": None}, "no even head size"),
        ({"num_attention_heads": "4"}, "num_attention_heads is '4'"),
        ({"rotary_value": True}, "rotary_value true"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(name, changes, message, unpacked):
    folder = unpacked(name)
    change_config(folder, **changes)
    with pytest.raises(InputError, match=message) as caught:
        read(folder)
    assert str(folder) in str(caught.value)


def test_foreign_tensors_are_refused_by_name(unpacked):
    folder = unpacked("hf_word")
    change_tensors(folder, {"classifier.weight": np.zeros((3, 32), "float32")})
    with pytest.raises(InputError, match=r"1 tensors that no RoFormer.*classifier\.weight"):
        read(folder)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "null", '{"vocab_size": 3'])
def test_a_config_that_is_no_json_object_is_refused(content, unpacked):
    folder = unpacked("char")
    (folder / "bert_config.json").write_text(content)
    with pytest.raises(InputError, match=r"bert_config\.json (is not valid JSON|holds no JSON)"):
        read(folder)
