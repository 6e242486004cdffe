"""A network → the operations of an ONNX graph.

This is the one description of both families and of every head for inference: `write` goes through
the arrays and asks an `OnnxGraph`, or a subclass of it, for one operation after another. A new
family, or a new head, is described here once, without Keras and without tracing.

Axes: B rows, T tokens, P positions, E embedding, H hidden, N heads, K head size.
"""

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, TensorProto

from roformer_tf.checkpoints.names import half_order
from roformer_tf.engines.network import (
    EACH_TOKEN,
    FIRST,
    MASKED_POSITIONS,
    OUTPUTS,
    Array,
    Linear,
    Network,
    Norm,
)
from roformer_tf.engines.onnx_graph import OnnxGraph
from roformer_tf.errors import InputError

ROLES = ("query", "key", "value")


def onnx_model(network: Network, largest: int | None = None) -> ModelProto:
    """Write a network; with `largest` (BYTE or SEVEN_BITS) its kernels in int8."""
    graph = OnnxGraph(network.config, largest)
    outputs = write(network, graph)
    if network.meaning is not None:
        outputs[network.meaning.name] = graph.meaning(outputs[network.output], network.meaning)
    for name, value in outputs.items():
        graph.node("Identity", value, output=name)
    lengths = dict.fromkeys(("hidden", *EACH_TOKEN, "next_token"), "length")
    lengths |= {"masked": "positions"}
    # (B, T or P, C), or (B, C) for one output a text. None: an axis without a name.
    shape = ["batch", *filter(None, [lengths.get(network.part)]), None]
    axes = {"masked_positions": "positions"}
    inputs = {
        name: (TensorProto.INT32, ["batch", axes.get(name, "length")]) for name in network.inputs
    }
    return graph.model(inputs, dict.fromkeys(outputs, shape))


def write(network: Network, graph: OnnxGraph, *, with_hidden: bool = False) -> dict[str, str]:
    """Write all operations of a network into a graph: its outputs by name.

    with_hidden: whether the hidden states that vectors are pooled from are an output, too. Raises
    InputError for missing weights, and for weights of a used part that no operation uses: a graph
    without them would compute something else.
    """
    writer = _Writer(network, graph)
    if with_hidden:
        hidden = writer.hidden()
        outputs = {OUTPUTS["hidden"]: hidden, network.output: writer.vectors(hidden)}
    else:
        outputs = {network.output: writer.output()}
    writer.check()
    return outputs


class _Writer:
    """Asks a graph for the operations of a network, one after another."""

    def __init__(self, network: Network, graph: OnnxGraph) -> None:
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

    def output(self) -> str:
        """The output: of a dense layer on every token, or what the method of the part gives."""
        part = self.network.part
        return self._dense(part, self.hidden()) if part in EACH_TOKEN else getattr(self, part)()

    def hidden(self, positions: str | None = None) -> str:
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

    def _layer(self, name: str, x: str, visible: str, positions: str | None) -> str:
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

    def _added(self, dense: str, norm: str, inner: str, x: str) -> str:
        """The norm of x + a dense layer of `inner`."""
        layer = self._linear(dense)
        kernel = layer.kernel.reshape(-1, self.config.hidden_size)  # attention has (N, K, H)
        # The bias is passed to `add_norm`: ONNX Runtime's fused norm adds it in the same pass.
        y = self.graph.dense(inner, Linear(dense, kernel))
        return self.graph.add_norm(norm, y, x, self._norm(norm), layer.bias)

    def classifier(self) -> str:
        """Two dense layers on the first token ("cls"), or one on the mean of all."""
        if self.config.pooling == "cls":
            x = self.hidden(FIRST)
            x = self._dense("classifier/dense", x, self.config.hidden_act)
            return self.graph.only(self._dense("classifier/out_proj", x))
        mean = self.graph.mean_of_tokens(self.hidden(), self.graph.input("token_ids"))
        return self._dense("classifier/out_proj", mean)

    def pooled(self, hidden: str | None = None) -> str:
        """The pooler's output, the mean of all tokens, or the first token; not normalized.

        hidden: the hidden states of all tokens, if the graph has them.
        """
        graph, pooling = self.graph, self.config.pooling
        if pooling == "mean":
            hidden = self.hidden() if hidden is None else hidden
            return graph.mean_of_tokens(hidden, graph.input("token_ids"))
        x = self.hidden(FIRST) if hidden is None else graph.gather(hidden, FIRST)
        return graph.only(self._dense("pooler/dense", x) if pooling == "pooler" else x)

    def vectors(self, hidden: str | None = None) -> str:
        """Pooled hidden states, cut and normalized."""
        return self.graph.unit(self.pooled(hidden), self.network.dimensions)

    def masked(self) -> str:
        """The vocabulary's logits at the masked positions."""
        return self._vocabulary(self.hidden(self.graph.input(MASKED_POSITIONS)))

    def next_token(self) -> str:
        """The vocabulary's logits at every position."""
        return self._vocabulary(self.hidden())

    def _vocabulary(self, x: str) -> str:
        """The head of a language model; RoFormerV2 has no more than the decoder."""
        words, bias = "encoder/embeddings/word", None
        if not self.config.is_v2:
            x = self._dense("mlm/dense", x, self.config.hidden_act)
            x = self.graph.norm("mlm/norm", x, self._norm("mlm/norm"))
            bias = self._array("mlm/bias")
        return self.graph.product_with_rows(words, x, self._array(f"{words}/embeddings"), bias)

    def _dense(self, name: str, x: str, activation: str | None = None) -> str:
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
