"""Weights go from the file into the model one by one, and nothing is made to be thrown away."""

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


def test_no_weight_is_drawn_at_random_that_the_file_holds(released, monkeypatch):
    drawn = []
    genuine = keras.initializers.TruncatedNormal.__call__

    def watched(self, shape, dtype=None):
        drawn.append(tuple(shape))
        return genuine(self, shape, dtype)

    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", watched)
    RoFormerForMaskedLM.from_pretrained(released("word"))
    assert drawn == []
    model = RoFormerForTokenClassification.from_pretrained(released("word"), num_labels=3)
    assert drawn == [(32, 3)]
    kernel = weights(model)["token_classifier/kernel"]
    assert 0.005 < kernel.std() < 0.04


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16", "float16"])
def test_every_weight_is_the_files_in_the_models_dtype(dtype, released):
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


def test_a_damaged_tensor_is_named_and_keras_goes_on(released, tmp_path):
    folder = unzip(released("char"), tmp_path)
    content = bytearray((folder / DATA).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / DATA).write_bytes(content)
    with pytest.raises(InputError, match=r"cannot read the tensor \S+ of .*Checksum"):
        RoFormerForMaskedLM.from_pretrained(folder)
    layer = keras.layers.Dense(2)
    layer.compute_output_spec(keras.KerasTensor((1, 3)))
    RoFormerForMaskedLM.from_pretrained(released("char"))


def test_a_folder_or_zip_without_a_vocabulary_gives_a_model_without_a_tokenizer(released, tmp_path):
    folder = unzip(released("char"), tmp_path)
    (folder / "vocab.txt").unlink()
    assert RoFormerForMaskedLM.from_pretrained(folder).tokenizer is None
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


def test_unknown_tensors_are_refused_or_left_aside(released, tmp_path):
    model = RoFormerForMaskedLM.from_pretrained(released("hf_char"))
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"strange.weight": np.zeros(3)}, path)
    with pytest.raises(InputError, match=r"1 tensors that no .* has: strange\.weight"):
        RoFormerForMaskedLM.from_pretrained(tmp_path)
    again = RoFormerForMaskedLM.from_pretrained(tmp_path, ignore_unknown=True)
    for name, array in weights(model).items():
        np.testing.assert_array_equal(weights(again)[name], array)
    with pytest.raises(InputError, match=r"strange\.weight"):
        model.load_pretrained(tmp_path)


def test_weights_can_be_put_into_a_model_that_is_there(released, tmp_path):
    source = RoFormerForMaskedLM.from_pretrained(released("hf_char"))
    source.save_pretrained(tmp_path)
    model = RoFormerForMaskedLM(source.config)
    model.load_pretrained(tmp_path)
    for name, array in weights(source).items():
        np.testing.assert_array_equal(weights(model)[name], array)
