"""The one table of weights: our name, TF1's, Hugging Face's, the shapes, the change of value.

Nothing else knows a checkpoint's names. Reading, writing and inspecting walk `table(config)`;
a new family or a new head is new rows.

Axes: V vocabulary, S segments, E embedding, H hidden, N heads, K head size (N · K = H),
F intermediate.
"""

import re
from dataclasses import dataclass

import numpy as np

from roformer_tf.config import RoFormerConfig

IGNORED = re.compile(
    r"(.*/adam_[mv]|global_step|bert/embeddings/position_embeddings"
    r"|roformer\.encoder\.embed_positions\.weight"
    r"|cls\.predictions\.decoder\.(weight|bias))"
)
"""Names that carry no weight of a RoFormer: optimizer slots, position tables (rotary angles are
computed), and the second names of `TIED`."""

TIED = {
    "cls.predictions.decoder.weight": "roformer.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""Second names in Hugging Face's older files, each with the first name of the same weight."""


@dataclass(frozen=True)
class Weight:
    """One row: the same weight under its three names."""

    name: str
    """Ours; before the first slash the part of a model that it belongs to."""
    tf1: str
    """In a TF1 checkpoint, as bert4keras writes and reads it."""
    huggingface: str
    """In a safetensors file of transformers."""
    shape: tuple[int, ...]
    """Ours."""
    tf1_shape: tuple[int, ...]
    """In a TF1 checkpoint: heads and head size are one axis there."""
    transposed_in: tuple[str, ...] = ()
    """File layouts that hold the transpose of the TF1 shape's matrix."""
    rotated: bool = False
    """Whether the last axis (ours) is turned in pairs, so that the rotary style orders it."""

    @property
    def part(self) -> str:
        """The part of a model: "encoder", "mlm", "pooler" or "seq_relationship"."""
        return self.name.split("/")[0]

    def name_in(self, layout: str) -> str:
        """The name in a file, `layout` being "tf1" or "huggingface"."""
        return self.tf1 if layout == "tf1" else self.huggingface

    def shape_in(self, layout: str) -> tuple[int, ...]:
        """The shape in a file."""
        return self.tf1_shape[::-1] if layout in self.transposed_in else self.tf1_shape

    def from_file(self, array: np.ndarray, layout: str, style: str) -> np.ndarray:
        """Change a file's array into ours, for a model of this rotary style.

        Files pair neighbouring features, as the paper does; a "half" model holds the same
        features in another order, and so gives the same numbers.
        """
        array = (array.T if layout in self.transposed_in else array).reshape(self.shape)
        return array[..., _half_order(self.shape[-1])] if self._reordered(style) else array

    def to_file(self, array: np.ndarray, layout: str, style: str) -> np.ndarray:
        """Undo `from_file`."""
        if self._reordered(style):
            array = array[..., np.argsort(_half_order(self.shape[-1]))]
        array = array.reshape(self.tf1_shape)
        return np.ascontiguousarray(array.T if layout in self.transposed_in else array)

    def _reordered(self, style: str) -> bool:
        return self.rotated and style == "half"


def table(config: RoFormerConfig) -> list[Weight]:
    """Give every weight that a checkpoint of this architecture may hold."""
    return [
        *_embeddings(config),
        *(row for i in range(config.num_hidden_layers) for row in _layer(config, i)),
        *_masked_lm(config),
        *_sentence_heads(config),
    ]


def _embeddings(config: RoFormerConfig) -> list[Weight]:
    size = config.embedding_size
    ours, tf1, hf = "encoder/embeddings", "bert/embeddings", "roformer.embeddings"
    rows = [
        _same(
            f"{ours}/{our}/embeddings",
            f"{tf1}/{his}_embeddings",
            f"{hf}.{his}_embeddings.weight",
            (n, size),
        )
        for our, his, n in (
            ("word", "word", config.vocab_size),
            ("segment", "token_type", config.type_vocab_size),
        )
    ]
    rows += _norm(f"{ours}/norm", f"{tf1}/LayerNorm", f"{hf}.LayerNorm", size)
    if size != config.hidden_size:
        rows += _dense(
            f"{ours}/projection",
            "bert/encoder/embedding_hidden_mapping_in",
            "roformer.embeddings_project",
            (size, config.hidden_size),
        )
    return rows


def _layer(config: RoFormerConfig, index: int) -> list[Weight]:
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = (config.num_attention_heads, config.head_size)
    ours = f"encoder/layer_{index}"
    tf1, hf = f"bert/encoder/layer_{index}", f"roformer.encoder.layer.{index}"
    rows = []
    for role in ("query", "key", "value"):
        rows += _dense(
            f"{ours}/attention/{role}",
            f"{tf1}/attention/self/{role}",
            f"{hf}.attention.self.{role}",
            (hidden, hidden),
            kernel_shape=(hidden, *heads),
            bias_shape=heads,
            rotated=role != "value",
        )
    rows += _dense(
        f"{ours}/attention/attention_output",
        f"{tf1}/attention/output/dense",
        f"{hf}.attention.output.dense",
        (hidden, hidden),
        kernel_shape=(*heads, hidden),
    )
    return [
        *rows,
        *_norm(
            f"{ours}/attention_norm",
            f"{tf1}/attention/output/LayerNorm",
            f"{hf}.attention.output.LayerNorm",
            hidden,
        ),
        *_dense(
            f"{ours}/intermediate",
            f"{tf1}/intermediate/dense",
            f"{hf}.intermediate.dense",
            (hidden, inner),
        ),
        *_dense(f"{ours}/output", f"{tf1}/output/dense", f"{hf}.output.dense", (inner, hidden)),
        *_norm(f"{ours}/output_norm", f"{tf1}/output/LayerNorm", f"{hf}.output.LayerNorm", hidden),
    ]


def _masked_lm(config: RoFormerConfig) -> list[Weight]:
    size = config.embedding_size
    tf1, hf = "cls/predictions/transform", "cls.predictions.transform"
    return [
        *_dense("mlm/dense", f"{tf1}/dense", f"{hf}.dense", (config.hidden_size, size)),
        *_norm("mlm/norm", f"{tf1}/LayerNorm", f"{hf}.LayerNorm", size),
        _same(
            "mlm/bias", "cls/predictions/output_bias", "cls.predictions.bias", (config.vocab_size,)
        ),
    ]


def _sentence_heads(config: RoFormerConfig) -> list[Weight]:
    hidden = config.hidden_size
    tf1, hf = "cls/seq_relationship", "cls.seq_relationship"
    return [
        *_dense("pooler/dense", "bert/pooler/dense", "roformer.pooler.dense", (hidden, hidden)),
        # Google's BERT holds this kernel transposed, under another name
        Weight(
            "seq_relationship/kernel",
            f"{tf1}/output_weights",
            f"{hf}.weight",
            (hidden, 2),
            (hidden, 2),
            transposed_in=("tf1", "huggingface"),
        ),
        _same("seq_relationship/bias", f"{tf1}/output_bias", f"{hf}.bias", (2,)),
    ]


def _same(ours: str, tf1: str, huggingface: str, shape: tuple[int, ...]) -> Weight:
    return Weight(ours, tf1, huggingface, shape, shape)


def _norm(ours: str, tf1: str, huggingface: str, size: int) -> list[Weight]:
    return [
        _same(f"{ours}/beta", f"{tf1}/beta", f"{huggingface}.bias", (size,)),
        _same(f"{ours}/gamma", f"{tf1}/gamma", f"{huggingface}.weight", (size,)),
    ]


def _dense(
    ours: str,
    tf1: str,
    huggingface: str,
    shape: tuple[int, int],
    *,
    kernel_shape: tuple[int, ...] | None = None,
    bias_shape: tuple[int, ...] | None = None,
    rotated: bool = False,
) -> list[Weight]:
    """Kernel and bias of a dense layer: (in, out) in TF1, (out, in) in Hugging Face."""
    return [
        Weight(
            f"{ours}/kernel",
            f"{tf1}/kernel",
            f"{huggingface}.weight",
            kernel_shape or shape,
            shape,
            transposed_in=("huggingface",),
            rotated=rotated,
        ),
        Weight(
            f"{ours}/bias",
            f"{tf1}/bias",
            f"{huggingface}.bias",
            bias_shape or shape[1:],
            shape[1:],
            rotated=rotated,
        ),
    ]


def _half_order(head_size: int) -> np.ndarray:
    """Features of one head in "half" order: all firsts of the pairs, then all seconds."""
    return np.arange(head_size).reshape(-1, 2).T.reshape(-1)
