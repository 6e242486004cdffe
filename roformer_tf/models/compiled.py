"""What is compiled from a model and kept between calls, until one of its layers changes.

`model(inputs)` in TensorFlow's eager mode becomes one compiled call: executed one by one, the
operations on a text of 32 tokens take ten times as long. Keras' own call is used if more than the
output may be needed: in training, with gradients, within another layer's call, and for layers from
other packages.
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
# Attributes that calls themselves set.
OF_CALLS = ("called_with", "predict_function", "train_function", "test_function")


@dataclass
class Compiled:
    """What is compiled from one model."""

    values: dict[Any, Any] = field(default_factory=dict)
    structure: list[Any] = field(default_factory=list)
    """Layers, their attributes and variables, when the values were created."""
    kinds: set[tuple[Any, ...]] = field(default_factory=set)
    """Kinds of inputs that the model was called with before."""

    def kept(self, model: keras.Model, name: Any, make: Callable[[], Any]) -> Any:
        """The value of this name, made again if a layer has changed, as by `enable_lora`."""
        structure, values = _structure(model), self.values
        if not _same(structure, self.structure):
            # New, and not cleared: another thread may be about to return its value.
            values = self.values = {}
            self.structure = structure
        if name not in values:
            values[name] = make()
        return values[name]

    def function(
        self, model: keras.Model, inputs: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """The compiled call for such inputs, of any batch and length; None for Keras' own call.

        The first call of a kind is Keras' own: tracing takes as long as twenty calls.
        """
        is_inference = settings in ({}, {"training": False}, {"training": None})
        on_tensorflow = keras.backend.backend() == "tensorflow"
        # Only integers with values: those of a traced function have none.
        if not (on_tensorflow and is_inference and all(map(is_known_integer, inputs.values()))):
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

        def traced() -> Callable[..., Any] | None:
            # Another package's layer can print or keep a state, which a graph would do only once.
            known = all(map(_is_ours, all_layers(model)))
            return graph_of(partial(keras.Model.__call__, model), inputs) if known else None

        function: Callable[..., Any] | None = self.kept(model, kind, traced)
        return function


def _is_ours(layer: Any) -> bool:
    return layer.call.__module__.partition(".")[0] in KNOWN


def _structure(model: keras.Model) -> list[Any]:
    """Everything that a call depends on except values of variables, which are read in each call."""
    parts = [*model.variables]
    for layer in all_layers(model):
        attributes = vars(layer).items()
        parts += [value for name, value in attributes if name[0] != "_" and name not in OF_CALLS]
        parts += [layer, layer.dtype_policy]
    return parts


def _same(first: list[Any], second: list[Any]) -> bool:
    """Whether two lists contain the same objects; equality of tensors would be slow."""
    return len(first) == len(second) and all(map(is_, first, second))
