import time

import keras
import pytest

from roformer_tf.kernels.forms import attention_form, fast
from roformer_tf.training import devices
from roformer_tf.training.devices import choose_jit, choose_precision


@pytest.fixture
def machine(monkeypatch):
    """machine(accelerated, times): with a GPU or without; seconds of a product in each dtype."""

    def pretend(accelerated, **seconds):
        monkeypatch.setattr(devices, "accelerators", lambda: ["a GPU"] if accelerated else [])
        monkeypatch.setattr(devices, "_product_seconds", lambda *dtypes: seconds)
        devices._faster_in_bfloat16.cache_clear()

    yield pretend
    devices._faster_in_bfloat16.cache_clear()


@pytest.mark.parametrize("asked", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("accelerated", [True, False])
def test_what_is_asked_for_is_taken(machine, asked, accelerated):
    machine(accelerated)
    assert choose_precision(asked) == asked


@pytest.mark.parametrize(
    ("accelerated", "bfloat16", "precision"),
    [
        (True, 9.0, "mixed_bfloat16"),  # not even tried
        (False, 0.5, "mixed_bfloat16"),
        (False, 0.9, "float32"),  # not worth the casts
        (False, 20.0, "float32"),
    ],
)
def test_products_are_bfloat16_where_the_device_is_fast_at_them(
    machine, accelerated, bfloat16, precision
):
    machine(accelerated, bfloat16=bfloat16, float32=1.0)
    assert choose_precision("auto") == precision


def test_products_are_timed_in_the_dtype_asked_for(monkeypatch):
    seen = []
    matmul = keras.ops.matmul
    monkeypatch.setattr(keras.ops, "matmul", lambda a, b: seen.append(a.dtype) or matmul(a, b))
    assert set(devices._product_seconds("bfloat16", "float32", size=8, rounds=3)) == {
        "bfloat16",
        "float32",
    }
    assert [keras.backend.standardize_dtype(dtype) for dtype in seen] == ["bfloat16", "float32"] * 4


def test_time_in_which_others_have_the_processor_does_not_count(monkeypatch):
    matmul = keras.ops.matmul
    monkeypatch.setattr(keras.ops, "matmul", lambda a, b: time.sleep(0.05) or matmul(a, b))
    assert devices._product_seconds("float32", size=8)["float32"] < 0.01


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
    machine(accelerated)
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    assert choose_jit() == jit


def test_this_machine_has_a_policy_that_keras_knows():
    assert keras.dtype_policies.get(choose_precision("auto")).compute_dtype in (
        "float32",
        "bfloat16",
    )


def test_tensorflow_on_a_gpu_runs_plain_forms_under_xla(monkeypatch):
    """All that is chosen by the device, of one GPU that TensorFlow is made to believe in."""
    tensorflow = pytest.importorskip("tensorflow")
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    config = tensorflow.config
    gpu = config.LogicalDevice("/device:GPU:0", "GPU")
    real = config.list_logical_devices()

    def chosen():
        return choose_precision("auto"), choose_jit(), fast(), attention_form()

    monkeypatch.setattr(devices, "_faster_in_bfloat16", lambda: False)
    assert chosen() == ("float32", False, True, "plain")
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: [gpu])
    monkeypatch.setattr(config.experimental, "get_device_details", lambda device: {})
    monkeypatch.setattr(config, "list_logical_devices", lambda *kind: [*real, gpu])
    assert chosen() == ("mixed_bfloat16", "auto", False, "plain")
