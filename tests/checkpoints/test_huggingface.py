"""Our own format is Hugging Face's, byte for byte where both write."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from roformer_tf.checkpoints import sources
from roformer_tf.checkpoints.huggingface import read_arrays, write
from roformer_tf.errors import InputError


@pytest.mark.parametrize("name", ["hf_word", "hf_char"])
def test_what_is_read_from_transformers_is_written_as_transformers_does(name, released, tmp_path):
    checkpoint = sources.read(released(name))
    write(tmp_path, checkpoint.config, checkpoint.arrays, "RoFormerForMaskedLM")
    ours, theirs = (load_file(f / "model.safetensors") for f in (tmp_path, released(name)))
    assert ours.keys() == theirs.keys()
    for key, array in theirs.items():
        assert ours[key].dtype == array.dtype
        np.testing.assert_array_equal(ours[key], array, err_msg=key)
    with safe_open(tmp_path / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}  # transformers asks for it
    config, written = (
        json.loads((f / "config.json").read_text(encoding="utf-8"))
        for f in (released(name), tmp_path)
    )
    given = {key: value for key, value in config.items() if value is not None}
    given.pop("transformers_version")
    assert written == given | {"rotary_base": 10_000.0, "rotary_style": "interleaved"}


def test_the_table_of_positions_follows_the_base(released, tmp_path):
    checkpoint = sources.read(released("hf_char"), rotary_base=100.0, max_position_embeddings=40)
    write(tmp_path, checkpoint.config, checkpoint.arrays, "RoFormerModel")
    got = load_file(tmp_path / "model.safetensors")["roformer.encoder.embed_positions.weight"]
    theta = np.outer(np.arange(40), 100.0 ** -np.arange(0, 1, 0.25))  # head size 8: four pairs
    np.testing.assert_allclose(got, np.hstack([np.sin(theta), np.cos(theta)]), atol=1e-7)


def test_unknown_keys_of_a_config_are_written_back(released, tmp_path):
    checkpoint = sources.read(released("hf_char"))
    config = checkpoint.config.replace(unknown={"note": "kept", "transformers_version": "4.0"})
    write(tmp_path, config, checkpoint.arrays, "RoFormerModel")
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert written["note"] == "kept"
    assert "transformers_version" not in written


def test_a_write_that_fails_leaves_what_was_there(released, tmp_path):
    checkpoint = sources.read(released("hf_char"))
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
    with pytest.raises(InputError, match=r"cannot read .*model.safetensors.*fetch it again"):
        read_arrays(path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_precisions_are_read(dtype, unpacked):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    from safetensors.numpy import save_file

    path = unpacked("hf_char") / "model.safetensors"
    whole = load_file(path)
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    save_file({key: array.astype(numpy_dtype) for key, array in whole.items()}, path)
    for key, array in read_arrays(path).items():
        np.testing.assert_allclose(array.astype("float32"), whole[key], rtol=1e-2, atol=1e-6)
