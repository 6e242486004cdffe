"""The private names of other libraries that the package uses, and what must be true of them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PrivateName:
    """A private name that the package uses."""

    library: str
    """The library, as it is imported."""
    name: str
    """The name with its owner, such as `Layer._flatten_layers`."""
    holds: str
    """What must be true of it."""
    instead: str
    """The alternative, or why there is no public one."""
    hook: bool = False
    """Whether our classes override it, in their own modules."""

    @property
    def attribute(self) -> str:
        """The name alone: `_flatten_layers`."""
        return self.name.rpartition(".")[2]


PRIVATE_NAMES = (
    PrivateName(
        "keras",
        "MultiHeadAttention._compute_attention",
        "call hands it the projected query (B, T, N, H), key (B, S, N, H) and value first, by "
        "position, and with a subclass' own never a causal mask that it has not put into "
        "attention_mask",
        "nothing: Keras' docstring offers it to subclasses, though under a private name",
        hook=True,
    ),
    PrivateName(
        "keras",
        "MultiHeadAttention._build_attention",
        "build calls it with the projections' rank once queries, keys and values have theirs, and "
        "before the output has: each draws its random seed in that order",
        "`build`, at the price of other weights from the same seed",
        hook=True,
    ),
    PrivateName(
        "keras",
        "Layer._flatten_layers",
        "gives a layer and all layers inside it, each once",
        "nothing: `Model.layers` has the outermost alone",
    ),
    PrivateName(
        "keras",
        "keras.src.backend.common.global_state: current_call_ctx",
        "set while a layer is called, and None outside",
        "a wrapper of every layer's call, which those of others lack",
    ),
    PrivateName(
        "keras",
        "keras.src.backend.common.stateless_scope.in_stateless_scope",
        "whether variables have other values for the while",
        "nothing: `StatelessScope` itself has no public state",
    ),
    PrivateName(
        "keras",
        "Variable._initializer",
        "inside a StatelessScope no value is created, and the function in it is called "
        "with (shape, dtype=...) when the scope ends",
        "assign after the scope: every weight drawn at random first, and in memory twice",
    ),
    PrivateName(
        "keras",
        "Optimizer._get_variable_index",
        "the number of a variable, or of TensorFlow's own inside it, in the order of build",
        "nothing that knows TensorFlow's own variables",
    ),
    PrivateName(
        "keras",
        "Optimizer._trainable_variables",
        "Keras' variables in the order of build",
        "a list of our own, made in build: a second truth",
    ),
    PrivateName(
        "keras",
        "Adam._momentums",
        "a list of the gradients' running means, one for each variable in the order of build",
        "search `variables` by name: names are not promised either",
    ),
    PrivateName(
        "keras",
        "Adam._velocities",
        "a list of the squared gradients' running means, in the same order",
        "search `variables` by name: names are not promised either",
    ),
    PrivateName(
        "keras",
        "Optimizer._use_weight_decay",
        "apply asks it of every variable before it shrinks the variable",
        "`exclude_from_weight_decay`, which a saved optimizer forgets",
        hook=True,
    ),
    PrivateName(
        "keras",
        "Optimizer._apply_weight_decay",
        "apply calls it with the variables, before it updates them",
        "nothing: Keras has one rate of decay for all",
        hook=True,
    ),
    PrivateName(
        "keras",
        "Optimizer._learning_rate",
        "the schedule that the optimizer was made with",
        "`learning_rate`, which is its value at the optimizer's own step, not at any",
    ),
    PrivateName(
        "tensorflow",
        "tensorflow.python.eager.context.context().device_name",
        "the device that the enclosing `tf.device` names; empty or None where none does",
        "look at the device of a new tensor: an operation for each call",
    ),
    PrivateName(
        "tensorflow",
        "tensorflow.python.eager.record.could_possibly_record",
        "whether a gradient tape or a forward accumulator is around",
        "nothing public",
    ),
    PrivateName(
        "jax",
        "jax._src.distributed.global_state.client",
        "the processes' store of keys and values, once `jax.distributed.initialize` has run",
        "files, which a full disk silences and the next start finds again",
    ),
    PrivateName(
        "jieba",
        "jieba.dt.total",
        "`dt` is the tokenizer of the functions, with `dictionary`, `initialized` and the `total` "
        "of all frequencies; `finalseg.Force_Split_Words` holds the words that were deleted",
        "nothing: jieba does not say whether its dictionary was changed",
    ),
)
