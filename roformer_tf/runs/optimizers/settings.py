"""The settings of the optimizers, of pretraining and of fine-tuning."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from roformer_tf.errors import InputError, check_numbers

Shape: TypeAlias = Literal["linear", "cosine", "wsd"]


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, LAMB or Muon, with linear warm-up and one of several ways down."""

    optimizer: Literal["adamw", "lamb", "muon"] = "adamw"
    """"lamb" gives each matrix a step in proportion to its own length, for batches of thousands of
    rows; "muon" moves the layers' matrices along their orthogonalised momentum, all else by
    AdamW."""
    muon_learning_rate_scale: float = 4.0
    """With muon, how many times the learning rate those matrices have."""
    learning_rate: float = 1e-4
    """Highest learning rate, reached when the warm-up ends."""
    warmup: float = 0.05
    """Share of the steps over which the learning rate rises; it then falls to 0 at the end."""
    schedule: Shape = "linear"
    """How it falls: "linear", "cosine", or "wsd", which stays at the highest until the
    last --decay-share of the steps."""
    decay_share: float = 0.1
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
        _check(self)
        check_numbers(self, "muon_learning_rate_scale", "decay_share", above=0)
        check_numbers(self, "ema", at_least=0, below=1)
        if self.schedule == "wsd" and self.warmup + self.decay_share > 1:
            raise InputError(
                f"--warmup and --decay-share are {self.warmup} and {self.decay_share}, together "
                "more than all steps. Lower one."
            )


@dataclass(frozen=True)
class FinetuneOptimizerConfig:
    """AdamW with linear warm-up and decay, or none, slower in the lower layers."""

    learning_rate: float | Literal["auto"] = "auto"
    """Highest learning rate, that of the head, reached when the warm-up ends; Default:
    the usual one for the model's size."""
    crf_learning_rate: float = 1e-2
    """With --crf, highest learning rate of what labels score behind each other: few numbers, which
    begin at 0 and have far to go."""
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
        _check(self)
        check_numbers(self, "crf_learning_rate", above=0)
        check_numbers(self, "layer_decay", above=0, at_most=1)
        check_numbers(self, "ema", at_least=0, below=1)
        check_numbers(self, "accumulate", at_least=1)


def _check(config: OptimizerConfig | FinetuneOptimizerConfig) -> None:
    """Raise InputError for a number outside its range, among those that both have."""
    check_numbers(config, "learning_rate", above=0)
    check_numbers(config, "weight_decay", at_least=0)
    check_numbers(config, "warmup", "beta_2", at_least=0, below=1)
    if config.clip_norm != math.inf:  # which clips nothing
        check_numbers(config, "clip_norm", above=0)
