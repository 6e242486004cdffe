"""AdamW as BERT is trained, Muon, and their learning rate over the steps."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.kernels.adam import AdamW


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or Muon, with linear warm-up and decay."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """"muon" moves the layers' matrices along their orthogonalised momentum, all else by AdamW."""
    matrix_rate: float = 4.0
    """With muon, how many times the learning rate those matrices have."""
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
        for name in ("learning_rate", "clip_norm", "matrix_rate"):
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


class Muon(AdamW):
    """AdamW for embeddings, norms and biases; matrices move along their orthogonalised momentum.

    The momentum of each kernel, seen as a matrix, is replaced by the nearest one whose singular
    values are about 1 (Jordan et al. 2024, Muon), scaled by 0.2 √(longer side), which is as far
    as AdamW moves (arXiv 2502.16982, section 2.2), and by `matrix_rate`. `product_dtype` is what
    the matrices are multiplied in; bfloat16 is enough.
    """

    def __init__(
        self, learning_rate: Any, *, matrix_rate: float, product_dtype: str, **kwargs: Any
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        self.matrix_rate, self.product_dtype = matrix_rate, product_dtype

    def build(self, variables: list[keras.Variable]) -> None:
        """Make the slots: a momentum of every weight, squares only of those that are Adam's."""
        if self.built:
            return
        keras.optimizers.Optimizer.build(self, variables)
        self._momentums, self._velocities = [], []
        for variable in variables:
            self._momentums.append(self.add_variable_from_reference(variable, "momentum"))
            self._velocities.append(
                None
                if variable.name == "kernel"
                else self.add_variable_from_reference(variable, "velocity")
            )

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and what is remembered of it."""
        index = self._get_variable_index(variable)
        if self._velocities[index] is not None:
            super().update_step(gradient, variable, learning_rate)
            return
        momentum = self._momentums[index]
        self.assign(momentum, MUON_MOMENTUM * momentum + gradient)
        ahead = as_matrix(gradient + MUON_MOMENTUM * momentum)
        step = 0.2 * math.sqrt(max(ahead.shape)) * orthogonal(ahead, self.product_dtype)
        step = ops.reshape(step, variable.shape)
        self.assign_sub(variable, learning_rate * self.matrix_rate * step)


MUON_MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x³ and x⁵: applied five times they take 0.01 … 1 into about 0.7 … 1.2."""


def orthogonal(matrix: Any, dtype: str) -> Any:
    """Bring all singular values of a matrix (M, N) near 1: U S Vᵀ → about U Vᵀ, float32.

    Five Newton–Schulz steps, which are products alone, on the shorter side's square.
    """
    a, b, c = NEWTON_SCHULZ
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else ops.transpose(matrix)
    x = ops.cast(x / (ops.norm(x) + 1e-7), dtype)
    for _ in range(5):
        square = ops.matmul(x, ops.transpose(x))
        x = a * x + ops.matmul(b * square + c * ops.matmul(square, square), x)
    return ops.cast(x if wide else ops.transpose(x), "float32")


def as_matrix(kernel: Any) -> Any:
    """A kernel as the matrix that it multiplies with: attention's have an axis of heads.

    (D, N, H) → (D, N·H) for queries, keys and values, (N, H, D) → (N·H, D) for the output.
    """
    inputs = kernel.shape[0]
    if inputs != math.prod(kernel.shape[1:]):
        inputs = math.prod(kernel.shape[:-1])
    return ops.reshape(kernel, (inputs, -1))


def make_optimizer(
    config: OptimizerConfig,
    variables: Iterable[keras.Variable],
    steps: int,
    product_dtype: str = "float32",
) -> AdamW:
    """The optimizer of a run of `steps`, its slots made, its decay off for norms and biases.

    `product_dtype`: what Muon multiplies in, such as the model's compute dtype.
    """
    variables = list(variables)
    settings: dict[str, Any] = {
        "learning_rate": LinearWarmupDecay(
            config.learning_rate, round(config.warmup * steps), steps
        ),
        "weight_decay": config.weight_decay,
        "beta_2": config.beta_2,
        "epsilon": 1e-6,
        "global_clipnorm": config.clip_norm,
    }
    if config.optimizer == "muon":
        optimizer: AdamW = Muon(
            **settings, matrix_rate=config.matrix_rate, product_dtype=product_dtype
        )
    else:
        optimizer = AdamW(**settings)
    # By variable: Keras would compare names like "LayerNorm" with "gamma", and find none.
    optimizer.exclude_from_weight_decay(var_list=[v for v in variables if not _decays(v)])
    optimizer.build(variables)
    return optimizer


def _decays(variable: keras.Variable) -> bool:
    return variable.name not in ("gamma", "beta", "bias")
