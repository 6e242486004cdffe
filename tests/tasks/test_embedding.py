"""The embedding task: data layouts, rankings, thresholds and rejected settings."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import find_layout, open_texts_to_predict, read_examples
from roformer_tf.labelled.splits import split_examples
from roformer_tf.labelled.text_sides import EncodedSides
from roformer_tf.models.heads import RoFormerForSentenceEmbedding
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.losses import VectorConfig
from roformer_tf.tasks.probabilities import best_threshold
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.vectors.ranked_texts import DifferentTexts, unit
from roformer_tf.tasks.vectors.scored_pairs import Embedding, ScoredPairs
from roformer_tf.tasks.vectors.sentence_vectors import BELONGS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS
from tests.support.embedding_file import load
from tests.support.random_model import tokenizer_of
from tests.support.task_files import load_task


def read(folder, content, name="data.tsv"):
    """Write a file and return its layout and examples, as training reads them."""
    path = folder / name
    path.write_text(content, encoding="utf-8")
    layout = find_layout(path, ColumnsConfig(), "embedding", TASKS)
    return layout, read_examples(path, layout, ColumnsConfig())


SCORED = "甲天\t甲地\t{}\n乙天\t乙地\t{}\n丙天\t丙地\t{}\n"
FILES = {
    "scores": ("text_a\ttext_b\tscore\n" + SCORED.format(0.5, 4, 2), "scores", [0.5, 4.0, 2.0]),
    "no header": (SCORED.format(0, 1, 1), "scores", [0.0, 1.0, 1.0]),
    "pairs": ("query\tdocument\n甲天\t甲地人\n乙天\t乙地人\n", "pairs", [BELONGS] * 2),
    "an id": (
        "id\tquery\tdocument\n1\t甲天上\t甲地\n2\t乙天\t乙地人\n",
        "pairs",
        [BELONGS] * 2,
    ),
    "triples": ("anchor\tpositive\tnegative\n甲\t乙\t丙\n丁\t戊\t己\n", "triples", [BELONGS] * 2),
    "ranking": ("A\tB\tC\tlabel\n甲\t乙\t丙\tB\n丁\t戊\t己\tC\n", "triples", [BELONGS] * 2),
}


@pytest.mark.parametrize("name", FILES)
def test_columns_determine_the_kind_of_data(name, tmp_path):
    content, data, labels = FILES[name]
    layout, examples = read(tmp_path, content)
    task = Embedding.from_examples(examples, text_columns=layout.text_columns)
    assert task.data == data
    assert [example.label for example in examples] == labels
    if name == "ranking":
        assert examples[1].texts == ("丁", "己", "戊")  # the positive text comes second


def test_jsonl_with_few_distinct_documents_is_pairs_without_labels(tmp_path):
    """A document column with few distinct texts is not taken for a label column."""
    lines = "".join(f'{{"id": {i}, "wen": "问{i}", "da": "文{i % 3}"}}\n' for i in range(60))
    layout, examples = read(tmp_path, lines, "data.jsonl")
    assert (layout.label_column, layout.text_columns) == (None, ("wen", "da"))
    assert len(examples) == 60


def test_the_first_text_of_a_group_is_paired_with_each_similar_text(tmp_path):
    lines = '{"text": "甲", "similar": ["乙", "丙", "甲 "]}\n{"text": "丁", "similar": ["戊"]}\n'
    _, examples = read(tmp_path, lines, "data.jsonl")
    assert [example.texts for example in examples] == [("甲", "乙"), ("甲", "丙"), ("丁", "戊")]
    assert {example.label for example in examples} == {BELONGS}


def test_positives_and_negatives_in_lists_become_triples(tmp_path):
    """FlagEmbedding and the reranking sets of MTEB use this layout."""
    lines = (
        '{"query": "甲", "pos": ["乙", "甲 "], "neg": ["丙", "丁"]}\n'
        '{"query": "戊", "pos": ["己", "庚"], "neg": ["辛"]}\n'
        '{"query": "壬", "pos": ["癸"], "neg": []}\n'
        '{"query": "壬", "pos": ["壬"], "neg": ["癸"]}\n'
    )
    _, examples = read(tmp_path, lines, "data.jsonl")
    assert [example.texts for example in examples] == [
        *[("甲", "乙", "丙"), ("甲", "乙", "丁")],
        *[("戊", "己", "辛"), ("戊", "庚", "辛")],
    ]
    assert {example.label for example in examples} == {BELONGS}


REFUSED = {
    "equal scores": ("text_a\ttext_b\tlabel\n甲\t乙\t1\n丙\t丁\t1\n", "the same score, 1"),
    "one text": ("text_a\ttext_b\tlabel\n甲\t甲\t1\n甲\t甲\t0\n", "of the same texts"),
    "one document": ("query\tdocument\n甲\t乙\n丙\t乙\n", "one and the same second text"),
    "equal to itself": (
        "query\tdocument\n甲\t甲\n丙\t丙 \n",
        ":2-3 has the same text twice",
    ),
    "blank": ("query\tdocument\n \n\n", "no example"),
    "a number of three": ("A\tB\tC\tlabel\n甲\t乙\t丙\t1\n", "it is B or C"),
    "a letter of two": ("text_a\ttext_b\tlabel\n甲\t乙\tB\n", "it is a number"),
    "a word": ("text_a\ttext_b\tlabel\n甲\t乙\t好\n", "has the label '好'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_without_a_training_signal_are_rejected(name, tmp_path):
    content, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        Embedding.from_examples(read(tmp_path, content)[1])


def test_classes_of_a_classifier_are_the_indices_of_the_scores(tmp_path):
    scores = (0.1, 0.2, 0.3, 0.7)
    rows = "".join(f"甲{x}\t乙{x}\t{x}\n" for x in scores)
    examples = read(tmp_path, "text_a\ttext_b\tlabel\n" + rows)[1]
    task = dataclasses.replace(Embedding.from_examples(examples), loss="classifier")
    data = task.labelling.training_data(examples, tokenizer_of("甲乙"))
    assert data.targets.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": "甲", "pos": []}', "has no text in 'pos'"),
        ('{"query": [], "pos": ["甲"]}', "has no text in 'query'"),
        ('{"text": ["甲"]}', "has a single text, to which no other belongs"),
    ],
)
def test_lists_without_a_pair_are_refused_with_the_reason(line, message, tmp_path):
    with pytest.raises(InputError, match=message):
        read(tmp_path, line + "\n", "data.jsonl")


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        ("pairs", {"loss": "cosent"}, "Give --loss softmax"),
        ("scores", {"loss": "softmax"}, "Give --loss cosent or classifier"),
        ("scores", {"hard_negatives": 2}, "texts that belong together"),
        ("texts", {"hard_negatives": 2}, "texts that belong together"),
        ("scores", {"loss": "classifier", "dimensions": (4,)}, "reads whole vectors"),
        ("many", {"loss": "classifier"}, "more than 50"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_rejected(data, settings, message):
    kinds = {
        "pairs": Embedding(),
        "scores": ScoredPairs(levels=(0.0, 1.0)),
        "many": ScoredPairs(),
        "texts": Embedding(data="texts"),
    }
    with pytest.raises(InputError, match=message):
        kinds[data].objective.with_vector_settings(VectorConfig(**settings), None)


def encode(*pairs):
    """Encode each text as a sequence of one token that identifies it.

    A list stands for a text of several windows, one for each token of the list.
    """
    texts = [[x if isinstance(x, list) else [x] for x in pair] for pair in pairs]
    rows = [[[np.array([1, token, 2], np.int32) for token in x] for x in pair] for pair in texts]
    return EncodedSides.of(rows, np.full(len(pairs), 3))


def vectors_at(*degrees):
    """Return 2-D vectors at these angles, with random lengths."""
    angles = np.radians(degrees)
    lengths = np.random.default_rng(0).uniform(0.5, 3, len(degrees))
    return list(np.stack([np.cos(angles), np.sin(angles)], 1) * lengths[:, None])


def test_a_text_is_ranked_among_all_distinct_texts():
    task = Embedding()
    # Query 10 has two documents, 50 and 51. Document 51 occurs twice: query 20 has it, too.
    encoded = encode((10, 50), (10, 51), (20, 51), (30, 52))
    vectors = vectors_at(0, 30, 0, 10, 12, 10, 5, 90)
    actual = task.decoding.read_rows(vectors, encoded)
    assert [item.label.rank for item in actual] == [1, 1, 1, 3]
    assert actual[0].scores[0] == pytest.approx(np.cos(np.radians(30)))
    near = [(example, side) for example, side, _ in actual[3].label.neighbours]
    assert near == [(1, 1), (0, 1), (3, 1)]  # 51 is counted once
    near = task.decoding.shifted(actual[3], 10, task).label.neighbours
    shifted = [example for example, *_ in near]
    assert shifted == [11, 10, 13]
    assert actual[3].label.ahead is False
    metrics = task.metrics.compute([BELONGS] * 4, actual)
    assert metrics["recall_at_1"] == 0.75
    assert metrics["mrr_at_10"] == pytest.approx((3 + 1 / 3) / 4)
    assert list(metrics) == [metric.name for metric in task.metrics.usable()]


def test_the_nearest_window_of_a_text_counts():
    task = Embedding(long_texts="windows")
    encoded = encode((10, [50, 51, 52]), (20, [53]), (30, [54, 55]))
    vectors = vectors_at(0, 80, 20, 90, 200, 230, 100, 280, 101)
    actual = task.decoding.read_rows(vectors, encoded)
    assert [item.label.rank for item in actual] == [1, 1, 1]
    cosines = [item.scores[0] for item in actual]
    np.testing.assert_allclose(cosines, np.cos(np.radians([20, 30, 1])), atol=1e-6)
    near = actual[2].label.neighbours[1]
    assert near[:2] == (0, 1)
    assert near[2] == pytest.approx(np.cos(np.radians(10)))


def test_the_loss_is_the_mean_over_truncated_vectors():
    rng = np.random.default_rng(0)
    vectors, weights = rng.normal(size=(4, 2, 6)).astype("float32"), np.ones(4, "float32")
    targets = np.eye(4, dtype="int8")
    losses = [
        float(Embedding().objective.batch_loss(targets, vectors[..., :n], weights, None))
        for n in (2, 4, 6)
    ]
    cut = Embedding(dimensions=(2, 4, 6, 9))  # 9 exceeds the vector size and is ignored
    assert float(cut.objective.batch_loss(targets, vectors, weights, None)) == pytest.approx(
        np.mean(losses)
    )


def test_training_uses_the_window_that_matches_the_query():
    letters = "abcdefghijklmnopqrstuvwxyz"
    tokenizer = RoFormerTokenizer({x: i for i, x in enumerate([*SPECIAL_TOKENS, *letters])}, "char")
    examples = [Example(("x y", " ".join(letters)), BELONGS, ""), Example(("a", "b"), BELONGS, "")]
    for kind, want in (("head", "a"), ("windows", "q")):
        task = Embedding(max_length=12, long_texts=kind)
        inputs, _, _ = task.labelling.training_data(examples, tokenizer).batches(2, 0)[0]
        (row,) = [row for row in inputs["side_1"] if (row > 0).sum() > 3]
        assert tokenizer.decode(row[1:2].tolist()) == want
        assert (
            len(task.labelling.encode(examples, tokenizer).token_ids)
            == {"head": 4, "windows": 6}[kind]
        )


def test_a_triple_is_right_if_the_positive_is_nearer():
    task = Embedding(data="triples")
    actual = task.decoding.read_rows(
        vectors_at(0, 10, 20, 0, 40, 30), encode((10, 50, 60), (20, 51, 61))
    )
    assert [item.label.ahead for item in actual] == [True, False]
    assert task.metrics.compute([BELONGS] * 2, actual)["accuracy"] == 0.5


def test_scored_pairs_are_evaluated_by_their_cosines():
    task = ScoredPairs(levels=(0.0, 1.0))
    pairs = [(10 + i, 50 + i) for i in range(6)]
    degrees = [40, 10, 70, 20, 60, 30]
    vectors = [x for item in degrees for x in vectors_at(0, item)]
    gold = [0.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    actual = task.decoding.read_rows(vectors, encode(*pairs))
    cosines = np.cos(np.radians(degrees))
    np.testing.assert_allclose([item.label for item in actual], cosines, atol=1e-6)
    chosen = task.decoding.with_choices(gold, actual)
    assert np.cos(np.radians(30)) < chosen.threshold < np.cos(np.radians(20))
    metrics = chosen.metrics.compute(gold, actual)
    assert metrics["roc_auc"] == pytest.approx(roc_auc_score(gold, cosines))
    assert metrics["accuracy"] == pytest.approx(5 / 6)
    three_levels = dataclasses.replace(task, levels=(0.0, 1.0, 2.0))
    assert list(three_levels.metrics.compute(gold, actual)) == ["spearman", "pearson"]


@pytest.mark.parametrize("sides", [2, 3])
def test_a_model_with_one_vector_for_all_texts_is_never_right(sides):
    """Cosines of equal vectors differ by rounding, by where a document is in the matrix."""
    task = Embedding.from_settings(data="pairs" if sides == 2 else "triples")
    texts = [[[np.array([i, side])] for side in range(sides)] for i in range(5)]
    different = DifferentTexts(EncodedSides.of(texts, np.full(5, 2, np.int32)))
    documents = 5 * (sides - 1)
    scores = np.float32(0.9) + np.arange(documents, dtype=np.float32)[::-1] * np.float32(6e-8)
    actual = task.decoding.read_scores(different, [scores] * 5)
    assert [x.label.rank for x in actual] == [documents] * 5
    assert not any(x.label.ahead for x in actual)


def test_many_scored_pairs_take_no_quadratic_time():
    """The cosines of 30,000 pairs, not of 30,000² texts; of passages the nearest one counts."""
    count, rng = 30_000, np.random.default_rng(0)
    texts = [[[np.array([i, side])] for side in range(2)] for i in range(count)]
    texts[7][1].append(np.array([7, 2]))
    vectors = rng.normal(size=(2 * count + 1, 32)).astype(np.float32)
    began = time.perf_counter()
    encoded = EncodedSides.of(texts, np.full(count, 2, np.int32))
    actual = [x.label for x in ScoredPairs().decoding.read_rows(list(vectors), encoded)]
    assert time.perf_counter() - began < 5
    first, *both = unit(vectors)[14:17]
    assert actual[7] == pytest.approx(max(both @ first), abs=1e-6)
    first, second = unit(vectors)[-2:]
    assert actual[-1] == pytest.approx(first @ second, abs=1e-6)


@pytest.mark.parametrize(
    ("trained", "evaluated", "metrics"),
    [
        ([0.0, 1.0], [0.0, 1.0], ["roc_auc", "accuracy", "spearman", "pearson"]),
        ([0.0, 1.0], [1.0, 1.0], ["roc_auc", "accuracy", "spearman", "pearson"]),
        ([0.0, 1.0], [1.0, 2.0], ["roc_auc", "accuracy", "spearman", "pearson"]),
        ([0.0, 1.0], [0.0, 3.0, 5.0], ["spearman", "pearson"]),
        ([0.0, 1.0], [x / 100 for x in range(60)], ["spearman", "pearson"]),
        ([0.0, 3.0, 5.0], [-1.0, 1.0], ["roc_auc", "spearman", "pearson"]),
        ([BELONGS] * 2, [0.0, 1.0], ["roc_auc", "spearman", "pearson"]),
    ],
)
def test_accuracy_needs_a_threshold_that_training_chose(trained, evaluated, metrics):
    def examples(labels):
        return [Example((f"甲{i}", f"乙{i}"), x, f"a:{i}") for i, x in enumerate(labels, 1)]

    task = Embedding.from_examples(examples(trained), text_columns=("text_a", "text_b"))
    adapted = Embedding.adapted(task, examples(evaluated))
    predictions = [Prediction(0.6, np.array([0.6])) for _ in evaluated]
    assert list(adapted.metrics.compute(evaluated, predictions)) == metrics
    mistakes = adapted.metrics.mistakes(examples(evaluated), predictions)
    assert bool(mistakes) != (evaluated == [1.0, 1.0])


@pytest.mark.parametrize(
    ("data", "texts", "label", "what"),
    [
        ("pairs", "甲乙", 0.5, "a score"),
        ("scores", "甲乙", BELONGS, "matching texts"),
        ("scores", "甲", BELONGS, "a single text"),
        ("pairs", "甲", BELONGS, "a single text"),
        ("texts", "甲乙", BELONGS, "matching texts"),
    ],
)
def test_examples_of_another_kind_than_in_training_are_an_error(data, texts, label, what):
    task = Embedding.from_settings(data=data)
    with pytest.raises(InputError, match=f"a:1 has {what}, unlike"):
        task.labelling.target(Example(tuple(texts), label, "a:1"))


@pytest.mark.parametrize(("data", "texts"), [("pairs", "甲乙丙"), ("triples", "甲乙")])
def test_pairs_and_triples_suit_each_other(data, texts):
    task = Embedding.from_settings(data=data)
    assert task.labelling.target(Example(tuple(texts), BELONGS, "a:1")) == 1


def test_models_of_folds_keep_their_own_thresholds():
    """Each of two models splits its pairs without a mistake, at cosines of different scales."""
    gold, cosines = [0.0, 1.0], ([0.9, 0.99], [-0.2, 0.1])
    sets = [[Prediction(x, np.array([x], np.float32)) for x in of_set] for of_set in cosines]
    parts, task = [], ScoredPairs(levels=(0.0, 1.0))
    tasks = [task.decoding.with_choices(gold, predictions) for predictions in sets]
    for number, (kind, predictions) in enumerate(zip(tasks, sets, strict=True)):
        shifted = [kind.decoding.shifted(x, 2 * number, tasks[0]) for x in predictions]
        assert [x.scores for x in shifted] == [x.scores for x in predictions]
        parts += shifted
    assert tasks[0].metrics.compute(gold * 2, parts)["accuracy"] == 1.0


@given(st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=1, max_size=20))
def test_no_other_threshold_has_a_higher_accuracy(pairs):
    scores = np.array([score / 5 for score, _ in pairs])
    labels = np.array([yes for _, yes in pairs])
    threshold = best_threshold(scores, np.where(labels, -1, 1), -1.1, 1.1)
    best = np.mean((scores > threshold) == labels)
    accuracies = [np.mean((scores > x) == labels) for x in np.arange(-1.1, 1.2, 0.1)]
    assert best == pytest.approx(max(accuracies))


def test_no_text_is_in_two_sets():
    examples = [Example((f"问{i}", f"文{i % 40}"), BELONGS, f"data:{i}") for i in range(200)]
    sets = split_examples(examples, Embedding, (0.1, 0.1), seed=1)
    texts = [{text for example in item for text in example.texts} for item in sets]
    assert [len(item) for item in sets] == [160, 20, 20]
    assert not texts[0] & texts[1]
    assert not texts[0] & texts[2]
    assert not texts[1] & texts[2]


def test_pairs_are_split_if_all_texts_are_connected():
    examples = [Example((f"问{i}", f"问{i + 1}"), float(i % 2), f"data:{i}") for i in range(100)]
    sets = split_examples(examples, Embedding, (0.1, 0.1), seed=1)
    assert [len(item) for item in sets] == [80, 10, 10]


def test_a_saved_folder_restores_the_embedding_settings(tmp_path):
    config = RoFormerConfig(10, 8, 1, 2, 16, pooling="pooler")
    RoFormerForSentenceEmbedding(config).save_pretrained(tmp_path)
    task = Embedding(max_length=48, dimensions=(2, 4, 8), threshold=0.7)
    task.save(tmp_path)
    task.decoding.save_files(tmp_path, config)
    assert load_task(tmp_path) == task
    assert load(tmp_path) == EmbeddingConfig("pooler", 48, (2, 4, 8))
    assert (tmp_path / "modules.json").is_file()
    Embedding(max_length=48).decoding.save_files(tmp_path, config)
    assert load(tmp_path) == EmbeddingConfig("pooler", 48)


def test_prediction_accepts_a_pair_of_equal_texts(tmp_path):
    """Training rejects such a pair, but prediction returns its cosine."""
    path = tmp_path / "new.tsv"
    path.write_text("query\tdocument\n甲\t甲\n", encoding="utf-8")
    task = Embedding(text_columns=("query", "document"))
    (actual,) = open_texts_to_predict(path, task, ColumnsConfig()).examples
    assert actual == Example(("甲", "甲"), None, f"{path}:2")
