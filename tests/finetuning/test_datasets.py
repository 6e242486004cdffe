"""LabelledDataset with `fit` of Keras."""

import json

import keras
import numpy as np
import pytest

from roformer_tf import InputError, LabelledDataset, RoFormerForSequenceClassification
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.fitting import epochs
from tests.support.finetuned import load_finetuned
from tests.support.random_model import random_model


@pytest.fixture
def reviews(tmp_path):
    """A file of 40 texts in two lengths; their last character, 好 or 差, determines the label."""
    path = tmp_path / "reviews.tsv"
    codes = [f"{number:06b}".translate({48: "天", 49: "气"}) for number in range(40)]
    texts = [code * (3 if number % 4 < 2 else 1) for number, code in enumerate(codes)]
    lines = [f"{text}{'好差'[n % 2]}\t{'ab'[n % 2]}" for n, text in enumerate(texts)]
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(shallow):
    return RoFormerForSequenceClassification.from_pretrained(shallow, num_labels=2)


def sequences_of(batches):
    """Return token ids without padding and the target of each sequence with a weight."""
    actual = []
    for inputs, targets, weights in batches:
        ids, targets, weights = (
            keras.ops.convert_to_numpy(x) for x in (inputs["token_ids"], targets, weights)
        )
        actual += [
            (tuple(row[row != 0].tolist()), target)
            for row, target, weight in zip(ids, targets.tolist(), weights, strict=True)
            if weight
        ]
    return actual


def batches_of_epoch(batches):
    """Return the batches that Keras reads in one epoch."""
    if isinstance(batches, keras.utils.PyDataset):
        actual = [batches[number] for number in range(len(batches))]
        batches.on_epoch_end()
        return actual
    return list(batches)


def test_settings_without_effect_are_rejected(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("text_a\ttext_b\tlabel\n甲\t乙\t是\n丙\t丁\t否\n", encoding="utf-8")
    with pytest.raises(InputError, match="but with pair the longer text is cut"):
        LabelledDataset.from_file(path, "pair", long_texts="windows")


def test_epochs_contain_all_rows_in_different_orders(reviews, model):
    data = LabelledDataset.from_file(reviews, max_length=64)
    batches = data.batches(model.tokenizer, batch_size=3)
    assert len(batches) == 14
    first, second = (sequences_of(batches_of_epoch(batches)) for _ in range(2))
    want = [
        (tuple(model.tokenizer.encode(item.texts[0])[0]), data.task.labels.index(item.label))
        for item in data.examples
    ]
    assert sorted(first) == sorted(second) == sorted(want)
    assert first != second


def test_splits_are_disjoint_and_complete(reviews):
    data = LabelledDataset.from_file(reviews, "classification")
    train, valid = data.split(valid=0.25)
    assert (len(train), len(valid)) == (30, 10)
    assert sorted([*train.examples, *valid.examples]) == sorted(data.examples)
    assert train.task == valid.task == data.task
    assert data.split(0.25, seed=1)[1].examples != valid.examples


@pytest.mark.usefixtures("eager_steps")
def test_fit_evaluates_validation_data_and_saving_keeps_predictions(reviews, shallow, tmp_path):
    keras.utils.set_random_seed(0)
    half, _ = LabelledDataset.from_file(reviews, max_length=64).split(valid=0.5)
    train, valid = half.split(valid=0.4)
    model = RoFormerForSequenceClassification.from_pretrained(shallow, num_labels=2)
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        ),
        weighted_metrics=["accuracy"],
    )
    history = model.fit(
        train.batches(model.tokenizer, batch_size=4),
        validation_data=valid.batches(model.tokenizer, batch_size=3),  # the last one is padded
        epochs=2,
        shuffle=False,
        verbose=0,
    ).history
    predictions = valid.predict(model)
    right = np.mean([a.label == b.label for a, b in zip(predictions, valid.examples, strict=True)])
    assert history["val_accuracy"][-1] == pytest.approx(right)
    # One batch: its mean does not depend on the order, and on JAX Keras begins with a second epoch.
    batches = valid.batches(model.tokenizer, len(valid) + 1)  # with padding of weight 0
    [(inputs, targets, _)] = batches_of_epoch(batches)
    losses = keras.ops.sparse_categorical_crossentropy(targets, model(inputs), from_logits=True)
    evaluated, _ = model.evaluate(batches, verbose=0)
    assert evaluated == pytest.approx(float(keras.ops.mean(losses[: len(valid)])), rel=1e-5)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "lexical.npz").touch()  # of an earlier model
    train.save_model(model, tmp_path / "model")
    assert not (tmp_path / "model" / "lexical.npz").exists()
    tokenizer_config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text("utf-8"))
    assert tokenizer_config["model_max_length"] == 64 < model.config.max_position_embeddings
    loaded, _, task = load_finetuned(tmp_path / "model")
    assert task == train.task
    for item, other in zip(valid.predict(loaded), predictions, strict=True):
        np.testing.assert_array_equal(item.scores, other.scores)


def test_a_saved_tagger_has_its_units(tmp_path):
    """Other programs read them, to tokenize each character."""
    task = Tagging(labels=("O", "B-LOC", "I-LOC"))
    model = random_model(task)
    model.tokenizer = model.tokenizer.replaced(units=None)
    LabelledDataset([], task).save_model(model, tmp_path)
    assert RoFormerTokenizer.from_pretrained(tmp_path).units == "characters"


def test_a_model_without_tokenizer_is_rejected(reviews, shallow):
    data = LabelledDataset.from_file(reviews)
    model = RoFormerForSequenceClassification.from_pretrained(shallow, num_labels=2)
    model.tokenizer = None
    with pytest.raises(InputError, match="has no tokenizer"):
        data.predict(model)


def test_epochs_follow_each_other():
    import grain

    batches = grain.MapDataset.range(100).map(lambda n: (np.array([n]), np.array([n]), np.ones(1)))
    fed = epochs(batches, 3)
    seen = [[int(labels[0]) for _, labels, _ in batches_of_epoch(fed)] for _ in range(2)]
    start = seen[0][0]
    assert [n for epoch in seen for n in epoch] == list(range(start, start + 6))


def invalid_arguments(reviews, model):
    """Yield common mistakes in the arguments."""
    data = LabelledDataset.from_file(reviews)
    examples, task = data.examples, data.task
    frame = {"text": ["好"], "label": ["a"]}  # stands for a DataFrame
    yield frame, model.tokenizer
    yield examples, "classification"
    yield examples, type(task)
    yield frame, task
    yield str(reviews), task
    yield (item for item in examples), task
    yield [("好", "a")], task


def test_invalid_examples_are_rejected(reviews, model):
    for arguments in invalid_arguments(reviews, model):
        with pytest.raises(InputError, match=r"needs a list of Example.*from_file"):
            LabelledDataset(*arguments)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 2}, "max_length is 2"),
        ({"max_length": "12"}, "max_length is '12', but must be a whole number"),
        ({"columns": {"label_column": "label"}}, r"columns is .*must be a .*ColumnsConfig"),
        ({"long_texts": "tail"}, "long_texts is 'tail'.*head-tail"),
        ({"task": "sentiment"}, "sentiment.*classification"),
    ],
)
def test_settings_of_a_file_are_checked(settings, message, reviews):
    with pytest.raises(InputError, match=message):
        LabelledDataset.from_file(reviews, **settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data, model: data.batches(model.tokenizer, batch_size=0), "batch_size is 0"),
        (lambda data, model: data.split(valid=2), "valid is 2"),
        (lambda data, model: data.split(valid=0), "valid is 0"),
        (lambda data, model: data.split(valid="0.1"), "valid is '0.1', but must be a number"),
    ],
)
def test_arguments_of_its_methods_are_checked(call, message, reviews, model):
    with pytest.raises(InputError, match=message):
        call(LabelledDataset.from_file(reviews, max_length=64), model)


@pytest.mark.parametrize(
    ("task", "row"),
    [
        ("embedding", {"query": "今天天气", "positive": "天气"}),
        ("paraphrase", {"text": "今天天气", "synonyms": ["天气", "气"]}),
        ("multiple-choice", {"text": "今天", "choices": ["天", "气"], "label": 0}),
        ("reranking", {"query": "今天", "documents": ["天", "气"], "labels": [0, 1]}),
    ],
)
def test_tasks_that_compare_sequences_are_rejected(task, row, tmp_path, model):
    path = tmp_path / "a.jsonl"
    line = json.dumps(row, ensure_ascii=False) + "\n"
    path.write_text("".join(line.replace("气", sign) for sign in "气很好"), "utf-8")
    data = LabelledDataset.from_file(path, task)
    with pytest.raises(InputError, match=rf"^{task} compares sequences: use roformer_tf\.finetune"):
        data.batches(model.tokenizer)
