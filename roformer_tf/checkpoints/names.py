"""The table of weights: our name, TF1's and Hugging Face's, and the shape in each of them.

No other module knows the names in checkpoints. Reading, writing and inspecting iterate over
`table(config)`. A new family or a new head means new rows.

Axes: V vocabulary, S segments, E embedding, H hidden, N heads, K head size (N · K = H),
F intermediate, C labels.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from roformer_tf.config import POINTER_SIZE, RoFormerConfig, rotated_features
from roformer_tf.errors import InputError

IGNORED = re.compile(
    r"(.*/((adam|lamb)_[mv]|Adam(_1)?)|beta[12]_power|global_step"
    r"|bert/embeddings/position_embeddings"
    r"|roformer\.encoder\.embed_positions\.weight"
    r"|roformer\.embeddings\.position_(ids|embeddings\.weight)"
    r"|cls\.predictions\.decoder\.(weight|bias))"
)
"""Names of tensors that are no weights of a model: optimizer slots, position tables, and the second
names of `TIED`. Rotary angles are computed, and a BERT's learned positions have a row below."""

MULTIPLE_CHOICE = "RoFormerForMultipleChoice"
"""transformers' class of a model that scores candidates."""
TIED = {
    "cls.predictions.decoder.weight": "roformer.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
"""Second name in Hugging Face's older files → first name of the same weight."""

_LAYER = {
    "tf1": re.compile(r"bert/encoder/layer_(\d+)/"),
    "huggingface": re.compile(r"roformer\.encoder\.layer\.(\d+)\."),
}
_CRF = "crf/transitions"
_LABELLED = ("classifier/out_proj/bias", "token_classifier/bias")
"""Weights (C,) whose size is the number of labels of a classification head."""
LABELLED_PARTS = ("classifier", "token_classifier", "global_pointer", "crf")
"""Parts of a model whose weights have the axis C."""


@dataclass(frozen=True)
class Weight:
    """One row: the same weight under its three names."""

    name: str
    """Our name. Its first word is the part of a model, such as "encoder", "mlm" or "pooler"."""
    tf1: str
    """In a TF1 checkpoint, as bert4keras writes and reads it."""
    huggingface: str
    """In a safetensors file of transformers."""
    shape: tuple[int, ...]
    """Ours."""
    tf1_shape: tuple[int, ...]
    """In a TF1 checkpoint, where heads and head size are one axis."""
    transposed_in: tuple[str, ...] = ()
    """File layouts that store the transpose of the matrix with the TF1 shape."""
    rotated: int = 0
    """Number of dimensions of a head that are rotated in pairs. The rotary style orders them."""
    head_axis: int = -1
    """Axis of these dimensions in our shape."""

    @property
    def part(self) -> str:
        """The part of a model to which the weight belongs."""
        return self.name.split("/")[0]

    def name_in(self, layout: str) -> str:
        """The name in a file, `layout` being "tf1" or "huggingface"."""
        return self.tf1 if layout == "tf1" else self.huggingface

    def shape_in(self, layout: str) -> tuple[int, ...]:
        """The shape in a file."""
        return self.tf1_shape[::-1] if layout in self.transposed_in else self.tf1_shape

    def from_file(self, array: np.ndarray, layout: str, style: str) -> np.ndarray:
        """Convert an array of a file into ours, for a model of this rotary style.

        In files the dimensions of a pair are neighbours, as in the paper. A "half" model has the
        same dimensions in another order, so it computes the same numbers.
        """
        array = (array.T if layout in self.transposed_in else array).reshape(self.shape)
        return self._in_order(half_order, array, style)

    def to_file(self, array: np.ndarray, layout: str, style: str) -> np.ndarray:
        """The inverse of `from_file`."""
        array = self._in_order(interleaved_order, array, style).reshape(self.tf1_shape)
        return np.ascontiguousarray(array.T if layout in self.transposed_in else array)

    def _in_order(
        self, order: Callable[[int, int], np.ndarray], array: np.ndarray, style: str
    ) -> np.ndarray:
        if not self.rotated or style != "half":
            return array
        # The head size, of which the first `rotated` dimensions form pairs.
        size = self.shape[self.head_axis]
        return np.take(array, order(size, self.rotated), axis=self.head_axis)


def table(config: RoFormerConfig) -> list[Weight]:
    """All weights that a checkpoint of this architecture can have."""
    return [
        *_embeddings(config),
        *(row for i in range(config.num_hidden_layers) for row in _layer(config, i)),
        *_masked_lm(config),
        *_sentence_heads(config),
        *_classifiers(config),
        *_dense("qa_outputs", "qa_outputs", (config.hidden_size, 2)),
    ]


def complete_config(
    config: RoFormerConfig, shapes: Mapping[str, tuple[int, ...]], layout: str, source: object
) -> RoFormerConfig:
    """Complete a config from the tensors of its checkpoint, and check that they agree.

    `shapes` are those of the file's tensors, under their names there. What a `bert_config.json`
    does not record is recognized by the tensors: RoFormerV2, the number of labels, and a BERT,
    which attends in both directions. Raises InputError if config and tensors disagree.
    """
    if config.num_hidden_layers > len(shapes):  # otherwise `table` could take minutes
        raise InputError(
            f"{source}: its config has num_hidden_layers {config.num_hidden_layers:,}, but its "
            f"weights are only {len(shapes):,} tensors. {_GIVE_CONFIG}"
        )
    config = _with_version(config, shapes, layout, source)
    # A clearer message than a list of all weights that are missing or unknown.
    layers = [int(match[1]) for name in shapes if (match := _LAYER[layout].match(name))]
    if layers and max(layers) + 1 != config.num_hidden_layers:
        raise InputError(
            f"{source}: its config has num_hidden_layers {config.num_hidden_layers}, but its "
            f"weights are of layers 0 to {max(layers)}. {_GIVE_CONFIG}"
        )
    rows = {row.name: row.name_in(layout) for row in table(config.replace(num_labels=1))}
    # A file without a number of labels still shows it by the size of a head's bias.
    # transformers' head of multiple choice has one output, however many labels are named.
    if config.num_labels == 0 or MULTIPLE_CHOICE in config.unknown.get("architectures", ()):
        counts = [shapes[rows[name]][0] for name in _LABELLED if rows[name] in shapes]
        config = config.replace(num_labels=max(counts, default=0))
    config = config.replace(crf=rows[_CRF] in shapes)
    # Learned positions, or the head of next sentence prediction: both only BERT has.
    is_bert = rows["seq_relationship/bias"] in shapes or config.position_embedding_type == "learned"
    if config.attention_type is None and is_bert:
        config = config.replace(attention_type="bidirectional")
    return config


def _with_version(
    config: RoFormerConfig, shapes: Mapping[str, tuple[int, ...]], layout: str, source: object
) -> RoFormerConfig:
    """Recognize RoFormerV2: it has no biases and no weights of norms."""
    # Both architectures in this size: names that only one of them has show which one it is.
    v1 = config.replace(norm_type="layer_norm", use_bias=True)
    v2 = config.replace(norm_type="rms_norm", use_bias=False)
    v1_names, v2_names = (
        {row.name_in(layout) for row in table(c) if row.part == "encoder"} for c in (v1, v2)
    )
    only_v1 = sorted((v1_names - v2_names) & shapes.keys())
    if config.is_v2 and only_v1:
        raise InputError(
            f"{source}: its config has norm_type 'rms_norm', which is RoFormerV2, but its weights "
            f"contain {only_v1[0]}, which only RoFormer has. {_GIVE_CONFIG}"
        )
    return v2 if not only_v1 and v2_names & shapes.keys() else config


def _embeddings(config: RoFormerConfig) -> list[Weight]:
    size = config.embedding_size
    ours, tf1 = "encoder/embeddings", "bert/embeddings"
    words, segments = (config.vocab_size, size), (config.type_vocab_size, size)
    rows = [
        _embedding(f"{ours}/word", f"{tf1}/word_embeddings", words),
        _embedding(f"{ours}/segment", f"{tf1}/token_type_embeddings", segments),
    ]
    if config.position_embedding_type == "learned":
        positions = (config.max_position_embeddings, size)
        rows.append(_embedding(f"{ours}/position", f"{tf1}/position_embeddings", positions))
    if config.position_embedding_type == "t5":
        name = "encoder/relative_attention_bias"
        buckets = (config.relative_attention_num_buckets, config.num_attention_heads)
        rows.append(_embedding(name, f"bert/{name}", buckets))
    rows += _norm(config, f"{ours}/norm", f"{tf1}/LayerNorm", size)
    if size != config.hidden_size:  # a projection to the hidden size, ALBERT's name in TF1
        rows += _dense(
            f"{ours}/projection",
            "bert/encoder/embedding_hidden_mapping_in",
            (size, config.hidden_size),
            "roformer.embeddings_project",
            use_bias=config.use_bias,
        )
    return rows


def _layer(config: RoFormerConfig, index: int) -> list[Weight]:
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = (config.num_attention_heads, config.head_size)
    rotated = rotated_features(config.head_size, config.rotated_fraction)
    rotated_values = rotated if config.rotary_value else 0
    ours, tf1 = f"encoder/layer_{index}", f"bert/encoder/layer_{index}"
    dense = partial(_dense, use_bias=config.use_bias)
    rows = []
    for role in ("query", "key", "value"):
        rows += dense(
            f"{ours}/attention/{role}",
            f"{tf1}/attention/self/{role}",
            (hidden, hidden),
            kernel_shape=(hidden, *heads),
            bias_shape=heads,
            rotated=rotated_values if role == "value" else rotated,
        )
    rows += dense(
        f"{ours}/attention/attention_output",
        f"{tf1}/attention/output/dense",
        (hidden, hidden),
        kernel_shape=(*heads, hidden),
        rotated=rotated_values,  # the output of attention has the order of the values
        head_axis=1,
    )
    return [
        *rows,
        *_norm(config, f"{ours}/attention_norm", f"{tf1}/attention/output/LayerNorm", hidden),
        *dense(f"{ours}/intermediate", f"{tf1}/intermediate/dense", (hidden, inner)),
        *dense(f"{ours}/output", f"{tf1}/output/dense", (inner, hidden)),
        *_norm(config, f"{ours}/output_norm", f"{tf1}/output/LayerNorm", hidden),
    ]


def _masked_lm(config: RoFormerConfig) -> list[Weight]:
    if config.is_v2:  # its logits are the product with the word embeddings, without weights
        return []
    size = config.embedding_size
    tf1 = "cls/predictions"
    return [
        *_dense("mlm/dense", f"{tf1}/transform/dense", (config.hidden_size, size)),
        *_norm(config, "mlm/norm", f"{tf1}/transform/LayerNorm", size),
        _same("mlm/bias", f"{tf1}/output_bias", "cls.predictions.bias", (config.vocab_size,)),
    ]


def _sentence_heads(config: RoFormerConfig) -> list[Weight]:
    hidden = config.hidden_size
    tf1, hf = "cls/seq_relationship", "cls.seq_relationship"
    return [
        *_dense("pooler/dense", "bert/pooler/dense", (hidden, hidden)),
        # Google's BERT stores this kernel transposed, under another name.
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


def _classifiers(config: RoFormerConfig) -> list[Weight]:
    """Heads of transformers' classes. bert4keras has no names for them, so TF1 files use ours."""
    if not config.num_labels:
        return []
    hidden, labels = config.hidden_size, config.num_labels
    text, tokens, spans = "classifier", "token_classifier", "global_pointer"
    crf = {  # the names of the package pytorch-crf
        "crf/start_transitions": (labels,),
        _CRF: (labels, labels),
        "crf/end_transitions": (labels,),
    }
    return [
        *_dense(f"{text}/dense", f"{text}/dense", (hidden, hidden)),
        *_dense(f"{text}/out_proj", f"{text}/out_proj", (hidden, labels)),
        *_dense(tokens, tokens, (hidden, labels), "classifier"),
        *_dense(spans, spans, (hidden, 2 * (POINTER_SIZE + labels))),
        *(_same(name, name, _dotted(name), shape) for name, shape in crf.items()),
    ]


def _same(ours: str, tf1: str, huggingface: str, shape: tuple[int, ...]) -> Weight:
    return Weight(ours, tf1, huggingface, shape, shape)


def _embedding(ours: str, tf1: str, shape: tuple[int, ...]) -> Weight:
    return _same(f"{ours}/embeddings", tf1, f"{_dotted(tf1)}.weight", shape)


def _norm(config: RoFormerConfig, ours: str, tf1: str, size: int) -> list[Weight]:
    if config.norm_type == "rms_norm":  # it has no weights
        return []
    return [
        _same(f"{ours}/beta", f"{tf1}/beta", f"{_dotted(tf1)}.bias", (size,)),
        _same(f"{ours}/gamma", f"{tf1}/gamma", f"{_dotted(tf1)}.weight", (size,)),
    ]


def _dense(
    ours: str,
    tf1: str,
    shape: tuple[int, int],
    huggingface: str | None = None,
    *,
    kernel_shape: tuple[int, ...] | None = None,
    bias_shape: tuple[int, ...] | None = None,
    use_bias: bool = True,
    rotated: int = 0,
    head_axis: int = -1,
) -> list[Weight]:
    """Kernel and bias of a dense layer: (in, out) in TF1, (out, in) in Hugging Face."""
    huggingface = huggingface or _dotted(tf1)
    kernel = Weight(
        f"{ours}/kernel",
        f"{tf1}/kernel",
        f"{huggingface}.weight",
        kernel_shape or shape,
        shape,
        transposed_in=("huggingface",),
        rotated=rotated,
        head_axis=head_axis,
    )
    bias = Weight(
        f"{ours}/bias",
        f"{tf1}/bias",
        f"{huggingface}.bias",
        bias_shape or shape[1:],
        shape[1:],
        rotated=rotated if head_axis == -1 else 0,  # if the inputs are rotated, the bias is not
    )
    return [kernel, bias] if use_bias else [kernel]


def _dotted(tf1: str) -> str:
    """Hugging Face's name of a layer, which mostly follows from TF1's.

    >>> _dotted("bert/encoder/layer_0/output/dense")
    'roformer.encoder.layer.0.output.dense'
    """
    name = re.sub("^bert/", "roformer/", tf1)
    return re.sub(r"/layer_(\d+)/", r"/layer/\1/", name).replace("/", ".")


def half_order(head_size: int, rotated: int) -> np.ndarray:
    """Indices (K,) of the dimensions of an "interleaved" head in the order of style "half".

    First come the first dimensions of all pairs, then the second ones, then the unrotated ones.
    """
    order = np.arange(head_size)
    # 0 1 2 3 4 5 → 0 2 4 1 3 5: a matrix of pairs (R / 2, 2), read by columns.
    order[:rotated] = order[:rotated].reshape(-1, 2).T.reshape(-1)
    return order


def interleaved_order(head_size: int, rotated: int) -> np.ndarray:
    """The inverse of `half_order`."""
    return np.argsort(half_order(head_size, rotated))


_GIVE_CONFIG = "Give the config that belongs to the weights."
