"""A training begins with a checkpoint, a new head and the seed, whatever ran before it."""

import keras
import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.trainer import InitialState, begin_training
from roformer_tf.labelled.examples import Example
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS
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


def batches(count):
    for number in range(count):
        rng = np.random.default_rng(number)
        ids = rng.integers(5, len(TOKENS), (4, 6)).astype("int32")
        yield {"token_ids": ids}, rng.integers(0, 2, 4).astype("int32"), np.ones(4, "float32")


def settings(seed, optimizer, **loss):
    return FinetuneConfig(
        train="", output="", seed=seed, optimizer=optimizer, loss=LossConfig(**loss)
    )


def train(start, config, count):
    """Train on `count` batches; return all variables of model and optimizer, and the loss."""
    _, trained = begin_training(start, TASK, config, TRAIN, count)
    history = trained.fit(batches(count), steps_per_epoch=count, verbose=0, shuffle=False)
    everything = [*trained.variables, *trained.optimizer.variables]
    return [keras.ops.convert_to_numpy(x).copy() for x in everything], history.history["loss"]


@pytest.mark.parametrize(
    ("weights", "wanted"), [("none", [3 / 6, 2 / 6, 1 / 6]), ("balanced", 0.5)]
)
def test_a_new_head_of_several_labels_knows_how_frequent_they_are(start, weights, wanted):
    task = Multilabel(labels=("a", "b", "c"))
    labels = [("a",), ("a", "b"), (), ()]
    examples = [Example(("今天",), label, "") for label in labels]
    config = settings(0, FIRST, class_weights=weights)
    model, _ = begin_training(start, task, config, examples, 1)
    logits = keras.ops.convert_to_numpy(model({"token_ids": np.zeros((1, 2), "int32")}))
    # The kernel of the head is small, but not 0.
    np.testing.assert_allclose(1 / (1 + np.exp(-logits[0])), wanted, atol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [{}, {"fgm": 0.5}])
def test_a_training_does_not_depend_on_earlier_ones(start, loss):
    want, losses = train(start, settings(7, SECOND, **loss), 8)
    train(start, settings(5, FIRST, **loss), 6)
    got, repeated = train(start, settings(7, SECOND, **loss), 8)
    assert repeated == losses
    assert len(got) == len(want) > 20
    for item, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(item, other)
