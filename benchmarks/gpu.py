"""A pretraining step on one accelerator, on Keras' JAX backend: tokens/s, MFU, time, memory.

    python -m benchmarks.gpu --make-rows rows.npz       rows of real text, to be copied to the GPU
    python -m benchmarks.gpu --rows rows.npz            base and large; 512 to 8,192 tokens
    python -m benchmarks.gpu --size base --lengths 512 --models bert "roformer isolated"
    python -m benchmarks.gpu --size base --lengths 512 --dropout 0 --attention auto plain
    python -m benchmarks.gpu --device cpu --size tiny   a smoke test of a few seconds

It needs this package, keras, jax, numpy, safetensors and tqdm, but not TensorFlow. Other models
need torch and transformers; --make-rows needs what `make demo` needs. The step is that of
`pretrain`: AdamW, `MaskedTokenLoss`, packed rows, `fit`, in bfloat16. Each line of the table is
measured in its own process. MFU counts only useful operations. It excludes recomputation by
rematerialisation, attention between documents, and everything except matrix products; see
`pretraining/cost.py`. Without --rows, rows consist of random documents.

CPU figures are not comparable with GPU figures; the table names the device.
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

# Names of matrix-product kernels, including attention. --kernels lists the names to check.
PRODUCTS = re.compile(r"gemm|nvjet|cutlass|xmma|matmul|dot|ynn|fmha|flash|sdpa|mha", re.IGNORECASE)

PEAKS = {  # FLOP/s by a substring of the device's name; the first match counts
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
"""Peak of dense bfloat16 matrix products with float32 accumulation, from data sheets. V100 and T4
lack bfloat16: theirs is the peak of float16."""

_ANOTHER = r"(?![A-Za-z0-9])(?! (?:Ti|D|SUPER|Laptop)\b)"
"""Must match after the name, to exclude other devices with the same prefix: A10G, 4090 Laptop."""

# Names of cuDNN's attention kernels.
CUDNN = re.compile("fmha|flash|sdpa")

MASKED = 0.15
TOKENS = 131_072  # in the first batch tried when searching for the largest
SAVED_TOKENS = 262_144  # for each length in a file of rows
LENGTHS = [512, 1536, 4096, 8192]
DOCUMENT = 300  # median length of a random document in tokens (lognormal distribution)
STEPS, ROUNDS, TRACED = 10, 5, 3


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    size: str
    length: int
    batch: int
    """Rows of a step; 0: as many as fit."""
    dropout: float = 0.1
    """Dropout of hidden states."""
    attention_dropout: float | None = None
    """Dropout of attention weights. Default: the dropout of hidden states."""
    attention: Literal["auto", "plain"] = "auto"
    """auto: the device's fused kernel; plain: matrix products and softmax."""
    rematerialize: bool = False
    dtype: str = "mixed_bfloat16"
    rows: str | None = None
    """File of real rows, written by --make-rows."""
    model: str = "ours"
    """"ours", or a model of transformers: one of PEERS."""

    @property
    def dropped(self) -> tuple[float, float]:
        """The dropout rates of hidden states and of attention weights."""
        return self.dropout, (
            self.dropout if self.attention_dropout is None else self.attention_dropout
        )


def predictions(length: int) -> int:
    """Return the number of masked positions of a row, as in `pretrain`.

    [CLS] and [SEP] are never masked.
    """
    return max(1, int(MASKED * (length - 2)))


def architecture(case: Case) -> RoFormerConfig:
    """Return the config of the model to train."""
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
    """Return the FLOPs of a step by `step_flops`, with attention only within documents."""
    _, sequence_ids = rows_of(case)
    return flops_with_keys(case, keys_seen(sequence_ids))


def flops_with_keys(case: Case, keys: float) -> float:
    """Return the FLOPs of a step in which a query attends to so many keys in the mean."""
    shape, predicted = architecture(case), predictions(case.length)
    queries = case.length * (shape.num_hidden_layers - 1) + predicted
    unseen = 12 * shape.hidden_size * (case.length - keys) * queries
    return step_flops(shape, case.length, case.batch, predicted) - case.batch * unseen


def keys_seen(sequence_ids: np.ndarray) -> float:
    """Return the mean number of keys that a query of rows (B, T) attends to; padding has none."""
    lengths = [np.bincount(row[row > 0]).astype("float64") for row in sequence_ids]
    return float(sum((x**2).sum() for x in lengths)) / sequence_ids.size


def rows_of(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids and document ids of a batch, (B, T) int32 each: real rows or random ones."""
    if case.rows:
        with np.load(case.rows) as file:
            actual = [file[f"{name}_{case.length}"] for name in ("token_ids", "sequence_ids")]
        indices = np.arange(case.batch) % len(actual[0])
        vocabulary = SIZES[case.size][3]
        return actual[0][indices].astype(np.int32) % vocabulary, actual[1][indices].astype(np.int32)
    rng = np.random.default_rng(0)
    shape = (case.batch, case.length)
    tokens = rng.integers(1, SIZES[case.size][3], shape, np.int32)
    middle = min(DOCUMENT, case.length / 2)
    begins = np.zeros(shape, np.int32)
    for row in begins:
        lengths = np.maximum(3, rng.lognormal(np.log(middle), 0.8, case.length)).astype("int64")
        starts = np.cumsum(lengths)
        row[starts[starts < case.length]] = 1
    return tokens, 1 + np.cumsum(begins, axis=1, dtype=np.int32)


def make_rows(target: Path) -> None:
    """Write rows of each length: the demo's corpus, packed by `prepare`."""
    from pretrain.demo.corpus import write_corpus
    from roformer_tf.cli import main as roformer_tf
    from roformer_tf.corpus.packing import DOCUMENT as CHANNEL
    from roformer_tf.corpus.packing import TOKEN
    from roformer_tf.corpus.shards import PreparedRows
    from roformer_tf.files import temporary_file

    arrays: dict[str, Any] = {}
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
    """Return the model, compiled with pretraining's optimizer and loss."""
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
    """Yield the same batch forever, in the form of `data.batches`."""
    inputs = masked_rows(case)
    labels = inputs["labels"]  # also an input: the model then computes the losses without logits
    weights = np.ones(labels.shape, np.float32)
    while True:
        yield inputs, labels, weights


def masked_rows(case: Case) -> dict[str, np.ndarray]:
    """Return a batch's rows with labels and the masked positions, none of which is padding."""
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
    """Return the median over rounds of a step's time in `fit`; a round waits for its last step."""
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
    """Train on the same batch in every step."""
    model.fit(batches(case), steps_per_epoch=steps, epochs=rounds, callbacks=callbacks, verbose=0)


def kernel_seconds(model: Any, case: Case, steps: int) -> dict[str, float]:
    """Return the seconds of each kernel in one step, longest first, traced by JAX's profiler."""
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
    """Yield kernels and their nanoseconds, from a GPU's streams or the CPU's XLA threads."""
    planes = [plane for plane in trace.planes if plane.name.startswith("/device:GPU")]
    on_gpu = bool(planes)
    for plane in planes or [plane for plane in trace.planes if plane.name == "/host:CPU"]:
        for line in plane.lines:
            if line.name.startswith("Stream" if on_gpu else "tf_XLA"):
                kernels = (event for event in line.events if "::" not in event.name or on_gpu)
                yield from ((event.name, event.duration_ns) for event in kernels)


def measure(case: Case, steps: int, rounds: int) -> dict[str, Any]:
    """Train some steps and return the figures of the table."""
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
    """Return the implementation of attention that ran: "cuDNN" or "plain"."""
    return "cuDNN" if any(map(CUDNN.search, kernels)) else "plain"


def isolated(case: Case, steps: int, rounds: int) -> dict[str, Any] | None:
    """Measure in a separate process. Returns None if the case does not fit into memory."""
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
    """Measure with the given batch size, or with the largest power of two that fits."""
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
    """Return the peak FLOP/s of the device with this name, or None if it is unknown.

    A partition of a GPU (MIG) has a lower peak than the GPU, so it is unknown too.
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
    """Return one line of the Markdown table, with dashes for values that were not measured."""
    dropped = "{:g}/{:g}".format(*case.dropped)
    cells = [case.model, case.size, f"{case.length:,}", str(case.batch), dropped]
    if result is None:
        settings = [case.attention, _switch(case.rematerialize), "does not fit"]
        return _line([*cells, *settings, *["–"] * 5])
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
    """Parse dropout rates: 0.1 for both, or 0.1/0 for hidden states and attention weights."""
    hidden, _, attention = text.partition("/")
    return float(hidden), float(attention) if attention else None


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["base", "large"])
    parser.add_argument(
        "--lengths", nargs="+", type=int, help="default: 512 to 8,192; for tiny: 64"
    )
    parser.add_argument("--batch", type=int, default=0, help="rows; default: as many as fit")
    parser.add_argument(
        "--dropout",
        nargs="+",
        type=rates,
        default=[(0.0, None), (0.1, None)],
        help="0.1 for both, or 0.1/0 for hidden states and attention weights",
    )
    parser.add_argument("--attention", nargs="+", choices=["auto", "plain"], default=["auto"])
    parser.add_argument("--remat", nargs="+", choices=["on", "off"], default=["off"])
    parser.add_argument("--dtype", default="mixed_bfloat16")
    parser.add_argument("--rows", help="file written by --make-rows; default: random rows")
    parser.add_argument("--make-rows", type=Path, metavar="FILE", help="write real rows and exit")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=["ours", *PEERS],
        default=["ours"],
        help="ours, and models of transformers on the same rows",
    )
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto")
    parser.add_argument("--peak", type=float, help="the device's FLOP/s, if its name is unknown")
    parser.add_argument("--kernels", action="store_true", help="also list the longest kernels")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


# Models of transformers. A token attends to the whole row, or to its document only (isolated).
PEERS = ["bert", "bert isolated", "roformer", "roformer isolated"]


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """Yield all requested combinations, each followed by the other models."""
    for size, (hidden, attention) in itertools.product(args.size, args.dropout):
        tiny = size == "tiny"
        for length in args.lengths or ([64] if tiny else LENGTHS):
            shared = {"batch": args.batch or 4 * tiny, "dropout": hidden, "rows": args.rows}
            case = Case(size, length, **shared, attention_dropout=attention, dtype=args.dtype)
            for model in args.models:
                if model == "ours":
                    for form, remat in itertools.product(args.attention, args.remat):
                        yield dataclasses.replace(case, attention=form, rematerialize=remat == "on")
                else:
                    yield dataclasses.replace(case, model=model)


def report(args: argparse.Namespace) -> None:
    """Measure the cases and print the table line by line."""
    device = None
    for case in cases(args):
        steps, rounds = (3, 2) if case.size == "tiny" else (STEPS, ROUNDS)
        tried, result = largest(case, steps, rounds)
        if result and device is None:
            device = result["device"]
            print(f"{description(args, result)}, medians of {rounds} × {steps} steps\n\n{HEADER}")
        print(row(tried, result, args.peak or peak_flops(device)), flush=True)
        if result and args.kernels:
            for name, seconds in result["kernels"]:
                print(f"    {1e3 * seconds:8.2f} ms  {name[:100]}", flush=True)


def description(args: argparse.Namespace, result: dict[str, Any]) -> str:
    """Return the device, versions, date, dtype and kind of rows, as text."""
    device = result["device"]
    if device == "cpu":
        device = "CPU (not comparable with GPU figures)"
    rows = f"real rows ({args.rows})" if args.rows else "random rows"
    day = datetime.date.today().isoformat()
    return f"{device}; {result['versions']}, {day}; {args.dtype}, {rows}"


def main() -> None:
    """Write rows, measure one case, or print the table, depending on the flags."""
    os.environ["KERAS_BACKEND"] = "jax"
    args = arguments()
    if args.device == "cpu":
        os.environ |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    if args.make_rows:
        os.environ["KERAS_BACKEND"] = "tensorflow"
        make_rows(args.make_rows)
    elif args.case:
        case, steps, rounds = args.case
        print(json.dumps(measure(Case(**json.loads(case)), int(steps), int(rounds))))
    else:
        report(args)


if __name__ == "__main__":
    main()
