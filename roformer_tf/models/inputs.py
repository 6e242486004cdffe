"""The inputs of models: a dict of integers (batch, length), checked before anything runs."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.internals import is_traced_for_replicas

# Keys of an encoder's inputs; all but the first are optional.
ENCODER_INPUTS = ("token_ids", "segment_ids", "sequence_ids")
# Names of transformers → ours.
OF_TRANSFORMERS = {
    "input_ids": "token_ids",
    "token_type_ids": "segment_ids",
    "attention_mask": "sequence_ids",
}


def encoder_inputs(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of the encoder, among those of a model."""
    return {name: inputs[name] for name in ENCODER_INPUTS if name in inputs}


def checked_inputs(
    inputs: Any, names: tuple[str, ...], config: RoFormerConfig, model: str
) -> dict[str, Any]:
    """The inputs of a model, with lists as arrays; `names` are the keys that it takes.

    Raises InputError for another type than a dict, for unknown keys or none of `token_ids`, for
    arrays that are not integers (batch, length) of one shape, and for ids out of range. While a
    function is traced, as in `fit`, the values are unknown and not checked.
    """
    takes = (
        f"{model} takes a dict of int32 arrays (batch, length): token_ids and, optionally, "
        f"{', '.join(names[1:])}. `tokenizer(texts)` makes one"
    )
    if not isinstance(inputs, Mapping):
        raise InputError(f"the inputs are of type {type(inputs).__name__}. {takes}.")
    arrays = {name: x for name, x in inputs.items() if x is not None}
    if unknown := sorted(str(name) for name in arrays if name not in names):
        ours = [f"{x} is {OF_TRANSFORMERS[x]} here" for x in unknown if x in OF_TRANSFORMERS]
        raise InputError(f"unknown inputs: {', '.join(unknown)}. {'; '.join([takes, *ours])}.")
    if "token_ids" not in arrays:
        raise InputError(f"the inputs have no token_ids. {takes}.")
    arrays = {name: _as_array(name, x) for name, x in arrays.items()}
    ends = {"token_ids": config.vocab_size, "segment_ids": config.type_vocab_size}
    for name, x in arrays.items():
        _check_shape(name, x, arrays["token_ids"])
        if name in ENCODER_INPUTS:
            _check_values(name, x, ends.get(name))
    # Unknown (None) while a function is traced.
    config.check_length(arrays["token_ids"].shape[1] or 0, "the length of token_ids")
    return arrays


def _as_array(name: str, x: Any) -> Any:
    if isinstance(x, list | tuple):
        try:
            x = np.asarray(x)
        except ValueError:
            raise InputError(
                f"{name} contains lists of different lengths. Pad them with 0 to the longest."
            ) from None
    dtype = getattr(x, "dtype", type(x))
    dtype = getattr(dtype, "name", str(dtype))  # a string in Keras and JAX
    if "float" in dtype and keras.config.backend() == "tensorflow" and is_traced_for_replicas():
        # Keras builds a model with the mean of the replicas' batches, which makes floats of ids.
        return keras.ops.cast(x, "int32")
    # Booleans are allowed for sequence_ids: True is document 1, False is padding.
    if "int" not in dtype and (name, dtype) != ("sequence_ids", "bool"):
        raise InputError(f"{name} is of dtype {dtype}, but must be whole numbers, such as int32.")
    return x


def _check_shape(name: str, x: Any, token_ids: Any) -> None:
    shape, wanted = tuple(x.shape), tuple(token_ids.shape)
    if len(shape) != 2 or (name == "token_ids" and shape[1] == 0 != shape[0]):
        raise InputError(
            f"{name} has the shape {shape}, but must be (batch, length). A single text is a batch "
            "of one, and has at least one token."
        )
    # Of other inputs only the batch is that of the tokens. While a function is traced, sizes can be
    # unknown (None).
    axes = len(shape) if name in ENCODER_INPUTS else 1
    if any(None not in (a, b) and a != b for a, b in zip(shape[:axes], wanted, strict=False)):
        raise InputError(f"{name} has the shape {shape}, but token_ids {wanted}. Make them equal.")


def _check_values(name: str, x: Any, end: int | None) -> None:
    """Raise InputError for values below 0 or from `end` on, if they are known."""
    try:
        values = np.asarray(x)
    except (RuntimeError, TypeError, ValueError):  # unknown while a function is traced
        return
    if values.dtype == object:
        raise InputError(
            f"{name} is a {type(x).__name__}. Give a dense array, padded with 0, as `to_tensor` of "
            "ragged tensors makes."
        )
    if not values.size:
        return
    least, largest = int(values.min()), int(values.max())
    if least < 0 or (end is not None and largest >= end):
        span = f"from 0 to {end - 1:,}" if end is not None else "of at least 0"
        raise InputError(
            f"{name} contains {least if least < 0 else largest}, but must be {span}. "
            "Padding is 0 in each of them."
        )
