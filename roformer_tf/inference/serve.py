"""A small HTTP service that answers with a fine-tuned model, or with one that writes.

GET  /         a page to try it by hand
GET  /health   what is served: the model's name, its task, its labels, the limits
POST /predict  {"text": X} or {"texts": [X, …]} → {"predictions": [answer, …]}
GET  /docs     the same described, to read and to try (OpenAPI; /openapi.json for programs)
GET  /metrics  requests, how long they took, sizes of batches, as Prometheus reads them

A model that writes has, for /predict, /generate: see `serve_generate`; one that gives vectors has
/embed and, with an index, /search: see `serve_vectors`.

X is a text; of a pair a list of two texts, of a ranking a list of three. Whatever is wrong with a
request is answered by {"error": what} with a status of 4xx, and a question that was not understood
by an example of a right one, too; 503 asks to try again later.
"""

import asyncio
import gc
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from roformer_tf.checkpoints import embedding_config
from roformer_tf.checkpoints.detection import TASK_FILE, attention_type, is_language_model
from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.engines.choice import Choice, Engine, Precision
from roformer_tf.errors import InputError
from roformer_tf.inference.batching import Answer, Batcher, at_once
from roformer_tf.inference.engines import (
    ONNX,
    Finetuned,
    int8_cost,
    open_finetuned,
    share_weights,
)
from roformer_tf.inference.export import MEGABYTE
from roformer_tf.inference.predict import KerasPrecision, predict
from roformer_tf.inference.predictor import is_finetuned
from roformer_tf.inference.questions import (
    SAMPLE,
    JsonObject,
    Limits,
    as_example,
    asked_texts,
    question_type,
    read_body,
    reply,
    sample_question,
)
from roformer_tf.inference.serve_generate import load_served_writer, make_writing_app
from roformer_tf.inference.serve_vectors import (
    load_served_vectors,
    make_vector_app,
)
from roformer_tf.inference.service import (
    PATIENCE,
    count_requests,
    described_answers,
    described_question,
    make_service,
    promised,
)
from roformer_tf.inference.workers import ServiceWorkers
from roformer_tf.inference.writing_questions import WritingLimits
from roformer_tf.kernels.devices import device_in_words
from roformer_tf.labelled.examples import Example
from roformer_tf.machine import usable_cores
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.tasks.base import Prediction, Task

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

SERVED_TOKENS = 2048
"""About so many are answered together: twice what keeps a processor busy."""
BRIEF = 1000
"""Characters whose answers are written sooner than another thread wakes up."""
NEEDED = ("fastapi", "fastapi_offline", "prometheus_client", "uvicorn")


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """Answer requests over HTTP with a fine-tuned model, write, give vectors, or search.

    A page shows it.
    """

    model: str
    """The model/ folder of a run of `finetune`, or an export to onnx or int8; or a model that
    writes: a released zip or name, a folder with a checkpoint, or the model/ of a causal run.
    With --index or --pooling any model serves, for its vectors. --model itself may be left out."""
    index: Path | None = None
    """Folder that `search` has made with this model: POST /search finds its documents."""
    hybrid: bool = False
    """Of --index: search by words (BM25), too."""
    rerank: str | None = None
    """Of --index: the model/ of a run on pairs that puts the first into an order of its own."""
    pooling: Pooling | None = None
    """Give vectors (POST /embed), and make them so; unset, what the model was trained for."""
    host: str = "127.0.0.1"
    """Address to listen at: 127.0.0.1 for this machine alone, 0.0.0.0 for all that reach it."""
    port: int = 8000
    """Port to listen at; 0 takes a free one."""
    batch_size: int = BATCH_SIZE
    """Most texts that are answered together; those of several requests are."""
    workers: int = 1
    """Processes that answer, of a fine-tuned model; they share its weights, and each has its part
    of the cores. More than one answers several short requests side by side."""
    precision: Precision | None = None
    """bfloat16 is faster where the hardware has it, and probabilities move by some thousandths;
    int8 is faster on any processor. Unset, bfloat16 for labels where --engine auto finds one that
    multiplies it on this processor, else float32. An export keeps the precision that it has."""
    engine: Engine = "auto"
    """What computes: Keras on its backend, or on a processor ONNX Runtime or OpenVINO; auto, the
    fastest that is installed and knows the model. Of a model that writes, Keras."""
    top_k: int | None = None
    """List so many labels in an answer, the likeliest; unset, all, or of more than 20 the likeliest
    5."""
    attention_type: Literal["causal", "unilm"] | None = None
    """Of a model that writes: what a token sees, where neither the config, nor the name, nor its
    parts say it."""
    limits: Limits = field(default_factory=Limits)
    writing_limits: WritingLimits = field(default_factory=WritingLimits)


def _nothing() -> None:
    """What there is to end where the process itself answers."""


class Served(NamedTuple):
    """What a service answers with."""

    name: str
    task: Task
    answer: Answer
    sample: JsonObject | None = None
    """The model's answer to `sample_question`."""
    workers: int = 1
    """How many batches are answered at a time."""
    close: Callable[[], None] = _nothing
    """Ends what answers, when the service ends."""


def serve(config: ServeConfig) -> None:
    """Answer requests until the process is told to end; those begun are finished."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise InputError(f"serve needs {', '.join(missing)}: `pip install 'roformer-tf[serve]'`.")
    with listening(config.host, config.port) as at:
        name, app = open_service(config)
        server = make_server(app, config.limits)
        address, port = at.getsockname()[:2]
        if not is_loopback(address):
            print(
                f"warning: whoever reaches {address} can use this service, and reads along: it "
                "knows no passwords and no encryption. Put it behind a proxy that does.",
                file=sys.stderr,
            )
        where = url(address, port)
        print(f"serving {name} at {where} on {device_in_words()} (Ctrl+C ends it)", flush=True)
        # a full collection would look through all that stays anyway, some hundred thousand objects,
        # and each second or two all who ask would wait 50 ms for it
        gc.freeze()
        server.run(sockets=[at])


def open_service(config: ServeConfig) -> tuple[str, "FastAPI"]:
    """Load the model: its name, and the service of what it can do.

    Raises InputError for one that neither answers nor writes nor was trained to give vectors.
    """
    size = config.batch_size
    if config.index is None and (config.hybrid or config.rerank):
        raise InputError("--hybrid and --rerank are about --index: give that, too.")
    if config.index is not None or config.pooling is not None or _only_gives_vectors(config.model):
        if config.top_k is not None:
            raise InputError(
                "--top-k lists labels; of a search each request may have a top of its own."
            )
        vectors = load_served_vectors(
            config.model,
            config.index,
            pooling=config.pooling,
            hybrid=config.hybrid,
            rerank=config.rerank,
            precision=config.precision or "float32",
            engine=config.engine,
            batch_size=size,
        )
        return vectors.name, make_vector_app(vectors, size, config.limits)
    if is_finetuned(config.model):
        served = load_served(
            Path(config.model), size, config.precision, config.top_k, config.engine, config.workers
        )
        return served.name, make_app(served, size, config.limits)
    if config.top_k is not None:
        raise InputError(
            f"--top-k lists labels, but {config.model} is no fine-tuned model: it has no "
            f"{TASK_FILE}. Of a model that writes, each request may have a top_k of its own."
        )
    if config.engine not in ("auto", "keras") or config.precision == "int8":
        raise InputError(
            f"{config.model} is no fine-tuned model, but one that writes, which Keras does, in "
            "float32 or bfloat16. Leave --engine out."
        )
    precision: KerasPrecision = "bfloat16" if config.precision == "bfloat16" else "float32"
    writer = load_served_writer(config.model, config.attention_type, precision)
    return writer.name, make_writing_app(writer, size, config.limits, config.writing_limits)


def _only_gives_vectors(source: str) -> bool:
    """Whether a model was trained for vectors, and does not write besides, as a sim model does."""
    if is_finetuned(source):
        return False
    with OpenedSource(source) as opened:
        if opened.read(embedding_config.FILE) is None:
            return False
        checkpoint = opened.checkpoint()
        reads_both_ways = attention_type(checkpoint, opened) == "bidirectional"
        return reads_both_ways or not is_language_model(checkpoint)


def load_served(
    folder: Path,
    batch_size: int = BATCH_SIZE,
    precision: Precision | None = None,
    top_k: int | None = None,
    engine: Engine = "auto",
    workers: int = 1,
) -> Served:
    """Load what `finetune` or `export` wrote, and have it answer before anyone asks.

    Two answers, which differ in rows and length: TensorFlow's plan for the second serves for all.
    """
    opened = open_finetuned(folder, engine, precision, lossy=True)
    for said in (opened.choice.said, int8_cost(folder) if precision == "int8" else ""):
        if said:
            print(said, file=sys.stderr)
    task = opened.task.decoding.with_top_k(top_k)
    answer, close = answering(opened, task, batch_size), _nothing
    if workers > 1:
        answer, close = _by_workers(folder, opened, task, batch_size, workers)

    def answered(text: str, count: int) -> JsonObject:
        example = as_example([text] * len(task.text_columns), task)
        return task.decoding.as_json(example, answer([example] * count)[0])

    answered("好" * 100, 2)
    path = folder.resolve()
    name = path.parent.name if path.name == "model" else path.name
    return Served(name, task, answer, answered(SAMPLE, 1), workers, close)


def answering(opened: Finetuned, task: Task, batch_size: int) -> Answer:
    """What answers examples by an open model."""

    def answer(examples: list[Example]) -> list[Prediction]:
        return predict(opened.model, opened.tokenizer, task, examples, batch_size)

    return answer


def _by_workers(
    folder: Path, opened: Finetuned, task: Task, batch_size: int, count: int
) -> tuple[Answer, Callable[[], None]]:
    """What answers by processes of its own, and what ends them."""
    if opened.choice.engine == "keras":
        raise InputError(
            "--workers are processes that answer by a graph, but Keras answers for this model on "
            "this machine. Leave --workers out."
        )
    room = TemporaryDirectory()
    shared = share_weights(folder, opened.choice, Path(room.name))
    threads = max(1, usable_cores() // count)
    open_model = partial(_worker_answer, folder, opened.choice, task, batch_size, threads, shared)
    workers = ServiceWorkers(open_model, count)

    def close() -> None:
        workers.close()
        room.cleanup()

    return workers.answer, close


def _worker_answer(
    folder: Path, choice: Choice, task: Task, batch_size: int, threads: int, shared: Path | None
) -> Answer:
    """Open the model in a worker's process."""
    precision = None if (folder / ONNX).is_file() else choice.precision
    opened = open_finetuned(folder, choice.engine, precision, threads=threads, shared=shared)
    return answering(opened, task, batch_size)


def listening(host: str, port: int) -> socket.socket:
    """A socket at an address; before the model is loaded, for whoever asks then waits for it.

    Raises InputError where the address is taken, or none of this machine's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        at = socket.create_server((host, port), family=family)
        # or else the kernel keeps an answer's body back until its head is confirmed, for 40 ms
        at.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        return at
    except (OSError, OverflowError) as error:
        reason = str(getattr(error, "strerror", None) or error).rstrip(".")
        raise InputError(
            f"cannot listen at {host}, port {port}: {reason}. Give another --host or --port."
        ) from None


def make_server(app: "FastAPI", limits: Limits | None = None) -> "uvicorn.Server":
    """What runs the service; told to end, it waits a little for requests that were begun."""
    import uvicorn

    from roformer_tf.inference.connections import LOGGERS, BoundedConnection, Server, Sparing, room

    connections, accepted = room((limits or Limits()).max_connections)
    protocol: Any = partial(BoundedConnection, most=connections, patience=PATIENCE)
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        backlog=accepted,
        log_config=None,  # uvicorn's own would close every log handler that the process has
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=PATIENCE,
    )
    for name in LOGGERS:
        logging.getLogger(name).addFilter(Sparing())
    return Server(config)


def url(address: str, port: int) -> str:
    """Where a browser finds the service."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def is_loopback(address: str) -> bool:
    """Tell whether an address is reached from this machine alone."""
    return ipaddress.ip_address(address).is_loopback


def make_app(
    served: Served, batch_size: int = BATCH_SIZE, limits: Limits | None = None
) -> "FastAPI":
    """The service of a fine-tuned model as an ASGI application, for any server of such."""
    from starlette.requests import Request
    from starlette.responses import Response

    from roformer_tf.inference.monitoring import ServiceMetrics

    limits = limits or Limits()
    task = served.task
    question = question_type(task, limits)
    metrics = ServiceMetrics(served.name, task.name)
    answers = at_once(metrics.count_batches(served.answer))
    # by tokens, of which a character is about one: a batch of long texts makes all of them wait
    batcher = Batcher(
        answers,
        SERVED_TOKENS,
        limits.max_waiting,
        width=lambda example: max(_width(example), SERVED_TOKENS // batch_size),
        threads=served.workers,
    )
    names = ("title", "headline", "labels", "text_columns", "spaced_units")
    of_task = {"task": task.name} | {name: getattr(task, name) for name in names}
    health = of_task | {"limits": asdict(limits)}
    app = make_service(
        served.name, task.title, "predict.js", health, metrics, batcher, at_end=served.close
    )

    @app.post(
        "/predict",
        summary="Answer one text, or several",
        responses=described_answers({"application/json": described_predictions(served)}),
        openapi_extra=described_question(question.model_json_schema(), sample_question(task)),
    )
    async def answer(request: Request) -> Response:
        body = await read_body(request, limits.max_megabytes * MEGABYTE, PATIENCE)
        examples = [as_example(texts, task) for texts in asked_texts(question, body, task)]
        predictions = await asyncio.wrap_future(promised(batcher, examples))
        # in a thread where texts are long: their tags take seconds, in which others are to be heard
        if sum(map(_width, examples)) > BRIEF:
            written = await asyncio.to_thread(reply, examples, predictions, task)
        else:
            written = reply(examples, predictions, task)
        return Response(written, media_type="application/json")

    return count_requests(app, metrics)


def _width(example: Example) -> int:
    """Characters of an example."""
    return sum(map(len, example.texts))


def described_predictions(served: Served) -> dict[str, Any]:
    """The right answers of /predict for OpenAPI, with a real one of the model."""
    answer: dict[str, Any] = {"type": "object"}
    predictions = {"type": "array", "items": answer, "description": "In the order of the texts."}
    whole = {
        "type": "object",
        "required": ["predictions"],
        "properties": {"predictions": predictions},
    }
    right: dict[str, Any] = {"schema": whole}
    if served.sample is not None:
        answer["required"] = list(served.sample)
        right["example"] = {"predictions": [served.sample]}
    return right
