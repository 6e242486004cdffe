"""Tests of the API key, CORS, root path, TLS, probes, and their OpenAPI description."""

import base64
import http.client
import re
import ssl
import subprocess
import threading

import numpy as np
import pytest

from roformer_tf.errors import InputError
from roformer_tf.serving.command import _print_address, check_tls, listening
from roformer_tf.serving.serve_predictions import ServedTask
from roformer_tf.serving.settings import KEY_VARIABLE, ApiConfig, Limits, ServeConfig
from roformer_tf.tasks.classification import Pair
from tests.support.service_app import create_task_app

testclient = pytest.importorskip("fastapi.testclient", reason="needs the extra [serve] and httpx")
TASK = Pair(labels=("0", "1"), text_columns=("a", "b"))
BODY = {"query": "好", "documents": ["好"]}


def predict(examples):
    return [TASK.decoding.predict(np.zeros(2, "float32"))] * len(examples)


def client_of(run=predict, limits=None, **settings):
    served, limits = ServedTask("m", TASK, run), limits or Limits()
    return testclient.TestClient(create_task_app(served, limits=limits, api=ApiConfig(**settings)))


def basic(password):
    return "Basic " + base64.b64encode(f"anyone:{password}".encode()).decode()


@pytest.mark.parametrize("source", ["flag", "variable"])
def test_a_key_is_required(source, monkeypatch):
    if source == "variable":
        monkeypatch.setenv(KEY_VARIABLE, "密钥\r")  # of a file with Windows' line ends
    client = client_of(**({"api_key": "密钥"} if source == "flag" else {}))
    authorized = {"Authorization": "Bearer 密钥".encode()}
    for path in ("/v1/models", "/", "/docs", "/metrics", "/openapi.json"):
        assert client.get(path).status_code == 401, path
        assert client.get(path, headers=authorized).status_code == 200, path
        assert client.head(path, headers=authorized).status_code == 200, path
    for path in ("/health", "/healthz", "/readyz"):
        assert client.get(path).status_code == client.head(path).status_code == 200
    for header in ("", "Bearer", "Bearer x", "密钥", "Bearer 密钥x", "Basic 密钥", basic("x")):
        response = client.post("/v1/rerank", json=BODY, headers={"Authorization": header.encode()})
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
    assert isinstance(client.post("/predict", json={}).json()["error"], str)
    for header in ("Bearer 密钥", "bearer 密钥", basic("密钥")):
        response = client.post("/v1/rerank", json=BODY, headers={"Authorization": header.encode()})
        assert response.status_code == 200
    assert client.get("/").headers["WWW-Authenticate"].startswith("Basic")  # for browsers


def test_metrics_are_described_as_text():
    client = client_of()
    paths = client.get("/openapi.json").json()["paths"]
    kind = client.get("/metrics").headers["Content-Type"].partition(";")[0]
    assert list(paths["/metrics"]["get"]["responses"]["200"]["content"]) == [kind]


def test_texts_are_described_as_not_blank():
    schemas = client_of().get("/openapi.json").json()["components"]["schemas"]
    query = schemas["RerankRequest"]["properties"]["query"]
    for text, accepted in (("天气", True), ("a b", True), ("", False), (" \n\u3000", False)):
        assert bool(re.search(query["pattern"], text)) == accepted
        assert client_of().post("/v1/rerank", json=BODY | {"query": text}).is_success == accepted


def test_a_key_is_described():
    headers = {"Authorization": "Bearer key"}
    paths = client_of(api_key="key").get("/openapi.json", headers=headers).json()["paths"]
    for path, operations in paths.items():
        (operation,) = operations.values()
        is_open = path in ("/health", "/healthz", "/readyz")
        assert ("security" in operation) == (not is_open)
        assert "API key" in operation["responses"]["default"]["description"]
    assert "secret" not in repr(ApiConfig(api_key="secret"))


@pytest.mark.parametrize("origins", [("https://a.example",), ("*",)])
def test_other_origins_can_be_allowed(origins):
    client = client_of(cors_origins=origins, api_key="key")
    for origin in ("https://a.example", "https://b.example"):
        headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        headers |= {"Access-Control-Request-Headers": "authorization,content-type"}
        preflight = client.options("/predict", headers=headers)  # without a key
        actual_response = client.get("/health", headers={"Origin": origin})
        allowed = origins == ("*",) or origin in origins
        assert (preflight.status_code == 200) == allowed
        assert ("access-control-allow-origin" in actual_response.headers) == allowed
    assert (
        "access-control-allow-origin"
        not in client_of().get("/health", headers={"Origin": "https://a.example"}).headers
    )


def test_a_service_supports_a_root_path(running, send):
    api = ApiConfig(root_path="/roformer/", api_key="key")
    with running(create_task_app(ServedTask("m", TASK, predict), api=api), api=api) as at:
        assert send(at, "/health")[0] == 200
        status, response = send(at, "/v1/rerank", BODY)
        assert (status, response["error"]["code"]) == (401, "invalid_api_key")
    with running(create_task_app(ServedTask("m", TASK, predict)), api=api) as at:
        assert send(at, "/v1/rerank", BODY)[0] == 200
        assert send(at, "/openapi.json")[1]["servers"] == [{"url": "/roformer"}]
        connection = http.client.HTTPConnection(*at, timeout=30)
        connection.request("GET", "/docs")
        assert b"/roformer/openapi.json" in connection.getresponse().read()
        connection.close()


def test_a_service_with_a_full_queue_is_not_ready():
    release = threading.Event()

    def blocked(examples):
        assert release.wait(30)
        return predict(examples)

    client = client_of(blocked, Limits(max_waiting=1))
    threads = [
        threading.Thread(target=client.post, args=("/rerank",), kwargs={"json": BODY})
        for _ in range(2)
    ]
    with client:
        statuses = [client.get("/readyz").status_code]
        for thread in threads:
            thread.start()
        while statuses[-1] == 200:
            statuses.append(client.get("/readyz").status_code)
        assert statuses[-1] == 503
        assert client.get("/healthz").status_code == 200
        release.set()
        for thread in threads:
            thread.join()
        assert client.get("/readyz").status_code == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate of localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
    command += f" subjectAltName=IP:127.0.0.1 -out {paths[0]} -keyout {paths[1]}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return paths


def test_the_service_supports_tls(certificate, running):
    api = ApiConfig(tls_certificate=certificate[0], tls_key=certificate[1])
    check_tls(api)
    app = create_task_app(ServedTask("m", TASK, predict))
    context = ssl.create_default_context(cafile=certificate[0])
    with running(app, api=api) as at:
        connection = http.client.HTTPSConnection(*at, timeout=30, context=context)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()


def test_invalid_certificates_are_refused(certificate, tmp_path):
    with pytest.raises(InputError, match="belong together"):
        check_tls(ApiConfig(tls_key=certificate[1]))
    for pair in ((certificate[1], certificate[0]), (tmp_path / "x", certificate[1])):
        with pytest.raises(InputError, match=r"--tls-certificate .* cannot be used"):
            check_tls(ApiConfig(tls_certificate=pair[0], tls_key=pair[1]))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"api_key": ""}, "--api-key"),
        ({"root_path": "x"}, "--root-path is x"),
    ],
)
def test_invalid_settings_are_refused(settings, reason):
    with pytest.raises(InputError, match=reason):
        ApiConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [
        ({}, ["use (--api-key)", "eavesdrop on (--tls-certificate)"]),
        ({"api_key": "k"}, ["eavesdrop on"]),
        ({"api_key": "k", "tls_certificate": "c", "tls_key": "k"}, []),
    ],
)
def test_missing_protection_is_warned_about(settings, warnings, capsys):
    with listening("0.0.0.0", 0) as listener:
        config = ServeConfig(model=("m",), api=ApiConfig(**settings))
        _print_address(config, listener, "the CPU")
    output = capsys.readouterr()
    assert all(text in output.err for text in warnings)
    assert bool(output.err) == bool(warnings)
    assert ("https://" in output.out) == ("tls_key" in settings)
