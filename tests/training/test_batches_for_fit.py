import grain
import keras
import numpy as np
import pytest

from roformer_tf.labelled.batches import RowBatches
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.table import TASKS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.fitting import epochs, fed, prefetched

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
TOKENIZER = RoFormerTokenizer({token: i for i, token in enumerate((*SPECIALS, "好", "差"))}, "char")


class AnyLengthModel(keras.Model):
    """A model that accepts batches of any length; its logits are its bias."""

    def __init__(self):
        super().__init__()
        self.bias = self.add_weight((2,))

    def call(self, inputs, training=None):
        rows = keras.ops.ones_like(inputs["token_ids"][:, :1], "float32")
        return rows * self.bias


@pytest.mark.parametrize("order", [(5, 5, 100, 30), (100, 5, 5, 30)], ids=["short first", "mixed"])
def test_batches_of_any_length_follow_each_other(order):
    """Batches of different lengths can follow each other.

    Keras would otherwise infer a static length from the first two batches.
    """
    examples = [
        Example(("好差"[number % 2] * length,), "好差"[number % 2], "")
        for number, length in enumerate(np.repeat(order, 2).tolist())
    ]
    task = TASKS["classification"].from_examples(examples, max_length=128)
    encoded = task.labelling.encode(examples, TOKENIZER)
    targets = task.labelling.row_targets(encoded, examples)
    model = AnyLengthModel()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    for seed in range(6):  # for one of these seeds, the first two batches have equal lengths
        batches = RowBatches(encoded, *targets).batches(2, seed)
        steps = -(-len(encoded.token_ids) // 2)
        history = model.fit(fed(prefetched(batches)), steps_per_epoch=steps, verbose=0)
        assert np.isfinite(history.history["loss"]).all()


def test_named_inputs_may_have_varying_numbers_of_rows(eager_steps):
    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.seen, self.bias = [], self.add_weight((3,))

        def call(self, inputs):
            self.seen.append(tuple(map(int, keras.ops.shape(inputs["few"]))))
            return keras.ops.cast(inputs["all"], "float32") + self.bias

    def batch(step):
        inputs = {"all": np.zeros((4, 3), "int32"), "few": np.zeros((2 + step % 2, 5), "int32")}
        return inputs, np.zeros((4, 3), "float32"), np.ones(4, "float32")

    model = Model()
    model.compile("sgd", "mse", run_eagerly=True)
    batches = grain.MapDataset.range(6).map(batch)
    model.fit(fed(prefetched(batches), ("few",)), steps_per_epoch=6, verbose=0, shuffle=False)
    assert {rows for rows, _ in model.seen} == {2, 3}


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.data is TensorFlow's")
@pytest.mark.parametrize(
    ("make_dataset", "length"),
    [
        (fed, None),
        (lambda rows: fed(rows, static_shapes=True), 7),
        (lambda rows: epochs(rows, 2), None),
    ],
    ids=["fed", "static shapes", "epochs"],
)
def test_datasets_have_autotuning_off(make_dataset, length):
    rows = grain.MapDataset.range(4).map(lambda _: (np.zeros((3, 7)), np.zeros(3)))
    dataset = make_dataset(rows)
    assert dataset.options().autotune.enabled is False
    assert [tuple(spec.shape) for spec in dataset.element_spec] == [(3, length), (3,)]
    assert [x.shape for x in next(iter(dataset))] == [(3, 7), (3,)]
