"""`roformer-tf serve` over loopback: 1,000 requests of one text each from 16 clients at once.

    python benchmarks/bench_serve.py [FOLDER …]

FOLDER is a fine-tuned model/ or an export; without one, a model of 4 layers of 256 with random
weights is served. Each is served by Keras, as it was before there were graphs, and by every engine
that is installed, with one process and with two. Texts are 10 to 200 characters by chance. Prints
the seconds from the command to its first answer, the time that half and 99 of 100 requests wait,
what a lone client waits, and the memory of the service's processes. The service is a process of its
own; clients and service share the processor. Services take turns, three rounds.
"""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

REQUESTS, CLIENTS, ALONE, ROUNDS = 1000, 16, 100, 3
CHARACTERS = [chr(0x4E00 + i) for i in range(3000)]


def make(folder: Path) -> list[Path]:
    """Write a model with random weights, and its exports; give the folders."""
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
    """Texts of characters by chance."""
    random = np.random.default_rng(0)
    return ["".join(random.choice(CHARACTERS, n)) for n in random.integers(10, 200, count)]


@contextmanager
def service(folder: Path, flags: Sequence[str]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Run the command: its process, host and port, while the block runs."""
    command = [sys.executable, "-m", "roformer_tf.cli", "serve", str(folder), "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = next(line for line in process.stdout if "http://" in line)
            at = urlsplit(next(word for word in said.split() if word.startswith("http://")))
            yield process.pid, (str(at.hostname), int(at.port or 0))
        finally:
            process.terminate()


def waits(at: tuple[str, int], texts: Sequence[str]) -> list[float]:
    """One client: the seconds that each text's answer takes."""
    found = []
    with closing(http.client.HTTPConnection(*at, timeout=600)) as connection:
        for text in texts:
            began = time.perf_counter()
            connection.request("POST", "/predict", json.dumps({"text": text}))
            response = connection.getresponse()
            answer = json.loads(response.read())
            assert response.status == 200, answer
            found.append(time.perf_counter() - began)
    return found


def measure(folder: Path, flags: Sequence[str]) -> None:
    """Serve a folder, ask, and print what it takes."""
    texts = make_texts(REQUESTS)
    started = time.perf_counter()
    with service(folder, flags) as (number, at), ThreadPoolExecutor(CLIENTS) as pool:
        waits(at, texts[:1])
        first = time.perf_counter() - started
        alone = np.array(waits(at, texts[:ALONE]))
        began = time.perf_counter()
        parts = list(pool.map(lambda i: waits(at, texts[i::CLIENTS]), range(CLIENTS)))
        seconds = time.perf_counter() - began
        used = memory(number)
    together = np.concatenate(parts)
    print(
        f"{' '.join(flags):<60} first answer {first:.2f} s   alone {summary(alone)}   "
        f"{CLIENTS} clients {summary(together)}   {REQUESTS / seconds:.0f} requests a second   "
        f"{used:.0f} MB",
        flush=True,
    )


def memory(number: int) -> float:
    """Of a process and its children, each page once: megabytes; Linux alone."""
    import psutil

    process = psutil.Process(number)
    family = [process, *process.children(recursive=True)]
    return sum(one.memory_full_info().pss for one in family) / 1e6


def services() -> Iterator[list[str]]:
    """The flags of each service that is measured."""
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
    """Half wait no longer than the first figure, 99 of 100 no longer than the second."""
    return "p50 {:.1f} ms, p99 {:.1f} ms".format(*1e3 * np.quantile(seconds, [0.5, 0.99]))


def main(arguments: Sequence[str]) -> None:
    """Measure what is given, or a made-up model."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(argument) for argument in arguments] or make(Path(name))
        print(f"{os.cpu_count()} cores; {REQUESTS:,} requests")
        for number in range(1, ROUNDS + 1):
            for folder in folders:
                print(f"{folder}, round {number} of {ROUNDS}")
                for flags in services():
                    measure(folder, flags)


if __name__ == "__main__":
    main(sys.argv[1:])
