import json

import numpy as np
import pytest

from roformer_tf.corpus.batches import (
    MixingConfig,
    endless_order,
    held_out_batches,
    held_out_sample,
    pretraining_batches,
)
from roformer_tf.corpus.objectives import MaskedTokens, next_tokens, predictions_per_row
from roformer_tf.corpus.packing import Documents, pack
from roformer_tf.corpus.shards import PreparedRows, write_shard
from roformer_tf.errors import InputError
from roformer_tf.training.fitting import prefetched

CLS, SEP, MASK = 1, 2, 3
LENGTH, ROWS = 16, 11
RANDOM = np.arange(200, 250, dtype=np.int32)
COMMON = {"objective": MaskedTokens(MASK, RANDOM)}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of one document each. Row i starts with a word of tokens 10 + i, too long to be masked.

    So the second token identifies the row, even in a masked batch.
    """
    folder = tmp_path_factory.mktemp("rows")
    words = np.concatenate([[0] * 4, np.arange(1, LENGTH - 2 - 3)])
    arrays = []
    for i in range(ROWS):
        ids = np.concatenate([[10 + i] * 4, np.arange(100, 100 + len(words) - 4)])
        documents = Documents(ids, words, np.array([0, len(ids)]))
        arrays.append(pack(documents, LENGTH, cls_id=CLS, sep_id=SEP, dtype=np.uint8)[0])
    shards = [
        vars(write_shard(folder, "train-00000.npy", "train", np.concatenate(arrays[:4]), "news")),
        vars(write_shard(folder, "train-00001.npy", "train", np.concatenate(arrays[4:]), "wiki")),
    ]
    manifest = {"length": LENGTH, "splits": {"train": {}, "held_out": {}}, "shards": shards}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return PreparedRows.open(folder)


def training(rows, batch_size=3, seed=0, **settings):
    return pretraining_batches(rows, batch_size=batch_size, seed=seed, **COMMON, **settings)


def numbers(batch):
    """Return the indices of the rows in a batch."""
    return [int(i) - 10 for i in batch[0]["token_ids"][:, 1]]


def assert_equal(batch, other):
    assert batch[0].keys() == other[0].keys()
    for name in batch[0]:
        np.testing.assert_array_equal(batch[0][name], other[0][name])
    for array, same in zip(batch[1:], other[1:], strict=True):
        np.testing.assert_array_equal(array, same)


def test_a_batch_has_inputs_labels_and_weights(rows):
    inputs, labels, weights = training(rows)[0]
    predictions = predictions_per_row(LENGTH, 0.15)
    shapes = {name: (array.shape, array.dtype) for name, array in inputs.items()}
    assert shapes == {
        "token_ids": ((3, LENGTH), np.int32),
        "sequence_ids": ((3, LENGTH), np.int32),
        "masked_positions": ((3, predictions), np.int32),
    }
    assert (labels.shape, labels.dtype) == ((3, predictions), np.int32)
    assert (weights.shape, weights.dtype) == ((3, predictions), np.float32)


def test_labels_and_documents_are_those_of_the_rows(rows):
    batch = training(rows)[5]
    inputs, labels, weights = batch
    for i, number in enumerate(numbers(batch)):
        row = rows[number]
        np.testing.assert_array_equal(inputs["sequence_ids"][i], row[1])
        used = weights[i] > 0
        assert used.any()
        np.testing.assert_array_equal(labels[i][used], row[0][inputs["masked_positions"][i][used]])


@pytest.mark.parametrize("batch_size", [1, 3, 8, 25])
def test_every_epoch_has_every_row_once_in_a_new_order(rows, batch_size):
    batches = training(rows, batch_size)
    steps = -(-5 * ROWS // batch_size)
    stream = [number for step in range(steps) for number in numbers(batches[step])]
    epochs = [tuple(stream[e * ROWS : (e + 1) * ROWS]) for e in range(5)]
    assert all(sorted(epoch) == list(range(ROWS)) for epoch in epochs)
    assert len(set(epochs)) == 5


def test_another_seed_gives_other_orders(rows):
    orders = [tuple(numbers(training(rows, ROWS, seed)[e])) for seed in range(3) for e in range(3)]
    assert len(set(orders)) == 9  # for example, epoch 1 of seed 0 differs from epoch 0 of seed 1


def test_masks_change_with_the_epoch_but_not_with_the_batch_size(rows):
    seen = {}
    for batch_size in (2, 7):
        batches = training(rows, batch_size)
        for step in range(3 * ROWS // batch_size):
            batch = batches[step]
            for i, number in enumerate(numbers(batch)):
                epoch = (step * batch_size + i) // ROWS
                masked_tokens = batch[0]["token_ids"][i].tobytes()
                assert seen.setdefault((epoch, number), masked_tokens) == masked_tokens
    different = [len({seen[epoch, number] for epoch in range(2)}) for number in range(ROWS)]
    assert sum(different) > ROWS + ROWS // 2


def test_resuming_is_slicing(rows):
    full = list(zip(training(rows), range(12), strict=False))
    for step in (1, 5, 11):
        for (batch, _), sliced, started_batches in zip(
            full[step:], training(rows)[step:], training(rows, start_row=3 * step), strict=False
        ):
            assert_equal(batch, sliced)
            assert_equal(batch, started_batches)


@pytest.mark.parametrize("start", [0, 1, 7, ROWS, 40])
@pytest.mark.parametrize("mixing", [MixingConfig(), MixingConfig(corpus_temperature=2)])
def test_another_batch_size_continues_at_any_row(rows, start, mixing):
    ones = [training(rows, 1, mixing=mixing)[position] for position in range(start, start + 12)]
    batches = training(rows, 4, mixing=mixing, start_row=start)
    assert_equal(concatenated(ones), concatenated([batches[step] for step in range(3)]))


@pytest.mark.parametrize("processes", [1, 2, 3, 6])
@pytest.mark.parametrize("mixing", [MixingConfig(), MixingConfig({"news": 2, "wiki": 1})])
def test_the_shares_of_processes_form_the_batch(rows, processes, mixing):
    settings = {"mixing": mixing, "start_row": 5}
    full = training(rows, 6, **settings)
    shares = [
        training(rows, 6, part=(process, processes), **settings) for process in range(processes)
    ]
    for step in (0, 1, 2, 1_000_003):
        assert_equal(concatenated([piece[step] for piece in shares]), full[step])
        assert all(len(piece[step][1]) == 6 // processes for piece in shares)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_the_shares_of_processes_form_the_evaluation(rows, processes):
    full = held_out_batches(rows, batch_size=8, seed=0, **COMMON)
    shares = [
        held_out_batches(rows, batch_size=8, seed=0, part=(process, processes), **COMMON)
        for process in range(processes)
    ]
    assert {len(piece) for piece in shares} == {len(full)}
    for step in range(len(full)):
        assert_equal(concatenated([piece[step] for piece in shares]), full[step])


def concatenated(batches):
    inputs, labels, weights = zip(*batches, strict=True)
    joined = {name: np.concatenate([x[name] for x in inputs]) for name in inputs[0]}
    return joined, np.concatenate(labels), np.concatenate(weights)


def test_an_indivisible_batch_size_is_refused(rows):
    for make in (pretraining_batches, held_out_batches):
        with pytest.raises(AssertionError):
            make(rows, batch_size=7, seed=0, part=(1, 3), **COMMON)


def test_mixed_corpora_have_their_weights_and_new_masks_in_every_pass(rows):
    mixing = MixingConfig({"news": 10, "wiki": 1})  # news has 4 rows, wiki 7
    batches = training(rows, ROWS, mixing=mixing)
    epochs = [numbers(batches[step]) for step in range(7)]
    assert [sum(number < 4 for number in epoch) for epoch in epochs] == [10] * 7
    assert sorted(number for epoch in epochs for number in epoch if number >= 4) == [*range(4, 11)]
    row_at = endless_order(rows.corpora, mixing, seed=0)
    seen = {}
    for step in range(7):
        for i, number in enumerate(numbers(batches[step])):
            row, pass_number = row_at(step * ROWS + i)
            assert row == number
            assert (pass_number, number) not in seen
            seen[pass_number, number] = batches[step][0]["token_ids"][i].tobytes()
    variants = [{seen[pass_number, number] for pass_number in range(17)} for number in range(4)]
    assert min(map(len, variants)) > 8, "of the few words of a row, others are hidden"


def test_weights_that_do_not_fit_the_rows_are_refused(rows):
    with pytest.raises(InputError, match="weights for 'law', but rows of 'news', 'wiki'"):
        training(rows, mixing=MixingConfig({"law": 1}))


def test_a_batch_does_not_depend_on_earlier_accesses(rows):
    late = training(rows)[1_000_003]
    batches = training(rows)
    for step in (7, 1_000_003, 0, 1_000_003):
        batch = batches[step]
    assert numbers(batches[7]) != numbers(batches[0])
    assert_equal(batch, training(rows)[1_000_003])
    assert_equal(batch, late)


def test_prefetching_changes_nothing(rows):
    batches = training(rows)
    for step, batch in zip(range(30), prefetched(batches), strict=False):
        assert_equal(batch, batches[step])


@pytest.mark.parametrize("batch_size", [1, 4, 11, 16, 30])
def test_evaluation_has_every_row_once_with_the_same_masks(rows, batch_size):
    batches = held_out_batches(rows, batch_size=batch_size, seed=0, **COMMON)
    assert len(batches) == -(-ROWS // batch_size)
    first = list(prefetched(batches))
    weighing = [
        number
        for batch in first
        for number, weights in zip(numbers(batch), batch[2], strict=True)
        if weights.any()
    ]
    assert weighing == list(range(ROWS))
    for batch, second_batch in zip(first, prefetched(batches), strict=True):
        assert batch[0]["token_ids"].shape == (batch_size, LENGTH)
        assert_equal(batch, second_batch)


def test_evaluation_does_not_depend_on_the_batch_size(rows):
    def masked_tokens(batch_size):
        batches = held_out_batches(rows, batch_size=batch_size, seed=0, **COMMON)
        return np.concatenate([batch[0]["token_ids"] for batch in batches])[:ROWS]

    np.testing.assert_array_equal(masked_tokens(3), masked_tokens(8))


@pytest.mark.parametrize(
    ("corpora", "max_rows", "sample"),
    [
        ({"news": 4, "wiki": 7}, 100, {"news": [0, 1, 2, 3], "wiki": [*range(4, 11)]}),
        ({"news": 4, "wiki": 7}, 11, {"news": [0, 1, 2, 3], "wiki": [*range(4, 11)]}),
        ({"news": 4, "wiki": 8}, 3, {"news": [0], "wiki": [4, 8]}),
        ({"news": 97, "wiki": 2, "law": 1}, 4, {"news": [0, 48], "wiki": [97], "law": [99]}),
        ({"news": 97, "wiki": 2, "law": 1}, 2, {"news": [0, 48]}),  # 2 rows for 3 corpora
        ({"": 10}, 4, {"": [0, 2, 5, 7]}),
        ({}, 4, {}),
    ],
)
def test_a_sample_is_spread_evenly_over_and_within_corpora(corpora, max_rows, sample):
    got = held_out_sample(corpora, max_rows)
    assert {name: numbers.tolist() for name, numbers in got.items()} == sample


@pytest.mark.parametrize("batch_size", [1, 2, 4, 8])
def test_a_sample_does_not_depend_on_the_batch_size(rows, batch_size):
    """A sample is evaluated with the masks of the full evaluation, for every batch size."""
    chosen = [0, 3, 4, 7, 9]
    everything = held_out_batches(rows, batch_size=ROWS, seed=0, **COMMON)[0]
    batches = held_out_batches(rows, batch_size=batch_size, seed=0, numbers=chosen, **COMMON)
    assert len(batches) == -(-5 // batch_size)
    inputs, labels, weights = concatenated(list(batches))
    for position, number in enumerate(chosen):
        for name, array in inputs.items():
            np.testing.assert_array_equal(array[position], everything[0][name][number])
        np.testing.assert_array_equal(labels[position], everything[1][number])
        np.testing.assert_array_equal(weights[position], everything[2][number])
    assert not weights[5:].any()
    if batch_size % 2 == 0:
        shares = [
            held_out_batches(
                rows,
                batch_size=batch_size,
                seed=0,
                numbers=chosen,
                part=(i, 2),
                **COMMON,
            )
            for i in range(2)
        ]
        for step, batch in enumerate(batches):
            assert_equal(concatenated([piece[step] for piece in shares]), batch)


def test_causal_batches_have_the_rows_of_masked_batches_in_the_same_order(rows):
    settings = {"batch_size": 4, "seed": 0, "objective": next_tokens}
    batches = pretraining_batches(rows, **settings)
    for step in (0, 1, 5, 1_000_003):
        batch = batches[step]
        assert numbers(batch) == numbers(training(rows, 4)[step])
        shares = [pretraining_batches(rows, part=(i, 2), **settings) for i in range(2)]
        assert_equal(concatenated([piece[step] for piece in shares]), batch)
        started_batches = pretraining_batches(rows, start_row=4 * step, **settings)
        assert_equal(started_batches[0], batch)
        read = np.stack([rows[number] for number in numbers(batch)])
        np.testing.assert_array_equal(batch[0]["token_ids"], read[:, 0])


def test_next_tokens_of_every_held_out_row_are_evaluated_once(rows):
    settings = {"batch_size": 4, "seed": 0, "objective": next_tokens}
    batches = held_out_batches(rows, **settings)
    inputs, labels, weights = concatenated(list(batches))
    assert len(labels) == 12
    np.testing.assert_array_equal(inputs["token_ids"][:ROWS], [rows[i][0] for i in range(ROWS)])
    assert (weights[:ROWS].sum(1) == LENGTH - 1).all()
    assert not weights[ROWS:].any()
    shares = [held_out_batches(rows, part=(i, 2), **settings) for i in range(2)]
    for step, batch in enumerate(batches):
        assert_equal(concatenated([piece[step] for piece in shares]), batch)


def test_training_without_rows_is_refused(rows):
    empty = PreparedRows.open(rows.folder, "held_out")
    with pytest.raises(InputError, match="has no held_out rows"):
        pretraining_batches(empty, batch_size=2, seed=0, **COMMON)
    assert list(held_out_batches(empty, batch_size=2, seed=0, **COMMON)) == []


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras warns at each evaluation
@pytest.mark.slow
def test_fit_accepts_the_batches(rows):
    keras = pytest.importorskip("keras")
    sizes = {"token_ids": LENGTH, "sequence_ids": LENGTH, "masked_positions": 2}
    inputs = {name: keras.Input((size,), dtype="int32", name=name) for name, size in sizes.items()}
    hidden = keras.layers.Embedding(256, 4)(inputs["token_ids"])
    hidden *= keras.ops.cast(inputs["sequence_ids"] > 0, "float32")[..., None]
    picked = keras.ops.take_along_axis(hidden, inputs["masked_positions"][..., None], axis=1)
    model = keras.Model(inputs, keras.layers.Dense(256)(picked))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(
        prefetched(training(rows)),
        steps_per_epoch=4,
        epochs=2,
        shuffle=False,
        validation_data=prefetched(held_out_batches(rows, batch_size=4, seed=0, **COMMON)),
        verbose=0,
    ).history
    assert np.isfinite(history["loss"] + history["val_loss"]).all()
    assert len(history["val_loss"]) == 2
