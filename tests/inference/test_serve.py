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

import numpy as np
import pytest

from roformer_tf.errors import InputError
from roformer_tf.inference import serve as serving
from roformer_tf.inference.connections import BoundedConnection
from roformer_tf.inference.questions import Limits, as_example
from roformer_tf.inference.serve import (
    ServeConfig,
    Served,
    is_loopback,
    listening,
    load_served,
    make_app,
    open_service,
    serve,
)
from roformer_tf.inference.writing_questions import WritingLimits
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.probabilities import softmax
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.tagging import Tagging

pytest.importorskip("fastapi", reason="needs the extra [serve]")
connections = pytest.importorskip("roformer_tf.inference.connections")

TASK = Classification(labels=("坏", "好"))
PAIR = Pair(labels=("0", "1"), text_columns=("a", "b"))
RANKING = Ranking(text_columns=("a", "b", "c"))
TAGGING = Tagging(labels=("O", "B-LOC", "I-LOC"))


def by_length(examples):
    """What a test's model answers: the longer a text, the better."""
    return [
        TASK.decoding.predict(np.array([0.0, len(e.texts[0]) / 10], "float32")) for e in examples
    ]


def share(text):
    return float(softmax(np.array([0.0, len(text) / 10], "float32"))[1])


def ask(address, method="POST", path="/predict", body=None, **headers):
    """One request: its status, and the JSON of the answer."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def address(running):
    limits = Limits(max_texts=8, max_characters=1000, max_megabytes=1)
    with running(make_app(Served("酒店", TASK, by_length), limits=limits)) as at:
        yield at


@pytest.fixture
def predicted(address):
    def post(question):
        status, answer = ask(address, body=json.dumps(question))
        assert status == 200, answer
        return answer["predictions"]

    return post


def test_a_text_and_several_texts_are_answered_in_their_order(predicted):
    assert predicted({"text": "很好"}) == predicted({"texts": ["很好"]})
    texts = ["很" * n for n in (5, 1, 8, 3)]
    for text, answer in zip(texts, predicted({"texts": texts}), strict=True):
        assert answer["label"] == "好"
        assert answer["probabilities"]["好"] == pytest.approx(share(text))
        assert sum(answer["probabilities"].values()) == pytest.approx(1)


def test_health_says_what_is_served(address):
    status, health = ask(address, "GET", "/health")
    assert status == 200
    assert health["ready"] is True
    assert (health["model"], health["task"]) == ("酒店", "classification")
    assert (health["title"], health["headline"]) == ("文本分类 · Classification", None)
    assert (health["labels"], health["text_columns"]) == (["坏", "好"], ["text"])
    assert health["limits"]["max_texts"] == 8


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b'{"text": ', 400, "Invalid JSON"),
        (b"", 400, "Invalid JSON"),
        (b"text=%E5%A5%BD", 400, "Invalid JSON"),
        (b"[" * 100_000, 400, "Invalid JSON"),
        (b'{"text": "\xff"}', 400, "Invalid JSON"),
        (rb'{"text": "\ud800"}', 400, "Invalid JSON"),
        (b'{"text": "a", "colour": "red"}', 422, "colour: Extra inputs are not permitted"),
        (b'{"text": ""}', 422, "text: the text is empty"),
        (b'{"text": " \\n\\u3000"}', 422, "text: the text is empty"),
        (b'{"texts": ["a", ""]}', 422, "texts.1: the text is empty"),
        (b'{"texts": []}', 422, "texts: List should have at least 1 item"),
        (b'{"texts": ' + json.dumps(["a"] * 9).encode() + b"}", 422, "at most 8 items"),
        (b'{"text": "' + b"a" * 1001 + b'"}', 422, "at most 1000 characters"),
        (b'{"text": 3}', 422, "text: Input should be a valid string"),
        (b'{"text": ["a", "b"]}', 422, "text: Input should be a valid string"),
        (b'{"texts": "a"}', 422, "texts: Input should be a valid array"),
        (b"{}", 422, "give either text or texts"),
        (json.dumps({f"x{i}": 0 for i in range(2000)}).encode(), 422, "2,000 things are wrong"),
        (b'{"text": "a", "texts": ["a"]}', 422, "give either text or texts"),
        (b'["a"]', 422, "Input should be an object"),
        (b"null", 422, "Input should be an object"),
        (b"1" * 5000, 400, "Invalid JSON"),
    ],
)
def test_a_bad_question_is_answered_with_a_reason(address, predicted, body, status, reason):
    got, answer = ask(address, body=body)
    assert got == status
    assert reason in answer["error"]
    assert answer["example"] == {"text": "…"}
    assert predicted({"text": "好"})


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/predict", 405), ("POST", "/", 405), ("GET", "/x", 404)]
)
def test_other_addresses_are_answered_in_json(address, method, path, status):
    got, answer = ask(address, method, path)
    assert got == status
    assert answer["error"]


def test_a_large_body_is_refused_before_it_is_read_whole(address, predicted):
    """The reason arrives after little more than a megabyte of fifty was sent."""
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
    status, answer = ask(address, body=b"a" * size)  # whoever sends all of it hears it, too
    assert (status, answer["error"]) == (413, "the body is larger than 1,000,000 bytes")
    assert predicted({"text": "好"})


def test_requests_of_many_clients_share_batches_and_each_gets_its_own_answers(address, running):
    batches = []

    def slowly(examples):
        batches.append(len(examples))
        time.sleep(0.01)
        return by_length(examples)

    def client(number):
        connection = http.client.HTTPConnection(*at, timeout=60)
        for _ in range(20):
            texts = ["好" * (number + 1)] * (number % 3 + 1)
            connection.request("POST", "/predict", json.dumps({"texts": texts}))
            response = connection.getresponse()
            answers = json.loads(response.read())["predictions"]
            assert len(answers) == len(texts)
            assert answers[0]["probabilities"]["好"] == pytest.approx(share(texts[0]))
        connection.close()

    with (
        running(make_app(Served("m", TASK, slowly), batch_size=8)) as at,
        ThreadPoolExecutor(16) as pool,
    ):
        list(pool.map(client, range(16)))
    texts = 20 * sum(number % 3 + 1 for number in range(16))
    assert sum(batches) == texts
    assert len(batches) < texts / 3
    assert max(batches) < 8 + 3  # full, but for the last request's texts


LETTERS = "今天气很好我们去公园学习北京上海"


@pytest.fixture(scope="module")
def model(finetuned):
    return load_served(finetuned("classification"), batch_size=32)


def test_the_service_describes_itself_with_what_it_really_answers(finetuned, running):
    """The description's example is a right question, and its answer the service's own."""
    for name in ("classification", "pair", "tagging"):
        served = load_served(finetuned(name), batch_size=4)
        with running(make_app(served)) as at:
            status, described = ask(at, "GET", "/openapi.json")
            assert status == 200
            assert set(described["paths"]) == {"/health", "/metrics", "/predict"}
            operation = described["paths"]["/predict"]["post"]
            asked = operation["requestBody"]["content"]["application/json"]
            assert ask(at, body=json.dumps(asked["example"])) == (
                200,
                operation["responses"]["200"]["content"]["application/json"]["example"],
            )
            assert {"text", "texts"} == set(asked["schema"]["properties"])
            statuses = set(operation["responses"])
            assert statuses == {"200", "400", "408", "413", "422", "500", "503"}


@pytest.mark.parametrize("name", ["README.md", "README_zh.md"])
def test_the_line_of_the_readme_is_answered(address, name):
    readme = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")
    (path, body) = re.search(r"curl localhost:8000(/\w+) --data '(.*)'", readme).groups()
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl sends it
    status, answer = ask(address, path=path, body=body.encode(), **form)
    assert status == 200
    assert [one["label"] for one in answer["predictions"]] == ["好"] * 2


def test_the_page_of_the_description_loads_nothing_from_elsewhere(address):
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("GET", "/docs")
    page = connection.getresponse().read().decode()
    parts = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert any(part.endswith(".js") for part in parts)
    assert any(part.endswith(".css") for part in parts)
    for part in parts:
        assert part.startswith("/"), part
        connection.request("GET", part)
        response = connection.getresponse()
        assert (response.status, len(response.read()) > 100) == (200, True)
    assert "/openapi.json" in page


def test_a_thousand_requests_of_sixteen_clients_are_answered(model, running):
    """Each as if it had come alone, whatever it shared a batch with."""
    chance = np.random.default_rng(0)
    texts = ["".join(chance.choice(list(LETTERS), n)) for n in chance.integers(1, 120, 1000)]

    def client(number):
        answers = []
        with closing(http.client.HTTPConnection(*at, timeout=60)) as connection:
            for text in texts[number::16]:
                connection.request("POST", "/predict", json.dumps({"text": text}))
                response = connection.getresponse()
                answers.append((response.status, json.loads(response.read())))
        return answers

    with running(make_app(model)) as at, ThreadPoolExecutor(16) as pool:
        found = list(pool.map(client, range(16)))
    for number, answers in enumerate(found):
        assert {status for status, _ in answers} == {200}
        for text, (_, answer) in list(zip(texts[number::16], answers, strict=True))[:5]:
            alone = model.answer([as_example([text], model.task)])[0]
            (got,) = answer["predictions"]
            assert got["label"] == alone.label
            assert list(got["probabilities"].values()) == pytest.approx(alone.scores, abs=1e-5)


def wait_until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_an_overloaded_service_says_503_and_recovers(running):
    go, inside = threading.Event(), threading.Event()

    def blocked(examples):
        inside.set()
        assert go.wait(30)
        return by_length(examples)

    app = make_app(Served("m", TASK, blocked), batch_size=1, limits=Limits(max_waiting=1))
    body = json.dumps({"text": "好"})
    with running(app) as at, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, at, body=body)]
        assert inside.wait(30)
        asked += [pool.submit(ask, at, body=body) for _ in range(7)]
        wait_until(lambda: sum(one.done() for one in asked) == 6)
        assert ask(at, "GET", "/health")[0] == 200  # while the model works
        go.set()
        statuses = sorted(one.result()[0] for one in asked)
        assert statuses == [200, 200, *[503] * 6]
        assert ask(at, body=body)[0] == 200


def test_our_own_mistake_is_told_as_such_and_the_service_goes_on(running):
    def fails(examples):
        if examples[0].texts == ("坏",):
            raise ZeroDivisionError("secret")
        return by_length(examples)

    with running(make_app(Served("m", TASK, fails))) as at:
        status, answer = ask(at, body=json.dumps({"text": "坏"}))
        assert status == 500
        assert answer == {"error": "the service failed; its log says why"}
        assert ask(at, body=json.dumps({"text": "好"}))[0] == 200


def test_requests_begun_are_finished_when_the_service_ends(running):
    inside = threading.Event()
    before = set(threading.enumerate())

    def slowly(examples):
        inside.set()
        time.sleep(0.3)
        return by_length(examples)

    with ThreadPoolExecutor(1) as pool:
        with running(make_app(Served("m", TASK, slowly))) as at:
            asked = pool.submit(ask, at, body=json.dumps({"text": "好"}))
            assert inside.wait(30)
        assert asked.result()[0] == 200
    assert set(threading.enumerate()) <= before


def test_a_client_that_sends_nothing_more_is_not_waited_for(running, monkeypatch):
    """Neither while the service runs nor when it ends."""
    monkeypatch.setattr(serving, "PATIENCE", 1)
    begun = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with running(make_app(Served("m", TASK, by_length))) as at:
        with socket.create_connection(at, timeout=30) as connection:
            connection.sendall(begun)
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.status == 408
            assert json.loads(response.read())["error"] == "no whole body came in 1 seconds"
        last = socket.create_connection(at, timeout=30)
        last.sendall(begun)
    last.close()


BEGUN = b"POST /predict HTTP/1.1\r\nHost: x\r\n"
"""Of a request's head; an empty line would end it."""

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
    """idle_clients(address, count, begun="") → a process that opens connections and leaves them."""
    with ExitStack() as started:

        def start(address, count, begun=""):
            process = started.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", IDLE, *map(str, address), str(count), begun],
                    stdin=subprocess.PIPE,  # closed at the end, which ends it
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert process.stdout.readline() == "connected\n"

        yield start


@pytest.fixture
def few_descriptors():
    """The test's process may open few files; the value is how many."""
    resource = pytest.importorskip("resource", reason="Unix alone")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(list(Path("/dev/fd").iterdir())) + 128
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    yield few
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("begun", ["", "POST /predict HTTP/1.1\r\nHost: x\r\n"])
def test_idle_connections_stop_nobody_and_leave_the_log_small(
    running, few_descriptors, idle_clients, caplog, begun
):
    """More than the process may open files: those that wait the longest give way."""
    with running(make_app(Served("m", TASK, by_length))) as at:
        idle_clients(at, few_descriptors - 10, begun)  # which has the same limit
        for _ in range(3):
            assert ask(at, body=json.dumps({"text": "好"}))[0] == 200
    assert len(caplog.text) < 1000


def test_the_connections_held_are_no_more_than_the_limit(running, monkeypatch):
    """Who is idle the longest gives way; where all are being answered, the new one hears 503."""
    go, inside = threading.Event(), threading.Semaphore(0)
    held, made = [], BoundedConnection.connection_made

    def blocked(examples):
        inside.release()
        assert go.wait(30)
        return by_length(examples)

    def keep(connection, transport):
        held.append(connection)
        made(connection, transport)

    monkeypatch.setattr(BoundedConnection, "connection_made", keep)
    app = make_app(Served("m", TASK, blocked), batch_size=1)
    body = json.dumps({"text": "好"}).encode()
    request = BEGUN + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with running(app, Limits(max_connections=3)) as at, ExitStack() as opened:

        def connect():
            return opened.enter_context(socket.create_connection(at, timeout=30))

        first, second, asking = connect(), connect(), connect()
        first.sendall(HEALTH)
        assert http_answer(first)[0] == 200  # now the second is idle for the longest
        asking.sendall(request)
        assert inside.acquire(timeout=30)
        newer = connect()
        assert second.recv(1) == b""
        newer.sendall(request)
        first.sendall(request)
        # Who asked sooner than the last request is read would take its connection's place.
        wait_until(lambda: sum(not one._gives_way() for one in held) == 3)
        assert ask(at, "GET", "/health")[0] == 503
        go.set()
        for one in (asking, newer, first):
            assert http_answer(one)[0] == 200
        assert ask(at, "GET", "/health")[0] == 200


def http_answer(connection):
    """What a server says on a connection: status and body."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


def closed_after_another_byte(connection):
    connection.settimeout(0.1)
    try:
        connection.send(b"x")
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_head_that_does_not_come_is_not_waited_for(running, monkeypatch):
    """Also after an answer, and however often another byte of it comes."""
    monkeypatch.setattr(serving, "PATIENCE", 1)
    with running(make_app(Served("m", TASK, by_length))) as at, ExitStack() as opened:
        silent, slow, again = (
            opened.enter_context(socket.create_connection(at, timeout=30)) for _ in range(3)
        )
        slow.sendall(BEGUN)
        again.sendall(HEALTH)
        assert http_answer(again)[0] == 200
        again.sendall(BEGUN)
        for connection in (slow, again):
            wait_until(lambda at=connection: closed_after_another_byte(at), 10)
        assert silent.recv(1) == b""


def test_an_answer_that_is_not_read_is_not_kept(running, monkeypatch):
    monkeypatch.setattr(serving, "PATIENCE", 1)
    long = Tagging(labels=("O",))

    def tags(examples):
        return [long.decoding.predict(np.zeros((len(e.units), 1), "float32")) for e in examples]

    body = json.dumps({"texts": ["好" * 50_000] * 4}).encode()
    with (
        running(make_app(Served("m", long, tags))) as at,
        socket.create_connection(at, timeout=30) as connection,
    ):
        connection.sendall(BEGUN + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        response = http.client.HTTPResponse(connection)
        response.begin()
        time.sleep(2)
        with pytest.raises(http.client.IncompleteRead):
            response.read()


def test_few_open_files_leave_room_for_few_connections(monkeypatch):
    resource = pytest.importorskip("resource", reason="Unix alone")

    def of(allowed):
        monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
        return connections.room(512)

    opened = len(list(Path("/dev/fd").iterdir()))
    assert of(opened + 256) == (128, 16)
    assert of(opened + 1024) == (512, 64)
    assert of(opened + 1_000_000) == of(resource.RLIM_INFINITY) == (512, 128)
    assert of(1) == (1, 1)


def test_a_log_grows_slowly(monkeypatch):
    now = 0.0
    monkeypatch.setattr(connections.time, "monotonic", lambda: now)
    sparing = connections.Sparing()
    records = [logging.makeLogRecord({"msg": "%d", "args": (n,)}) for n in range(100)]
    written = [record.getMessage() for record in records if sparing.filter(record)]
    assert written == [*map(str, range(19)), "further messages of this minute are left out"]
    now = 60.0
    assert sparing.filter(logging.makeLogRecord({"msg": "next"}))


def test_nonsense_fills_no_log(running, caplog):
    with running(make_app(Served("m", TASK, by_length))) as at:
        for _ in range(50):
            with socket.create_connection(at, timeout=30) as connection:
                connection.sendall(b"nonsense\r\n\r\n")
                assert http_answer(connection)[0] == 400
    assert 0 < len(caplog.records) <= 20
    assert "Invalid HTTP request" in caplog.text


def test_a_server_closes_no_log_of_the_program(running, tmp_path):
    handler = logging.FileHandler(tmp_path / "log")
    stream = handler.stream
    with running(make_app(Served("m", TASK, by_length))):
        assert not stream.closed
    handler.close()


def test_while_a_long_answer_is_written_others_are_heard(running, monkeypatch):
    go, inside = threading.Event(), threading.Event()
    written = type(TASK.decoding).as_json

    def held(*arguments):
        inside.set()
        assert go.wait(10)
        return written(*arguments)

    monkeypatch.setattr(type(TASK.decoding), "as_json", held)
    with running(make_app(Served("m", TASK, by_length))) as at, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, at, body=json.dumps({"text": "好" * 1001}))
        assert inside.wait(30)
        assert ask(at, "GET", "/health")[0] == 200
        assert not asked.done()
        go.set()
        assert asked.result()[0] == 200


@pytest.mark.parametrize(
    ("task", "right", "wrong"),
    [
        (PAIR, ["a", "b"], ["a", "b", "c"]),
        (PAIR, ["a", "b"], "a"),
        (RANKING, ["a", "b", "c"], ["a", "b"]),
        (RANKING, ["a", "b", "c"], ["a", "b", " "]),
    ],
)
def test_a_question_has_as_many_texts_as_the_task(task, right, wrong):
    question = serving.question_type(task, Limits())

    def texts(asked):
        return serving.asked_texts(question, json.dumps(asked).encode(), task)

    assert texts({"text": right}) == [right]
    assert texts({"texts": [right, right]}) == [right, right]
    for asked in ({"text": wrong}, {"texts": [right, wrong]}):
        with pytest.raises(Exception, match="422") as error:
            texts(asked)
        assert error.value.detail["example"] == {"text": ["…"] * len(right)}


def test_answers_of_each_task_as_json():
    def answer(task, texts, logits):
        example = as_example(texts, task)
        found = task.decoding.as_json(example, task.decoding.predict(np.array(logits, "float32")))
        return json.loads(json.dumps(found))  # plain values alone

    assert answer(PAIR, ["a", "b"], [0, 0]) == {
        "label": "0",
        "probabilities": {"0": 0.5, "1": 0.5},
    }
    several = Multilabel(labels=("甲", "乙", "丙"))
    assert answer(several, ["a"], [50, 0, 50])["labels"] == ["甲", "丙"]
    assert answer(several, ["a"], [-50, 0, -50]) == {
        "labels": [],
        "probabilities": {"甲": 0, "乙": 0.5, "丙": 0},
    }
    assert answer(Regression(mean=3, deviation=2), ["a"], [0.5]) == {"value": 4}
    assert answer(RANKING, ["a", "b", "c"], [0, 50]) == {
        "label": "C",
        "probabilities": {"B": 0.5, "C": 1},
    }
    tags = answer(TAGGING, ["在北京"], 50 * np.eye(3))
    assert tags["tags"] == [
        {"unit": unit, "label": label, "probability": 1}
        for unit, label in zip("在北京", TAGGING.labels, strict=True)
    ]
    assert tags["entities"] == [{"start": 1, "end": 3, "label": "LOC", "text": "北京"}]
    words = Tagging(labels=("n", "v"), spaced_units=True)
    assert answer(words, [" 我们  去 "], [[50, 0], [0, 50]]) == {
        "tags": [
            {"unit": "我们", "label": "n", "probability": 1},
            {"unit": "去", "label": "v", "probability": 1},
        ]
    }


def test_the_page_loads_nothing_from_elsewhere(address):
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("GET", "/")
    response = connection.getresponse()
    page = response.read().decode("utf-8")
    connection.close()
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "http://" not in page
    assert "https://" not in page
    assert "innerHTML" not in page


def test_openapi_shows_the_question(address):
    _, api = ask(address, "GET", "/openapi.json")
    body = api["paths"]["/predict"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["properties"].keys() == {"text", "texts"}


def test_answers_leave_at_once():
    """Held back until their head is confirmed, they come 40 ms later."""
    with listening("127.0.0.1", 0) as at, socket.create_connection(at.getsockname()):
        accepted, _ = at.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_said_before_the_model_is_loaded(tmp_path):
    with listening("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InputError, match=rf"cannot listen at 127\.0\.0\.1, port {port}: .*in use"
        ):
            serve(ServeConfig(model=str(tmp_path), port=port))


@pytest.mark.parametrize(
    ("host", "port"), [("no.such.host.invalid", 0), ("127.0.0.1", 70_000), ("192.0.2.1", 0)]
)
def test_an_address_that_is_none_of_ours_is_said(host, port):
    with pytest.raises(InputError, match=r"[^.]\. Give another --host or --port"):
        listening(host, port)


def test_a_folder_without_a_model_is_said(tmp_path):
    with pytest.raises(InputError, match="holds no checkpoint"):
        serve(ServeConfig(model=str(tmp_path), port=0))


def test_missing_packages_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"needs fastapi, .*, uvicorn: `pip install 'roformer-tf\["
    ):
        serve(ServeConfig(model=str(tmp_path)))


@pytest.mark.slow  # TensorFlow starts anew
def test_the_command_serves_until_it_is_told_to_end(typed, finetuned):
    process = typed("roformer-tf", "serve", finetuned("classification"), "--port", 0)
    try:
        said = process.stdout.readline()
        at = urlsplit(next(word for word in said.split() if word.startswith("http://")))
        assert at.hostname == "127.0.0.1"
        assert ask((at.hostname, at.port), body=json.dumps({"text": "好"}))[0] == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM
    assert errors == ""


def test_limits_are_positive():
    with pytest.raises(InputError, match="max_texts is 0"):
        Limits(max_texts=0)


def test_loopback():
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("::")
    assert serving.url("::1", 8000) == "http://[::1]:8000"


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize("kind", ["labels", "writer", "vectors"])
def test_what_is_set_decides_on_what_is_served(kind, finetuned, released, running):
    """Beside that, which models are served so: tests/wiring."""
    settings = {
        "labels": {"model": finetuned("classification"), "top_k": 1},
        "writer": {"model": released("char"), "attention_type": "causal"},
        "vectors": {"model": released("char"), "pooling": "cls"},
    }[kind]
    config = ServeConfig(
        **settings | {"model": str(settings["model"])},
        limits=Limits(max_texts=2),
        writing_limits=WritingLimits(max_samples=3),
    )
    _, app = open_service(config)
    path = {"labels": "/predict", "writer": "/generate", "vectors": "/embed"}[kind]
    with running(app) as at:
        _, health = ask(at, "GET", "/health")
        texts = [ask(at, path=path, body=json.dumps({"texts": ["今天"] * n})) for n in (2, 3)]
        if kind == "writer":
            drawn = {"text": "今天", "max_tokens": 1}
            statuses = [
                ask(at, path=path, body=json.dumps(drawn | {"samples": n}))[0] for n in (3, 4)
            ]
            assert statuses == [200, 422]
            assert health["attention_type"] == "causal"
    assert [status for status, _ in texts] == [200, 422]
    assert health["limits"]["max_texts"] == 2
    if kind == "labels":
        assert [len(one["probabilities"]) for one in texts[0][1]["predictions"]] == [1, 1]
    if kind == "vectors":
        assert health["pooling"] == "cls"


def test_a_service_that_listens_says_where(monkeypatch, finetuned, capsys):
    """And what it has loaded is left out of garbage collection."""
    seen, kept = [], gc.get_freeze_count()
    server = SimpleNamespace(run=lambda sockets: seen.append(gc.get_freeze_count()))
    monkeypatch.setattr(serving, "make_server", lambda app, limits: server)
    serve(ServeConfig(model=str(finetuned("classification")), port=0))
    assert seen[0] > kept
    said = capsys.readouterr().out
    assert re.fullmatch(r"serving \S+ at http://127\.0\.0\.1:\d+ on the processor.*\n", said)


@pytest.mark.parametrize(
    "wrong", [{"hybrid": True}, {"rerank": "pairs"}, {"pooling": "cls", "top_k": 2}]
)
def test_flags_that_do_not_go_together_are_refused(wrong):
    with pytest.raises(InputError, match=r"about --index|--top-k lists labels"):
        serve(ServeConfig(model="name", port=0, **wrong))
