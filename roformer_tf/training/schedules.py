"""Learning rate schedules."""

import math
from typing import Any, Literal

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="roformer_tf")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to `peak`, then decay to 0 at the end.

    Step s (from 0) of the warm-up has peak · (s + 1) / warmup_steps, so the first step is not 0.
    The decay takes the last `decay_steps` (default: all after the warm-up). It is linear, or half a
    cosine wave with `shape="cosine"`. Before it the rate stays at the peak (warm-up, stable,
    decay: arXiv 2404.06395). With `accumulate` batches per step, Keras calls it with the number of
    batches. `begin` is the number of its first step, if another schedule came before.

    A compiled step has the numbers of the schedule as constants, unless the variable `numbers` is
    set, float32 (4,): peak, warm-up, total and decay steps. Then `adjust` can change them.
    """

    numbers: keras.Variable | None = None

    def __init__(
        self,
        peak: float,
        warmup_steps: int,
        total_steps: int,
        accumulate: int = 1,
        decay_steps: int | None = None,
        shape: Literal["linear", "cosine"] = "linear",
        begin: int = 0,
    ) -> None:
        self.peak, self.warmup_steps, self.total_steps = peak, warmup_steps, total_steps
        self.accumulate, self.shape, self.begin = accumulate, shape, begin
        self.decay_steps = total_steps - warmup_steps if decay_steps is None else decay_steps

    def __call__(self, step: Any) -> Any:
        """Learning rate of a step, float32."""
        # Counted in float32: it is exact up to 2²⁴, some sixteen million steps.
        step = ops.cast(step // self.accumulate - self.begin, "float32")
        numbers = self._numbers() if self.numbers is None else self.numbers
        peak, warmup, total, decay = ops.unstack(ops.convert_to_tensor(numbers, "float32"))
        rising = (step + 1.0) / ops.maximum(warmup, 1.0)
        left = ops.clip((total - step) / ops.maximum(decay, 1.0), 0.0, 1.0)
        falling = (1 - ops.cos(math.pi * left)) / 2 if self.shape == "cosine" else left
        return peak * ops.clip(ops.minimum(rising, falling), 0.0, 1.0)

    def _numbers(self) -> list[float]:
        return [self.peak, self.warmup_steps, self.total_steps, self.decay_steps]

    def adjust(self, other: "WarmupDecay") -> None:
        """Take over the numbers of another schedule with the same `accumulate` and shape."""
        self.peak, self.warmup_steps = other.peak, other.warmup_steps
        self.total_steps, self.decay_steps = other.total_steps, other.decay_steps
        assert self.numbers is not None
        self.numbers.assign(self._numbers())

    def get_config(self) -> dict[str, Any]:
        """The arguments, for Keras' serialization."""
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "accumulate": self.accumulate,
            "decay_steps": self.decay_steps,
            "shape": self.shape,
            "begin": self.begin,
        }
