import keras
import pytest

from roformer_tf.kernels.forms import fast, flashes
from roformer_tf.training import devices
from roformer_tf.training.devices import choose_jit, choose_precision


@pytest.fixture
def machine(monkeypatch):
    """A function that simulates a machine with or without a GPU and fast bfloat16 on the CPU."""

    def simulate(accelerated, bfloat16=False):
        monkeypatch.setattr(devices, "accelerators", lambda: ["a GPU"] if accelerated else [])
        monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: bfloat16)

    return simulate


@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("accelerated", [True, False])
def test_an_explicit_precision_is_used(machine, precision, accelerated):
    machine(accelerated)
    assert choose_precision(precision) == precision


@pytest.mark.parametrize(
    ("accelerated", "bfloat16", "precision"),
    [
        (True, False, "mixed_bfloat16"),
        (False, True, "mixed_bfloat16"),
        (False, False, "float32"),
    ],
)
def test_products_are_bfloat16_if_the_device_is_fast_at_them(
    machine, accelerated, bfloat16, precision
):
    machine(accelerated, bfloat16)
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
def test_xla_is_left_to_keras_except_for_tensorflow_on_a_cpu(
    machine, monkeypatch, backend, accelerated, jit
):
    machine(accelerated)
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    assert choose_jit() == jit


def test_this_machines_precision_is_a_keras_policy():
    assert keras.dtype_policies.get(choose_precision("auto")).compute_dtype in (
        "float32",
        "bfloat16",
    )


def test_tensorflow_on_a_gpu_uses_xla_and_plain_forms(monkeypatch):
    """On a simulated GPU, TensorFlow uses bfloat16, XLA and the plain implementations."""
    tensorflow = pytest.importorskip("tensorflow")
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    config = tensorflow.config
    gpu = config.LogicalDevice("/device:GPU:0", "GPU")
    real = config.list_logical_devices()

    def choices():
        return choose_precision("auto"), choose_jit(), fast(), flashes()

    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: False)
    assert choices() == ("float32", False, True, False)
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: [gpu])
    monkeypatch.setattr(config.experimental, "get_device_details", lambda device: {})
    monkeypatch.setattr(config, "list_logical_devices", lambda *kind: [*real, gpu])
    assert choices() == ("mixed_bfloat16", "auto", False, False)
