"""Tests of the service for predictions, over real sockets."""

import gc
import http.client
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import urlopen

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf import errors
from roformer_tf.errors import InputError
from roformer_tf.serving import application, command
from roformer_tf.serving.command import (
    listening,
    serve,
)
from roformer_tf.serving.serve_predictions import (
    ServedTask,
    as_example,
)
from roformer_tf.serving.service import open_service
from roformer_tf.serving.settings import GenerationLimits, Limits, ServeConfig
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.probabilities import softmax
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.tagging import Tagging
from tests.support.random_model import random_model
from tests.support.service_app import create_task_app, served_task

TASK = Classification(labels=("坏", "好"))
PAIR = Pair(labels=("0", "1"), text_columns=("a", "b"))
SHARED = {"/health", "/healthz", "/readyz", "/metrics", "/v1/models", "/v1/models/{model}"}
RANKING = Ranking(text_columns=("a", "b", "c"))
TAGGING = Tagging(labels=("O", "B-LOC", "I-LOC"))


def by_length(examples):
    """Predict by the length of the text: the longer, the better."""
    return [
        TASK.decoding.predict(np.array([0.0, len(e.texts[0]) / 10], "float32")) for e in examples
    ]


def probability(text):
    return float(softmax(np.array([0.0, len(text) / 10], "float32"))[1])


def send(address, method="POST", path="/predict", body=None, **headers):
    """Send a request; return its status and JSON."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def metrics_of(address):
    with urlopen("http://{}:{}/metrics".format(*address)) as response:
        return response.read().decode()


@pytest.fixture(scope="module")
def address(running):
    limits = Limits(max_texts=8, max_characters=1000, max_megabytes=1)
    with running(create_task_app(ServedTask("酒店", TASK, by_length), limits=limits)) as at:
        yield at


@pytest.fixture
def predict(address):
    def post(payload):
        status, response = send(address, body=json.dumps(payload))
        assert status == 200, response
        return response["predictions"]

    return post


def test_predictions_are_in_the_order_of_the_texts(predict):
    assert predict({"text": "很好"}) == predict({"texts": ["很好"]})
    texts = ["很" * n for n in (5, 1, 8, 3)]
    for text, prediction in zip(texts, predict({"texts": texts}), strict=True):
        assert prediction["label"] == "好"
        assert prediction["scores"]["好"] == pytest.approx(probability(text))
        assert sum(prediction["scores"].values()) == pytest.approx(1)


def test_health_describes_the_model(address):
    status, health = send(address, "GET", "/health")
    assert status == 200
    assert health["ready"] is True
    assert (health["model"], health["task"]) == ("酒店", "classification")
    assert (health["title"], health["headline"]) == ("文本分类 · Classification", None)
    assert (health["labels"], health["text_columns"]) == (["坏", "好"], ["text"])
    assert health["limits"]["max_texts"] == 8


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b'{"text": ', 400, "JSON"),
        (b"", 400, "JSON"),
        (b"text=%E5%A5%BD", 400, "JSON"),
        (b"[" * 100_000, 400, "the body cannot be read: send JSON in UTF-8"),
        (b'{"text": "\xff"}', 400, "the body cannot be read: send JSON in UTF-8"),
        (rb'{"text": "\ud800"}', 422, "text: the text is not valid Unicode"),
        (b'{"text": "a", "colour": "red"}', 422, "colour: Extra inputs are not permitted"),
        (b'{"text": "a", "labels": ["b", "c"]}', 422, "labels: this model predicts what it was"),
        (b'{"text": ""}', 422, "text: the text is empty"),
        (b'{"text": " \\n\\u3000"}', 422, "text: the text is empty"),
        (b'{"texts": ["a", ""]}', 422, "texts.1: the text is empty"),
        (b'{"texts": []}', 422, "texts: List should have at least 1 item"),
        (b'{"texts": ' + json.dumps(["a"] * 9).encode() + b"}", 422, "9 texts, but at most 8"),
        (b'{"text": "' + b"a" * 1001 + b'"}', 422, "1,001 characters, but at most 1,000"),
        (b'{"text": 3}', 422, "text: Input should be a valid string"),
        (b'{"text": ["a", "b"]}', 422, "text: Input should be a valid string"),
        (b'{"texts": "a"}', 422, "texts: Input should be a valid list"),
        (b"{}", 422, "give either text or texts"),
        (json.dumps({f"x{i}": 0 for i in range(2000)}).encode(), 422, "the object has 2,000 keys"),
        (b'{"text": "a", "texts": ["a"]}', 422, "give either text or texts"),
        (b'["a"]', 422, "Input should be a valid dictionary"),
        (b"null", 422, "Input should be a valid dictionary"),
        (b"1" * 5000, 400, "the body cannot be read"),
    ],
)
def test_an_invalid_request_gets_a_reason(address, predict, body, status, reason):
    got, response = send(address, body=body)
    assert got == status
    assert reason in response["error"]
    assert predict({"text": "好"})


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/predict", 405), ("POST", "/", 405), ("GET", "/x", 404)]
)
def test_other_paths_get_json(address, method, path, status):
    got, response = send(address, method, path)
    assert got == status
    assert response["error"]


def test_a_large_body_is_refused_before_it_is_read_completely(address, predict):
    """The response arrives after about one of fifty megabytes was sent."""
    with socket.create_connection(address, timeout=30) as connection:
        size = 50_000_000
        connection.sendall(
            f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        connection.sendall(b'{"text": "' + b"a" * 1_100_000)
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert response.status == 413
        assert json.loads(response.read())["error"] == "the body is larger than 1,000,000 bytes"
    status, response = send(address, body=b"a" * size)  # also if the full body is sent
    assert (status, response["error"]) == (413, "the body is larger than 1,000,000 bytes")
    assert predict({"text": "好"})


def test_requests_of_many_clients_share_batches(address, running):
    batches = []

    def slow_predict(examples):
        batches.append(len(examples))
        time.sleep(0.01)
        return by_length(examples)

    def client(number):
        connection = http.client.HTTPConnection(*at, timeout=60)
        for _ in range(20):
            texts = ["好" * (number + 1)] * (number % 3 + 1)
            connection.request("POST", "/predict", json.dumps({"texts": texts}))
            response = connection.getresponse()
            predictions = json.loads(response.read())["predictions"]
            assert len(predictions) == len(texts)
            assert predictions[0]["scores"]["好"] == pytest.approx(probability(texts[0]))
        connection.close()

    with (
        running(create_task_app(ServedTask("m", TASK, slow_predict), batch_size=8)) as at,
        ThreadPoolExecutor(16) as pool,
    ):
        list(pool.map(client, range(16)))
    texts = 20 * sum(number % 3 + 1 for number in range(16))
    assert sum(batches) == texts
    assert len(batches) < texts / 3
    assert max(batches) < 8 + 3  # full, plus the remaining texts of the last request


LETTERS = "今天气很好我们去公园学习北京上海"


@pytest.fixture(scope="module")
def model(finetuned):
    return served_task(finetuned("classification"), batch_size=32)


def test_the_service_documents_its_requests_and_responses(running):
    """The example in the documentation is a valid request."""
    for task, predict in (
        (TASK, by_length),
        (PAIR, lambda x: [PAIR.decoding.predict(np.zeros(2))] * len(x)),
    ):
        with running(create_task_app(ServedTask("m", task, predict))) as at:
            status, description = send(at, "GET", "/openapi.json")
            assert status == 200
            rerank = {"/rerank", "/v1/rerank", "/v2/rerank"} if task == PAIR else set()
            assert set(description["paths"]) == {"/predict", *SHARED, *rerank}
            operation = description["paths"]["/predict"]["post"]
            assert set(operation["responses"]) == {"200", "default"}
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert send(at, body=json.dumps(schema["examples"][0]))[0] == 200
            kinds = ("TextRequest", "PairRequest")
            (model,) = (x for x in description["components"]["schemas"] if x in kinds)
            properties = description["components"]["schemas"][model]["properties"]
            assert set(properties) == {"text", "texts", "model"}


@pytest.mark.parametrize("name", ["README.md", "README_zh.md"])
def test_the_request_of_the_readme_works(address, name):
    readme = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")
    (path, body) = re.search(r"curl localhost:8000(/\w+) --data '(.*)'", readme).groups()
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl sends it
    status, response = send(address, path=path, body=body.encode(), **form)
    assert status == 200
    assert [item["label"] for item in response["predictions"]] == ["好"] * 2


def test_the_api_documentation_loads_nothing_from_other_hosts(address):
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", "/docs")
    page = connection.getresponse().read().decode()
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert any(link.endswith(".js") for link in links)
    assert any(link.endswith(".css") for link in links)
    for link in links:
        assert link.startswith("/"), link
        connection.request("GET", link)
        response = connection.getresponse()
        assert (response.status, len(response.read()) > 100) == (200, True)
    assert "/openapi.json" in page


@pytest.mark.slow
def test_a_thousand_requests_of_sixteen_clients(model, running):
    """Each prediction is the same as without a batch."""
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list(LETTERS), n)) for n in rng.integers(1, 120, 1000)]

    def client(number):
        responses = []
        with closing(http.client.HTTPConnection(*at, timeout=60)) as connection:
            for text in texts[number::16]:
                connection.request("POST", "/predict", json.dumps({"text": text}))
                response = connection.getresponse()
                responses.append((response.status, json.loads(response.read())))
        return responses

    with running(create_task_app(model)) as at, ThreadPoolExecutor(16) as pool:
        actual = list(pool.map(client, range(16)))
    for number, responses in enumerate(actual):
        assert {status for status, _ in responses} == {200}
        for text, (_, response) in list(zip(texts[number::16], responses, strict=True))[:5]:
            alone = model.predict([as_example([text], model.task)])[0]
            (got,) = response["predictions"]
            assert got["label"] == alone.label
            assert list(got["scores"].values()) == pytest.approx(alone.scores, abs=1e-5)


def wait_until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_an_overloaded_service_returns_503_and_recovers(running):
    release, started = threading.Event(), threading.Event()

    def blocked_predict(examples):
        started.set()
        assert release.wait(30)
        return by_length(examples)

    app = create_task_app(
        ServedTask("m", TASK, blocked_predict), batch_size=1, limits=Limits(max_waiting=1)
    )
    body = json.dumps({"text": "好"})
    with running(app) as at, ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(send, at, body=body)]
        assert started.wait(30)
        futures += [pool.submit(send, at, body=body) for _ in range(7)]
        wait_until(lambda: sum(item.done() for item in futures) == 6)
        assert send(at, "GET", "/health")[0] == 200  # while the model is busy
        release.set()
        statuses = sorted(item.result()[0] for item in futures)
        assert statuses == [200, 200, *[503] * 6]
        assert send(at, body=body)[0] == 200


def test_requests_in_one_batch_get_their_own_labels(running):
    entailment = Pair(labels=("contradiction", "entailment"), text_columns=("a", "b"))
    release, started = threading.Event(), threading.Event()

    def blocked_predict(examples, task=entailment):
        started.set()
        assert release.wait(30)
        return [task.decoding.predict(np.zeros(len(task.labels), "float32"))] * len(examples)

    bodies = [{"text": "好", "labels": labels} for labels in (["甲", "乙"], ["丙", "丁", "甲"])]
    with (
        running(create_task_app(ServedTask("m", entailment, blocked_predict))) as at,
        ThreadPoolExecutor(3) as pool,
    ):
        first = pool.submit(send, at, body=json.dumps({"text": ["好", "坏"]}))
        assert started.wait(30)
        waiting = [pool.submit(send, at, body=json.dumps(body)) for body in bodies]
        wait_until(lambda: re.search(r"^roformer_waiting_requests\S* 2", metrics_of(at), re.M))
        release.set()
        for body, future in zip(bodies, waiting, strict=True):
            assert [*future.result()[1]["predictions"][0]["scores"]] == body["labels"]
        assert [*first.result()[1]["predictions"][0]["scores"]] == [*entailment.labels]


@pytest.mark.parametrize("error", [ZeroDivisionError, InputError])
def test_a_bug_gives_status_500_and_the_service_continues(error, running):
    def failing_predict(examples):
        if examples[0].texts == ("坏",):
            raise error("secret")
        return by_length(examples)

    with running(create_task_app(ServedTask("m", TASK, failing_predict))) as at:
        status, response = send(at, body=json.dumps({"text": "坏"}))
        assert status == 500
        assert response == {"error": "the service failed; its log has the reason"}
        assert send(at, body=json.dumps({"text": "好"}))[0] == 200


def test_running_requests_finish_when_the_service_stops(running):
    started = threading.Event()
    before = set(threading.enumerate())

    def slow_predict(examples):
        started.set()
        time.sleep(0.3)
        return by_length(examples)

    with ThreadPoolExecutor(1) as pool:
        with running(create_task_app(ServedTask("m", TASK, slow_predict))) as at:
            future = pool.submit(send, at, body=json.dumps({"text": "好"}))
            assert started.wait(30)
        assert future.result()[0] == 200
    assert set(threading.enumerate()) <= before


def test_a_slow_body_gets_408(running, monkeypatch):
    """A slow body delays neither other requests nor the shutdown."""
    monkeypatch.setattr(application, "BODY_SECONDS", 1)
    partial_request = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with running(create_task_app(ServedTask("m", TASK, by_length))) as at:
        with socket.create_connection(at, timeout=30) as connection:
            connection.sendall(partial_request)
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.status == 408
            assert json.loads(response.read())["error"] == "the body took longer than 1 seconds"
        last = socket.create_connection(at, timeout=30)
        last.sendall(partial_request)
    last.close()


HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"

IDLE = """
import socket, sys
host, port, count, *begun = sys.argv[1:]
connections = [socket.create_connection((host, int(port)), 30) for _ in range(int(count))]
for connection in connections:
    connection.sendall("".join(begun).encode())
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def idle_clients():
    """idle_clients(address, count, partial_request="") opens connections and leaves them idle."""
    with ExitStack() as processes:

        def start(address, count, partial_request=""):
            process = processes.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", IDLE, *map(str, address), str(count), partial_request],
                    stdin=subprocess.PIPE,  # closed at exit, which ends the process
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert process.stdout.readline() == "connected\n"

        yield start


@pytest.mark.parametrize("partial_request", ["", "POST /predict HTTP/1.1\r\nHost: x\r\n"])
def test_idle_connections_neither_stop_the_service_nor_fill_its_log(
    running, idle_clients, caplog, partial_request
):
    with running(create_task_app(ServedTask("m", TASK, by_length))) as at:
        idle_clients(at, 300, partial_request)
        for _ in range(3):
            assert send(at, body=json.dumps({"text": "好"}))[0] == 200
    assert len(caplog.text) < 1000


def test_requests_on_too_many_connections_get_503(running, idle_clients):
    app = create_task_app(ServedTask("m", TASK, by_length))
    with running(app, limits=Limits(max_connections=3)) as at:
        with ExitStack() as opened:
            for _ in range(2):
                opened.enter_context(socket.create_connection(at, timeout=30))
            assert send(at, "GET", "/health")[0] == 200
            third = opened.enter_context(socket.create_connection(at, timeout=30))
            fourth = http.client.HTTPConnection(*at, timeout=30)
            fourth.request("GET", "/health")
            assert fourth.getresponse().status == 503
            third.sendall(HEALTH)
            fourth.close()
        wait_until(lambda: status_of(at) == 200)


def status_of(address):
    with closing(http.client.HTTPConnection(*address, timeout=30)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


def test_a_server_does_not_close_log_files_of_the_program(running, tmp_path):
    handler = logging.FileHandler(tmp_path / "log")
    stream = handler.stream
    with running(create_task_app(ServedTask("m", TASK, by_length))):
        assert not stream.closed
    handler.close()


def test_encoding_a_long_response_does_not_block_others(running, monkeypatch):
    release, started = threading.Event(), threading.Event()
    original = type(TASK.decoding).as_json

    def blocking_as_json(*arguments):
        started.set()
        assert release.wait(10)
        return original(*arguments)

    monkeypatch.setattr(type(TASK.decoding), "as_json", blocking_as_json)
    with (
        running(create_task_app(ServedTask("m", TASK, by_length))) as at,
        ThreadPoolExecutor(1) as pool,
    ):
        future = pool.submit(send, at, body=json.dumps({"text": "好" * 1001}))
        assert started.wait(30)
        assert send(at, "GET", "/health")[0] == 200
        assert not future.done()
        release.set()
        assert future.result()[0] == 200


@pytest.mark.parametrize(
    ("task", "right", "invalid"),
    [
        (PAIR, ["a", "b"], ["a", "b", "c"]),
        (PAIR, ["a", "b"], "a"),
        (RANKING, ["a", "b", "c"], ["a", "b"]),
        (RANKING, ["a", "b", "c"], ["a", "b", " "]),
    ],
)
def test_an_example_has_as_many_texts_as_the_task(task, right, invalid, running):
    received = []

    def predict(examples):
        received.extend(list(example.texts) for example in examples)
        return [task.decoding.predict(np.zeros(2, "float32"))] * len(examples)

    with running(create_task_app(ServedTask("m", task, predict))) as at:
        for body in ({"text": right}, {"texts": [right, right]}):
            assert send(at, body=json.dumps(body))[0] == 200
        assert received == [right] * 3
        for body in ({"text": invalid}, {"texts": [right, invalid]}):
            assert send(at, body=json.dumps(body))[0] == 422


def test_predictions_of_each_task_as_json():
    def predicted_json(task, texts, logits):
        example = as_example(texts, task)
        actual = task.decoding.as_json(example, task.decoding.predict(np.array(logits, "float32")))
        return json.loads(json.dumps(actual))  # plain values only

    assert predicted_json(PAIR, ["a", "b"], [0, 0]) == {
        "label": "0",
        "scores": {"0": 0.5, "1": 0.5},
    }
    multilabel = Multilabel(labels=("甲", "乙", "丙"))
    assert predicted_json(multilabel, ["a"], [50, 0, 50])["labels"] == ["甲", "丙"]
    assert predicted_json(multilabel, ["a"], [-50, 0, -50]) == {
        "labels": [],
        "scores": {"甲": 0, "乙": 0.5, "丙": 0},
    }
    assert predicted_json(Regression(mean=3, deviation=2), ["a"], [0.5]) == {"score": 4}
    assert predicted_json(RANKING, ["a", "b", "c"], [0, 50]) == {
        "label": "C",
        "scores": {"B": 0.5, "C": 1},
    }
    tags = predicted_json(TAGGING, ["在北京"], 50 * np.eye(3))
    assert tags["tags"] == [
        {"unit": unit, "label": label, "probability": 1}
        for unit, label in zip("在北京", TAGGING.labels, strict=True)
    ]
    assert tags["entities"] == [{"start": 1, "end": 3, "label": "LOC", "text": "北京"}]
    words = Tagging(labels=("n", "v"), spaced_units=True)
    assert predicted_json(words, [" 我们  去 "], [[50, 0], [0, 50]]) == {
        "tags": [
            {"unit": "我们", "label": "n", "probability": 1},
            {"unit": "去", "label": "v", "probability": 1},
        ]
    }


def test_the_page_loads_nothing_from_other_hosts(address):
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("GET", "/")
    response = connection.getresponse()
    page = response.read().decode("utf-8")
    connection.close()
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "http://" not in page
    assert "https://" not in page
    assert "innerHTML" not in page


def test_responses_are_sent_at_once():
    """Without TCP_NODELAY, a body waits 40 ms for the acknowledgement of its head."""
    with listening("127.0.0.1", 0) as at, socket.create_connection(at.getsockname()):
        accepted, _ = at.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_reported_before_the_model_is_loaded(tmp_path):
    with listening("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            InputError, match=rf"cannot listen at 127\.0\.0\.1, port {port}: .*in use"
        ):
            serve(ServeConfig(model=(str(tmp_path),), port=port))


@pytest.mark.parametrize(
    ("host", "port"), [("no.such.host.invalid", 0), ("127.0.0.1", 70_000), ("192.0.2.1", 0)]
)
def test_an_invalid_address_is_refused(host, port):
    with pytest.raises(InputError, match=r"[^.]\. Give another --host or --port"):
        listening(host, port)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="contains no checkpoint"):
        serve(ServeConfig(model=(str(tmp_path),), port=0))


def test_missing_packages_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"needs fastapi, .*, uvicorn: `pip install 'roformer-tf\["
    ):
        serve(ServeConfig(model=(str(tmp_path),)))


FLOAT32 = ("--precision", "float32")  # no message is printed about it


@pytest.mark.slow
def test_the_command_serves_until_sigterm(start_command, finetuned):
    process = start_command(
        "roformer-tf", "serve", finetuned("classification"), "--port", 0, *FLOAT32
    )
    try:
        message = process.stdout.readline()
        at = urlsplit(next(word for word in message.split() if word.startswith("http://")))
        assert at.hostname == "127.0.0.1"
        assert send((at.hostname, at.port), body=json.dumps({"text": "好"}))[0] == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM
    assert errors == ""


def test_limits_are_positive():
    with pytest.raises(InputError, match="max_texts is 0"):
        Limits(max_texts=0)


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize("kind", ["labels", "writer", "vectors"])
def test_settings_reach_the_application(kind, finetuned, released, running):
    """tests/wiring has the settings of the models."""
    settings = {
        "labels": {"model": finetuned("classification"), "top_k": 1},
        "writer": {"model": released("char"), "attention_type": "causal"},
        "vectors": {"model": released("char"), "pooling": "cls"},
    }[kind]
    config = ServeConfig(
        **settings | {"model": (str(settings["model"]),)},
        limits=Limits(max_texts=2),
        generation_limits=GenerationLimits(max_samples=3),
    )
    app = open_service(config)
    path = {"labels": "/predict", "writer": "/generate", "vectors": "/embed"}[kind]
    with running(app) as at:
        _, health = send(at, "GET", "/health")
        texts = [send(at, path=path, body=json.dumps({"texts": ["今天"] * n})) for n in (2, 3)]
        if kind == "writer":
            sampling = {"text": "今天", "max_tokens": 1}
            statuses = [
                send(at, path=path, body=json.dumps(sampling | {"samples": n}))[0] for n in (3, 4)
            ]
            assert statuses == [200, 422]
            assert health["attention_type"] == "causal"
    assert [status for status, _ in texts] == [200, 422]
    assert health["limits"]["max_texts"] == 2
    if kind == "labels":
        assert [len(item["scores"]) for item in texts[0][1]["predictions"]] == [1, 1]
    if kind == "vectors":
        assert health["pooling"] == "cls"


def test_the_command_prints_its_address(monkeypatch, finetuned, capsys):
    """Loaded objects are excluded from garbage collection."""
    frozen_while_serving, frozen_before = [], gc.get_freeze_count()
    server = SimpleNamespace(run=lambda sockets: frozen_while_serving.append(gc.get_freeze_count()))
    monkeypatch.setattr(command, "make_server", lambda app, config: server)
    serve(ServeConfig(model=(str(finetuned("classification")),), port=0))
    assert frozen_while_serving[0] > frozen_before
    message = capsys.readouterr().out
    assert re.fullmatch(r"serving \S+ at http://127\.0\.0\.1:\d+ on the CPU.*\n", message)


@pytest.mark.parametrize("invalid", [{"hybrid": True}, {"rerank": "pairs"}])
def test_contradicting_flags_are_refused(invalid):
    with pytest.raises(InputError, match="needs --index"):
        ServeConfig(model=("name",), **invalid)


def test_multiple_choice_is_served(running, send, tmp_path):
    keras.utils.set_random_seed(1)
    task = TASKS["multiple-choice"](text_columns=("text", "choices"), max_length=32)
    random_model(task).save_pretrained(tmp_path)
    task.save(tmp_path)
    served = served_task(tmp_path, precision="float32")
    payload = {"text": "今天天气", "choices": ["很好", "学习", "公园"]}
    with running(create_task_app(served)) as address:
        status, response = send(address, "/predict", payload)
        assert status == 200
        (prediction,) = response["predictions"]
        want = roformer_tf.load(tmp_path, precision="float32")(("今天天气", payload["choices"]))
        assert prediction["scores"] == pytest.approx(want["scores"], abs=1e-5)
        assert prediction["label"] == want["label"]
        status, response = send(address, "/predict", {"texts": [payload, payload]})
        assert (status, len(response["predictions"])) == (200, 2)
        for invalid in (
            {"text": "今天"},
            payload | {"choices": []},
            payload | {"choices": ["好", " "]},
        ):
            assert send(address, "/predict", invalid)[0] == 422
        # the only choice of a text would have the probability 1, whatever it is
        body = {"query": "今天天气", "documents": payload["choices"]}
        assert send(address, "/rerank", body)[0] == 404
