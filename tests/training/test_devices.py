from pathlib import Path

import keras
import pytest

from roformer_tf.training import devices
from roformer_tf.training.devices import choose_jit, choose_precision


@pytest.fixture
def machine(monkeypatch):
    """machine(accelerated, flags): a machine with or without a GPU, and /proc/cpuinfo's flags."""

    def pretend(accelerated, flags):
        def read_text(path, encoding):
            assert str(path) == "/proc/cpuinfo"
            if flags is None:
                raise FileNotFoundError(path)
            return f"processor: 0\nflags: fpu sse2 {flags}\n"

        monkeypatch.setattr(devices, "_accelerated", lambda: accelerated)
        monkeypatch.setattr(Path, "read_text", read_text)

    return pretend


@pytest.mark.parametrize("asked", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("accelerated", [True, False])
def test_what_is_asked_for_is_taken(machine, asked, accelerated):
    machine(accelerated, "")
    assert choose_precision(asked) == asked


@pytest.mark.parametrize(
    ("accelerated", "flags", "precision"),
    [
        (True, "", "mixed_bfloat16"),
        (False, "avx512f avx512_bf16", "mixed_bfloat16"),
        (False, "avx2 amx_bf16 amx_tile", "mixed_bfloat16"),
        (False, "avx2 avx512f avx512_bf16x", "float32"),
        (False, None, "float32"),  # no Linux
    ],
)
def test_products_are_bfloat16_where_the_device_is_fast_at_them(
    machine, accelerated, flags, precision
):
    machine(accelerated, flags)
    assert choose_precision("auto") == precision


@pytest.mark.parametrize(
    ("backend", "accelerated", "jit"),
    [
        ("tensorflow", False, False),
        ("tensorflow", True, "auto"),
        ("jax", False, "auto"),
        ("jax", True, "auto"),
    ],
)
def test_xla_is_left_to_keras_but_for_tensorflow_on_a_cpu(
    machine, monkeypatch, backend, accelerated, jit
):
    machine(accelerated, "")
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    assert choose_jit() == jit


def test_this_machine_has_a_policy_that_keras_knows():
    assert keras.dtype_policies.get(choose_precision("auto")).compute_dtype in (
        "float32",
        "bfloat16",
    )
