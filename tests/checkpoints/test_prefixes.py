"""A prefix shared by all tensor names is removed; among several copies the user must choose."""

import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from roformer_tf import RoFormerEncoder
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.cli import main
from roformer_tf.errors import InputError

PREFIXES = ("module.", "_orig_mod.", "model.", "module._orig_mod.", "net.backbone.")


@pytest.fixture
def rewrite(released, tmp_path):
    """A function that returns a copy of a checkpoint with its tensors changed by a function."""

    def write(name, change):
        target = shutil.copytree(released(name), tmp_path / "rewritten")
        tensors = change(load_file(target / "model.safetensors"))
        save_file(tensors, target / "model.safetensors", {"format": "pt"})
        return target

    return write


def with_prefix(prefix):
    return lambda tensors: {prefix + name: x for name, x in tensors.items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name], err_msg=name)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", ["hf_char", "hf_word_seqcls"])
def test_a_shared_prefix_is_removed_and_reported(name, prefix, released, rewrite, read, caplog):
    got = read(rewrite(name, with_prefix(prefix)))
    assert_same(got.arrays, read(released(name)).arrays)
    assert f"{prefix!r} is removed" in caplog.text


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_model_without_a_head_may_lack_the_name_roformer(prefix, released, rewrite, read):
    def headless(tensors):
        return {
            prefix + name.removeprefix("roformer."): x
            for name, x in tensors.items()
            if name.startswith("roformer.")
        }

    got = read(rewrite("hf_char", headless)).arrays
    expected = read(released("hf_char")).arrays
    assert_same(got, {name: x for name, x in expected.items() if name.startswith("encoder/")})


def two_copies(first, second):
    """Return a function that adds a second copy of all tensors, filled with zeros."""

    def change(tensors):
        zeros = {second + name: x * 0 for name, x in tensors.items()}
        return {first + name: x for name, x in tensors.items()} | zeros

    return change


@pytest.mark.parametrize(
    ("first", "second"),
    [("", "ema."), ("model.", "ema."), ("model.", "model_ema.module."), ("model.", "model.ema.")],
)
def test_two_copies_require_a_choice(first, second, released, rewrite, read):
    folder = rewrite("hf_char", two_copies(first, second))
    with pytest.raises(InputError, match=r"2 times, .*--prefix") as error:
        read(folder)
    assert all(repr(prefix) in str(error.value) for prefix in (first, second))
    want = read(released("hf_char")).arrays
    assert_same(read(folder, prefix=first).arrays, want)
    assert_same(read(folder, prefix=second).arrays, {name: x * 0 for name, x in want.items()})
    with pytest.raises(InputError, match=r"no weights under the prefix 'x\.'"):
        read(folder, prefix="x.")


def test_classes_and_commands_accept_a_prefix(released, rewrite, tmp_path, capsys):
    folder = rewrite("hf_char", two_copies("model.", "ema."))
    model = RoFormerEncoder.from_pretrained(folder, prefix="model.")
    assert np.asarray(model.embeddings.word.embeddings).any()
    command = ["checkpoints", "convert", str(folder), str(tmp_path / "out"), "--to", "own"]
    assert main(command) == 2
    assert "'ema.', 'model.'" in " ".join(capsys.readouterr().err.split())
    assert main([*command, "--prefix", "model."]) == 0
    assert "difference: 0" in capsys.readouterr().out
    assert main(["checkpoints", "inspect", str(folder), "--prefix", "ema."]) == 0


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("criterion.weight", "criterion.weight"),
        # One tensor is no second copy of the weights, whatever its name.
        ("student.embeddings.word_embeddings.weight", "student.embeddings.word_embeddings.weight"),
        ("model.old.embeddings.word_embeddings.weight", "old.embeddings.word_embeddings.weight"),
    ],
)
def test_tensors_without_the_prefix_are_reported_by_name(name, reported, rewrite, read):
    def change(tensors):
        return with_prefix("model.")(tensors) | {name: np.zeros(3, np.float32)}

    with pytest.raises(InputError, match=rf"that no RoFormer .* \(1\): {re.escape(reported)}\."):
        read(rewrite("hf_char", change))


def test_colliding_names_are_refused(rewrite, read):
    def change(tensors):
        duplicate = {"cls.predictions.bias": tensors["cls.predictions.bias"] + 1}
        return with_prefix("model.")(tensors) | duplicate

    with pytest.raises(InputError, match=r"both would be cls\.predictions\.bias"):
        read(rewrite("hf_char", change))


@pytest.fixture
def rewrite_tf1(unpacked):
    """A function that returns a released TF1 checkpoint with its tensors changed by a function."""
    tf = pytest.importorskip("tensorflow")

    def write(change):
        folder = unpacked("char")
        prefix = str(folder / "bert_model.ckpt")
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        tensors = change({name: reader.get_tensor(name) for name in shapes})
        names = list(tensors)
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tensors[name] for name in names],
        )
        return folder

    return write


TF1_VARIANTS = {
    "without bert/": lambda tensors: {k.removeprefix("bert/"): x for k, x in tensors.items()},
    "with model/": with_prefix("model/"),
    "both": lambda tensors: {f"model/{k.removeprefix('bert/')}": x for k, x in tensors.items()},
}


@pytest.mark.parametrize("variant", TF1_VARIANTS)
def test_a_released_checkpoint_may_have_other_names(variant, released, rewrite_tf1, read):
    assert_same(read(rewrite_tf1(TF1_VARIANTS[variant])).arrays, read(released("char")).arrays)


def test_moving_averages_of_tensorflow_are_copies(released, rewrite_tf1, read):
    folder = rewrite_tf1(
        lambda tensors: (
            tensors | {f"{k}/ExponentialMovingAverage": x * 0 for k, x in tensors.items()}
        )
    )
    with pytest.raises(InputError, match=r"2 times, .*'ExponentialMovingAverage/'"):
        read(folder)
    assert_same(read(folder, prefix="").arrays, read(released("char")).arrays)
    zeros = read(folder, prefix="ExponentialMovingAverage/").arrays
    assert not any(array.any() for array in zeros.values())


def test_a_removed_prefix_is_reported_once(rewrite, caplog):
    with OpenedSource(rewrite("hf_char", with_prefix("module."))) as source:
        source.checkpoint()
        source.checkpoint()
    assert caplog.text.count("is removed") == 1
