"""One run of a comparison, in a process of its own: what it reached, how fast, in how much memory.

A fresh process has its own peak of memory, and nothing left over from the run before. No Keras is
imported here until that process is there.
"""

import dataclasses
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from roformer_tf.errors import DivergedError, InputError, TerminatedError
from roformer_tf.files import file_beside, parse_json, remove, write_text
from roformer_tf.runs.run_files import (
    CHECKPOINTS,
    EVALUATIONS_FILE,
    METRICS_FILE,
    MODEL,
    RESULT,
    read_keys,
    read_metrics,
)

if TYPE_CHECKING:
    from roformer_tf.pretraining.settings import PretrainConfig

ROW_LOSSES = "row_losses.npz"


@dataclasses.dataclass(frozen=True)
class RunResult:
    """What a finished run is judged by."""

    held_out_loss: float
    """After the last step, over all held-out rows."""
    held_out_accuracy: float
    curve: list[tuple[int, float]]
    """Step and held-out loss at every evaluation."""
    seconds_per_step: float
    """Median, without compilation, evaluation and saving."""
    peak_memory: int | None
    """Bytes of the process at its largest, the libraries included; None where nobody tells."""
    parameters: int


def train_and_judge(config: "PretrainConfig") -> RunResult:
    """Train as `config` says, and judge the last step's model by all held-out rows.

    Called again it continues; once finished it returns at once. Leaves `result.json`, and the sums
    of each row's losses in `row_losses.npz`; the checkpoints, needed no more, are removed.
    """
    output = Path(config.output)
    if there := read_keys(output / RESULT, parse_json):
        return RunResult(**there)
    from roformer_tf.pretraining.command import pretrain

    pretrain(config)
    result, sums, counts = _judged(config)
    with file_beside(output / ROW_LOSSES) as beside, beside.open("wb") as file:
        np.savez(file, sums=sums, counts=counts)
    write_text(output / RESULT, json.dumps(dataclasses.asdict(result)) + "\n")
    remove(output / CHECKPOINTS)
    return result


def row_losses(folder: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The sum of the losses of each held-out row (R,), and how many tokens were told in it (R,)."""
    with np.load(folder / ROW_LOSSES) as file:
        return file["sums"], file["counts"]


def _judged(config: "PretrainConfig") -> tuple[RunResult, npt.NDArray[Any], npt.NDArray[Any]]:
    """The result of a run that is done, and its losses by held-out row."""
    from roformer_tf.corpus.batches import held_out_batches
    from roformer_tf.corpus.objectives import make_objective
    from roformer_tf.corpus.shards import PreparedRows
    from roformer_tf.pretraining.evaluation import TokenMetrics, token_metrics
    from roformer_tf.pretraining.initialization import MODELS
    from roformer_tf.runs.devices import choose_precision

    assert config.rows is not None  # prepared once for all runs
    output = Path(config.output)
    precision = choose_precision(config.precision)
    model = MODELS[config.objective].from_pretrained(output / MODEL, dtype=precision)
    assert model.tokenizer is not None
    rows = PreparedRows.open(config.rows, "held_out")
    objective = make_objective(config.objective, model.tokenizer, config.masking)
    size = objective.rows_to_evaluate(config.batch_size, rows.length, 1)
    batches = held_out_batches(rows, batch_size=size, seed=config.seed, objective=objective)
    found = token_metrics(TokenMetrics(model), batches)
    weights = found["weights"].astype("float64")
    hits = ((found["likeliest"] == found["labels"]) * weights).sum()
    sums, counts = (-found["log_likelihood"] * weights).sum(axis=1), weights.sum(axis=1)
    lines = read_metrics(output / METRICS_FILE)
    per_step = config.batch_size * rows.length
    evaluations = read_metrics(output / EVALUATIONS_FILE)
    result = RunResult(
        held_out_loss=float(sums.sum() / counts.sum()),
        held_out_accuracy=float(hits / counts.sum()),
        curve=[(line["step"], line["held_out_loss"]) for line in evaluations],
        seconds_per_step=median(per_step / line["tokens_per_second"] for line in lines),
        peak_memory=_peak_memory(),
        parameters=model.count_params(),
    )
    return result, sums[: len(rows)], counts[: len(rows)]


def _peak_memory() -> int | None:
    """Bytes that this process held at most. `ru_maxrss` would count what its parent held, too."""
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    with suppress(ImportError):  # on Windows
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None


def in_own_process(function: Callable[[Any], Any], argument: Any) -> Any:
    """What the function gives, called in a process of its own, which ends with this one.

    Its InputError, DivergedError or TerminatedError is raised here. Told to end meanwhile, it is
    told so, too, and has time to save what it does.
    """
    context = multiprocessing.get_context("spawn")  # TensorFlow's threads do not survive a fork
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, argument, sending), daemon=True)
    process.start()
    sending.close()  # the other process' alone: else its end would not be seen
    try:
        answer = receiving.recv()
    except EOFError:
        process.join()
        raise InputError(
            f"a training process was killed (exit code {process.exitcode}), perhaps since memory "
            "ran out. The same command continues."
        ) from None
    finally:
        if process.is_alive():
            process.terminate()
        process.join()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _call(function: Callable[[Any], Any], argument: Any, sending: Connection) -> None:
    """The other process' whole life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first one's, which tells us to end
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        sending.send(function(argument))
    except (InputError, DivergedError, TerminatedError) as error:
        sending.send(error)


def _end_with_parent() -> None:
    """End this process when its parent is gone; a killed one cannot tell us to end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
