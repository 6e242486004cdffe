"""Tests of gzipped requests and responses."""

import gzip
import http.client
import json
from contextlib import closing

import numpy as np
import pytest

from roformer_tf.serving.serve_predictions import ServedTask
from roformer_tf.serving.settings import Limits
from roformer_tf.tasks.classification import Classification
from tests.support.service_app import create_task_app

testclient = pytest.importorskip("fastapi.testclient", reason="needs the extra [serve] and httpx")
TASK = Classification(labels=("坏", "好"))
BODY = json.dumps({"texts": ["好"] * 100}).encode()
LIMIT = 1_000_000


def predict(examples):
    return [TASK.decoding.predict(np.zeros(2, "float32"))] * len(examples)


@pytest.fixture(scope="module")
def client():
    app = create_task_app(ServedTask("m", TASK, predict), limits=Limits(max_megabytes=1))
    with testclient.TestClient(app) as client:
        yield client


def post(client, body, coding="gzip", **headers):
    return client.post("/predict", content=body, headers={"Content-Encoding": coding, **headers})


@pytest.mark.parametrize("coding", ["gzip", "GZip", "x-gzip"])
def test_a_gzipped_request_is_read(coding, client):
    want = client.post("/predict", content=BODY)
    assert want.status_code == 200
    assert post(client, gzip.compress(BODY), coding).json() == want.json()
    assert post(client, BODY, "identity").json() == want.json()


def test_a_request_in_chunks_is_read(client):
    body = gzip.compress(BODY)
    assert post(client, iter([body[:20], body[20:21], b"", body[21:]])).status_code == 200


@pytest.mark.parametrize(
    ("body", "coding", "status", "reason"),
    [
        (BODY, "gzip", 400, "Content-Encoding is gzip, but the body is not"),
        (gzip.compress(BODY)[:-3], "gzip", 400, "the gzipped body is incomplete"),
        (gzip.compress(BODY)[:5], "gzip", 400, "incomplete"),
        (b"", "gzip", 400, "incomplete"),
        (gzip.compress(b" " * 30 * LIMIT), "gzip", 413, "larger than 1,000,000 bytes"),
        (gzip.compress(b" " * (LIMIT + 1)), "gzip", 413, "larger than 1,000,000 bytes"),
        (BODY, "br", 415, "Content-Encoding is br: send gzip"),
        (gzip.compress(BODY), "gzip, gzip", 415, "Content-Encoding is gzip, gzip"),
    ],
    ids=str.split("plain cut begun empty bomb long br twice"),
)
def test_invalid_compressed_bodies_are_refused(body, coding, status, reason, client):
    response = post(client, body, coding)
    assert response.status_code == status
    assert reason in response.json()["error"]


def test_the_size_limit_applies_to_the_uncompressed_body(client):
    body = BODY + b" " * (LIMIT - len(BODY))
    assert post(client, gzip.compress(body)).status_code == 200
    assert post(client, gzip.compress(body + b" ")).status_code == 413


def test_a_response_is_compressed_if_the_client_accepts_it(running):
    with running(create_task_app(ServedTask("m", TASK, predict))) as at:
        bodies = []
        for headers in ({}, {"Accept-Encoding": "gzip"}):
            with closing(http.client.HTTPConnection(*at, timeout=60)) as connection:
                connection.request("POST", "/predict", BODY, headers)
                response = connection.getresponse()
                assert response.getheader("Content-Encoding") == headers.get("Accept-Encoding")
                bodies.append(response.read())
    assert gzip.decompress(bodies[1]) == bodies[0]
    assert len(bodies[1]) < len(bodies[0]) / 5
