"""The devices that Keras' backend computes on, by the names on their data sheets.

Asked before Keras is loaded, as by what answers without it, there is the processor alone.
"""

import sys
from typing import Literal

BACKENDS = {"tensorflow": "TensorFlow", "jax": "JAX"}

AttentionForm = Literal["masked", "segments", "plain"]
"""How attention is computed on JAX with an NVIDIA GPU; elsewhere it is plain, or `fast` says.

"masked": cuDNN's kernel with a mask of all pairs, where Keras finds it possible. "segments": JAX's
kernel in Pallas, which takes a document's number for each token. Both keep no matrix of scores
(`attention.py`). "plain": products and softmax, by XLA.
"""


def accelerators() -> list[str]:
    """The names of the backend's GPUs or TPUs, such as "NVIDIA L20", in its order."""
    if "keras" not in sys.modules:
        return []
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        found = tf.config.list_physical_devices("GPU")
        details = map(tf.config.experimental.get_device_details, found)
        return [x.get("device_name") or "a GPU without a name" for x in details]
    if keras.backend.backend() == "jax":
        import jax

        return [str(x.device_kind) for x in jax.devices() if x.platform != "cpu"]
    return []


def device_in_words() -> str:
    """What a command says that it runs on: "NVIDIA L20, by JAX", "the processor, by TensorFlow"."""
    if "keras" not in sys.modules:
        return "the processor"
    import keras

    names = accelerators()
    counted = f"{len(names)} × {names[0]}" if len(names) > 1 else next(iter(names), "the processor")
    backend = keras.backend.backend()
    return f"{counted}, by {BACKENDS.get(backend, backend)}"
