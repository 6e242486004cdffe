"""TF1 checkpoints: an index and data files, found by their prefix.

The one user of TensorFlow's reader, which is loaded when a checkpoint is read.
"""

from pathlib import Path

import numpy as np

from roformer_tf.errors import InputError


def read_arrays(prefix: Path) -> dict[str, np.ndarray]:
    """Read every tensor of the checkpoint at `prefix` (the path without `.index`), by its name.

    Raises InputError where the files are truncated or damaged.
    """
    try:
        import tensorflow as tf
    except ImportError:
        raise InputError(
            f"{prefix} is a TF1 checkpoint, and only TensorFlow reads these. "
            "Install it (pip install tensorflow), or convert the checkpoint where it is installed."
        ) from None
    try:
        reader = tf.train.load_checkpoint(str(prefix))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, RuntimeError, IndexError, ValueError) as error:
        raise InputError(
            f"cannot read the TF1 checkpoint {prefix.name}: {_first_line(error)} "
            "The files are incomplete or damaged: fetch them again."
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].removesuffix(".") + "."
