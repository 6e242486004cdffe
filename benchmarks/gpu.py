"""A pretraining step on one accelerator, on Keras' JAX backend: tokens/s, MFU, time, memory.

    python -m benchmarks.gpu                   base and large; 512, 1,536 and 4,096 tokens
    python -m benchmarks.gpu --sizes base --lengths 512 --batch 64 --dropout 0.1 0 --flash on off
    python -m benchmarks.gpu --quick           a tiny model on whatever there is

Besides this package it needs keras, jax and numpy, and safetensors and tqdm, which the package
always loads: no TensorFlow. The step is that of `pretrain`:
AdamW, `MaskedTokenLoss`, packed rows, `fit`, in bfloat16. Every line of the table is a process of
its own. MFU counts the step's useful operations alone: what rematerialisation computes again and
what no matrix product does are left out; see `pretraining/flops.py`.
"""

import argparse
import dataclasses
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
from typing import Any

import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.machine import peak_flops
from roformer_tf.pretraining.flops import step_flops

SIZES = {  # layers, hidden size, heads, vocabulary
    "tiny": (2, 32, 2, 500),
    "small": (6, 384, 6, 50_000),
    "base": (12, 768, 12, 50_000),
    "large": (24, 1024, 16, 50_000),
}

PRODUCTS = re.compile(r"gemm|nvjet|cutlass|xmma|matmul|dot|ynn|fmha|flash|sdpa", re.IGNORECASE)
"""Names of kernels that multiply matrices, attention's among them; check them by --kernels."""

FLASH = re.compile(r"fmha|flash|sdpa", re.IGNORECASE)

MASKED = 0.15
TOKENS = 131_072  # of the first batch that is tried
STEPS, ROUNDS, TRACED = 10, 5, 3


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    size: str
    length: int
    batch: int
    """Rows of a step; 0 stands for as many as fit."""
    dropout: float = 0.1
    flash: bool = True
    """Whether flash attention may run; it needs a dropout of 0."""
    rematerialize: bool = False
    dtype: str = "mixed_bfloat16"


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
        hidden_dropout_prob=case.dropout,
        attention_probs_dropout_prob=case.dropout,
    )


def model_flops(case: Case) -> float:
    """Operations of a step, as `step_flops` counts them."""
    return step_flops(architecture(case), case.length, case.batch, predictions(case.length))


def compiled_model(case: Case) -> Any:
    """The model with pretraining's optimizer and loss."""
    import keras

    from roformer_tf.models.heads import RoFormerForMaskedLM
    from roformer_tf.pretraining.losses import MaskedTokenLoss
    from roformer_tf.pretraining.train_step import PretrainingModel, StepConfig
    from roformer_tf.runs.devices import choose_jit
    from roformer_tf.runs.optimizers.factory import make_optimizer
    from roformer_tf.runs.optimizers.settings import OptimizerConfig

    keras.utils.set_random_seed(0)
    if not case.flash:
        keras.config.disable_flash_attention()
    model = RoFormerForMaskedLM(architecture(case), dtype=case.dtype)
    model.encoder.rematerialize = case.rematerialize
    optimizer = make_optimizer(OptimizerConfig(), model.trainable_variables, 1000)
    trained = PretrainingModel(model, StepConfig())
    trained.compile(optimizer, MaskedTokenLoss(), jit_compile=choose_jit())
    return trained


def batches(case: Case) -> Iterator[Any]:
    """One batch for ever, as `data.batches` makes them: rows of two documents, no padding."""
    rng = np.random.default_rng(0)
    shape, masked = (case.batch, case.length), (case.batch, predictions(case.length))
    vocabulary = SIZES[case.size][3]
    labels = rng.integers(1, vocabulary, masked, np.int32)
    inputs = {
        "labels": labels,  # so that the model itself computes the losses, and gives no logits
        "token_ids": rng.integers(1, vocabulary, shape, np.int32),
        "sequence_ids": np.sort(rng.integers(1, 3, shape, np.int32)),
        "masked_positions": np.sort(rng.integers(1, case.length - 1, masked, np.int32)),
    }
    weights = np.ones(masked, np.float32)
    while True:
        yield inputs, labels, weights


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
    """Kernels and their nanoseconds: of a GPU's streams, or of the processor's XLA threads."""
    planes = [plane for plane in trace.planes if plane.name.startswith("/device:GPU")]
    on_gpu = bool(planes)
    for plane in planes or [plane for plane in trace.planes if plane.name == "/host:CPU"]:
        for line in plane.lines:
            if line.name.startswith("Stream" if on_gpu else "tf_XLA"):
                kernels = (event for event in line.events if "::" not in event.name or on_gpu)
                yield from ((event.name, event.duration_ns) for event in kernels)


def measure(case: Case, steps: int, rounds: int) -> dict[str, Any]:
    """Train a while; give what the table tells of it."""
    import jax

    model, device = compiled_model(case), jax.devices()[0]
    seconds = step_seconds(model, case, steps, rounds)
    memory = (device.memory_stats() or {}).get("peak_bytes_in_use")  # a processor has none
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
        "flash": any(FLASH.search(name) for name in kernels),
        "memory": memory,
        "kernels": list(kernels.items())[:15],
    }


def isolated(case: Case, steps: int, rounds: int) -> dict[str, Any] | None:
    """Measure in a process of its own; None if the case does not fit into memory."""
    arguments = [json.dumps(dataclasses.asdict(case)), str(steps), str(rounds)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--case", *arguments],
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


HEADER = (
    "| size | length | batch | dropout | attention | remat | tokens/s | step, ms | MFU "
    "| outside products | idle | memory, GB |\n" + "| --- " * 12 + "|"
)


def row(case: Case, result: dict[str, Any] | None, peak: float | None) -> str:
    """One line of the markdown table; what could not be measured is a dash."""
    cells = [case.size, f"{case.length:,}", str(case.batch), f"{case.dropout:g}"]
    if result is None:
        cells += ["flash" if case.flash else "plain", _switch(case.rematerialize), "does not fit"]
        return _line([*cells, *["–"] * 5])
    share = result["flops/s"] / peak if peak else None
    memory = result["memory"]
    return _line(
        [
            *cells,
            "flash" if result["flash"] else "plain",
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


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["base", "large"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1536, 4096])
    parser.add_argument("--batch", type=int, default=0, help="rows; unset, as many as fit")
    parser.add_argument("--dropout", nargs="+", type=float, default=[0.1, 0.0])
    parser.add_argument("--flash", nargs="+", choices=["on", "off"], default=["on"])
    parser.add_argument("--remat", nargs="+", choices=["on", "off"], default=["off"])
    parser.add_argument("--dtype", default="mixed_bfloat16")
    parser.add_argument("--peak", type=float, help="the device's FLOP/s, where its name is unknown")
    parser.add_argument("--kernels", action="store_true", help="list the longest kernels too")
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def cases(asked: argparse.Namespace) -> Iterator[Case]:
    """All combinations that were asked for."""
    for size, length, dropout, flash, remat in itertools.product(
        asked.sizes, asked.lengths, asked.dropout, asked.flash, asked.remat
    ):
        yield Case(size, length, asked.batch, dropout, flash == "on", remat == "on", asked.dtype)


def report(asked: argparse.Namespace, steps: int, rounds: int) -> None:
    """Measure and print the table, line by line."""
    device = None
    for case in cases(asked):
        tried, result = largest(case, steps, rounds)
        if result and device is None:
            device = result["device"]
            print(f"{device}, {asked.dtype}, medians of {rounds} × {steps} steps\n\n{HEADER}")
        print(row(tried, result, asked.peak or peak_flops(device)), flush=True)
        if result and asked.kernels:
            for name, seconds in result["kernels"]:
                print(f"    {1e3 * seconds:8.2f} ms  {name[:100]}", flush=True)


def main() -> None:
    """Measure what is asked for."""
    os.environ["KERAS_BACKEND"] = "jax"
    asked = arguments()
    if asked.case:
        case, steps, rounds = asked.case
        print(json.dumps(measure(Case(**json.loads(case)), int(steps), int(rounds))))
    elif asked.quick:
        asked.sizes, asked.lengths, asked.batch, asked.dropout = ["tiny"], [32], 4, [0.1]
        report(asked, steps=3, rounds=2)
    else:
        report(asked, STEPS, ROUNDS)


if __name__ == "__main__":
    main()
