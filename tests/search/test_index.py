"""An index against the vectors of its documents, all compared; and what becomes of it on disk."""

import json
from contextlib import contextmanager

import numpy as np
import pytest

from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.inference import approximate, index
from roformer_tf.inference.approximate import Neighbours
from roformer_tf.inference.embed import open_embedder
from roformer_tf.inference.index import Added, SearchIndex, is_index, write_index
from roformer_tf.inference.lexical import DocumentBM25
from roformer_tf.inference.nearest import NONE, Found
from roformer_tf.inference.retrieval import Reranker, Retriever, load_reranker
from roformer_tf.inference.text_files import Document

WORDS = [
    "今天",
    "天气",
    "很",
    "好",
    "我们",
    "去",
    "公园",
    "学习",
    "北京",
    "上海",
    "的",
    "了",
    "在",
    "和",
    "是",
    "不",
    "也",
    "都",
    "经济",
    "发展",
]
RNG = np.random.default_rng(0)
TEXTS = ["".join(RNG.choice(WORDS, n)) for n in RNG.integers(2, 40, 40)]
QUERIES = ["今天天气", "北京的公园", "学习", "经济发展很好"]

pytestmark = pytest.mark.usefixtures("eager_steps")


class Documents(list):
    """Documents as a file's are, without the file."""

    said = ""


def documents(texts=TEXTS, names=None):
    return Documents(map(Document, texts, names or [None] * len(texts)))


@pytest.fixture(scope="module")
def embedder(released, eagerly):
    with eagerly():
        return open_embedder(released("sim_char"))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "index"


@pytest.fixture
def made(folder, embedder):
    """An index of the texts, in passages of 16 tokens, of which most have several."""
    write_index(folder, embedder, documents(), passage_length=16)
    return SearchIndex(folder)


def passages(text, embedder, room=14):
    """Vectors of a text's windows, each embedded as a text of its own."""
    count = -(-max(len(text) - room, 0) // (room - room // 4)) + 1
    starts = [min(i * (room - room // 4), max(len(text) - room, 0)) for i in range(count)]
    return embedder.embed([text[i : i + room] for i in starts])


@pytest.fixture(scope="module")
def by_hand(embedder, eagerly):
    """Each document's cosine with each query, that of its best passage: (queries, documents)."""
    with eagerly():
        asked = embedder.embed(QUERIES).astype(np.float64)
        near = [(asked @ passages(text, embedder).T).max(axis=1) for text in TEXTS]
    return np.stack(near, axis=1)


def test_a_document_is_as_near_as_its_nearest_passage(made, embedder, by_hand):
    assert made.manifest.rows > 1.5 * len(TEXTS)
    want = by_hand
    for top in (1, 5, 40, 50):
        found = made.nearest(embedder.embed(QUERIES), top)
        kept = min(top, 40)
        np.testing.assert_allclose(
            found.scores[:, :kept], -np.sort(-want, axis=1)[:, :kept], atol=2e-5
        )
        places = found.places[:, :kept]
        got = np.take_along_axis(want, places, axis=1)
        np.testing.assert_allclose(got, found.scores[:, :kept], atol=2e-5)
        assert all(len(set(row)) == kept for row in places.tolist())
        assert (found.places[:, kept:] == NONE).all()


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("weight", [0.3, 4.0])
def test_a_beginning_counts_beside_the_nearest_passage(
    weight, graph, folder, embedder, by_hand, monkeypatch
):
    monkeypatch.setattr(index, "LARGE", 1 if graph else index.LARGE)
    write_index(folder, embedder, documents(), passage_length=16, beginning_weight=weight)
    made = SearchIndex(folder)
    assert (made.folder / index.NEAR).exists() == graph
    asked = embedder.embed(QUERIES)
    first = asked @ np.stack([passages(text, embedder)[0] for text in TEXTS]).T
    want = (by_hand + weight * first) / (1 + weight)
    assert np.abs(want - by_hand).max() > 0.01  # some begin otherwise than they answer
    for top in (1, 5, 40, 50):
        found = made.nearest(asked, top)
        kept = min(top, 40)
        places, scores = found.places[:, :kept], found.scores[:, :kept]
        np.testing.assert_allclose(scores, -np.sort(-want, axis=1)[:, :kept], atol=2e-5)
        np.testing.assert_allclose(np.take_along_axis(want, places, axis=1), scores, atol=2e-5)
        assert all(len(set(row)) == kept for row in places.tolist())
        assert (found.places[:, kept:] == NONE).all()
    some = np.array([7, 0, 39])
    np.testing.assert_allclose(made.cosines(asked[1], some), want[1, some], atol=2e-5)


def test_a_graph_that_finds_too_few_rows_is_asked_for_more(folder, embedder, by_hand, monkeypatch):
    write_index(folder, embedder, documents(), passage_length=16)
    made, asked_for = SearchIndex(folder), []
    exact = made._nearest_rows

    def few_at_first(queries, top):
        asked_for.append(top)
        places, scores = map(np.array, exact(queries, top))
        if len(asked_for) == 1:
            places[:, 1:], scores[:, 1:] = NONE, -np.inf
        return Found(places, scores)

    monkeypatch.setattr(made, "_nearest_rows", few_at_first)
    found = made.nearest(embedder.embed(QUERIES), 5)
    assert len(asked_for) > 1
    np.testing.assert_allclose(found.scores, -np.sort(-by_hand, axis=1)[:, :5], atol=2e-5)


def test_cosines_are_those_of_the_documents_asked_for(made, embedder, by_hand):
    places = np.array([3, 39, 0, 17])
    for query, want in zip(embedder.embed(QUERIES), by_hand, strict=True):
        np.testing.assert_allclose(made.cosines(query, places), want[places], atol=2e-5)


def test_documents_and_names_are_kept(folder, embedder):
    names = [f"page/{i}" for i in range(39)] + [None]
    odd = ["有\t制表符\n和换行", *TEXTS[1:38], "孤\ud800", TEXTS[39]]
    write_index(folder, embedder, documents(odd, names))
    found = SearchIndex(folder)
    kept = [*odd[:38], "孤?", odd[39]]
    assert [found.document(i) for i in range(40)] == list(map(Document, kept, names))
    assert list(found.documents()) == list(map(Document, kept, names))
    assert found.has_names


@pytest.mark.parametrize("with_words", [False, True])
def test_what_is_added_is_as_if_it_had_always_been_there(with_words, folder, embedder):
    settings = {"passage_length": 16, "with_words": with_words}
    first = write_index(folder, embedder, documents(TEXTS[:25]), **settings)
    again = write_index(folder, embedder, documents([*TEXTS[20:], TEXTS[30]]))
    assert (first, again) == (Added(25, 0, 0), Added(15, 6, 25))
    other = folder.with_name("other")
    write_index(other, embedder, documents(), **settings)
    one, two = SearchIndex(folder), SearchIndex(other)
    np.testing.assert_allclose(one.vectors, two.vectors, atol=1e-6)
    np.testing.assert_array_equal(one.starts, two.starts)
    assert list(one.documents()) == list(two.documents())
    assert one.manifest == two.manifest
    assert (folder / index.WORDS).is_dir() is with_words
    for query in QUERIES:
        np.testing.assert_allclose(one.words.scores(query), two.words.scores(query), atol=1e-6)


def test_who_writes_into_it_meanwhile_is_refused_and_nothing_is_lost(
    folder, embedder, made, monkeypatch
):
    def in_the_midst(*arguments):
        with pytest.raises(InputError, match=r"index is in use: .* another --index"):
            write_index(folder, embedder, documents(["另一个命令"]))
        return write_rows(*arguments)

    write_rows = index._write_rows
    monkeypatch.setattr(index, "_write_rows", in_the_midst)
    assert write_index(folder, embedder, documents(["这是新的"])) == Added(1, 0, 40)
    monkeypatch.undo()
    assert write_index(folder, embedder, documents(["又一个"])) == Added(1, 0, 41)
    assert [path.name for path in folder.parent.iterdir()] == ["index"]


def test_adding_nothing_new_touches_nothing(folder, embedder):
    write_index(folder, embedder, documents())
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert write_index(folder, embedder, documents(TEXTS[:3])) == Added(0, 3, 40)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    write_index(folder, embedder, documents(TEXTS[:3]), hybrid_weight=0.7)  # but for a new weight
    assert SearchIndex(folder).manifest.hybrid_weight == 0.7
    write_index(folder, embedder, documents(TEXTS[:3]), beginning_weight=0.3)
    manifest = SearchIndex(folder).manifest
    assert (manifest.hybrid_weight, manifest.beginning_weight) == (0.7, 0.3)


def test_another_model_or_setting_is_refused(folder, embedder, released):
    write_index(folder, embedder, documents(), passage_length=16)
    for other in (
        open_embedder(released("sim_char_ft")),
        open_embedder(released("sim_char"), pooling="mean"),
        open_embedder(released("sim_char"), dimensions=8),
        open_embedder(released("sim_char"), max_length=64),
    ):
        with pytest.raises(InputError, match=r"made with another model, or other settings.*pooler"):
            write_index(folder, other, documents())
    with pytest.raises(InputError, match="has passages of 16 tokens, not 32"):
        write_index(folder, embedder, documents(), passage_length=32)


@contextmanager
def failing(embedder, after):
    """An embedder whose work ends in the midst."""

    def blocks(*arguments):
        for number, block in enumerate(type(embedder).passages(embedder, *arguments)):
            if number == after:
                raise InputError("the end")
            yield block

    object.__setattr__(embedder, "passages", blocks)
    yield
    object.__delattr__(embedder, "passages")


def test_what_fails_in_the_midst_leaves_the_index_as_it_was(folder, embedder, tmp_path):
    for exists in (False, True):
        if exists:
            write_index(folder, embedder, documents(TEXTS[:10]))
        with failing(embedder, 0), pytest.raises(InputError, match="the end"):
            write_index(folder, embedder, documents())
        assert folder.exists() is exists
        assert len(list(tmp_path.iterdir())) == exists
    assert list(SearchIndex(folder).documents()) == documents(TEXTS[:10])


@pytest.mark.parametrize("name", [index.VECTORS, index.DOCUMENTS, index.STARTS, index.MANIFEST])
def test_a_damaged_index_is_named(name, folder, embedder):
    write_index(folder, embedder, documents())
    content = (folder / name).read_bytes()
    for damaged in (content[: len(content) // 2], b""):
        (folder / name).write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged"):
            SearchIndex(folder)
    (folder / name).write_bytes(content)
    values = json.loads((folder / index.MANIFEST).read_text("utf-8"))
    for changed, said in (
        ({"documents": 39}, "do not belong together"),
        ({"rows": 7}, "do not belong together"),
        ({"version": 99}, "another version"),
        ({"colour": 1}, "cannot be read"),
    ):
        (folder / index.MANIFEST).write_text(json.dumps(values | changed), "utf-8")
        with pytest.raises(InputError, match=said):
            SearchIndex(folder)


def test_what_is_no_index_is_not_written_over(folder, embedder):
    folder.mkdir()
    assert not is_index(folder)  # empty: there is nothing to lose
    (folder / "thesis.txt").write_text("…", "utf-8")
    with pytest.raises(InputError, match="is there, and is no index"):
        write_index(folder, embedder, documents())
    with pytest.raises(InputError, match="is no index"):
        SearchIndex(folder)


def test_passages_longer_than_the_model_reads_are_refused(folder, embedder):
    with pytest.raises(InputError, match="passage_length is 513, but must be"):
        write_index(folder, embedder, documents(), passage_length=513)


def test_many_vectors_get_a_graph_which_finds_nearly_all(folder, embedder, monkeypatch, by_hand):
    monkeypatch.setattr(index, "LARGE", 1)
    write_index(folder, embedder, documents(TEXTS[:30]), passage_length=16)
    assert (folder / index.NEAR).exists()
    added = write_index(folder, embedder, documents())
    rows = SearchIndex(folder).manifest.rows
    assert added.graph == f"finds 100.0% of the nearest ten, by looking at 128 of {rows}"
    assert SearchIndex(folder)._neighbours.depth == 128
    found = SearchIndex(folder).nearest(embedder.embed(QUERIES), 10)
    want = -np.sort(-by_hand, axis=1)[:, :10]
    np.testing.assert_allclose(found.scores, want, atol=2e-5)  # so few are all looked at


def test_a_graph_of_thousands_finds_the_nearest(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 6)).astype(np.float32) @ rng.normal(size=(6, 24)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    graph = Neighbours(24)
    graph.add(np.array_split(x, 3))
    assert graph.depth == 256  # which nobody has chosen yet
    graph.save(tmp_path / "near.faiss")
    found = Neighbours.load(tmp_path / "near.faiss").search(x[:100], 10)
    want = np.argsort(-x[:100] @ x.T, axis=1)[:, :10]
    same = [len(set(a) & set(b)) for a, b in zip(found.places.tolist(), want.tolist(), strict=True)]
    assert np.mean(same) > 9.9
    (tmp_path / "near.faiss").write_bytes(b"IHNf....")
    with pytest.raises(InputError, match="Make the index anew"):
        Neighbours.load(tmp_path / "near.faiss")


def unit(rows, size, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(rows, size)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def scattered():
    """Vectors that are hard to find, and a graph of them with few neighbours."""
    vectors = unit(3000, 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(approximate, "NEIGHBOURS", 4)
        graph = Neighbours(64)
    graph.add([vectors])
    return vectors, graph


@pytest.mark.parametrize("enough", [0.5, 0.86, 2])
def test_a_graph_looks_at_as_many_as_it_takes(scattered, enough, monkeypatch, tmp_path):
    vectors, graph = scattered
    depths = (12, 48, 192, 400)
    monkeypatch.setattr(approximate, "ENOUGH", enough)
    monkeypatch.setattr(approximate, "WHEN_SEARCHED", depths)
    said = graph.calibrate(vectors)
    graph.save(tmp_path / "near.faiss")
    chosen = Neighbours.load(tmp_path / "near.faiss").depth
    products = vectors @ vectors.T - 2 * np.eye(len(vectors), dtype=np.float32)
    wanted = np.argsort(-products, axis=1)[:, :10]
    share = {}
    for depth in depths:
        monkeypatch.setattr(Neighbours, "depth", depth)
        found = graph.search(vectors, 11).places  # the vector itself among them
        share[depth] = np.mean([np.isin(*pair).mean() for pair in zip(wanted, found, strict=True)])
    assert said == pytest.approx(share[chosen], abs=0.03)  # of 500 of 3,000
    assert chosen == {0.5: 12, 0.86: 192, 2: 400}[enough]  # they find .67, .79, .92 and .97


def test_a_graph_answers_more_than_it_looks_at(scattered, monkeypatch):
    vectors, graph = scattered
    monkeypatch.setattr(Neighbours, "depth", 12)
    found = graph.search(vectors[:50], 300)
    want = np.argsort(-vectors[:50] @ vectors.T, axis=1)[:, :300]
    same = [np.isin(*pair).mean() for pair in zip(want, found.places, strict=True)]
    assert np.mean(same) > 0.88  # .79 by looking at no more than are asked for


@pytest.mark.parametrize("loaded", [False, True])
def test_texts_that_are_nearly_the_same_lead_to_one_another(loaded, tmp_path):
    faiss = pytest.importorskip("faiss", reason="needs the extra [search]")
    centers = np.repeat(unit(40, 32), 50, axis=0)
    vectors = (centers + 0.05 * unit(2000, 32, seed=1)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    graph = Neighbours(32)
    if loaded:
        graph.save(tmp_path / "near.faiss")
        graph = Neighbours.load(tmp_path / "near.faiss")
    graph.add([vectors])
    hnsw, lowest = graph._graph.hnsw, 2 * approximate.NEIGHBOURS
    starts = faiss.vector_to_array(hnsw.offsets)[:-1].astype(int)
    links = faiss.vector_to_array(hnsw.neighbors)
    counts = [(links[start : start + lowest] >= 0).sum() for start in starts]
    assert np.mean(counts) > 0.9 * lowest  # the rule of HNSW alone leaves a third of them


def test_a_hybrid_search_by_ranks(made, embedder, by_hand):
    found = list(Retriever(made, embedder, hybrid=True).answers(QUERIES, 8))
    words = DocumentBM25(TEXTS)
    for query, cosine, answers in zip(QUERIES, by_hand, found, strict=True):
        scores = words.scores(query).astype(np.float64)
        near = np.argsort(np.argsort(-np.round(cosine, 5), kind="stable"), kind="stable")
        said = np.argsort(np.argsort(-scores, kind="stable"), kind="stable")
        want = 1 / (61 + near) + np.where(scores > 0, 1 / (61 + said), 0)
        np.testing.assert_allclose([one.score for one in answers], -np.sort(-want)[:8], atol=1e-4)


@pytest.mark.parametrize("weight", [0.0, 0.8, 50.0])
def test_a_hybrid_search_by_a_weight(weight, made, embedder, by_hand):
    found = list(Retriever(made, embedder, hybrid=True, weight=weight).answers(QUERIES, 8))
    words = DocumentBM25(TEXTS)
    for query, cosine, answers in zip(QUERIES, by_hand, found, strict=True):
        scores = words.scores(query).astype(np.float64)
        want = scores / scores.max() + weight * cosine
        np.testing.assert_allclose(
            [one.score for one in answers], -np.sort(-want)[:8], atol=1e-4 * (1 + weight)
        )


def test_the_weight_of_the_index_counts_unless_another_is_given(folder, embedder):
    write_index(folder, embedder, documents(), passage_length=16, hybrid_weight=0.8)
    made = SearchIndex(folder)
    kept = list(Retriever(made, embedder, hybrid=True).answers(QUERIES, 5))
    assert kept == list(Retriever(made, embedder, hybrid=True, weight=0.8).answers(QUERIES, 5))
    assert kept != list(Retriever(made, embedder, hybrid=True, weight=0.1).answers(QUERIES, 5))


def test_a_query_without_a_known_word_is_answered_by_vectors(made, embedder):
    for weight in (None, 1.0):
        retriever = Retriever(made, embedder, hybrid=True, weight=weight)
        (answers,) = retriever.answers(["ZZZ"], 3)
        near = made.nearest(embedder.embed(["ZZZ"]), 3).places[0]
        assert [one.place for one in answers] == near.tolist()


class ByLength:
    """Scores a document by its length, as no model does."""

    def scores(self, query, texts, batch_size):
        return np.array([len(text) for text in texts], np.float32)


def test_a_reranker_orders_the_first_and_no_others(made, embedder):
    plain = list(Retriever(made, embedder).answers(QUERIES, 12))
    changed = Retriever(made, embedder, reranker=ByLength(), reranked=12)
    for before, after in zip(plain, changed.answers(QUERIES, 5), strict=True):
        lengths = {one.place: len(TEXTS[one.place]) for one in before}
        assert [one.score for one in after] == sorted(lengths.values(), reverse=True)[:5]
        assert {one.place for one in after} <= lengths.keys()


@pytest.mark.parametrize("name", ["pair", "regression"])
def test_rerankers_are_models_of_pairs(name, finetuned):
    if name == "regression":  # of one text
        with pytest.raises(InputError, match="needs a model of pairs"):
            load_reranker(finetuned(name))
        return
    found = load_reranker(finetuned("pair"))
    assert isinstance(found, Reranker)
    assert found.label == 1
    scores = found.scores("今天", ["好", "北京", "好"], 2)
    assert scores.dtype == np.float32
    assert scores[0] == scores[2] != scores[1]


def test_labels_that_say_nothing_of_belonging_are_refused(finetuned, tmp_path, monkeypatch):
    import roformer_tf.inference.retrieval as retrieval

    monkeypatch.setattr(retrieval, "RELATED", ("是",))
    with pytest.raises(InputError, match="has the labels 0, 1, and none is known"):
        load_reranker(finetuned("pair"))


def test_a_converted_model_opens_the_index_of_its_zip(folder, embedder, released, tmp_path):
    write_index(folder, embedder, documents(TEXTS[:5]))
    main(["checkpoints", "convert", str(released("sim_char")), str(tmp_path / "x"), "--to", "own"])
    other = open_embedder(tmp_path / "x")
    assert other.config == EmbeddingConfig("pooler", 512)
    SearchIndex(folder).check_model(other)
