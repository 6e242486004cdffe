"""Tests of routes compatible with other services, with the bodies that their clients send."""

import base64
import json
import logging

import numpy as np
import pytest

from roformer_tf import load
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.serving.serve_generation import before_stop, final_length
from roformer_tf.serving.serve_predictions import ServedTask
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import ApiConfig, Limits, ServeConfig
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.choices.reranking import Reranking
from roformer_tf.tasks.classification import Pair
from roformer_tf.tasks.regression import Regression
from tests.support.random_model import random_causal_lm
from tests.support.service_app import create_task_app

testclient = pytest.importorskip("fastapi.testclient", reason="needs the extra [serve] and httpx")
pytestmark = pytest.mark.usefixtures("eager_steps")

TEXTS = ["今天天气很好", "北京", "我们去公园学习", "天气"]
QUERY = "今天天气"
PROMPTS = ["今天天气很好", "我们"]


def client_of(model, **settings):
    return testclient.TestClient(open_service(ServeConfig(model=(str(model),), **settings)))


@pytest.fixture(scope="module")
def sim(released):
    return released("sim_char")


@pytest.fixture(scope="module")
def vectors(sim, eagerly):
    with eagerly():
        yield client_of(sim, pooling="pooler", limits=Limits(max_texts=3))


@pytest.fixture(scope="module")
def want(sim, eagerly):
    """Return a function: want(texts, dimensions=None) → the vectors that `embed` computes."""
    with eagerly():
        yield lambda texts, size=None: VectorSettings(dimensions=size).open(sim).embed(texts)


@pytest.fixture(scope="module")
def pair(finetuned):
    return client_of(finetuned("pair"), limits=Limits(max_texts=3, max_characters=1000))


@pytest.fixture(scope="module")
def scores(finetuned):
    """The scores that `load` predicts for the query with each text."""
    predictions = load(finetuned("pair"))([(QUERY, text) for text in TEXTS])
    return [prediction["scores"]["1"] for prediction in predictions]


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("writer") / "model"
    return random_causal_lm(folder, max_position_embeddings=64), client_of(folder)


def decode_vector(item):
    return np.frombuffer(base64.b64decode(item["embedding"]), "<f4")


# openai: client.embeddings.create(model="m", input=TEXTS) sends exactly this
OPENAI = {"input": TEXTS, "model": "m", "encoding_format": "base64"}


@pytest.mark.parametrize("size", [None, 7])
def test_openai_embeddings(size, vectors, want):
    body = OPENAI | ({} if size is None else {"dimensions": size})
    response = vectors.post("/v1/embeddings", json=body)
    response_body = response.json()
    assert response.status_code == 200
    assert [response_body["object"], *(x["object"] for x in response_body["data"])] == ["list"] + [
        "embedding"
    ] * 4
    assert [x["index"] for x in response_body["data"]] == [0, 1, 2, 3]
    actual = np.stack([decode_vector(x) for x in response_body["data"]])
    np.testing.assert_allclose(actual, want(TEXTS, size), rtol=0, atol=1e-6)
    tokens = sum(len(text) + 2 for text in TEXTS)  # characters, [CLS] and [SEP]
    assert response_body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    as_floats = vectors.post("/v1/embeddings", json=body | {"encoding_format": "float"}).json()
    np.testing.assert_allclose([x["embedding"] for x in as_floats["data"]], actual, atol=1e-7)


@pytest.mark.parametrize("text", ["北京", ["北京"]])
def test_openai_embeddings_of_one_text(text, vectors, want):
    (item,) = vectors.post("/v1/embeddings", json={"input": text}).json()["data"]
    np.testing.assert_allclose(item["embedding"], want(["北京"])[0], rtol=0, atol=1e-6)


def test_2048_inputs_are_computed_in_batches(vectors, want):
    inputs = [TEXTS[i % 4] for i in range(2048)]
    response_body = vectors.post("/v1/embeddings", json=OPENAI | {"input": inputs}).json()
    actual = np.stack([decode_vector(x) for x in response_body["data"]])
    np.testing.assert_allclose(actual, np.tile(want(TEXTS), (512, 1)), rtol=0, atol=1e-6)


def test_token_ids_are_accepted_if_enabled(sim, want):
    client = client_of(sim, pooling="pooler", api=ApiConfig(accept_token_ids=True))
    tokenizer = VectorSettings().open(sim).tokenizer
    ids = [tokenizer.encode(text)[0] for text in TEXTS]
    for body in (ids, [row[1:-1] for row in ids]):  # with or without special tokens
        response_body = client.post("/v1/embeddings", json={"input": body}).json()
        actual = [x["embedding"] for x in response_body["data"]]
        np.testing.assert_allclose(actual, want(TEXTS), rtol=0, atol=1e-6)
    response = client.post("/v1/embeddings", json={"input": [3, 10**6]})
    assert response.status_code == 400
    assert "a token id is 1000000" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "input: Field required"),
        ({"input": ""}, "input.0: the text is empty"),
        ({"input": ["好", " "]}, "input.1: the text is empty"),
        ({"input": []}, "input: List should have at least 1 item"),
        ({"input": ["好"] * 2049}, "input: List should have at most 2048 items"),
        ({"input": {"text": "好"}}, "input.0: Input should be a valid string"),
        ({"input": [3, 4]}, "check_embedding_ctx_length=False"),
        ({"input": [[3, 4]]}, "--accept-token-ids"),
        (
            {"input": "好", "dimensions": 33},
            "dimensions is 33, but must be at most 32, the size of",
        ),
        ({"input": "好", "dimensions": 0}, "dimensions: Input should be greater"),
        ({"input": "好", "encoding_format": "int8"}, "encoding_format: Input should be 'float'"),
    ],
)
def test_an_invalid_openai_request_gets_openais_error(body, reason, vectors):
    response = vectors.post("/v1/embeddings", json={"model": "m", **body})
    assert response.status_code == 400
    error = response.json()["error"]
    assert reason in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", None)


def test_models_are_listed(vectors):
    (model,) = vectors.get("/v1/models").json()["data"]
    assert model["object"] == "model"
    assert vectors.get(f"/v1/models/{model['id']}").json() == model
    response = vectors.get("/v1/models/gpt-4")
    assert response.status_code == 404
    assert model["id"] in response.json()["error"]["message"]
    response = vectors.post("/v1/chat/completions", json={"messages": []})
    assert response.status_code == 404
    assert "no /v1/chat/completions" in response.json()["error"]["message"]


@pytest.mark.parametrize("text", ["北京", TEXTS[:3]])
def test_tei_embed(text, vectors, want):
    body = {"inputs": text, "normalize": True, "truncate": False}
    texts = text if isinstance(text, list) else [text]
    actual = vectors.post("/embed", json=body).json()
    np.testing.assert_allclose(actual, want(texts), rtol=0, atol=1e-6)
    truncated = vectors.post("/embed", json=body | {"dimensions": 5}).json()
    np.testing.assert_allclose(truncated, want(texts, 5), rtol=0, atol=1e-6)
    for invalid in ({"inputs": 3}, {"inputs": TEXTS}, {"inputs": "好", "normalize": False}):
        response = vectors.post("/embed", json=invalid)
        assert response.status_code == 422
        assert isinstance(response.json()["error"], str)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_cohere_and_jina_rerank(path, pair, scores):
    order = sorted(range(4), key=lambda i: -scores[i])
    # cohere.ClientV2().rerank(model="m", query=QUERY, documents=TEXTS, top_n=3) sends this
    body = {"model": "m", "query": QUERY, "documents": TEXTS, "top_n": 3}
    response = pair.post(path, json=body)
    assert response.status_code == 200
    assert response.json()["results"] == [
        {"index": i, "relevance_score": pytest.approx(scores[i], abs=1e-6)} for i in order[:3]
    ]
    documents = [{"text": text} for text in TEXTS]
    body = {"query": QUERY, "documents": documents, "return_documents": True, "top_n": None}
    results = pair.post(path, json=body).json()["results"]
    assert [x["document"] for x in results] == [{"text": TEXTS[i]} for i in order]
    many = [TEXTS[i % 4] for i in range(100)]
    results = pair.post(path, json={"query": QUERY, "documents": many}).json()["results"]
    assert len(results) == 100
    assert {x["index"] % 4 for x in results[:25]} == {order[0]}


def test_tei_rerank(pair, scores):
    order = sorted(range(4), key=lambda i: -scores[i])
    body = {"query": QUERY, "texts": TEXTS, "raw_scores": False, "truncate": True}
    response_body = pair.post("/rerank", json=body).json()
    assert [x["index"] for x in response_body] == order
    assert [x["score"] for x in response_body] == pytest.approx(
        [scores[i] for i in order], abs=1e-6
    )
    raw_scores = pair.post("/rerank", json=body | {"raw_scores": True, "return_text": True}).json()
    assert [x["text"] for x in raw_scores] == [TEXTS[i] for i in order]
    sigmoids = 1 / (1 + np.exp([-x["score"] for x in raw_scores]))
    np.testing.assert_allclose(sigmoids, [scores[i] for i in order], atol=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "status", "reason"),
    [
        ("/rerank", {"query": "好"}, 422, "documents: Field required"),
        ("/rerank", {"query": "好", "texts": ["好", "好" * 1001]}, 422, "text 2 has 1,001 char"),
        ("/rerank", {"query": "好" * 1001, "texts": ["好"]}, 422, "query 1 has 1,001 characters"),
        ("/rerank", {"query": "好", "texts": []}, 422, "texts: List should have at least 1"),
        ("/rerank", {"query": "好", "documents": ["好"], "top_n": 0}, 422, "top_n"),
        ("/v1/rerank", {"query": "", "documents": ["好"]}, 400, "query: the text is empty"),
        ("/v2/rerank", {"query": "好", "documents": ["好", ""]}, 400, "documents.1: the text is"),
        ("/v2/rerank", {"query": "好", "documents": [["好"]]}, 400, "documents.0: Input should be"),
    ],
)
def test_an_invalid_rerank_request_gets_a_reason(path, body, status, reason, pair):
    response = pair.post(path, json=body)
    assert response.status_code == status
    response_body = response.json()
    error = response_body["message"] if path == "/v2/rerank" else response_body["error"]
    assert reason in (error["message"] if path == "/v1/rerank" else error)


def test_raw_scores_of_a_reranker_are_log_odds():
    def predict(examples):
        return [Prediction(None, np.float32([x])) for x in (0.9, 1.0, 0.0)]

    task = Reranking(text_columns=("query", "document"))
    client = testclient.TestClient(create_task_app(ServedTask("m", task, predict)))
    body = {"query": "好", "texts": ["甲", "乙", "丙"], "raw_scores": True}
    results = client.post("/rerank", json=body).json()
    assert [x["index"] for x in results] == [1, 0, 2]
    assert results[1]["score"] == pytest.approx(np.log(9), abs=1e-5)
    assert results[0]["score"] > 15
    assert results[2]["score"] < -15


def test_a_label_must_mean_relevance():
    task = Pair(labels=("a", "b"), text_columns=("a", "b"))
    client = testclient.TestClient(create_task_app(ServedTask("m", task, lambda examples: [])))
    response = client.post("/v1/rerank", json={"query": "好", "documents": ["好"]})
    assert response.status_code == 400
    assert "m has the labels a, b, and none is known to mean" in response.json()["error"]["message"]


def test_a_regression_of_pairs_ranks_by_its_number():
    task = Regression(text_columns=("a", "b"))

    def by_length(examples):
        return [task.decoding.predict(np.array([len(x.texts[1])], "float32")) for x in examples]

    client = testclient.TestClient(create_task_app(ServedTask("m", task, by_length)))
    response_body = client.post(
        "/rerank", json={"query": "好", "texts": ["好", "好好好", "好好"]}
    ).json()
    assert response_body == [
        {"index": i, "score": score} for i, score in ((1, 3.0), (2, 2.0), (0, 1.0))
    ]


def sorted_scores(prediction):
    return sorted(prediction["scores"].items(), key=lambda item: -item[1])


@pytest.mark.parametrize("name", ["classification", "pair"])
def test_tei_predict(name, finetuned):
    client = client_of(finetuned(name))
    inputs = TEXTS if name == "classification" else [[QUERY, text] for text in TEXTS]
    texts = TEXTS if name == "classification" else [tuple(x) for x in inputs]
    want = [sorted_scores(x) for x in load(finetuned(name))(texts)]
    predictions = client.post("/predict", json={"inputs": inputs}).json()
    (single_prediction,) = [client.post("/predict", json={"inputs": inputs[0]}).json()]
    if name == "classification":  # of the documentation of Text Embeddings Inference
        batch = {"inputs": [[text] for text in inputs]}
        assert client.post("/predict", json=batch).json() == predictions
    for prediction, labels in zip([*predictions, single_prediction], [*want, want[0]], strict=True):
        assert [x["label"] for x in prediction] == [label for label, _ in labels]
        assert [x["score"] for x in prediction] == pytest.approx([x for _, x in labels], abs=1e-6)
    for invalid in (3, [], [["a", "b", "c"]], ""):
        response = client.post("/predict", json={"inputs": invalid})
        assert response.status_code == 422, invalid
        assert "inputs" in response.json()["error"]
    response = client.post("/predict", json={"inputs": inputs, "raw_scores": True})
    assert response.json() == {"error": "raw_scores: Input should be False"}


def greedy(model, text, **settings):
    config = GenerationConfig(**settings)
    ((result,),) = model.generate_ids([model.encode_prompt(text)], config)
    return result


def test_openai_completions(generator):
    model, client = generator
    # openai: client.completions.create(model="m", prompt=…, temperature=0, max_tokens=8)
    body = {"model": "m", "prompt": PROMPTS, "temperature": 0, "max_tokens": 8}
    response_body = client.post("/v1/completions", json=body).json()
    results = [greedy(model, text, max_tokens=8) for text in PROMPTS]
    assert [x["text"] for x in response_body["choices"]] == [x.text for x in results]
    reasons = ["stop" if x.ended else "length" for x in results]
    assert [x["finish_reason"] for x in response_body["choices"]] == reasons
    prompt_tokens = sum(len(text) + 1 for text in PROMPTS)
    generated = sum(len(x.token_ids) for x in results)
    assert response_body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated,
        "total_tokens": prompt_tokens + generated,
    }
    assert response_body["object"] == "text_completion"


def test_a_seed_repeats_sampled_completions(generator):
    model, client = generator
    body = {"prompt": QUERY, "seed": 3, "n": 4, "max_tokens": 6, "temperature": 1.5}
    first, again, other = (
        [x["text"] for x in client.post("/v1/completions", json=y).json()["choices"]]
        for y in (body, body, body | {"seed": 4})
    )
    assert first == again != other
    want = GenerationConfig(samples=4, seed=3, max_tokens=6, temperature=1.5)
    ((*results,),) = model.generate_ids([model.encode_prompt(QUERY)], want)
    assert first == [x.text for x in results]
    assert [x["index"] for x in client.post("/v1/completions", json=body).json()["choices"]] == [
        *range(4)
    ]


def events(client, body):
    with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_stream_has_the_text_of_the_response(generator):
    model, client = generator
    body = {"prompt": QUERY, "temperature": 0, "max_tokens": 12}
    full = greedy(model, QUERY, max_tokens=12).text
    stop = full[5:7]
    for changes in ({}, {"stop": stop}, {"stop": [full[4], "无"]}):
        whole = client.post("/v1/completions", json=body | changes).json()
        (choice,) = whole["choices"]
        stops = changes.get("stop", [])
        for text in [stops] if isinstance(stops, str) else stops:
            assert text not in choice["text"]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *chunks, usage = events(client, body | changes | options)
        assert "".join(x["choices"][0]["text"] for x in chunks) == choice["text"]
        reasons = [x["choices"][0]["finish_reason"] for x in chunks]
        assert reasons == [None] * (len(chunks) - 1) + [choice["finish_reason"]]
        assert choice["finish_reason"] == ("stop" if changes else choice["finish_reason"])
        assert usage["choices"] == []
        assert usage["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"] > 0
        assert usage["usage"]["completion_tokens"] > 0
        assert len({x["id"] for x in chunks}) == 1


def test_text_that_may_start_a_stop_text_is_held_back():
    assert before_stop("abcde", ["cd", "b"]) == "a"
    assert before_stop("abc", []) == "abc"
    assert final_length("abc", ["cde", "x"]) == 2
    assert final_length("abc", ["bcd"]) == 1
    assert final_length("abc", ["abc"]) == 3  # complete stop texts are removed elsewhere


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt": [3, 4]}, "prompt.0: Input should be a valid string"),
        ({"prompt": "好", "n": 2, "temperature": 0}, "n above 1 needs a temperature above 0"),
        ({"prompt": "好", "max_tokens": 513}, "max_tokens"),
        ({"prompt": "好", "echo": True}, "echo: Input should be False"),
        (
            {"prompt": "好", "stream_options": {"include_usage": 0}},
            "stream_options.include_usage: Input should be a valid boolean",
        ),
        ({"prompt": "好", "logprobs": 2}, "logprobs: Input should be None"),
        ({"prompt": "好", "presence_penalty": 0.5}, "presence_penalty: "),
        ({"prompt": "好", "stop": [""]}, "stop.0: "),
        ({"prompt": ["好", "天"], "stream": True}, "stream needs a single text"),
        ({"prompt": "好" * 70}, "has 71 tokens"),
    ],
)
def test_an_invalid_completion_gets_a_reason(changes, reason, generator):
    response = generator[1].post("/v1/completions", json={"model": "m", **changes})
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"]


def test_what_langchain_sends_by_default_is_accepted(generator):
    body = {"model": "m", "prompt": ["好"], "n": 1, "best_of": 1, "logit_bias": {}, "user": "u"}
    body |= {"frequency_penalty": 0.0, "presence_penalty": 0.0, "logprobs": None, "top_p": 1.0}
    assert generator[1].post("/v1/completions", json=body).status_code == 200


def test_a_failure_has_openais_shape(caplog):
    task = Pair(labels=("0", "1"), text_columns=("a", "b"))
    app = create_task_app(ServedTask("m", task, lambda examples: 1 / 0))
    client = testclient.TestClient(app, raise_server_exceptions=False)
    with caplog.at_level(logging.CRITICAL):
        response = client.post("/v1/rerank", json={"query": "好", "documents": ["好"]})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
