"""One Adam update of one weight (arXiv 1412.6980, the efficient order of its section 2)."""

from typing import Any

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.internals import keras_variable, moments_of

HALVES = ("bfloat16", "float16")


@keras.saving.register_keras_serializable(package="roformer_tf")
class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW with the same numbers; on TensorFlow one fused operation updates a weight.

    Keras' update consists of ten operations, each of which reads and writes arrays of the weight's
    size: a quarter of a small model's step on a CPU.
    16-bit weights have float32 moments, and the step is float32 until it is added: in bfloat16 a
    decay of 0.999 is rounded to 1, and in float16 the squares of small gradients are 0.
    `undecayed`: names of the weights without weight decay, such as "bias". They are saved in the
    config, unlike those of Keras' `exclude_from_weight_decay`.
    Raises InputError for `amsgrad`, which none of our optimizers supports.
    """

    def __init__(self, *arguments: Any, undecayed: Any = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if self.amsgrad:
            raise InputError(
                f"{type(self).__name__} has no amsgrad. Omit it, or use "
                "keras.optimizers.AdamW(amsgrad=True)."
            )
        self.undecayed = tuple(undecayed)

    def get_config(self) -> dict[str, Any]:
        """All arguments, to create the optimizer again."""
        return super().get_config() | {"undecayed": list(self.undecayed)}

    def add_variable(
        self, shape: Any, initializer: Any = "zeros", dtype: Any = None, **settings: Any
    ) -> keras.Variable:
        """Create a slot, in float32 for 16-bit weights."""
        # The exception: Keras accumulates the gradients of several batches in the weight's dtype.
        if dtype in HALVES and not str(settings.get("name")).endswith("gradient_accumulator"):
            dtype = "float32"
        return super().add_variable(shape, initializer, dtype, **settings)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight, which is TensorFlow's variable on TensorFlow, and its two moments."""
        first, second = moments_of(self, variable)
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if first.dtype != dtype:
            self._update_by_wider_moments(gradient, variable, learning_rate)
            return
        if keras.backend.backend() != "tensorflow":
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

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
            grad=tf.cast(tf.convert_to_tensor(gradient), variable.dtype),  # sparse ones too
        )

    def update_moments(self, gradient: Any, variable: Any) -> tuple[Any, Any, Any]:
        """Add a gradient to a weight's two moments; return them and the number of steps.

        All three have the moments' dtype. The moments are biased towards 0, their initial value.
        """
        first, second = moments_of(self, variable)
        gradient = ops.cast(dense(gradient), first.dtype)
        # Algorithm 1: m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²
        self.assign(first, self.beta_1 * first + (1 - self.beta_1) * gradient)
        self.assign(second, self.beta_2 * second + (1 - self.beta_2) * ops.square(gradient))
        return first, second, ops.cast(self.iterations + 1, first.dtype)

    def _use_weight_decay(self, variable: Any) -> bool:
        # A private method of Keras (`internals.py`). The argument can be TensorFlow's variable,
        # which has another name than Keras' variable, to which `undecayed` refers.
        own = keras_variable(self, variable)
        return own.name not in self.undecayed and super()._use_weight_decay(variable)

    def _update_by_wider_moments(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """`update_step` in plain operations and in the dtype of the moments."""
        first, second, steps = self.update_moments(gradient, variable)
        # Both moments start at 0. Their bias after t steps, 1 − βᵗ, is corrected in the rate.
        rate = learning_rate * ops.sqrt(1 - self.beta_2**steps) / (1 - self.beta_1**steps)
        step = rate * first / (ops.sqrt(second) + self.epsilon)
        self.assign(variable, ops.cast(variable, first.dtype) - step)


def dense(gradient: Any) -> Any:
    """A gradient as one tensor. TensorFlow's gradient of a look-up has rows and their indices."""
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)
