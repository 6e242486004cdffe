"""TF1 checkpoints, in the layout of the released zips: `bert_config.json`, an index, data files.

The one user of TensorFlow's reader and writer, which are loaded when a checkpoint is.
"""

import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.checkpoints.arrays import LazyArrays, tensors_of_file
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import file_beside, folder_beside

CONFIG = "bert_config.json"
PREFIX = "bert_model.ckpt"
VOCABULARY = "vocab.txt"
BERT_POSITIONS = "bert/embeddings/position_embeddings"
"""What a BERT has, and no RoFormer: a table of learned positions."""


@contextmanager
def plainly_named(folder: Path) -> Iterator[Path]:
    """Yield the folder under a name that TensorFlow's reader can take: itself, or a link to it.

    The reader looks for the files by their path as a pattern, so that it finds none in `a[1]`, and
    then opens them by the same path, so that nothing can be escaped. (It writes anywhere.) The
    link is gone afterwards; an InputError raised meanwhile names the folder. Raises InputError
    where no link can be made, or none whose own path would do.
    """
    if not ((folder / CONFIG).is_file() and _is_pattern(folder)):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="roformer-tf-") as name:
        link = Path(name) / "checkpoint"
        with suppress(OSError):  # Windows wants a privilege
            link.symlink_to(folder.resolve(), target_is_directory=True)
        if _is_pattern(link) or not link.exists():
            raise InputError(
                f"TensorFlow's reader finds nothing in {folder}, whose path it takes for a "
                f"pattern, and the temporary folder {tempfile.gettempdir()} gives it no other "
                "path. Take [ and \\ out of the folder's name, or give another temporary folder "
                "in TMPDIR."
            )
        try:
            yield link
        except InputError as error:  # the user knows the folder
            raise InputError(str(error).replace(str(link), str(folder))) from None


def read_tensors(prefix: Path) -> LazyArrays:
    """Find the tensors of the checkpoint at `prefix` (the path without `.index`), by their names.

    TensorFlow compares a checksum for each that is read. Raises InputError, here or on reading,
    where the files are truncated or damaged.
    """
    tf = _tensorflow(prefix)

    @contextmanager
    def explained(what: str) -> Iterator[None]:
        try:
            yield
        except (tf.errors.OpError, RuntimeError, IndexError, ValueError) as error:
            raise InputError(
                f"cannot read {what} of the TF1 checkpoint {prefix}: {_first_line(error)} "
                "The files are incomplete or damaged: fetch them again."
            ) from None

    with explained("the index"):
        reader = tf.train.load_checkpoint(str(prefix))
        shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
        dtypes = {
            name: np.dtype(dtype.as_numpy_dtype)
            for name, dtype in reader.get_variable_to_dtype_map().items()
        }
    _check_sizes(prefix, shapes, dtypes)

    def read(name: str) -> np.ndarray:
        with explained(f"the tensor {name}"):
            return np.asarray(reader.get_tensor(name))  # a scalar comes as a number

    return LazyArrays(shapes, dtypes, read)


def write(
    target: str | Path,
    config: RoFormerConfig,
    arrays: Mapping[str, np.ndarray],
    vocabulary: bytes | None = None,
    dtype: str | None = None,
) -> None:
    """Write a config and arrays under our names in the released layout, as bert4keras reads it.

    A target named `….zip` becomes a zip around a folder of its name, any other the folder itself;
    it is replaced whole. `vocabulary` is the content of `vocab.txt`; `dtype` None keeps the
    arrays' own. Raises InputError for a form of attention or positions that bert4keras has not.
    """
    if form := config.unusual_form(learned=True):
        raise InputError(
            f"the model has {form}, which a TF1 checkpoint cannot say: bert4keras would leave it "
            "out. Save it in our own format."
        )
    target = Path(target)
    if target.suffix != ".zip":
        with folder_beside(target) as folder:
            _write_files(folder, config, arrays, vocabulary, dtype)
        return
    with tempfile.TemporaryDirectory(prefix="roformer-tf-") as name, file_beside(target) as beside:
        folder = Path(name)
        _write_files(folder, config, arrays, vocabulary, dtype)
        # Stored: deflating takes 7 % off weights, and many times as long.
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED) as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, f"{target.stem}/{path.name}")


def _write_files(
    folder: Path,
    config: RoFormerConfig,
    arrays: Mapping[str, np.ndarray],
    vocabulary: bytes | None,
    dtype: str | None,
) -> None:
    """Write the files of a checkpoint into an empty folder."""
    tf = _tensorflow(folder)
    with tf.device("CPU"):
        # One by one, so that a lazy mapping's arrays do not all lie in memory beside TensorFlow's.
        tensors = {
            name: tf.convert_to_tensor(tensor)
            for name, tensor in tensors_of_file(arrays, config, "tf1", dtype)
        }
        tf.raw_ops.SaveV2(  # name-keyed, as TF1's Saver writes
            prefix=str(folder / PREFIX),
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )
    lines = [
        f'{key}: "{PREFIX}"\n' for key in ("model_checkpoint_path", "all_model_checkpoint_paths")
    ]
    (folder / "checkpoint").write_text("".join(lines), encoding="ascii")
    values = config.to_dict()
    for key in config.unknown:  # Hugging Face's, such as `architectures`, have no place here
        del values[key]
    (folder / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="ascii")
    if vocabulary is not None:
        (folder / VOCABULARY).write_bytes(vocabulary)


def _check_sizes(
    prefix: Path, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, np.dtype[Any]]
) -> None:
    """Refuse a tensor for which its files are too small, before anybody makes room for it."""
    held = sum(path.stat().st_size for path in prefix.parent.glob(f"{escape(prefix.name)}.data-*"))
    for name, shape in shapes.items():
        if (size := prod(shape) * dtypes[name].itemsize) > held:
            raise InputError(
                f"cannot read the tensor {name} of the TF1 checkpoint {prefix}: it should have "
                f"{size:,} bytes, but the data files have {held:,}. The files are incomplete or "
                "damaged: fetch them again."
            )


def _is_pattern(path: Path) -> bool:
    r"""Whether TensorFlow takes a path for a pattern that does not match it: by [ or \."""
    return "[" in str(path) or (os.sep != "\\" and "\\" in str(path))


def _tensorflow(place: Path) -> Any:
    """TensorFlow, loaded now. Raises InputError where it is not installed."""
    try:
        import tensorflow
    except ImportError:
        raise InputError(
            f"{place} is a TF1 checkpoint, and only TensorFlow reads and writes these. "
            "Install it (pip install tensorflow), or convert the checkpoint where it is installed."
        ) from None
    return tensorflow


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].removesuffix(".") + "."
