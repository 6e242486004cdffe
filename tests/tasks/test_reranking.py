"""Reranking: file layouts, the first stage, combined scores, and predictions."""

import json
from dataclasses import replace
from itertools import permutations
from math import log, sqrt

import keras
import numpy as np
import pytest
from scipy.stats import rankdata

import roformer_tf
from roformer_tf.adaptation import finetune
from roformer_tf.errors import InputError
from roformer_tf.finetuning import trial
from roformer_tf.finetuning.first_stage import FirstStage, searched
from roformer_tf.finetuning.labelled_evaluation import EvaluateConfig, evaluate
from roformer_tf.finetuning.search import Sets
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.inference.prediction_files import tsv_line
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import find_layout, read_examples
from roformer_tf.search.document_files import Document
from roformer_tf.search.index import SearchIndex
from roformer_tf.search.keywords import BM25
from roformer_tf.search.retriever import Retriever, open_reranker
from roformer_tf.search.writing import add_documents
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.choices.reranking import Judgment, Reranking, fused
from roformer_tf.tasks.losses import VectorConfig
from roformer_tf.tasks.table import TASKS
from roformer_tf.training.run_files import write_settings
from tests.support.random_model import random_model

COLUMNS = {"text_columns": ("query", "document")}


def write(path, rows):
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("documents", ["documents", "passages"])
def test_a_query_with_its_documents_is_detected(documents, tmp_path):
    row = {"query": "问", documents: ["甲", "乙"], "labels": [0, 1]}
    layout = find_layout(write(tmp_path / "x.jsonl", [row] * 2), ColumnsConfig(), None, TASKS)
    assert layout.task.name == "reranking"


def test_both_layouts_give_the_same_examples(tmp_path):
    lists = [{"query": "问", "documents": ["甲", "乙", "丙"], "labels": [0, 1, 0]}]
    pairs = [
        {"query": "问", "document": text, "label": label}
        for text, label in (("甲", 0), ("乙", 1), ("丙", 0), ("乙", 0))
    ]
    for name, rows in (("lists", lists), ("pairs", pairs)):
        path = write(tmp_path / f"{name}.jsonl", [*rows, {**rows[0], "query": "无"}][: len(rows)])
        layout = find_layout(path, ColumnsConfig(), "reranking", TASKS)
        (example,) = read_examples(path, layout, ColumnsConfig())
        assert (example.texts, example.label.relevance) == (("问", "甲", "乙", "丙"), (0, 1, 0))
        assert layout.task.labelling.target(example).tolist() == [0, 1, 0]


def test_documents_and_labels_in_a_table_of_predictions_are_read_back(tmp_path):
    example, task = positive("问", "甲", "乙"), Reranking(**COLUMNS)
    cells = [*task.labelling.as_cells(example), task.decoding.gold_cell(example)]
    path = tmp_path / "predictions.tsv"
    path.write_text(tsv_line(["query", "documents", "gold"]) + tsv_line(cells), encoding="utf-8")
    columns = ColumnsConfig(label_column="gold")
    layout = find_layout(path, columns, "reranking", TASKS)
    (read,) = read_examples(path, layout, columns)
    assert (read.texts, read.label) == (example.texts, example.label)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"documents": ["甲", "乙"], "labels": [1]}, "has 1 instead of 2 labels, one for each"),
        ({"documents": ["甲"], "labels": [-1]}, "relevance is a number of at least 0"),
        ({"documents": [], "labels": []}, "has too few texts in 'documents': 0"),
        ({"documents": ["甲", "乙"], "labels": [0, 0]}, "no query has a relevant document"),
    ],
)
def test_bad_rows_are_rejected(row, message, tmp_path):
    path = write(tmp_path / "train.jsonl", [{"query": "问"} | row])
    layout = find_layout(path, ColumnsConfig(), "reranking", TASKS)
    with pytest.raises(InputError, match=message):
        read_examples(path, layout, ColumnsConfig(strict=True))


def test_queries_without_a_relevant_document_are_counted(tmp_path, capsys):
    rows = [{"query": x, "documents": ["甲", "乙"], "labels": [x == "b", 0]} for x in "abc"]
    path = write(tmp_path / "train.jsonl", rows)
    layout = find_layout(path, ColumnsConfig(), None, TASKS)
    assert layout.task.name == "reranking"
    assert len(read_examples(path, layout, ColumnsConfig())) == 1
    assert "skipped queries without relevant document: 2." in capsys.readouterr().err


def predicted(task, scores):
    return task.decoding.reread(Prediction(Judgment(()), np.float32(scores)))


def positive(query, document, *negatives):
    return Example((query, document, *negatives), Judgment((1.0, *[0.0] * len(negatives))), "")


PAGES = {"打印 文件": "打印 文件 的 方法", "打开 表格": "打开 表格", "保存 图片": "保存 图片"}
UNSEEN = {"打印 机": "打印 文件 机", "表格": "表格 打开 方法"}


def test_the_first_stage_orders_and_adds_documents():
    texts = {"打印 文件": "打印 文件 的 方法", "打开 表格": "表格 怎么 打开", "保存 图片": "图片"}
    positives = [positive(*pair) for pair in texts.items()]
    labelled = positive("打印", "图片", "打印 机")
    sets = searched(Sets([*positives, labelled], positives, [], []), 2, None)
    for x in sets.train[:3]:
        assert len(x.texts) == 4
        assert x.label.relevance == (1, 0, 0)
    assert sets.train[3].texts == ("打印", "打印 机", "图片")
    assert sets.train[3].label.relevance == (0, 1)
    for example, expected in zip(sets.valid, positives, strict=True):
        assert len(example.texts) == 5  # the query and all documents, best first
        assert example.texts[1] == expected.texts[1]
        assert example.label.relevance == (1, 0, 0, 0)
        assert list(example.label.search) == sorted(example.label.search, reverse=True)


def test_documents_of_other_sets_are_not_training_negatives():
    """They would be negatives of every query, and the model would learn to rank them last."""
    train, valid = ([positive(*pair) for pair in pages.items()] for pages in (PAGES, UNSEEN))
    sets = searched(Sets(train, valid, [], [(train, valid)]), 4, None)
    for pages in (sets.train, sets.folds[0][0]):
        assert {text for x in pages for text in x.texts[1:]} == {*PAGES.values()}
    assert {text for x in sets.valid for text in x.texts[1:]} == {*PAGES.values(), *UNSEEN.values()}


def test_a_relevant_document_that_the_search_does_not_return_counts():
    """Of two relevant documents one is first, and one beyond the 20 that are ordered."""
    query, far = "打印 文件", "图片"
    relevant = Example((query, "打印 文件", far), Judgment((1.0, 1.0)), "")
    rest = [positive(f"文件 {number}", f"文件 {number}") for number in range(25)]
    example, *_ = FirstStage([relevant, *rest], {}).ordered([relevant])
    assert far not in example.texts
    task = Reranking(weight=0.0, **COLUMNS)
    predictions = [predicted(task, np.full(len(example.texts) - 1, 0.5))]
    figures = task.metrics.compute([example.label], predictions)
    assert figures == {"mrr_at_10": 1, "ndcg_at_10": pytest.approx(1 / (1 + log(2) / log(3)))}


def test_first_stage_scores_equal_hybrid_search():
    examples = [positive(*pair) for pair in (PAGES | UNSEEN).items()]
    texts = sorted({text for example in examples for text in example.texts})
    normals = np.random.default_rng(0).normal(size=(len(texts), 4)).astype(np.float32)
    vectors = dict(zip(texts, normals / np.linalg.norm(normals, axis=1)[:, None], strict=True))
    documents = [*PAGES.values(), *UNSEEN.values()]
    for example in FirstStage(examples, vectors).ordered(examples):
        query = example.texts[0]
        (words,) = BM25(documents).scores([query])
        want = {
            text: word / words.max() + vectors[text] @ vectors[query]
            for text, word in zip(documents, words, strict=True)
        }
        assert list(example.texts[1:]) == sorted(want, key=want.get, reverse=True)
        assert example.label.search == pytest.approx(sorted(want.values(), reverse=True), abs=1e-6)


def test_fused_combines_standardized_scores_and_log_odds():
    search, scores = [7.0, 4.0, 1.0], np.array([0.1, 0.9, 0.5])
    standardized = [sqrt(1.5), 0, -sqrt(1.5)]  # the standard deviation of 7, 4 and 1 is √6
    want = [0.3 * log(p / (1 - p)) + 0.7 * z for p, z in zip(scores, standardized, strict=True)]
    assert fused(search, scores, 0.3) == pytest.approx(want)
    assert fused([5.0, 5.0, 5.0], scores, 0) == pytest.approx([0, 0, 0])
    assert fused([100 * x + 5 for x in search], scores, 0.3) == pytest.approx(want)


@pytest.mark.parametrize(("sign", "useful"), [(1, True), (-1, False)])
def test_the_chosen_weight_is_never_worse_than_the_search(sign, useful):
    labels = [(0, 0, 1), (1, 0, 0), (0, 0, 0)]
    gold = [Judgment(relevance, (3.0, 2.0, 1.0)) for relevance in labels]
    task = Reranking(**COLUMNS)
    predictions = [predicted(task, sign * np.array(relevance)) for relevance in labels]
    task, figures = task.metrics.with_choices(gold, predictions)
    assert bool(task.weight) == useful == (not task.why_useless)
    # By hand: ranks 1 and 1, or 3 and 1; a query without a relevant document counts as 0.
    assert figures["mrr_at_10"] == pytest.approx((2 if useful else 4 / 3) / 3)
    assert figures["ndcg_at_10"] == pytest.approx((2 if useful else 1.5) / 3)
    _, search = task.metrics.rule([], [Example("abcd", x, "") for x in gold], [])
    assert task.metrics.compute(gold, search)["mrr_at_10"] == pytest.approx(4 / 9)
    assert task.metrics.is_right(gold[0], task.decoding.reread(predictions[0])) == useful


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_predictions_are_measured_with_the_weight_of_their_own_model(weight):
    """Those of the search, of other folds, of a teacher and of a student without one."""
    gold = [Judgment((1.0, 0.0, 0.0), (3.0, 2.0, 1.0))]
    task, other = Reranking(**COLUMNS, weight=weight), Reranking(**COLUMNS, weight=0.4)
    _, search = task.metrics.rule([], [Example("abcd", gold[0], "")], [])
    assert task.metrics.compute(gold, search) == {"mrr_at_10": 1, "ndcg_at_10": 1}
    # With the log-odds −1, 1 and 1, the right document is first up to a weight of 0.38.
    predictions = [other.decoding.predict(np.array([-1.0, 1.0, 1.0]))]
    assert task.metrics.compute(gold, predictions)["mrr_at_10"] == 0.5


@pytest.mark.parametrize("relevance", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 1, 1)])
@pytest.mark.parametrize("search", [(5, 5, 5), (5, 3, 3), (5, 5, 3)])
def test_documents_with_equal_scores_have_their_expected_rank(relevance, search):
    """In the order of the file, a search without any match would be perfect if that is."""
    orders = [
        [relevance[i] for i in order]
        for order in permutations(range(3))
        if [search[i] for i in order] == [*search]
    ]
    ranks = [[rank for rank, value in enumerate(order, 1) if value] for order in orders]
    gold, task = Judgment(tuple(map(float, relevance)), search), Reranking(**COLUMNS, weight=0.0)
    prediction = predicted(task, np.full(3, 0.5))
    expected = np.mean(ranks, axis=0)
    assert task.metrics.sureness(gold, prediction) == pytest.approx(expected[0])
    figures = task.metrics.compute([gold], [prediction])
    assert figures["mrr_at_10"] == pytest.approx(1 / expected[0])
    gains = [sum(1 / np.log2(1 + x)) for x in (expected, np.arange(1, len(expected) + 1))]
    assert figures["ndcg_at_10"] == pytest.approx(gains[0] / gains[1])
    assert task.metrics.is_right(gold, prediction) == all(order[0] for order in orders)


@pytest.mark.parametrize("weight", [0.99, 1.0])  # logits of random weights hardly differ
def test_evaluation_and_search_give_the_same_order(weight, tmp_path, eagerly):
    """Both combine the scores in the same way, whatever the scale of the search scores."""
    task, texts = Reranking(**COLUMNS, max_length=24, weight=weight), list("天气好今明学园公")
    keras.utils.set_random_seed(3)
    for name, model_task in (("vectors", None), ("reranker", task)):
        random_model(model_task or task).save_pretrained(tmp_path / name)
    task.save(tmp_path / "reranker")
    reranker = open_reranker(str(tmp_path / "reranker"), VectorSettings(engine="keras"))
    assert reranker.weight == weight
    with eagerly():
        embedder = VectorSettings().open(tmp_path / "vectors")
        add_documents(tmp_path / "index", embedder, list(map(Document, texts)))
        with SearchIndex(tmp_path / "index") as index:
            plain, reranked = (
                next(Retriever(index, embedder, True, reranker=x).results(["今天"], len(texts)))
                for x in (None, reranker)
            )
        documents = [hit.text for hit in plain]
        prediction = predicted(task, reranker.scores("今天", documents))
    for number, hit in enumerate(reranked[:3]):
        relevance = tuple(float(text == hit.text) for text in documents)
        label = Judgment(relevance, tuple(x.score for x in plain))
        assert task.metrics.sureness(label, prediction) == number + 1
    none = Judgment((0.0,) * len(documents), label.search)
    assert task.metrics.sureness(none, prediction) == len(documents) + 1
    assert [hit.text for hit in reranked] != documents


def test_prediction_of_pairs_returns_relevance_scores(tmp_path):
    keras.utils.set_random_seed(1)
    task = Reranking(**COLUMNS, max_length=24)
    random_model(task).save_pretrained(tmp_path)
    task.save(tmp_path)
    model = roformer_tf.load(tmp_path, precision="float32", engine="keras")
    scores = [answer["score"] for answer in model([("今天", "天气很好"), ("今天", "公园")])]
    assert all(0 < score < 1 for score in scores)
    assert scores[0] != scores[1]


def test_evaluate_searches_the_documents_of_its_file(tmp_path, eagerly):
    """If only the relevant document were ranked, every model would be perfect."""
    task, model, output = Reranking(**COLUMNS, weight=0), tmp_path / "model", tmp_path / "out.json"
    keras.utils.set_random_seed(1)
    random_model(task).save_pretrained(model)
    task.save(model)
    pairs = {"天气": "公园天气好", "公园": "公园", "学习": "去公园学习", "今天": "明天天气"}
    rows = [{"query": query, "document": text} for query, text in pairs.items()]
    path, figures = write(tmp_path / "test.jsonl", rows), []
    bm25_scores = BM25(pairs.values()).scores(list(pairs))
    for first_stage in (None, str(model)):
        scores = bm25_scores
        if first_stage:
            embed = VectorSettings().open(first_stage).embed
            highest = np.maximum(bm25_scores.max(axis=1, keepdims=True), 1e-9)
            scores = bm25_scores / highest + embed(pairs) @ embed(pairs.values()).T
        ranks = rankdata(-scores, axis=1).diagonal()  # equal scores have the mean of their ranks
        with eagerly():
            evaluate(
                EvaluateConfig(
                    model=str(model), data=str(path), output=output, first_stage=first_stage
                )
            )
        figures.append(json.loads(output.read_text("utf-8"))["test"]["mrr_at_10"])
        assert figures[-1] == pytest.approx(np.mean(1 / ranks))
    assert figures[0] != pytest.approx(figures[1])


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("keep", [False, True])
def test_a_useless_model_is_not_written(keep, shallow, tmp_path, eagerly, monkeypatch):
    """With --hard-negatives 2, a training query has its document and two others."""
    documents, fit = [], trial.fit

    def recorded(data, *rest):
        documents.extend(len(example.texts) - 1 for example in data.train)
        fit(data, *rest)

    monkeypatch.setattr(trial, "fit", recorded)
    words = ("今天", "明天", "天气", "公园", "学习", "我们", "很好", "打印")
    rows = [{"query": f"{word} 1", "document": f"{word} 2"} for word in words]
    path = str(write(tmp_path / "train.jsonl", rows))
    config = FinetuneConfig(
        checkpoint=str(shallow),
        train=path,
        valid=path,
        output=str(tmp_path / "run"),
        task="reranking",
        epochs=1,
        batch_size=4,
        precision="float32",
        keep_useless=keep,
        vectors=VectorConfig(hard_negatives=2),
    )
    with eagerly():
        if keep:
            finetune(config)
            report = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))
            assert (
                set(report["valid"])
                == {"mrr_at_10", "ndcg_at_10"}
                <= set(report["baseline"]["valid"])
            )
        else:  # BM25 is always right on these rows, so no model is better
            with pytest.raises(InputError, match="--keep-useless"):
                finetune(config)
    assert (tmp_path / "run" / "model").exists() == keep
    assert documents == [3] * len(words)


def test_another_test_set_needs_another_run(tmp_path):
    """Its documents are searched for the queries of the validation set, too."""
    path = str(write(tmp_path / "train.jsonl", [{"query": "问", "document": "答"}] * 2))
    config = FinetuneConfig(
        train=path, valid=path, test=path, output=str(tmp_path / "run"), epochs=1, method="full"
    )
    config = replace(config, task="reranking", precision="float32")
    write_settings(config)
    (tmp_path / "run" / "checkpoints").mkdir()
    with pytest.raises(InputError, match="run with other settings: --test was"):
        finetune(replace(config, test="other.jsonl"))
