"""`model(inputs)` in TensorFlow's eager mode: one compiled call instead of hundreds of operations.

Executed one by one, the operations on a text of 32 tokens take ten times as long as in one graph.
Keras' own call is used if more than the output may be needed: in training, with gradients, within
another layer's call, and for layers from other packages.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import Any

import keras

from roformer_tf.internals import all_layers, device_scope, is_called_alone
from roformer_tf.kernels.forms import graph_of, is_known_integer

# Packages whose layers have no side effects, such as printing or keeping state.
KNOWN = ("roformer_tf", "keras")


@dataclass
class EagerCalls:
    """The compiled calls of one model, by the kind of their inputs."""

    functions: dict[tuple[Any, ...], Callable[..., Any] | None] = field(default_factory=dict)
    """None if a layer is not from `KNOWN` packages."""
    kinds: set[tuple[Any, ...]] = field(default_factory=set)
    """Kinds of inputs that the model was called with before."""
    structure: list[Any] = field(default_factory=list)
    """Layers, their dtype policies and functions, and variables, when the call was traced."""

    def function(
        self, model: keras.Model, inputs: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """The compiled call for such inputs, of any batch and length; None for Keras' own call.

        The first call of a kind is Keras' own: tracing takes as long as twenty calls. A model whose
        layers or variables have changed, by `quantize` or `enable_lora`, is traced again.
        """
        is_inference = settings in ({}, {"training": False}, {"training": None})
        if not (is_inference and _is_known(inputs)):
            return None
        if not is_called_alone(keras) or model.run_eagerly or not _is_ours(model):
            return None
        of_inputs = tuple(
            (name, x.ndim, keras.backend.standardize_dtype(x.dtype)) for name, x in inputs.items()
        )
        kind = (of_inputs, device_scope())
        # Tracing pays only if the same kind of call is repeated.
        if kind not in self.kinds:
            self.kinds.add(kind)
            return None
        structure = _structure(model)
        if not _same(structure, self.structure):
            self.functions.clear()
            self.structure = structure
        if kind not in self.functions:
            known = all(map(_is_ours, all_layers(model)))
            plain = partial(keras.Model.__call__, model)
            self.functions[kind] = graph_of(plain, inputs) if known else None
        return self.functions[kind]


def _is_known(inputs: Mapping[str, Any]) -> bool:
    """Whether inputs are integers with values, on TensorFlow."""
    on_tensorflow = keras.backend.backend() == "tensorflow"
    return on_tensorflow and all(map(is_known_integer, inputs.values()))


def _is_ours(layer: Any) -> bool:
    return layer.call.__module__.partition(".")[0] in KNOWN


def _structure(model: keras.Model) -> list[Any]:
    layers = list(all_layers(model))
    parts = [*layers, *(layer.dtype_policy for layer in layers), *model.variables]
    for name in ("call", "activation"):  # attributes that users can replace
        parts += [vars(layer).get(name) for layer in layers]
    return parts


def _same(first: list[Any], second: list[Any]) -> bool:
    """Whether two lists contain the same objects; equality of tensors would be slow."""
    return len(first) == len(second) and all(map(is_, first, second))
