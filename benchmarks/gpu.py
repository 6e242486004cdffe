"""A pretraining step on one accelerator, on Keras' JAX backend: tokens/s, MFU, time, memory.

    python -m benchmarks.gpu --make-rows rows.npz       rows of real text, to be carried to the GPU
    python -m benchmarks.gpu --rows rows.npz            base and large; 512 to 8,192 tokens
    python -m benchmarks.gpu --size base --lengths 512 --models bert "roformer isolated"
    python -m benchmarks.gpu --size base --lengths 512 --dropout 0 --attention auto plain
    python -m benchmarks.gpu --device cpu --size tiny   seconds, to see that it runs

Besides this package it needs keras, jax and numpy, and safetensors and tqdm, which the package
always loads: no TensorFlow. Other models need torch and transformers, --make-rows what `make demo`
needs. The step is that of `pretrain`: AdamW, `MaskedTokenLoss`, packed rows, `fit`, in bfloat16.
Every line of the table is a process of its own. MFU counts the step's useful operations alone, of
attention what the tokens of a document see of each other: what rematerialisation computes again,
what two documents would score, and what no matrix product does are excluded; see
`pretraining/cost.py`. Without --rows, rows are filled with documents by chance.

Figures of a CPU say nothing about a GPU; the table names the device.
"""

import argparse
import dataclasses
import datetime
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.pretraining.settings import step_flops

SIZES = {  # layers, hidden size, heads, vocabulary
    "tiny": (2, 32, 2, 500),
    "small": (6, 384, 6, 50_000),
    "base": (12, 768, 12, 50_000),
    "large": (24, 1024, 16, 50_000),
}

# Names of kernels that multiply matrices, attention's among them; check them by --kernels.
PRODUCTS = re.compile(r"gemm|nvjet|cutlass|xmma|matmul|dot|ynn|fmha|flash|sdpa|mha", re.IGNORECASE)

PEAKS = {  # FLOP/s by a part of a device's name; the first match counts
    "B200": 2250e12,
    "GH200": 989e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H800 PCIe": 756e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L20": 119.5e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
    "RTX 3090 Ti": 80e12,
    "RTX 3090": 71e12,
    "V100S": 130e12,
    "V100-PCIE": 112e12,
    "V100": 125e12,
    "T4": 65e12,
}
"""Peak of dense bfloat16 matrix products with float32 sums, from data sheets; of float16 for V100
and T4, which lack bfloat16."""

_ANOTHER = r"(?![A-Za-z0-9])(?! (?:Ti|D|SUPER|Laptop)\b)"
"""After a match there must be nothing that makes it another device: A10G, 4090 Laptop."""

# Names of cuDNN's kernels of attention.
CUDNN = re.compile("fmha|flash|sdpa")

MASKED = 0.15
TOKENS = 131_072  # of the first batch that is tried
SAVED_TOKENS = 262_144  # of each length, in a file of rows
LENGTHS = [512, 1536, 4096, 8192]
DOCUMENT = 300  # tokens of one by chance, the median of a lognormal distribution
STEPS, ROUNDS, TRACED = 10, 5, 3


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    size: str
    length: int
    batch: int
    """Rows of a step; 0 stands for as many as fit."""
    dropout: float = 0.1
    """Of hidden states."""
    attention_dropout: float | None = None
    """Of attention's weights. Default: as of hidden states."""
    attention: Literal["auto", "plain"] = "auto"
    """By the device's own kernel, or by matrix products and softmax."""
    rematerialize: bool = False
    dtype: str = "mixed_bfloat16"
    rows: str | None = None
    """File of real rows, as --make-rows writes it."""
    model: str = "ours"
    """Or what of transformers: "roformer" or "bert"."""

    @property
    def dropped(self) -> tuple[float, float]:
        """Both rates, of hidden states and of attention's weights."""
        return self.dropout, (
            self.dropout if self.attention_dropout is None else self.attention_dropout
        )


def predictions(length: int) -> int:
    """Masked positions of a row, as `pretrain` has them: [CLS] and [SEP] are never masked."""
    return max(1, int(MASKED * (length - 2)))


def architecture(case: Case) -> RoFormerConfig:
    """What is trained."""
    layers, hidden, heads, vocabulary = SIZES[case.size]
    return RoFormerConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=case.dropped[0],
        attention_probs_dropout_prob=case.dropped[1],
    )


def model_flops(case: Case) -> float:
    """Operations of a step, as `step_flops` counts them, of what the documents see alone."""
    _, sequence_ids = rows_of(case)
    predicted = predictions(case.length)
    keys = keys_seen(sequence_ids)
    return step_flops(architecture(case), case.length, case.batch, predicted, keys)


def keys_seen(sequence_ids: np.ndarray) -> float:
    """How many keys a query of rows (B, T) sees in the mean, one of padding none."""
    lengths = [np.bincount(row[row > 0]).astype("float64") for row in sequence_ids]
    return float(sum((x**2).sum() for x in lengths)) / sequence_ids.size


def rows_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and documents of a batch, (B, T) int32 each: real rows, or documents by chance."""
    if case.rows:
        with np.load(case.rows) as file:
            actual = [file[f"{name}_{case.length}"] for name in ("token_ids", "sequence_ids")]
        picked = np.arange(case.batch) % len(actual[0])
        vocabulary = SIZES[case.size][3]
        return actual[0][picked].astype(np.int32) % vocabulary, actual[1][picked].astype(np.int32)
    rng = np.random.default_rng(0)
    shape = (case.batch, case.length)
    tokens = rng.integers(1, SIZES[case.size][3], shape, np.int32)
    middle = min(DOCUMENT, case.length / 2)
    begins = np.zeros(shape, np.int32)
    for row in begins:
        lengths = np.maximum(3, rng.lognormal(np.log(middle), 0.8, case.length)).astype("int64")
        places = np.cumsum(lengths)
        row[places[places < case.length]] = 1
    return tokens, 1 + np.cumsum(begins, axis=1, dtype=np.int32)


def make_rows(target: Path) -> None:
    """Write rows of real text of each length: the demo's corpus, as `prepare` packs it."""
    from pretrain.demo.corpus import write_corpus
    from roformer_tf.cli import main as roformer_tf
    from roformer_tf.corpus.packing import DOCUMENT as CHANNEL
    from roformer_tf.corpus.packing import TOKEN
    from roformer_tf.corpus.shards import PreparedRows
    from roformer_tf.files import temporary_file

    arrays = {}
    with tempfile.TemporaryDirectory() as name:
        corpus = Path(name, "corpus.jsonl")
        write_corpus(corpus)
        for length in LENGTHS:
            result = str(Path(name, f"rows-{length}"))
            flags = {"corpus": corpus, "output": result, "vocab-size": 50_000, "length": length}
            words = [word for key, value in flags.items() for word in (f"--{key}", str(value))]
            assert roformer_tf(["prepare", *words]) == 0
            prepared = PreparedRows.open(result)
            count = min(len(prepared), -(-SAVED_TOKENS // length))
            some = np.stack([prepared[i] for i in range(count)])
            arrays[f"token_ids_{length}"] = some[:, TOKEN].astype(np.uint16)
            arrays[f"sequence_ids_{length}"] = some[:, CHANNEL].astype(np.uint16)
    with temporary_file(target) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    for key, array in arrays.items():
        if key.startswith("sequence"):
            print(f"{key}: {len(array)} rows, a token sees {keys_seen(array):,.0f} in the mean")


def compiled_model(case: Case) -> Any:
    """The model with pretraining's optimizer and loss."""
    import keras

    from roformer_tf.models.heads import RoFormerForMaskedLM
    from roformer_tf.pretraining.settings import StepConfig
    from roformer_tf.pretraining.train_step import MaskedTokenLoss, PretrainingModel
    from roformer_tf.training.devices import choose_jit
    from roformer_tf.training.optimizers import make_optimizer
    from roformer_tf.training.settings import OptimizerConfig

    keras.utils.set_random_seed(0)
    model = RoFormerForMaskedLM(architecture(case), dtype=case.dtype)
    model.encoder.rematerialize = case.rematerialize
    optimizer = make_optimizer(OptimizerConfig(), model.trainable_variables, 1000)
    trained = PretrainingModel(model, StepConfig())
    trained.compile(optimizer, MaskedTokenLoss(), jit_compile=choose_jit())
    return trained


def batches(case: Case) -> Iterator[Any]:
    """One batch for ever, as `data.batches` makes them."""
    inputs = masked_rows(case)
    labels = inputs["labels"]  # so that the model itself computes the losses, and gives no logits
    weights = np.ones(labels.shape, np.float32)
    while True:
        yield inputs, labels, weights


def masked_rows(case: Case) -> dict[str, np.ndarray]:
    """A batch's rows, with the positions that are predicted, none of them padding, and labels."""
    tokens, sequence_ids = rows_of(case)
    rng = np.random.default_rng(1)
    count = predictions(case.length)
    chances = np.where(sequence_ids > 0, rng.random(tokens.shape), -1.0)
    positions = np.sort(np.argsort(-chances, axis=1)[:, :count], axis=1).astype(np.int32)
    return {
        "labels": np.take_along_axis(tokens, positions, axis=1),
        "token_ids": tokens,
        "sequence_ids": sequence_ids,
        "masked_positions": positions,
    }


def step_seconds(model: Any, case: Case, steps: int, rounds: int) -> float:
    """Median over rounds of a step's time in `fit`; each round waits for its last step."""
    import keras

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.times.append(time.perf_counter())

    clock = Clock()
    fit(model, case, steps, rounds + 1, [clock])  # the first one compiles
    return float(np.median(np.diff(clock.times))) / steps


def fit(model: Any, case: Case, steps: int, rounds: int = 1, callbacks: Any = None) -> None:
    """Train on the one batch."""
    model.fit(batches(case), steps_per_epoch=steps, epochs=rounds, callbacks=callbacks, verbose=0)


def kernel_seconds(model: Any, case: Case, steps: int) -> dict[str, float]:
    """Seconds of each kernel in one step, longest first; JAX's profiler traces a few."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            fit(model, case, steps)
        trace = next(Path(folder).rglob("*.xplane.pb"))
        events = list(device_events(jax.profiler.ProfileData.from_file(str(trace))))
    seconds: dict[str, float] = {}
    for name, nanoseconds in events:
        seconds[name] = seconds.get(name, 0.0) + nanoseconds / 1e9 / steps
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def device_events(trace: Any) -> Iterator[tuple[str, float]]:
    """Kernels and their nanoseconds: of a GPU's streams, or of the CPU's XLA threads."""
    planes = [plane for plane in trace.planes if plane.name.startswith("/device:GPU")]
    on_gpu = bool(planes)
    for plane in planes or [plane for plane in trace.planes if plane.name == "/host:CPU"]:
        for line in plane.lines:
            if line.name.startswith("Stream" if on_gpu else "tf_XLA"):
                kernels = (event for event in line.events if "::" not in event.name or on_gpu)
                yield from ((event.name, event.duration_ns) for event in kernels)


def measure(case: Case, steps: int, rounds: int) -> dict[str, Any]:
    """Train some steps: the figures of the table."""
    import jax
    import keras

    if case.attention == "plain":
        keras.config.disable_flash_attention()
    model, device = compiled_model(case), jax.devices()[0]
    seconds = step_seconds(model, case, steps, rounds)
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use")  # None on a CPU
    kernels = kernel_seconds(model, case, min(TRACED, steps))
    busy = sum(kernels.values())
    products = sum(time for name, time in kernels.items() if PRODUCTS.search(name))
    return {
        "device": device.device_kind,
        "tokens/s": case.batch * case.length / seconds,
        "seconds": seconds,
        "flops/s": model_flops(case) / seconds,
        "outside": 1 - products / busy if busy else None,
        "idle": max(0.0, 1 - busy / seconds) if device.platform == "gpu" else None,
        "attention": attention_of(kernels),
        "versions": f"jax {jax.__version__}, keras {keras.__version__}",
        "memory": memory,
        "kernels": list(kernels.items())[:15],
    }


def attention_of(kernels: Any) -> str:
    """What attention ran by."""
    return "cuDNN" if any(map(CUDNN.search, kernels)) else "plain"


def isolated(case: Case, steps: int, rounds: int) -> dict[str, Any] | None:
    """Measure in a process of its own; None if the case does not fit into memory."""
    program = ["benchmarks.gpu", "--case"] if case.model == "ours" else ["benchmarks.peers.gpu"]
    arguments = [json.dumps(dataclasses.asdict(case)), str(steps), str(rounds)]
    done = subprocess.run(
        [sys.executable, "-m", *program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"},
    )
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    if "RESOURCE_EXHAUSTED" in done.stderr or "out of memory" in done.stderr.lower():
        return None
    raise RuntimeError(f"{case} failed:\n{done.stderr[-3000:]}")


def largest(case: Case, steps: int, rounds: int) -> tuple[Case, dict[str, Any] | None]:
    """Measure with the batch asked for, or with the largest power of two that fits."""
    tried = case
    if not case.batch:
        tried = dataclasses.replace(
            case, batch=max(1, 2 ** ((TOKENS // case.length).bit_length() - 1))
        )
    result = isolated(tried, steps, rounds)
    while result is None and not case.batch and tried.batch > 1:
        tried = dataclasses.replace(tried, batch=tried.batch // 2)
        result = isolated(tried, steps, rounds)
    return tried, result


def peak_flops(name: str | None) -> float | None:
    """Peak operations per second of the device with this name; None if it is unknown.

    A part of a GPU (MIG) has a lower peak than the GPU, so it is unknown, too.
    """
    if name is None or re.search(r"\bMIG\b", name):
        return None
    peaks = (peak for word, peak in PEAKS.items() if re.search(rf"\b{word}{_ANOTHER}", name))
    return next(peaks, None)


HEADER = (
    "| model | size | length | batch | dropout | attention | remat | tokens/s | step, ms | MFU "
    "| outside products | idle | memory, GB |\n" + "| --- " * 13 + "|"
)


def row(case: Case, result: dict[str, Any] | None, peak: float | None) -> str:
    """One line of the markdown table; what could not be measured is a dash."""
    dropped = "{:g}/{:g}".format(*case.dropped)
    cells = [case.model, case.size, f"{case.length:,}", str(case.batch), dropped]
    if result is None:
        asked = [case.attention, _switch(case.rematerialize), "does not fit"]
        return _line([*cells, *asked, *["–"] * 5])
    share = result["flops/s"] / peak if peak else None
    memory = result["memory"]
    return _line(
        [
            *cells,
            result["attention"],
            _switch(case.rematerialize),
            f"{result['tokens/s']:,.0f}",
            f"{1e3 * result['seconds']:.1f}",
            *map(_percent, (share, result["outside"], result["idle"])),
            f"{memory / 1e9:.1f}" if memory else "–",
        ]
    )


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def rates(text: str) -> tuple[float, float | None]:
    """0.1 → of hidden states and attention; 0.1/0 → of hidden states, of attention."""
    hidden, _, attention = text.partition("/")
    return float(hidden), float(attention) if attention else None


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["base", "large"])
    parser.add_argument("--lengths", nargs="+", type=int, help="default: 512 to 8,192; of tiny, 64")
    parser.add_argument("--batch", type=int, default=0, help="rows; default: as many as fit")
    parser.add_argument(
        "--dropout",
        nargs="+",
        type=rates,
        default=[(0.0, None), (0.1, None)],
        help="0.1, or 0.1/0 for that of hidden states and that of attention",
    )
    parser.add_argument("--attention", nargs="+", choices=["auto", "plain"], default=["auto"])
    parser.add_argument("--remat", nargs="+", choices=["on", "off"], default=["off"])
    parser.add_argument("--dtype", default="mixed_bfloat16")
    parser.add_argument("--rows", help="file of real rows, of --make-rows; default: random rows")
    parser.add_argument("--make-rows", type=Path, metavar="FILE", help="write real rows, and end")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=["ours", *PEERS],
        default=["ours"],
        help="ours, and those of transformers that are trained on the same rows",
    )
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto")
    parser.add_argument("--peak", type=float, help="the device's FLOP/s, where its name is unknown")
    parser.add_argument("--kernels", action="store_true", help="list the longest kernels too")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


# Models of transformers: each token sees the whole row, or, isolated, its document alone.
PEERS = ["bert", "bert isolated", "roformer", "roformer isolated"]


def cases(asked: argparse.Namespace) -> Iterator[Case]:
    """All combinations that were asked for, each followed by its rivals."""
    for size, (hidden, attention) in itertools.product(asked.size, asked.dropout):
        tiny = size == "tiny"
        for length in asked.lengths or ([64] if tiny else LENGTHS):
            shared = {"batch": asked.batch or 4 * tiny, "dropout": hidden, "rows": asked.rows}
            case = Case(size, length, **shared, attention_dropout=attention, dtype=asked.dtype)
            for model in asked.models:
                if model == "ours":
                    for form, remat in itertools.product(asked.attention, asked.remat):
                        yield dataclasses.replace(case, attention=form, rematerialize=remat == "on")
                else:
                    yield dataclasses.replace(case, model=model)


def report(asked: argparse.Namespace) -> None:
    """Measure and print the table, line by line."""
    device = None
    for case in cases(asked):
        steps, rounds = (3, 2) if case.size == "tiny" else (STEPS, ROUNDS)
        tried, result = largest(case, steps, rounds)
        if result and device is None:
            device = result["device"]
            print(f"{described(asked, result)}, medians of {rounds} × {steps} steps\n\n{HEADER}")
        print(row(tried, result, asked.peak or peak_flops(device)), flush=True)
        if result and asked.kernels:
            for name, seconds in result["kernels"]:
                print(f"    {1e3 * seconds:8.2f} ms  {name[:100]}", flush=True)


def described(asked: argparse.Namespace, result: dict[str, Any]) -> str:
    """What was measured on what, and when."""
    device = result["device"]
    if device == "cpu":
        device = "A processor: nothing here is a figure of a GPU"
    rows = f"real rows ({asked.rows})" if asked.rows else "rows by chance"
    day = datetime.date.today().isoformat()
    return f"{device}; {result['versions']}, {day}; {asked.dtype}, {rows}"


def main() -> None:
    """Measure what is asked for."""
    os.environ["KERAS_BACKEND"] = "jax"
    asked = arguments()
    if asked.device == "cpu":
        os.environ |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    if asked.make_rows:
        os.environ["KERAS_BACKEND"] = "tensorflow"
        make_rows(asked.make_rows)
    elif asked.case:
        case, steps, rounds = asked.case
        print(json.dumps(measure(Case(**json.loads(case)), int(steps), int(rounds))))
    else:
        report(asked)


if __name__ == "__main__":
    main()
