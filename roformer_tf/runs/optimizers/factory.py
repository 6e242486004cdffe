"""The optimizer that settings ask for, its slots made."""

import re
from collections.abc import Iterable
from typing import Any

import keras

from roformer_tf.errors import InputError
from roformer_tf.internals import schedule_of
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.runs.optimizers.adamw import EmaAdamW, Lamb, LayerwiseAdamW
from roformer_tf.runs.optimizers.muon import Muon
from roformer_tf.runs.optimizers.settings import FinetuneOptimizerConfig, OptimizerConfig
from roformer_tf.runs.schedules import AdjustableDecay, WarmupDecay


def make_optimizer(
    config: OptimizerConfig,
    variables: Iterable[keras.Variable],
    steps: int,
    product_dtype: str = "float32",
    begin: int = 0,
) -> EmaAdamW:
    """The optimizer of a run of `steps`, its slots made, its decay off for norms and biases.

    `product_dtype`: what Muon multiplies in, such as the model's compute dtype. `begin`: steps that
    the run had before this schedule's first one.
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
    """The optimizer of a run of so many batches, its slots made, for `compile`.

    A step takes `accumulate` batches; what is left over at the end makes none. Raises InputError
    where there are too few for a single step.
    """
    return _make_layerwise(config, model, _of_batches(config, batches))


def make_restartable_optimizer(
    config: FinetuneOptimizerConfig, model: PretrainedModel, batches: int
) -> LayerwiseAdamW:
    """The same, but `restart` may set it back for a run of another rate and length.

    What it schedules by is its last variable, SCHEDULE, which is no part of a checkpoint.
    """
    settings = _of_batches(config, batches)
    schedule = AdjustableDecay(**settings["learning_rate"].get_config())
    optimizer = _make_layerwise(config, model, settings | {"learning_rate": schedule})
    schedule.numbers = optimizer.add_variable((4,), dtype="float32", name=SCHEDULE)
    schedule.adjust(schedule)
    return optimizer


def restart(
    optimizer: LayerwiseAdamW,
    config: FinetuneOptimizerConfig,
    model: PretrainedModel,
    batches: int,
) -> None:
    """Set a restartable optimizer back, as if made for this model and these settings.

    They may have another rate and length, where `may_restart` says so.
    """
    optimizer.restart(model.trainable_variables)
    schedule_of(optimizer).adjust(_of_batches(config, batches)["learning_rate"])


def may_restart(
    optimizer: LayerwiseAdamW, config: FinetuneOptimizerConfig, model: PretrainedModel
) -> bool:
    """Whether the settings leave the weights their shares of the rate, which are compiled."""
    return tuple(optimizer.scales) == _scales(config, model)


def _make_layerwise(
    config: FinetuneOptimizerConfig, model: PretrainedModel, settings: dict[str, Any]
) -> LayerwiseAdamW:
    """The optimizer that the settings give, its slots made."""
    optimizer = LayerwiseAdamW(
        **settings,
        scales=_scales(config, model),
        gradient_accumulation_steps=config.accumulate if config.accumulate > 1 else None,
    )
    optimizer.build(model.trainable_variables)
    return optimizer


def _scales(config: FinetuneOptimizerConfig, model: PretrainedModel) -> tuple[float, ...]:
    """Share of the learning rate that each trainable weight has, in their order."""
    scales = layer_scales(model.named_variables(), config.layer_decay)
    rate = config.learning_rate
    for name in scales:
        if name.startswith("crf/") and not isinstance(rate, str):
            scales[name] = config.crf_learning_rate / rate
    names = {id(variable): name for name, variable in model.named_variables().items()}
    # What has no name is trained beside the model and is new: it learns as fast as a head.
    return tuple(scales.get(names.get(id(v), ""), 1.0) for v in model.trainable_variables)


def layer_scales(names: Iterable[str], decay: float) -> dict[str, float]:
    """Learning rate of weights as a share of the head's: decay^(layers above them).

    The head is a layer of its own above the uppermost, the embeddings one below the lowest:
    of 12 layers, 1 for the head, decay for layer 11, decay^12 for layer 0, decay^13 for them.
    """
    found = {name: re.match(r"encoder/(?:layer_(\d+)|embeddings)/", name) for name in names}
    levels = {name: int(x[1] or -1) if x else None for name, x in found.items()}
    top = max(level for level in levels.values() if level is not None) + 1
    return {n: 1.0 if level is None else decay ** (top - level) for n, level in levels.items()}


def _of_batches(config: FinetuneOptimizerConfig, batches: int) -> dict[str, Any]:
    """What AdamW is made with for so many batches. Raises InputError where they make no step."""
    if batches < config.accumulate:
        raise InputError(
            f"the run has {batches} batches, fewer than the {config.accumulate} of one step. "
            "Lower --accumulate, or give more epochs."
        )
    return _settings(config, batches // config.accumulate, config.accumulate)


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
            fall["decay_steps"] = max(1, round(config.decay_share * steps))
    elif config.schedule == "constant":
        fall["decay_steps"] = 0  # it is 0 only after the last step
    if isinstance(config.learning_rate, str):
        raise InputError('the learning rate is "auto": give make_finetune_optimizer a number.')
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


SCHEDULE = "schedule"
"""A restartable optimizer's variable of what it schedules by."""
UNDECAYED = ("gamma", "beta", "bias", "start_transitions", "transitions", "end_transitions")
"""Norms' weights, biases, and what labels score behind each other, as they are called; a layer's
name, "LayerNorm", would match none."""
