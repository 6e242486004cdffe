"""Learning rate schedules, and optimizers from settings, with their slots."""

import math
import re
from collections.abc import Iterable
from typing import Any, Literal

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.internals import schedule_of
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.training.optimizers import EmaAdamW, Lamb, LayerwiseAdamW, Muon
from roformer_tf.training.settings import FinetuneOptimizerConfig, OptimizerConfig


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
        optimizer: EmaAdamW = Muon(
            **settings, matrix_rate=config.muon_learning_rate_scale, product_dtype=product_dtype
        )
    else:
        optimizer = {"adamw": EmaAdamW, "lamb": Lamb}[config.optimizer](**settings)
    optimizer.build(list(variables))
    return optimizer


def make_finetune_optimizer(
    config: FinetuneOptimizerConfig, model: PretrainedModel, batches: int
) -> LayerwiseAdamW:
    """The optimizer for fine-tuning on a number of batches, with its slots.

    A step takes `accumulate` batches; remaining batches at the end make no step. `restart` can
    reset it for a run with another rate and length.
    """
    settings = _settings(config, batches // config.accumulate, config.accumulate)
    optimizer = LayerwiseAdamW(
        **settings,
        scales=_scales(config, model),
        gradient_accumulation_steps=config.accumulate if config.accumulate > 1 else None,
    )
    optimizer.build(model.trainable_variables)
    return optimizer


def restart(
    optimizer: LayerwiseAdamW, config: FinetuneOptimizerConfig, model: PretrainedModel, batches: int
) -> None:
    """Reset a fine-tuning optimizer to the state of a new one with these settings.

    Rate and length may differ from before; `may_restart` checks the rest.
    """
    optimizer.restart(model.trainable_variables)
    settings = _settings(config, batches // config.accumulate, config.accumulate)
    schedule_of(optimizer).adjust(settings["learning_rate"])


def may_restart(
    optimizer: LayerwiseAdamW, config: FinetuneOptimizerConfig, model: PretrainedModel
) -> bool:
    """Whether the settings keep the learning rate factors of the weights, which are compiled."""
    return tuple(optimizer.scales) == _scales(config, model)


def _scales(config: FinetuneOptimizerConfig, model: PretrainedModel) -> tuple[float, ...]:
    """Factor on the learning rate of each trainable weight, in their order."""
    scales = layer_scales(model.named_variables(), config.layer_decay)
    rate = config.learning_rate
    for name in scales:
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
    if isinstance(config, OptimizerConfig):
        if config.schedule == "cosine":
            decay["shape"] = "cosine"
        elif config.schedule == "wsd":
            decay["decay_steps"] = max(1, round(config.decay_share * steps))
    elif config.schedule == "constant":
        decay["decay_steps"] = 0  # it is 0 only after the last step
    if isinstance(config.learning_rate, str):
        raise InputError('the learning rate is "auto": give make_finetune_optimizer a number.')
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


# Names of weights without decay: those of norms, biases and label transitions. A layer's name, such
# as "LayerNorm", would match none.
UNDECAYED = ("gamma", "beta", "bias", "start_transitions", "transitions", "end_transitions")
