"""Several trainings share a compiled model without influencing each other."""

import dataclasses

import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.trainer import InitialState, Trainer
from roformer_tf.labelled.examples import Example
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS
from roformer_tf.training.checkpointing import restore_checkpoint, save_checkpoint
from roformer_tf.training.settings import FinetuneOptimizerConfig

SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "hidden_dropout_prob": 0.3,
    "attention_probs_dropout_prob": 0.3,
}
TOKENS = [*SPECIAL_TOKENS, *"今天气很好我们去"]
TASK = Classification(labels=("a", "b"))
TRAIN = [Example(("今天",), "a", ""), Example(("我们",), "b", "")]
FIRST = FinetuneOptimizerConfig(learning_rate=0.05, ema=0.9, accumulate=2)
SECOND = FinetuneOptimizerConfig(learning_rate=0.01, ema=0.9, accumulate=2, warmup=0.4)


@pytest.fixture(scope="module")
def start():
    config = RoFormerConfig(vocab_size=len(TOKENS), **SIZES)
    keras.utils.set_random_seed(3)
    encoder = RoFormerEncoder(config)
    weights = {name: keras.ops.convert_to_numpy(x) for name, x in encoder.named_variables().items()}
    tokenizer = RoFormerTokenizer({token: i for i, token in enumerate(TOKENS)}, "char")
    return InitialState(config, weights, tokenizer, "float32")


def batches(count, first=0, end=None):
    for number in range(count)[first:end]:
        rng = np.random.default_rng(number)
        ids = rng.integers(5, len(TOKENS), (4, 6)).astype("int32")
        yield {"token_ids": ids}, rng.integers(0, 2, 4).astype("int32"), np.ones(4, "float32")


def train(trainer, seed, optimizer, count):
    """Train on `count` batches; return all variables of model and optimizer, and the loss."""
    _, compiled = trainer.begin(seed, optimizer, count)
    history = compiled.fit(batches(count), steps_per_epoch=count, verbose=0, shuffle=False)
    everything = [*compiled.variables, *compiled.optimizer.variables]
    return [keras.ops.convert_to_numpy(x).copy() for x in everything], history.history["loss"]


@pytest.mark.parametrize(
    ("weights", "wanted"), [("none", [3 / 6, 2 / 6, 1 / 6]), ("balanced", 0.5)]
)
def test_a_new_head_of_several_labels_knows_how_frequent_they_are(start, weights, wanted):
    task = Multilabel(labels=("a", "b", "c"))
    labels = [("a",), ("a", "b"), (), ()]
    examples = [Example(("今天",), label, "") for label in labels]
    trainer = Trainer(start, task, LossConfig(class_weights=weights), examples)
    model, _ = trainer.begin(0, FIRST, 1)
    logits = keras.ops.convert_to_numpy(model({"token_ids": np.zeros((1, 2), "int32")}))
    # The kernel of the head is small, but not 0.
    np.testing.assert_allclose(1 / (1 + np.exp(-logits[0])), wanted, atol=0.05)


COUNT = 8
"""Number of batches in the training that the tests repeat."""


@pytest.fixture(scope="module")
def reference(start):
    """A new trainer after a training with SECOND, its variables and its loss."""
    trainer = Trainer(start, TASK, LossConfig(), TRAIN)
    return trainer, *train(trainer, 7, SECOND, COUNT)


@pytest.fixture(scope="module")
def shared(start):
    """A trainer after another training, with FIRST."""
    trainer = Trainer(start, TASK, LossConfig(), TRAIN)
    train(trainer, 5, FIRST, 6)
    return trainer


def same_training(trainer, want, losses, count=COUNT):
    got, repeated_losses = train(trainer, 7, SECOND, count)
    assert repeated_losses == losses
    assert len(got) == len(want) > 20
    for item, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(item, other)
    return True


@pytest.mark.slow
def test_a_training_does_not_depend_on_earlier_ones(reference, shared):
    assert same_training(shared, *reference[1:])


@pytest.mark.slow
@pytest.mark.usefixtures("eager_steps")
def test_a_training_with_fgm_does_not_depend_on_earlier_ones(start):
    first, second = (Trainer(start, TASK, LossConfig(fgm=0.5), TRAIN) for _ in range(2))
    want, losses = train(first, 7, SECOND, 2)
    train(second, 5, FIRST, 2)
    assert same_training(second, want, losses, 2)
    second.compiled = None
    assert second.compiled is None


def test_compiled_settings_require_a_new_model(start):
    trainer = Trainer(start, TASK, LossConfig(), TRAIN)
    first = trainer.begin(7, FIRST, 6)
    assert trainer.begin(8, SECOND, 4) is first
    assert trainer.begin(7, dataclasses.replace(FIRST, layer_decay=0.5), 6) is not first


def test_a_training_begins_as_with_a_new_trainer(start):
    """Whatever an earlier training left in weights, averages, optimizer and dropout's states."""
    used, new = (Trainer(start, TASK, LossConfig(), TRAIN) for _ in range(2))
    _, compiled = used.begin(5, FIRST, 6)
    for variable in (*compiled.variables, *compiled.optimizer.variables):
        variable.assign(keras.ops.convert_to_numpy(variable) + 1)
    states = []
    for trainer in (used, new):
        _, compiled = trainer.begin(7, SECOND, 4)
        states.append([*compiled.variables, *compiled.optimizer.variables])
    for variable, other in zip(*states, strict=True):
        np.testing.assert_array_equal(variable, other, err_msg=variable.path)


@pytest.mark.slow
def test_a_checkpoint_does_not_contain_the_schedule(reference, shared, tmp_path):
    """A trainer with another history can therefore resume from a checkpoint."""
    trainer, want, _ = reference
    _, compiled = trainer.begin(7, SECOND, COUNT)
    compiled.fit(batches(COUNT, end=4), steps_per_epoch=4, verbose=0, shuffle=False)
    save_checkpoint(tmp_path, 4, "rows", compiled, keep=1)

    train(shared, 1, FIRST, 6)
    _, compiled = shared.begin(7, SECOND, COUNT)
    restore_checkpoint(next(tmp_path.glob("step-*")), compiled)
    compiled.fit(batches(COUNT, first=4), steps_per_epoch=4, verbose=0, shuffle=False)
    got = [*compiled.variables, *compiled.optimizer.variables]
    for item, array in zip(got, want, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(item), array)
