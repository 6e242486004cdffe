"""Creates optimizers from settings, with their slots."""

import re
from collections.abc import Iterable
from typing import Any

import keras

from roformer_tf.errors import InputError
from roformer_tf.internals import schedule_of
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.training.optimizers.adamw import EmaAdamW, Lamb, LayerwiseAdamW
from roformer_tf.training.optimizers.muon import Muon
from roformer_tf.training.schedules import WarmupDecay
from roformer_tf.training.settings import FinetuneOptimizerConfig, OptimizerConfig


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
    reset it for a run with another rate and length. For that, its last variable, SCHEDULE, holds
    the numbers of the schedule; it is not in checkpoints.
    """
    settings = _settings(config, batches // config.accumulate, config.accumulate)
    optimizer = LayerwiseAdamW(
        **settings,
        scales=_scales(config, model),
        gradient_accumulation_steps=config.accumulate if config.accumulate > 1 else None,
    )
    optimizer.build(model.trainable_variables)
    schedule = settings["learning_rate"]
    schedule.numbers = optimizer.add_variable((4,), dtype="float32", name=SCHEDULE)
    schedule.adjust(schedule)
    return optimizer


def restart(
    optimizer: LayerwiseAdamW,
    config: FinetuneOptimizerConfig,
    model: PretrainedModel,
    batches: int,
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


# The variable of a restartable optimizer with the numbers of its schedule.
SCHEDULE = "schedule"
# Names of weights without decay: those of norms, biases and label transitions. A layer's name, such
# as "LayerNorm", would match none.
UNDECAYED = ("gamma", "beta", "bias", "start_transitions", "transitions", "end_transitions")
