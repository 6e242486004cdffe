import keras
import pytest

from roformer_tf.kernels.forms import fast, flashes
from roformer_tf.training import devices
from roformer_tf.training.devices import choose_jit, choose_precision


@pytest.fixture
def machine(monkeypatch):
    """A function that simulates a machine with or without a GPU and fast bfloat16 on the CPU."""

    def pretend(accelerated, bfloat16=False):
        monkeypatch.setattr(devices, "accelerators", lambda: ["a GPU"] if accelerated else [])
        monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: bfloat16)

    return pretend


@pytest.mark.parametrize("asked", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("accelerated", [True, False])
def test_what_is_asked_for_is_taken(machine, asked, accelerated):
    machine(accelerated)
    assert choose_precision(asked) == asked


@pytest.mark.parametrize(
    ("accelerated", "bfloat16", "precision"),
    [
        (True, False, "mixed_bfloat16"),
        (False, True, "mixed_bfloat16"),
        (False, False, "float32"),
    ],
)
def test_products_are_bfloat16_where_the_device_is_fast_at_them(
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


def test_this_machine_has_a_policy_that_keras_knows():
    assert keras.dtype_policies.get(choose_precision("auto")).compute_dtype in (
        "float32",
        "bfloat16",
    )


def test_tensorflow_on_a_gpu_runs_plain_forms_under_xla(monkeypatch):
    """On a simulated GPU, TensorFlow uses bfloat16, XLA and the plain implementations."""
    tensorflow = pytest.importorskip("tensorflow")
    monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
    config = tensorflow.config
    gpu = config.LogicalDevice("/device:GPU:0", "GPU")
    real = config.list_logical_devices()

    def chosen():
        return choose_precision("auto"), choose_jit(), fast(), flashes()

    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: False)
    assert chosen() == ("float32", False, True, False)
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: [gpu])
    monkeypatch.setattr(config.experimental, "get_device_details", lambda device: {})
    monkeypatch.setattr(config, "list_logical_devices", lambda *kind: [*real, gpu])
    assert chosen() == ("mixed_bfloat16", "auto", False, False)
