"""The operations of Keras, which is loaded when the first one is used.

Tasks name the losses of their training, but predictions with a graph must not load Keras.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    from keras import ops

    return getattr(ops, name)
