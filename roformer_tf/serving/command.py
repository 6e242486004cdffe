"""The command `serve`: load models, listen, and answer HTTP requests until the process is stopped.

GET  /         a page to try the model
GET  /health   the model's name, its task, its labels, the limits; of several models a list
GET  /docs     the API (OpenAPI; /openapi.json for programs)
GET  /metrics  requests, latency and batches for Prometheus
GET  /healthz, /readyz   for Kubernetes and load balancers
POST /predict, /embed, /search, /generate, and the routes that clients of OpenAI, Cohere, Jina and
Text Embeddings Inference use: see the modules of this folder

An error is {"error": reason} with a status of 4xx or 5xx; 503 asks to try again later.

uvicorn is the server: it takes a bound socket, leaves the program's logging alone, and runs in this
process if one is enough. It has no time limit for headers: on a public network, a proxy needs one.
"""

import gc
import ipaddress
import os
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from roformer_tf.engines.choice import Choice
from roformer_tf.errors import InputError, check_packages
from roformer_tf.files import check_writable
from roformer_tf.inference.opening import share_weights
from roformer_tf.kernels.accelerators import device_in_words
from roformer_tf.machine import usable_cores
from roformer_tf.serving.settings import SHUTDOWN_SECONDS, ApiConfig, ServeConfig, WorkerPart
from roformer_tf.terminal import say

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

NEEDED = (
    "fastapi",
    "fastapi_offline",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "uvicorn",
)
# Connections that wait in the kernel to be accepted; asyncio accepts as many in one go.
BACKLOG = 128
# A worker that does not respond for so long is replaced. uvicorn's 5 seconds are too few for one
# that starts on a busy machine.
HEALTH_SECONDS = 15


def serve(config: ServeConfig) -> None:
    """Serve models until the process is stopped; requests in progress are finished."""
    check_packages("serve", "serve", *NEEDED)
    check_tls(config.api)
    if config.writable and config.index is not None:
        check_writable(config.index)
    # Listen before the model is loaded: a port in use is reported at once, and early clients wait.
    with listening(config.host, config.port) as listener:
        from roformer_tf.serving.service import open_service

        app = open_service(config)
        choices = app.state.choices
        by_keras = any(x.engine == "keras" for x in choices)
        if config.workers > 1 and by_keras:
            raise InputError(
                "--workers needs a model that ONNX Runtime or OpenVINO runs, but on this machine "
                "Keras runs it. Omit --workers."
            )
        _print_address(config, listener, device_in_words(by_keras))
        if config.workers == 1:
            # A full collection would scan some hundred thousand permanent objects: every few
            # seconds, all requests would wait 50 ms for it.
            gc.freeze()
            make_server(app, config).run(sockets=[listener])
        else:
            del app  # the workers load their own models
            _serve_with_workers(config, choices, listener)


def _print_address(config: ServeConfig, listener: socket.socket, device: str) -> None:
    api, (address, port) = config.api, listener.getsockname()[:2]
    flags = {"use (--api-key)": api.key, "eavesdrop on (--tls-certificate)": api.tls_certificate}
    risks = [risk for risk, value in flags.items() if value is None]
    if risks and not ipaddress.ip_address(address).is_loopback:
        print(
            f"warning: anyone who can reach {address} can {' and '.join(risks)} this service. "
            "Give these flags, or put it behind a proxy that does the same.",
            file=sys.stderr,
        )
    scheme = "http" if api.tls_certificate is None else "https"
    host = f"[{address}]" if ":" in address else address
    say(
        "serving {name} at {where} on {device} (Ctrl+C stops it)",
        name=", ".join(config.model_names),
        where=f"{scheme}://{host}:{port}",
        device=device,
    )


def listening(host: str, port: int) -> socket.socket:
    """Listen on an address. Raises InputError where that is not possible."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # Without it the kernel delays a response's body until its head is confirmed, for 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        return listener
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise InputError(
            f"cannot listen at {host}, port {port}: {reason}. Give another --host or --port."
        ) from None


def check_tls(api: ApiConfig) -> None:
    """Raise InputError for files that are no certificate and its key, or one without the other."""
    if (api.tls_certificate is None) != (api.tls_key is None):
        raise InputError("--tls-certificate and --tls-key belong together. Give both.")
    if api.tls_certificate is None:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password instead of a question in the terminal.
        context.load_cert_chain(api.tls_certificate, api.tls_key, password="")
    except (OSError, ValueError) as error:
        raise InputError(
            f"--tls-certificate {api.tls_certificate} and --tls-key {api.tls_key} cannot be used: "
            f"{error}. Give a PEM file of a certificate, and one of its key without a password."
        ) from None


def make_server(app: "FastAPI", config: ServeConfig) -> "uvicorn.Server":
    """The HTTP server of an application in this process."""
    import uvicorn

    return uvicorn.Server(_server_config(app, config))


def _server_config(
    app: "FastAPI | Callable[[], FastAPI]", config: ServeConfig, **more: Any
) -> "uvicorn.Config":
    import uvicorn

    return uvicorn.Config(
        app,
        ws="none",
        backlog=BACKLOG,
        log_config=None,  # uvicorn's own would close every log handler of the program
        log_level="warning",
        access_log=False,
        # a request counts its own connection
        limit_concurrency=config.limits.max_connections + 1,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        root_path=config.api.root_path.rstrip("/"),
        ssl_certfile=config.api.tls_certificate,
        ssl_keyfile=config.api.tls_key,
        **more,
    )


def _serve_with_workers(
    config: ServeConfig, choices: Sequence[Choice], listener: socket.socket
) -> None:
    """Serve by several processes, which uvicorn starts, watches and replaces."""
    from uvicorn.supervisors import Multiprocess

    with TemporaryDirectory() as folder:
        parts = []
        for number, (source, choice) in enumerate(zip(config.model, choices, strict=True)):
            # A folder for each model; next to these folders are the files of Prometheus.
            target = Path(folder, str(number))
            target.mkdir()
            shared = share_weights(source, choice, target)
            # Together the workers have no more threads than cores, but one each at least.
            parts.append(WorkerPart(max(1, usable_cores() // config.workers), shared))
        server = _server_config(
            partial(worker_app, config, parts),
            config,
            factory=True,
            workers=config.workers,
            timeout_worker_healthcheck=HEALTH_SECONDS,
        )
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read by the workers, see `monitoring`
        try:
            Multiprocess(server, [listener]).run()
        finally:
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]


def worker_app(config: ServeConfig, parts: Sequence[WorkerPart]) -> "FastAPI":
    """Called in a worker process: load the models again."""
    from roformer_tf.serving.service import open_service

    app = open_service(config, parts)
    gc.freeze()  # as in `serve`
    return app
