"""TF1 checkpoints in the layout of the released zips: `bert_config.json`, an index, data files.

TensorFlow, which reads and writes them, is imported when a checkpoint is read or written.
"""

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from roformer_tf.checkpoints.archives import BERT_CONFIG, VOCABULARY
from roformer_tf.checkpoints.arrays import LazyArrays, tensors_of_file
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file, temporary_folder
from roformer_tf.startup import import_quickly

PREFIX = "bert_model.ckpt"
BERT_POSITIONS = "bert/embeddings/position_embeddings"
"""The table of learned positions, which a BERT has and a RoFormer has not."""


def read_tensors(prefix: Path) -> LazyArrays:
    """The tensors of the checkpoint at `prefix` (the path without `.index`).

    TensorFlow verifies the checksum of each tensor that is read. Raises InputError, here or on
    access, if the files are truncated or damaged.
    """
    import_quickly("tensorflow")
    import tensorflow as tf

    _check_path(prefix)

    @contextmanager
    def input_errors(what: str) -> Iterator[None]:
        try:
            yield
        except (tf.errors.OpError, RuntimeError, IndexError, ValueError) as error:
            reason = str(error).strip().splitlines()[0].removesuffix(".")
            raise InputError(
                f"cannot read {what} of the TF1 checkpoint {prefix}: {reason}. "
                "The files are incomplete or damaged: download them again."
            ) from None

    with input_errors("the index"):
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
        dtypes = {
            name: np.dtype(dtype.as_numpy_dtype)
            for name, dtype in reader.get_variable_to_dtype_map().items()
        }

    def read(name: str) -> np.ndarray:
        with input_errors(f"the tensor {name}"):
            return np.asarray(reader.get_tensor(name))  # a scalar is no array yet

    return LazyArrays(shapes, dtypes, read)


def write(
    target: str | Path,
    config: RoFormerConfig,
    arrays: Mapping[str, np.ndarray],
    vocabulary: bytes | None = None,
    dtype: str | None = None,
) -> None:
    """Write a config and arrays under our names in the released layout, which bert4keras reads.

    A target named `….zip` becomes a zip that contains a folder of its name, any other target the
    folder itself; it is replaced atomically. `vocabulary` is the content of `vocab.txt`; `dtype`
    None keeps the dtypes of the arrays. Raises InputError for a form of attention or positions that
    bert4keras does not have.
    """
    if form := config.unusual_form(learned=True):
        raise InputError(
            f"the model has {form}, which a TF1 checkpoint cannot record: bert4keras would ignore "
            "it. Save it in our own format."
        )
    import tensorflow as tf

    with _new_folder(Path(target)) as folder, tf.device("CPU"):
        # One by one, so that lazy arrays are not all in memory in addition to TensorFlow's.
        tensors = {
            name: tf.convert_to_tensor(tensor)
            for name, tensor in tensors_of_file(arrays, config, "tf1", dtype)
        }
        tf.raw_ops.SaveV2(  # the name-based format of TF1's Saver; tf.train.Checkpoint has another
            prefix=str(folder / PREFIX),
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )
        text = f'model_checkpoint_path: "{PREFIX}"\nall_model_checkpoint_paths: "{PREFIX}"\n'
        (folder / "checkpoint").write_text(text, encoding="ascii")
        values = config.replace(unknown={}).to_dict()  # without Hugging Face's keys
        (folder / BERT_CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="ascii")
        # bert4keras takes the path of this file as a separate argument.
        if vocabulary is not None:
            (folder / VOCABULARY).write_bytes(vocabulary)


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder, whose files become the target at the end: a folder, or a zip."""
    if target.suffix != ".zip":
        _check_path(target)
        with temporary_folder(target) as folder:
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="roformer-tf-") as name, temporary_file(target) as file:
        yield Path(name)
        # Not compressed: it would save 7 % of the weights' size and take many times as long.
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for path in sorted(Path(name).iterdir()):
                archive.write(path, f"{target.stem}/{path.name}")


def _check_path(path: Path) -> None:
    """Raise InputError for a path that TensorFlow's reader does not find.

    The reader looks for files with the path as a pattern, and opens them by the same path, so that
    nothing can be escaped.
    """
    if "[" in str(path) or (os.sep != "\\" and "\\" in str(path)):
        raise InputError(
            f"{path} has [ or \\ in its path, where TensorFlow cannot read a TF1 checkpoint. "
            "Rename the folder."
        )
