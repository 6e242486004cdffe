"""A checkpoint's arrays → the operations of a model, whatever graph they are written to.

This is the one description of both families and of every head for inference: `write` goes through
it and asks a `Graph` for one operation after another. `onnx_graph` and `openvino_graph` are such
graphs. A new family, or a new head, is described here once, without Keras and without tracing.

Axes: B rows, T tokens, P positions, E embedding, H hidden, N heads, K head size, V vocabulary,
C labels, D numbers of a vector.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from roformer_tf.checkpoints.names import half_order
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
# Added to the score of a masked key: its exponential is 0 in float32 and in bfloat16.
UNSEEN = -10_000.0
# Instead of a node: the position of the first token of each text.
FIRST = "first"
# Where keys are hidden from some queries only.
ORDERED = ("causal", "unilm")


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
    """Of an exported graph."""
    dimensions: int | None = None
    """How many numbers of a vector are kept; None for all."""
    source: str = "the checkpoint"
    """The source of the arrays, for messages."""
    with_hidden: bool = False
    """For vectors: whether the hidden states that they are pooled from are an output, too."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of its inputs: int32 (B, T), and (B, P) of `masked_positions`."""
        return (*INPUTS, MASKED_POSITIONS) if self.part == "masked" else INPUTS

    @property
    def output(self) -> str:
        """Name of its output."""
        return OUTPUTS.get(self.part, "logits")


class Graph(Protocol):
    """The operations of a network; a node is the output of an earlier one."""

    def input(self, name: str) -> Node:
        """One of the network's inputs."""

    def visible(self, token_ids: Node, segment_ids: Node) -> Node:
        """The attention mask of the config, as of `layers.masks.visible_keys`.

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

        Dimensions m and m + K/2 of a head are a pair. `positions` (B, P) of the queries, or FIRST;
        None: all T positions.
        """

    def split(self, x: Node, parts: int) -> list[Node]:
        """x in equal parts along its last axis."""

    def gather(self, x: Node, positions: Node) -> Node:
        """x (B, T, H) at positions (B, P), or FIRST → (B, P, H)."""

    def only(self, x: Node) -> Node:
        """x (B, 1, H) → (B, H)."""

    def mean_of_tokens(self, x: Node, token_ids: Node) -> Node:
        """The mean over the tokens that are not padding: (B, T, H) → (B, H)."""

    def product_with_rows(self, name: str, x: Node, table: Array, bias: Array | None) -> Node:
        """x (B, P, E) times the transpose of the embedding table (V, E): (B, P, V)."""

    def unit(self, x: Node, dimensions: int | None) -> Node:
        """x (B, H) cut and normalized: (B, D)."""


def write(network: Network, graph: Graph) -> dict[str, Node]:
    """Write all operations of a network into a graph: its outputs by name.

    Raises InputError for missing weights, and for weights of a used part that no operation uses: a
    graph without them would compute something else.
    """
    writer = _Writer(network, graph)
    if network.with_hidden:
        hidden = writer.hidden()
        outputs = {OUTPUTS["hidden"]: hidden, network.output: writer.vectors(hidden)}
    else:
        outputs = {network.output: writer.output()}
    writer.check()
    return outputs


class _Writer:
    """Asks a graph for the operations of a network, one after another."""

    def __init__(self, network: Network, graph: Graph) -> None:
        self.network, self.graph, self.config = network, graph, network.config
        self.read: set[str] = set()
        """Names of the arrays that were read."""

    def check(self) -> None:
        """Raise InputError for an array that was not read, of a part that was."""
        # Parts that the output does not need may stay unread, such as the head of a language model
        # in a graph for vectors.
        used = {name.split("/")[0] for name in self.read}
        left = [n for n in self.network.arrays if n.split("/")[0] in used and n not in self.read]
        if left:
            raise InputError(
                f"{self.network.source} holds {left[0]}, which graphs do not support. Give "
                "--engine keras."
            )

    def output(self) -> Node:
        """The output: of a dense layer on every token, or what the method of the part gives."""
        part = self.network.part
        return self._dense(part, self.hidden()) if part in EACH_TOKEN else getattr(self, part)()

    def hidden(self, positions: Node | None = None) -> Node:
        """The last layer's hidden states, at the positions or everywhere."""
        graph, where = self.graph, "encoder/embeddings"
        token_ids, segment_ids = graph.input("token_ids"), graph.input("segment_ids")
        visible = graph.visible(token_ids, segment_ids)
        words, segments = (
            graph.lookup(f"{where}/{name}", self._array(f"{where}/{name}/embeddings"), ids)
            for name, ids in (("word", token_ids), ("segment", segment_ids))
        )
        x = graph.add_norm(f"{where}/norm", words, segments, self._norm(f"{where}/norm"))
        if self.config.embedding_size != self.config.hidden_size:
            x = self._dense(f"{where}/projection", x)
        last = self.config.num_hidden_layers - 1
        for number in range(self.config.num_hidden_layers):
            # Only the last layer may skip positions: keys and values of all others are needed.
            needed = positions if number == last else None
            x = self._layer(f"encoder/layer_{number}", x, visible, needed)
        return x

    def _layer(self, name: str, x: Node, visible: Node, positions: Node | None) -> Node:
        """norm(x + attention(x)), then norm(x + feed_forward(x)): x (B, T, H) → (B, T or P, H)."""
        graph, where = self.graph, f"{name}/attention"
        layers = [self._projection(where, role) for role in ROLES]
        if positions is None:
            # one product for all three, since a narrow one does not use all cores
            parts = graph.split(graph.dense(x, _joined(f"{where}/qkv", layers)), 3)
        else:
            parts = graph.split(graph.dense(x, _joined(f"{where}/kv", layers[1:])), 2)
            # (B, P, H): the residual connection and all that follows are at the P positions only.
            x = graph.gather(x, positions)
            parts = [graph.dense(x, layers[0]), *parts]
        query, key, value = parts
        attended = graph.attend(query, key, value, visible, positions)
        x = self._added(f"{where}/attention_output", f"{name}/attention_norm", attended, x)
        inner = self._dense(f"{name}/intermediate", x, self.config.hidden_act)
        return self._added(f"{name}/output", f"{name}/output_norm", inner, x)

    def _added(self, dense: str, norm: str, inner: Node, x: Node) -> Node:
        """The norm of x + a dense layer of `inner`."""
        layer = self._linear(dense)
        kernel = layer.kernel.reshape(-1, self.config.hidden_size)  # attention has (N, K, H)
        # The bias is passed to `add_norm`: ONNX Runtime's fused norm adds it in the same pass.
        y = self.graph.dense(inner, Linear(dense, kernel))
        return self.graph.add_norm(norm, y, x, self._norm(norm), layer.bias)

    def classifier(self) -> Node:
        """Two dense layers on the first token ("cls"), or one on the mean of all."""
        if self.config.pooling == "cls":
            x = self.hidden(FIRST)
            x = self._dense("classifier/dense", x, self.config.hidden_act)
            return self.graph.only(self._dense("classifier/out_proj", x))
        mean = self.graph.mean_of_tokens(self.hidden(), self.graph.input("token_ids"))
        return self._dense("classifier/out_proj", mean)

    def pooled(self, hidden: Node | None = None) -> Node:
        """The pooler's output, the mean of all tokens, or the first token; not normalized.

        hidden: the hidden states of all tokens, if the graph has them.
        """
        graph, pooling = self.graph, self.config.pooling
        if pooling == "mean":
            hidden = self.hidden() if hidden is None else hidden
            return graph.mean_of_tokens(hidden, graph.input("token_ids"))
        x = self.hidden(FIRST) if hidden is None else graph.gather(hidden, FIRST)
        return graph.only(self._dense("pooler/dense", x) if pooling == "pooler" else x)

    def vectors(self, hidden: Node | None = None) -> Node:
        """Pooled hidden states, cut and normalized."""
        return self.graph.unit(self.pooled(hidden), self.network.dimensions)

    def masked(self) -> Node:
        """The vocabulary's logits at the masked positions."""
        return self._vocabulary(self.hidden(self.graph.input(MASKED_POSITIONS)))

    def next_token(self) -> Node:
        """The vocabulary's logits at every position."""
        return self._vocabulary(self.hidden())

    def _vocabulary(self, x: Node) -> Node:
        """The head of a language model; RoFormerV2 has no more than the decoder."""
        words, bias = "encoder/embeddings/word", None
        if not self.config.is_v2:
            x = self._dense("mlm/dense", x, self.config.hidden_act)
            x = self.graph.norm("mlm/norm", x, self._norm("mlm/norm"))
            bias = self._array("mlm/bias")
        return self.graph.product_with_rows(words, x, self._array(f"{words}/embeddings"), bias)

    def _dense(self, name: str, x: Node, activation: str | None = None) -> Node:
        """A dense layer by its name."""
        return self.graph.dense(x, self._linear(name)._replace(activation=activation))

    def _linear(self, name: str) -> Linear:
        """A layer's weights; those of RoFormerV2 have no bias, except in its heads."""
        return Linear(name, self._array(f"{name}/kernel"), self._optional(f"{name}/bias"))

    def _projection(self, where: str, role: str) -> Linear:
        """The layer of queries, keys or values, (H, H).

        The dimensions of a pair are separated by K/2: scores do not depend on the order of
        dimensions, if queries and keys have the same.
        """
        name, kernel, bias, _ = self._linear(f"{where}/{role}")  # (H, N, K) and (N, K)
        if role != "value" and self.config.rotary_style == "interleaved":
            order = half_order(self.config.head_size, self.config.head_size)
            kernel, bias = kernel[..., order], None if bias is None else bias[..., order]
        size = self.config.hidden_size
        return Linear(name, kernel.reshape(size, size), None if bias is None else bias.reshape(-1))

    def _norm(self, name: str) -> Norm:
        config = self.config
        of_embeddings = name.startswith(("encoder/embeddings", "mlm"))
        size = config.embedding_size if of_embeddings else config.hidden_size
        weights = (self._optional(f"{name}/{weight}") for weight in ("gamma", "beta"))
        return Norm(size, config.layer_norm_eps, *weights)

    def _optional(self, name: str) -> Array | None:
        """A bias, or a weight of a norm, which the encoder of a RoFormerV2 does not have."""
        return None if self.config.is_v2 and name.startswith("encoder/") else self._array(name)

    def _array(self, name: str) -> Array:
        """A weight in float32, whatever the file's dtype."""
        self.read.add(name)
        if name not in self.network.arrays:
            raise InputError(
                f"{self.network.source} lacks weights, such as {name}. Give a complete checkpoint."
            )
        return np.ascontiguousarray(self.network.arrays[name], np.float32)


def _joined(name: str, layers: Sequence[Linear]) -> Linear:
    """Layers with the same input as one layer."""
    biases = [layer.bias for layer in layers if layer.bias is not None]
    kernel = np.concatenate([layer.kernel for layer in layers], axis=1)
    return Linear(name, kernel, np.concatenate(biases) if biases else None)


ROLES = ("query", "key", "value")
INPUTS = ("token_ids", "segment_ids")
MASKED_POSITIONS = "masked_positions"


def rounded(kernel: Array, largest: int) -> tuple[Array, Array]:
    """A kernel (in, out) → int8 of at most `largest`, and the scale of each column (out,)."""
    scales = np.abs(kernel).max(axis=0).astype(np.float32) / np.float32(largest)
    # A column of zeros would be divided by 0.
    scales = np.where(scales > 0, scales, np.float32(1))
    return np.rint(kernel / scales).astype(np.int8), scales
