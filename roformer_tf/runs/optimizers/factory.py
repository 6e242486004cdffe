"""The optimizer that settings ask for, its slots made."""

import re
from collections.abc import Iterable
from typing import Any

import keras

from roformer_tf.errors import InputError
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.runs.optimizers.adamw import EmaAdamW, LayerwiseAdamW
from roformer_tf.runs.optimizers.lamb import Lamb
from roformer_tf.runs.optimizers.muon import Muon
from roformer_tf.runs.optimizers.settings import FinetuneOptimizerConfig, OptimizerConfig
from roformer_tf.runs.schedules import WarmupDecay


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
    if batches < config.accumulate:
        raise InputError(
            f"the run has {batches} batches, fewer than the {config.accumulate} of one step. "
            "Lower --accumulate, or give more epochs."
        )
    scales = layer_scales(model.named_variables(), config.layer_decay)
    for name in scales:
        if name.startswith("crf/"):
            scales[name] = config.crf_learning_rate / config.learning_rate
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
            fall["decay_steps"] = max(1, round(config.decay_share * steps))
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


UNDECAYED = ("gamma", "beta", "bias", "start_transitions", "transitions", "end_transitions")
"""Norms' weights, biases, and what labels score behind each other, as they are called; a layer's
name, "LayerNorm", would match none."""
