"""Which engine answers, and in which precision: what is asked for, and what can be had.

engine     what computes            precisions                      extra
keras      TensorFlow, JAX          float32, bfloat16               none: any device, any model
onnx       ONNX Runtime             float32, int8                   [onnx]
openvino   OpenVINO                 float32, bfloat16, int8         [fast]

The last two compute on processors. `auto` takes the one that measured fastest in a precision.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

from roformer_tf.errors import InputError
from roformer_tf.machine import has_accelerator, multiplies_bfloat16

Engine = Literal["auto", "keras", "onnx", "openvino"]
Precision = Literal["float32", "bfloat16", "int8"]

MODULES = {"onnx": ("onnx", "onnxruntime"), "openvino": ("openvino",)}
EXTRAS = {"onnx": "onnx", "openvino": "fast"}
FASTEST: dict[Precision, tuple[Engine, ...]] = {
    "float32": ("onnx", "openvino"),
    "bfloat16": ("openvino",),
    "int8": ("onnx", "openvino"),
}
"""Engines that have a precision, the fastest first: see docs/LOG.md, "Answers on a processor"."""
NO_BFLOAT16 = "this processor has no instructions that multiply bfloat16"


@dataclass(frozen=True)
class Choice:
    """An engine, a precision, and what to tell of them."""

    engine: Engine
    precision: Precision
    said: str = ""
    """What the user did not ask for in so many words; "" where there is nothing to tell."""

    def as_json(self) -> dict[str, str]:
        """As a report has it."""
        return {"engine": self.engine, "precision": self.precision}


def installed(engine: Engine) -> bool:
    """Whether an engine's packages are there."""
    return all(find_spec(name) for name in MODULES.get(engine, ()))


def choose(
    engine: Engine = "auto",
    precision: Precision | None = None,
    *,
    unsupported: str = "",
    lossy: bool = False,
) -> Choice:
    """Settle both.

    unsupported: why no graph can be written of the model, if none can. lossy: whether `auto` may
    take bfloat16 where nobody asked for a precision. Raises InputError for what cannot be had.
    """
    native = precision in (None, "bfloat16") and multiplies_bfloat16()
    said = ""
    if precision == "bfloat16" and not native and engine != "keras":
        precision, said = "float32", f"{NO_BFLOAT16}: float32 is taken"
    if engine == "auto":
        return _automatic(precision, native and lossy, unsupported, said)
    if engine != "keras" and unsupported:
        raise InputError(
            f"--engine {engine} does not know this model: {unsupported}. Leave it out."
        )
    taken = precision or "float32"
    if engine == "openvino" and precision is None and native and lossy:
        taken, said = "bfloat16", _tell(engine, "bfloat16")
    _check(engine, taken)
    return Choice(engine, taken, said)


def _automatic(precision: Precision | None, lossy: bool, unsupported: str, said: str) -> Choice:
    """What `auto` takes."""
    if unsupported or has_accelerator():
        if precision == "int8":
            reason = unsupported or "int8 is for processors, and there is an accelerator"
            raise InputError(f"int8 cannot be had: {reason}. Give --engine onnx, or float32.")
        taken: Precision = precision or "float32"
        why = f"Keras answers: {unsupported}" if unsupported else said
        return Choice("keras", taken, why)
    wanted: list[Precision] = [precision] if precision else ["float32"]
    if lossy:
        wanted.insert(0, "bfloat16")
    for taken in wanted:
        for engine in FASTEST[taken]:
            if installed(engine):
                told = taken != precision and taken != "float32"
                return Choice(engine, taken, _tell(engine, taken) if told else said)
    if precision == "int8":
        _check("onnx", "int8")
    return Choice("keras", precision or "float32", said)


def _tell(engine: Engine, precision: Precision) -> str:
    name = {"openvino": "OpenVINO", "onnx": "ONNX Runtime"}.get(engine, "Keras")
    return f"{name} answers in {precision} (--precision float32 for all digits)"


def _check(engine: Engine, precision: Precision) -> None:
    """Raise InputError where an engine lacks a precision, or its packages."""
    if engine == "keras":
        if precision == "int8":
            raise InputError("--engine keras has no int8. Give --engine onnx, or leave it out.")
        return
    if engine not in FASTEST[precision]:
        others = ", ".join((*FASTEST[precision], *["keras"] * (precision != "int8")))
        raise InputError(
            f"--engine {engine} has no {precision} on a CPU. Engines that have it: {others}."
        )
    if missing := [name for name in MODULES[engine] if find_spec(name) is None]:
        raise InputError(
            f"--engine {engine} needs {', '.join(missing)}: "
            f"`pip install 'roformer-tf[{EXTRAS[engine]}]'`."
        )
