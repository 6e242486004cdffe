"""The data, tables and schedules of the paper in miniature. Training itself takes hours."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.paper import __main__ as paper
from benchmarks.paper import long_texts
from benchmarks.paper.__main__ import PARTS, STAGES
from roformer_tf.pretraining.settings import make_stages
from tests.support.random_model import tokenizer_of

ROOT = Path(__file__).parents[2]
NEWS, REVIEWS = "今天气很好我们去公园学习", "中国经济发展人民生活"


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """The articles, and a folder with the files written from them."""
    folder = tmp_path_factory.mktemp("long_texts")
    rng = np.random.default_rng(0)
    articles = ["".join(rng.choice(list(NEWS), rng.integers(320, 400))) for _ in range(24)]
    documents = [text[:5] + "\n" + text[5:] for text in articles]
    documents += ["".join(rng.choice(list(REVIEWS), 50)) for _ in range(30)]
    documents += ["今\n天"]  # too short
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in documents]
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    tokenizer_of(NEWS + REVIEWS).save_pretrained(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "SIZES", {"valid": 5, "test": 7})
        patch.setattr(long_texts, "MAX_HALF_TOKENS", 190)
        patch.setattr(long_texts, "TEXT_LENGTHS", (256, 280 + 187 + 2, 768))
        long_texts.write_start_corpus(folder / "corpus.jsonl", folder / "start.jsonl")
        long_texts.write_examples(folder / "corpus.jsonl", folder, folder)
    return articles, folder


def rows_of(folder, name):
    """Return the rows of NAME.jsonl."""
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def news_of(text):
    """Return the part of a text after its reviews."""
    return re.sub(f"[{REVIEWS}]", "", text)


def articles_of(articles, rows):
    """Return the indices of the articles that contain a text of these rows."""
    texts = [news_of(text) for row in rows for text in row.values()]
    return {n for n, article in enumerate(articles) for text in texts if text in article}


def test_b_continues_a_and_c_is_from_another_article(examples):
    articles, folder = examples
    for name, count in {"valid": 5, "test": 7}.items():
        rows = rows_of(folder, name)
        assert len(rows) == count
        for row in rows:
            first, right, wrong = (news_of(row[column]) for column in "ABC")
            joined = [text for text in articles if first + right in text]
            assert len(joined) == 1
            assert abs(2 * joined[0].index(right) - len(joined[0])) <= 1
            assert wrong not in joined[0]
            assert any(news_of(other["B"]) == wrong for other in rows)


def test_training_articles_follow_other_reviews_and_are_cut_at_several_positions(examples):
    articles, folder = examples
    rows = rows_of(folder, "train")
    assert len(rows) == long_texts.VERSIONS * (24 - 5 - 7)
    for row in rows:
        assert any(news_of(row["A"]) + news_of(row["B"]) in text for text in articles)
    assert len({text for row in rows for text in row.values()}) == 2 * len(rows)
    assert len({news_of(row["B"])[:20] for row in rows}) > len(rows) // 2
    fronts = {text[: long_texts.REVIEW_TOKENS] for row in rows for text in row.values()}
    assert len(fronts) == 2 * len(rows)


def test_no_article_is_in_two_files_or_in_the_pretraining_text(examples):
    articles, folder = examples
    used = {name: articles_of(articles, rows_of(folder, name)) for name in ("valid", "test")}
    train = articles_of(articles, rows_of(folder, "train"))
    assert [len(train), len(used["valid"]), len(used["test"])] == [12, 5, 7]
    assert len(train | used["valid"] | used["test"]) == 24
    start = [row["text"].replace("\n", "") for row in rows_of(folder, "start")]
    assert len(start) == 24 - 5 - 7 + 30 + 1
    assert {n for n, article in enumerate(articles) if article in start} == train


def test_articles_start_after_token_256_and_end_before_768(examples):
    _, folder = examples
    for name in ("train", "valid", "test"):
        for row in rows_of(folder, name):
            for text in row.values():
                assert set(text[: long_texts.REVIEW_TOKENS]) <= set(REVIEWS)
                assert set(text[long_texts.REVIEW_TOKENS :]) <= set(NEWS)
    shortest, _, longest = long_texts.TEXT_LENGTHS
    assert shortest - 2 < long_texts.REVIEW_TOKENS
    assert longest - 2 >= long_texts.REVIEW_TOKENS + long_texts.MAX_HALF_TOKENS


def test_texts_are_written_one_per_line_and_long_triples_are_reported(examples):
    _, folder = examples
    rows = rows_of(folder, "test")
    lines = (folder / "test.txt").read_text(encoding="utf-8").splitlines()
    assert lines == [row[column] for column in "ABC" for row in rows]
    long = np.load(folder / long_texts.LONG)
    assert long.tolist() == [max(map(len, row.values())) > 280 + 187 for row in rows]
    assert 0 < long.sum() < len(rows)


def test_the_negative_is_the_most_similar_half_of_another_article():
    firsts = ["公园学习", "天气很好", "人民生活"]
    # Each second half is most similar to its own first half, which is excluded.
    seconds = ["公园学习天气", "天气很好人民", "人民生活公园"]
    assert long_texts.most_similar(firsts, seconds) == [2, 0, 1]


def test_a_triple_is_right_if_b_is_nearer_than_c():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(3 * 9, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    first, right, wrong = vectors[:9], vectors[9:18], vectors[18:]
    want = [
        np.linalg.norm(a - b) < np.linalg.norm(a - c)
        for a, b, c in zip(first, right, wrong, strict=True)
    ]
    assert long_texts.right_triples(vectors).tolist() == want
    assert 0 < sum(want) < 9
    percentiles = [
        np.mean([np.linalg.norm(first[i] - right[i]) < np.linalg.norm(first[i] - right[j])
                 for j in range(9) if j != i])
        for i in range(9)
    ]  # fmt: skip
    assert long_texts.match_percentiles(vectors) == pytest.approx(percentiles)


def test_gains_are_paired_and_only_of_chosen_triples():
    before = np.array([[1, 1, 0, 0] * 50, [1, 0, 0, 0] * 50], bool)
    after = np.array([[1, 1, 1, 0] * 50, [1, 0, 1, 0] * 50], bool)  # the third of four is gained
    every = np.ones(200, bool)
    (line,) = long_texts.gain_lines({512: before, 768: after}, every)
    low, high = map(
        float, re.search(r"25\.0 \[(.+), (.+)\]; over seeds \[25\.0, 25\.0\]", line).groups()
    )
    assert line.startswith("1,536 − 1,024: ")
    half = 196 * np.sqrt(0.25 * 0.75 / 200)  # half the interval of a proportion of 1/4 of 200
    assert [25 - low, high - 25] == pytest.approx([half, half], abs=1.5)
    third = np.arange(200) % 4 == 2
    (line,) = long_texts.gain_lines({512: before[:1], 768: after[:1]}, third)
    assert line == "1,536 − 1,024: 100.0 —"


def test_accuracy_table_has_each_seed_and_the_mean():
    right = np.array([[1, 1, 0, 0] * 50, [1, 0, 0, 0] * 50], bool)
    head, _, row = long_texts.accuracy_table({256: right}, {256: np.ones((2, 200))})
    cells = row.strip("| ").split(" | ")
    assert len(cells) == len(head.strip("| ").split(" | "))
    assert cells[:2] == ["512", "50.0, 25.0"]
    assert cells[2].startswith("37.5 [")
    assert cells[3] == "100.0 —"


def test_long_texts_trains_once_for_each_length(examples, tmp_path, monkeypatch, capsys):
    _, folder = examples
    (tmp_path / "corpus.jsonl").write_bytes((folder / "corpus.jsonl").read_bytes())
    monkeypatch.setattr(long_texts, "SIZES", {"valid": 5, "test": 7})
    monkeypatch.setattr(long_texts, "TEXT_LENGTHS", (256, 300, 768))  # 300: all texts are longer
    commands = []

    def command(*words):
        flags = dict(pairwise(words))
        commands.append((words[0], flags.get("--max-length")))
        output = flags["--output"]
        if words[0] == "pretrain":
            tokenizer_of(NEWS + REVIEWS).save_pretrained(output / "model")
        elif words[0] == "finetune":
            trials = [{"name": "seed-0"}, {"name": "seed-1"}]
            for item in trials:
                (output / "trials" / item["name"]).mkdir(parents=True)
            (output / "report.json").write_text(json.dumps({"trials": trials}), encoding="utf-8")
        else:
            assert flags["--model"] == output.parent / "best"
            right = output.parts[-4] == "read-512"
            vectors = np.zeros((3, 7, 8), np.float32)
            vectors[0, :, :7] = vectors[1, :, :7] = np.eye(7)
            np.save(output, (vectors if right else vectors[[1, 2, 0]]).reshape(21, 8))

    monkeypatch.setattr(paper, "command", command)
    config = paper.PaperConfig(output=tmp_path, seeds=2)
    for _ in range(2):
        paper.long_texts(config)
    trained = [(name, length) for name, length in commands if name == "finetune"]
    assert trained == [("finetune", length) for length in (256, 512, 768)]
    assert [name for name, _ in commands].count("embed") == 2 * 3
    printed = capsys.readouterr().out
    assert re.search(r"^\| 512 \| 0\.0, 0\.0 \|", printed, re.M)
    assert re.search(r"^\| 1,024 \| 100\.0, 100\.0 \|", printed, re.M)
    assert re.search(r"^1,536 − 1,024: -100\.0", printed, re.M)


def test_both_schedules_see_the_same_number_of_tokens():
    defaults = {"length": 1, "batch_size": 1, "steps": 1, "learning_rate": 1.0, "warmup": 0.0}
    schedules = [make_stages(texts, defaults | {"accumulate": 1}) for texts in STAGES.values()]
    tokens = [sum(item.rows * item.length for item in stages) for stages in schedules]
    assert tokens[0] == pytest.approx(tokens[1], rel=0.01)
    assert [item.length for item in schedules[1]] == [512, 1536, 512]


def test_every_part_is_documented():
    page = (ROOT / "benchmarks" / "PAPER.md").read_text(encoding="utf-8")
    actual = re.findall(r"`python -m benchmarks\.paper (\w+)`", page)
    assert sorted(actual) == sorted(PARTS)
