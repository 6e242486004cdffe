"""All uses of private names of Keras, TensorFlow, JAX and jieba.

Such a name can be removed or changed by any release, so it is used in this module only.
`tests/support/private_names.py` lists what must be true of each, and `tests/test_internals.py`
tests it. A method of ours that overrides a private one of Keras is in its own class; the list has
these, too. `tests/test_architecture.py` refuses other uses.

The libraries are imported inside functions: modules that only read text load none of them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

# Keras: layers and variables


def all_layers(layer: Any) -> Iterable[Any]:
    """A layer and all layers inside it."""
    layers: Iterable[Any] = layer._flatten_layers()
    return layers


def set_initializer(variable: Any, initializer: Callable[..., Any]) -> None:
    """Set the initial value of a variable that is created inside a StatelessScope.

    When the scope ends, Keras calls the initializer with (shape, dtype=…).
    """
    variable._initializer = initializer


def set_output_mask(keras: ModuleType, output: Any, mask: Any) -> None:
    """Set the mask of a layer's output, which else is that of its first input."""
    keras.src.backend.common.masking.set_keras_mask(output, mask)


# Keras: optimizers


def index_of(optimizer: Any, variable: Any) -> int:
    """Index of a variable, Keras' or TensorFlow's, among those that the optimizer updates."""
    index: int = optimizer._get_variable_index(variable)
    return index


def keras_variable(optimizer: Any, variable: Any) -> Any:
    """Keras' variable for the one that `update_step` gets, which can be TensorFlow's."""
    return optimizer._trainable_variables[index_of(optimizer, variable)]


def moments_of(optimizer: Any, variable: Any) -> tuple[Any, Any]:
    """Adam's moving averages of a variable's gradients and of their squares, or None."""
    index = index_of(optimizer, variable)
    return optimizer._momentums[index], optimizer._velocities[index]


def set_moments(optimizer: Any, first: Sequence[Any], second: Sequence[Any]) -> None:
    """Set Adam's moving averages: lists with an entry, or None, for each variable in order."""
    optimizer._momentums, optimizer._velocities = list(first), list(second)


def schedule_of(optimizer: Any) -> Any:
    """The learning rate schedule of an optimizer."""
    return optimizer._learning_rate


# TensorFlow, JAX, jieba


def device_scope() -> str:
    """The device of the enclosing `tf.device` or `keras.device`; "" without one.

    While a `tf.function` is traced, it is the scope around the trace.
    """
    import tensorflow as tf
    from tensorflow.python.eager import context

    with tf.init_scope():  # leaves the graph of a traced function, which has no device
        return context.context().device_name or ""


def is_called_alone(keras: ModuleType) -> bool:
    """Whether a call on TensorFlow is plain inference in eager mode.

    It is not while a function is traced, a gradient is recorded, another layer is called, or a
    distribution strategy is active; nor inside a StatelessScope.
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


def is_traced_for_replicas() -> bool:
    """Whether a function is traced in the scope of a `tf.distribute` strategy."""
    import tensorflow as tf

    return bool(tf.distribute.has_strategy() and not tf.executing_eagerly())


@contextmanager
def forgetting_gradients() -> Iterator[None]:
    """Forget TensorFlow's custom gradients that the block creates; nothing may need them after it.

    TensorFlow keeps each of them as long as the process lives, and with it the graph of a training
    step and all its weights and moments.
    """
    # On JAX, too, Keras imports TensorFlow for a training: to set its seed.
    from tensorflow.python.framework.ops import gradient_registry

    gradients = gradient_registry._registry
    earlier = set(gradients)
    try:
        yield
    finally:
        for name in gradients.keys() - earlier:
            if name.startswith("CustomGradient-"):
                del gradients[name]


def jax_coordinator() -> Any:
    """The client of JAX's key-value store, through which its processes send messages."""
    from jax._src import distributed

    return distributed.global_state.client


def jieba_dictionary_changed(jieba: ModuleType, total: int) -> bool:
    """Whether jieba's dictionary is not the one whose frequencies have the sum `total`.

    Each way to change it is visible: `set_dictionary` sets a path, `add_word` changes the total,
    and `del_word` (frequency 0) adds to the words whose split is forced.
    """
    tokenizer = jieba.dt
    return (
        tokenizer.dictionary is not None
        or (tokenizer.initialized and tokenizer.total != total)
        or bool(jieba.finalseg.Force_Split_Words)
    )
