"""Settings of every run: flags that are read before Keras is loaded."""

from dataclasses import dataclass
from typing import Literal

from roformer_tf.errors import InputError, check_numbers
from roformer_tf.kernels.devices import AttentionForm

Precision = Literal["auto", "float32", "mixed_bfloat16"]
"""A Keras dtype policy; "auto" is bfloat16 products where the device is fast at them."""


@dataclass(frozen=True)
class DevicesConfig:
    """What a run trains on. More than one device needs the JAX backend (KERAS_BACKEND=jax)."""

    devices: int | None = None
    """Devices, of all processes together. Unset: all GPUs or TPUs that JAX sees."""
    model_parallel: int = 1
    """Devices that share one copy of the weights and the optimizer's state, for large models."""
    distributed: bool = False
    """Several processes train together, each started with this same command. Slurm, Open MPI and
    Kubernetes tell each its place; elsewhere set JAX_COORDINATOR_ADDRESS=HOST:PORT,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID (from 0). All must see the same --output."""
    peak_flops: float | None = None
    """Floating-point operations a second of one device at its best, for the share of them that is
    used (`mfu` in metrics.jsonl). Unset, known for usual GPUs."""
    attention_form: AttentionForm | None = None
    """How JAX computes attention on an NVIDIA GPU: by cuDNN with a mask ("masked"), by JAX's Pallas
    kernel with a document number for each token ("segments", on a single GPU), or as matrix
    products and softmax ("plain"). Unset: masked. The results differ by rounding only."""

    def __post_init__(self) -> None:
        check_numbers(self, "devices", "model_parallel", at_least=1)
        check_numbers(self, "peak_flops", above=0, hint="such as 312e12")
        if self.devices is not None and self.devices % self.model_parallel:
            raise InputError(
                f"{self.devices} devices cannot be split into groups of {self.model_parallel} "
                "that share the weights. Give a multiple."
            )
