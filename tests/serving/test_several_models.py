"""Tests of several models in one service; the `model` of a request chooses one."""

import json
from contextlib import closing

import numpy as np
import pytest

from roformer_tf import load
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import ApiConfig, ServeConfig
from tests.support.random_model import random_causal_lm

testclient = pytest.importorskip("fastapi.testclient", reason="needs the extra [serve] and httpx")
pytestmark = pytest.mark.usefixtures("eager_steps")

NAMES = ["评论", "tags", "pairs", "writer", "sim"]
TEXTS = ["今天天气很好", "我们去公园"]
DOCUMENTS = {"park": "我们去公园", "weather": "今天天气很好"}


@pytest.fixture(scope="module")
def folders(finetuned, released, tmp_path_factory):
    writer = tmp_path_factory.mktemp("writer") / "model"
    random_causal_lm(writer, max_position_embeddings=64)
    tasks = [finetuned(task) for task in ("classification", "tagging", "pair")]
    return dict(zip(NAMES, [*tasks, writer, released("sim_char")], strict=True))


@pytest.fixture(scope="module")
def index(folders, tmp_path_factory, eagerly):
    folder = tmp_path_factory.mktemp("search")
    rows = [json.dumps({"id": name, "text": text}) for name, text in DOCUMENTS.items()]
    (folder / "documents.jsonl").write_text("\n".join(rows), "utf-8")
    flags = ["--documents", str(folder / "documents.jsonl"), "--index", str(folder / "index")]
    with eagerly():
        assert main(["search", "--model", str(folders["sim"]), *flags]) == 0
    return folder / "index"


@pytest.fixture(scope="module")
def client(folders, index, eagerly):
    models = tuple(map(str, folders.values()))
    with eagerly():
        config = ServeConfig(model=models, names=tuple(NAMES), index=index)
        with testclient.TestClient(open_service(config)) as client:
            yield client


def test_the_models_are_listed(client):
    listed = client.get("/v1/models").json()
    assert (listed["object"], [x["id"] for x in listed["data"]]) == ("list", NAMES)
    assert client.get("/v1/models/评论").json()["id"] == "评论"
    unknown = client.get("/v1/models/x")
    assert unknown.status_code == 404
    assert ", ".join(NAMES) in unknown.json()["error"]["message"]
    health = client.get("/health").json()
    assert [(x["model"], x["task"]) for x in health["models"]] == list(
        zip(NAMES, ["classification", "tagging", "pair", "generation", "embedding"], strict=True)
    )
    assert health["models"][4]["documents"] == len(DOCUMENTS)


@pytest.mark.parametrize("path", ["/predict", "/models/{}/predict"])
@pytest.mark.parametrize(
    ("name", "texts"), [("评论", TEXTS), ("tags", TEXTS), ("pairs", [TEXTS, TEXTS[::-1]])]
)
def test_the_body_or_the_path_selects_the_model(path, name, texts, client, folders):
    body = {"texts": texts} | ({"model": name} if path == "/predict" else {})
    response = client.post(path.format(name), json=body)
    assert response.status_code == 200
    for actual, item in zip(response.json()["predictions"], texts, strict=True):
        want = load(folders[name])(tuple(item) if name == "pairs" else item)
        if name == "tags":
            assert [x["label"] for x in actual["entities"]] == [
                x["label"] for x in want["entities"]
            ]
        else:
            assert actual["scores"] == pytest.approx(want["scores"], abs=1e-5)


def test_the_only_model_of_a_route_needs_no_name(client, folders):
    want = VectorSettings().open(folders["sim"]).embed(TEXTS)
    for path, body, key in (
        ("/embed", {"texts": TEXTS}, "vectors"),
        ("/embed", {"inputs": TEXTS}, None),
        ("/embed", {"inputs": TEXTS, "model": "sim"}, None),
        ("/v1/embeddings", {"input": TEXTS}, "data"),
        ("/v1/embeddings", {"input": TEXTS, "model": "sim"}, "data"),
    ):
        response = client.post(path, json=body).json()
        actual = response[key] if key else response
        actual = [x["embedding"] for x in actual] if key == "data" else actual
        np.testing.assert_allclose(actual, want, rtol=0, atol=1e-6)
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        for model in ({}, {"model": "pairs"}):
            body = {"query": TEXTS[0], "documents": TEXTS, **model}
            response = client.post(path, json=body).json()
            assert (response["model"], len(response["results"])) == ("pairs", 2)
    ranks = client.post("/rerank", json={"query": TEXTS[0], "texts": TEXTS}).json()
    assert {x["index"] for x in ranks} == {0, 1}
    (hits,) = client.post("/search", json={"text": TEXTS[0]}).json()["results"]
    assert hits[0]["id"] == "weather"
    settings = {"max_tokens": 4, "seed": 3}
    unnamed = client.post("/generate", json={"text": TEXTS[0], **settings}).json()
    named = client.post("/generate", json={"text": TEXTS[0], "model": "writer", **settings}).json()
    assert unnamed == named
    body = {"prompt": TEXTS[0], "max_tokens": 4, "model": "writer", "stream": True}
    events = client.post("/v1/completions", json=body)
    assert '"model":"writer"' in events.text
    assert events.text.endswith("data: [DONE]\n\n")
    assert "content-encoding" not in events.headers  # compression would delay the tokens


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/predict", {"text": "好"}, 422, "评论, tags, pairs all have /predict"),
        ("/predict", {"inputs": "好"}, 422, "must name one of them"),
        (
            "/predict",
            {"text": "好", "model": "x"},
            404,
            f"no model 'x'; the service has {NAMES[0]}",
        ),
        (
            "/predict",
            {"text": "好", "model": "sim"},
            404,
            "'sim' has no /predict; 评论, tags, pairs can",
        ),
        (
            "/predict",
            {"text": ["好"], "model": "评论"},
            422,
            "text: Input should be a valid string",
        ),
        ("/predict", {"text": "好", "model": ["x"]}, 422, "model: Input should be a valid string"),
        ("/predict", [1], 422, "valid dictionary"),
        ("/embed", {"inputs": "好", "model": "x"}, 404, "no model 'x'"),
        ("/generate", {"text": "好", "model": "x"}, 404, "no model 'x'"),
        ("/search", {"text": "好", "model": "pairs"}, 404, "'pairs' has no /search; sim can"),
        ("/rerank", {"query": "好", "texts": ["好"], "model": "x"}, 404, "no model 'x'"),
        ("/models/x/predict", {"text": "好"}, 404, "there is no /models/x/predict"),
        (
            "/models/评论/predict",
            {"text": "好", "model": "tags"},
            400,
            "the path is of the model '评论', but the body names 'tags'",
        ),
        ("/models/sim/embed", {"text": "好", "model": "writer"}, 400, "body names 'writer'"),
        ("/models/sim/search", {"text": "好", "model": "writer"}, 400, "body names 'writer'"),
        ("/models/pairs/rerank", {"query": "好", "texts": ["好"], "model": "sim"}, 400, "'sim'"),
        ("/models/writer/generate", {"text": "好", "model": "sim"}, 400, "body names 'sim'"),
        ("/models/sim/predict", {"text": "好"}, 404, "there is no /models/sim/predict"),
    ],
)
def test_an_invalid_choice_of_model_gets_a_reason(path, body, status, reason, client):
    response = client.post(path, json=body)
    assert response.status_code == status
    assert reason in response.json()["error"]


def test_the_error_of_an_unknown_model_has_the_shape_of_the_route(client):
    body = {"query": "好", "documents": ["好"], "input": "好", "prompt": "好", "model": "gpt-4o"}
    want = f"there is no model 'gpt-4o'; the service has {', '.join(NAMES)}"
    for path in ("/v1/embeddings", "/v1/completions", "/v1/rerank"):
        response = client.post(path, json=body)
        assert response.status_code == 404
        assert response.json()["error"] == {
            "message": want,
            "type": "invalid_request_error",
            "param": None,
            "code": "not_found",
        }
    response = client.post("/v2/rerank", json=body)
    assert (response.status_code, response.json()) == (404, {"message": want})
    body = {"input": "好", "model": "writer"}
    response = client.post("/models/sim/v1/embeddings", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"].endswith("but the body names 'writer'")
    assert client.post("/models/sim/v1/embeddings", json=body | {"model": "x"}).is_success
    response = client.post("/models/sim/v1/embeddings", json={"input": ""})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "input.0: the text is empty"


@pytest.mark.parametrize("body", [b"{", b"", b"[" * 100_000])
def test_invalid_json_is_reported(body, client):
    response = client.post("/predict", content=body)
    assert response.status_code == 400
    assert response.json()["error"]


def test_the_api_describes_the_routes_of_each_model_and_shared_ones(client):
    description = client.get("/openapi.json").json()
    paths = description["paths"]
    prefixed = {path.partition("/models/评论")[2] for path in paths if "/models/评论" in path}
    assert prefixed == {"/predict", "/health", "/v1/models", "/v1/models/{model}"}
    for path in ("/predict", "/embed", "/search", "/generate", "/v1/completions", "/v2/rerank"):
        operation = paths[path]["post"]
        assert operation["responses"]["default"]["content"]

    def schema(path):
        body = paths[path]["post"]["requestBody"]
        return body["content"]["application/json"]["schema"]

    schemas = [schema(f"/models/{name}/predict") for name in NAMES[:3]]
    assert schema("/predict") == {"anyOf": schemas}
    assert schema("/embed") == {"anyOf": [schema("/models/sim/embed")]}
    identifiers = [
        x["operationId"] for each in paths.values() for x in each.values() if "operationId" in x
    ]
    assert len(identifiers) == len(set(identifiers))


def test_each_model_has_a_page_with_links_to_the_rest(client):
    with closing(client.get("/", follow_redirects=False)) as response:
        assert response.headers["location"] == "models/%E8%AF%84%E8%AE%BA/"
    page = client.get("/")
    assert page.status_code == 200
    assert '<a href="../sim/">sim</a>' in page.text
    assert '<a id="docs" href="../../docs">' in page.text
    assert client.get("/models/sim/health").json()["model"] == "sim"


def test_metrics_list_all_models_and_count_their_requests(client):
    client.post("/models/tags/predict", json={"text": "好"})
    metrics = client.get("/metrics").text
    for name, task in (("评论", "classification"), ("writer", "generation")):
        assert f'roformer_model_info{{model="{name}",task="{task}"}} 1.0' in metrics
    assert 'handler="/models/tags/predict"' in metrics
    assert 'handler="/predict"' in metrics


def test_a_single_model_accepts_any_name(finetuned):
    config = ServeConfig(model=(str(finetuned("classification")),), names=("own",))
    client = testclient.TestClient(open_service(config))
    for model in ({}, {"model": "own"}, {"model": "gpt-4o"}):
        assert client.post("/predict", json={"text": "好", **model}).status_code == 200
        assert client.post("/predict", json={"inputs": "好", **model}).status_code == 200
    assert [x["id"] for x in client.get("/v1/models").json()["data"]] == ["own"]


def test_the_key_is_required_for_all_models(finetuned):
    models = (str(finetuned("classification")), str(finetuned("pair")))
    config = ServeConfig(model=models, names=("a", "b"), api=ApiConfig(api_key="key"))
    client = testclient.TestClient(open_service(config))
    for path in ("/predict", "/models/a/predict"):
        body = {"text": "好", "model": "a"}
        assert client.post(path, json=body).status_code == 401
        authorized = {"Authorization": "Bearer key"}
        assert client.post(path, json=body, headers=authorized).status_code == 200
        description = client.get("/openapi.json", headers=authorized).json()["paths"][path]["post"]
        assert description["security"] == [{"bearer": []}]


def test_top_k_applies_only_to_models_with_labels(finetuned, released):
    models = (*map(str, map(finetuned, ("classification", "tagging"))), str(released("sim_char")))
    config = ServeConfig(model=models, names=("labels", "tags", "sim"), top_k=1)
    client = testclient.TestClient(open_service(config))
    body = {"text": "好", "model": "labels"}
    (prediction,) = client.post("/predict", json=body).json()["predictions"]
    assert len(prediction["scores"]) == 1
    assert client.post("/embed", json={"text": "好"}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model": ("a/x", "b/x")}, "'x' cannot be the name .* a name of its own.*--names"),
        ({"model": ("runs/a/model", "a.zip")}, "'a' cannot be the name"),
        ({"model": ("a", "b"), "names": ("c", "c")}, "'c' cannot be the name"),
        ({"model": ("a", "b"), "names": ("c",)}, "models: 2, but --names: 1"),
        ({"model": ("a", "b"), "names": ("c", "d/e")}, "'d/e' cannot be the name"),
        ({"model": ("a", "b {x}")}, "cannot be the name .* Give --names"),
        ({"model": ("a",), "writable": True}, "--writable needs --index"),
    ],
)
def test_invalid_and_ambiguous_names_are_refused(settings, reason):
    with pytest.raises(InputError, match=reason):
        ServeConfig(**settings)


def test_an_index_needs_the_model_that_created_it(finetuned, released, index):
    models = (str(finetuned("classification")), str(released("sim_char_ft")))
    with pytest.raises(InputError, match=r"none of the models created .*sim-char"):
        open_service(ServeConfig(model=models, index=index, names=("a", "b")))
