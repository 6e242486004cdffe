"""AdamW as BERT is trained and fine-tuned, LAMB, Muon, and their learning rate over the steps."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.internals import index_of, moments_of, set_moments
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.runs.ema import AveragingAdamW

Shape: TypeAlias = Literal["linear", "cosine", "wsd"]


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, LAMB or Muon, with linear warm-up and one of several ways down."""

    optimizer: Literal["adamw", "lamb", "muon"] = "adamw"
    """"lamb" gives each matrix a step in proportion to its own length, for batches of thousands of
    rows; "muon" moves the layers' matrices along their orthogonalised momentum, all else by
    AdamW."""
    matrix_rate: float = 4.0
    """With muon, how many times the learning rate those matrices have."""
    learning_rate: float = 1e-4
    """Highest learning rate, reached when the warm-up ends."""
    warmup: float = 0.05
    """Share of the steps over which the learning rate rises; it then falls to 0 at the end."""
    schedule: Shape = "linear"
    """How it falls: "linear", "cosine", or "wsd", which stays at the highest until `decay`."""
    decay: float = 0.1
    """With wsd, share of the steps, the last ones, over which it falls."""
    weight_decay: float = 0.01
    """Decay of the weights, as a share of the learning rate; not on norms and biases."""
    beta_2: float = 0.98
    """Memory of the squared gradients."""
    clip_norm: float = 1.0
    """Longest gradient, over all weights together; longer ones are scaled down."""
    ema: float = 0.0
    """Memory of the averaged weights, which are evaluated and published, such as 0.999; 0 takes
    the last ones."""

    def __post_init__(self) -> None:
        _check(
            self,
            above_0=("learning_rate", "clip_norm", "matrix_rate", "decay"),
            shares=("ema",),
        )
        if self.schedule == "wsd" and self.warmup + self.decay > 1:
            raise InputError(
                f"warmup and decay are {self.warmup} and {self.decay} of the steps, together more "
                "than all. Lower one."
            )


@dataclass(frozen=True)
class FinetuneOptimizerConfig:
    """AdamW with linear warm-up and decay, or none, slower in the lower layers."""

    learning_rate: float = 2e-5
    """Highest learning rate, that of the head, reached when the warm-up ends; for small models, or
    from scratch, 1e-4 and more."""
    layer_decay: float = 0.95
    """Learning rate of a layer as a share of that of the layer above it; 1 gives all the same."""
    warmup: float = 0.1
    """Share of the steps over which the learning rate rises; it then falls to 0 at the end."""
    schedule: Literal["linear", "constant"] = "linear"
    """How it falls; "constant" keeps it as it is."""
    weight_decay: float = 0.01
    """Decay of the weights, as a share of the learning rate; not on norms and biases."""
    beta_2: float = 0.999
    """Memory of the squared gradients."""
    clip_norm: float = 1.0
    """Longest gradient, over all weights together; longer ones are scaled down."""
    accumulate: int = 1
    """Batches whose mean gradient is a step: larger batches than fit into memory."""
    ema: float = 0.0
    """Memory of the averaged weights to evaluate and keep, such as 0.999; 0 keeps the last ones."""

    def __post_init__(self) -> None:
        _check(self, above_0=("learning_rate", "clip_norm"), shares=("ema",))
        if not 0 < self.layer_decay <= 1:
            raise InputError(
                f"layer_decay is {self.layer_decay}, but must be above 0 and at most 1."
            )
        if self.accumulate < 1:
            raise InputError(f"accumulate is {self.accumulate}, but must be at least 1.")


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
class LayerwiseAdamW(AveragingAdamW):
    """AdamW with a learning rate, and so a decay, of its own for each weight.

    `scales`: learning rate of each weight as a share of the learning rate, in the order of the
    variables that it is built on.
    """

    def __init__(self, learning_rate: Any, *, scales: Sequence[float], **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.scales = tuple(scales)

    def get_config(self) -> dict[str, Any]:
        """Everything needed to make the optimizer again."""
        return super().get_config() | {"scales": list(self.scales)}

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight by its own learning rate."""
        scale = self.scales[index_of(self, variable)]
        super().move(gradient, variable, learning_rate * scale)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Shrink weights by their own learning rates; Keras knows one for all."""
        for variable in variables:
            if self._use_weight_decay(variable):
                rate = self.learning_rate * self.scales[index_of(self, variable)]
                self.assign_sub(variable, ops.multiply(variable, rate * self.weight_decay))


@keras.saving.register_keras_serializable(package="roformer_tf")
class Lamb(AveragingAdamW):
    """Adam whose step on a matrix is as long, in proportion, as the matrix (arXiv 1904.00962).

    Algorithm 2 with φ(z) = z: x ← x − η · ‖x‖ / ‖r + λx‖ · (r + λx) for Adam's step r, the ratio
    being 1 where either length is 0. Decay stands inside the ratio; Keras' own LAMB has it outside.
    Norms and biases, which do not decay, take Adam's step as it is, as in the authors' code.
    """

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and its two moments."""
        first, second, steps = self.update_moments(gradient, variable)
        mean, square = first / (1 - self.beta_1**steps), second / (1 - self.beta_2**steps)
        moved = mean / (ops.sqrt(square) + self.epsilon)
        if self._use_weight_decay(variable):
            value = ops.cast(variable, first.dtype)
            moved = moved + self.weight_decay * value
            # flat: of three axes, such as attention's kernels have, Keras knows no norm
            lengths = [ops.norm(ops.reshape(x, (-1,))) for x in (value, moved)]
            some = (lengths[0] > 0) & (lengths[1] > 0)
            moved = moved * ops.where(some, lengths[0] / ops.where(some, lengths[1], 1.0), 1.0)
        self.assign_sub(variable, ops.cast(learning_rate, first.dtype) * moved)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """It is part of the step."""


@keras.saving.register_keras_serializable(package="roformer_tf")
class Muon(AveragingAdamW):
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

    def get_config(self) -> dict[str, Any]:
        """Everything needed to make the optimizer again."""
        own = {"matrix_rate": self.matrix_rate, "product_dtype": self.product_dtype}
        return super().get_config() | own

    def make_slots(self, variables: list[keras.Variable]) -> None:
        """Make a momentum of every weight, squares only of those that are Adam's."""
        keras.optimizers.Optimizer.build(self, variables)
        momentums, velocities = [], []
        for variable in variables:
            momentums.append(self.add_variable_from_reference(variable, "momentum"))
            velocities.append(
                None
                if variable.name == "kernel"
                else self.add_variable_from_reference(variable, "velocity")
            )
        set_moments(self, momentums, velocities)

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and what is remembered of it."""
        momentum, velocity = moments_of(self, variable)
        if velocity is not None:
            super().move(gradient, variable, learning_rate)
            return
        gradient = ops.cast(gradient, momentum.dtype)
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
    begin: int = 0,
) -> AveragingAdamW:
    """The optimizer of a run of `steps`, its slots made, its decay off for norms and biases.

    `product_dtype`: what Muon multiplies in, such as the model's compute dtype. `begin`: steps that
    the run had before this schedule's first one.
    """
    settings = _settings(config, steps, begin=begin)
    if config.optimizer == "muon":
        optimizer: AveragingAdamW = Muon(
            **settings, matrix_rate=config.matrix_rate, product_dtype=product_dtype
        )
    else:
        optimizer = {"adamw": AveragingAdamW, "lamb": Lamb}[config.optimizer](**settings)
    optimizer.build(list(variables))
    return optimizer


def make_finetune_optimizer(
    config: FinetuneOptimizerConfig, model: PretrainedModel, batches: int
) -> LayerwiseAdamW:
    """The optimizer of a run of so many batches, its slots made, for `compile`.

    A step takes `accumulate` batches; what is left over at the end makes none. Raises InputError
    where there are too few for a single step.
    """
    if batches < config.accumulate:
        raise InputError(
            f"the run has {batches} batches, fewer than the {config.accumulate} of one step. "
            "Lower --accumulate, or give more epochs."
        )
    scales = layer_scales(model.named_variables(), config.layer_decay)
    names = {id(variable): name for name, variable in model.named_variables().items()}
    variables = model.trainable_variables
    optimizer = LayerwiseAdamW(
        **_settings(config, batches // config.accumulate, config.accumulate),
        scales=[scales[names[id(v)]] for v in variables],
        gradient_accumulation_steps=config.accumulate if config.accumulate > 1 else None,
    )
    optimizer.build(variables)
    return optimizer


def layer_scales(names: Iterable[str], decay: float) -> dict[str, float]:
    """Learning rate of weights as a share of the head's: decay^(layers above them).

    The head is a layer of its own above the uppermost, the embeddings one below the lowest:
    of 12 layers, 1 for the head, decay for layer 11, decay^12 for layer 0, decay^13 for them.
    """
    found = {name: re.match(r"encoder/(?:layer_(\d+)|embeddings)/", name) for name in names}
    levels = {name: int(x[1] or -1) if x else None for name, x in found.items()}
    top = max(level for level in levels.values() if level is not None) + 1
    return {n: 1.0 if level is None else decay ** (top - level) for n, level in levels.items()}


def _settings(
    config: OptimizerConfig | FinetuneOptimizerConfig,
    steps: int,
    accumulate: int = 1,
    begin: int = 0,
) -> dict[str, Any]:
    """What AdamW is made with."""
    fall: dict[str, Any] = {"begin": begin}
    if isinstance(config, OptimizerConfig):
        if config.schedule == "cosine":
            fall["shape"] = "cosine"
        elif config.schedule == "wsd":
            fall["decay_steps"] = max(1, round(config.decay * steps))
    elif config.schedule == "constant":
        fall["decay_steps"] = 0  # it is 0 only after the last step
    warmup = round(config.warmup * steps)
    return {
        "learning_rate": WarmupDecay(config.learning_rate, warmup, steps, accumulate, **fall),
        "weight_decay": config.weight_decay,
        "beta_2": config.beta_2,
        "epsilon": 1e-6,
        "global_clipnorm": config.clip_norm,
        "ema": config.ema,
        "undecayed": UNDECAYED,
    }


UNDECAYED = ("gamma", "beta", "bias")
"""Norms' weights and biases, as they are called; a layer's name, "LayerNorm", would match none."""


def _check(
    config: OptimizerConfig | FinetuneOptimizerConfig,
    above_0: tuple[str, ...],
    shares: tuple[str, ...] = (),
) -> None:
    """Raise InputError for a number outside its range."""
    for name in above_0:
        if not getattr(config, name) > 0:
            raise InputError(f"{name} is {getattr(config, name)}, but must be above 0.")
    for name in ("learning_rate", "weight_decay", "matrix_rate"):  # a clip_norm of inf is none
        if math.isinf(getattr(config, name, 0.0)):
            raise InputError(f"{name} is {getattr(config, name)}, but must be a finite number.")
    for name in ("warmup", "beta_2", *shares):
        if not 0 <= getattr(config, name) < 1:
            raise InputError(
                f"{name} is {getattr(config, name)}, but must be at least 0 and less than 1."
            )
    if not config.weight_decay >= 0:
        raise InputError(f"weight_decay is {config.weight_decay}, but must not be negative.")
