"""Settings that all training commands share. Importing them does not load Keras."""

from dataclasses import dataclass
from typing import Literal

from roformer_tf.errors import InputError, check_needed, check_numbers

# A Keras dtype policy. "auto": bfloat16 matrix products where the device is faster with them.
Precision = Literal["auto", "float32", "mixed_bfloat16"]
# Packages that metrics are sent to.
Tracker = Literal["wandb", "mlflow", "swanlab"]


@dataclass(frozen=True)
class DevicesConfig:
    """The devices of a run. More than one device needs the JAX backend (KERAS_BACKEND=jax)."""

    devices: int | None = None
    """Number of devices, over all processes. Default: all GPUs or TPUs that JAX sees."""
    model_parallel: int = 1
    """Devices that share one copy of the weights and the optimizer's state, for large models."""
    distributed: bool = False
    """Train with several processes, each started with this same command. Slurm, Open MPI and
    Kubernetes set the rank of each; elsewhere set JAX_COORDINATOR_ADDRESS=HOST:PORT,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID (from 0). All must see the same --output."""
    peak_flops: float | None = None
    """Peak floating-point operations per second of one device, for the model FLOPs utilization
    (`mfu` in metrics.jsonl), such as 989e12 of an H100 in bfloat16."""

    def __post_init__(self) -> None:
        check_numbers(self, "devices", "model_parallel", at_least=1)
        check_numbers(self, "peak_flops", above=0, example="312e12")
        if self.devices is not None and self.devices % self.model_parallel:
            raise InputError(
                f"--devices is {self.devices}, which cannot be split into groups of "
                f"{self.model_parallel} that share the weights. Give a multiple."
            )


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, LAMB or Muon, with linear warm-up and a decay schedule."""

    optimizer: Literal["adamw", "lamb", "muon"] = "adamw"
    """Optimizer. "lamb" is for batches of thousands of sequences; "muon" updates the matrices of
    the layers along their orthogonalized momentum and all other weights with AdamW."""
    muon_learning_rate_scale: float = 4.0
    """With muon, factor on the learning rate of those matrices."""
    learning_rate: float = 1e-4
    """Peak learning rate, reached at the end of the warm-up."""
    warmup: float = 0.05
    """Fraction of the steps over which the learning rate rises; it then decays to 0."""
    schedule: Literal["linear", "cosine", "wsd"] = "linear"
    """Decay: "linear", "cosine", or "wsd" (warm-up, stable, decay), which keeps the peak until the
    last --decay-share of the steps."""
    decay_share: float = 0.1
    """With wsd, fraction of the steps, at the end, over which the learning rate decays."""
    weight_decay: float = 0.01
    """Weight decay, multiplied by each weight's learning rate; not applied to norms and biases."""
    beta_2: float = 0.98
    """Decay rate of the second moment (Adam's beta 2)."""
    clip_norm: float = 1.0
    """Maximum norm of the gradient over all weights; larger ones are scaled down."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, such as 0.999. The average is
    evaluated and published; with 0 the last weights are."""

    def __post_init__(self) -> None:
        _check(self)
        check_numbers(self, "muon_learning_rate_scale", "decay_share", above=0)
        if self.optimizer != "muon":
            check_needed(self, "--optimizer muon", "muon_learning_rate_scale")
        if self.schedule != "wsd":
            check_needed(self, "--schedule wsd", "decay_share")
        elif self.warmup + self.decay_share > 1:
            raise InputError(
                f"--warmup and --decay-share are {self.warmup} and {self.decay_share}, together "
                "more than 1. Lower one of them."
            )


@dataclass(frozen=True)
class FinetuneOptimizerConfig:
    """AdamW with linear warm-up, a decay schedule and lower learning rates in lower layers."""

    learning_rate: float | Literal["auto"] = "auto"
    """Peak learning rate, that of the head, reached at the end of the warm-up. "auto" chooses by
    the model's size."""
    crf_learning_rate: float = 1e-2
    """With --crf, peak learning rate of the label transitions. They start at 0 and need larger
    steps than other weights."""
    layer_decay: float = 0.95
    """Learning rate of a layer relative to the layer above it; 1 is the same for all."""
    warmup: float = 0.1
    """Fraction of the steps over which the learning rate rises; it then decays to 0."""
    schedule: Literal["linear", "constant"] = "linear"
    """Decay of the learning rate after the warm-up; "constant" keeps the peak."""
    weight_decay: float = 0.01
    """Weight decay, multiplied by each weight's learning rate; not applied to norms and biases."""
    beta_2: float = 0.999
    """Decay rate of the second moment (Adam's beta 2)."""
    clip_norm: float = 1.0
    """Maximum norm of the gradient over all weights; larger ones are scaled down."""
    accumulate: int = 1
    """Batches per step (gradient accumulation), for batches that do not fit into memory."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, such as 0.999; 0 is no average."""

    def __post_init__(self) -> None:
        _check(self)
        check_numbers(self, "crf_learning_rate", above=0)
        check_numbers(self, "layer_decay", above=0, at_most=1)
        check_numbers(self, "accumulate", at_least=1)


def _check(config: OptimizerConfig | FinetuneOptimizerConfig) -> None:
    """Check the ranges of the settings that both classes have."""
    check_numbers(config, "learning_rate", above=0)
    check_numbers(config, "weight_decay", at_least=0)
    check_numbers(config, "warmup", "beta_2", "ema", at_least=0, below=1)
    check_numbers(config, "clip_norm", above=0)
