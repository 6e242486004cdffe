"""One decoding step by ONNX Runtime, which packs the weights once for small batches.

GroupQueryAttention (domain com.microsoft) has a layer's keys and values as an input and as an
output; where both are the same memory, it writes the new token's into their slot, and copies
nothing. Everything else is written as by `onnx_graph`.

Axes: B texts, E embedding, N heads, S slots, K head size, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper

from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.model import session_options
from roformer_tf.engines.network import Array, Network
from roformer_tf.engines.onnx_graph import MICROSOFT, OnnxGraph
from roformer_tf.engines.writer import write

# Bytes from which on an array is passed to the session in place, not within the graph.
SHARED = 1024


class StepSession:
    """A network of the part "next_token": one new token of each text, keys and values cached.

    In cached keys the dimensions of a pair are separated by K/2, whatever the rotary style.
    """

    def __init__(self, network: Network) -> None:
        import onnxruntime

        model, arrays = _step_model(network)
        options = session_options()
        # Passed in place: within the graph, memory would hold them three times for a moment.
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays.values()]
        options.add_external_initializers(list(arrays), values)
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        self._vocabulary = network.config.vocab_size

    def __call__(
        self, rows: Mapping[str, Array], slot: int, caches: Sequence[tuple[Array, Array]]
    ) -> Array:
        """Logits (B, V) after one token of each text, whose keys and values go into the slot.

        rows: all float32. The embeddings "word" and "segment" (B, 1, E) of the tokens; "cos" and
        "sin" (B, K/2) of their angles; a "bias" (B, 1, 1, slot + 1) of the scores. caches: keys and
        values (B, N, S, K) of each layer, which are written into.
        """
        batch = len(rows["word"])
        logits = np.empty((batch, 1, self._vocabulary), np.float32)
        inputs = {
            **rows,
            # Tables of angles have a row for each text, so the "position" of text b is b.
            "places": np.arange(batch)[:, None],
            # As the operation counts: each text's tokens less 1, and the tokens of the longest.
            "last": np.full(batch, slot, np.int32),
            "slots": np.array(slot + 1, np.int32),
        }
        binding = self._session.io_binding()
        for name, array in inputs.items():
            binding.bind_cpu_input(name, array)
        for number, pair in enumerate(caches):
            for kind, array in zip(("key", "value"), pair, strict=True):
                assert array.flags.c_contiguous
                assert array.dtype == np.float32
                # Input and output are the same memory: the operation writes the new slot in place.
                _bind(binding.bind_input, f"{kind}_{number}", array)
                _bind(binding.bind_output, f"new_{kind}_{number}", array)
        _bind(binding.bind_output, "logits", logits)
        self._session.run_with_iobinding(binding)
        return logits[:, 0]


def _bind(bind: Any, name: str, array: Array) -> None:
    """Bind an input or an output to the memory of an array."""
    bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)


class StepGraph(OnnxGraph):
    """A graph of one new token of each text, and cached keys and values."""

    def __init__(self, config: RoFormerConfig) -> None:
        super().__init__(config)
        self.arrays: dict[str, Array] = {}
        self.layers = 0

    def constant(self, name: str, values: Any, dtype: Any = np.float32) -> str:
        """A constant; of a large one the graph holds only the name and the shape."""
        array = np.ascontiguousarray(values, dtype).reshape(np.shape(values))
        # The base class returns a known name as it is, so no array is passed twice.
        if array.nbytes < SHARED or name in self.constants:
            return super().constant(name, values, dtype)
        tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
        tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor.external_data.add(key="location", value="memory")  # a file name that is never opened
        self.arrays[name], self.constants[name] = array, tensor
        return name

    def lookup(self, name: str, table: Array, ids: str) -> str:
        """An input: the caller looks embeddings up, so that the session needs no second table."""
        return name.rpartition("/")[2]

    def visible(self, token_ids: str, segment_ids: str) -> str:
        """An input: the caller knows what each slot holds."""
        return "bias"

    def attend(self, query: str, key: str, value: str, visible: str, positions: str | None) -> str:
        """RotaryEmbedding twice, with a table of one row for each text; GroupQueryAttention."""
        query, key = (
            self.fused("RotaryEmbedding", x, "places", "cos", "sin", num_heads=self.heads)
            for x in (query, key)
        )
        kept = [f"{kind}_{self.layers}" for kind in ("key", "value")]
        # The empty inputs are cosines, sines and positions: query and key are already rotated.
        inputs = [query, key, value, *kept, "last", "slots", "", "", "", visible]
        outputs = [f"attended_{self.layers}", *(f"new_{name}" for name in kept)]
        heads = {"num_heads": self.heads, "kv_num_heads": self.heads}
        self.add("GroupQueryAttention", inputs, outputs, domain=MICROSOFT, **heads)
        self.layers += 1
        return outputs[0]


def _step_model(network: Network) -> tuple[ModelProto, dict[str, Array]]:
    """The graph, and the arrays that it holds by name alone."""
    graph = StepGraph(network.config)
    logits = write(network, graph)[network.output]
    graph.node("Identity", logits, output="logits")
    names = [f"{kind}_{i}" for i in range(graph.layers) for kind in ("key", "value")]
    # No shapes: those of the arrays that `StepSession` binds count.
    floats = ("word", "segment", "cos", "sin", "bias", *names)
    dtypes = dict.fromkeys(floats, TensorProto.FLOAT) | {"places": TensorProto.INT64}
    dtypes |= dict.fromkeys(("last", "slots"), TensorProto.INT32)
    inputs = {name: (dtype, None) for name, dtype in dtypes.items()}
    outputs = dict.fromkeys(["logits", *(f"new_{name}" for name in names)])
    return graph.model(inputs, outputs), graph.arrays
