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
    """

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
        step = ops.cast(step // self.accumulate - self.begin, "float32")
        rising = (step + 1.0) / max(self.warmup_steps, 1)
        left = ops.clip((self.total_steps - step) / max(self.decay_steps, 1), 0.0, 1.0)
        falling = (1 - ops.cos(math.pi * left)) / 2 if self.shape == "cosine" else left
        return self.peak * ops.clip(ops.minimum(rising, falling), 0.0, 1.0)

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


@keras.saving.register_keras_serializable(package="roformer_tf")
class AdjustableDecay(WarmupDecay):
    """A linear WarmupDecay that can be changed without compiling the training step again.

    A compiled step reads `numbers`: peak, warm-up, total and decay steps, float32 (4,). If it is
    None, they are fixed.
    """

    numbers: keras.Variable | None = None

    def __call__(self, step: Any) -> Any:
        """Learning rate of a step, float32."""
        if self.numbers is None:
            return super().__call__(step)
        peak, warmup, total, decay = ops.unstack(ops.convert_to_tensor(self.numbers))
        step = ops.cast(step // self.accumulate - self.begin, "float32")
        rising = (step + 1.0) / ops.maximum(warmup, 1.0)
        left = ops.clip((total - step) / ops.maximum(decay, 1.0), 0.0, 1.0)
        return peak * ops.clip(ops.minimum(rising, left), 0.0, 1.0)

    def adjust(self, other: WarmupDecay) -> None:
        """Take over the numbers of another schedule with the same `accumulate`."""
        self.peak, self.warmup_steps = other.peak, other.warmup_steps
        self.total_steps, self.decay_steps = other.total_steps, other.decay_steps
        assert self.numbers is not None
        self.numbers.assign([self.peak, self.warmup_steps, self.total_steps, self.decay_steps])
