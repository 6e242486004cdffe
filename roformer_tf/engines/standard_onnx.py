"""A network as an ONNX model of standard operators, with the inputs and outputs of transformers.

Any runtime opens it: ONNX Runtime, OpenVINO, TensorRT, Triton, browsers. Inputs, int64 (B, T):
`input_ids`, `attention_mask` (1 for a token, 0 for padding, on either side) and `token_type_ids`.
The first token of a text is the first that is not padding. A vector has the output
`sentence_embedding`, next to the `last_hidden_state` that it is pooled from. Question answering has
`start_logits` and `end_logits` (B, T).

`openvino_graph` adds to it what OpenVINO as an engine needs.
"""

from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto, TensorProto

from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.network import (
    ANSWER_OUTPUTS,
    EACH_TOKEN,
    FIRST,
    ORDERED,
    STANDARD_INPUTS,
    VECTOR,
    Array,
    Linear,
    Network,
    Norm,
    OutputKind,
)
from roformer_tf.engines.onnx_graph import OnnxGraph
from roformer_tf.engines.writer import write

LOGITS, HIDDEN = "logits", "last_hidden_state"
# All inputs and outputs that a graph may have.
NAMED = {*STANDARD_INPUTS, *ANSWER_OUTPUTS, LOGITS, HIDDEN, VECTOR}
# Names of the network's inputs here.
NAMES = dict(zip(("token_ids", "attention_mask", "segment_ids"), STANDARD_INPUTS, strict=True))


def standard_model(network: Network) -> ModelProto:
    """Write a network; `logits` of a regression are what it predicts, as in transformers."""
    linear = scale_of(network)
    graph = StandardGraph(network.config)
    with_hidden = network.part == "vectors"
    outputs = write(network, graph, with_hidden=with_hidden)
    if with_hidden:
        named = {HIDDEN: outputs["hidden_states"], VECTOR: outputs["vectors"]}
    else:
        logits = outputs[network.output]
        named = {LOGITS: graph.meaning(logits, linear) if linear else logits}
    if network.part == "qa_outputs":
        sides = graph.split(named[LOGITS], 2)
        squeezed = [graph.node("Squeeze", side, graph.integers(-1)) for side in sides]
        named = dict(zip(ANSWER_OUTPUTS, squeezed, strict=True))
    for name, value in named.items():
        graph.rename(value, name)
    axes = ["batch_size", "sequence_length"]
    by_token = {HIDDEN, LOGITS} if network.part in EACH_TOKEN else {HIDDEN}
    shapes = {
        name: axes if name in ANSWER_OUTPUTS else [*axes[: 1 + (name in by_token)], None]
        for name in named
    }
    return graph.model(dict.fromkeys(STANDARD_INPUTS, (TensorProto.INT64, axes)), shapes)


def scale_of(network: Network) -> OutputKind | None:
    """How the logits of a regression become what it predicts; None for other models."""
    meaning = network.meaning
    return meaning if meaning is not None and meaning.function == "linear" else None


class StandardGraph(OnnxGraph):
    """An ONNX graph without fused operations; a node is named after its layer."""

    # The first with all operators in use, and the format of that time: old runtimes open it, too.
    opsets: ClassVar = {"": 18}
    ir_version = 8

    def __init__(self, config: RoFormerConfig, largest: int | None = None) -> None:
        super().__init__(config, largest)
        self._layer = "masks"
        self._first = ""

    def new_name(self, kind: str) -> str:
        """Its layer and its number: encoder/layer_0/attention/query/MatMul_17."""
        return f"{self._layer}/{super().new_name(kind)}"

    def constant(self, name: str, values: Any, dtype: Any = np.float32) -> str:
        """A constant; the nodes after a weight are named after its layer."""
        self._layer = name.rpartition("/")[0] or self._layer
        return super().constant(name, values, dtype)

    def rename(self, old: str, new: str) -> None:
        """Rename a tensor; OpenVINO would know one after an Identity by both names."""
        for node in self.nodes:
            for names in (node.input, node.output):
                for index, name in enumerate(names):
                    names[index] = new if name == old else name

    def input(self, name: str) -> str:
        """An input, by transformers' name if there is one."""
        return NAMES.get(name, name)

    def _counted(self, token_ids: str) -> str:
        """Which tokens are not padding: (B, T) bool."""
        return self.node("Cast", NAMES["attention_mask"], to=TensorProto.BOOL)

    def visible(self, token_ids: str, segment_ids: str) -> str:
        """A bias of the scores: (B, 1, T) for padding alone, else (B, T, T)."""
        if self.attention_type in ORDERED:
            return super().visible(token_ids, segment_ids)
        seen = self.node("Unsqueeze", self._counted(token_ids), self.integers(1))
        return self._bias(seen)

    def dense(self, x: str, layer: Linear) -> str:
        """MatMul, Add, and an activation of Erf, Tanh or Relu."""
        y = self._product(x, layer)
        if layer.activation == "relu":
            return self.node("Relu", y)
        if layer.activation is None:
            return y
        half, whole = self.constant("half", 0.5), self.constant("whole", 1.0)
        if layer.activation == "gelu":
            bent = self.node("Erf", self.node("Mul", y, self.constant("sqrt_half", 0.5**0.5)))
        else:
            # gelu_new: tanh(√(2/π) · (y + 0.044715 y³)), Hendrycks and Gimpel (2016). With Pow, as
            # in transformers' graphs, ONNX Runtime and OpenVINO fuse it into one operation.
            cube = self.node("Pow", y, self.constant("three", 3.0))
            cube = self.node("Mul", cube, self.constant("cubic", 0.044715))
            scale = self.constant("sqrt_2_over_pi", (2 / np.pi) ** 0.5)
            bent = self.node("Tanh", self.node("Mul", self.node("Add", y, cube), scale))
        return self.node("Mul", self.node("Mul", y, half), self.node("Add", bent, whole))

    def add_norm(self, name: str, x: str, y: str, norm: Norm, bias: Array | None = None) -> str:
        """Add, and the norm."""
        x = self.with_bias(x, f"{name}/bias", bias)
        return self.norm(name, self.node("Add", x, y), norm)

    def norm(self, name: str, x: str, norm: Norm) -> str:
        """LayerNormalization; or the root of the mean square from simple operators."""
        if norm.gamma is not None:
            return super().norm(name, x, norm)
        mean = self.node("ReduceMean", self.node("Mul", x, x), self.integers(-1))
        shifted = self.node("Add", mean, self.constant("epsilon", norm.epsilon))
        return self.node("Div", x, self.node("Sqrt", shifted))

    def attend(self, query: str, key: str, value: str, visible: str, positions: str | None) -> str:
        """Rotate, MatMul, Softmax and MatMul."""
        # encoder/layer_0/attention/qkv → encoder/layer_0/attention.
        self._layer = self._layer.rpartition("/")[0]
        # A bias that differs from query to query is needed at the positions alone.
        if positions is not None and self.attention_type in ORDERED:
            visible = self.gather(visible, positions)
        query = self._rotated(self._heads(query), positions)
        key, value = self._rotated(self._heads(key), None), self._heads(value)
        # Scaled before the product, as transformers' attention does.
        query = self.node("Mul", query, self.constant("scale_of_scores", self.head_size**-0.5))
        scores = self.node("MatMul", query, self.node("Transpose", key, perm=[0, 1, 3, 2]))
        scores = self.node("Add", scores, self.node("Unsqueeze", visible, self.integers(1)))
        values = self.node("MatMul", self.node("Softmax", scores, axis=-1), value)
        joined = self.node("Transpose", values, perm=[0, 2, 1, 3])
        return self.node("Reshape", joined, self.integers(0, 0, self.heads * self.head_size))

    def _heads(self, x: str) -> str:
        """(B, T, H) → (B, N, T, K)."""
        x = self.node("Reshape", x, self.integers(0, 0, self.heads, self.head_size))
        return self.node("Transpose", x, perm=[0, 2, 1, 3])

    def _rotated(self, x: str, positions: str | None) -> str:
        """x cos + (−b, a) sin, a and b being halves of a head: the form that OpenVINO fuses."""
        tables, axes = self._rotation(), self.integers(0, 1)
        if positions is not None:
            at, axes = self._at(positions), self.integers(1)
            tables = tuple(self.node("Gather", table, at) for table in tables)  # (B, P, K)
        cos, sin = (self.node("Unsqueeze", table, axes) for table in tables)  # for all heads
        # Not by `split`: OpenVINO fuses only a split of these sizes along axis 3.
        half, name = self.head_size // 2, self.new_name("Split")
        a, b = f"{name}_0", f"{name}_1"
        self.add("Split", [x, self.integers(half, half)], [a, b], axis=3)
        minus_b = self.node("Mul", b, self.constant("minus_one", -1.0))
        swapped = self.node("Concat", minus_b, a, axis=-1)
        return self.node("Add", self.node("Mul", x, cos), self.node("Mul", swapped, sin))

    def _rotation(self) -> tuple[str, ...]:
        """Cosines and sines of all angles (T, K), each repeated for both halves of a head."""
        if not self._tables:
            halves = super()._rotation()
            self._tables = tuple(self.node("Concat", x, x, axis=-1) for x in halves)
        return self._tables

    def product_with_rows(self, name: str, x: str, table: Array, bias: Array | None) -> str:
        """Transpose, MatMul and Add."""
        words = self.constant(f"{name}/embeddings", table)
        y = self.node("MatMul", x, self.node("Transpose", words, perm=[1, 0]))
        return self.with_bias(y, "decoder/bias", bias)

    def gather(self, x: str, positions: str) -> str:
        """GatherND; the first token may follow padding."""
        return super().gather(x, self._at(positions))

    def _at(self, positions: str) -> str:
        """Positions (B, P); of FIRST those (B, 1) of the first tokens that are no padding."""
        if positions == FIRST and not self._first:
            # Of equal maxima the first index: that of the first 1.
            self._first = self.node("ArgMax", NAMES["attention_mask"], axis=1, keepdims=1)
        return self._first if positions == FIRST else positions
