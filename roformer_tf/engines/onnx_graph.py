"""A network as an ONNX model, in ONNX Runtime's fused operations.

RotaryEmbedding, MultiHeadAttention, SkipLayerNormalization and BiasGelu (domain com.microsoft) are
one pass each, where a traced graph has dozens of nodes. In int8 the kernels of dense layers have 8
bits and a scale for each column. Activations are quantized dynamically, with one scale for each
call; embeddings, norms and biases stay float32.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.network import (
    FIRST,
    ORDERED,
    PRECISION,
    UNSEEN,
    Array,
    Linear,
    Norm,
    OutputKind,
    rounded,
)

MICROSOFT = "com.microsoft"
# Sizes and names of axes; None for any shape.
Shape: TypeAlias = Sequence[Any] | None


class OnnxGraph:
    """Nodes and constants of an ONNX graph; a tensor is its name."""

    # ONNX Runtime 1.20, whose attention is wrong with fewer queries than keys, refuses 22.
    opsets: ClassVar = {"": 22, MICROSOFT: 1}
    ir_version = 10

    def __init__(self, config: RoFormerConfig, largest: int | None = None) -> None:
        self.attention_type = config.attention_type
        self.heads, self.head_size = config.num_attention_heads, config.head_size
        self.rotary_base, self.largest = config.rotary_base, largest
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, TensorProto] = {}
        self._tables: tuple[str, ...] = ()

    def model(
        self, inputs: Mapping[str, tuple[int, Shape]], outputs: Mapping[str, Shape]
    ) -> ModelProto:
        """The model: dtypes and shapes of its inputs, shapes of its outputs, all float32."""
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "roformer",
            [value(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
            [value(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
            list(self.constants.values()),
        )
        opsets = [helper.make_opsetid(*opset) for opset in self.opsets.items()]
        model = helper.make_model(
            graph, ir_version=self.ir_version, opset_imports=opsets, producer_name="roformer_tf"
        )
        helper.set_model_props(model, {PRECISION: "int8" if self.largest else "float32"})
        return model

    def node(
        self, kind: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any
    ) -> str:
        """Add a node with one output: its name."""
        output = output or self.new_name(kind)
        self.add(kind, inputs, [output], domain=domain, **attributes)
        return output

    def add(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Add a node, which is named after its first output."""
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes))

    def new_name(self, kind: str) -> str:
        """A name for the next node."""
        return f"{kind}_{len(self.nodes)}"

    def fused(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node of ONNX Runtime's own operations."""
        return self.node(kind, *inputs, domain=MICROSOFT, **attributes)

    def constant(self, name: str, values: Any, dtype: Any = np.float32) -> str:
        """A constant; a name always has the same value."""
        if name not in self.constants:
            array = np.ascontiguousarray(values, dtype).reshape(np.shape(values))
            self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def optional(self, name: str, values: Array | None) -> str:
        """A constant; or "", ONNX' name of an absent input."""
        return "" if values is None else self.constant(name, values)

    def with_bias(self, x: str, name: str, bias: Array | None) -> str:
        """x + bias, if there is one."""
        return x if bias is None else self.node("Add", x, self.constant(name, bias))

    def integers(self, *values: int) -> str:
        """An int64 constant: axes, starts, shapes."""
        return self.constant(f"int64_{'_'.join(map(str, values))}", values, np.int64)

    def input(self, name: str) -> str:
        """An input, by the network's name."""
        return name

    def visible(self, token_ids: str, segment_ids: str) -> str:
        """The attention mask of the config, as of `layers.masks.visible_keys`.

        A mask of padding, int32 (B, T); or a bias of the scores, where more is masked. A sequence
        is one document, token 0 is padding, and the first token is always visible.
        """
        counted = self._counted(token_ids)
        if self.attention_type not in ORDERED:
            return self.node("Cast", counted, to=TensorProto.INT32)
        # A key is visible if its rank is not above the query's: of tokens for a causal model, of
        # segments for UniLM, whose segment 0 is bidirectional.
        if self.attention_type == "causal":
            rank = self._places(token_ids)  # (T,)
        else:
            # Segments 0 0 0 1 1 have the ranks 0 0 0 1 2.
            rank = self.node("CumSum", segment_ids, self.scalar(1))  # (B, T)
        seen = self.node(
            "LessOrEqual",
            self.node("Unsqueeze", rank, self.integers(-2)),
            self.node("Unsqueeze", rank, self.integers(-1)),
        )  # ([B,] T, T), query before key
        seen = self.node("And", seen, self.node("Unsqueeze", counted, self.integers(1)))
        return self._bias(seen)

    def _bias(self, seen: str) -> str:
        """What is added to scores: 0 where a key is seen."""
        zero, unseen = self.constant("seen", 0.0), self.constant("unseen", UNSEEN)
        return self.node("Where", seen, zero, unseen)

    def scalar(self, value: int) -> str:
        """An int32 constant without axes."""
        return self.constant(f"int32_{value}", value, np.int32)

    def _counted(self, token_ids: str) -> str:
        """Which tokens are not padding: (B, T) bool; the first token is always visible."""
        is_padding = self.node("Equal", token_ids, self.scalar(0))
        place = self._places(token_ids)
        later = self.node("Greater", place, self.constant("first", 0, np.int64))
        return self.node("Not", self.node("And", is_padding, later))

    def _places(self, token_ids: str) -> str:
        """0 … T − 1, int64 (T,)."""
        length = self.node("Shape", token_ids, start=1, end=2)
        length = self.node("Squeeze", length)
        return self.node(
            "Range", self.constant("first", 0, np.int64), length, self.constant("step", 1, np.int64)
        )

    def lookup(self, name: str, table: Array, ids: str) -> str:
        """table (V, E), ids (B, T) → (B, T, E)."""
        return self.node("Gather", self.constant(f"{name}/embeddings", table), ids)

    def dense(self, x: str, layer: Linear) -> str:
        """(B, T, in) → (B, T, out): a product; then bias and activation in one pass."""
        name, act = layer.name, layer.activation
        gelu = {"gelu": "BiasGelu", "gelu_new": "FastGelu"}.get(act or "")
        if gelu:
            # BiasGelu requires a bias, which RoFormerV2 does not have.
            bias = np.zeros(layer.kernel.shape[1], np.float32) if layer.bias is None else layer.bias
            product = self._product(x, layer._replace(bias=None))
            return self.fused(gelu, product, self.constant(f"{name}/bias", bias))
        y = self._product(x, layer)
        return self.node("Relu", y) if act == "relu" else y

    def _product(self, x: str, layer: Linear) -> str:
        """x · kernel + bias; in int8 x is quantized dynamically."""
        name, kernel = layer.name, f"{layer.name}/kernel"
        if self.largest is None:
            y = self.node("MatMul", x, self.constant(kernel, layer.kernel))
            return self.with_bias(y, f"{name}/bias", layer.bias)
        values, scales = rounded(layer.kernel, self.largest)
        kernel = self.constant(kernel, values, np.int8)
        scale = self.constant(f"{name}/scales", scales)
        bias = self.optional(f"{name}/bias", layer.bias)
        # The empty input is the kernel's zero point: int8 values are symmetric around 0.
        return self.fused("DynamicQuantizeMatMul", x, kernel, scale, "", bias)

    def add_norm(self, name: str, x: str, y: str, norm: Norm, bias: Array | None = None) -> str:
        """The norm of x + y + bias; SkipLayerNormalization, or that without mean and weights."""
        bias_name = self.optional(f"{name}/bias", bias)
        if norm.gamma is None:
            # The operation requires a weight, which RoFormerV2's norm does not have.
            ones = self.constant(f"ones_{norm.size}", np.ones(norm.size))
            kind, weights = "SkipSimplifiedLayerNormalization", [ones]
        else:
            kind, weights = "SkipLayerNormalization", self._weights(name, norm)
        return self.fused(kind, x, y, *weights, bias_name, epsilon=norm.epsilon)

    def norm(self, name: str, x: str, norm: Norm) -> str:
        """ONNX' own LayerNormalization; no head has the norm of RoFormerV2."""
        return self.node("LayerNormalization", x, *self._weights(name, norm), epsilon=norm.epsilon)

    def _weights(self, name: str, norm: Norm) -> list[str]:
        return [
            self.constant(f"{name}/gamma", norm.gamma),
            self.constant(f"{name}/beta", norm.beta),
        ]

    def attend(self, query: str, key: str, value: str, visible: str, positions: str | None) -> str:
        """RotaryEmbedding twice, and MultiHeadAttention: (B, P, H).

        Rotate the query (B, P, H) and the key (B, T, H), then weigh the values. Dimensions m and
        m + K/2 of a head are a pair. `positions` (B, P) of the queries, or FIRST; None: all T.
        """
        heads, tables = self.heads, self._rotation()
        zero = self.integers(0)
        # A single number as positions is that of the first token: all texts count from 0.
        key = self.fused("RotaryEmbedding", key, zero, *tables, num_heads=heads)
        if positions is None:
            query = self.fused("RotaryEmbedding", query, zero, *tables, num_heads=heads)
        elif positions != FIRST:  # whose angle is 0
            # as texts of one token each: the operation takes no more tokens than the table has
            places = self.node("Cast", positions, to=TensorProto.INT64)
            places = self.node("Reshape", places, self.integers(-1, 1))
            shape = self.node("Shape", query)
            alone = self.node("Reshape", query, self.integers(-1, 1, heads * self.head_size))
            alone = self.fused("RotaryEmbedding", alone, places, *tables, num_heads=heads)
            query = self.node("Reshape", alone, shape)
        # Inputs 4 and 5 of the operation, a mask of keys (B, T) and a bias of scores (B, 1, P, T).
        # The empty input 3 is a bias of the projections, which `dense` has added.
        masks = [visible]
        if self.attention_type in ORDERED:
            bias = visible if positions is None else self.gather(visible, positions)
            masks = ["", self.node("Unsqueeze", bias, self.integers(1))]  # for all heads
        return self.fused("MultiHeadAttention", query, key, value, "", *masks, num_heads=heads)

    def _rotation(self) -> tuple[str, ...]:
        """Cosines and sines of all angles (T, K/2), computed for any length."""
        if not self._tables:
            places = self.node("Cast", self._places(self.input("token_ids")), to=TensorProto.FLOAT)
            pairs = np.arange(0, self.head_size, 2) / self.head_size
            frequencies = self.constant("frequencies", self.rotary_base**-pairs)
            places = self.node("Unsqueeze", places, self.integers(1))
            angles = self.node("Mul", places, frequencies)
            self._tables = self.node("Cos", angles), self.node("Sin", angles)
        return self._tables

    def split(self, x: str, parts: int) -> list[str]:
        """x in equal parts along its last axis: one Split."""
        name = self.new_name("Split")
        names = [f"{name}_{part}" for part in range(parts)]
        self.add("Split", [x], names, axis=-1, num_outputs=parts)
        return names

    def gather(self, x: str, positions: str) -> str:
        """x (B, T, H) at positions (B, P), or FIRST → (B, P, H): a slice, or GatherND."""
        if positions == FIRST:  # faster than GatherND
            return self.node("Slice", x, self.integers(0), self.integers(1), self.integers(1))
        places = self.node("Unsqueeze", positions, self.integers(2))
        places = self.node("Cast", places, to=TensorProto.INT64)
        return self.node("GatherND", x, places, batch_dims=1)

    def only(self, x: str) -> str:
        """x (B, 1, H) → (B, H)."""
        return self.node("Squeeze", x, self.integers(1))

    def mean_of_tokens(self, x: str, token_ids: str) -> str:
        """(B, T, H) → (B, H): the mean over the tokens that are not padding; of none 0."""
        weights = self.node("Cast", self._counted(token_ids), to=TensorProto.FLOAT)
        weights = self.node("Unsqueeze", weights, self.integers(2))
        total = self.node("ReduceSum", self.node("Mul", x, weights), self.integers(1), keepdims=0)
        count = self.node("ReduceSum", weights, self.integers(1), keepdims=0)
        return self.node("Div", total, self.node("Max", count, self.constant("least", 1e-9)))

    def product_with_rows(self, name: str, x: str, table: Array, bias: Array | None) -> str:
        """x (B, P, E) times the transpose of the embedding table (V, E): (B, P, V)."""
        # The constant of `lookup`: the graph holds the table once.
        words = self.constant(f"{name}/embeddings", table)
        y = self.fused("FusedMatMul", x, words, transB=1)
        return self.with_bias(y, "decoder/bias", bias)

    def unit(self, x: str, dimensions: int | None) -> str:
        """x (B, H) cut and normalized: (B, D)."""
        if dimensions is not None:
            ends = self.integers(dimensions)
            x = self.node("Slice", x, self.integers(0), ends, self.integers(1))
        length = self.node("ReduceL2", x, self.integers(1))
        return self.node("Div", x, self.node("Max", length, self.constant("shortest", 1e-12)))

    def meaning(self, x: str, meaning: OutputKind) -> str:
        """What gives logits a meaning: Softmax, Sigmoid, or a linear function."""
        if meaning.function == "softmax":
            return self.node("Softmax", x, axis=-1)
        if meaning.function == "sigmoid":
            return self.node("Sigmoid", x)
        scaled = self.node("Mul", x, self.constant("scale", meaning.scale))
        return self.node("Add", scaled, self.constant("offset", meaning.offset))
