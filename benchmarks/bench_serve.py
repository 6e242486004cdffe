"""`roformer-tf serve` over loopback: 1,000 requests of one text each from 16 clients at once.

    python benchmarks/bench_serve.py [FOLDER]

FOLDER is a fine-tuned model/ or an export; without one, a model of 4 layers of 256 with random
weights is served, as it is and as exported to ONNX and int8. Texts are 10 to 200 characters by
chance. Prints the time that half and 99 of 100 requests wait, and what a lone client waits. The
service is a process of its own; clients and service share the processor.
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

REQUESTS, CLIENTS, ALONE = 1000, 16, 100
CHARACTERS = [chr(0x4E00 + i) for i in range(3000)]


def make(folder: Path) -> list[Path]:
    """Write a model with random weights, and its exports; give the folders."""
    from roformer_tf.config import RoFormerConfig
    from roformer_tf.inference.export import export
    from roformer_tf.labelled.examples import Example
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
    examples = [Example((text,), "0", "") for text in make_texts(200)]
    for to in ("onnx", "int8"):
        export(folder / "model", folder / to, to, examples)
    return [folder / name for name in ("model", "onnx", "int8")]


def make_texts(count: int) -> list[str]:
    """Texts of characters by chance."""
    random = np.random.default_rng(0)
    return ["".join(random.choice(CHARACTERS, n)) for n in random.integers(10, 200, count)]


@contextmanager
def service(folder: Path) -> Iterator[tuple[str, int]]:
    """Run the command: host and port, while the block runs."""
    command = [sys.executable, "-m", "roformer_tf.cli", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = next(line for line in process.stdout if "http://" in line)
            at = urlsplit(next(word for word in said.split() if word.startswith("http://")))
            yield str(at.hostname), int(at.port or 0)
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


def measure(folder: Path) -> None:
    """Serve a folder, ask, and print what it takes."""
    texts = make_texts(REQUESTS)
    with service(folder) as at, ThreadPoolExecutor(CLIENTS) as pool:
        alone = np.array(waits(at, texts[:ALONE]))
        began = time.perf_counter()
        parts = list(pool.map(lambda i: waits(at, texts[i::CLIENTS]), range(CLIENTS)))
        seconds = time.perf_counter() - began
    together = np.concatenate(parts)
    print(
        f"{folder.name:<10} alone {summary(alone)}   {CLIENTS} clients {summary(together)}   "
        f"{REQUESTS / seconds:.0f} requests a second"
    )


def summary(seconds: np.ndarray) -> str:
    """Half wait no longer than the first figure, 99 of 100 no longer than the second."""
    return "p50 {:.1f} ms, p99 {:.1f} ms".format(*1e3 * np.quantile(seconds, [0.5, 0.99]))


def main(arguments: Sequence[str]) -> None:
    """Measure what is given, or a made-up model."""
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(argument) for argument in arguments] or make(Path(name))
        print(f"{os.cpu_count()} cores; {REQUESTS:,} requests")
        for folder in folders:
            measure(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
