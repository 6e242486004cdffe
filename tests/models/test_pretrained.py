"""Tests of `from_pretrained`: it loads each weight directly and initializes only missing ones."""

import copy
import pickle
import zipfile

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.errors import InputError
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import RoFormerForMaskedLM, RoFormerForTokenClassification

DATA = "bert_model.ckpt.data-00000-of-00001"


def unzip(path, folder):
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return folder / path.stem


def weights(model):
    return {name: keras.ops.convert_to_numpy(v) for name, v in model.named_variables().items()}


def test_only_weights_missing_in_the_file_are_initialized(released, monkeypatch):
    initialized = []
    original = keras.initializers.TruncatedNormal.__call__

    def recording_call(self, shape, dtype=None):
        initialized.append(tuple(shape))
        return original(self, shape, dtype)

    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", recording_call)
    RoFormerForMaskedLM.from_pretrained(released("word"))
    assert initialized == []
    model = RoFormerForTokenClassification.from_pretrained(released("word"), num_labels=3)
    assert initialized == [(32, 3)]
    kernel = weights(model)["token_classifier/kernel"]
    assert 0.005 < kernel.std() < 0.04


@pytest.mark.parametrize("dtype", ["int8", "int32", "bool", "int8_from_float32", "float31", 3])
def test_a_dtype_that_is_no_float_is_refused(dtype, released):
    with pytest.raises(InputError, match=f"dtype is {dtype!r}, but must be one of float32, "):
        RoFormerForMaskedLM.from_pretrained(released("char"), dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16", "float16"])
def test_weights_are_those_of_the_file_in_the_dtype_of_the_model(dtype, released):
    model = RoFormerForMaskedLM.from_pretrained(released("char"), dtype=dtype)
    with OpenedSource(released("char")) as source:
        checkpoint = source.checkpoint()
        assert weights(model).keys() == checkpoint.arrays.keys()
        for name, array in weights(model).items():
            assert array.dtype.name == ("float32" if dtype == "mixed_bfloat16" else dtype)
            expected = checkpoint.arrays[name].astype(array.dtype)
            np.testing.assert_array_equal(array, expected, err_msg=name)


@pytest.mark.usefixtures("eager_steps")
def test_dropout_works_after_loading_and_training_changes_the_weights(released):
    model = RoFormerEncoder.from_pretrained(released("char"), hidden_dropout_prob=0.5)
    batch = {"token_ids": np.arange(12).reshape(2, 6)}
    first, second = (keras.ops.convert_to_numpy(model(batch, training=True)) for _ in range(2))
    assert np.abs(first - second).max() > 0.1
    before = weights(model)
    model.compile(keras.optimizers.SGD(0.1), "mean_squared_error")
    model.fit(batch, np.zeros_like(first), verbose=0)
    assert all((before[name] != array).any() for name, array in weights(model).items())


def test_a_damaged_tensor_is_reported_and_keras_still_works(released, tmp_path):
    folder = unzip(released("char"), tmp_path)
    content = bytearray((folder / DATA).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / DATA).write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read the tensor \S+ of .*Checksum"):
        RoFormerForMaskedLM.from_pretrained(folder)
    layer = keras.layers.Dense(2)
    layer.compute_output_spec(keras.KerasTensor((1, 3)))
    RoFormerForMaskedLM.from_pretrained(released("char"))


def test_a_truncated_vocabulary_is_reported(unpacked, caplog):
    folder = unpacked("char")
    lines = (folder / "vocab.txt").read_text("utf-8").splitlines()
    (folder / "vocab.txt").write_text("\n".join(lines[:-200]), "utf-8")
    RoFormerForMaskedLM.from_pretrained(folder)
    assert "has 1,301 ids, but its weights have 1,501 embeddings" in caplog.text


def test_a_folder_or_zip_without_a_vocabulary_gives_a_model_without_a_tokenizer(
    released, tmp_path, caplog
):
    folder = unzip(released("char"), tmp_path)
    (folder / "vocab.txt").unlink()
    model = RoFormerForMaskedLM.from_pretrained(folder)
    assert model.tokenizer is None
    model.save_pretrained(tmp_path / "saved")
    assert "saved has no vocabulary: the model came without a tokenizer" in caplog.text
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    assert RoFormerForMaskedLM.from_pretrained(tmp_path / "x.zip").tokenizer is None
    assert RoFormerForMaskedLM.from_pretrained(released("char")).tokenizer is not None


def test_nothing_is_written_with_a_vocabulary_that_cannot_be_saved(released, tmp_path):
    folder = unzip(released("char"), tmp_path)
    path = folder / "vocab.txt"
    path.write_text("[PAD]\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    model = RoFormerForMaskedLM.from_pretrained(folder)
    with pytest.raises(InputError, match="Remove repeated lines"):
        model.save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_unknown_tensors_are_refused_or_ignored(released, tmp_path):
    model = RoFormerForMaskedLM.from_pretrained(released("hf_char"))
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"strange.weight": np.zeros(3)}, path)
    with pytest.raises(InputError, match=r"tensors that no .* has \(1\): strange\.weight"):
        RoFormerForMaskedLM.from_pretrained(tmp_path)
    again = RoFormerForMaskedLM.from_pretrained(tmp_path, ignore_unknown=True)
    for name, array in weights(model).items():
        np.testing.assert_array_equal(weights(again)[name], array)
    with pytest.raises(InputError, match=r"strange\.weight"):
        model.load_pretrained(tmp_path)


def test_a_random_field_without_weights_is_refused(released):
    with pytest.raises(InputError, match=r"has no weights of a random field\. Omit crf=True"):
        RoFormerForTokenClassification.from_pretrained(released("hf_char"), num_labels=3, crf=True)


def test_weights_are_loaded_into_an_existing_model(released, tmp_path):
    source = RoFormerForMaskedLM.from_pretrained(released("hf_char"))
    source.save_pretrained(tmp_path)
    model = RoFormerForMaskedLM(source.config)
    model.load_pretrained(tmp_path)
    for name, array in weights(source).items():
        np.testing.assert_array_equal(weights(model)[name], array)


def test_weights_are_loaded_into_a_model_of_the_other_rotary_style(released, tmp_path):
    source = RoFormerForMaskedLM.from_pretrained(released("hf_char"))
    source.save_pretrained(tmp_path)
    model = RoFormerForMaskedLM(source.config.replace(rotary_style="half"))
    model.load_pretrained(tmp_path)
    inputs = {"token_ids": np.array([[2, 5, 6, 7, 8, 3]])}
    np.testing.assert_allclose(model(inputs), source(inputs), atol=1e-4)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_the_weights_and_the_tokenizer(copied, released):
    model = RoFormerForMaskedLM.from_pretrained(released("char"))
    other = copied(model)
    assert other.tokenizer.vocabulary == model.tokenizer.vocabulary
    inputs = model.tokenizer(["天气很好"])
    np.testing.assert_allclose(*(np.asarray(x(inputs)) for x in (model, other)), atol=1e-5)
    assert other.weights[0] is not model.weights[0]
