"""The one rule for the engine and the precision of inference.

engine     computes with            precisions                extra
keras      TensorFlow, JAX          float32, bfloat16         none: any device, any model
onnx       ONNX Runtime, on a CPU   float32, int8             [onnx]
openvino   OpenVINO, on a CPU       float32, bfloat16, int8   [fast]

`auto` takes the engine that measured fastest on a CPU, and Keras on a GPU or TPU.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, get_args

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError, check_choice, check_packages
from roformer_tf.machine import has_accelerator, multiplies_bfloat16

Engine = Literal["auto", "keras", "onnx", "openvino"]
Precision = Literal["float32", "bfloat16", "int8"]
# Of weights and products; logits are float32. Where the hardware has instructions for bfloat16, it
# takes two thirds of the time, and probabilities change by some thousandths.
KerasPrecision = Literal["float32", "bfloat16"]

MODULES = {"onnx": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino")}
EXTRAS = {"onnx": "onnx", "openvino": "fast"}
# Engines with a precision, the fastest first (docs/LOG.md).
FASTEST: dict[Precision, tuple[Engine, ...]] = {
    "float32": ("onnx", "openvino", "keras"),
    "bfloat16": ("openvino", "keras"),
    "int8": ("onnx", "openvino"),
}
# Fields of a configuration of which graphs support the default alone.
KERAS_ONLY = (
    *("position_embedding_type", "rotary_share", "rotary_value", "rope_parameters"),
    *("use_logn_attn", "local_attention"),
)
NO_BFLOAT16 = "this CPU has no instructions for bfloat16, so float32 is used."
LOSSY = "OpenVINO computes in bfloat16 (--precision float32 for full accuracy)."


@dataclass(frozen=True)
class Choice:
    """An engine and a precision."""

    engine: Engine
    precision: Precision
    note: str = ""
    """A sentence for the user on what was not asked for; or ""."""


KERAS = Choice("keras", "float32")


def installed(engine: Engine) -> bool:
    """Whether the packages of an engine are installed."""
    return all(find_spec(name) for name in MODULES.get(engine, ()))


def check_installed(user: str, engine: Engine) -> None:
    """Raise InputError, which names what needs the engine, where its packages are missing."""
    check_packages(user, EXTRAS.get(engine, ""), *MODULES.get(engine, ()))


def unsupported_reason(config: RoFormerConfig) -> str:
    """Why no graph of an architecture can be written; "" if one can."""
    for name, value in config.chosen_forms().items():
        if name in KERAS_ONLY:
            return f"its config has {name} {value!r}, which only Keras computes"
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
    check_choice("engine", engine, get_args(Engine))
    check_choice("precision", precision or "float32", get_args(Precision))
    note, is_auto = "", engine == "auto"
    native = precision in (None, "bfloat16") and multiplies_bfloat16()
    if precision == "bfloat16" and not native and engine != "keras":
        precision, note = "float32", NO_BFLOAT16
    if is_auto and (unsupported or has_accelerator()):
        if precision == "int8":
            reason = unsupported or "int8 is for CPUs, and there is an accelerator"
            raise InputError(f"int8 is not possible: {reason}. Give --engine onnx, or float32.")
        note = f"Keras is used: {unsupported}." if unsupported else note
        return Choice("keras", precision or "float32", note)
    if engine != "keras" and unsupported:
        raise InputError(f"--engine {engine} cannot run this model: {unsupported}. Omit --engine.")
    may_be_openvino = engine == "openvino" or (is_auto and installed("openvino"))
    if precision is None and native and lossy and may_be_openvino:
        engine, precision, note = "openvino", "bfloat16", LOSSY
    precision = precision or "float32"
    if engine == "auto":
        engine = next(filter(installed, FASTEST[precision]), "onnx")
    if engine not in FASTEST[precision]:
        raise InputError(
            f"--engine {engine} has no {precision} on a CPU. Engines with it: "
            f"{', '.join(FASTEST[precision])}."
        )
    check_installed(f"--engine {engine}", engine)
    return Choice(engine, precision, note)
