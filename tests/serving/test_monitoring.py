"""Tests of the service's metrics, parsed by Prometheus' own parser."""

import http.client
import json
import threading

import numpy as np
import pytest

from roformer_tf.serving.serve_predictions import ServedTask
from roformer_tf.tasks.classification import Classification
from tests.support.service_app import create_task_app

monitoring = pytest.importorskip("roformer_tf.serving.monitoring", reason="needs the extra [serve]")
TASK = Classification(labels=("坏", "好"))


def predict(examples):
    if examples[0].texts == ("坏",):
        raise ZeroDivisionError
    return [TASK.decoding.predict(np.array([0.0, 1.0], "float32")) for _ in examples]


def get(address, path, method="GET", body=None):
    """Send a request; return its status, content type and body."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type"), response.read().decode()
    finally:
        connection.close()


def samples(address):
    """Return every sample by its name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    status, kind, page = get(address, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    return {
        (item.name, *sorted(item.labels.values())): item.value
        for family in text_string_to_metric_families(page)
        for item in family.samples
    }


def test_requests_latency_and_batches_are_counted(running):
    with running(create_task_app(ServedTask("酒店", TASK, predict))) as at:
        texts = json.dumps({"texts": ["很好"] * 3})
        assert get(at, "/predict", "POST", texts)[0] == 200
        assert get(at, "/predict", "POST", json.dumps({"text": "好"}))[0] == 200
        assert get(at, "/predict", "POST", "{")[0] == 400
        assert get(at, "/predict", "POST", json.dumps({"text": "坏"}))[0] == 500
        for path in ("/a", "/b", "/predict/x", "/health?a=1"):
            get(at, path)
        actual = samples(at)
        again = samples(at)
    requests = {key[1:]: n for key, n in actual.items() if key[0] == "roformer_http_requests_total"}
    assert requests == {
        ("/predict", "200", "POST"): 2,
        ("/predict", "400", "POST"): 1,
        ("/predict", "500", "POST"): 1,
        ("/health", "200", "GET"): 1,
        ("404", "GET", "none"): 3,  # one series for all other paths
    }
    assert again["roformer_http_requests_total", "/metrics", "200", "GET"] == 1
    assert actual["roformer_http_request_duration_seconds_count", "/predict", "POST"] == 4
    assert 0 < actual["roformer_http_request_duration_seconds_sum", "/predict", "POST"] < 60
    assert actual["roformer_batch_texts_count",] == 3
    assert actual["roformer_batch_texts_sum",] == 5
    assert actual["roformer_batch_texts_bucket", "1.0"] == 2
    assert actual["roformer_batch_texts_bucket", "4.0"] == 3
    assert actual["roformer_batch_duration_seconds_count",] == 3
    assert actual["roformer_waiting_requests",] == 0
    assert actual["roformer_model_info", "classification", "酒店"] == 1


def test_waiting_requests_are_counted(running):
    release, started = threading.Event(), threading.Event()

    def blocked(examples):
        started.set()
        assert release.wait(30)
        return predict(examples)

    body = json.dumps({"text": "好"})
    with running(create_task_app(ServedTask("m", TASK, blocked), batch_size=1)) as at:
        threads = [
            threading.Thread(target=get, args=(at, "/predict", "POST", body)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        assert started.wait(30)
        while samples(at)["roformer_waiting_requests",] != 2:
            pass  # pytest's timeout ends this loop
        release.set()
        for thread in threads:
            thread.join(30)
        assert samples(at)["roformer_waiting_requests",] == 0


def test_two_services_in_one_process_have_separate_metrics(running):
    first, second = (create_task_app(ServedTask(name, TASK, predict)) for name in "ab")
    with running(first) as at, running(second) as elsewhere:
        get(at, "/health")
        assert samples(at)["roformer_http_requests_total", "/health", "200", "GET"] == 1
        assert ("roformer_http_requests_total", "/health", "200", "GET") not in samples(elsewhere)
