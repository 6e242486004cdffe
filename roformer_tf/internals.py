"""Every touch of a name that Keras, TensorFlow, JAX or jieba keep to themselves.

Such a name may go, or mean something else, with any release, so it is touched here alone:
`RELIANCES` says what must hold of each, and `tests/test_internals.py` tries it, naming library,
version and what broke. What cannot stand here is a method of ours that overrides a private one of
theirs: a hook, which the table lists too. `tests/test_architecture.py` finds touches elsewhere.

The libraries are imported inside functions: whoever reads text loads none of them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Reliance:
    """A private name that the package relies on."""

    library: str
    """Whose name it is, as it is imported."""
    name: str
    """The name with its owner, such as `Layer._flatten_layers`."""
    holds: str
    """What must be true of it."""
    instead: str
    """What would do without it, or why nothing public does."""
    hook: bool = False
    """Whether classes of ours override it, in modules of their own."""

    @property
    def attribute(self) -> str:
        """The name alone: `_flatten_layers`."""
        return self.name.rpartition(".")[2]


RELIANCES = (
    Reliance(
        "keras",
        "MultiHeadAttention._compute_attention",
        "call hands it the projected query (B, T, N, H), key (B, S, N, H) and value first, by "
        "position, and with a subclass' own never a causal mask that it has not put into "
        "attention_mask",
        "nothing: Keras' docstring offers it to subclasses, though under a private name",
        hook=True,
    ),
    Reliance(
        "keras",
        "MultiHeadAttention._build_attention",
        "build calls it with the projections' rank once queries, keys and values have theirs, and "
        "before the output has: each draws its random seed in that order",
        "`build`, at the price of other weights from the same seed",
        hook=True,
    ),
    Reliance(
        "keras",
        "MultiHeadAttention._dropout_layer",
        "_build_attention makes it, and attention's weights are dropped by whatever stands there",
        "nothing: `dropout` is the rate alone",
    ),
    Reliance(
        "keras",
        "Layer._flatten_layers",
        "gives a layer and all layers inside it, each once",
        "nothing: `Model.layers` has the outermost alone",
    ),
    Reliance(
        "keras",
        "keras.src.backend.common.global_state: current_call_ctx",
        "set while a layer is called, and None outside",
        "a wrapper of every layer's call, which those of others lack",
    ),
    Reliance(
        "keras",
        "keras.src.backend.common.stateless_scope.in_stateless_scope",
        "whether variables have other values for the while",
        "nothing: `StatelessScope` itself tells nobody",
    ),
    Reliance(
        "keras",
        "Variable._initializer",
        "inside a StatelessScope no value is made, and the function that stands there is called "
        "with (shape, dtype=...) when the scope ends",
        "assign after the scope: every weight drawn at random first, and in memory twice",
    ),
    Reliance(
        "keras",
        "Optimizer._get_variable_index",
        "the number of a variable, or of TensorFlow's own inside it, in the order of build",
        "nothing that knows TensorFlow's own variables",
    ),
    Reliance(
        "keras",
        "Optimizer._trainable_variables",
        "Keras' variables in the order of build",
        "a list of our own, made in build: a second truth",
    ),
    Reliance(
        "keras",
        "Adam._momentums",
        "a list of the gradients' running means, one for each variable in the order of build",
        "search `variables` by name: names are not promised either",
    ),
    Reliance(
        "keras",
        "Adam._velocities",
        "a list of the squared gradients' running means, in the same order",
        "search `variables` by name: names are not promised either",
    ),
    Reliance(
        "keras",
        "Optimizer._use_weight_decay",
        "apply asks it of every variable before it shrinks the variable",
        "`exclude_from_weight_decay`, which a saved optimizer forgets",
        hook=True,
    ),
    Reliance(
        "keras",
        "Optimizer._apply_weight_decay",
        "apply calls it with the variables, before it updates them",
        "nothing: Keras has one rate of decay for all",
        hook=True,
    ),
    Reliance(
        "keras",
        "Optimizer._learning_rate",
        "the schedule that the optimizer was made with",
        "`learning_rate`, which is its value at the optimizer's own step, not at any",
    ),
    Reliance(
        "tensorflow",
        "tensorflow.python.eager.context.context().device_name",
        "the device that the enclosing `tf.device` names; empty or None where none does",
        "look where a new tensor lies: an operation for each question",
    ),
    Reliance(
        "tensorflow",
        "tensorflow.python.eager.record.could_possibly_record",
        "whether a gradient tape or a forward accumulator is around",
        "nothing public tells",
    ),
    Reliance(
        "jax",
        "jax._src.distributed.global_state.client",
        "the processes' store of keys and values, once `jax.distributed.initialize` has run",
        "files, which a full disk silences and the next start finds again",
    ),
    Reliance(
        "jieba",
        "jieba.dt.total",
        "`dt` is the tokenizer of the functions, with `dictionary`, `initialized` and the `total` "
        "of all frequencies; `finalseg.Force_Split_Words` holds the words that were deleted",
        "nothing: jieba does not say whether its dictionary was changed",
    ),
)


# Keras: layers and variables


def set_attention_dropout(layer: Any, dropout: Any) -> None:
    """Have a MultiHeadAttention, in `_build_attention`, drop its weights by a layer of ours."""
    layer._dropout_layer = dropout


def all_layers(layer: Any) -> Iterable[Any]:
    """A layer and all layers inside it."""
    found: Iterable[Any] = layer._flatten_layers()
    return found


def set_initializer(variable: Any, initializer: Callable[..., Any]) -> None:
    """Have a variable made inside a StatelessScope begin as `initializer(shape, dtype=…)`."""
    variable._initializer = initializer


# Keras: optimizers


def index_of(optimizer: Any, variable: Any) -> int:
    """The number of a variable, Keras' or TensorFlow's own, among those the optimizer updates."""
    index: int = optimizer._get_variable_index(variable)
    return index


def keras_variable(optimizer: Any, variable: Any) -> Any:
    """Keras' variable for what `update_step` gets, which on TensorFlow is TensorFlow's own."""
    return optimizer._trainable_variables[index_of(optimizer, variable)]


def moments_of(optimizer: Any, variable: Any) -> tuple[Any, Any]:
    """Adam's running means of a variable's gradients and of their squares, or None."""
    index = index_of(optimizer, variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def set_moments(optimizer: Any, first: Sequence[Any], second: Sequence[Any]) -> None:
    """Give Adam its running means, one of each kind for every variable in order, or None."""
    optimizer._momentums, optimizer._velocities = list(first), list(second)


def learning_rate_at(optimizer: Any, step: int) -> Any:
    """What the optimizer's schedule gives at a step, counted from 0."""
    return optimizer._learning_rate(step)


def schedule_of(optimizer: Any) -> Any:
    """The schedule that the optimizer was made with."""
    return optimizer._learning_rate


# TensorFlow, JAX, jieba


def device_scope() -> str:
    """The device that the enclosing `tf.device` or `keras.device` names, "" if none does.

    The same while a `tf.function` is traced: its graph leaves the device open, and the scope is
    that around the trace.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    with tf.init_scope():  # lifts a scope inside the traced function out, too
        return context.context().device_name or ""


def is_called_alone(keras: ModuleType) -> bool:
    """Whether what is called on TensorFlow now is asked for its answer only.

    Not while a function is traced, a gradient taken, another layer called, or a replica run; nor
    where variables have other values for the while.
    """
    import tensorflow as tf
    from tensorflow.python.eager import record

    common = keras.src.backend.common
    return (
        tf.executing_eagerly()
        and not record.could_possibly_record()
        and common.global_state.get_global_attribute("current_call_ctx") is None
        and not common.stateless_scope.in_stateless_scope()
        and not tf.distribute.has_strategy()
    )


def jax_coordinator() -> Any:
    """Where JAX's processes leave each other word: a client with `key_value_set` and the like."""
    from jax._src import distributed

    return distributed.global_state.client


def jieba_dictionary_changed(jieba: ModuleType, total: int) -> bool:
    """Whether jieba's dictionary is another than the one whose frequencies sum up to `total`.

    Every way to change it leaves a trace: `set_dictionary` a path, a word added a larger total,
    a word deleted (added with frequency 0) a word whose split is forced.
    """
    tokenizer = jieba.dt
    return (
        tokenizer.dictionary is not None
        or (tokenizer.initialized and tokenizer.total != total)
        or bool(jieba.finalseg.Force_Split_Words)
    )
