import os
import shutil

import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import DivergedError, InputError
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining.train_step import MaskedTokenLoss
from roformer_tf.training.checkpointing import (
    checkpoints,
    publish,
    restore_checkpoint,
    save_checkpoint,
)
from roformer_tf.training.optimizers import make_optimizer
from roformer_tf.training.settings import OptimizerConfig

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.5,
}


def compiled(optimizer="adamw", **changes):
    """Return a new compiled model with random weights."""
    model = RoFormerForMaskedLM(RoFormerConfig(**SIZES | changes))
    config = OptimizerConfig(optimizer, learning_rate=0.01)
    optimizer = make_optimizer(config, model.trainable_variables, steps=10)
    model.compile(optimizer, MaskedTokenLoss(), jit_compile=False)
    return model


def train(model, first, last):
    for step in range(first, last):
        rng = np.random.default_rng(step)
        inputs = {
            "token_ids": rng.integers(5, 50, (4, 8)).astype("int32"),
            "masked_positions": np.tile(np.int32([1, 3]), (4, 1)),
        }
        model.train_on_batch(inputs, rng.integers(5, 50, (4, 2)))


def weights(model):
    return {name: keras.ops.convert_to_numpy(v) for name, v in model.named_variables().items()}


def set_one_bias(model, value):
    variable = model.named_variables()["mlm/bias"]
    variable.assign(np.where(np.arange(50) == 7, value, weights(model)["mlm/bias"]))


@pytest.fixture(scope="module")
def trained(eagerly):
    keras.utils.set_random_seed(1)
    model = compiled()
    with eagerly():
        train(model, 0, 3)
    return model


@pytest.fixture
def checkpoint(trained, tmp_path):
    return save_checkpoint(tmp_path / "checkpoints", 3, "rows", trained, keep=2)


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}


@pytest.mark.slow  # test_adamw.py has a similar quick test
@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_restored_run_continues_exactly(optimizer, tmp_path):
    """A restored run continues exactly: dropout, optimizer state, step and mean loss."""
    keras.utils.set_random_seed(2)
    model = compiled(optimizer)
    train(model, 0, 3)
    checkpoint = save_checkpoint(tmp_path, 3, "rows", model, keep=1)
    keras.utils.set_random_seed(3)
    other = compiled(optimizer)
    train(other, 5, 7)
    assert restore_checkpoint(checkpoint, other) == (3, "rows")
    assert float(other.metrics[0].result()) == float(model.metrics[0].result())
    for item in (model, other):
        train(item, 3, 6)
    for name, array in weights(model).items():
        assert (weights(other)[name] == array).all(), name
    without_dropout = compiled(optimizer, hidden_dropout_prob=0.0)
    without_dropout.load_pretrained(checkpoint / "model")
    train(without_dropout, 3, 6)
    assert (weights(without_dropout)["mlm/bias"] != weights(model)["mlm/bias"]).any()


def test_the_weights_of_a_checkpoint_are_in_our_format(trained, checkpoint):
    loaded = weights(RoFormerForMaskedLM.from_pretrained(checkpoint / "model"))
    for name, array in weights(trained).items():
        assert (loaded[name] == array).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_never_saved(trained, checkpoint, value):
    before = content(checkpoint.parent)
    original = float(weights(trained)["mlm/bias"][7])
    set_one_bias(trained, value)
    try:
        with pytest.raises(DivergedError, match="mlm/bias"):
            save_checkpoint(checkpoint.parent, 4, "rows", trained, keep=2)
    finally:
        set_one_bias(trained, original)
    assert content(checkpoint.parent) == before


def test_the_last_few_are_kept(trained, tmp_path):
    for step in (1, 2, 10, 100):
        save_checkpoint(tmp_path, step, "rows", trained, keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000100", "step-00000010"]
    save_checkpoint(tmp_path, 101, "rows", trained, keep=1)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000101"]


def test_saving_removes_damaged_later_checkpoints(trained, tmp_path):
    """Saving removes damaged checkpoints of later steps.

    Otherwise an unreadable checkpoint would remain the newest.
    """
    for step in (10, 20):
        save_checkpoint(tmp_path, step, "rows", trained, keep=2)
    save_checkpoint(tmp_path, 15, "rows", trained, keep=1)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000015"]


def test_temporary_folders_are_not_checkpoints(checkpoint):
    half = checkpoint.parent / ".step-00000009.abcdefgh.tmp"
    shutil.copytree(checkpoint, half)
    assert list(checkpoints(checkpoint.parent)) == [checkpoint]


def test_a_missing_folder_has_no_checkpoints(tmp_path):
    assert list(checkpoints(tmp_path / "none")) == []


def flip(path):
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "no state": lambda folder: (folder / "state.json").unlink(),
    "empty state": lambda folder: (folder / "state.json").write_text(""),
    "another state": lambda folder: (folder / "state.json").write_text('{"step": 3}'),
    "no optimizer": lambda folder: (folder / "training.safetensors").unlink(),
    "short optimizer": lambda folder: os.truncate(folder / "training.safetensors", 999),
    "empty optimizer": lambda folder: os.truncate(folder / "training.safetensors", 0),
    "no model": lambda folder: shutil.rmtree(folder / "model"),
    "short model": lambda folder: os.truncate(folder / "model" / "model.safetensors", 999),
    "a bit of the model": lambda folder: flip(folder / "model" / "model.safetensors"),
    "a bit of the optimizer": lambda folder: flip(folder / "training.safetensors"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_and_the_model_unchanged(trained, checkpoint, damage):
    DAMAGES[damage](checkpoint)
    before, optimizer = weights(trained), int(trained.optimizer.iterations)
    with pytest.raises(InputError, match="step-00000003"):
        restore_checkpoint(checkpoint, trained)
    assert int(trained.optimizer.iterations) == optimizer
    for name, array in weights(trained).items():
        assert (array == before[name]).all()


@pytest.mark.parametrize(
    "other", [{"hidden_size": 32}, {"num_hidden_layers": 2}, {"vocab_size": 51}]
)
def test_a_checkpoint_of_another_model_is_refused(checkpoint, other):
    with pytest.raises(InputError, match="another model"):
        restore_checkpoint(checkpoint, compiled(**other))


def test_the_published_model_is_that_of_the_checkpoint(checkpoint, tmp_path):
    publish(checkpoint / "model", tmp_path / "model")
    assert content(tmp_path / "model") == content(checkpoint / "model")
    shutil.rmtree(checkpoint)
    RoFormerForMaskedLM.from_pretrained(tmp_path / "model")


def test_publishing_links_files_and_skips_published_ones(checkpoint, tmp_path):
    weights_file = tmp_path / "model" / "model.safetensors"
    publish(checkpoint / "model", tmp_path / "model")
    assert weights_file.samefile(checkpoint / "model" / "model.safetensors")
    stamp = (tmp_path / "model").stat()
    publish(checkpoint / "model", tmp_path / "model")
    assert (tmp_path / "model").stat().st_ino == stamp.st_ino


def test_without_hard_links_the_model_is_copied(checkpoint, tmp_path, monkeypatch):
    def refuse(*paths):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", refuse)
    publish(checkpoint / "model", tmp_path / "model")
    assert content(tmp_path / "model") == content(checkpoint / "model")


def test_an_older_model_is_replaced_completely(trained, checkpoint, tmp_path):
    publish(checkpoint / "model", tmp_path / "model")
    (tmp_path / "model" / "old.txt").write_text("old")
    set_one_bias(trained, 3.0)
    newer = save_checkpoint(checkpoint.parent, 4, "rows", trained, keep=2)
    publish(newer / "model", tmp_path / "model")
    assert content(tmp_path / "model") == content(newer / "model")
    assert content(tmp_path / "model") != content(checkpoint / "model")


def test_extra_files_are_published_and_updated(checkpoint, tmp_path):
    model, target = checkpoint / "model", tmp_path / "model"
    publish(model, target, {"README.md": b"first"})
    assert (target / "README.md").read_text(encoding="utf-8") == "first"
    assert not (model / "README.md").exists()
    stamps = [(target / name).stat().st_mtime_ns for name in ("README.md", "config.json")]
    publish(model, target, {"README.md": b"first"})
    assert [(target / x).stat().st_mtime_ns for x in ("README.md", "config.json")] == stamps
    publish(model, target, {"README.md": b"second"})
    assert (target / "README.md").read_text(encoding="utf-8") == "second"
    assert (target / "config.json").stat().st_mtime_ns == stamps[1]
    RoFormerForMaskedLM.from_pretrained(target)
