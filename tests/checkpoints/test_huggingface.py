"""Our own format is that of Hugging Face, with identical tensors and config values."""

import json
import pathlib

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from roformer_tf.checkpoints import huggingface
from roformer_tf.checkpoints.huggingface import read_tensors, write
from roformer_tf.errors import InputError


@pytest.mark.parametrize("name", ["hf_word", "hf_char"])
def test_a_model_of_transformers_is_rewritten_identically(name, released, tmp_path, read):
    checkpoint = read(released(name))
    write(tmp_path, checkpoint.config, checkpoint.arrays, "RoFormerForMaskedLM")
    rewritten, original = (load_file(f / "model.safetensors") for f in (tmp_path, released(name)))
    assert rewritten.keys() == original.keys()
    for key, array in original.items():
        assert rewritten[key].dtype == array.dtype
        np.testing.assert_array_equal(rewritten[key], array, err_msg=key)
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}  # required by transformers
    config, written = (
        json.loads((f / "config.json").read_text(encoding="utf-8"))
        for f in (released(name), tmp_path)
    )
    arguments = {key: value for key, value in config.items() if value is not None}
    arguments.pop("transformers_version")
    all_values = checkpoint.config.to_dict()
    assert (
        written == {key: all_values[key] for key in written.keys() - arguments.keys()} | arguments
    )


def test_the_table_of_positions_follows_the_base(released, tmp_path, read):
    checkpoint = read(released("hf_char"), rotary_base=100.0, max_position_embeddings=40)
    write(tmp_path, checkpoint.config, checkpoint.arrays, "RoFormerModel")
    got = load_file(tmp_path / "model.safetensors")["roformer.encoder.embed_positions.weight"]
    theta = np.outer(np.arange(40), 100.0 ** -np.arange(0, 1, 0.25))  # head size 8: four pairs
    np.testing.assert_allclose(got, np.hstack([np.sin(theta), np.cos(theta)]), atol=1e-7)


def test_unknown_keys_of_a_config_are_written_back(released, tmp_path, read):
    checkpoint = read(released("hf_char"))
    config = checkpoint.config.replace(unknown={"note": "kept", "transformers_version": "4.0"})
    write(tmp_path, config, checkpoint.arrays, "RoFormerModel")
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert written["note"] == "kept"
    assert "transformers_version" not in written


def test_a_failed_write_keeps_the_old_files(released, tmp_path, read):
    checkpoint = read(released("hf_char"))
    write(tmp_path, checkpoint.config, checkpoint.arrays, "RoFormerModel")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    broken = checkpoint.arrays | {"encoder/embeddings/word/embeddings": np.array(object())}
    with pytest.raises((TypeError, ValueError)):
        write(tmp_path, checkpoint.config, broken, "RoFormerModel")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("size", [0, 7, 9, 5000, 100_000, -1])
def test_a_truncated_file_is_refused(size, unpacked):
    path = unpacked("hf_word") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=r"cannot read .*model.safetensors.*download it again"):
        dict(read_tensors(path))


def test_a_pointer_of_git_lfs_is_no_broken_download(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 90\n", "utf-8")
    with pytest.raises(InputError, match=r"model\.safetensors is a pointer .*`git lfs pull`"):
        dict(read_tensors(path))


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16, "float64"])
def test_other_precisions_are_read_unchanged(dtype, unpacked):
    path = unpacked("hf_char") / "model.safetensors"
    cast = {key: array.astype(dtype) for key, array in load_file(path).items()}
    save_file(cast, path)
    arrays = read_tensors(path)
    for key, array in cast.items():
        assert arrays[key].dtype == arrays.dtypes[key] == array.dtype
        assert arrays[key].tobytes() == array.tobytes()


def test_an_unknown_dtype_is_refused(unpacked):
    path = unpacked("hf_char") / "model.safetensors"
    save_file({"x": np.zeros(3, ml_dtypes.float8_e4m3fn)}, path)
    with pytest.raises(InputError, match=r"x has the dtype F8_E4M3.*float16, bfloat16, float32"):
        read_tensors(path)


# --- Shards and pickles ------------------------------------------------------------------------


def write_shards(folder, files):
    """Split a folder's weights into files, given the tensor names of each."""
    tensors_before = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for file, names in files.items():
        save_file({name: tensors_before[name] for name in names}, folder / file)
    index = {"weight_map": {name: file for file, names in files.items() for name in names}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tensors_before


def test_shards_are_read_as_one_file(unpacked, read):
    folder = unpacked("hf_word")
    expected = read(folder)
    names = sorted(load_file(folder / "model.safetensors"))
    write_shards(folder, {"a.safetensors": names[::2], "b.safetensors": names[1::2]})
    checkpoint = read(folder)
    assert checkpoint.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(checkpoint.arrays[name], array)
    (folder / "b.safetensors").unlink()
    with pytest.raises(InputError, match=r"cannot read .*b\.safetensors"):
        read(folder)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": ["a"]}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "../a.safetensors"}}',
        '{"weight_map": {"a": "/a.safetensors"}}',
    ],
)
def test_an_index_that_lists_files_of_other_folders_is_refused(content, tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"index\.json: it is not an index of files in its folder"):
        read_tensors(path)


def test_a_pickle_is_not_opened_without_torch(unpacked, read, monkeypatch):
    folder = unpacked("hf_word")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    monkeypatch.setattr(huggingface, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pickle, which can run code.*safetensors"):
        read(folder)


@pytest.mark.hf
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("zipped", [True, False])
def test_torch_reads_a_pickle_of_tensors(dtype, zipped, unpacked, read, torch):
    folder = unpacked("hf_word")
    expected = read(folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    tensors = {key: torch.from_numpy(t).to(getattr(torch, dtype)) for key, t in tensors.items()}
    if dtype == "float32":  # as of `dict(model.named_parameters())`
        tensors = {key: torch.nn.Parameter(tensor) for key, tensor in tensors.items()}
    path = folder / "pytorch_model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
    checkpoint = read(folder)
    for name, array in expected.arrays.items():
        assert checkpoint.arrays[name].dtype == np.dtype(dtype)
        np.testing.assert_array_equal(checkpoint.arrays[name], array.astype(dtype))


@pytest.mark.hf
@pytest.mark.parametrize(
    ("convert", "problem"),
    [
        (lambda t, torch: t.to(torch.float8_e4m3fn), "has the dtype float8_e4m3fn, .*bfloat16"),
        (lambda t, torch: t.to(torch.int8), "has the dtype int8, .*bfloat16"),
        (lambda t, torch: t.to_sparse(), "is sparse. Save it as a dense tensor"),
        (lambda t, torch: t.to_sparse_csr(), "is sparse. Save it as a dense tensor"),
    ],
)
def test_other_tensors_of_a_pickle_are_refused_by_their_name(
    convert, problem, unpacked, read, torch
):
    folder = unpacked("hf_word")
    tensors = {k: torch.from_numpy(t) for k, t in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    name = "roformer.embeddings.word_embeddings.weight"
    tensors[name] = convert(tensors[name], torch)
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(InputError, match=f"{name} {problem}"):
        read(folder)


@pytest.mark.parametrize("heads", [2, 8])
def test_another_number_of_heads_than_that_of_the_table_of_positions_is_refused(
    heads, unpacked, read
):
    folder = unpacked("hf_word")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": heads}))
    problem = f"num_attention_heads {heads} .* gives heads of {32 // heads} dimensions, .* has 8"
    with pytest.raises(InputError, match=problem):
        read(folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors[huggingface.POSITIONS]  # as in a file without the table
    save_file(tensors, folder / "model.safetensors")
    assert read(folder).config.num_attention_heads == heads


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_are_refused_as_weights_only(dtype, unpacked, read):
    folder = unpacked("hf_word")
    tensors = load_file(folder / "model.safetensors")
    tensors["roformer.embeddings.position_ids"] = np.arange(512, dtype=dtype)
    save_file(tensors, folder / "model.safetensors")
    assert read(folder).ignored == ("roformer.embeddings.position_ids", huggingface.POSITIONS)
    name = "roformer.pooler.dense.bias"
    tensors[name] = np.arange(32, dtype=dtype)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InputError, match=f"{name} has the dtype {dtype}, which is not supported"):
        read(folder)


class CreatesFile:
    """An object whose unpickling creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pathlib.Path.touch, (self.path,)


@pytest.mark.hf
def test_torch_runs_no_code_of_a_pickle(unpacked, read, tmp_path, torch):
    folder = unpacked("hf_word")
    (folder / "model.safetensors").unlink()
    for content in ({"weight": CreatesFile(tmp_path / "evil")}, [1, 2], {"weight": 3}):
        torch.save(content, folder / "pytorch_model.bin")
        with pytest.raises(InputError, match=r"cannot read .*pytorch_model\.bin"):
            read(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(InputError, match=r"cannot read .*pytorch_model\.bin"):
        read(folder)
    assert not (tmp_path / "evil").exists()


def test_safetensors_are_preferred_to_a_pickle_in_the_same_folder(unpacked, read):
    folder = unpacked("hf_word")
    (folder / "pytorch_model.bin").write_bytes(b"never opened")
    assert read(folder).layout == "huggingface"


# --- What is written ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_weights_are_cast_only_to_a_given_dtype(dtype, released, read, tmp_path):
    checkpoint = read(released("char"))
    write(tmp_path / "cast", checkpoint.config, checkpoint.arrays, "RoFormerModel", dtype)
    cast = read(tmp_path / "cast")
    write(tmp_path / "kept", cast.config, cast.arrays, "RoFormerModel")
    uncast = read(tmp_path / "kept")
    for name, array in checkpoint.arrays.items():
        assert cast.arrays[name].tobytes() == array.astype(np.dtype(dtype)).tobytes()
        assert uncast.arrays[name].dtype == np.dtype(dtype)
        assert uncast.arrays[name].tobytes() == cast.arrays[name].tobytes()
    for folder in (tmp_path / "cast", tmp_path / "kept"):
        assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
        positions = "roformer.encoder.embed_positions.weight"
        assert load_file(folder / "model.safetensors")[positions].dtype == np.float32


@pytest.mark.parametrize("name", ["v2_char", "char"])
def test_a_v2_model_card_warns_about_transformers(name, released, read, tmp_path):
    checkpoint = read(released(name))
    write(tmp_path, checkpoint.config, checkpoint.arrays, "RoFormerForMaskedLM")
    card = tmp_path / "README.md"
    assert card.exists() == (name == "v2_char")
    if name == "v2_char":
        assert "Do not load this model with `transformers`" in card.read_text(encoding="utf-8")
        assert "3 layers of 32, 4 heads, 1,501 tokens" in card.read_text(encoding="utf-8")
        values = json.loads((tmp_path / "config.json").read_text())
        assert (values["norm_type"], values["use_bias"]) == ("rms_norm", False)
    reread = read(tmp_path)
    assert reread.config.replace(unknown={}) == checkpoint.config.replace(unknown={})
    assert reread.arrays.keys() == checkpoint.arrays.keys()


def test_is_decoder_and_id2label_are_written(released, read, tmp_path):
    checkpoint = read(released("word"))
    for changes, is_decoder, labels in (
        ({}, False, None),
        ({"attention_type": "causal", "num_labels": 3}, True, ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ({"num_labels": 2, "unknown": {"id2label": {"0": "坏", "1": "好"}}}, False, ["坏", "好"]),
        ({"num_labels": 1, "unknown": {"id2label": {"0": "坏", "1": "好"}}}, False, ["LABEL_0"]),
    ):
        write(tmp_path, checkpoint.config.replace(**changes), checkpoint.arrays, "RoFormerModel")
        values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
        assert values["is_decoder"] == is_decoder
        assert list(values.get("id2label", {}).values()) == (labels or [])
        assert "num_labels" not in values
