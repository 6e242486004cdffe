"""Reading TF1 checkpoints: TensorFlow's own exceptions never reach the user."""

import numpy as np
import pytest

from roformer_tf.checkpoints.tf1 import read_arrays
from roformer_tf.errors import InputError

INDEX, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"


def test_every_tensor_is_read_under_its_name(unpacked):
    arrays = read_arrays(unpacked("word_adam") / "bert_model.ckpt")
    assert len(arrays) == 136
    assert arrays["bert/embeddings/word_embeddings"].shape == (2003, 32)
    assert arrays["global_step"].shape == ()
    assert arrays["bert/pooler/dense/kernel"].dtype == np.float32


@pytest.mark.parametrize("file", [INDEX, DATA])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.9999])
def test_a_truncated_file_is_refused(file, share, unpacked):
    path = unpacked("word") / file
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"(?s)cannot read the TF1 checkpoint.*fetch them again"):
        read_arrays(path.with_name("bert_model.ckpt"))


@pytest.mark.parametrize("file", [INDEX, DATA])
def test_a_missing_file_is_refused(file, unpacked):
    path = unpacked("word") / file
    path.unlink()
    with pytest.raises(InputError, match="cannot read the TF1 checkpoint"):
        read_arrays(path.with_name("bert_model.ckpt"))


@pytest.mark.parametrize("at", [0, 10_000, 300_000])
def test_a_changed_byte_is_noticed(at, unpacked):
    path = unpacked("word") / DATA
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="Checksum does not match"):
        read_arrays(path.with_name("bert_model.ckpt"))
