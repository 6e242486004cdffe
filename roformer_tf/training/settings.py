"""Settings that all training commands share. Importing them does not load Keras."""

from dataclasses import dataclass
from typing import Literal

from roformer_tf.errors import InputError, check_numbers
from roformer_tf.kernels.devices import AttentionForm

Precision = Literal["auto", "float32", "mixed_bfloat16"]
"""A Keras dtype policy. "auto": bfloat16 matrix products where the device is faster with them."""


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
    (`mfu` in metrics.jsonl). Default: known for common GPUs."""
    attention_form: AttentionForm | None = None
    """How JAX computes attention on an NVIDIA GPU: "masked" (cuDNN with a mask), "segments" (JAX's
    Pallas kernel with a document number per token, single GPU) or "plain" (matrix products and
    softmax). Default: masked. Results differ by rounding only."""

    def __post_init__(self) -> None:
        check_numbers(self, "devices", "model_parallel", at_least=1)
        check_numbers(self, "peak_flops", above=0, hint="such as 312e12")
        if self.devices is not None and self.devices % self.model_parallel:
            raise InputError(
                f"{self.devices} devices cannot be split into groups of {self.model_parallel} "
                "that share the weights. Give a multiple."
            )
