"""`model(inputs)` on TensorFlow, outside of any function: one compiled call in place of hundreds.

One operation after the other, a text of 32 tokens takes ten times as long as in one graph. Whatever
may need more than the answer stays as it was: training, gradients, a call within another layer's,
layers that others wrote.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import is_
from typing import Any

import keras

from roformer_tf.internals import all_layers, device_scope, is_called_alone
from roformer_tf.kernels.forms import graph_of, is_known_integer, takes_plain_forms

KNOWN = ("roformer_tf", "keras")
"""Packages whose layers do nothing besides answering. Another's may print, or remember."""


@dataclass
class EagerCalls:
    """The compiled calls of one model, by what they are called with."""

    functions: dict[tuple[Any, ...], Callable[..., Any] | None] = field(default_factory=dict)
    """None where a layer is not of `KNOWN`."""
    kinds: set[tuple[Any, ...]] = field(default_factory=set)
    """What the model was called with before."""
    structure: list[Any] = field(default_factory=list)
    """Layers, what each computes in and with, and variables, as they were when traced."""

    def function(
        self, model: keras.Model, inputs: Any, settings: Mapping[str, Any]
    ) -> Callable[..., Any] | None:
        """What answers such inputs, of any batch and length; None where the plain call has to.

        The first call of a kind is plain: a trace takes as long as twenty. A model whose layers or
        variables are no longer what they were, by `quantize` or `enable_lora`, is traced anew.
        """
        if not (_asks_for_answers(settings) and _is_known(inputs)):
            return None
        if not is_called_alone(keras) or model.run_eagerly or not _is_ours(model):
            return None
        of_inputs = tuple(
            (name, x.ndim, keras.backend.standardize_dtype(x.dtype)) for name, x in inputs.items()
        )
        kind = (of_inputs, takes_plain_forms(), device_scope())
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


def _asks_for_answers(settings: Mapping[str, Any]) -> bool:
    return not settings or (set(settings) == {"training"} and not settings["training"])


def _is_known(inputs: Any) -> bool:
    """Whether inputs are integers whose values are there, on TensorFlow."""
    on_tensorflow = keras.backend.backend() == "tensorflow"
    if not on_tensorflow or not isinstance(inputs, Mapping):
        return False
    return all(map(is_known_integer, inputs.values()))


def _is_ours(layer: Any) -> bool:
    return layer.call.__module__.partition(".")[0] in KNOWN


def _structure(model: keras.Model) -> list[Any]:
    layers = list(all_layers(model))
    found = [*layers, *(layer.dtype_policy for layer in layers), *model.variables]
    for name in ("call", "activation"):  # what people put in the place of a layer's own
        found += [vars(layer).get(name) for layer in layers]
    return found


def _same(ones: list[Any], others: list[Any]) -> bool:
    """Whether two lists hold the very same objects."""
    return len(ones) == len(others) and all(map(is_, ones, others))
