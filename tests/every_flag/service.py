"""Requests to a service that `serve` has started."""

import http.client
import json
import multiprocessing
import re
from concurrent.futures import ThreadPoolExecutor

TEXTS = ["今天天气很好", "我们去公园", "学习", "生活", "北京的公园"]


def ask_all(address):
    """Send requests to all endpoints. Return name → status and body as text."""
    host, port = address[:2]

    def ask(path, body):
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
            response = connection.getresponse()
            return f"{response.status} {response.read().decode()}"
        except ConnectionError:
            return "no answer"
        finally:
            connection.close()

    predict = "/predict"
    responses = {
        "host": host,
        "port": port,
        "predict": ask(predict, {"texts": TEXTS[:3]}),
        "many": ask(predict, {"texts": TEXTS}),
        "long": ask(predict, {"text": "天气" * 50}),
        "large": ask(predict, b'{"text": "ab"' + b" " * 1_200_000 + b"}"),
        "embed": ask("/embed", {"texts": TEXTS}),
        "vectors": ask("/embed", {"texts": ["天"] * 8000})[:3],
        "token ids": ask("/v1/embeddings", {"input": [[5, 6]]}),
        "cors": _get(host, port, "/health", Origin="http://a.example")[0],
        "servers": re.findall('"servers":[^]]*', _get(host, port, "/openapi.json")[1]),
        "models": _get(host, port, "/v1/models")[1],
        "documents": ask("/documents", {"documents": []}),
        "search": ask("/search", {"text": "天气", "top": 5}),
        "generate": ask("/generate", {"text": "天气", "seed": 1}),
        "prompts": ask("/generate", {"texts": TEXTS, "seed": 1, "max_tokens": 2}),
        "samples": ask("/generate", {"text": "天气", "seed": 1, "samples": 3, "max_tokens": 4}),
    }
    responses = {
        name: re.sub(r'"(?:seconds|time)": [\d.e-]+', "", x) if isinstance(x, str) else x
        for name, x in responses.items()
    }
    responses["processes"] = len(multiprocessing.active_children())
    with ThreadPoolExecutor(8) as pool:
        statuses = pool.map(lambda _: ask(predict, {"texts": TEXTS})[:3], range(24))
        responses["burst"] = sorted(set(statuses))
    responses["two connections"] = _on_two_connections(host, port)
    return responses


def _get(host, port, path, **headers):
    """The access headers and the body of a response, as texts."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        names = [name for name in response.headers if name.startswith("access")]
        return " ".join(names), response.read().decode()
    except ConnectionError:
        return "no answer", ""
    finally:
        connection.close()


def _on_two_connections(host, port):
    """The status of a request while another connection is open."""
    first, second = (http.client.HTTPConnection(host, port, timeout=60) for _ in range(2))
    try:
        for connection in (first, second):
            connection.request("GET", "/health")
            response = connection.getresponse()
            response.read()
        return str(response.status)
    finally:
        first.close()
        second.close()
