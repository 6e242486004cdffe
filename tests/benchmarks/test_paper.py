"""The paper in miniature: what its parts are made of. The trainings themselves take hours."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper import long_texts
from benchmarks.paper.__main__ import PARTS, STAGES
from roformer_tf.pretraining.stages import make_stages
from tests.support.random_model import tokenizer_of

ROOT = Path(__file__).parents[2]
NEWS, REVIEWS = "今天气很好我们去公园学习", "中国经济发展人民生活"


@pytest.fixture(scope="module")
def triples(tmp_path_factory):
    """Articles, and the triples made of them: rows of cells by name."""
    folder = tmp_path_factory.mktemp("triples")
    rng = np.random.default_rng(0)
    articles = ["".join(rng.choice(list(NEWS), 340)) for _ in range(24)]
    documents = [text[:5] + "\n" + text[5:] for text in articles]
    documents += ["".join(rng.choice(list(REVIEWS), 50)) for _ in range(30)]
    documents += ["甲\n乙"]  # too short
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in documents]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    tokenizer_of(NEWS + REVIEWS).save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "SIZES", {"train": 6, "test": 6})
        patch.setattr(long_texts, "HALF", 100)
        for _ in range(2):  # the second time they are there
            long_texts.write_triples(folder / "corpus.jsonl", folder / "x", folder)
    files = {name: folder / "x" / f"{name}.tsv" for name in ("train", "test")}
    read = {name: file.read_text(encoding="utf-8").splitlines() for name, file in files.items()}
    return articles, {name: [row.split("\t") for row in rows] for name, rows in read.items()}


def test_the_named_text_continues_the_first_and_the_other_does_not(triples):
    articles, files = triples
    for rows in files.values():
        head, *rows = rows
        assert head == ["A", "B", "C", "label"]
        assert len(rows) == 6
        for first, *others, label in rows:
            news = [re.sub(f"[{REVIEWS}]", "", text) for text in (first, *others)]
            assert [len(text) for text in news] == [100] * 3
            right, wrong = news[1:] if label == "B" else news[:0:-1]
            joined = [text for text in articles if news[0] + right in text]
            assert len(joined) == 1
            assert news[0] + wrong not in joined[0]
            assert any(wrong in text for text in articles)
    assert {row[3] for rows in files.values() for row in rows[1:]} == {"B", "C"}


def test_no_article_is_in_two_files(triples):
    articles, files = triples
    used = {
        name: {n for n, text in enumerate(articles) for row in rows if row[0][-100:] in text}
        for name, rows in files.items()
    }
    assert not used["train"] & used["test"]


def test_what_a_row_of_512_holds_of_a_text_tells_nothing(triples):
    _, files = triples
    for rows in files.values():
        for row in rows[1:]:
            for text in row[:3]:
                assert set(text[: long_texts.IN_FRONT]) <= set(REVIEWS)
    assert long_texts.IN_FRONT > (512 - 3) / 2


def test_both_arms_of_the_stages_see_as_many_tokens():
    defaults = {"length": 1, "batch_size": 1, "steps": 1, "learning_rate": 1.0, "warmup": 0.0}
    arms = [make_stages(texts, defaults | {"accumulate": 1}) for texts in STAGES.values()]
    tokens = [sum(one.rows * one.length for one in stages) for stages in arms]
    assert tokens[0] == pytest.approx(tokens[1], rel=0.01)
    assert [one.length for one in arms[1]] == [512, 1536, 512]


def test_every_part_is_told_of():
    page = (ROOT / "benchmarks" / "PAPER.md").read_text(encoding="utf-8")
    told = re.findall(r"`python -m benchmarks\.paper (\w+)`", page)
    assert sorted(told) == sorted(PARTS)
