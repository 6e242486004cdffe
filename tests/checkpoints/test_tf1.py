"""TF1 checkpoints: reading, writing, error messages, and reading ours with bert4keras."""

import json
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import keras
import ml_dtypes
import numpy as np
import pytest

from roformer_tf.checkpoints.archives import Files
from roformer_tf.checkpoints.tf1 import read_tensors, write
from roformer_tf.errors import InputError
from roformer_tf.models.heads import RoFormerForMaskedLM

SUPPORT = Path(__file__).parents[1] / "support"
ORACLE = Path(__file__).parents[1] / "fixtures" / "oracle"
INDEX, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"
EVERY = ["word", "char", "gpt_char", "sim_char", "v2_char", "word_project", "word_adam"]


def read_all(prefix):
    return dict(read_tensors(prefix))


def test_every_tensor_is_read_by_name(unpacked):
    arrays = read_tensors(unpacked("word_adam") / "bert_model.ckpt")
    assert len(arrays) == 136
    assert arrays.shapes["bert/embeddings/word_embeddings"] == (2003, 32)
    assert arrays["global_step"].shape == arrays.shapes["global_step"] == ()
    assert isinstance(arrays["global_step"], np.ndarray)
    assert all(arrays[name].shape == arrays.shapes[name] for name in arrays)
    assert all(arrays[name].dtype == arrays.dtypes[name] for name in arrays)


@pytest.mark.parametrize("file", [INDEX, DATA])
@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.5, 0.9, 0.9999])
def test_a_truncated_file_is_refused(file, fraction, unpacked):
    path = unpacked("word") / file
    content = path.read_bytes()
    path.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(InputError, match=r"cannot read .* of the TF1 checkpoint.*them again"):
        read_all(path.with_name("bert_model.ckpt"))


@pytest.mark.parametrize("file", [INDEX, DATA])
def test_a_missing_file_is_refused(file, unpacked):
    path = unpacked("word") / file
    path.unlink()
    with pytest.raises(InputError, match=r"cannot read .* of the TF1 checkpoint"):
        read_all(path.with_name("bert_model.ckpt"))


def test_a_changed_byte_is_detected(unpacked):
    path = unpacked("word") / DATA
    content = path.read_bytes()
    for position in np.linspace(0, len(content) - 1, 50).astype(int):
        changed = bytearray(content)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises(InputError, match=r"the tensor \S+/\S+ of .*Checksum does not match"):
            read_all(path.with_name("bert_model.ckpt"))


@pytest.mark.parametrize("name", ["a[1]b", "back\\slash"])
def test_a_path_that_is_a_pattern_for_tensorflow_is_refused(name, released, unpacked, read):
    folder = unpacked("word")
    folder = folder.rename(folder.with_name(name))
    with pytest.raises(InputError, match="Rename the folder"):
        read(folder)
    checkpoint = read(released("word"))
    with pytest.raises(InputError, match="Rename the folder"):
        write(folder.with_name("new[2]"), checkpoint.config, checkpoint.arrays)
    assert not folder.with_name("new[2]").exists()


# --- Writing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("target", ["again_L-2.zip", "again.v2"])
def test_rewritten_tensors_are_identical(name, target, released, read, tmp_path):
    checkpoint = read(released(name))
    write(tmp_path / target, checkpoint.config, checkpoint.arrays, b"[PAD]\n")
    with Files(released(name)) as old, Files(tmp_path / target) as new:
        before, after = old.folder, new.folder
        names = {"bert_config.json", "checkpoint", "vocab.txt", INDEX, DATA}
        assert {path.name for path in after.iterdir()} == names
        first, second = (read_all(folder / "bert_model.ckpt") for folder in (before, after))
        for key in checkpoint.ignored:
            del first[key]
        assert first.keys() == second.keys()
        for key, array in first.items():
            assert array.dtype == second[key].dtype
            assert array.tobytes() == second[key].tobytes()
        assert (after / "checkpoint").read_text() == (before / "checkpoint").read_text()
        assert (after / "vocab.txt").read_bytes() == b"[PAD]\n"
        arguments, written = (
            json.loads((folder / "bert_config.json").read_text()) for folder in (before, after)
        )
        assert arguments.items() <= written.items()
    assert read(tmp_path / target).config == checkpoint.config


def test_a_zip_contains_a_folder_of_its_name(released, read, tmp_path):
    checkpoint = read(released("char"))
    write(tmp_path / "new_L-3.zip", checkpoint.config, checkpoint.arrays)
    with zipfile.ZipFile(tmp_path / "new_L-3.zip") as archive:
        names = ["bert_config.json", DATA, INDEX, "checkpoint"]
        assert archive.namelist() == [f"new_L-3/{name}" for name in names]


def test_keys_and_order_of_hugging_face_are_not_written(released, read, tmp_path):
    checkpoint = read(released("hf_word"), rotary_style="half")
    write(tmp_path / "x", checkpoint.config, checkpoint.arrays)
    values = json.loads((tmp_path / "x" / "bert_config.json").read_text())
    assert {"architectures", "model_type", "pad_token_id"}.isdisjoint(values)
    tensors = read_tensors(tmp_path / "x" / "bert_model.ckpt")
    for key, array in read(released("word")).arrays.items():
        ours = read(tmp_path / "x", rotary_style="interleaved").arrays[key]
        np.testing.assert_array_equal(ours, array)
    assert tensors.dtypes["bert/embeddings/LayerNorm/beta"] == np.float32


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_weights_are_cast_only_to_a_given_dtype(dtype, released, read, tmp_path):
    checkpoint = read(released("char"))
    write(tmp_path / "cast.zip", checkpoint.config, checkpoint.arrays, dtype=np.dtype(dtype).name)
    cast = read(tmp_path / "cast.zip")
    write(tmp_path / "kept", cast.config, cast.arrays)
    uncast = read(tmp_path / "kept")
    for name, array in checkpoint.arrays.items():
        assert uncast.arrays[name].dtype == cast.arrays[name].dtype == dtype
        assert cast.arrays[name].tobytes() == array.astype(dtype).tobytes()
        assert uncast.arrays[name].tobytes() == cast.arrays[name].tobytes()


@pytest.mark.parametrize("target", ["x.zip", "x"])
def test_a_failed_write_keeps_the_old_files(target, released, read, tmp_path):
    checkpoint = read(released("char"))
    write(tmp_path / target, checkpoint.config, checkpoint.arrays)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    broken = checkpoint.arrays | {"mlm/bias": np.array(["text"] * 1501)}
    with pytest.raises((TypeError, ValueError)):
        write(tmp_path / target, checkpoint.config, broken, dtype="float32")
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


@pytest.mark.slow  # test_convert.py tests bert4keras with our float32 zips
@pytest.mark.skipif(
    not (find_spec("bert4keras") and find_spec("tf_keras")),
    reason="bert4keras is not installed: `make test` does it",
)
def test_bert4keras_reads_our_files_in_every_dtype(released, recorded, read, tmp_path):
    cases = [("word", None), ("word", "float16"), ("v2_char", None), ("v2_char", "bfloat16")]
    jobs = []
    for name, dtype in cases:
        checkpoint, folder = read(released(name)), tmp_path / f"{name}-{dtype}"
        write(folder, checkpoint.config, checkpoint.arrays, dtype=dtype)
        jobs.append(
            {
                "folder": str(folder),
                "model": {"word": "roformer", "v2_char": "roformer_v2"}[name],
                "inputs": str(ORACLE / f"{name}.npz"),
                "output": str(folder / "logits.npy"),
            }
        )
    run = subprocess.run(
        [sys.executable, SUPPORT / "bert4keras_logits.py"],
        input=json.dumps(jobs),
        env=os.environ
        | {"TF_KERAS": "1", "TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1"},
        capture_output=True,
        encoding="utf-8",
    )
    assert run.returncode == 0, run.stderr
    for (name, dtype), job in zip(cases, jobs, strict=True):
        values, bert4keras_logits = recorded(name), np.load(job["output"])
        batch = {key: values[key] for key in ("token_ids", "segment_ids")}
        ours = RoFormerForMaskedLM.from_pretrained(job["folder"])(batch)
        ours, attended = keras.ops.convert_to_numpy(ours), values["attended"]
        np.testing.assert_allclose(ours[attended], bert4keras_logits[attended], atol=2e-5, rtol=0)
        if dtype is None:
            masked = tuple(values["mlm_at"].T)
            np.testing.assert_allclose(
                bert4keras_logits[masked], values["mlm_logits"], atol=2e-5, rtol=0
            )
