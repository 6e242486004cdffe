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
        "call passes it the projected query (B, T, N, H), key (B, S, N, H) and value first, by "
        "position, and if a subclass overrides it, a causal mask is part of attention_mask",
        "nothing: Keras documents it for subclasses, but its name is private",
        hook=True,
    ),
    PrivateName(
        "keras",
        "MultiHeadAttention._build_attention",
        "build calls it with the rank of the projections, after the query, key and value layers "
        "are built and before the output layer is: each draws its random seed in that order",
        "`build`, which gives other weights for the same seed",
        hook=True,
    ),
    PrivateName(
        "keras",
        "Layer._flatten_layers",
        "returns a layer and all layers inside it, each once",
        "nothing: `Model.layers` has only the outermost layers",
    ),
    PrivateName(
        "keras",
        "keras.src.backend.common.masking.set_keras_mask",
        "the mask that it sets in `call` is that of the output, in place of the first input's",
        "`compute_mask`, which gets no other argument of `call`",
    ),
    PrivateName(
        "keras",
        "keras.src.backend.common.global_state: current_call_ctx",
        "set while a layer is called, and None outside",
        "a wrapper of every layer's call, which other libraries' layers lack",
    ),
    PrivateName(
        "keras",
        "keras.src.backend.common.stateless_scope.in_stateless_scope",
        "whether the code runs within a StatelessScope",
        "nothing: `StatelessScope` itself has no public state",
    ),
    PrivateName(
        "keras",
        "Variable._initializer",
        "inside a StatelessScope no value is created, and the function in it is called "
        "with (shape, dtype=...) when the scope ends",
        "assign after the scope: every weight is then drawn at random first, and in memory twice",
    ),
    PrivateName(
        "keras",
        "Optimizer._get_variable_index",
        "the index of a Keras variable, or of the TensorFlow variable in it, in the order of build",
        "nothing that accepts TensorFlow's variables",
    ),
    PrivateName(
        "keras",
        "Optimizer._trainable_variables",
        "Keras' variables in the order of build",
        "a list of our own, built in `build`: a duplicate of the state",
    ),
    PrivateName(
        "keras",
        "Adam._momentums",
        "a list of the gradients' running means, one for each variable in the order of build",
        "search `variables` by name: the names are not documented either",
    ),
    PrivateName(
        "keras",
        "Adam._velocities",
        "a list of the squared gradients' running means, in the same order",
        "search `variables` by name: the names are not documented either",
    ),
    PrivateName(
        "keras",
        "Optimizer._use_weight_decay",
        "apply calls it for every variable before it decays the variable",
        "`exclude_from_weight_decay`, which is not saved with the optimizer",
        hook=True,
    ),
    PrivateName(
        "keras",
        "Optimizer._apply_weight_decay",
        "apply calls it with the variables, before it updates them",
        "nothing: Keras has one rate of decay for all variables",
        hook=True,
    ),
    PrivateName(
        "keras",
        "Optimizer._learning_rate",
        "the schedule that the optimizer was created with",
        "`learning_rate`, which is only the value at the optimizer's current step",
    ),
    PrivateName(
        "tensorflow",
        "tensorflow.python.eager.context.context().device_name",
        "the device of the enclosing `tf.device`; empty or None without one",
        "the device of a new tensor, which costs an operation for each call",
    ),
    PrivateName(
        "tensorflow",
        "tensorflow.python.eager.record.could_possibly_record",
        "whether a gradient tape or a forward accumulator is active",
        "nothing public",
    ),
    PrivateName(
        "tensorflow",
        "tensorflow.python.framework.ops.gradient_registry._registry",
        "the gradients by name; `tf.custom_gradient` adds one for each use in a graph, named "
        "CustomGradient- and a number, and what it refers to is freed when it is removed",
        "nothing: TensorFlow never removes one, so every trained model would stay in memory",
    ),
    PrivateName(
        "jax",
        "jax._src.distributed.global_state.client",
        "the key-value store of the processes, after `jax.distributed.initialize`",
        "files, which a full disk prevents and a restart finds again",
    ),
    PrivateName(
        "jieba",
        "jieba.dt.total",
        "`dt` is the tokenizer of the functions, with `dictionary`, `initialized` and the `total` "
        "of all frequencies; `finalseg.Force_Split_Words` contains the deleted words",
        "nothing: jieba does not report changes of its dictionary",
    ),
)
