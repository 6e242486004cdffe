"""Tests of several server processes, started by the command."""

import json
import os
import re
import signal
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen
from urllib.parse import urlsplit

import pytest

from roformer_tf.errors import InputError
from roformer_tf.serving.command import serve
from roformer_tf.serving.settings import ServeConfig

needs_onnx = pytest.mark.skipif(
    not find_spec("onnxruntime") or sys.platform != "linux", reason="needs [onnx], and /proc"
)


def workers_of(pid):
    """Return process ids of the workers that have started to load the model."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child) for child in children if "onnxruntime" in maps_of(child)}


def maps_of(pid):
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:  # the process has ended
        return ""


@pytest.fixture(scope="module")
def service(finetuned):
    """The process of `serve --workers 2` with two models, and its address."""
    flags = ["--names", "a", "b", "--port", "0", "--workers", "2", "--engine", "onnx"]
    models = [str(finetuned(task)) for task in ("classification", "multilabel")]
    command = [sys.executable, "-m", "roformer_tf", "serve", *models]
    with Popen([*command, *flags], stdout=PIPE, stderr=PIPE, text=True) as process:
        line = process.stdout.readline()
        yield process, next(word for word in line.split() if word.startswith("http://"))
        process.kill()


def predict(url, text="好", model="a"):
    body = json.dumps({"text": text, "model": model}).encode()
    with urllib.request.urlopen(f"{url}/predict", body, timeout=60) as response:
        (prediction,) = json.load(response)["predictions"]
        assert ("labels" in prediction) == (model == "b")
        return response.status


def metric(url, name):
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        return float(re.search(rf"^{name} (\S+)$", response.read().decode(), re.MULTILINE)[1])


@needs_onnx
def test_a_killed_worker_is_replaced_while_the_service_continues(service, wait_until):
    process, url = service
    assert predict(url) == 200
    wait_until(lambda: len(workers_of(process.pid)) == 2)
    killed = min(workers_of(process.pid))
    os.kill(killed, signal.SIGKILL)
    for number in range(20):  # the other worker handles all requests
        assert predict(url, model="ab"[number % 2]) == 200
    wait_until(lambda: len(workers_of(process.pid) - {killed}) == 2)
    # Metrics are summed over all processes, including the killed one.
    assert metric(url, "roformer_batch_texts_sum") == 21


@needs_onnx
def test_workers_finish_their_requests_when_the_service_stops(service, wait_until):
    process, url = service
    assert urlsplit(url).hostname == "127.0.0.1"
    with ThreadPoolExecutor(8) as pool:
        requests = [pool.submit(predict, url, "好" * 50_000) for _ in range(8)]
        wait_until(
            lambda: metric(url, "roformer_waiting_requests") or any(x.done() for x in requests)
        )
        process.send_signal(signal.SIGTERM)
        finished = [request.result() for request in requests if not request.exception()]
    assert finished
    assert set(finished) == {200}
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors == ""


def test_workers_cannot_use_keras(finetuned):
    with pytest.raises(InputError, match="--workers needs a model that ONNX Runtime"):
        serve(
            ServeConfig(
                model=(str(finetuned("classification")),), port=0, workers=2, engine="keras"
            )
        )
