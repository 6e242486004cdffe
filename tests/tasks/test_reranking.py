"""Reranking: layouts of its files, the first stage, order and scores combined, and predictions."""

import json
from math import log

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.adaptation import finetune
from roformer_tf.errors import InputError
from roformer_tf.finetuning.first_stage import searched
from roformer_tf.finetuning.search import Sets
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import find_layout, read_examples
from roformer_tf.search.retriever import open_reranker
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.choices.reranking import Reranking, fused, order_of
from roformer_tf.tasks.table import TASKS
from tests.support.random_model import random_model

COLUMNS = {"text_columns": ("query", "document")}


def written(path, rows):
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("documents", ["documents", "passages"])
def test_a_query_with_its_documents_is_detected(documents, tmp_path):
    row = {"query": "问", documents: ["甲", "乙"], "labels": [0, 1]}
    layout = find_layout(written(tmp_path / "x.jsonl", [row] * 2), ColumnsConfig(), None, TASKS)
    assert layout.task.name == "reranking"


def test_both_layouts_give_the_same_examples(tmp_path):
    lists = [{"query": "问", "documents": ["甲", "乙", "丙"], "labels": [0, 1, 0]}]
    pairs = [
        {"query": "问", "document": text, "label": label}
        for text, label in (("甲", 0), ("乙", 1), ("丙", 0), ("乙", 0))
    ]
    for name, rows in (("lists", lists), ("pairs", pairs)):
        path = written(tmp_path / f"{name}.jsonl", [*rows, {**rows[0], "query": "无"}][: len(rows)])
        layout = find_layout(path, ColumnsConfig(), "reranking", TASKS)
        (example,) = read_examples(path, layout, ColumnsConfig())
        assert (example.texts, example.label.relevance) == (("问", "甲", "乙", "丙"), (0, 1, 0))
        assert layout.task.labelling(None).target(example).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"documents": ["甲", "乙"], "labels": [1]}, "has 1 labels for 2 documents"),
        ({"documents": ["甲"], "labels": [-1]}, "relevance is a number of at least 0"),
        ({"documents": [], "labels": []}, "has 0 texts in 'documents'"),
        ({"documents": ["甲", "乙"], "labels": [0, 0]}, "no query has a relevant document"),
    ],
)
def test_bad_rows_are_named(row, message, tmp_path):
    path = written(tmp_path / "train.jsonl", [{"query": "问"} | row])
    layout = find_layout(path, ColumnsConfig(), "reranking", TASKS)
    with pytest.raises(InputError, match=message):
        read_examples(path, layout, ColumnsConfig(strict=True))


def test_queries_without_a_relevant_document_are_counted(tmp_path, capsys):
    rows = [{"query": x, "documents": ["甲", "乙"], "labels": [x == "b", 0]} for x in "abc"]
    path = written(tmp_path / "train.jsonl", rows)
    layout = find_layout(path, ColumnsConfig(), None, TASKS)
    assert layout.task.name == "reranking"
    assert len(read_examples(path, layout, ColumnsConfig())) == 1
    assert "2 queries have no relevant document: skipped." in capsys.readouterr().err


def test_the_first_stage_orders_and_adds_documents():
    texts = {"打印 文件": "打印 文件 的 方法", "打开 表格": "表格 怎么 打开", "保存 图片": "图片"}
    positives = [Example((query, text), (1.0,), "") for query, text in texts.items()]
    labelled = Example(("打印", "图片", "打印 机"), (1.0, 0.0), "")
    sets = searched(Sets([*positives, labelled], positives, [], []), 2)
    assert all(len(x.texts) == 4 and x.label == (1, 0, 0) for x in sets.train[:3])
    assert sets.train[3].texts == ("打印", "打印 机", "图片")
    assert sets.train[3].label == (0, 1)
    for example, positive in zip(sets.valid, positives, strict=True):
        assert len(example.texts) == 5  # all documents, the best first
        assert example.texts[1] == positive.texts[1]
        assert example.label == (1, 0, 0, 0)


def test_documents_of_the_other_sets_are_no_wrong_ones_in_training():
    """They would be wrong for every query, and a model would learn to put them last."""
    pages = {"打印 文件": "打印 文件 的 方法", "打开 表格": "打开 表格", "保存 图片": "保存 图片"}
    unseen = {"打印 机": "打印 文件 机", "表格": "表格 打开 方法"}
    train, valid = (
        [Example((q, x), (1.0,), "") for q, x in some.items()] for some in (pages, unseen)
    )
    sets = searched(Sets(train, valid, [], [(train, valid)]), 4)
    for some in (sets.train, sets.folds[0][0]):
        assert {text for x in some for text in x.texts[1:]} == {*pages.values()}
    assert {text for x in sets.valid for text in x.texts[1:]} == {*pages.values(), *unseen.values()}


def test_ranks_of_the_search_are_combined_with_log_odds():
    scores = np.array([0.1, 0.9, 0.5])
    want = [0.3 * log(p / (1 - p)) - 0.7 * log(rank) for rank, p in enumerate(scores, 1)]
    assert fused(scores, 0.3) == pytest.approx(want)
    assert order_of(scores, 0) == (0, 1, 2)
    assert order_of(scores, 1) == (1, 2, 0)


@pytest.mark.parametrize(("sign", "useful"), [(1, True), (-1, False)])
def test_the_weight_is_chosen_and_never_worse_than_the_search(sign, useful):
    gold = [(0, 0, 1), (1, 0, 0), (0, 0, 0)]
    predictions = [Prediction((), sign * np.array(labels, np.float32)) for labels in gold]
    task = Reranking(**COLUMNS).decoding.with_choices(gold, predictions)
    assert bool(task.weight) == useful == (not task.why_useless)
    figures = task.metrics.compute(gold, [task.decoding.reread(x) for x in predictions])
    # By hand: ranks 1 and 1, or 3 and 1; a query without its document counts 0.
    assert figures["mrr_at_10"] == pytest.approx((2 if useful else 4 / 3) / 3)
    assert figures["ndcg_at_10"] == pytest.approx((2 if useful else 1.5) / 3)
    name, search = task.metrics.rule([], [Example("abcd", x, "") for x in gold], [])
    assert task.metrics.compute(gold, search)["mrr_at_10"] == pytest.approx(4 / 9)
    assert "BM25" in str(name)


def test_a_pair_has_a_relevance(tmp_path):
    keras.utils.set_random_seed(1)
    task = Reranking(**COLUMNS, max_length=24)
    random_model(task).save_pretrained(tmp_path)
    task.save(tmp_path)
    model = roformer_tf.load(tmp_path, precision="float32", engine="keras")
    scores = [answer["score"] for answer in model([("今天", "天气很好"), ("今天", "公园")])]
    assert all(0 < score < 1 for score in scores)
    assert scores[0] != scores[1]


def test_a_search_combines_orders_by_the_weight_of_the_model(tmp_path):
    task = Reranking(**COLUMNS, max_length=24, weight=0.25)
    random_model(task).save_pretrained(tmp_path)
    task.save(tmp_path)
    assert open_reranker(str(tmp_path), "keras").weight == 0.25


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("keep", [False, True])
def test_a_useless_model_is_not_written(keep, shallow, tmp_path, eagerly):
    rows = [{"query": f"天气{x}", "document": f"{x}天气很好"} for x in "今天我们去公园学习"]
    path = str(written(tmp_path / "train.jsonl", rows))
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
        else:  # BM25 is always right here, so nothing is better
            with pytest.raises(InputError, match="--keep-useless"):
                finetune(config)
    assert (tmp_path / "run" / "model").exists() == keep
