"""The one rule for the engine and the precision of inference.

engine     computes with            precisions                extra
keras      TensorFlow, JAX          float32, bfloat16         none: any device, any model
onnx       ONNX Runtime, on a CPU   float32, int8             [onnx]
openvino   OpenVINO, on a CPU       float32, bfloat16, int8   [fast]

`auto` takes the engine that measured fastest on a CPU, and Keras on a GPU or TPU.
"""

from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from roformer_tf.errors import InputError, check_packages
from roformer_tf.machine import has_accelerator, multiplies_bfloat16

if TYPE_CHECKING:
    from roformer_tf.config import RoFormerConfig

Engine = Literal["auto", "keras", "onnx", "openvino"]
Precision = Literal["float32", "bfloat16", "int8"]
# Of weights and products; logits are float32. Where the hardware has instructions for bfloat16, it
# takes two thirds of the time, and probabilities change by some thousandths.
KerasPrecision = Literal["float32", "bfloat16"]

MODULES = {"onnx": ("onnx", "onnxruntime"), "openvino": ("openvino",)}
EXTRAS = {"onnx": "onnx", "openvino": "fast"}
# Engines with a precision, the fastest first (docs/LOG.md).
FASTEST: dict[Precision, tuple[Engine, ...]] = {
    "float32": ("onnx", "openvino", "keras"),
    "bfloat16": ("openvino", "keras"),
    "int8": ("onnx", "openvino"),
}
# Fields of a configuration of which graphs support any value.
ANY_VALUE = {
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("intermediate_size", "embedding_size", "max_position_embeddings", "type_vocab_size"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"),
    *("layer_norm_eps", "rotary_base", "num_labels", "unknown"),
    # of the inputs
    "shared_tokens",
    # used only together with other fields
    *("trained_length", "global_attn_every_n_layers", "relative_attention_num_buckets"),
    "relative_attention_max_distance",
    # applied to the output of the network later
    *("label_mean", "label_deviation"),
}
# The values of other fields that graphs support. Of a field that is in neither only the default is
# supported, so that a new field is not ignored.
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("gelu", "gelu_new", "relu"),
    "rotary_style": ("interleaved", "half"),
    "norm_type": ("layer_norm", "rms_norm"),
    "use_bias": (True, False),
    "attention_type": (None, "bidirectional", "causal", "unilm"),
    "pooling": ("cls", "mean", "pooler"),
    "crf": (False, True),
}
NO_BFLOAT16 = "this CPU has no instructions for bfloat16, so float32 is used."
LOSSY = "OpenVINO computes in bfloat16 (--precision float32 for full accuracy)."


@dataclass(frozen=True)
class Choice:
    """An engine and a precision."""

    engine: Engine
    precision: Precision
    note: str = ""
    """A sentence for the user on what was not asked for; or ""."""


def installed(engine: Engine) -> bool:
    """Whether the packages of an engine are installed."""
    return all(find_spec(name) for name in MODULES.get(engine, ()))


def unsupported_reason(config: "RoFormerConfig") -> str:
    """Why no graph of an architecture can be written; "" if one can."""
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in ANY_VALUE and value not in SUPPORTED.get(field.name, (field.default,)):
            return f"its config has {field.name} {value!r}, which only Keras computes"
    return ""


def choose(
    engine: Engine = "auto",
    precision: Precision | None = None,
    *,
    unsupported: str = "",
    lossy: bool = False,
) -> Choice:
    """Choose the engine and the precision.

    unsupported: why no graph of the model can be written, if so. lossy: whether bfloat16 may be
    taken where no precision was asked for. Raises InputError for what cannot be had.
    """
    native = precision in (None, "bfloat16") and multiplies_bfloat16()
    note = ""
    if precision == "bfloat16" and not native and engine != "keras":
        precision, note = "float32", NO_BFLOAT16
    if engine == "auto":
        return _automatic(precision, native and lossy, unsupported, note)
    if engine != "keras" and unsupported:
        raise InputError(f"--engine {engine} cannot run this model: {unsupported}. Omit --engine.")
    chosen = precision or "float32"
    if engine == "openvino" and precision is None and native and lossy:
        chosen, note = "bfloat16", LOSSY
    _check(engine, chosen)
    return Choice(engine, chosen, note)


def _automatic(precision: Precision | None, lossy: bool, unsupported: str, note: str) -> Choice:
    """The choice of `--engine auto`."""
    if unsupported or has_accelerator():
        if precision == "int8":
            reason = unsupported or "int8 is for CPUs, and there is an accelerator"
            raise InputError(f"int8 is not possible: {reason}. Give --engine onnx, or float32.")
        note = f"Keras is used: {unsupported}." if unsupported else note
        return Choice("keras", precision or "float32", note)
    if lossy and precision is None and installed("openvino"):
        return Choice("openvino", "bfloat16", LOSSY)
    precision = precision or "float32"
    engine: Engine = next(filter(installed, FASTEST[precision]), "onnx")
    _check(engine, precision)
    return Choice(engine, precision, note)


def _check(engine: Engine, precision: Precision) -> None:
    """Raise InputError where an engine lacks a precision, or its packages."""
    if engine not in FASTEST[precision]:
        raise InputError(
            f"--engine {engine} has no {precision} on a CPU. Engines with it: "
            f"{', '.join(FASTEST[precision])}."
        )
    if engine != "keras":
        check_packages(f"--engine {engine}", EXTRAS[engine], *MODULES[engine])
