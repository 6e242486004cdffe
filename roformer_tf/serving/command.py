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
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from roformer_tf.checkpoints.detection import TASK_FILE
from roformer_tf.engines.choice import Choice
from roformer_tf.errors import InputError
from roformer_tf.files import check_writable
from roformer_tf.inference.opening import open_model, share_weights
from roformer_tf.kernels.devices import device_in_words
from roformer_tf.machine import usable_cores
from roformer_tf.serving.settings import (
    SHUTDOWN_SECONDS,
    ApiConfig,
    Limits,
    ServeConfig,
    model_name,
)
from roformer_tf.terminal import say

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from roformer_tf.serving.application import ModelRoutes
    from roformer_tf.serving.monitoring import ServiceMetrics
    from roformer_tf.serving.serve_predictions import WorkerPart
    from roformer_tf.serving.vector_batches import ServedVectors

    # A model that is loaded: a function that creates its routes, and what computes.
    Loaded: TypeAlias = tuple[Callable[[ServiceMetrics], ModelRoutes], Choice]

NEEDED = (
    "fastapi",
    "fastapi_offline",
    "prometheus_client",
    "prometheus_fastapi_instrumentator",
    "uvicorn",
)
# Connections that wait in the kernel to be accepted; asyncio accepts as many in one go.
BACKLOG = 128
# Files that the process opens besides connections.
OTHER_FILES = 256
# A worker that does not respond for so long is replaced. uvicorn's 5 seconds are too few for one
# that starts on a busy machine.
HEALTH_SECONDS = 15
# The settings of models that --index does not belong to.
WITHOUT_INDEX: dict[str, Any] = {"index": None, "hybrid": False, "rerank": None, "writable": False}


class Service(NamedTuple):
    """An application with its models loaded."""

    app: "FastAPI"
    choices: list[Choice]
    """What computes each model."""


def serve(config: ServeConfig) -> None:
    """Serve models until the process is stopped; requests in progress are finished."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise InputError(f"serve needs {', '.join(missing)}: `pip install 'roformer-tf[serve]'`.")
    allow_connections(config.limits.max_connections)
    check_tls(config.api)
    if config.writable and config.index is not None:
        check_writable(config.index)
    # Listen before the model is loaded: a port in use is reported at once, and early clients wait.
    with listening(config.host, config.port) as listener:
        service = open_service(config)
        if config.workers > 1 and any(x.engine == "keras" for x in service.choices):
            raise InputError(
                "--workers needs a model that ONNX Runtime or OpenVINO runs, but on this machine "
                "Keras runs it. Omit --workers."
            )
        _print_address(", ".join(config.model_names), listener, config.api)
        if config.workers == 1:
            # A full collection would scan some hundred thousand permanent objects: every few
            # seconds, all requests would wait 50 ms for it.
            gc.freeze()
            make_server(service.app, config.limits, config.api).run(sockets=[listener])
        else:
            choices = service.choices
            del service  # the workers load their own
            _serve_with_workers(config, choices, listener)


def _print_address(name: str, listener: socket.socket, api: ApiConfig) -> None:
    address, port = listener.getsockname()[:2]
    if not is_loopback(address):
        missing = [
            *(["use (--api-key)"] if api.key is None else []),
            *(["eavesdrop on (--tls-certificate)"] if api.tls_certificate is None else []),
        ]
        if missing:
            print(
                f"warning: anyone who can reach {address} can {' and '.join(missing)} this "
                "service. Give these flags, or put it behind a proxy that does the same.",
                file=sys.stderr,
            )
    where = url(address, port, "http" if api.tls_certificate is None else "https")
    say(
        "serving {name} at {where} on {device} (Ctrl+C stops it)",
        name=name,
        where=where,
        device=device_in_words(),
    )


def open_service(config: ServeConfig, parts: "Sequence[WorkerPart | None]" = ()) -> Service:
    """Load the models, for what they were trained for, and create their application.

    parts: of one of several processes, for each model. Raises InputError for a model that cannot
    be served.
    """
    from roformer_tf.serving.application import create_app
    from roformer_tf.serving.monitoring import ServiceMetrics

    indexed, loaded = _indexed(config), []
    parts = parts or [None] * len(config.model)
    for source, name, part in zip(config.model, config.model_names, parts, strict=True):
        own = config if source == indexed else replace(config, **WITHOUT_INDEX)
        loaded.append(_load(source, name, own, part))
    # After loading: until a process is ready, those that serve need not read its metrics.
    metrics = ServiceMetrics()
    models = [routes(metrics) for routes, _ in loaded]
    app = create_app(models, metrics, config.limits, config.api)
    return Service(app, [choice for _, choice in loaded])


def _indexed(config: ServeConfig) -> str:
    """The model that --index belongs to: the only one, or of several the one that created it."""
    if config.index is None or len(config.model) == 1:
        return config.model[0]
    from roformer_tf.inference.embed import VectorSettings
    from roformer_tf.search.index import SearchIndex

    with SearchIndex(config.index) as index:
        manifest = index.manifest
    vectors = manifest.settings(VectorSettings(pooling=config.pooling))
    for source in config.model:
        with open_model(source) as opened:
            has_labels = opened.is_finetuned
        with suppress(InputError):  # such as a model without the pooler of the index
            if not has_labels and vectors.open(source).fingerprint == manifest.fingerprint:
                return source
    raise InputError(
        f"none of the models created {config.index}, but {manifest.model} did. Give it, too, or "
        "another --index."
    )


def _load(source: str, name: str, config: ServeConfig, part: "WorkerPart | None") -> "Loaded":
    """Load a model: a function that creates its routes, and what computes."""
    if config.index is not None or config.pooling is not None:
        return _load_vectors(source, name, config)
    with open_model(source) as opened:
        finetuned = opened.is_finetuned
        if not finetuned and opened.has_embedding_file and not opened.generates:
            return _load_vectors(source, name, config)
    if finetuned:
        from roformer_tf.serving.serve_predictions import load_served_task, task_routes

        size = config.batch_size
        task = load_served_task(
            Path(source), size, config.precision, config.top_k, config.engine, part
        )
        assert task.choice is not None
        own = task._replace(name=name)
        return partial(task_routes, own, batch_size=size, limits=config.limits), task.choice
    return _load_generator(source, name, config)


def _load_vectors(source: str, name: str, config: ServeConfig) -> "Loaded":
    from roformer_tf.serving.serve_vectors import vector_routes

    if config.top_k is not None and len(config.model) == 1:  # of several, another may have labels
        raise InputError("--top-k is about labels; a search request has its own `top`.")
    vectors = load_served_vectors(source, config)._replace(name=name)
    routes = partial(
        vector_routes,
        vectors,
        batch_size=config.batch_size,
        limits=config.limits,
        api=config.api,
    )
    return routes, vectors.embedder.choice


def load_served_vectors(source: str, config: ServeConfig) -> "ServedVectors":
    """Open a model for its vectors, and an index, and use both once.

    Raises InputError where either cannot be opened, and for an index of another model.
    """
    from roformer_tf.inference.embed import VectorSettings
    from roformer_tf.search.index import SearchIndex
    from roformer_tf.search.retrieval import Retriever, open_reranker
    from roformer_tf.serving.serve_vectors import WARM_UP
    from roformer_tf.serving.vector_batches import ServedVectors

    name, precision = model_name(source), config.precision or "float32"
    vectors = VectorSettings(pooling=config.pooling, precision=precision, engine=config.engine)
    if config.index is None:
        embedder = vectors.open(source)
        embedder.embed(WARM_UP)  # so that the first request is not slow
        return ServedVectors(name, embedder)
    index = SearchIndex(config.index)
    embedder = index.manifest.settings(vectors).open(source)
    index.check_model(embedder)
    reranker = None
    if config.rerank is not None:
        reranker = open_reranker(config.rerank, config.engine, precision)
    retriever = Retriever(
        index, embedder, config.hybrid, reranker=reranker, batch_size=config.batch_size
    )
    list(retriever.results(WARM_UP, 1))
    return ServedVectors(name, embedder, retriever, config.writable)


def _load_generator(source: str, name: str, config: ServeConfig) -> "Loaded":
    from roformer_tf.serving.serve_generation import generation_routes, load_served_generator

    if config.top_k is not None and len(config.model) == 1:  # of several, another may have labels
        raise InputError(
            f"--top-k is about labels, but {source} is not a fine-tuned model: it has no "
            f"{TASK_FILE}. A request for generated text has its own `top_k`."
        )
    if config.engine not in ("auto", "keras") or config.precision == "int8":
        raise InputError(
            f"{source} is a causal language model, which only Keras runs, in float32 or "
            "bfloat16. Omit --engine."
        )
    precision = config.precision or "float32"
    generator = load_served_generator(source, config.attention_type, precision)
    routes = partial(
        generation_routes,
        generator._replace(name=name),
        batch_size=config.batch_size,
        limits=config.limits,
        generation_limits=config.generation_limits,
        api=config.api,
    )
    return routes, Choice("keras", precision)


def allow_connections(count: int) -> None:
    """Raise the limit of open files, if the system lets us, so that `count` connections fit.

    Without a free descriptor asyncio cannot accept, and logs an error for each attempt. macOS
    allows 256 files by default, many Linux systems 1,024; both let a process raise it.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + BACKLOG + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


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
    if api.tls_certificate is None and api.tls_key is None:
        return
    if api.tls_certificate is None or api.tls_key is None:
        raise InputError("--tls-certificate and --tls-key belong together. Give both.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password instead of a question in the terminal.
        context.load_cert_chain(api.tls_certificate, api.tls_key, password="")
    except (OSError, ValueError) as error:
        raise InputError(
            f"--tls-certificate {api.tls_certificate} and --tls-key {api.tls_key} cannot be used: "
            f"{error}. Give a PEM file of a certificate, and one of its key without a password."
        ) from None


def make_server(
    app: "FastAPI", limits: Limits | None = None, api: ApiConfig | None = None
) -> "uvicorn.Server":
    """The HTTP server of an application in this process."""
    import uvicorn

    return uvicorn.Server(_server_config(app, limits or Limits(), api or ApiConfig()))


def _server_config(
    app: "FastAPI | Callable[[], FastAPI]", limits: Limits, api: ApiConfig, **more: Any
) -> "uvicorn.Config":
    import uvicorn

    return uvicorn.Config(
        app,
        ws="none",
        backlog=BACKLOG,
        log_config=None,  # uvicorn's own would close every log handler of the program
        log_level="warning",
        access_log=False,
        limit_concurrency=limits.max_connections + 1,  # a request counts its own connection
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        root_path=api.root_path.rstrip("/"),
        ssl_certfile=api.tls_certificate,
        ssl_keyfile=api.tls_key,
        **more,
    )


def _serve_with_workers(
    config: ServeConfig, choices: Sequence[Choice], listener: socket.socket
) -> None:
    """Serve by several processes, which uvicorn starts, watches and replaces."""
    from uvicorn.supervisors import Multiprocess

    from roformer_tf.serving.serve_predictions import WorkerPart

    with TemporaryDirectory() as folder:
        parts = []
        for number, (source, choice) in enumerate(zip(config.model, choices, strict=True)):
            target = Path(folder, str(number))
            target.mkdir()
            shared = share_weights(source, choice, target)
            parts.append(WorkerPart(max(1, usable_cores() // config.workers), shared))
        server = _server_config(
            partial(worker_app, config, parts),
            config.limits,
            config.api,
            factory=True,
            workers=config.workers,
            timeout_worker_healthcheck=HEALTH_SECONDS,
        )
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # read by the workers, see `monitoring`
        try:
            Multiprocess(server, [listener]).run()
        finally:
            del os.environ["PROMETHEUS_MULTIPROC_DIR"]


def worker_app(config: ServeConfig, parts: "Sequence[WorkerPart]") -> "FastAPI":
    """Called in a worker process: load the models again."""
    app = open_service(config, parts).app
    gc.freeze()  # as in `serve`
    return app


def url(address: str, port: int, scheme: str = "http") -> str:
    """URL of the service."""
    return f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


def is_loopback(address: str) -> bool:
    """Whether an address can be reached from this machine only."""
    return ipaddress.ip_address(address).is_loopback
