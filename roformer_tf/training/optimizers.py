"""Optimizers: schedule, AdamW, LAMB and Muon with averaged weights; their creation from settings.

One Adam update of one weight: arXiv 1412.6980, the efficient order of its section 2.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import keras
from keras import ops

from roformer_tf.internals import index_of, keras_variable, moments_of, set_moments
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.training.devices import sync
from roformer_tf.training.settings import FinetuneOptimizerConfig, OptimizerConfig

MUON_MOMENTUM = 0.95
# Coefficients of x, x³ and x⁵: applied five times they take 0.01 … 1 into about 0.7 … 1.2.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)

# Names of weights without decay: those of norms, biases and label transitions. A layer's name, such
# as "LayerNorm", would match none.
UNDECAYED = ("gamma", "beta", "bias", "start_transitions", "transitions", "end_transitions")


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
        # Counted in float32: it is exact up to 2²⁴, some sixteen million steps.
        step = ops.cast(step // self.accumulate - self.begin, "float32")
        rising = (step + 1.0) / max(self.warmup_steps, 1)
        # The fraction of the decay that remains: 1 until the decay begins, then down to 0.
        left = ops.clip((self.total_steps - step) / max(self.decay_steps, 1), 0.0, 1.0)
        falling = (1 - ops.cos(math.pi * left)) / 2 if self.shape == "cosine" else left
        # After the warm-up `rising` is at least 1, before the decay `falling` is 1: the minimum
        # selects the current phase.
        return self.peak * ops.clip(ops.minimum(rising, falling), 0.0, 1.0)

    def get_config(self) -> dict[str, Any]:
        """The arguments, for Keras' serialization."""
        return dict(vars(self))


@keras.saving.register_keras_serializable(package="roformer_tf")
class EmaAdamW(keras.optimizers.AdamW):
    """Keras' AdamW with the same numbers; on TensorFlow one fused operation updates a weight.

    Keras' update consists of ten operations, each of which reads and writes arrays of the weight's
    size: a quarter of a small model's step on a CPU.
    `undecayed`: names of the weights without weight decay, such as "bias". They are saved in the
    config, unlike those of Keras' `exclude_from_weight_decay`.
    `ema` is the decay of an exponential moving average of the weights, which starts at the weights.
    At step t (from 0) the decay is at most t / (t + 9), so that a short run forgets its initial
    weights. 0: no average. Keras' own `use_ema` counts every accumulated batch as a step, and
    overwrites the weights when `fit` ends. `amsgrad` is not supported.
    """

    def __init__(
        self, learning_rate: Any, *, ema: float = 0.0, undecayed: Any = (), **settings: Any
    ) -> None:
        super().__init__(learning_rate, **settings)
        self.undecayed, self.ema = tuple(undecayed), ema
        self.ema_weights: list[keras.Variable] = []

    def get_config(self) -> dict[str, Any]:
        """The arguments, for Keras' serialization."""
        return super().get_config() | {"ema": self.ema, "undecayed": list(self.undecayed)}

    def build(self, variables: list[keras.Variable]) -> None:
        """Create the slots and the averaged weights."""
        if self.built:
            return
        self.make_slots(variables)
        self.ema_weights = self.add_optimizer_variables(variables if self.ema else [], "ema")
        for average, variable in zip(self.ema_weights, variables, strict=False):  # none without ema
            average.assign(ops.copy(variable))  # a copy: JAX would donate the shared buffer twice

    def make_slots(self, variables: list[keras.Variable]) -> None:
        """Create the slots for the moments of the gradients."""
        super().build(variables)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight, its slots and its average."""
        self.move(gradient, variable, learning_rate * self.scale(variable))
        if self.ema:
            step = ops.cast(self.iterations, "float32")
            average = self.ema_weights[index_of(self, variable)]
            # At step 0 the decay is 0: the average becomes the weight after its first update.
            fresh = ops.cast(1 - ops.minimum(self.ema, step / (step + 9)), average.dtype)
            self.assign_add(average, fresh * ops.subtract(variable, average))

    def scale(self, variable: Any) -> float:
        """The factor on the learning rate of a weight, and so on its decay."""
        return 1.0

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight, which is TensorFlow's variable on TensorFlow, and its two moments."""
        if keras.backend.backend() != "tensorflow":
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

        first, second = moments_of(self, variable)
        # θ ← θ − η √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + ε), with "ε hat" of section 2 as ε. It is not
        # one of `forms`, because GPUs and XLA have this operation, too.
        steps = tf.cast(keras.ops.add(self.iterations, 1), variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=first.value.handle,
            v=second.value.handle,
            beta1_power=self.beta_1**steps,
            beta2_power=self.beta_2**steps,
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=tf.cast(_dense(gradient), variable.dtype),
        )

    def _use_weight_decay(self, variable: Any) -> bool:
        # A private method of Keras (`internals.py`). The argument can be TensorFlow's variable,
        # which has another name than Keras' variable, to which `undecayed` refers.
        own = keras_variable(self, variable)
        return own.name not in self.undecayed and super()._use_weight_decay(variable)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Decay weights by their own learning rates; Keras has one for all."""
        learning_rate = self.learning_rate  # once: the schedule has some twenty operations
        for variable in variables:
            if self._use_weight_decay(variable):
                # As in AdamW, the decay is proportional to the rate: with a scale of 0.1, a tenth.
                rate = ops.cast(learning_rate * self.scale(variable), variable.dtype)
                self.assign_sub(variable, ops.multiply(variable, self.weight_decay) * rate)


@keras.saving.register_keras_serializable(package="roformer_tf")
class LayerwiseAdamW(EmaAdamW):
    """AdamW with a learning rate, and so a weight decay, of its own for each weight.

    `scales`: factor on the learning rate for each weight, in the order of the variables that the
    optimizer is built with.
    """

    def __init__(self, learning_rate: Any, *, scales: Sequence[float], **kwargs: Any) -> None:
        super().__init__(learning_rate, **kwargs)
        self.scales = tuple(scales)

    def get_config(self) -> dict[str, Any]:
        """The arguments, for Keras' serialization."""
        return super().get_config() | {"scales": list(self.scales)}

    def scale(self, variable: Any) -> float:
        """The factor on the learning rate of a weight, and so on its decay."""
        return self.scales[index_of(self, variable)]


@keras.saving.register_keras_serializable(package="roformer_tf")
class Lamb(EmaAdamW):
    """LAMB: Adam with steps proportional to the norm of each matrix (arXiv 1904.00962).

    Algorithm 2 with φ(z) = z: x ← x − η · ‖x‖ / ‖r + λx‖ · (r + λx) for Adam's step r. The ratio is
    1 if either norm is 0. The decay is inside the ratio; in Keras' own LAMB it is outside. Norms
    and biases do not decay and take Adam's step, as in the authors' code.
    """

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and its two moments."""
        first, second = moments_of(self, variable)
        gradient = ops.cast(_dense(gradient), first.dtype)
        # Algorithm 1 of Adam: m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g². Both start at 0.
        self.assign(first, self.beta_1 * first + (1 - self.beta_1) * gradient)
        self.assign(second, self.beta_2 * second + (1 - self.beta_2) * ops.square(gradient))
        steps = ops.cast(self.iterations + 1, first.dtype)
        mean, square = first / (1 - self.beta_1**steps), second / (1 - self.beta_2**steps)
        moved = mean / (ops.sqrt(square) + self.epsilon)
        if self._use_weight_decay(variable):
            value = ops.cast(variable, first.dtype)
            moved = moved + self.weight_decay * value
            # flat: Keras has no norm over three axes, which attention's kernels have
            lengths = [ops.norm(ops.reshape(x, (-1,))) for x in (value, moved)]
            # A matrix that is all 0 would never move: ‖x‖ would make its ratio 0.
            some = (lengths[0] > 0) & (lengths[1] > 0)
            moved = moved * ops.where(some, lengths[0] / ops.where(some, lengths[1], 1.0), 1.0)
        self.assign_sub(variable, ops.cast(learning_rate, first.dtype) * moved)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        """Nothing: `move` includes the decay."""


@keras.saving.register_keras_serializable(package="roformer_tf")
class Muon(EmaAdamW):
    """AdamW for embeddings, norms and biases; matrices move along their orthogonalized momentum.

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
        """The arguments, for Keras' serialization."""
        own = {"matrix_rate": self.matrix_rate, "product_dtype": self.product_dtype}
        return super().get_config() | own

    def make_slots(self, variables: list[keras.Variable]) -> None:
        """Create a momentum for every weight, and squares only for those that AdamW updates."""
        keras.optimizers.Optimizer.build(self, variables)
        momentums, velocities = [], []
        add = self.add_variable_from_reference
        for variable in variables:
            momentums.append(add(variable, "momentum"))
            # Every dense layer's matrix is named kernel; tables of embeddings and biases are not.
            velocities.append(None if variable.name == "kernel" else add(variable, "velocity"))
        set_moments(self, momentums, velocities)

    def scale(self, variable: Any) -> float:
        """`matrix_rate` for matrices, 1 for the rest.

        The steps of a matrix do not get shorter. If it decayed at the lower rate, it would grow
        until attention is saturated (docs/LOG.md).
        """
        return self.matrix_rate if moments_of(self, variable)[1] is None else 1.0

    def move(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight and its moments."""
        momentum, velocity = moments_of(self, variable)
        if velocity is not None:
            super().move(gradient, variable, learning_rate)
            return
        gradient = ops.cast(gradient, momentum.dtype)
        self.assign(momentum, MUON_MOMENTUM * momentum + gradient)
        # Nesterov momentum: the new gradient, and the momentum that includes it already.
        ahead = as_matrix(gradient + MUON_MOMENTUM * momentum)
        step = 0.2 * math.sqrt(max(ahead.shape)) * orthogonal(ahead, self.product_dtype)
        step = ops.reshape(step, variable.shape)
        self.assign_sub(variable, learning_rate * step)


def orthogonal(matrix: Any, dtype: str) -> Any:
    """Bring all singular values of a matrix (M, N) near 1: U S Vᵀ → about U Vᵀ, float32.

    Five Newton–Schulz steps, which are products alone, on the shorter side's square.
    """
    a, b, c = NEWTON_SCHULZ
    # x xᵀ then has the size of the shorter side, which makes the products cheaper.
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if wide else ops.transpose(matrix)
    # No singular value exceeds the Frobenius norm, so all of them are at most 1 from here on.
    x = ops.cast(x / (ops.norm(x) + 1e-7), dtype)
    for _ in range(5):
        square = ops.matmul(x, ops.transpose(x))
        x = a * x + ops.matmul(b * square + c * ops.matmul(square, square), x)
    return ops.cast(x if wide else ops.transpose(x), "float32")


def as_matrix(kernel: Any) -> Any:
    """A kernel as the matrix that it multiplies with: attention's have an axis of heads.

    (D, N, H) → (D, N·H) for queries, keys and values, (N, H, D) → (N·H, D) for the output.
    """
    # In a model D is N · H, so that (D, N, H) keeps its first axis, and (N, H, D) joins two.
    inputs = kernel.shape[0]
    if inputs != math.prod(kernel.shape[1:]):
        inputs = math.prod(kernel.shape[:-1])
    return ops.reshape(kernel, (inputs, -1))


def _dense(gradient: Any) -> Any:
    """A gradient as one tensor. TensorFlow's gradient of a look-up has rows and their indices."""
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)


@contextmanager
def ema_weights(model: keras.Model) -> Iterator[None]:
    """Use the averaged weights of a compiled model within the block, if its optimizer has any.

    It works with `accumulate` and without, on both backends, inside and outside of `fit`.
    """
    swap_ema_weights(model)
    try:
        yield
    finally:
        swap_ema_weights(model)


def swap_ema_weights(model: keras.Model) -> None:
    """Exchange a compiled model's weights with their averages."""
    sync(model)
    averages = getattr(model.optimizer, "ema_weights", [])
    for weight, average in zip(model.trainable_variables, averages, strict=False):  # all, or none
        # A copy: on TensorFlow the weight itself would have its new value two lines below.
        value = ops.copy(weight)
        weight.assign(average)
        average.assign(value)


# Optimizers from settings


def make_optimizer(
    config: OptimizerConfig,
    variables: Iterable[keras.Variable],
    steps: int,
    product_dtype: str = "float32",
    begin: int = 0,
) -> EmaAdamW:
    """The optimizer of a run of `steps`, with its slots, without decay of norms and biases.

    `product_dtype`: dtype of Muon's products, such as the model's compute dtype. `begin`: steps of
    the run before the first one of this schedule.
    """
    settings = _settings(config, steps, begin=begin)
    if config.optimizer == "muon":
        settings["matrix_rate"] = config.muon_learning_rate_scale
        settings["product_dtype"] = product_dtype
    kind = {"adamw": EmaAdamW, "lamb": Lamb, "muon": Muon}[config.optimizer]
    optimizer = kind(**settings)
    optimizer.build(list(variables))
    return optimizer


def make_finetune_optimizer(
    config: FinetuneOptimizerConfig, model: PretrainedModel, batches: int
) -> LayerwiseAdamW:
    """The optimizer for fine-tuning on a number of batches, with its slots.

    A step takes `accumulate` batches; remaining batches at the end make no step.
    """
    settings = _settings(config, batches // config.accumulate, config.accumulate)
    optimizer = LayerwiseAdamW(
        **settings,
        scales=_scales(config, model),
        gradient_accumulation_steps=config.accumulate if config.accumulate > 1 else None,
    )
    optimizer.build(model.trainable_variables)
    return optimizer


def _scales(config: FinetuneOptimizerConfig, model: PretrainedModel) -> tuple[float, ...]:
    """Factor on the learning rate of each trainable weight, in their order."""
    scales = layer_scales(model.named_variables(), config.layer_decay)
    rate = config.learning_rate
    for name in scales:
        # The factor cancels the common rate: these weights are trained with crf_learning_rate.
        if name.startswith("crf/") and not isinstance(rate, str):
            scales[name] = config.crf_learning_rate / rate
    names = {id(variable): name for name, variable in model.named_variables().items()}
    # A weight without a name is not part of the model: it is new, with the rate of a head.
    return tuple(scales.get(names.get(id(v), ""), 1.0) for v in model.trainable_variables)


def layer_scales(names: Iterable[str], decay: float) -> dict[str, float]:
    """Learning rate of weights relative to the head's: decay^(layers above them).

    The head counts as a layer above the last, the embeddings as one below the first. With 12
    layers: 1 for the head, decay for layer 11, decay^12 for layer 0, decay^13 for the embeddings.
    """
    matches = {name: re.match(r"encoder/(?:layer_(\d+)|embeddings)/", name) for name in names}
    # Embeddings match without a number and have the level −1; a head's weights match nothing.
    levels = {name: int(x[1] or -1) if x else None for name, x in matches.items()}
    top = max(level for level in levels.values() if level is not None) + 1
    return {n: 1.0 if level is None else decay ** (top - level) for n, level in levels.items()}


def _settings(
    config: OptimizerConfig | FinetuneOptimizerConfig,
    steps: int,
    accumulate: int = 1,
    begin: int = 0,
) -> dict[str, Any]:
    """Arguments of AdamW."""
    decay: dict[str, Any] = {"begin": begin}
    if config.schedule == "cosine":
        decay["shape"] = "cosine"
    elif config.schedule == "wsd":
        decay["decay_steps"] = max(1, round(config.decay_share * steps))
    elif config.schedule == "constant":
        decay["decay_steps"] = 0  # it is 0 only after the last step
    assert not isinstance(config.learning_rate, str)  # "auto" has become a number
    warmup = round(config.warmup * steps)
    return {
        "learning_rate": WarmupDecay(config.learning_rate, warmup, steps, accumulate, **decay),
        "weight_decay": config.weight_decay,
        "beta_2": config.beta_2,
        "epsilon": 1e-6,
        "global_clipnorm": config.clip_norm,
        "ema": config.ema,
        "undecayed": UNDECAYED,
    }
