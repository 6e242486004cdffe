"""A real server, and helpers for requests."""

import http.client
import json
import threading
import time
from contextlib import closing, contextmanager

import pytest

from roformer_tf.serving.command import listening, make_server
from roformer_tf.serving.settings import ServeConfig
from tests.inference.conftest import finetuned  # noqa: F401

pytest.importorskip("fastapi", reason="needs the extra [serve]")


@pytest.fixture(scope="session")
def running():
    """Return a function: running(app, …) → a context with a real server: (host, port)."""

    @contextmanager
    def run(app, **settings):
        with listening("127.0.0.1", 0) as listener:
            server = make_server(app, ServeConfig(model=("model",), **settings))
            thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
            thread.start()
            try:
                yield listener.getsockname()
            finally:
                server.should_exit = True
                thread.join(30)
            assert not thread.is_alive()

    return run


@pytest.fixture(scope="session")
def send():
    """Return a function: send(address, path, body=None) → status, JSON. A body means POST."""

    def request(address, path, body=None, method=None):
        with closing(http.client.HTTPConnection(*address, timeout=60)) as connection:
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
            connection.request(method or ("GET" if body is None else "POST"), path, body)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    return request


@pytest.fixture(scope="session")
def wait_until():
    """Return a function: wait_until(condition, seconds=30) returns when the condition holds."""

    def wait(condition, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.005)

    return wait
