"""Muon: matrices move along their orthogonalised momentum."""

import math
from typing import Any

import keras
from keras import ops

from roformer_tf.internals import moments_of, set_moments
from roformer_tf.training.optimizers.adamw import EmaAdamW

MUON_MOMENTUM = 0.95
# Coefficients of x, x³ and x⁵: applied five times they take 0.01 … 1 into about 0.7 … 1.2.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@keras.saving.register_keras_serializable(package="roformer_tf")
class Muon(EmaAdamW):
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
