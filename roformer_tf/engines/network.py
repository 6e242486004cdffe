"""A checkpoint's arrays → the operations of a model, whatever graph they are written to.

This is the one description of both families and of every head for inference: `write` goes through
it and asks a `Graph` for one operation after another. `onnx_graph` and `openvino_graph` are such
graphs. A new family, or a new head, is described here once, without Keras and without tracing.

Axes: B rows, T tokens, P positions, E embedding, H hidden, N heads, K head size, V vocabulary,
C labels, D numbers of a vector.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError

# A graph's name or object for a tensor.
Node: TypeAlias = Any
Array: TypeAlias = np.ndarray

# The output of a network: "hidden" states (B, T, H); logits of a "classifier" (B, C) or of a
# "token_classifier" (B, T, C), or "global_pointer" (B, T, 2 · (64 + C)): see
# `models.heads.RoFormerForSpanExtraction`; "qa_outputs" (B, T, 2), of an answer's first and last
# token; "vectors" (B, D) of length 1; "pooled" hidden states (B, H). The vocabulary's logits are
# (B, P, V) at "masked" positions, or (B, T, V) for the "next_token".
Part = Literal[
    "hidden",
    "classifier",
    "token_classifier",
    "global_pointer",
    "qa_outputs",
    "vectors",
    "pooled",
    "masked",
    "next_token",
]
# Logits of every token, by one dense layer of this name.
EACH_TOKEN: tuple[Part, ...] = ("token_classifier", "global_pointer", "qa_outputs")
# Name of that output; of all others "logits".
OUTPUTS: dict[Part, str] = {"hidden": "hidden_states", "vectors": "vectors", "pooled": "vectors"}
# Key in the metadata of our ONNX models: float32 or int8.
PRECISION = "precision"

# Largest number of a kernel in int8. Some older CPUs add products of two bytes in 16 bits, which
# overflow: with 7 of the 8 bits the results are the same on all.
BYTE, SEVEN_BITS = 127, 63


class OutputKind(NamedTuple):
    """A second output of a graph: a function of the logits that gives them a meaning."""

    name: str
    function: Literal["softmax", "sigmoid", "linear"]
    scale: float = 1.0
    offset: float = 0.0


class Norm(NamedTuple):
    """A layer norm, or, without weights, RoFormerV2's: x / √(mean of x² + ε)."""

    size: int
    epsilon: float
    gamma: Array | None = None
    beta: Array | None = None


class Linear(NamedTuple):
    """A product with a kernel (in, out), and what follows it."""

    name: str
    kernel: Array
    bias: Array | None = None
    activation: str | None = None
    """As `hidden_act` has it."""


@dataclass(frozen=True, eq=False)
class Network:
    """An architecture, its arrays by our names, and the output that is wanted."""

    config: RoFormerConfig
    arrays: Mapping[str, Array]
    part: Part = "hidden"
    meaning: OutputKind | None = None
    pooling: Pooling = "mean"
    """For vectors."""
    dimensions: int | None = None
    """How many numbers of a vector are kept; None for all."""
    source: str = "the checkpoint"
    """The source of the arrays, for messages."""
    with_hidden: bool = False
    """For vectors: whether the hidden states that they are pooled from are an output, too."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of its inputs: int32 (B, T), and (B, P) of `masked_positions`."""
        return inputs_of(self.part)

    @property
    def output(self) -> str:
        """Name of its output."""
        return OUTPUTS.get(self.part, "logits")


class Graph(Protocol):
    """The operations of a network; a node is the output of an earlier one."""

    def input(self, name: str) -> Node:
        """One of the network's inputs."""

    def visible(self, attention_type: str | None, token_ids: Node, segment_ids: Node) -> Node:
        """The attention mask, as of `layers.masks.visible_keys`.

        A sequence is one document, token 0 is padding, and the first token is always visible.
        """

    def lookup(self, name: str, table: Array, ids: Node) -> Node:
        """table (…, E), ids (B, T) → (B, T, E)."""

    def dense(self, x: Node, layer: Linear) -> Node:
        """(B, T, in) → (B, T, out)."""

    def add_norm(self, name: str, x: Node, y: Node, norm: Norm, bias: Array | None = None) -> Node:
        """The norm of x + y + bias, over the last axis."""

    def norm(self, name: str, x: Node, norm: Norm) -> Node:
        """The norm of x, over the last axis."""

    def attend(
        self, query: Node, key: Node, value: Node, visible: Node, positions: Node | None
    ) -> Node:
        """Rotate query and key, (B, P, H) and (B, T, H), then weigh the values: (B, P, H).

        Dimensions m and m + K/2 of a head are a pair. `positions` (B, P) of the queries; None: all
        T positions.
        """

    def split(self, x: Node, parts: int) -> list[Node]:
        """x in equal parts along its last axis."""

    def first(self) -> Node:
        """The positions of the first tokens."""

    def gather(self, x: Node, positions: Node) -> Node:
        """x (B, T, H) at positions (B, P) → (B, P, H)."""

    def only(self, x: Node) -> Node:
        """x (B, 1, H) → (B, H)."""

    def mean_of_tokens(self, x: Node, token_ids: Node) -> Node:
        """The mean over the tokens that are not padding: (B, T, H) → (B, H)."""

    def product_with_rows(self, name: str, x: Node, table: Array, bias: Array | None) -> Node:
        """x (B, P, E) times the transpose of the embedding table (V, E): (B, P, V)."""

    def unit(self, x: Node, dimensions: int | None) -> Node:
        """x (B, H) cut and normalized: (B, D)."""

    def meaning(self, x: Node, meaning: OutputKind) -> Node:
        """Apply the function that gives logits a meaning."""


def write(network: Network, graph: Graph) -> dict[str, Node]:
    """Write all operations of a network into a graph: its outputs by name.

    Raises InputError for missing weights, and for weights of a used part that no operation uses: a
    graph without them would compute something else.
    """
    arrays = _Asked(network.arrays, network.source)
    network = dataclasses.replace(network, arrays=arrays)
    if network.with_hidden:
        hidden = _hidden(network, graph)
        outputs = {OUTPUTS["hidden"]: hidden, network.output: _vectors(network, graph, hidden)}
    else:
        outputs = {network.output: _PARTS[network.part](network, graph)}
    arrays.check()
    if network.meaning is not None:
        outputs[network.meaning.name] = graph.meaning(outputs[network.output], network.meaning)
    return outputs


class _Asked(Mapping[str, Array]):
    """Arrays that remember which of them were read."""

    def __init__(self, arrays: Mapping[str, Array], source: str) -> None:
        self._arrays, self._source = arrays, source
        self._asked: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        self._asked.add(name)
        if name not in self._arrays:
            raise InputError(
                f"{self._source} lacks weights, such as {name}. Give a complete checkpoint."
            )
        return self._arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def check(self) -> None:
        """Raise InputError for an array that was not read, of a part that was."""
        used = {name.split("/")[0] for name in self._asked}
        left = [n for n in self if n.split("/")[0] in used and n not in self._asked]
        if left:
            raise InputError(
                f"{self._source} holds {left[0]}, which graphs do not support. Give --engine keras."
            )


def _hidden(network: Network, graph: Graph, positions: Node | None = None) -> Node:
    """The last layer's hidden states, at the positions or everywhere."""
    config, arrays = network.config, network.arrays
    token_ids, segment_ids = graph.input("token_ids"), graph.input("segment_ids")
    visible = graph.visible(config.attention_type, token_ids, segment_ids)
    where = "encoder/embeddings"
    words, segments = (
        graph.lookup(f"{where}/{name}", arrays[f"{where}/{name}/embeddings"], ids)
        for name, ids in (("word", token_ids), ("segment", segment_ids))
    )
    x = graph.add_norm(f"{where}/norm", words, segments, _norm(network, f"{where}/norm"))
    if config.embedding_size != config.hidden_size:
        x = graph.dense(x, _dense(network, f"{where}/projection"))
    last = config.num_hidden_layers - 1
    for number in range(config.num_hidden_layers):
        # Only the last layer may skip positions: keys and values of all others are needed.
        needed = positions if number == last else None
        x = _layer(network, graph, f"encoder/layer_{number}", x, visible, needed)
    return x


def _layer(
    network: Network, graph: Graph, name: str, x: Node, visible: Node, positions: Node | None
) -> Node:
    """norm(x + attention(x)), then norm(x + feed_forward(x)): x (B, T, H) → (B, T or P, H)."""
    config = network.config
    layers = [_projection(network, f"{name}/attention", role) for role in ROLES]
    if positions is None:
        # one product for all three, since a narrow one does not use all cores
        parts = graph.split(graph.dense(x, _joined("qkv", layers)), 3)
    else:
        parts = graph.split(graph.dense(x, _joined("kv", layers[1:])), 2)
        x = graph.gather(x, positions)
        parts = [graph.dense(x, layers[0]), *parts]
    query, key, value = parts
    attended = graph.attend(query, key, value, visible, positions)
    output = _dense(network, f"{name}/attention/attention_output")
    output = output._replace(kernel=output.kernel.reshape(config.hidden_size, -1))
    norm = f"{name}/attention_norm"
    x = graph.add_norm(
        norm,
        graph.dense(attended, output._replace(bias=None)),
        x,
        _norm(network, norm),
        output.bias,
    )
    inner = _dense(network, f"{name}/intermediate", config.hidden_act)
    output = _dense(network, f"{name}/output")
    fed = graph.dense(graph.dense(x, inner), output._replace(bias=None))
    norm = f"{name}/output_norm"
    return graph.add_norm(norm, fed, x, _norm(network, norm), output.bias)


def _classifier(network: Network, graph: Graph) -> Node:
    """Two dense layers on the first token ("cls"), or one on the mean of all."""
    if network.config.pooling == "cls":
        x = _hidden(network, graph, graph.first())
        x = graph.dense(x, _dense(network, "classifier/dense", network.config.hidden_act))
        return graph.only(graph.dense(x, _dense(network, "classifier/out_proj")))
    mean = graph.mean_of_tokens(_hidden(network, graph), graph.input("token_ids"))
    return graph.dense(mean, _dense(network, "classifier/out_proj"))


def _each_token(network: Network, graph: Graph) -> Node:
    """One dense layer on every token, whose name is that of the part."""
    return graph.dense(_hidden(network, graph), _dense(network, network.part))


def _pooled(network: Network, graph: Graph, hidden: Node | None = None) -> Node:
    """The pooler's output, the mean of all tokens, or the first token; not normalized.

    hidden: the hidden states of all tokens, if the graph has them.
    """
    if network.pooling == "mean":
        hidden = _hidden(network, graph) if hidden is None else hidden
        return graph.mean_of_tokens(hidden, graph.input("token_ids"))
    first = graph.first()
    x = _hidden(network, graph, first) if hidden is None else graph.gather(hidden, first)
    if network.pooling == "pooler":
        x = graph.dense(x, _dense(network, "pooler/dense"))
    return graph.only(x)


def _vectors(network: Network, graph: Graph, hidden: Node | None = None) -> Node:
    """Pooled hidden states, cut and normalized."""
    return graph.unit(_pooled(network, graph, hidden), network.dimensions)


def _masked(network: Network, graph: Graph) -> Node:
    """The vocabulary's logits at the masked positions."""
    return _vocabulary(network, graph, _hidden(network, graph, graph.input(MASKED_POSITIONS)))


def _next_token(network: Network, graph: Graph) -> Node:
    """The vocabulary's logits at every position."""
    return _vocabulary(network, graph, _hidden(network, graph))


def _vocabulary(network: Network, graph: Graph, x: Node) -> Node:
    """The head of a language model; RoFormerV2 has no more than the decoder."""
    arrays = network.arrays
    words, bias = "encoder/embeddings/word", None
    if not network.config.is_v2:
        x = graph.dense(x, _dense(network, "mlm/dense", network.config.hidden_act))
        x = graph.norm("mlm/norm", x, _norm(network, "mlm/norm"))
        bias = arrays["mlm/bias"]
    return graph.product_with_rows(words, x, arrays[f"{words}/embeddings"], bias)


_PARTS: dict[Part, Callable[[Network, Graph], Node]] = {
    "hidden": _hidden,
    "classifier": _classifier,
    **dict.fromkeys(EACH_TOKEN, _each_token),
    "vectors": _vectors,
    "pooled": _pooled,
    "masked": _masked,
    "next_token": _next_token,
}
ROLES = ("query", "key", "value")
INPUTS = ("token_ids", "segment_ids")
MASKED_POSITIONS = "masked_positions"


def inputs_of(part: Part) -> tuple[str, ...]:
    """Names of the inputs of a network with this output."""
    return (*INPUTS, MASKED_POSITIONS) if part == "masked" else INPUTS


def _dense(network: Network, name: str, activation: str | None = None) -> Linear:
    """A layer by its name; those of RoFormerV2 have no bias, except in its heads."""
    bias = f"{name}/bias"
    arrays = network.arrays
    return Linear(name, _float32(arrays[f"{name}/kernel"]), _optional(arrays, bias), activation)


def _projection(network: Network, where: str, role: str) -> Linear:
    """The layer of queries, keys or values, (H, H), with the dimensions of a pair separated by K/2.

    Scores do not depend on the order of dimensions, if queries and keys have the same.
    """
    layer, config = _dense(network, f"{where}/{role}"), network.config
    kernel, bias = layer.kernel, layer.bias  # (H, N, K) and (N, K)
    if role != "value" and config.rotary_style == "interleaved":
        order = np.arange(config.head_size).reshape(-1, 2).T.reshape(-1)
        kernel = kernel[..., order]
        bias = None if bias is None else bias[..., order]
    flat = kernel.reshape(config.hidden_size, config.hidden_size)
    return Linear(layer.name, flat, None if bias is None else bias.reshape(-1))


def _joined(name: str, layers: Sequence[Linear]) -> Linear:
    """Layers with the same input as one layer."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    where = layers[0].name.rpartition("/")[0]
    kernel = np.concatenate([layer.kernel for layer in layers], axis=1)
    return Linear(f"{where}/{name}", kernel, np.concatenate(biases) if biases else None)


def _norm(network: Network, name: str) -> Norm:
    config, arrays = network.config, network.arrays
    of_embeddings = name.startswith(("encoder/embeddings", "mlm"))
    size = config.embedding_size if of_embeddings else config.hidden_size
    weights = (_optional(arrays, f"{name}/{weight}") for weight in ("gamma", "beta"))
    return Norm(size, config.layer_norm_eps, *weights)


def _optional(arrays: Mapping[str, Array], name: str) -> Array | None:
    return _float32(arrays[name]) if name in arrays else None


def _float32(array: Array) -> Array:
    """Weights in float32, whatever the file's dtype."""
    return np.ascontiguousarray(array, np.float32)


def rounded(kernel: Array, largest: int) -> tuple[Array, Array]:
    """A kernel (in, out) → int8 of at most `largest`, and the scale of each column (out,)."""
    scales = np.abs(kernel).max(axis=0).astype(np.float32) / np.float32(largest)
    scales = np.where(scales > 0, scales, np.float32(1))
    return np.rint(kernel / scales).astype(np.int8), scales
