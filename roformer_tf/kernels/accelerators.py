"""Accelerators of Keras' backend, by name.

Without Keras, as with an engine that does not need it, there is only the CPU.
"""

import sys

from roformer_tf.translation import Message

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}


def accelerators() -> list[str]:
    """The names of the backend's GPUs or TPUs, such as "NVIDIA L20", in its order."""
    if "keras" not in sys.modules:
        return []
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        devices = tf.config.list_physical_devices("GPU")
        details = map(tf.config.experimental.get_device_details, devices)
        return [x.get("device_name") or "a GPU without a name" for x in details]
    import jax

    return [str(x.device_kind) for x in jax.devices() if x.platform != "cpu"]


def device_in_words(by_keras: bool = True) -> str:
    """The device, for messages: "NVIDIA L20, by JAX" or "the CPU, by TensorFlow".

    by_keras: whether Keras computes; other engines do on the CPU.
    """
    if not by_keras or "keras" not in sys.modules:
        return Message("the CPU")
    import keras

    names = accelerators()
    counted = next(iter(names), Message("the CPU"))
    if len(names) > 1:
        counted = f"{len(names)} × {counted}"
    backend = keras.backend.backend()
    return Message("{device}, by {backend}", device=counted, backend=BACKENDS.get(backend, backend))
