"""Tests of the choice of engine and precision, with simulated hardware and packages."""

import pytest

from roformer_tf import errors
from roformer_tf.engines import choice
from roformer_tf.engines.choice import Choice, choose
from roformer_tf.errors import InputError


@pytest.fixture
def machine(monkeypatch):
    """Return a function: machine("onnx", native=True) simulates engines and hardware."""

    def simulate(*engines, native=False, accelerator=False):
        modules = {name for engine in engines for name in choice.MODULES[engine]}
        for module in (choice, errors):
            monkeypatch.setattr(module, "find_spec", lambda name: name if name in modules else None)
        monkeypatch.setattr(choice, "multiplies_bfloat16", lambda: native)
        monkeypatch.setattr(choice, "has_accelerator", lambda: accelerator)

    return simulate


@pytest.mark.parametrize(
    ("engines", "native", "lossy", "precision", "want"),
    [
        ((), True, True, None, ("keras", "float32")),
        (("onnx",), True, True, None, ("onnx", "float32")),
        (("openvino",), False, True, None, ("openvino", "float32")),
        (("onnx", "openvino"), True, True, None, ("openvino", "bfloat16")),
        (("onnx", "openvino"), True, False, None, ("onnx", "float32")),
        (("onnx", "openvino"), False, True, None, ("onnx", "float32")),
        (("onnx", "openvino"), True, True, "float32", ("onnx", "float32")),
        (("onnx", "openvino"), True, False, "bfloat16", ("openvino", "bfloat16")),
        (("onnx",), True, True, "bfloat16", ("keras", "bfloat16")),
        (("onnx", "openvino"), True, True, "int8", ("onnx", "int8")),
        (("openvino",), True, True, "int8", ("openvino", "int8")),
    ],
)
def test_auto_chooses_the_fastest_available_engine(
    machine, engines, native, lossy, precision, want
):
    machine(*engines, native=native)
    actual = choose("auto", precision, lossy=lossy)
    assert (actual.engine, actual.precision) == want
    bfloat16_by_default = want == ("openvino", "bfloat16") and precision is None
    assert actual.note == (
        "OpenVINO computes in bfloat16 (--precision float32 for full accuracy)."
        if bfloat16_by_default
        else ""
    )


def test_bfloat16_falls_back_to_float32_with_a_message(machine):
    machine("onnx", "openvino", native=False)
    for engine, want in (("auto", "onnx"), ("openvino", "openvino")):
        actual = choose(engine, "bfloat16", lossy=True)
        assert (actual.engine, actual.precision) == (want, "float32")
        assert "no instructions for bfloat16, so float32 is used" in actual.note
    assert choose("keras", "bfloat16") == Choice("keras", "bfloat16")


def test_keras_computes_models_that_graphs_do_not_support(machine):
    machine("onnx", "openvino", native=True)
    actual = choose("auto", None, unsupported="its config has x 1", lossy=True)
    assert (actual.engine, actual.precision) == ("keras", "float32")
    assert "its config has x 1" in actual.note
    with pytest.raises(InputError, match="cannot run this model: its config has x 1"):
        choose("onnx", unsupported="its config has x 1")
    with pytest.raises(InputError, match="int8 is not possible: its config"):
        choose("auto", "int8", unsupported="its config has x 1")


def test_auto_chooses_keras_on_an_accelerator(machine):
    machine("onnx", "openvino", native=True, accelerator=True)
    assert choose(lossy=True) == Choice("keras", "float32")
    assert choose("onnx", "float32").engine == "onnx"


@pytest.mark.parametrize(
    ("engine", "precision", "message"),
    [
        ("keras", "int8", "keras has no int8"),
        ("onnx", "bfloat16", "onnx has no bfloat16 on a CPU"),
        ("openvino", "float32", r"needs onnx, openvino: `pip install 'roformer-tf\[fast\]'`"),
        ("auto", "int8", r"needs onnx, onnxruntime: `pip install 'roformer-tf\[onnx\]'`"),
    ],
)
def test_an_unavailable_engine_is_reported(machine, engine, precision, message):
    installed = ("onnx", "openvino") if "has no" in message else ()
    machine(*installed, native=True)
    with pytest.raises(InputError, match=message):
        choose(engine, precision)


@pytest.mark.parametrize("settings", [{"engine": "torch"}, {"precision": "float16"}])
def test_unknown_names_are_refused(settings):
    ((name, value),) = settings.items()
    with pytest.raises(InputError, match=f"{name} is '{value}', but must be one of .*(int8|keras)"):
        choose(**settings)
