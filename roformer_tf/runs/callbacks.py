"""What happens between the steps of a run: a line of metrics, an evaluation, a checkpoint."""

import json
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
from keras import ops
from tqdm import tqdm

from roformer_tf.errors import DivergedError, TerminatedError
from roformer_tf.files import write_text
from roformer_tf.internals import learning_rate_at
from roformer_tf.runs.devices import sync
from roformer_tf.runs.run_files import read_metrics
from roformer_tf.terminal import Progress


class PeriodicCallback(keras.callbacks.Callback):
    """Calls a function after every so many steps of the run, and after the last one.

    The function gets the number of steps done. `fit` counts from its own start; the run counts
    from step `start`. Time inside the function does not count as training: see `StepLog`. A call
    that would come less than `seconds_apart` behind the one before, or the beginning, is left out,
    but for the last.
    """

    def __init__(
        self,
        function: Callable[[int], None],
        *,
        every: int,
        start: int,
        last: int,
        log: "StepLog",
        also: Callable[[], bool] = lambda: False,
        seconds_apart: float = 0,
    ) -> None:
        super().__init__()
        self.function, self.every, self.start, self.last, self.log = (
            function,
            every,
            start,
            last,
            log,
        )
        self.seconds_apart, self._called = seconds_apart, time.monotonic()
        self.also = also
        """Asked after every step: whether to call the function whatever the step."""

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Call the function if its time has come."""
        step = self.start + batch + 1
        also = self.also()  # whatever the step: `Termination` learns from it that the run is to end
        due = also or step % self.every == 0
        if (due and self._rested()) or step == self.last:
            self._called = time.monotonic()
            with self.log.paused():
                sync(self.model)
                self.function(step)

    def _rested(self) -> bool:
        return time.monotonic() - self._called >= self.seconds_apart


def ending_signals() -> list[int]:
    """Signals that tell a run to end.

    On Windows no process sends another one SIGTERM; Ctrl+Break, and a console that is closed,
    arrive there as SIGBREAK.
    """
    return [getattr(signal, name) for name in ("SIGTERM", "SIGBREAK") if hasattr(signal, name)]


class Termination(keras.callbacks.Callback):
    """SIGTERM, which schedulers send some time before they kill, ends a run behind a step.

    So does SIGBREAK, where there is such (Windows).

    As a context it receives the signal: while no step is under way, by raising TerminatedError
    from wherever the program is; else by stopping `fit` after the step. Must stand last among a
    run's callbacks; `received` tells the one that saves what will come, and only what it was told
    of stops the run: a signal that comes between the two waits for the next step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stopped = self.training = self._received = self._told = False
        self.signal = "SIGTERM"
        """Name of the one that came."""
        self.told: Callable[[bool], bool] = bool
        """Whether any of several processes was; asked with whether this one was."""

    def received(self) -> bool:
        """Whether the run has been told to end; asked once a step."""
        self._told = self.told(self._received)
        return self._told

    def __enter__(self) -> "Termination":
        self._here = threading.current_thread() is threading.main_thread()  # no other gets signals
        if self._here:
            self._before = {
                number: signal.signal(number, self._receive) for number in ending_signals()
            }
        return self

    def __exit__(self, *error: object) -> None:
        if self._here:
            for number, before in self._before.items():
                signal.signal(number, before)

    def on_train_begin(self, logs: Any = None) -> None:
        """From now on a step is waited for."""
        self.training = True

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Stop if told to, unless this was the last step anyway."""
        if self._told and not self.model.stop_training:
            self.stopped = self.model.stop_training = True

    def _receive(self, number: int, frame: Any) -> None:
        self._received = True
        self.signal = signal.Signals(number).name
        if not self.training:
            raise TerminatedError(f"told to end ({self.signal}). The same command continues.")


class StepLog(keras.callbacks.Callback):
    """Writes a line of metrics every `every` steps, moves the progress bar, watches the loss.

    Must stand first among a run's callbacks. A line holds `step`, `loss` (mean over the steps
    since the line before, in nats), `learning_rate` (of the last step) and `tokens_per_second`
    (tokens · steps ÷ time, compilation and `paused` time left out: null where no other step is
    left). Given `flops_per_step` and `peak`, the operations that all devices together can do in a
    second, also `mfu`: the share of these that the steps needed (null where that speed is). Of a
    `PretrainingModel` also `gradient_norm` (of the last step), `left_out` (steps skipped since the
    line before: its `loss` is null if all were) and `waiting` (share of the time in which the next
    batch was not there yet). Raises DivergedError when the loss is NaN or exploding, or
    `max_skipped` steps in a row are skipped. One that is `quiet` shows no bar.
    """

    def __init__(
        self,
        lines: "MetricsFile",
        *,
        every: int,
        start: int,
        last: int,
        tokens_per_step: int,
        uniform_loss: float,
        name: str = "pretraining",
        max_skipped: int = 0,
        quiet: bool = False,
        flops_per_step: float | None = None,
        peak: float | None = None,
    ) -> None:
        super().__init__()
        self.max_skipped, self.quiet = max_skipped, quiet
        self.flops_per_step, self.peak = flops_per_step, peak
        self.skipped = 0  # since the last line
        self.name = name  # beside the bar
        self.lines, self.every, self.start, self.last = lines, every, start, last
        self.tokens_per_step, self.uniform_loss = tokens_per_step, uniform_loss
        self.highest_loss: float | None = None  # that is still no explosion
        self.bar: Progress | None = None

    def __enter__(self) -> "StepLog":
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def on_train_begin(self, logs: Any = None) -> None:
        """Show the bar where the run stands."""
        self.bar = Progress(
            total=self.last,
            initial=self.start,
            unit=" steps",
            desc=self.name,
            disable=self.quiet,
        )
        self.restored = [ops.convert_to_numpy(v) for v in self.model.metrics_variables]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Go on with the mean of a resumed run, which `fit` has just set to zero."""
        for variable, value in zip(self.model.metrics_variables, self.restored, strict=True):
            variable.assign(value)

    def say(self, text: str) -> None:
        """Print a line without breaking the bar."""
        tqdm.write(text, file=sys.stdout)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Count the step; write the line if its time has come."""
        assert logs is not None
        assert self.bar is not None
        step = self.start + batch + 1
        self.bar.update()
        self.check(step, "the loss", float(logs["loss"]))
        self._count_skipped(step, int(logs.get("skipped", 0)))
        if batch == 0:
            self._restart_clock(step)  # the first step of a process was mostly compilation
        if step % self.every == 0 or step == self.last:
            self._write(step, logs)
        if step == self.last:
            self.model.stop_training = True

    def check(self, step: int, name: str, loss: float) -> None:
        """Raise DivergedError for a loss that is not finite, or far above that at the start."""
        if not math.isfinite(loss):
            raise DivergedError(f"{name} is {loss} at step {step:,}.")
        if self.highest_loss is None:  # wide, since the first steps may well raise the loss
            self.highest_loss = max(2 * self.uniform_loss, 3 * loss)
        if loss > self.highest_loss:
            raise DivergedError(
                f"{name} is {loss:.1f} at step {step:,}, more than twice that of a blind guess "
                "and three times that at the start."
            )

    def _count_skipped(self, step: int, in_a_row: int) -> None:
        """Say that a step was skipped; stop the run if it was one too many."""
        if not in_a_row:
            return
        self.skipped += 1
        self.say(f"step {step:,} is skipped: its loss or gradient is a spike, or not finite.")
        if in_a_row >= self.max_skipped:
            raise DivergedError(
                f"the last {in_a_row:,} steps, up to step {step:,}, were skipped: loss or "
                "gradient were not finite, or the loss far above the usual."
            )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do something that is no training: its time does not count as training."""
        began = time.perf_counter()
        yield
        self.clock += time.perf_counter() - began

    def _write(self, step: int, logs: dict[str, float]) -> None:
        steps = step - self.clock_step
        seconds = (time.perf_counter() - self.clock) / steps if steps else None  # of a step
        speed = round(self.tokens_per_step / seconds, 1) if seconds else None
        sync(self.model)  # before the schedule is asked, which may read a variable
        loss, norm = float(logs["loss"]), float(logs.get("gradient_norm", 0))
        line: dict[str, float | None] = {
            "step": step,
            "loss": loss,
            "learning_rate": learning_rate(self.model.optimizer, step - 1),
            "tokens_per_second": speed,
        }
        if self.flops_per_step and self.peak:
            share = self.flops_per_step / seconds / self.peak if seconds else None
            line["mfu"] = None if share is None else round(share, 4)
        if "gradient_norm" in logs:
            line |= {
                "gradient_norm": norm if math.isfinite(norm) else None,
                "left_out": self.skipped,  # the file's word since its first version
                "waiting": None,
            }
            if seconds:
                waited = (self.model.waited - self.waited) / steps
                line["waiting"] = round(waited / seconds, 4)
            if self.skipped and not loss:  # all of them
                line["loss"] = None
        self.skipped = 0
        self.lines.write(line)
        assert self.bar is not None
        self.bar.set_postfix(loss=f"{loss:.3f}", tokens_per_s=speed)
        self.model.reset_metrics()
        self._restart_clock(step)

    def _restart_clock(self, step: int) -> None:
        self.clock, self.clock_step = time.perf_counter(), step
        self.waited = getattr(self.model, "waited", 0.0)


class MetricsFile:
    """Lines of JSON for programs, and the same numbers for TensorBoard.

    A run that resumes at step n has written lines of later steps before it was killed: they are
    removed, since these steps are done again. One that starts at 0 removes all.
    Where several processes train, one is `writing`. `also` gets every line, too.
    """

    def __init__(
        self,
        path: Path,
        *,
        resumed_at: int,
        tensorboard: Path | None = None,
        writing: bool = True,
        also: Callable[[Mapping[str, Any]], None] = lambda line: None,
    ) -> None:
        self.path, self.writing, self.also = path, writing, also
        if not writing:  # but another process
            return
        kept = [x for x in read_metrics(path) if x["step"] <= resumed_at] if resumed_at else []
        write_text(path, "".join(_json(line) for line in kept))
        self.file = path.open("a", encoding="utf-8")
        self.board = None
        if tensorboard is not None:
            from tensorboard.summary import Writer  # takes a second to load

            self.board = Writer(str(tensorboard))

    def write(self, line: dict[str, Any]) -> None:
        """Append a line, at once on its way to the disk."""
        if not self.writing:
            return
        self.file.write(_json(line))
        self.file.flush()
        if self.board is not None:
            for name, value in scalars(line).items():
                self.board.add_scalar(name, value, line["step"])
            self.board.flush()
        self.also(line)

    def __enter__(self) -> "MetricsFile":
        return self

    def __exit__(self, *error: object) -> None:
        if not self.writing:
            return
        self.file.close()
        if self.board is not None:
            self.board.close()


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line but its step, those of {"a": {"b": 1}} under "a/b"."""
    flat: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}/{name}": x for name, x in scalars(value).items()}
        elif key != "step" and value is not None:
            flat[key] = value
    return flat


def learning_rate(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """The learning rate of step `step`, counted from 0."""
    return float(ops.convert_to_numpy(learning_rate_at(optimizer, step)))


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line) + "\n"
