"""`roformer-tf serve` over loopback: 1,000 requests of one text each from 16 clients at once.

    python -m benchmarks.bench_serve [FOLDER …] [--rounds N] [--rivals] [--only WORD …] [--endure]

FOLDER is a fine-tuned model/ or an export. The default is a model with random weights, 4 layers
and hidden size 256. Each model is served by Keras, and by every installed engine with one and with
two processes. --rivals adds a plain FastAPI service around transformers (`peers/service.py`), with
torch (compiled, bfloat16) and with optimum's ONNX in int8. --only selects services whose flags
contain all these words. Texts have 10 to 200 random characters. For each service it prints the
seconds from the command to the first response, the median and 99th percentile of the latency for
one client and for all clients, and the memory of the service's processes. Clients and service
share the CPU. The services are measured in turn.

--endure instead sends 10,000 requests from 64 clients to the engine chosen by `auto`, with two
worker processes, and kills one of them half-way. It prints the statuses and the memory over time.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from benchmarks.command_line import settings_of
from benchmarks.environments import make_environment, python_of

REQUESTS, CLIENTS, ALONE = 1000, 16, 100
ENDURED, MANY = 10_000, 64
RIVALS = {"torch": "transformers, compiled, bfloat16", "onnx": "optimum's ONNX, int8"}
CHARACTERS = [chr(0x4E00 + i) for i in range(3000)]


def make_model(folder: Path) -> list[Path]:
    """Write a model with random weights and return its folder in a list."""
    from roformer_tf.config import RoFormerConfig
    from roformer_tf.models.heads import RoFormerForSequenceClassification
    from roformer_tf.tasks.classification import Classification
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
    from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS

    tokens = [*SPECIAL_TOKENS, *CHARACTERS]
    config = RoFormerConfig(
        vocab_size=len(tokens),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    task = Classification(labels=("0", "1"))
    model = RoFormerForSequenceClassification(config, num_labels=2)
    model.tokenizer = RoFormerTokenizer({token: i for i, token in enumerate(tokens)}, "char")
    model.save_pretrained(folder / "model")
    task.save(folder / "model")
    return [folder / "model"]


def make_texts(count: int) -> list[str]:
    """Return texts of 10 to 200 random characters."""
    random = np.random.default_rng(0)
    return ["".join(random.choice(CHARACTERS, n)) for n in random.integers(10, 200, count)]


@dataclass(frozen=True)
class BenchConfig:
    """Measure services."""

    folders: tuple[Path, ...] = ()
    rounds: int = 3
    """Number of times each service is measured."""
    rivals: bool = False
    """Also measure a plain FastAPI service around transformers; its environment is created."""
    only: tuple[str, ...] = ()
    """Measure only services whose flags contain all these words."""
    endure: bool = False
    """Send 10,000 requests from 64 clients and kill a worker half-way."""


def our_command(folder: Path, flags: Sequence[str]) -> list[str]:
    """Return the command that starts our service."""
    return [sys.executable, "-m", "roformer_tf", "serve", str(folder), "--port", "0", *flags]


def peer_command(folder: Path, kind: str) -> list[str]:
    """Return the command that starts the FastAPI service on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as address:
        port = address.getsockname()[1]
    script = Path(__file__).parent / "peers" / "service.py"
    return [str(python_of("service")), str(script), kind, str(folder), str(port)]


@contextmanager
def service(command: Sequence[str]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Run a service and yield its process id and the (host, port) that it prints."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if "http://" in line)
            address = urlsplit(next(word for word in line.split() if word.startswith("http://")))
            yield process.pid, (str(address.hostname), int(address.port or 0))
        finally:
            process.terminate()


def send_request(connection: http.client.HTTPConnection, text: str) -> int:
    """Send one request and return the status of its response."""
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/predict", json.dumps({"text": text}), headers)
    response = connection.getresponse()
    body = json.loads(response.read())
    assert response.status != 200 or len(body["predictions"]) == 1, body
    return response.status


def latencies(address: tuple[str, int], texts: Sequence[str]) -> list[float]:
    """Send the texts one after the other, and return the latency of each in seconds."""
    seconds_of_requests = []
    with closing(http.client.HTTPConnection(*address, timeout=600)) as connection:
        for text in texts:
            began = time.perf_counter()
            status = send_request(connection, text)
            assert status == 200, status
            seconds_of_requests.append(time.perf_counter() - began)
    return seconds_of_requests


def measure(name: str, command: Sequence[str]) -> None:
    """Start a service, send requests, and print its latency, throughput and memory."""
    texts = make_texts(REQUESTS)
    started = time.perf_counter()
    with service(command) as (number, address), ThreadPoolExecutor(CLIENTS) as pool:
        wait_until_ready(address, texts[0])
        first = time.perf_counter() - started
        alone = np.array(latencies(address, texts[:ALONE]))
        began = time.perf_counter()
        parts = list(pool.map(lambda i: latencies(address, texts[i::CLIENTS]), range(CLIENTS)))
        seconds = time.perf_counter() - began
        used = memory(number)
    together = np.concatenate(parts)
    print(
        f"{name:<60} first answer {first:.2f} s   alone {summary(alone)}   "
        f"{CLIENTS} clients {summary(together)}   {REQUESTS / seconds:.0f} requests a second   "
        f"{used:.0f} MB",
        flush=True,
    )


def memory(number: int) -> float:
    """Return the memory of a process and its children in megabytes (Linux only).

    PSS counts shared pages once.
    """
    import psutil

    process = psutil.Process(number)
    family = [process, *process.children(recursive=True)]
    return sum(item.memory_full_info().pss for item in family) / 1e6


def workers_of(number: int) -> list[int]:
    """Return the process ids of a service's workers."""
    import psutil

    children = psutil.Process(number).children()
    return [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]


def services() -> Iterator[list[str]]:
    """Yield the flags of each of our services to measure."""
    from roformer_tf.engines.choice import installed
    from roformer_tf.machine import multiplies_bfloat16

    yield ["--engine", "keras", "--precision", "float32"]
    precisions = {"onnx": ["float32", "int8"], "openvino": ["float32", "int8"]}
    if multiplies_bfloat16():
        yield ["--engine", "keras", "--precision", "bfloat16"]
        precisions["openvino"].append("bfloat16")
    for engine in ("onnx", "openvino"):
        for precision in precisions[engine] if installed(engine) else ():
            for workers in ("1", "2"):
                yield ["--engine", engine, "--precision", precision, "--workers", workers]


def summary(seconds: np.ndarray) -> str:
    """Return the median and the 99th percentile of the latencies, as text."""
    return "p50 {:.1f} ms, p99 {:.1f} ms".format(*1e3 * np.quantile(seconds, [0.5, 0.99]))


def wait_until_ready(address: tuple[str, int], text: str) -> None:
    """Send a request until the service responds.

    Uvicorn starts to listen shortly after it prints its address.
    """
    while True:
        try:
            latencies(address, [text])
            return
        except ConnectionRefusedError:
            time.sleep(0.01)


def endure(folder: Path) -> None:
    """Send 10,000 requests from 64 clients, kill a worker half-way, and print the statuses."""
    texts, statuses = make_texts(ENDURED), Counter[int | str]()
    with (
        service(our_command(folder, ["--workers", "2"])) as (number, address),
        ThreadPoolExecutor(MANY) as pool,
    ):
        latencies(address, texts[:200])

        def client(client_texts: Sequence[str]) -> None:
            with closing(http.client.HTTPConnection(*address, timeout=600)) as connection:
                for text in client_texts:
                    try:
                        statuses[send_request(connection, text)] += 1
                    except (OSError, http.client.HTTPException):  # its worker was killed
                        statuses["connection lost"] += 1
                        connection.close()

        began = time.perf_counter()
        clients = [pool.submit(client, texts[i::MANY]) for i in range(MANY)]
        killed, next_line = 0, 0
        print("answered   seconds   memory of the service and its workers, MB")
        while (done := sum(statuses.values())) < ENDURED and not all(x.done() for x in clients):
            if done >= next_line:
                print(f"{done:8,} {time.perf_counter() - began:9.1f}   {memory(number):.0f}")
                next_line += ENDURED // 20
            if not killed and done >= ENDURED // 2:
                workers = workers_of(number)
                killed = workers[0]
                os.kill(killed, signal.SIGKILL)
                print(f"{done:8,}             killed a worker, {len(workers)} there")
            time.sleep(0.05)
        for each in clients:
            each.result()
        seconds = time.perf_counter() - began
        time.sleep(5)
        remaining = workers_of(number)
        print(f"{ENDURED:8,} {seconds:9.1f}   {memory(number):.0f}")
    print(
        f"statuses {dict(statuses)}; {ENDURED / seconds:.0f} requests a second; at the end "
        f"{len(remaining)} workers, the killed one "
        f"{'still' if killed in remaining else 'not'} among them"
    )


def main(config: BenchConfig) -> None:
    """Measure the given models, or one with random weights."""
    if config.rivals:
        make_environment("service")
    with tempfile.TemporaryDirectory() as name:
        folders = config.folders or make_model(Path(name))
        if config.endure:
            endure(folders[0])
            return
        print(f"{os.cpu_count()} cores; {REQUESTS:,} requests")
        for number in range(1, config.rounds + 1):
            for folder in folders:
                print(f"{folder}, round {number} of {config.rounds}")
                for name, command in commands(folder, config):
                    if set(config.only) <= set(name.split()):
                        measure(name, command)


def commands(folder: Path, config: BenchConfig) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the command of each service to measure."""
    for flags in services():
        yield " ".join(flags), our_command(folder, flags)
    for kind, about in RIVALS.items() if config.rivals else ():
        yield f"FastAPI, {about}", peer_command(folder, kind)


if __name__ == "__main__":
    main(settings_of(BenchConfig, "folders"))
