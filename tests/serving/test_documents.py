"""Tests of requests that add, replace and delete documents."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.search.index import SearchIndex
from roformer_tf.search.retriever import Retriever
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import ApiConfig, Limits, ServeConfig

testclient = pytest.importorskip("fastapi.testclient", reason="needs the extra [serve] and httpx")
pytestmark = pytest.mark.usefixtures("eager_steps")

DOCUMENTS = [
    {"id": "park", "text": "我们去公园", "year": 2019},
    {"id": "weather", "text": "今天天气很好", "year": 2021, "tags": "晴"},
    {"id": "a/b", "text": "学习", "year": 2022, "kept": True, "none": None},
]


@pytest.fixture(scope="module")
def sim(released):
    return str(released("sim_char"))


@pytest.fixture
def index(sim, tmp_path):
    (tmp_path / "documents.jsonl").write_text(json.dumps(DOCUMENTS[0]), "utf-8")
    flags = ["--documents", str(tmp_path / "documents.jsonl"), "--index", str(tmp_path / "index")]
    assert main(["search", "--model", sim, *flags]) == 0
    return tmp_path / "index"


@pytest.fixture
def client(sim, index):
    with testclient.TestClient(service(sim, index)) as client:
        yield client


def service(sim, index, **settings):
    settings = {"writable": True, "limits": Limits(max_texts=4), **settings}
    return open_service(ServeConfig(model=(sim,), index=index, **settings))


def ids(client, **body):
    (results,) = client.post("/search", json={"text": "公园", **body}).json()["results"]
    return [item["id"] for item in results]


@pytest.mark.parametrize("method", ["put", "post"])
def test_documents_are_added_and_replaced(method, client, sim, index):
    send = getattr(client, method)
    counts = {"new": 2, "updated": 0, "unchanged": 1, "total": 3}
    assert send("/documents", json={"documents": DOCUMENTS}).json() == counts
    assert client.get("/health").json()["documents"] == 3
    assert sorted(ids(client)) == ["a/b", "park", "weather"]
    changed = DOCUMENTS[0] | {"text": "天气", "year": 2023}
    counts = {"new": 0, "updated": 1, "unchanged": 0, "total": 3}
    assert send("/documents", json={"documents": [changed]}).json() == counts
    assert ids(client, where="year >= 2022 and kept is null") == ["park"]
    assert ids(client, where="tags = '晴'") == ["weather"]
    retriever = Retriever(SearchIndex(index), VectorSettings().open(sim))
    for query in ("公园", "天气", "学习"):
        (results,) = client.post("/search", json={"text": query}).json()["results"]
        (want,) = retriever.results([query], 10)
        assert [x["document"] for x in results] == [x.text for x in want]
        np.testing.assert_allclose(
            [x["score"] for x in results], [x.score for x in want], atol=1e-6
        )


def test_a_file_and_requests_give_the_same_documents(client, index, sim, tmp_path):
    text_values = {"id": "8", "text": "上学", "year": "2023", "code": "007", "tags": " "}
    number = {"id": 5, "text": "上班"}
    documents = [*DOCUMENTS[1:], text_values, number]
    client.put("/documents", json={"documents": documents})
    assert ids(client, where="year = 2023 and code = '007' and tags is null") == ["8"]
    assert ids(client, where="id = 5") == ["5"]
    lines = "\n".join(json.dumps(x) for x in documents)
    (tmp_path / "all.jsonl").write_text(lines, "utf-8")
    flags = ["--documents", str(tmp_path / "all.jsonl"), "--index", str(index)]
    before = ids(client)
    assert main(["search", "--model", sim, *flags]) == 0
    with SearchIndex(index) as search_index:
        assert search_index._values("SELECT revision FROM settings") == [
            2
        ]  # it was not written again
    assert ids(client) == before


def test_documents_are_deleted_by_id(client):
    client.put("/documents", json={"documents": DOCUMENTS})
    assert client.delete("/documents/a/b").json() == {"deleted": "a/b"}
    assert sorted(ids(client)) == ["park", "weather"]
    response = client.delete("/documents/a%2Fb")
    assert (response.status_code, response.json()) == (
        404,
        {"error": "no document has the id 'a/b'"},
    )
    assert client.get("/health").json()["documents"] == 2


def test_results_are_paginated(client):
    client.put("/documents", json={"documents": DOCUMENTS})
    all_ids = ids(client, top=3)
    assert [ids(client, top=1, offset=n) for n in range(4)] == [[x] for x in all_ids] + [[]]
    assert ids(client, top=2, offset=1) == all_ids[1:]
    response = client.post("/search", json={"texts": ["公园", "学习"], "top": 1, "offset": 2})
    assert [len(x) for x in response.json()["results"]] == [1, 1]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "documents: Field required"),
        ({"documents": []}, "documents: List should have at least 1 item"),
        ({"documents": [{"id": "x"}]}, "documents.0.text: Field required"),
        ({"documents": [{"id": "x", "text": " "}]}, "documents.0.text: the text is empty"),
        (
            {"documents": [{"id": 3.5, "text": "好"}]},
            "documents.0.id: Input should be a valid string",
        ),
        (
            {"documents": [{"id": True, "text": "好"}]},
            "documents.0.id: Input should be a valid string",
        ),
        ({"documents": [{"text": "好", "year": [2020]}]}, "documents.0.year"),
        ({"documents": DOCUMENTS[:1] * 5}, "5 texts, but at most 4"),
        (
            {"documents": [{"id": "x", "text": "好"}, {"id": "x", "text": "天"}]},
            "two different documents have the id 'x'",
        ),
    ],
)
def test_an_invalid_request_changes_nothing(body, reason, client):
    response = client.put("/documents", json=body)
    assert response.status_code == 422
    assert reason in response.json()["error"]
    assert client.get("/health").json()["documents"] == 1


@pytest.mark.parametrize(
    ("method", "path"), [("put", "/documents"), ("delete", "/documents/park"), ("get", "/health")]
)
def test_a_damaged_index_is_a_server_error(method, path, sim, index):
    with testclient.TestClient(service(sim, index), raise_server_exceptions=False) as client:
        for file in index.iterdir():
            file.write_bytes(b"damaged" * 10_000)
        body = {"json": {"documents": DOCUMENTS}} if method == "put" else {}
        response = getattr(client, method)(path, **body)
    assert response.status_code == 500
    assert response.json() == {"error": "the service failed; its log has the reason"}


@pytest.mark.parametrize("offset", [-1, 1001, "1"])
def test_offsets_have_limits(offset, client):
    response = client.post("/search", json={"text": "好", "offset": offset})
    assert response.status_code == 422
    assert "offset: Input should be" in response.json()["error"]


def test_only_a_writable_service_changes_documents(sim, index):
    client = testclient.TestClient(service(sim, index, writable=False))
    assert client.put("/documents", json={"documents": DOCUMENTS}).status_code == 404
    assert client.delete("/documents/park").status_code == 404
    assert ids(client) == ["park"]
    client = testclient.TestClient(service(sim, index, api=ApiConfig(api_key="key")))
    assert client.put("/documents", json={"documents": DOCUMENTS}).status_code == 401
    assert client.delete("/documents/park").status_code == 401
    allowed = client.delete("/documents/park", headers={"Authorization": "Bearer key"})
    assert allowed.status_code == 200


def test_one_of_several_models_has_the_documents(sim, index, finetuned):
    models = (str(finetuned("classification")), sim)
    config = ServeConfig(model=models, names=("labels", "sim"), index=index, writable=True)
    client = testclient.TestClient(open_service(config))
    assert client.put("/documents", json={"documents": DOCUMENTS}).json()["total"] == 3
    assert client.delete("/documents/park").status_code == 200
    assert client.delete("/models/sim/documents/a/b").status_code == 200
    assert ids(client) == ["weather"]
    assert {"put", "post"} <= client.get("/openapi.json").json()["paths"]["/documents"].keys()


def test_requests_write_and_search_at_the_same_time(client):
    def write(number):
        body = {"documents": [{"id": str(number % 5), "text": f"{number}天气"}]}
        return client.put("/documents", json=body).status_code

    def search(_):
        return client.post("/search", json={"text": "公园"}).status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = [*pool.map(write, range(20)), *pool.map(search, range(20))]
    assert set(statuses) == {200}
    assert client.get("/health").json()["documents"] == 6


def test_a_folder_that_cannot_be_written_is_refused(sim, index, monkeypatch):
    from roformer_tf.serving import command

    def refused(target):
        raise InputError(f"cannot write {target}")

    monkeypatch.setattr(command, "check_writable", refused)
    with pytest.raises(InputError, match="cannot write"):
        command.serve(ServeConfig(model=(sim,), index=index, writable=True, port=0))
