"""A source → config and arrays: which kind of checkpoint it is, and whether it is whole.

A source is a released `.zip`, an unpacked folder with `bert_config.json`, a Hugging Face folder,
or one of ours, which has the same layout.
"""

import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from roformer_tf.checkpoints import huggingface, tf1
from roformer_tf.checkpoints.names import IGNORED, TIED, table
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError

TF1_CONFIG = "bert_config.json"


@dataclass(frozen=True)
class Checkpoint:
    """An architecture and its weights; it knows no model."""

    config: RoFormerConfig
    arrays: dict[str, np.ndarray]
    """Under our names, in our shapes."""


def read(source: str | Path, **overrides: Any) -> Checkpoint:
    """Read a checkpoint; `overrides` replace keys of its config.

    Raises InputError where there is none, where it is damaged, where config and tensors
    disagree, and for tensors that the table of names does not hold.
    """
    source = Path(source)
    if not source.exists():
        raise InputError(
            f"{source} does not exist. Give a released .zip, or a folder with "
            f"{TF1_CONFIG} or {huggingface.CONFIG} and the weights."
        )
    if source.is_dir():
        return _read_folder(source, overrides)
    with _unpacked(source) as folder:
        return _read_folder(folder, overrides, shown=source)


def _read_folder(folder: Path, overrides: dict[str, Any], shown: Path | None = None) -> Checkpoint:
    """Read an unpacked checkpoint; `shown` is what the user called it."""
    shown = shown or folder
    found = sorted(folder.glob("*.index")) if (folder / TF1_CONFIG).is_file() else []
    if (folder / huggingface.CONFIG).is_file() and (folder / huggingface.WEIGHTS).is_file():
        found.append(folder / huggingface.WEIGHTS)
    if not found:
        raise InputError(f"{shown} holds no checkpoint. {_what_is_missing(folder)}")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{shown} holds several checkpoints: {names}. Leave one of them there.")
    if found[0].name == huggingface.WEIGHTS:
        config = RoFormerConfig.from_file(folder / huggingface.CONFIG)
        arrays, layout = huggingface.read_arrays(found[0]), "huggingface"
    else:
        config = RoFormerConfig.from_file(folder / TF1_CONFIG)
        arrays, layout = tf1.read_arrays(found[0].with_suffix("")), "tf1"
    config = config.replace(**overrides)
    return Checkpoint(config, _named(arrays, config, layout, shown))


def _what_is_missing(folder: Path) -> str:
    if (folder / "model" / huggingface.CONFIG).is_file():
        return f"It is a run's folder: its model lies in {folder / 'model'}."
    if (folder / "pytorch_model.bin").exists():
        return (
            f"{folder / 'pytorch_model.bin'} is a pickle, which is never opened here: save the "
            f"model as {huggingface.WEIGHTS} with transformers."
        )
    return (
        f"A checkpoint is {TF1_CONFIG} beside a TF1 checkpoint's .index and .data files, "
        f"or {huggingface.CONFIG} beside {huggingface.WEIGHTS}."
    )


def _named(
    arrays: dict[str, np.ndarray], config: RoFormerConfig, layout: str, source: Path
) -> dict[str, np.ndarray]:
    """Give each tensor its place in the table; refuse what has none or another shape."""
    if config.unknown.get("rotary_value"):
        raise InputError(f"{source} has rotary_value true: rotated values are not supported.")
    rows = {row.name_in(layout): row for row in table(config)}
    strange = sorted(name for name in arrays if name not in rows and not IGNORED.fullmatch(name))
    if strange:
        raise InputError(
            f"{source} holds {len(strange)} tensors that no RoFormer of its config has, such as "
            f"{', '.join(strange[:3])}. Give the config that belongs to the weights."
        )
    untied = [a for a, b in TIED.items() if a in arrays and not _equal(arrays, a, b)]
    if untied:
        raise InputError(
            f"{source} has a decoder of its own ({untied[0]} is not {TIED[untied[0]]}), "
            "but here the decoder is always the word embeddings. Give a model with tied weights."
        )
    named = {}
    for name, row in rows.items():
        if name not in arrays:
            continue
        array, shape = arrays[name], row.shape_in(layout)
        if array.shape != shape:
            raise InputError(
                f"{source}: {name} has the shape {array.shape}, but its config asks for {shape}. "
                "Give the config that belongs to the weights."
            )
        named[row.name] = row.from_file(array, layout, config.rotary_style)
    return named


def _equal(arrays: dict[str, np.ndarray], first: str, second: str) -> bool:
    return second in arrays and np.array_equal(arrays[first], arrays[second])


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Unpack a released zip into a folder that is gone afterwards."""
    if not zipfile.is_zipfile(path):
        raise InputError(
            f"{path} is no whole zip file: another kind of file, or a broken download. "
            "Fetch it again, or give a folder."
        )
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(path) as archive:
                _unpack(archive, path, Path(folder))
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
            raise InputError(
                f"{path} cannot be unpacked: {error}. If it is damaged, fetch it again."
            ) from None
        yield Path(folder)


def _unpack(archive: zipfile.ZipFile, path: Path, folder: Path) -> None:
    """Write the files of the one checkpoint in an archive into a folder."""
    names = archive.namelist()
    configs = [name for name in names if PurePosixPath(name).name == TF1_CONFIG]
    if len(configs) != 1:
        raise InputError(
            f"{path} holds {len(configs) or 'no'} {TF1_CONFIG}, but a released zip "
            "holds one. Unpack it and give the folder of one checkpoint."
        )
    inside = PurePosixPath(configs[0]).parent
    for name in names:
        if PurePosixPath(name).parent == inside and not name.endswith("/"):
            (folder / PurePosixPath(name).name).write_bytes(archive.read(name))
