"""The operations of Keras, which is loaded when the first one is used.

Tasks name the losses of their training, but predictions with a graph must not load Keras.
"""

from typing import Any, TypeAlias

# A tensor of the running backend, a Keras tensor or a NumPy array, as `kernels.forms.Tensor`.
Tensor: TypeAlias = Any


def __getattr__(name: str) -> Any:
    from keras import ops

    return getattr(ops, name)
