"""A network as an OpenVINO model, read from an ONNX graph of standard operators.

The CPU plugin replaces them by its fused ones. In int8 the kernels of dense layers have 8 bits,
with a scale for each column. Activations are quantized dynamically, in groups of dimensions of a
token: the prediction of a text does not depend on its batch.
"""

from typing import Any

import numpy as np
import openvino as ov
from onnx import TensorProto, helper
from openvino.utils import replace_node

from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.network import (
    MASKED_POSITIONS,
    STANDARD_INPUTS,
    Array,
    Linear,
    Network,
    rounded,
)
from roformer_tf.engines.standard_onnx import StandardGraph
from roformer_tf.engines.writer import write

# Additional inputs, for all angles, (T, K) float32. The graph does not compute them, since bfloat16
# cannot distinguish position 257 from 256.
COSINES, SINES = "cosines", "sines"
# Numbers from which on an array becomes a constant of OpenVINO without a copy in the ONNX graph.
LARGE = 16_384


def openvino_model(network: Network, core: ov.Core, largest: int | None) -> ov.Model:
    """Write a network; with `largest` (BYTE or SEVEN_BITS) its kernels in int8."""
    graph = OpenVinoGraph(network.config, largest)
    outputs = write(network, graph)
    for name, value in outputs.items():
        graph.node("Identity", value, output=name)
    inputs: dict[str, Any] = {name: (TensorProto.INT64, [None] * 2) for name in STANDARD_INPUTS}
    if MASKED_POSITIONS in network.inputs:
        inputs[MASKED_POSITIONS] = (TensorProto.INT32, [None] * 2)
    inputs |= dict.fromkeys((COSINES, SINES), (TensorProto.FLOAT, [None, graph.head_size]))
    for name, constant in graph.large.items():
        inputs[name] = (helper.np_dtype_to_tensor_dtype(constant.data.dtype), constant.shape)
    model = core.read_model(graph.model(inputs, dict.fromkeys(outputs)).SerializeToString())
    for parameter in model.get_parameters():
        if constant := graph.large.get(parameter.friendly_name):
            replace_node(parameter, constant)
            model.remove_parameter(parameter)
    return model


def rotation_tables(length: int, head_size: int, base: float) -> dict[str, Array]:
    """Cosines and sines of the angles of all positions, each repeated for both halves."""
    frequencies = base ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    angles = np.arange(length, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    # (T, K): dimensions m and m + K/2 have the same angle.
    angles = np.tile(angles, 2)
    return {COSINES: np.cos(angles), SINES: np.sin(angles)}


class OpenVinoGraph(StandardGraph):
    """A graph of standard operators, of whose large constants it holds the names alone."""

    def __init__(self, config: RoFormerConfig, largest: int | None) -> None:
        super().__init__(config, largest)
        self.large: dict[str, Any] = {}

    def constant(self, name: str, values: Any, dtype: Any = np.float32) -> str:
        """A constant; a large one is an input, which `openvino_model` replaces."""
        if np.size(values) < LARGE:
            return super().constant(name, values, dtype)
        if name not in self.large:
            self.large[name] = ov.opset13.constant(np.ascontiguousarray(values, dtype))
        return name

    def _product(self, x: str, layer: Linear) -> str:
        """x · kernel + bias; in int8 the plugin quantizes x dynamically."""
        if self.largest is None:
            return super()._product(x, layer)
        values, scales = rounded(layer.kernel, self.largest)
        kernel = self.constant(f"{layer.name}/kernel", values, np.int8)
        kernel = self.node("Cast", kernel, to=TensorProto.FLOAT)
        kernel = self.node("Mul", kernel, self.constant(f"{layer.name}/scales", scales))
        y = self.node("MatMul", x, kernel)
        return self.with_bias(y, f"{layer.name}/bias", layer.bias)

    def _rotation(self) -> tuple[str, ...]:
        """Inputs."""
        return COSINES, SINES
