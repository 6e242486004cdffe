"""AdamW as BERT is trained, and its learning rate over the steps."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.adam import AdamW


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with linear warm-up and decay."""

    learning_rate: float = 1e-4
    """Highest learning rate, reached when the warm-up ends."""
    warmup: float = 0.05
    """Share of the steps over which the learning rate rises; it then falls to 0 at the end."""
    weight_decay: float = 0.01
    """Decay of the weights, as a share of the learning rate; not on norms and biases."""
    beta_2: float = 0.98
    """Memory of the squared gradients."""
    clip_norm: float = 1.0
    """Longest gradient, over all weights together; longer ones are scaled down."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip_norm"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}, but must be above 0.")
        for name in ("warmup", "beta_2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(
                    f"{name} is {getattr(self, name)}, but must be at least 0 and less than 1."
                )
        if not self.weight_decay >= 0:
            raise InputError(f"weight_decay is {self.weight_decay}, but must not be negative.")


@keras.saving.register_keras_serializable(package="roformer_tf")
class LinearWarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to `peak` over the warm-up steps, then falls linearly to 0 at the end.

    The first step already moves: step s (from 0) has peak · (s + 1) / warmup_steps.
    """

    def __init__(self, peak: float, warmup_steps: int, total_steps: int) -> None:
        self.peak, self.warmup_steps, self.total_steps = peak, warmup_steps, total_steps

    def __call__(self, step: Any) -> Any:
        """Learning rate of a step, float32."""
        step = ops.cast(step, "float32")
        rising = (step + 1.0) / max(self.warmup_steps, 1)
        falling = (self.total_steps - step) / max(self.total_steps - self.warmup_steps, 1)
        return self.peak * ops.clip(ops.minimum(rising, falling), 0.0, 1.0)

    def get_config(self) -> dict[str, Any]:
        """What Keras needs to make the schedule again."""
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
        }


def make_optimizer(
    config: OptimizerConfig, variables: Iterable[keras.Variable], steps: int
) -> AdamW:
    """AdamW for a run of `steps`, its slots made, its decay off for norms and biases."""
    variables = list(variables)
    schedule = LinearWarmupDecay(config.learning_rate, round(config.warmup * steps), steps)
    optimizer = AdamW(
        schedule,
        weight_decay=config.weight_decay,
        beta_2=config.beta_2,
        epsilon=1e-6,
        global_clipnorm=config.clip_norm,
    )
    # By variable: Keras would compare names like "LayerNorm" with "gamma", and find none.
    optimizer.exclude_from_weight_decay(var_list=[v for v in variables if not _decays(v)])
    optimizer.build(variables)
    return optimizer


def _decays(variable: keras.Variable) -> bool:
    return variable.name not in ("gamma", "beta", "bias")
