"""Index results compared with exhaustive search and BM25's formula; adding, updating, deleting."""

import math
import threading
import time
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

from roformer_tf.errors import InputError
from roformer_tf.search import writing
from roformer_tf.search.database import FILE, open_to_write, sqlite3, transaction
from roformer_tf.search.document_files import Document
from roformer_tf.search.index import SearchIndex, word_scores
from roformer_tf.search.keywords import document_terms
from roformer_tf.search.writing import Added, add_documents, delete_documents
from tests.support.fake_embedder import FakeEmbedder

LETTERS = "今天 天气 很 好 我们 去 公园 学习 北京 上海 的 了 在 和 是 不 也 都 经济 发展"
WORDS = LETTERS.split(" ")
RNG = np.random.default_rng(0)
TEXTS = ["".join(RNG.choice(WORDS, n)) for n in RNG.integers(2, 60, 40)]
QUERIES = ["今天天气", "北京的公园", "学习", "经济发展很好"]
LENGTH = 16
EMBEDDER = FakeEmbedder()
VECTORS = EMBEDDER.embed(QUERIES)


def documents(texts=TEXTS, ids=True):
    return [Document(text, str(n) if ids else None, {"n": n}) for n, text in enumerate(texts)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(writing, "CHUNK", 10)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "index"


@pytest.fixture
def indexed(folder):
    """An open index of the texts, most of which have several passages."""
    add_documents(folder, EMBEDDER, documents(), passage_length=LENGTH)
    with SearchIndex(folder) as opened:
        yield opened


def cosines(texts=TEXTS, weight=0.0):
    """Return the score of each document for each query, (queries, documents)."""
    each = [EMBEDDER.embed(EMBEDDER.passages_of(text, LENGTH)) for text in texts]
    nearest = np.stack([(VECTORS @ x.T).max(axis=1) for x in each], axis=1)
    first = np.stack([VECTORS @ x[0] for x in each], axis=1)
    return (nearest + weight * first) / (1 + weight)


def bm25(query, texts=TEXTS, k1=2.0, b=0.75):
    """BM25 (Robertson and Zaragoza, 2009) of words and pairs; the beginning counts three times."""
    terms = [(document_terms(text[:60]), document_terms(text)) for text in texts]
    mean = sum(len(a) + len(t) for a, t in terms) / len(terms)
    within = {x: sum(x in text for _, text in terms) for x in document_terms(query)}
    rare = [x for x in document_terms(query) if 2 * within[x] <= len(texts) and within[x]]
    scores = np.zeros(len(texts))
    for word in rare or document_terms(query):  # frequent words count only if there are no others
        rarity = math.log((len(texts) - within[word] + 0.5) / (within[word] + 0.5))
        for number, (beginning, text) in enumerate(terms):
            count = 2 * Counter(beginning)[word] + Counter(text)[word]
            length = k1 * (1 - b + b * (len(beginning) + len(text)) / mean)
            scores[number] += max(rarity, 1e-6) * count * 2.2 / (count + length)
    return scores


def search_results(index, *arguments, **settings):
    """Return the search results of each query."""
    return [index.read(hits) for hits in index.search(*arguments, **settings)]


def by_id(results):
    return [int(result.id) for result in results]


def check(actual, want, top):
    """Assert that results have the largest of the expected scores (queries, documents) in order."""
    count = min(top, want.shape[1])
    for results, scores in zip(actual, want, strict=True):
        got = [result.score for result in results]
        np.testing.assert_allclose(got, np.sort(scores)[::-1][:count], atol=2e-5)
        np.testing.assert_allclose(scores[by_id(results)], got, atol=2e-5)
        assert len({*by_id(results)}) == count


@pytest.mark.parametrize("weight", [None, 0.3, 4.0])
def test_a_document_scores_by_its_nearest_passage_and_its_beginning(weight, folder):
    settings = {"passage_length": LENGTH, "beginning_weight": weight}
    add_documents(folder, EMBEDDER, documents(), **settings)
    want = cosines(weight=weight or 0)
    with SearchIndex(folder) as result:
        for top in (1, 5, 40, 50):
            check(search_results(result, QUERIES, VECTORS, top), want, top)


def test_words_score_by_bm25_with_the_beginning_three_times(indexed):
    for query in [*QUERIES, "chisq.dist", "，"]:
        got = word_scores(indexed._connection, query, np.arange(1, len(TEXTS) + 1))
        np.testing.assert_allclose(got, bm25(query), atol=1e-4)


@pytest.mark.parametrize("weight", [None, 0.0, 0.8, 50.0])
def test_a_hybrid_search_adds_words_and_vectors(indexed, weight):
    actual = search_results(indexed, QUERIES, VECTORS, 8, hybrid=True, weight=weight)
    words = np.stack([bm25(query) for query in QUERIES])
    weight = 1 if weight is None else weight
    check(actual, words / words.max(axis=1, keepdims=True) + weight * cosines(), 8)


def test_the_weight_of_the_index_is_the_default(folder):
    add_documents(folder, EMBEDDER, documents(), hybrid_weight=0.8)
    with SearchIndex(folder) as result:
        search = lambda **more: search_results(result, QUERIES, VECTORS, 5, hybrid=True, **more)  # noqa: E731
        assert search() == search(weight=0.8) != search(weight=0.1)


def test_a_query_without_a_known_word_is_searched_by_vectors(indexed):
    plain = search_results(indexed, ["ZZZ"], VECTORS[:1], 3)
    for weight in (None, 1.0):
        hybrid = search_results(indexed, ["ZZZ"], VECTORS[:1], 3, hybrid=True, weight=weight)
        assert by_id(hybrid[0]) == by_id(plain[0])


def test_a_very_long_query_is_searched(indexed):
    (results,) = search_results(indexed, ["".join(TEXTS)], VECTORS[:1], 3, hybrid=True, weight=1.0)
    assert len(results) == 3


def test_conditions_restrict_every_kind_of_search(indexed):
    matching = [n for n in range(40) if n < 20 or n == 33]
    where = "n < 20 or id = 33"
    check_ids = lambda results: all({*by_id(item)} <= {*matching} for item in results)  # noqa: E731
    actual = search_results(indexed, QUERIES, VECTORS, 50, where=where)
    assert [sorted(by_id(item)) for item in actual] == [matching] * 4
    for results, scores in zip(actual, cosines(), strict=True):
        got = [result.score for result in results]
        np.testing.assert_allclose(got, np.sort(scores[matching])[::-1], atol=2e-5)
    for weight in (None, 1.0):
        assert check_ids(
            search_results(indexed, QUERIES, VECTORS, 5, hybrid=True, weight=weight, where=where)
        )
    assert search_results(indexed, QUERIES, VECTORS, 5, where="n > 99", hybrid=True) == [[]] * 4


def test_a_condition_may_name_metadata_of_some_documents(folder):
    partial = [Document("今天", "1", {"year": 2020}), Document("天气", "2", {"month": 3})]
    add_documents(folder, EMBEDDER, partial)
    with SearchIndex(folder) as index:
        (actual,) = search_results(index, QUERIES[:1], VECTORS[:1], 5, where="month = 3")
    assert by_id(actual) == [2]


def test_documents_ids_and_metadata_are_kept(folder):
    unusual = [
        Document("有\t制表符\n和换行", "页/1", {"年": 2020, "标 题": "引\"号'", "ok": True}),
        Document("孤", "孤", {"x": "\ud800"}),
        Document("无名"),
    ]
    add_documents(folder, EMBEDDER, unusual)
    assert add_documents(folder, EMBEDDER, unusual) == Added(0, 0, 3, 3)
    with SearchIndex(folder) as result:
        assert len(result) == 3
        assert result.has_ids
        (results,) = search_results(result, QUERIES[:1], VECTORS[:1], 3)
        texts = {(unusual[0].text, "页/1"), ("孤", "孤"), ("无名", None)}
        assert {(item.text, item.id) for item in results} == texts
        for where, name in (("年 = 2020 and ok = true", "页/1"), ("x = '?'", "孤")):
            (results,) = search_results(result, QUERIES[:1], VECTORS[:1], 3, where=where)
            assert [item.id for item in results] == [name]


def state(folder):
    """Return all texts, vectors and words of an index, independent of the order of additions."""
    with SearchIndex(folder) as result:
        rows = result._connection.execute(
            "SELECT d.text, id, metadata, passages, words.beginning, words.text FROM documents d "
            "JOIN vectors USING (number) JOIN words ON words.rowid = number"
        ).fetchall()
        return sorted(rows, key=str)


@pytest.mark.parametrize("ids", [False, True])
def test_additions_give_the_index_of_all_documents(folder, ids):
    each = documents(ids=ids)
    first = add_documents(folder, EMBEDDER, each[:25], passage_length=LENGTH)
    second = add_documents(folder, EMBEDDER, [*each[20:], each[30]])
    assert (first, second) == (Added(25, 0, 0, 25), Added(15, 0, 6, 40))
    other = folder.with_name("other")
    add_documents(other, EMBEDDER, each, passage_length=LENGTH)
    assert state(folder) == state(other)
    with SearchIndex(folder) as item, SearchIndex(other) as two:
        get = lambda x: [[(y.id, y.score) for y in z] for z in x]  # noqa: E731
        search = {"hybrid": True, "weight": 1.0}
        assert get(search_results(item, QUERIES, VECTORS, 9, **search)) == get(
            search_results(two, QUERIES, VECTORS, 9, **search)
        )


def test_a_repeated_id_replaces_its_document(folder):
    add_documents(folder, EMBEDDER, documents(), passage_length=LENGTH)
    changed = [Document("完全不同的文字", "3", {"n": 100}), *documents()[4:8]]
    with SearchIndex(folder) as opened:
        assert add_documents(folder, EMBEDDER, changed) == Added(0, 1, 4, 40)
        texts = [*TEXTS[:3], "完全不同的文字", *TEXTS[4:]]
        check(search_results(opened, QUERIES, VECTORS, 50), cosines(texts), 50)
        (actual,) = search_results(opened, ["不同"], VECTORS[:1], 1, hybrid=True, weight=0.0)
        assert by_id(actual) == [3]
    assert len(state(folder)) == 40


def test_documents_are_deleted_by_id(folder):
    add_documents(folder, EMBEDDER, documents(), passage_length=LENGTH)
    with SearchIndex(folder) as opened:
        before = search_results(opened, QUERIES, VECTORS, 40)
        best = by_id(before[0])[0]
        assert delete_documents(folder, [str(best), "99", "99"]) == ["99"]
        after = search_results(opened, QUERIES, VECTORS, 40)
        assert [by_id(x) for x in after] == [[n for n in by_id(x) if n != best] for x in before]
        words = search_results(opened, [TEXTS[best]], VECTORS[:1], 40, hybrid=True, weight=0.0)
        assert best not in by_id(words[0])
    add_documents(folder, EMBEDDER, [Document("新的", "新")])
    with SearchIndex(folder) as opened:
        assert len(opened) == 40
        (actual,) = search_results(opened, ["新的"], EMBEDDER.embed(["新的"]), 1)
        assert (actual[0].text, actual[0].score) == ("新的", pytest.approx(1))


def test_two_documents_with_one_id_are_refused(folder):
    with pytest.raises(InputError, match="two different documents have the id 'a'"):
        add_documents(folder, EMBEDDER, [Document("一", "a"), Document("二", "a")])
    assert not folder.exists()
    twice = [Document("一", "a"), Document("一", "a"), Document("三"), Document("三")]
    assert add_documents(folder, EMBEDDER, twice) == Added(2, 0, 2, 2)


def test_documents_without_ids_that_differ_in_metadata_are_all_kept(folder):
    """Such as two reviews of the same words: a condition on either date finds one."""
    reviews = [Document("很好", None, {"n": n}) for n in (1, 2, 2)]
    assert add_documents(folder, EMBEDDER, reviews) == Added(2, 0, 1, 2)
    with SearchIndex(folder) as opened:
        (actual,) = search_results(opened, ["很好"], EMBEDDER.embed(["很好"]), 9, where="n = 2")
    assert [x.text for x in actual] == ["很好"]


def test_adding_nothing_new_changes_only_weights(folder):
    add_documents(folder, EMBEDDER, documents())
    before = state(folder)
    assert add_documents(folder, EMBEDDER, documents()[:3]) == Added(0, 0, 3, 40)
    add_documents(folder, EMBEDDER, [], hybrid_weight=0.7)
    add_documents(folder, EMBEDDER, [], beginning_weight=0.3)
    with SearchIndex(folder) as result:
        assert (result.manifest.hybrid_weight, result.manifest.beginning_weight) == (0.7, 0.3)
    assert state(folder) == before
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_another_model_or_passage_length_is_refused(folder):
    add_documents(folder, EMBEDDER, documents(), passage_length=LENGTH)
    with pytest.raises(InputError, match="made with another model, or other settings: fake"):
        add_documents(folder, FakeEmbedder("other"), documents())
    with pytest.raises(InputError, match="has passages of 16 tokens, not 32"):
        add_documents(folder, EMBEDDER, documents(), passage_length=32)
    with pytest.raises(InputError, match="passage_length is 513, but must be"):
        add_documents(folder.with_name("new"), EMBEDDER, documents(), passage_length=513)


class FailingEmbedder(FakeEmbedder):
    """An embedder that fails in its third block."""

    blocks = 0

    def passages(self, *arguments):
        self.blocks += 1
        if self.blocks == 3:
            raise InputError("the vector is not finite")
        return super().passages(*arguments)


def test_a_failed_addition_keeps_finished_blocks(folder):
    with pytest.raises(InputError, match="not finite"):
        add_documents(folder, FailingEmbedder(), documents())
    with SearchIndex(folder) as result:
        assert len(result) == 20
    assert add_documents(folder, EMBEDDER, documents()) == Added(20, 0, 20, 40)


def test_readers_search_while_another_process_writes(folder, indexed):
    before = search_results(indexed, QUERIES, VECTORS, 50, hybrid=True)
    writer = open_to_write(folder)
    with transaction(writer):
        new = [Document(QUERIES[0], "40")]
        writing.write_block(writer, new, [EMBEDDER.embed([QUERIES[0]])])
        assert search_results(indexed, QUERIES, VECTORS, 50, hybrid=True) == before
        with SearchIndex(folder) as other:
            assert search_results(other, QUERIES, VECTORS, 50, hybrid=True) == before
    assert by_id(search_results(indexed, QUERIES, VECTORS, 1, hybrid=True)[0]) == [40]
    writer.close()


def test_two_commands_add_at_the_same_time(folder):
    """Two commands can create and fill an index at the same time, without duplicates."""
    halves = [documents()[:30], documents()[10:]]
    threads = [
        threading.Thread(target=add_documents, args=(folder, EMBEDDER, part)) for part in halves
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(int(row[1]) for row in state(folder)) == [*range(40)]


def test_another_command_is_creating_the_index(folder):
    """SQLite reports at once that it cannot set write-ahead mode: the other command does."""
    folder.mkdir()
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        adding = threading.Thread(target=add_documents, args=(folder, EMBEDDER, documents()))
        adding.start()
        time.sleep(0.3)
        other.execute("COMMIT")
        adding.join(60)
    assert sorted(int(row[1]) for row in state(folder)) == [*range(40)]


def test_threads_share_an_open_index(indexed):
    want, errors = search_results(indexed, QUERIES, VECTORS, 5, hybrid=True), []

    def search():
        for _ in range(10):
            if search_results(indexed, QUERIES, VECTORS, 5, hybrid=True) != want:
                errors.append("other results")

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors


def test_a_damaged_index_is_named(folder):
    add_documents(folder, EMBEDDER, documents())
    content = (folder / FILE).read_bytes()
    for damaged in (b"x" * len(content), content[: len(content) // 2]):
        (folder / FILE).write_bytes(damaged)
        with (
            pytest.raises(InputError, match=r"cannot be used: .*If it is damaged, remove it"),
            SearchIndex(folder) as index,
        ):
            index.search(QUERIES, VECTORS, 50, hybrid=True)
    (folder / FILE).write_bytes(content)
    with sqlite3.connect(folder / FILE) as database:
        database.execute("UPDATE settings SET manifest = json_set(manifest, '$.version', 99)")
    database.close()
    with pytest.raises(InputError, match="another version"):
        SearchIndex(folder)


def test_other_folders_are_not_overwritten(folder):
    folder.mkdir()
    (folder / "thesis.txt").write_text("…", "utf-8")
    for use in (
        lambda: add_documents(folder, EMBEDDER, documents()),
        lambda: SearchIndex(folder),
        lambda: delete_documents(folder, ["1"]),
    ):
        with pytest.raises(InputError, match="is not an index"):
            use()
    (folder / "thesis.txt").unlink()
    with pytest.raises(InputError, match=r"is no index\. Make one"):
        SearchIndex(folder)
    (folder / FILE).touch()  # left by a process killed before it created the tables
    with pytest.raises(InputError, match=r"is no index\. Make one"):
        SearchIndex(folder)
    with pytest.raises(InputError, match=r"index\.sqlite exists, and is not an index"):
        SearchIndex(folder / FILE)
    assert add_documents(folder, EMBEDDER, documents()).new == 40


def test_a_python_without_full_text_search_is_named(folder, monkeypatch):
    monkeypatch.setattr(
        "roformer_tf.search.database.SCHEMA", ("CREATE VIRTUAL TABLE x USING fts6(y)",)
    )
    with pytest.raises(InputError, match="no full-text search"):
        add_documents(folder, EMBEDDER, documents())


def test_a_locked_index_is_reported(folder, indexed, monkeypatch):
    monkeypatch.setattr("roformer_tf.search.database.PATIENCE", 0.1)
    writer = open_to_write(folder)
    with (
        transaction(writer),
        pytest.raises(InputError, match=r"database is locked\. Another process is writing"),
    ):
        delete_documents(folder, ["1"])
    writer.close()
