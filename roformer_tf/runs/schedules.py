"""The learning rate over the steps of a run."""

import math
from typing import Any, Literal

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="roformer_tf")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to `peak` over the warm-up steps, then falls to 0 at the end.

    The first step already moves: step s (from 0) has peak · (s + 1) / warmup_steps. It falls over
    the last `decay_steps`, unset: all after the warm-up, as a line or, by `shape="cosine"`, as half
    a wave; before them it stays at the peak (warm-up, stable, decay: arXiv 2404.06395). With
    `accumulate` batches to a step it is called with batches, as Keras does. `begin`: number of its
    first step, where others went before.
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
        """What Keras needs to make the schedule again."""
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
    """A linear WarmupDecay whose numbers a compiled step reads anew, so that they may change.

    `numbers`: peak, warm-up, total and decay steps, float32 (4,); without it they are fixed.
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
        """Go as another schedule of as many batches to a step does."""
        self.peak, self.warmup_steps = other.peak, other.warmup_steps
        self.total_steps, self.decay_steps = other.total_steps, other.decay_steps
        assert self.numbers is not None
        self.numbers.assign([self.peak, self.warmup_steps, self.total_steps, self.decay_steps])
