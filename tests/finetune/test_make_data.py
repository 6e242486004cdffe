import json
from collections import Counter

import numpy as np
import pytest

from finetune.make_data import LONGEST, SHORTEST, halve, main
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.reading import find_layout, read_examples
from roformer_tf.tasks.table import TASKS

WORDS = ["房间", "早餐", "干净", "服务", "价格", "位置", "安静", "热情", "方便", "便宜"]


@pytest.fixture
def corpus(tmp_path):
    """A file of 60 documents with four sentences each, and the documents."""
    rng = np.random.default_rng(0)
    texts = ["".join("".join(rng.choice(WORDS, 6)) + "。" for _ in range(4)) for _ in range(60)]
    path = tmp_path / "corpus.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t0\n" for text in texts), encoding="utf-8")
    return path, texts


def run(task, source, output, *flags):
    assert main([task, "--from", str(source), "--output", str(output), *flags]) == 0
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_triples_have_halves_of_one_document_and_a_half_of_another(corpus, tmp_path):
    path, texts = corpus
    output = tmp_path / "triples.jsonl"
    triples = run("ranking", path, output, "--examples", "40")
    assert len(triples) == 40
    assert set(Counter(triple["label"] for triple in triples)) == {"B", "C"}
    for triple in triples:
        near, far = (triple[k] for k in ("BC" if triple["label"] == "B" else "CB"))
        assert triple["A"] + near in texts
        assert triple["A"] + far not in texts
    layout = find_layout(output, ColumnsConfig(), None, TASKS)
    assert layout.task.name == "ranking"
    assert len(read_examples(output, layout, ColumnsConfig())) == 40


def test_scores_are_shares_of_replaced_characters(corpus, tmp_path):
    path, texts = corpus
    output = tmp_path / "damaged.jsonl"
    records = run("regression", path, output, "--examples", "50")
    for record in records:
        shares = [np.mean([a != b for a, b in zip(t, record["text"], strict=False)]) for t in texts]
        assert record["score"] == pytest.approx(min(shares), abs=1e-4)
    assert find_layout(output, ColumnsConfig(), None, TASKS).task.name == "regression"
    assert len({record["score"] for record in records}) > 20
    assert max(record["score"] for record in records) <= 0.5


@pytest.mark.parametrize("task", ["ranking", "regression"])
def test_the_output_is_a_function_of_the_seed(corpus, tmp_path, task):
    flags = task, corpus[0], tmp_path / "a.jsonl", "--examples", "20", "--seed"
    first = run(*flags, "1")
    assert run(*flags, "1") == first
    assert run(*flags, "2") != first


def test_a_text_is_cut_at_the_sentence_nearest_to_its_middle():
    assert halve("一二三四五六七八九。" * 4) == ("一二三四五六七八九。" * 2,) * 2
    assert halve("没有句号" * 10) is None
    assert halve("短。短。") is None
    assert max(map(len, halve("一二三四五六七八九。" * 100))) <= 2 * LONGEST - SHORTEST


@pytest.mark.parametrize("task", ["ranking", "regression"])
def test_too_little_text_is_an_error_and_nothing_is_written(corpus, tmp_path, capsys, task):
    output = tmp_path / "a.jsonl"
    assert main([task, "--from", str(corpus[0]), "--output", str(output), "--examples", "99"]) == 2
    assert "only 60" in capsys.readouterr().err
    assert not output.exists()
