"""Tests of the service of vectors and of an index: /embed and /search, over HTTP."""

import json

import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.engines import model as engine_model
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.search.index import Hit, Result, SearchIndex
from roformer_tf.search.retriever import Retriever, open_reranker
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.serve_vectors import VectorQuery, vector_queue
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import Limits, ServeConfig, WorkerPart
from tests.support.service_app import create_vector_app, served_vectors

pytest.importorskip("fastapi", reason="needs the extra [serve]")

DOCUMENTS = {"print": "打印文档", "open": "打开文件", "park": "今天天气很好，我们去公园。"}
QUERIES = ["怎么打印", "公园"]

pytestmark = pytest.mark.usefixtures("eager_steps")


@pytest.fixture(scope="module")
def sim(released):
    return str(released("sim_char"))


@pytest.fixture(scope="module")
def index(sim, tmp_path_factory, eagerly):
    folder = tmp_path_factory.mktemp("served")
    rows = [{"id": name, "text": text} for name, text in DOCUMENTS.items()]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "documents.jsonl").write_text(lines, "utf-8")
    flags = ("--documents", str(folder / "documents.jsonl"), "--index", str(folder / "index"))
    with eagerly():
        assert main(["search", "--model", sim, *flags]) == 0
    return folder / "index"


@pytest.fixture(scope="module")
def address(sim, index, running, eagerly):
    with eagerly():
        served = served_vectors(sim, index=index)
        with running(create_vector_app(served, limits=Limits(max_texts=4))) as at:
            yield at


@pytest.mark.parametrize("texts", [QUERIES, ["好"]])
def test_embed_returns_vectors(texts, address, sim, send):
    status, response = send(address, "/embed", {"texts": texts})
    assert status == 200
    want = VectorSettings().open(sim).embed(texts)
    np.testing.assert_allclose(response["vectors"], want, atol=1e-6)
    assert send(address, "/embed", {"text": texts[0]})[1]["vectors"] == response["vectors"][:1]


def test_search_returns_documents(address, sim, index, send):
    retriever = Retriever(SearchIndex(index), VectorSettings().open(sim))
    status, response = send(address, "/search", {"texts": QUERIES, "top": 2})
    assert status == 200
    for actual, expected in zip(response["results"], retriever.results(QUERIES, 2), strict=True):
        assert [item["id"] for item in actual] == [item.id for item in expected]
        assert [item["document"] for item in actual] == [item.text for item in expected]
        np.testing.assert_allclose(
            [x["score"] for x in actual], [item.score for item in expected], atol=1e-6
        )
    (all_results,) = send(address, "/search", {"text": QUERIES[0]})[1]["results"]
    assert len(all_results) == len(DOCUMENTS)


def test_each_request_of_a_batch_gets_its_own_results(sim, index):
    served = served_vectors(sim, index=index)
    batcher = vector_queue(served, ServiceMetrics(), ServeConfig(model=(sim,))).batcher
    queries = [
        VectorQuery("怎么打印", 3),
        VectorQuery("公园", 1),
        VectorQuery("公园"),
        VectorQuery("公园", 2),
        VectorQuery("公园", 3, "id = 'open'"),
        VectorQuery("公园", 3, "id = 'print'"),
    ]
    three, item, (vector, tokens), two, *filtered = batcher.submit(queries).result()
    assert [len(actual) for actual in (item, three, two)] == [1, 3, 2]
    assert item == two[:1]
    read = served.retriever.index.read
    assert [[x.id for x in read(hits)] for hits in filtered] == [["open"], ["print"]]
    np.testing.assert_allclose(vector, served.embedder.embed(["公园"])[0], atol=1e-6)
    assert tokens == 4  # with [CLS] and [SEP]


@pytest.mark.parametrize(
    ("path", "payload", "message"),
    [
        ("/embed", {"text": " "}, "the text is empty"),
        ("/embed", {"text": "好", "top": 3}, "top"),
        ("/embed", {"texts": ["好"] * 5}, "texts"),
        ("/search", {"text": "好", "top": 0}, "top"),
        ("/search", {"text": "好", "top": 101}, "top"),
        ("/search", {"text": "好", "texts": ["好"]}, "give either text or texts"),
        ("/search", {}, "give either text or texts"),
    ],
)
def test_an_invalid_request_gets_a_reason(path, payload, message, address, send):
    status, response = send(address, path, payload)
    assert status == 422
    assert message in response["error"]


def test_health_describes_model_and_index(address, send):
    status, health = send(address, "/health")
    assert (status, health["task"], health["size"], health["documents"]) == (
        200,
        "embedding",
        32,
        3,
    )
    assert send(address, "/openapi.json")[1]["paths"].keys() >= {"/embed", "/search", "/health"}


def test_without_an_index_there_is_no_search(sim, running, send):
    app = create_vector_app(served_vectors(sim, pooling="mean"))
    with running(app) as at:
        assert send(at, "/search", {"text": "好"})[0] == 404
        vectors = send(at, "/embed", {"text": "好"})[1]["vectors"]
    np.testing.assert_allclose(
        vectors, VectorSettings(pooling="mean").open(sim).embed(["好"]), atol=1e-6
    )


def test_a_hybrid_service_searches_by_words(sim, index, running, send):
    with running(create_vector_app(served_vectors(sim, index=index, hybrid=True))) as at:
        (actual,) = send(at, "/search", {"text": "公园"})[1]["results"]
    assert actual[0]["id"] == "park"


def test_a_service_orders_by_its_reranker(sim, index, finetuned, running, send):
    pair = str(finetuned("pair"))
    served = served_vectors(sim, index=index, rerank=pair)
    with running(create_vector_app(served)) as at:
        (actual,) = send(at, "/search", {"text": QUERIES[0]})[1]["results"]
    parts = served.retriever.index, served.embedder
    reranker = open_reranker(pair, VectorSettings())
    ((*want,), (*unranked,)) = (
        next(Retriever(*parts, reranker=x).results(QUERIES[:1], 3)) for x in (reranker, None)
    )
    np.testing.assert_allclose([x["score"] for x in actual], [x.score for x in want], atol=1e-6)
    assert [x.score for x in want] != pytest.approx([x.score for x in unranked], abs=1e-3)


def test_a_sim_model_generates_and_embeds(sim, running, send):
    with running(open_service(ServeConfig(model=(sim,)))) as at:
        assert send(at, "/health")[1]["model"].startswith("chinese_roformer-sim-char")
        assert send(at, "/generate", {"text": "好", "max_tokens": 2})[0] == 200
        vectors = send(at, "/embed", {"texts": QUERIES})[1]["vectors"]
    np.testing.assert_allclose(vectors, VectorSettings().open(sim).embed(QUERIES), atol=1e-6)


def test_an_index_of_another_model_is_not_served(index, released):
    with pytest.raises(InputError, match="made with another model"):
        served_vectors(released("sim_char_ft"), index=index)


def test_a_worker_has_its_part_of_the_cores(sim, index, finetuned, monkeypatch):
    pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    threads, session_options = [], engine_model.session_options

    def recorded(count=None):
        threads.append(count)
        return session_options(count)

    monkeypatch.setattr(engine_model, "session_options", recorded)
    rerank = str(finetuned("pair"))
    config = ServeConfig(model=(sim,), index=index, rerank=rerank, engine="onnx")
    open_service(config, [WorkerPart(1, None)])
    assert threads == [1, 1]


class LongDocuments:
    """A retriever with documents of 16,000 characters for every query, and its index."""

    def __init__(self):
        self.index, self.texts_read = self, 0

    def __len__(self):
        return 100

    def hits(self, queries, vectors, top, where=None):
        return [[Hit(1, 1.0)] * top for _ in queries]

    def read(self, hits):
        self.texts_read += len(hits)
        return [Result(*hit, "好" * 16_000) for hit in hits]


def test_a_response_has_a_size_limit(sim, running, send):
    """128 short queries would return 615 MB: the service stops reading documents before that."""
    served = served_vectors(sim, pooling="mean")
    documents = LongDocuments()
    served = served._replace(retriever=documents)
    app = create_vector_app(served, limits=Limits(max_answer_megabytes=10))
    with running(app) as at:
        assert send(at, "/search", {"text": "好", "top": 100})[0] == 200
        status, response = send(at, "/search", {"texts": ["好"] * 128, "top": 100})
        assert status == 413
        assert "response is larger than 10,000,000 bytes" in response["error"]
        assert documents.texts_read == 100 + 300  # of 12,800 documents of 48 kB each
        assert send(at, "/search", {"text": "好", "top": 1})[0] == 200


class FilteredDocuments:
    """A retriever that returns the condition of the request as a document's number."""

    class Index(list):
        fields = ("year",)

        def read(self, hits):
            return [Result(*hit, f"condition: {hit.number}") for hit in hits]

    index = Index()

    def hits(self, queries, vectors, top, where=None):
        return [[Hit(where, 1.0)] for _ in queries]


def test_each_request_is_searched_with_its_own_condition(sim, running, send):
    served = served_vectors(sim, pooling="mean")
    app = create_vector_app(served._replace(retriever=FilteredDocuments()))
    with running(app) as at:
        for where in ("year >= 2020", None):
            status, response = send(at, "/search", {"text": "好", "where": where, "top": 5.0})
            assert status == 200
            assert response["results"][0][0]["document"] == f"condition: {where}"
        status, response = send(at, "/search", {"text": "好", "where": "month = 1"})
        assert status == 422
        assert "month" in response["error"]
        for wrong in ({"where": ""}, {"where": " "}, {"top": 5.5}):
            assert send(at, "/search", {"text": "好"} | wrong)[0] == 422
