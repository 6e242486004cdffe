"""Tests of the service of a causal language model, over real sockets, with a tiny random model."""

import http.client
import json
import re
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from importlib.util import find_spec

import keras
import numpy as np
import pytest

from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import VectorSettings, embedder_of
from roformer_tf.inference.generate import nearest_paraphrases, sampling_settings
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.models.heads import RoFormerForMaskedLM, RoFormerForSentenceSimilarity
from roformer_tf.models.incremental import IncrementalDecoder
from roformer_tf.serving.command import serve
from roformer_tf.serving.schemas import MAX_STOPS
from roformer_tf.serving.serve_generation import (
    ServedGenerator,
)
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import GenerationLimits, Limits, ServeConfig
from tests.support.random_model import TINY, random_causal_lm, tokenizer_of
from tests.support.service_app import create_generation_app, served_generator

pytest.importorskip("fastapi", reason="needs the extra [serve]")


SHARED = {"/health", "/healthz", "/readyz", "/metrics", "/v1/models", "/v1/models/{model}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("poems") / "model"


@pytest.fixture(scope="module")
def model(folder):
    return random_causal_lm(folder, max_position_embeddings=512)


@pytest.fixture(scope="module")
def sim():
    keras.utils.set_random_seed(4)
    tokenizer = tokenizer_of()
    config = RoFormerConfig(**TINY, vocab_size=tokenizer.vocab_size, attention_type="unilm")
    result = RoFormerForSentenceSimilarity(config)
    result.tokenizer = tokenizer
    return ServedGenerator(
        "sim", result, embedder_of(result, "sim", EmbeddingConfig("pooler", 64), 8)
    )


@pytest.fixture(scope="module")
def address(model, running):
    limits = Limits(max_texts=8, max_characters=1000)
    generation_limits = GenerationLimits(
        max_text_tokens=100, max_request_tokens=400, max_samples=10
    )
    settings = {"limits": limits, "generation_limits": generation_limits}
    with running(create_generation_app(ServedGenerator("诗", model), **settings)) as at:
        yield at


def send(address, payload, path="/generate", method="POST"):
    """Send a request; return its status and JSON."""
    with closing(http.client.HTTPConnection(*address, timeout=60)) as connection:
        body = payload if isinstance(payload, bytes) else json.dumps(payload)
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def generated(model, texts, **settings):
    """Return what the model itself generates, in the format of the service."""
    prompts = [model.encode_prompt(text) for text in texts]
    actual = model.generate_ids(prompts, GenerationConfig(**settings))
    return [[{"text": item.text, "score": item.score} for item in each] for each in actual]


def assert_same(got, want):
    """Assert equal texts, and scores that differ only by rounding."""
    texts, scores = ([[x[key] for x in each] for each in got] for key in ("text", "score"))
    assert texts == [[x["text"] for x in each] for each in want]
    for each, expected in zip(scores, want, strict=True):
        assert each == pytest.approx([x["score"] for x in expected], abs=1e-4)


def open_request(address, payload):
    """Open a connection and send a request."""
    connection = socket.create_connection(address, timeout=60)
    body = json.dumps(payload).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def events(connection):
    """Yield the response, then the events of its stream as they arrive."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    yield response
    while line := response.readline():
        assert line.startswith(b"data: ")
        assert response.readline() == b"\n"
        yield json.loads(line.removeprefix(b"data: "))


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def steps(monkeypatch):
    """A decoder that waits before each token, with counts of batches and tokens."""

    class Steps:
        batches = tokens = 0
        go = threading.Semaphore(0)

        def release(self, count=10_000):
            self.go.release(count)

        def of(self, kind):
            return lambda: getattr(self, kind)

    counts = Steps()
    begin, append = IncrementalDecoder.begin, IncrementalDecoder.append

    def counting_begin(decoder, *arguments):
        counts.batches += 1
        return begin(decoder, *arguments)

    def waiting_append(decoder, ids):
        assert counts.go.acquire(timeout=60)
        counts.tokens += 1
        return append(decoder, ids)

    monkeypatch.setattr(IncrementalDecoder, "begin", counting_begin)
    monkeypatch.setattr(IncrementalDecoder, "append", waiting_append)
    yield counts
    counts.release()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_tokens": 5, "min_tokens": 5},
        {"samples": 3, "temperature": 1.5, "top_k": 9, "top_p": 0.9, "seed": 5, "max_tokens": 9},
        {"repetition_penalty": 2.0, "stop": ["天", "我们"], "max_tokens": 30, "min_tokens": 2},
        {"beams": 3, "length_penalty": 1, "stop": ["天"], "max_tokens": 8},
    ],
    ids=str,
)
def test_generations_equal_those_of_the_model(model, address, settings):
    texts = ["今天", "公园学习", "今天"]
    settings = {"max_tokens": 20} | settings
    status, response = send(address, {"texts": texts} | settings)
    assert status == 200, response
    model_settings = {name: tuple(x) if name == "stop" else x for name, x in settings.items()}
    assert_same(response["generations"], generated(model, texts, **model_settings))
    status, item = send(address, {"text": texts[1]} | settings)
    assert_same(item["generations"], response["generations"][1:2])


def test_without_a_seed_a_request_uses_and_returns_a_random_one(address):
    payload = {"text": "今天", "temperature": 5.0, "max_tokens": 20, "min_tokens": 20}
    (_, item), (_, other) = (send(address, payload) for _ in range(2))
    assert item["seed"] != other["seed"]
    assert item["generations"] != other["generations"]
    _, again = send(address, payload | {"seed": item["seed"]})
    assert again["seed"] == item["seed"]
    assert_same(again["generations"], item["generations"])


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"text": ', "not JSON"),
        ({}, "give either text or texts"),
        ({"text": "天", "texts": ["天"]}, "give either text or texts"),
        ({"text": " "}, "the text is empty"),
        ({"texts": ["天"] * 9}, "at most 8 are allowed"),
        ({"text": "天" * 1001}, "at most 1,000 are allowed"),
        ({"text": "天" * 600}, "text 1 has 601 tokens"),
        ({"texts": ["天", "龘"]}, "text 2, '龘', has no character that"),
        ({"text": "天", "colour": 1}, "colour: Extra inputs"),
        ({"text": "天", "top_p": 0}, "top_p is 0"),
        ({"text": "天", "top_p": "much"}, "top_p: Input should be a valid number"),
        ({"text": "天", "top_k": 10**30}, "top_k: Input should be less than"),
        ({"text": "天", "temperature": 1e-300}, "temperature: Input should be greater"),
        (b'{"text": "x", "length_penalty": NaN, "beams": 2}', "length_penalty: Input should be"),
        ({"text": "天", "length_penalty": 1e300, "beams": 2}, "length_penalty: Input should be"),
        ({"text": "天", "beams": 2, "samples": 2}, "beams is 2, but several samples"),
        ({"text": "天", "beams": 2, "stop": ["我们"]}, "stop is '我们', but beams end at single"),
        ({"text": "天", "stop": [""]}, "stop contains an empty text"),
        ({"text": "天", "stop": ["天" * 33]}, "at most 32 characters"),
        ({"text": "天", "stop": ["天"] * 17}, "at most 16 items"),
        ({"text": "天", "seed": -1}, "seed is -1"),
        ({"text": "天", "min_tokens": 9, "max_tokens": 8}, "min_tokens is 9"),
        ({"text": "天", "max_tokens": 101}, "max_tokens is 101, but must be at most 100, a limit"),
        ({"text": "天", "samples": 11}, "samples is 11, but must be at most 10"),
        ({"text": "天", "beams": 11}, "beams is 11"),
        ({"texts": ["天"] * 5}, "up to 500 tokens would be generated"),
        ({"text": "天", "samples": 5}, "up to 500 tokens would be generated"),
        ({"text": "天", "paraphrases": 2}, "paraphrases need a sim model"),
        ({"text": "天", "paraphrases": -1}, "paraphrases: Input should be greater"),
        ({"texts": ["天"], "stream": True}, "stream needs a single text"),
        ({"text": "天", "samples": 2, "stream": True}, "stream needs a single text"),
        ({"text": "天", "stream": 1}, "stream: Input should be a valid boolean"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_an_invalid_request_gets_a_reason(address, payload, reason):
    status, response = send(address, payload)
    assert status == (400 if reason == "not JSON" else 422)
    assert reason in response["error"]


def test_unknown_characters_are_not_logged(address, capsys):
    assert send(address, {"text": "天龘", "max_tokens": 1})[0] == 200
    assert capsys.readouterr().err == ""


def test_health_describes_the_model(address):
    status, health = send(address, b"", "/health", "GET")
    assert status == 200
    assert (health["model"], health["task"]) == ("诗", "generation")
    assert (health["attention_type"], health["paraphrases"]) == ("causal", False)
    assert health["settings"]["max_tokens"] == 128
    assert health["limits"]["max_texts"] == 8
    assert health["limits"]["max_request_tokens"] == 400
    assert send(address, {"text": "天"}, "/predict")[0] == 404


def test_requests_in_one_batch_do_not_influence_each_other(model, running, steps):
    """This holds for any settings; equal requests get equal texts."""
    sampled = {"temperature": 3.0, "samples": 2, "seed": 9, "max_tokens": 12}
    payloads = [
        *[{"texts": [text]} | sampled for text in ("今天", "今天", "公园学习")],
        {"texts": ["今天", "今天"]} | sampled,
        {"texts": ["经济发展"], "max_tokens": 30, "min_tokens": 30},
        {"texts": ["很好"], "max_tokens": 7, "repetition_penalty": 3.0},
        {"texts": ["今天"], "beams": 3, "max_tokens": 9},
    ]
    with (
        running(create_generation_app(ServedGenerator("m", model))) as at,
        ThreadPoolExecutor(8) as pool,
    ):
        first = pool.submit(send, at, {"text": "今天", "max_tokens": 5, "min_tokens": 5})
        wait_until(lambda: steps.batches == 1)
        futures = [pool.submit(send, at, payload) for payload in payloads]
        wait_until(lambda: waiting(at) == len(payloads))
        assert not first.done()
        steps.release()
        assert first.result()[0] == 200
        responses = [item.result() for item in futures]
    assert steps.batches == 3  # the first request; then all sampled requests; then beam search
    for payload, (status, response) in zip(payloads, responses, strict=True):
        assert status == 200
        assert_same(response["generations"], generated(model, **payload))


def metric(address, line):
    """Return a value of /metrics."""
    with closing(http.client.HTTPConnection(*address, timeout=60)) as connection:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    actual = re.search(rf"^roformer_{re.escape(line)} (\S+)$", page, re.MULTILINE)
    return float(actual[1]) if actual else None


def waiting(address):
    return metric(address, "waiting_requests")


def test_requests_and_tokens_are_counted(model, running):
    with running(create_generation_app(ServedGenerator("诗", model))) as at:
        send(at, {"texts": ["今天", "天气"], "max_tokens": 6, "min_tokens": 6, "samples": 2})
        send(at, {"text": ""})
        assert metric(at, "generated_tokens_total") == 2 * 2 * 6
        assert (
            metric(at, 'http_requests_total{handler="/generate",method="POST",status="200"}') == 1
        )
        assert (
            metric(at, 'http_requests_total{handler="/generate",method="POST",status="422"}') == 1
        )
        assert metric(at, "batch_texts_sum") == 2
        assert metric(at, 'model_info{model="诗",task="generation"}') == 1


def test_a_stream_sends_each_token_at_once(model, address, steps):
    payload = {"text": "今天", "max_tokens": 12, "min_tokens": 12, "seed": 7}
    with closing(open_request(address, payload | {"stream": True})) as connection:
        output = events(connection)
        head = next(output)
        assert head.status == 200
        assert head.getheader("Content-Type").startswith("text/event-stream")
        steps.release(1)  # the second token makes the text of the first one final
        texts = [next(output)["text"]]
        assert texts[0]
        assert steps.tokens == 1
        steps.release()
        *rest, last = output
    ((item,),) = generated(model, ["今天"], max_tokens=12, min_tokens=12)
    assert last == {"done": True, "text": item["text"], "score": last["score"], "seed": 7}
    assert last["score"] == pytest.approx(item["score"], abs=1e-4)
    assert "".join(texts + [event["text"] for event in rest]) == item["text"]
    assert len(rest) > 5
    assert all(event["text"] for event in rest)


LONG = {"text": "今天", "max_tokens": 200, "min_tokens": 200}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_ends_only_its_own_text(model, running, steps, stream):
    short = {"texts": ["公园"], "max_tokens": 40, "min_tokens": 40}
    with (
        running(create_generation_app(ServedGenerator("m", model))) as at,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(send, at, {"text": "天", "max_tokens": 3, "min_tokens": 3})
        wait_until(lambda: steps.batches == 1)
        disconnected = open_request(at, LONG | {"stream": stream})
        wait_until(lambda: waiting(at) == 1)
        other = pool.submit(send, at, short)
        wait_until(lambda: waiting(at) == 2)
        steps.release(2 + 10)
        wait_until(lambda: steps.tokens == 12)
        disconnected.close()
        wait_until(lambda: metric(at, requests_of(200 if stream else 499)) == 1 + stream)
        steps.release()
        status, response = other.result()
        assert (status, first.result()[0]) == (200, 200)
        assert_same(response["generations"], generated(model, **short))
        generated_tokens = steps.tokens
        assert send(at, {"text": "天", "max_tokens": 2, "min_tokens": 2})[0] == 200
    assert steps.batches == 4  # one of them by `generated`
    assert generated_tokens < 2 + 2 * 40  # of 200


def requests_of(status):
    return f'http_requests_total{{handler="/generate",method="POST",status="{status}"}}'


def test_a_request_whose_client_disconnects_in_the_queue_is_not_computed(model, running, steps):
    with (
        running(create_generation_app(ServedGenerator("m", model))) as at,
        ThreadPoolExecutor(1) as pool,
    ):
        first = pool.submit(send, at, {"text": "天", "max_tokens": 3, "min_tokens": 3})
        wait_until(lambda: steps.batches == 1)
        disconnected = open_request(at, LONG)
        wait_until(lambda: waiting(at) == 1)
        disconnected.close()
        wait_until(lambda: metric(at, requests_of(499)) == 1)
        steps.release()
        assert first.result()[0] == 200
    assert (steps.batches, steps.tokens) == (1, 2)


def test_a_short_text_completes_before_a_long_one_of_its_batch(model, running, steps):
    with (
        running(create_generation_app(ServedGenerator("m", model))) as at,
        ThreadPoolExecutor(3) as pool,
    ):
        first = pool.submit(send, at, {"text": "天", "max_tokens": 2, "min_tokens": 2})
        wait_until(lambda: steps.batches == 1)
        long = pool.submit(send, at, LONG)
        short = pool.submit(send, at, {"text": "公园", "max_tokens": 4, "min_tokens": 4})
        wait_until(lambda: waiting(at) == 2)
        steps.release(1 + 8)
        assert short.result()[0] == first.result()[0] == 200
        assert not long.done()
        steps.release()
        assert long.result()[0] == 200
    assert steps.batches == 2


def test_an_overloaded_service_returns_503(model, running, steps):
    app = create_generation_app(
        ServedGenerator("m", model), batch_size=1, limits=Limits(max_waiting=1)
    )
    payload = {"text": "天", "max_tokens": 2, "min_tokens": 2}
    with running(app) as at, ThreadPoolExecutor(2) as pool:
        first = pool.submit(send, at, payload)
        wait_until(lambda: steps.batches == 1)
        second = pool.submit(send, at, payload)
        wait_until(lambda: waiting(at) == 1)
        for stream in (False, True):
            assert send(at, payload | {"stream": stream})[0] == 503
        steps.release()
        assert first.result()[0] == second.result()[0] == 200


def test_a_bug_gives_status_500_and_the_service_continues(model, running, monkeypatch):
    append = IncrementalDecoder.append
    monkeypatch.setattr(IncrementalDecoder, "append", lambda *_: 1 / 0)
    payload = {"text": "今天", "max_tokens": 9, "min_tokens": 9}
    with running(create_generation_app(ServedGenerator("m", model))) as at:
        failed = {"error": "the service failed; its log has the reason"}
        assert send(at, payload) == (500, failed)
        with closing(open_request(at, payload | {"stream": True})) as connection:
            assert list(events(connection))[-1] == failed
        monkeypatch.setattr(IncrementalDecoder, "append", append)
        assert send(at, payload)[0] == 200


def test_paraphrases_are_the_nearest_candidates(sim, running):
    texts = ["今天天气很好", "我们去公园"]
    payload = {"texts": texts, "paraphrases": 3, "max_tokens": 6, "temperature": 2.0, "seed": 8}
    with running(create_generation_app(sim)) as at:
        status, response = send(at, payload)
        assert status == 200, response
        assert send(at, b"", "/health", "GET")[1]["paraphrases"] is True
        _, without_paraphrases = send(at, {"texts": texts, "max_tokens": 6})
        for invalid in ({"beams": 2}, {"stream": True}, {"paraphrases": 9}):
            invalid_payload = {"text": texts[0], "paraphrases": 2} | invalid
            status, error = send(at, invalid_payload)
            assert status == 422
            assert re.search("paraphrases|beams is 2, but several samples", error["error"])
    assert_same(without_paraphrases["generations"], generated(sim.model, texts, max_tokens=6))
    config = sampling_settings(GenerationConfig(max_tokens=6, temperature=2.0, seed=8), 3)
    candidates = sim.model.generate_ids([sim.model.encode_prompt(text) for text in texts], config)
    want = nearest_paraphrases(sim.model, texts, [[x.text for x in each] for each in candidates], 3)
    assert_same(response["generations"], [[item._asdict() for item in each] for each in want])
    assert [len(each) for each in response["generations"]] == [3, 3]
    cosines = [item["score"] for item in response["generations"][0]]
    assert cosines == sorted(cosines, reverse=True)


@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_vectors_are_those_of_embed(pooling, sim, tmp_path):
    folder = tmp_path / "model"
    sim.model.save_pretrained(folder)
    EmbeddingConfig(pooling, 8).save(folder)
    texts = ["今天天气很好" * 3, "北京"]
    served = served_generator(folder).embedder.embed(texts)
    np.testing.assert_allclose(served, VectorSettings().open(folder).embed(texts), atol=1e-6)


def test_the_service_documents_its_requests_and_responses(model, folder, running):
    served = served_generator(folder)
    assert served.name == folder.parent.name
    with running(create_generation_app(served)) as at:
        status, description = send(at, b"", "/openapi.json", "GET")
        assert status == 200
        assert set(description["paths"]) == {"/generate", "/v1/completions", *SHARED}
        operation = description["paths"]["/generate"]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert send(at, schema["examples"][0])[0] == 200
    described_stop = description["components"]["schemas"]["CompletionsRequest"]["properties"][
        "stop"
    ]
    array = next(kind for kind in described_stop["anyOf"] if kind.get("type") == "array")
    assert "minItems" not in array  # [] means no stop text
    assert array["maxItems"] == MAX_STOPS
    names = {
        "model",
        "text",
        "texts",
        "paraphrases",
        "stream",
        *GenerationConfig.__dataclass_fields__,
    }
    assert set(description["components"]["schemas"]["GenerateRequest"]["properties"]) == names
    responses = operation["responses"]
    assert set(responses["200"]["content"]) == {"application/json", "text/event-stream"}
    assert set(responses) == {"200", "default"}


def test_the_routes_depend_on_the_model(model, folder, finetuned, tmp_path):
    masked, empty = tmp_path / "masked", tmp_path / "empty"
    empty.mkdir()
    masked_lm = RoFormerForMaskedLM(RoFormerConfig(**TINY, vocab_size=model.config.vocab_size))
    masked_lm.tokenizer = model.tokenizer
    masked_lm.save_pretrained(masked)

    def paths(**settings):
        description = open_service(ServeConfig(**settings)).openapi()
        name = description["info"]["title"].removeprefix("roformer_tf: ")
        return name, description["paths"].keys() & {"/predict", "/generate"}

    assert paths(model=(str(finetuned("classification")),))[1] == {"/predict"}
    archive = shutil.make_archive(str(tmp_path / "poems"), "zip", folder.parent, folder.name)
    assert paths(model=(archive,)) == ("poems", {"/generate"})
    for source, message in ((masked, "fills masks and cannot generate"), (empty, "no checkpoint")):
        with pytest.raises(InputError, match=message):
            serve(ServeConfig(model=(str(source),), port=0))
    assert paths(model=(str(masked),), attention_type="causal")[1] == {"/generate"}
    for changes in ({}, {"pooling": "cls"}):
        with pytest.raises(InputError, match="--top-k is about labels"):
            serve(ServeConfig(model=(str(folder),), port=0, top_k=3, **changes))
    labels = str(finetuned("classification"))
    for changes in ({"model": (labels,)}, {"model": (str(folder),), "pooling": "cls"}):
        with pytest.raises(InputError, match="--attention-type is about text"):
            open_service(ServeConfig(attention_type="causal", **changes))
    both = {"model": (labels, str(folder)), "names": ("labels", "writer")}
    for flag, value in (("engine", "onnx"), ("precision", "int8")):
        with pytest.raises(InputError, match=rf"only Keras runs.* Omit --{flag}\."):
            open_service(ServeConfig(model=(str(folder),), **{flag: value}))
    with pytest.raises(InputError, match=r"in float32 or bfloat16\. Omit --precision"):
        open_service(ServeConfig(**both, precision="int8"))
    assert open_service(ServeConfig(**both, attention_type="causal", engine="keras"))
    if find_spec("onnxruntime"):
        engines = [x.engine for x in open_service(ServeConfig(**both, engine="onnx")).state.choices]
        assert engines == ["onnx", "keras"]


def test_a_model_of_another_language_is_served(model, monkeypatch):
    """The vocabulary lacks the characters of the text that warms up the service."""
    monkeypatch.setattr(
        "roformer_tf.serving.serve_generation.open_generator", lambda *_: other_language(model)
    )
    assert create_generation_app(served_generator("x"))


def other_language(model):
    tokenizer = model.tokenizer
    result = type(model)(model.config)
    result.tokenizer = tokenizer_of(chr(ord("a") + i) for i in range(tokenizer.vocab_size - 5))
    return result


def test_the_page_loads_nothing_from_other_hosts(address):
    with closing(http.client.HTTPConnection(*address, timeout=30)) as connection:
        connection.request("GET", "/")
        page = connection.getresponse().read().decode()
    assert "http://" not in page
    assert "https://" not in page
    assert "innerHTML" not in page
    assert "{%" not in page


def test_limits_are_positive():
    with pytest.raises(InputError, match="max_samples is 0"):
        GenerationLimits(max_samples=0)
