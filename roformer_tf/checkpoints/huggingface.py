"""Hugging Face folders, which are our own format too: `config.json` and `model.safetensors`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from roformer_tf.checkpoints.names import table
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import file_beside, write_text

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
POSITIONS = "roformer.encoder.embed_positions.weight"


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read every tensor of a safetensors file, by its name.

    Raises InputError where the file is truncated or damaged.
    """
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InputError(
            f"cannot read {path}: {error}. The file is incomplete or damaged: fetch it again."
        ) from None


def write(
    folder: str | Path,
    config: RoFormerConfig,
    arrays: Mapping[str, np.ndarray],
    architecture: str,
) -> None:
    """Write a config and arrays under our names, as transformers reads them.

    `architecture` is the transformers class that the folder is offered to. Each file is
    replaced whole; the config comes last, so that a folder with one has its weights.
    """
    folder = Path(folder)
    rows = {row.name: row for row in table(config)}
    tensors = {
        rows[name].huggingface: rows[name].to_file(array, "huggingface", config.rotary_style)
        for name, array in arrays.items()
    }
    tensors[POSITIONS] = _position_table(config)
    with file_beside(folder / WEIGHTS) as beside:
        save_file(tensors, beside, metadata={"format": "pt"})  # the word transformers asks for
    text = json.dumps(_config_values(config, architecture), ensure_ascii=False, indent=2)
    write_text(folder / CONFIG, text + "\n")


def _position_table(config: RoFormerConfig) -> np.ndarray:
    """Sines, then cosines: (positions, head size) float32, as transformers keeps it.

    Where it is missing, transformers makes one, warns of an untrained weight, and knows only the
    base 10,000.
    """
    pairs = np.arange(0, config.head_size, 2) / config.head_size
    theta = np.outer(np.arange(config.max_position_embeddings), config.rotary_base**-pairs)
    return np.concatenate([np.sin(theta), np.cos(theta)], axis=1).astype("float32")


def _config_values(config: RoFormerConfig, architecture: str) -> dict[str, Any]:
    values = config.to_dict()
    for key in ("torch_dtype", "transformers_version"):  # true of the file it was read from
        values.pop(key, None)
    return values | {
        "architectures": [architecture],
        "model_type": "roformer",
        "dtype": "float32",
        "pad_token_id": 0,
        "rotary_value": False,
        "tie_word_embeddings": True,
    }
