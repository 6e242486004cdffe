"""One Adam update of one weight (arXiv 1412.6980, the efficient order of its section 2)."""

from typing import Any

import keras
from keras import ops

from roformer_tf.errors import InputError
from roformer_tf.internals import keras_variable, moments_of

HALVES = ("bfloat16", "float16")


@keras.saving.register_keras_serializable(package="roformer_tf")
class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW, the same numbers; on TensorFlow each weight is updated by one fused operation.

    Keras' own update is ten operations, each of which reads and writes arrays as large as the
    weight: a quarter of a small model's step on a CPU.
    Of a weight of 16 bits the moments are float32, and so is the step until it is added: in
    bfloat16 a memory of 0.999 is 1, which never moves, and small gradients' squares are 0 in
    float16.
    `undecayed`: names of the weights that do not decay, such as "bias"; they are saved with the
    rest, which Keras' `exclude_from_weight_decay` is not.
    Raises InputError for `amsgrad`, which none of our optimizers has.
    """

    def __init__(self, *arguments: Any, undecayed: Any = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if self.amsgrad:
            raise InputError(
                f"{type(self).__name__} has no amsgrad. Leave it out, or take "
                "keras.optimizers.AdamW(amsgrad=True)."
            )
        self.undecayed = tuple(undecayed)

    def get_config(self) -> dict[str, Any]:
        """Everything needed to make the optimizer again."""
        return super().get_config() | {"undecayed": list(self.undecayed)}

    def add_variable(
        self, shape: Any, initializer: Any = "zeros", dtype: Any = None, **settings: Any
    ) -> keras.Variable:
        """Make a slot: of weights of 16 bits, float32, but what Keras sums up in theirs."""
        # Keras adds the gradients of several batches up in the weight's own dtype.
        if dtype in HALVES and not str(settings.get("name")).endswith("gradient_accumulator"):
            dtype = "float32"
        return super().add_variable(shape, initializer, dtype, **settings)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight, here TensorFlow's own variable, and its two moments."""
        first, second = moments_of(self, variable)
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if first.dtype != dtype:
            self._update_by_wider_moments(gradient, variable, learning_rate)
            return
        if keras.backend.backend() != "tensorflow":
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

        # θ ← θ − η √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + ε), whose ε is section 2's "ε hat". No
        # processor's trick, and so not one of `forms`: GPUs and XLA have this operation as well.
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
        """Take a gradient into a weight's two moments; give them, and how many have been taken.

        All three are in the moments' dtype; the moments still lean towards 0, where they began.
        """
        first, second = moments_of(self, variable)
        gradient = ops.cast(dense(gradient), first.dtype)
        # Algorithm 1: m ← β₁ m + (1 − β₁) g, v ← β₂ v + (1 − β₂) g²
        self.assign(first, self.beta_1 * first + (1 - self.beta_1) * gradient)
        self.assign(second, self.beta_2 * second + (1 - self.beta_2) * ops.square(gradient))
        return first, second, ops.cast(self.iterations + 1, first.dtype)

    def _use_weight_decay(self, variable: Any) -> bool:
        # A hook of Keras' (`internals.py`). TensorFlow's own variable, which comes here, has
        # another name than Keras', which `undecayed` is about.
        known = keras_variable(self, variable)
        return known.name not in self.undecayed and super()._use_weight_decay(variable)

    def _update_by_wider_moments(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """The same in plain operations and the moments' dtype."""
        first, second, steps = self.update_moments(gradient, variable)
        # Both moments begin at 0; the bias that is left after t steps, 1 − βᵗ, goes into the rate.
        rate = learning_rate * ops.sqrt(1 - self.beta_2**steps) / (1 - self.beta_1**steps)
        step = rate * first / (ops.sqrt(second) + self.epsilon)
        self.assign(variable, ops.cast(variable, first.dtype) - step)


def dense(gradient: Any) -> Any:
    """A gradient as one tensor; that of looked-up rows TensorFlow gives as rows and places."""
    if keras.backend.backend() != "tensorflow":
        return gradient
    import tensorflow as tf

    return tf.convert_to_tensor(gradient)
