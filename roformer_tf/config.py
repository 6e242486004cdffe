"""The description of an architecture, with the keys of BERT."""

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roformer_tf.errors import InputError, check_choice, check_type_and_number
from roformer_tf.files import json_object

_CHOICES = {
    "hidden_act": ("gelu", "gelu_new", "relu"),
    "position_embedding_type": ("rotary", "learned", "sinusoidal", "t5", "none"),
    "rotary_style": ("interleaved", "half"),
    "rotary_value": (False, True),
    "use_logn_attn": (False, True),
    "norm_type": ("layer_norm", "rms_norm"),
    "use_bias": (True, False),
    "attention_type": (None, "bidirectional", "causal", "unilm"),
    "pooling": ("cls", "mean", "pooler"),
    "crf": (False, True),
}

POINTER_SIZE = 64
"""Size of the vectors of starts and of ends in the head of GlobalPointer."""


@dataclass(frozen=True)
class RoFormerConfig:
    """An architecture, under the keys of `bert_config.json` and Hugging Face's `config.json`.

    Raises InputError for values that contradict each other.
    """

    vocab_size: int
    """Tokens in the vocabulary."""
    hidden_size: int
    """Size of a hidden state."""
    num_hidden_layers: int
    """Transformer layers."""
    num_attention_heads: int
    """Heads of each attention; `hidden_size / num_attention_heads` must be even."""
    intermediate_size: int
    """Size of the hidden layer of the feed-forward network."""
    embedding_size: int = 0
    """Size of an embedding. Default: `hidden_size`. If they differ, a projection follows."""
    hidden_act: str = "gelu"
    """Activation of the feed-forward network and the MLM head: "gelu" is the exact (erf) one."""
    hidden_dropout_prob: float = 0.1
    """Dropout on the embeddings and on the outputs of attention and feed-forward network."""
    attention_probs_dropout_prob: float = 0.1
    """Dropout on the attention probabilities."""
    max_position_embeddings: int = 1536
    """Maximum sequence length in training. Rotary positions have no limit; Hugging Face has one."""
    type_vocab_size: int = 2
    """Number of segment ids."""
    initializer_range: float = 0.02
    """Standard deviation of the truncated normal that new kernels are drawn from."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in every layer norm."""
    position_embedding_type: str = "rotary"
    """Position encoding: rotated queries and keys ("rotary"), a learned table ("learned") or
    sines and cosines ("sinusoidal") added to the embeddings, T5's bias of the scores by distance
    ("t5"), or "none"."""
    relative_attention_num_buckets: int = 32
    """Buckets of T5's bias, of both directions together."""
    relative_attention_max_distance: int = 128
    """Distances from this one on are in T5's last bucket."""
    rotary_style: str = "interleaved"
    """Dimensions that form a pair: "interleaved" (2m, 2m + 1), as released, or "half" (m, m + H/2).

    It changes only the order of the dimensions: outputs of a checkpoint are equal with both.
    """
    rotary_base: float = 10_000.0
    """Base of the rotary wavelengths."""
    rotary_share: float = 1.0
    """Fraction of a head's dimensions that are rotated, the first ones (GPT-J, GPT-NeoX)."""
    rotary_value: bool = False
    """Whether values are rotated, too, by their position in the sequence, packed or not. Outputs
    are then no longer a function of relative positions only."""
    rope_parameters: Mapping[str, Any] | None = None
    """Scaling of the angles beyond the trained length, with transformers' keys: `rope_type`
    "linear", "dynamic" (NTK) or "yarn", `factor`, and the further keys of YaRN."""
    use_logn_attn: bool = False
    """Whether scores are scaled by log n / log(trained length) for n visible tokens beyond it."""
    trained_length: int = 0
    """Sequence length in training, beyond which both scalings apply; 0: `max_position_embeddings`.
    For the angles, `original_max_position_embeddings` in `rope_parameters` has priority."""
    local_attention: int = 0
    """Window of the local layers in tokens, half of it on each side (ModernBERT's key); 0: no layer
    is local."""
    global_attn_every_n_layers: int = 3
    """With local layers, every n-th layer is global, starting with layer 0."""
    norm_type: str = "layer_norm"
    """"layer_norm", or "rms_norm" without scale or offset: RoFormerV2's."""
    use_bias: bool = True
    """Whether dense layers have biases; RoFormerV2's have none."""
    attention_type: str | None = None
    """Visible tokens: all ("bidirectional"), the previous ones ("causal"), or the token's own and
    earlier segments ("unilm", arXiv 1905.03197). Default: by the model's class, "causal" for
    RoFormerForCausalLM and "unilm" for RoFormerForSentenceSimilarity."""
    num_labels: int = 0
    """Labels of a classification head; 0: no such head."""
    pooling: str = "cls"
    """Pooling: the first token ("cls") or the mean of all ("mean"). For sentence embeddings also
    the output of the linear pooler ("pooler")."""
    crf: bool = False
    """Whether token classification has a conditional random field (label transitions). Decided by
    the tensors of a checkpoint."""
    label_mean: float = 0.0
    """Mean of the labels that a regression was trained on. The model predicts standardized labels;
    a saved head includes the scaling, so that other programs get the label itself."""
    label_deviation: float = 1.0
    """Standard deviation of these labels."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the file that are not known here; they are written back."""

    def __post_init__(self) -> None:
        # A frozen dataclass can set its own fields only by `object.__setattr__`.
        if self.embedding_size == 0:
            object.__setattr__(self, "embedding_size", self.hidden_size)
        # Before the checks below, because this may set rotary_base and rotary_share.
        if isinstance(self.rope_parameters, Mapping):
            self._read_rope_parameters(dict(self.rope_parameters))
        for name in _COUNTS:
            check_type_and_number(name, getattr(self, name), whole=True, at_least=1)
        for name in ("num_labels", "trained_length", "local_attention"):
            check_type_and_number(name, getattr(self, name), whole=True, at_least=0)
        for name, bounds in _RANGES.items():
            check_type_and_number(name, getattr(self, name), **bounds)
        if self.hidden_size % self.num_attention_heads or self.head_size % 2:
            raise InputError(
                f"hidden_size {self.hidden_size} over num_attention_heads "
                f"{self.num_attention_heads} gives no even head size, but rotary attention "
                "rotates dimensions in pairs. Give a hidden_size that is an even multiple of the "
                "heads."
            )
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        if self.attention_type == "unilm" and self.type_vocab_size == 1:
            raise InputError(
                "attention_type 'unilm' needs two segments, one for the given text and one for the "
                "generated text, but type_vocab_size is 1. Use a model with two, or another mask."
            )
        self._check_positions()
        if self.use_bias != (self.norm_type == "layer_norm"):
            raise InputError(
                f"use_bias {self.use_bias} with norm_type {self.norm_type!r} is no known "
                "architecture: RoFormer has biases and layer norms, RoFormerV2 neither."
            )

    def _check_positions(self) -> None:
        needs_rotary = [x for x in ("rope_parameters", "rotary_value") if getattr(self, x)]
        if needs_rotary and self.position_embedding_type != "rotary":
            raise InputError(
                f"{needs_rotary[0]} is about rotary positions, but position_embedding_type is "
                f"{self.position_embedding_type!r}. Omit one of them."
            )
        rotated_features(self.head_size, self.rotary_share)  # raises unless they form pairs
        check_rope_parameters(self.rope_parameters)
        buckets = self.relative_attention_num_buckets
        if buckets % 2 or buckets < 4:
            raise InputError(
                f"relative_attention_num_buckets is {buckets}, but must be even and at least 4: "
                "both directions have the same number of buckets. T5 has 32."
            )

    def _read_rope_parameters(self, parameters: dict[str, Any]) -> None:
        """Move the keys that have a field of their own here out of `rope_parameters`."""
        for key, name in (("rope_theta", "rotary_base"), ("partial_rotary_factor", "rotary_share")):
            if key not in parameters:
                continue
            current, value = getattr(self, name), parameters.pop(key)
            # A field with its default value counts as not set; equal values are no conflict.
            if current not in (type(self).__dataclass_fields__[name].default, value):
                raise InputError(
                    f"{name} is {current!r}, but {key} of rope_parameters is {value!r}. "
                    "Omit one of them."
                )
            object.__setattr__(self, name, value)
        unscaled = parameters in ({}, {"rope_type": "default"})
        object.__setattr__(self, "rope_parameters", None if unscaled else parameters)

    @property
    def head_size(self) -> int:
        """Dimensions of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def check_length(self, length: int, name: str) -> None:
        """Raise InputError if a length, named `name` for the message, exceeds a learned table."""
        if self.position_embedding_type == "learned" and length > self.max_position_embeddings:
            raise InputError(
                f"{name} is {length:,}, but the model has learned {self.max_position_embeddings:,} "
                "positions, as a BERT has. Give no more; rotary positions have no such limit."
            )

    @property
    def window(self) -> int:
        """Number of tokens that are visible on each side in a local layer."""
        return self.local_attention // 2

    def is_local(self, layer: int) -> bool:
        """Whether the layer with this number, counted from 0, attends within the window only."""
        return bool(self.local_attention and layer % self.global_attn_every_n_layers)

    @property
    def rotated_fraction(self) -> float:
        """Fraction of a head's dimensions that are rotated; 0 without rotary positions."""
        return self.rotary_share if self.position_embedding_type == "rotary" else 0.0

    def chosen_forms(self) -> dict[str, Any]:
        """The keys of `_FORMS` whose values differ from a RoFormer's."""
        usual = type(self).__dataclass_fields__
        values = {name: getattr(self, name) for name in _FORMS}
        return {name: x for name, x in values.items() if x != usual[name].default}

    def unusual_form(self, learned: bool = False, value: bool = False) -> str | None:
        """A key of `_FORMS` and its value that make this no RoFormer, for a message; else None.

        `learned`, `value`: whether the caller supports learned positions and rotated values.
        """
        chosen = self.chosen_forms()
        if value:
            chosen.pop("rotary_value", None)
        if learned and chosen.get("position_embedding_type") == "learned":
            del chosen["position_embedding_type"]
        return next((f"{name} {x!r}" for name, x in chosen.items()), None)

    @property
    def has_label_scale(self) -> bool:
        """Whether outputs are standardized labels instead of the labels themselves."""
        return (self.label_mean, self.label_deviation) != (0.0, 1.0)

    @property
    def is_v2(self) -> bool:
        """Whether this is a RoFormerV2: no biases, norms without weights, no head transform."""
        return not self.use_bias

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "the config") -> "RoFormerConfig":
        """Read the keys of a `bert_config.json` or `config.json`; `source` is named in errors.

        Unknown keys are kept in `unknown`, and warned of unless Hugging Face always writes them.
        """
        values = {key: value for key, value in values.items() if value is not None}
        # In `{…} | values` a key of the file has priority over the one that is derived here. Not
        # kept as unknown: the attention type may change.
        if values.pop("is_decoder", None) is True:  # transformers' key for causal attention
            values = {"attention_type": "causal"} | values
        if values.get("model_type") == "bert":
            values = {"position_embedding_type": "learned"} | values
        if values.get("position_embedding_type") == "absolute":  # in transformers' BERT
            values["position_embedding_type"] = "learned"
        if isinstance(values.get("id2label"), Mapping):
            values = {"num_labels": len(values["id2label"])} | values
        names = [f.name for f in dataclasses.fields(cls) if f.name != "unknown"]
        missing = [name for name in _REQUIRED if name not in values]
        if missing:
            raise InputError(
                f"{source} lacks {', '.join(map(repr, missing))}, which the config of a RoFormer "
                "has. Give a bert_config.json or config.json, such as that of a checkpoint."
            )
        unknown = {key: value for key, value in values.items() if key not in names}
        strange = sorted(set(unknown) - _HUGGING_FACE_KEYS)
        if strange:
            warnings.warn(
                f"{source} has unknown keys, which are ignored and kept: {', '.join(strange)}",
                stacklevel=2,
            )
        known = {name: values[name] for name in names if name in values}
        try:
            return cls(**known, unknown=unknown)
        except InputError as error:
            raise InputError(f"{source}: {error}") from None

    @classmethod
    def from_file(cls, path: str | Path, **defaults: Any) -> "RoFormerConfig":
        """Read a JSON file. Raises InputError if it is missing or contains no JSON object.

        `defaults`: values of keys that the file does not have.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}. Give a config file.") from None
        values = json_object(content, path, "Give a config file.")
        return cls.from_dict(defaults | values, source=str(path))

    def to_dict(self) -> dict[str, Any]:
        """All keys for a JSON file, except those of `_FORMS` that have the default value."""
        chosen = self.chosen_forms()
        values = dataclasses.asdict(self)
        values = {key: x for key, x in values.items() if key not in _FORMS or key in chosen}
        if not self.has_label_scale:
            del values["label_mean"], values["label_deviation"]
        if self.unknown.get("model_type") == "bert":  # `from_dict` would read learned positions
            values["position_embedding_type"] = self.position_embedding_type
        return dict(values.pop("unknown")) | values

    def replace(self, **changes: Any) -> "RoFormerConfig":
        """Copy the config with some keys changed. Raises InputError for an unknown key.

        An embedding_size equal to the hidden_size changes with it, unless it is given, too.
        """
        names = {f.name for f in dataclasses.fields(self)}
        wrong = sorted(set(changes) - names)
        if wrong:
            raise InputError(
                f"a RoFormer config has no {', '.join(wrong)}. It has: {', '.join(sorted(names))}."
            )
        if "hidden_size" in changes and self.embedding_size == self.hidden_size:
            changes = {"embedding_size": changes["hidden_size"]} | changes
        return dataclasses.replace(self, **changes)


def rotated_features(head_size: int, share: float) -> int:
    """The number of rotated dimensions of a head. Raises InputError unless they form pairs."""
    # The small number keeps int() from rounding 0.3 · 10 = 2.9999… down.
    features = int(head_size * share + 1e-6) if 0 <= share <= 1 else -1
    if features < 0 or features % 2 or (share and not features):
        raise InputError(
            f"rotary_share is {share:g} of heads of {head_size} dimensions, rotated in pairs. "
            "Give a fraction from 0 (no rotation) to 1 that is an even number of them."
        )
    return features


def dropout_changes(rate: float | None) -> dict[str, float]:
    """Keys of a config for another dropout rate; none for None."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return {} if rate is None else dict.fromkeys(names, rate)


def check_rope_parameters(parameters: Mapping[str, Any] | None) -> None:
    """Raise InputError for an unknown type or key, and for a number out of range."""
    if parameters is None:
        return
    kind = parameters.get("rope_type") if isinstance(parameters, Mapping) else None
    if kind not in _ROPE_KEYS:
        raise InputError(
            f"rope_parameters is {parameters!r}, but must be a mapping whose rope_type is one of "
            f"{sorted(_ROPE_KEYS)}, such as {{'rope_type': 'linear', 'factor': 4.0}}."
        )
    known = {"rope_type", *_ROPE_KEYS[kind]}
    if strange := sorted(set(parameters) - known):
        raise InputError(
            f"rope_parameters of rope_type {kind!r} have no {', '.join(strange)}. They have: "
            f"{', '.join(sorted(known))}. rope_theta is rotary_base here."
        )
    if parameters.get("factor") is None:
        raise InputError(f"rope_parameters of rope_type {kind!r} lack a factor, such as 4.0.")
    for key, value in parameters.items():
        if key not in ("rope_type", "truncate") and value is not None:
            label = f"{key} of rope_parameters"
            check_type_and_number(label, value, above=0, at_most=_LARGEST)


_ROPE_KEYS = {
    "linear": {"factor"},
    "dynamic": {"factor", "original_max_position_embeddings"},
    "yarn": {
        *("factor", "original_max_position_embeddings", "attention_factor"),
        *("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    },
}
"""Types of scaling in transformers, and the keys of each."""


def block_length(window: int) -> int:
    """Queries in a block of local attention, for a window of this size on each side."""
    return max(window, _SHORTEST_BLOCK)


_REQUIRED = [
    field.name
    for field in dataclasses.fields(RoFormerConfig)
    if field.default is field.default_factory is dataclasses.MISSING
]
_LARGEST = 3.4e38  # the largest number in float32
_RANGES: dict[str, dict[str, Any]] = {
    "hidden_dropout_prob": {"at_least": 0, "below": 1},
    "attention_probs_dropout_prob": {"at_least": 0, "below": 1},
    "initializer_range": {"above": 0, "at_most": _LARGEST},
    "layer_norm_eps": {"above": 0, "at_most": _LARGEST},
    "rotary_base": {"above": 0, "at_most": _LARGEST},
    "rotary_share": {"above": 0, "at_most": 1},  # for no positions there is the type "none"
    "label_mean": {"at_least": -_LARGEST, "at_most": _LARGEST},
    "label_deviation": {"at_least": 1 / _LARGEST, "at_most": _LARGEST},
}
_SHORTEST_BLOCK = 32
"""With fewer queries in a block, the overhead of the products would exceed their cost."""
_COUNTS = (
    *_REQUIRED,
    *("embedding_size", "max_position_embeddings", "type_vocab_size"),
    *("relative_attention_num_buckets", "relative_attention_max_distance"),
    "global_attn_every_n_layers",
)
_FORMS = (
    "position_embedding_type",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "rotary_share",
    "rotary_value",
    "rope_parameters",
    "use_logn_attn",
    "trained_length",
    "local_attention",
    "global_attn_every_n_layers",
)
"""Keys of architectures other than RoFormer. In files only if not the default."""
_HUGGING_FACE_KEYS = frozenset(
    """
    _name_or_path add_cross_attention architectures bos_token_id classifier_dropout directionality
    dtype eos_token_id gradient_checkpointing id2label is_decoder label2id model_type pad_token_id
    pooler_activation pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers
    pooler_size_per_head pooler_type problem_type sentence_transformers summary_type
    tie_word_embeddings torch_dtype transformers_version use_cache
    """.split()  # noqa: SIM905
)
