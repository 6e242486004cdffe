"""A checkpoint's arrays and the output that is wanted of them, before `writer` writes a graph.

Axes: B rows, T tokens, P positions, E embedding, H hidden, N heads, K head size, V vocabulary,
C labels, D numbers of a vector.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.config import RoFormerConfig

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

# Names of the inputs; the last is that of the part "masked" alone.
INPUTS = ("token_ids", "segment_ids")
MASKED_POSITIONS = "masked_positions"
# The inputs of a graph of standard operators, as transformers has them.
STANDARD_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# The outputs of such a graph for an answer's first and last token, instead of `logits`.
ANSWER_OUTPUTS = ("start_logits", "end_logits")
# The output of such a graph for a vector, next to the hidden states.
VECTOR = "sentence_embedding"

# Largest number of a kernel in int8. Some older CPUs add products of two bytes in 16 bits, which
# overflow: with 7 of the 8 bits the results are the same on all.
BYTE, SEVEN_BITS = 127, 63
# Added to the score of a masked key: its exponential is 0 in float32 and in bfloat16.
UNSEEN = -10_000.0
# Instead of the name of a tensor: the position of the first token of each text.
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

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of its inputs: int32 (B, T), and (B, P) of `masked_positions`."""
        return (*INPUTS, MASKED_POSITIONS) if self.part == "masked" else INPUTS

    @property
    def output(self) -> str:
        """Name of its output."""
        return OUTPUTS.get(self.part, "logits")


def rounded(kernel: Array, largest: int) -> tuple[Array, Array]:
    """A kernel (in, out) → int8 of at most `largest`, and the scale of each column (out,)."""
    scales = np.abs(kernel).max(axis=0).astype(np.float32) / np.float32(largest)
    # A column of zeros would be divided by 0.
    scales = np.where(scales > 0, scales, np.float32(1))
    return np.rint(kernel / scales).astype(np.int8), scales
