"""What `keras.Model.fit` takes: batches of varying length, and the callbacks of a run.

The callbacks write metrics, evaluate, save checkpoints, and end the run at a signal.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from roformer_tf.errors import DivergedError
from roformer_tf.internals import schedule_of
from roformer_tf.terminal import Progress, say
from roformer_tf.training.devices import sync
from roformer_tf.training.run_files import Track
from roformer_tf.translation import Message

if TYPE_CHECKING:
    import grain  # not before Keras: it imports jax, which sets TensorFlow's log level


def fed(
    batches: grain.MapDataset | grain.IterDataset,
    varying: Collection[str] = (),
    *,
    static_shapes: bool = False,
) -> Any:
    """Batches of (inputs, targets, weights) for `fit`. Lengths may differ, the batch size not.

    Only inputs named in `varying` may differ in the batch size, too. With `static_shapes` all
    batches have one shape, which is then known in the graph.

    Why not the grain dataset itself: on TensorFlow, Keras infers the shape from two batches. If
    both have one length, the first batch of another length ends the run.
    """
    if keras.backend.backend() != "tensorflow":
        return batches
    return _tensorflow_dataset(lambda: iter(batches), varying, static_shapes)


def epochs(batches: grain.MapDataset, steps: int) -> Any:
    """Endless batches in epochs of `steps`, so that `fit` needs no `steps_per_epoch`.

    Lengths may differ from batch to batch. Every iteration is the next epoch: a dataset that was
    iterated once before starts with the second.
    """
    if keras.backend.backend() != "tensorflow":
        return _Epochs(batches, steps)
    import tensorflow as tf

    numbers = count()

    def epoch() -> Iterator[Any]:
        begin = next(numbers) * steps
        return iter(prefetched(batches[begin : begin + steps]))

    dataset = _tensorflow_dataset(epoch)
    return dataset.apply(tf.data.experimental.assert_cardinality(steps))


class _Epochs(keras.utils.PyDataset):
    """Batches in epochs, for backends that accept arrays of any shape."""

    def __init__(self, batches: grain.MapDataset, steps: int) -> None:
        super().__init__()
        self._batches = batches
        self._steps = steps
        self._epoch = 0

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, number: int) -> Any:
        return self._batches[self._epoch * self._steps + number]

    def on_epoch_end(self) -> None:
        """Continue with the next epoch's batches."""
        self._epoch += 1


def _tensorflow_dataset(
    iterate: Callable[[], Iterator[Any]], varying: Collection[str] = (), static_shapes: bool = False
) -> Any:
    """A `tf.data.Dataset` of batches.

    All axes except the first may have any size, unless shapes are static: those of the first batch.
    Autotuning is off. It has nothing to tune in a Python generator, and closing the iterator may
    wait for the tuner for many seconds on a busy machine.
    """
    import tensorflow as tf

    def spec(array: Any) -> tf.TensorSpec:
        lengths = array.shape[1:] if static_shapes else [None] * (array.ndim - 1)
        return tf.TensorSpec((array.shape[0], *lengths), array.dtype)

    # The first batch is made only for its shapes and dtypes; training iterates from the start.
    signature = keras.tree.map_structure(spec, next(iterate()))
    for name in varying:
        spec_of_input = signature[0][name]
        unknown = [None] * spec_of_input.shape.rank
        signature[0][name] = tf.TensorSpec(unknown, spec_of_input.dtype)
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_generator(iterate, output_signature=signature)
    return dataset.with_options(options)


def prefetched(batches: grain.MapDataset) -> grain.IterDataset:
    """Batches for `fit` that a thread prepares while the model trains.

    One thread, because masking is Python code and holds the interpreter's lock. grain's default of
    16 threads and 500 batches only takes CPU time and memory from the model.
    """
    import grain

    return batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=8))


class PeriodicCallback(keras.callbacks.Callback):
    """Calls a function after every `every` steps of the run, and after the last one.

    The function gets the number of completed steps, counted as by the run's log. Time inside the
    function does not count as training: see `StepLog`. A call less than `min_seconds` after the
    previous one is skipped, except the last.
    """

    def __init__(
        self,
        function: Callable[[int], None],
        *,
        every: int,
        log: StepLog,
        also: Callable[[], bool] = lambda: False,
        min_seconds: float = 0,
    ) -> None:
        super().__init__()
        self.function, self.every, self.log = function, every, log
        self.min_seconds, self._called = min_seconds, time.monotonic()
        # Called after every step: whether to call the function at this step, too.
        self.also = also

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Call the function if it is due."""
        step = self.log.start + batch + 1
        also = self.also()  # at every step: `Termination.received` must be asked once a step
        due = also or step % self.every == 0
        late_enough = time.monotonic() - self._called >= self.min_seconds
        if (due and late_enough) or step == self.log.last:
            self._called = time.monotonic()
            with self.log.paused():
                # The function reads the variables, whose values `fit` keeps elsewhere on JAX.
                sync(self.model)
                self.function(step)


class Termination(keras.callbacks.Callback):
    """Stops a run after the current step on SIGTERM, which schedulers send before they kill.

    `receive` is the handler of the signal around `fit`: see `handling_termination`.
    `any_process`: whether this process received it → whether any of several did.

    It must be the last of a run's callbacks. The callback that saves calls `received` first, and
    the run stops only if that returned True. A signal between the two waits for the next step, so
    that a run never stops without a checkpoint.
    """

    def __init__(self, any_process: Callable[[bool], bool] = bool) -> None:
        super().__init__()
        self.any_process = any_process
        self._received = self._agreed = False
        # Name of the signal that was received.
        self.signal = "SIGTERM"

    def received(self) -> bool:
        """Whether the run has to stop; called once a step."""
        self._agreed = self.any_process(self._received)
        return self._agreed

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Stop if a signal was received."""
        if self._agreed:
            self.model.stop_training = True

    def receive(self, number: int, frame: Any) -> None:
        """Record a signal."""
        self._received = True
        self.signal = signal.Signals(number).name


class StepLog(keras.callbacks.Callback):
    """Writes a line of metrics every `every` steps, moves the progress bar, watches the loss.

    Must be the first of a run's callbacks. `fit` counts steps from its own start, the run from
    `start` to `last`. A line holds

    - `step`, `loss` (mean over the steps since the previous line, in nats), `learning_rate` (of the
      last step) and `tokens_per_second`. Compilation and `paused` time do not count; null if no
      other step remains;
    - with `flops_per_step` and `peak` (operations per second of all devices) also `mfu`, the
      fraction of the peak that was used;
    - for a `PretrainingModel` also `gradient_norm` (of the last step), `skipped` (steps since the
      previous line; `loss` is null if all were) and `waiting` (fraction of the time in which the
      next batch was not ready).

    Raises DivergedError when the loss is NaN or explodes, or `max_skipped` steps in a row are
    skipped. With `quiet` there is no progress bar.
    """

    def __init__(
        self,
        write_line: Track,
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
        self.name = name  # shown with the bar
        self.write_line, self.every, self.start, self.last = write_line, every, start, last
        self.tokens_per_step, self.uniform_loss = tokens_per_step, uniform_loss
        self.highest_loss: float | None = None  # above this the loss has exploded
        self.bar: Progress | None = None

    def __enter__(self) -> StepLog:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def on_train_begin(self, logs: Any = None) -> None:
        """Show the bar at the step where the run starts."""
        self.bar = Progress(
            total=self.last,
            initial=self.start,
            unit=Message("steps"),
            desc=self.name,
            disable=self.quiet,
        )
        self.restored = [ops.convert_to_numpy(v) for v in self.model.metrics_variables]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Restore the mean loss of a resumed run, which `fit` has just reset."""
        for variable, value in zip(self.model.metrics_variables, self.restored, strict=True):
            variable.assign(value)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        """Count the step; write a line if one is due."""
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
        """Raise DivergedError if a loss is not finite, or far above the loss at the start."""
        if not math.isfinite(loss):
            raise DivergedError(f"{name} is {loss} at step {step:,}.")
        if self.highest_loss is None:  # wide, since the first steps may well raise the loss
            self.highest_loss = max(2 * self.uniform_loss, 3 * loss)
        if loss > self.highest_loss:
            raise DivergedError(
                f"{name} is {loss:.1f} at step {step:,}, more than twice that of a uniform guess "
                "and three times that at the start."
            )

    def _count_skipped(self, step: int, in_a_row: int) -> None:
        """Print that a step was skipped; stop the run if there were too many in a row."""
        if not in_a_row:
            return
        self.skipped += 1
        say("step {step:,} is skipped: its loss or gradient is a spike, or not finite.", step=step)
        if in_a_row >= self.max_skipped:
            raise DivergedError(
                f"the last {in_a_row:,} steps, up to step {step:,}, were skipped: loss or "
                "gradient were not finite, or the loss far above the usual."
            )

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the block from the training time."""
        began = time.perf_counter()
        yield
        # The start of the interval moves forward by the pause, as if the pause had not been.
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
            line["mfu"] = round(self.flops_per_step / seconds / self.peak, 4) if seconds else None
        if "gradient_norm" in logs:
            waited = self.model.waited - self.waited
            line |= {
                "gradient_norm": norm if math.isfinite(norm) else None,
                "skipped": self.skipped,
                "waiting": round(waited / steps / seconds, 4) if seconds else None,
            }
            if self.skipped and not loss:  # all of them
                line["loss"] = None
        self.skipped = 0
        self.write_line(line)
        assert self.bar is not None
        shown = f"loss={loss:.3f}"
        self.bar.set_postfix_str(f"{shown}, tokens_per_s={speed:,.0f}" if speed else shown)
        self.model.reset_metrics()
        self._restart_clock(step)

    def _restart_clock(self, step: int) -> None:
        self.clock, self.clock_step = time.perf_counter(), step
        self.waited = getattr(self.model, "waited", 0.0)


def learning_rate(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """The learning rate of step `step`, counted from 0."""
    return float(ops.convert_to_numpy(schedule_of(optimizer)(step)))
