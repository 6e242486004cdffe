"""One Adam update of one weight (arXiv 1412.6980, the efficient order of its section 2)."""

from typing import Any

import keras


class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW, the same numbers; on TensorFlow each weight is updated by one fused operation.

    Keras' own update is ten operations, each of which reads and writes arrays as large as the
    weight: a quarter of a small model's step on a CPU.
    """

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight, here TensorFlow's own variable, and its two moments."""
        if keras.backend.backend() != "tensorflow":
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

        steps = tf.cast(keras.ops.add(self.iterations, 1), variable.dtype)
        index = self._get_variable_index(variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=self.beta_1**steps,
            beta2_power=self.beta_2**steps,
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=tf.cast(tf.convert_to_tensor(gradient), variable.dtype),  # sparse ones too
        )
