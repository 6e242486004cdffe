"""A network as an OpenVINO model, from the same description as the ONNX one.

Written with OpenVINO's own operations, which the CPU plugin replaces by its fused ones.
A graph that is converted from ONNX has twice the nodes and half the speed. In int8 the kernels of
dense layers have 8 bits, with a scale for each column. Activations are quantized dynamically, in
groups of dimensions of a token: the prediction of a text does not depend on its batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from roformer_tf.engines.network import (
    FIRST,
    ORDERED,
    UNSEEN,
    Array,
    Linear,
    Network,
    Norm,
    rounded,
    write,
)

# Additional inputs, for all angles, (1, 1, T, K) float32. The graph does not compute them, since
# bfloat16 cannot distinguish position 257 from 256.
COSINES, SINES = "cosines", "sines"


def openvino_model(network: Network, largest: int | None) -> ov.Model:
    """Write a network; with `largest` (BYTE or SEVEN_BITS) its kernels in int8."""
    graph = OpenVinoGraph(network, largest)
    outputs = write(network, graph)
    results = []
    for name, node in outputs.items():
        result = ops.result(ops.convert(node, "f32"))
        result.output(0).set_names({name})
        results.append(result)
    return ov.Model(results, list(graph.inputs.values()), "roformer")


def rotation_tables(length: int, head_size: int, base: float) -> dict[str, Array]:
    """Cosines and sines of the angles of all positions, each repeated for both halves."""
    frequencies = base ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    # (1, 1, T, K): dimensions m and m + K/2 have the same angle.
    angles = np.tile(angles, 2)[None, None]
    return {COSINES: np.cos(angles), SINES: np.sin(angles)}


class OpenVinoGraph:
    """Nodes of an OpenVINO model."""

    def __init__(self, network: Network, largest: int | None) -> None:
        self.heads, self.head_size = network.config.num_attention_heads, network.config.head_size
        self.largest, self.attention_type = largest, network.config.attention_type
        self.inputs = {name: _parameter(name, [-1, -1], ov.Type.i32) for name in network.inputs}
        for name in (COSINES, SINES):
            self.inputs[name] = _parameter(name, [1, 1, -1, self.head_size], ov.Type.f32)
        self._constants: dict[str, Any] = {}

    def constant(self, name: str, values: Any, dtype: Any = np.float32) -> Any:
        """A constant; a name always has the same value."""
        if name not in self._constants:
            array = np.ascontiguousarray(values, dtype).reshape(np.shape(values))
            self._constants[name] = ops.constant(array, name=name)
        return self._constants[name]

    def integers(self, *values: int) -> Any:
        """An int64 constant: axes, starts, shapes."""
        return self.constant(f"int64_{'_'.join(map(str, values))}", values, np.int64)

    def scalar(self, value: int) -> Any:
        """An int32 constant without axes."""
        return self.constant(f"int32_{value}", value, np.int32)

    def input(self, name: str) -> Any:
        """A parameter of the model."""
        return self.inputs[name]

    def visible(self, token_ids: Any, segment_ids: Any) -> Any:
        """A bias of all scores, (B, 1 or T, T)."""
        seen = self._unsqueezed(self._counted(token_ids), 1)  # (B, 1, T)
        if self.attention_type in ORDERED:
            if self.attention_type == "causal":
                rank = self._places(token_ids)  # (T,)
            else:
                rank = ops.cum_sum(segment_ids, self.scalar(1))  # (B, T)
            # As in `OnnxGraph.visible`: a key is visible if its rank is not above the query's.
            keys, queries = self._unsqueezed(rank, -2), self._unsqueezed(rank, -1)
            seen = ops.logical_and(seen, ops.less_equal(keys, queries))
        return ops.select(seen, self.constant("seen", 0.0), self.constant("unseen", UNSEEN))

    def _counted(self, token_ids: Any) -> Any:
        """Which tokens are not padding: (B, T) bool; the first token is always visible."""
        first = ops.equal(self._places(token_ids), self.scalar(0))
        return ops.logical_or(ops.not_equal(token_ids, self.scalar(0)), first)

    def _places(self, token_ids: Any) -> Any:
        """0 … T − 1, int32 (T,)."""
        length = ops.gather(ops.shape_of(token_ids, "i32"), self.scalar(1), self.scalar(0))
        return ops.range(self.scalar(0), length, self.scalar(1), "i32")

    def _unsqueezed(self, x: Any, axis: int) -> Any:
        return ops.unsqueeze(x, self.integers(axis))

    def lookup(self, name: str, table: Array, ids: Any) -> Any:
        """One Gather."""
        return ops.gather(self.constant(f"{name}/embeddings", table), ids, self.scalar(0))

    def dense(self, x: Any, layer: Linear) -> Any:
        """A product with the kernel's transpose, the plugin's layout, then bias and activation."""
        kernel = self._kernel(layer)
        y = ops.matmul(x, kernel, False, True)
        if layer.bias is not None:
            y = ops.add(y, self.constant(f"{layer.name}/bias", layer.bias))
        if layer.activation is None:
            return y
        if layer.activation == "relu":
            return ops.relu(y)
        return ops.gelu(y, {"gelu": "erf", "gelu_new": "tanh"}[layer.activation])

    def _kernel(self, layer: Linear) -> Any:
        """A kernel's transpose; in int8 with a scale for each of its rows."""
        name = f"{layer.name}/kernel"
        if self.largest is None:
            return self.constant(name, layer.kernel.T)
        values, scales = rounded(layer.kernel, self.largest)
        values = ops.convert(self.constant(name, values.T, np.int8), "f32")
        return ops.multiply(values, self.constant(f"{layer.name}/scales", scales[:, None]))

    def add_norm(self, name: str, x: Any, y: Any, norm: Norm, bias: Array | None = None) -> Any:
        """Sums, which the plugin fuses into the product before them, and the norm."""
        x = x if bias is None else ops.add(x, self.constant(f"{name}/bias", bias))
        return self.norm(name, ops.add(x, y), norm)

    def norm(self, name: str, x: Any, norm: Norm) -> Any:
        """MVN, or the root of the mean square."""
        last = self.integers(-1)
        if norm.gamma is None:
            mean = ops.reduce_mean(ops.multiply(x, x), last, keep_dims=True)
            root = ops.sqrt(ops.add(mean, self.constant("epsilon", norm.epsilon)))
            return ops.divide(x, root)
        x = ops.mvn(x, last, True, norm.epsilon, "inside_sqrt")
        x = ops.multiply(x, self.constant(f"{name}/gamma", norm.gamma))
        return ops.add(x, self.constant(f"{name}/beta", norm.beta))

    def attend(self, query: Any, key: Any, value: Any, visible: Any, positions: Any | None) -> Any:
        """Rotate, and scaled_dot_product_attention."""
        query, key, value = (self._split_heads(x) for x in (query, key, value))
        if positions is not None and self.attention_type in ORDERED:
            visible = self.gather(visible, positions)
        key = self._rotated(key, None)
        query = query if positions is FIRST else self._rotated(query, positions)
        attended = ops.scaled_dot_product_attention(
            query, key, value, self._unsqueezed(visible, 1), causal=False
        )
        joined = ops.transpose(attended, self.integers(0, 2, 1, 3))
        return ops.reshape(joined, self.integers(0, 0, -1), True)

    def _split_heads(self, x: Any) -> Any:
        """(B, T, H) → (B, N, T, K)."""
        x = ops.reshape(x, self.integers(0, 0, self.heads, self.head_size), True)
        return ops.transpose(x, self.integers(0, 2, 1, 3))

    def _rotated(self, x: Any, positions: Any | None) -> Any:
        """(a, b) → (a cos − b sin, b cos + a sin), a and b being halves of a head."""
        # written as in GPT-NeoX, which the plugin fuses into one operation
        cosines, sines = (self._table(name, positions) for name in (COSINES, SINES))
        half = self.head_size // 2
        a, b = ops.variadic_split(x, self.scalar(3), self.integers(half, half)).outputs()
        rotated = ops.concat([ops.multiply(b, self.constant("minus_one", -1.0)), a], -1)
        return ops.add(ops.multiply(x, cosines), ops.multiply(rotated, sines))

    def _table(self, name: str, positions: Any | None) -> Any:
        """At all positions (1, 1, T, K), or at some (B, 1, P, K)."""
        table = self.inputs[name]
        if positions is None:
            return table
        rows = ops.squeeze(table, self.integers(0, 1))
        return self._unsqueezed(ops.gather(rows, positions, self.scalar(0)), 1)

    def split(self, x: Any, parts: int) -> list[Any]:
        """One split."""
        return list(ops.split(x, self.scalar(-1), parts).outputs())

    def gather(self, x: Any, positions: Any) -> Any:
        """A slice, or a gather within each row."""
        if positions is FIRST:
            first, second = self.integers(0), self.integers(1)
            return ops.slice(x, first, second, second, second)  # start, stop, step, axis
        return ops.gather(x, positions, self.scalar(1), 1)

    def only(self, x: Any) -> Any:
        """Without the axis of positions."""
        return ops.squeeze(x, self.integers(1))

    def mean_of_tokens(self, x: Any, token_ids: Any) -> Any:
        """A weighted sum, with weights 1 and 0, over the sum of the weights."""
        weights = self._unsqueezed(ops.convert(self._counted(token_ids), "f32"), 2)
        total = ops.reduce_sum(ops.multiply(x, weights), self.integers(1))
        # The sum is at least 1, because the first token always counts.
        return ops.divide(total, ops.reduce_sum(weights, self.integers(1)))

    def product_with_rows(self, name: str, x: Any, table: Array, bias: Array | None) -> Any:
        """The embedding table."""
        y = ops.matmul(x, self.constant(f"{name}/embeddings", table), False, True)
        return y if bias is None else ops.add(y, self.constant("decoder/bias", bias))

    def unit(self, x: Any, dimensions: int | None) -> Any:
        """A slice and one norm."""
        if dimensions is not None:
            start, stop, step = (self.integers(n) for n in (0, dimensions, 1))
            x = ops.slice(x, start, stop, step, self.integers(1))
        # The bound is that of the sum of squares: √1e−24 = 1e−12, as in the ONNX graphs.
        return ops.normalize_l2(x, self.integers(1), 1e-24, "max")


def _parameter(name: str, shape: Sequence[int], dtype: Any) -> Any:
    node = ops.parameter(ov.PartialShape(list(shape)), dtype, name=name)
    node.output(0).set_names({name})
    return node
