"""Tests of the device names that commands print, with simulated devices."""

import sys
from types import SimpleNamespace

import keras
import pytest

from roformer_tf.kernels.accelerators import accelerators, device_in_words


@pytest.fixture
def gpus(monkeypatch):
    """Return a function that simulates a backend with GPUs: gpus("tensorflow", "NVIDIA L20", …)."""

    def simulate(backend, *names):
        monkeypatch.setattr(keras.backend, "backend", lambda: backend)
        if backend == "jax":
            jax = pytest.importorskip("jax")
            kinds = [("gpu", name) for name in names] or [("cpu", "cpu")]
            devices = [SimpleNamespace(platform=x, device_kind=name) for x, name in kinds]
            monkeypatch.setattr(jax, "devices", lambda: devices)
            return
        config = pytest.importorskip("tensorflow").config
        monkeypatch.setattr(config, "list_physical_devices", lambda kind: [*range(len(names))])
        details = [{"device_name": name} if name else {} for name in names]
        monkeypatch.setattr(config.experimental, "get_device_details", details.__getitem__)

    return simulate


@pytest.mark.parametrize(
    ("backend", "names", "want"),
    [
        ("tensorflow", [], "the CPU, by TensorFlow"),
        ("tensorflow", ["NVIDIA L20"], "NVIDIA L20, by TensorFlow"),
        ("tensorflow", [""], "a GPU without a name, by TensorFlow"),
        ("jax", [], "the CPU, by JAX"),
        ("jax", ["NVIDIA H100 80GB HBM3"] * 8, "8 × NVIDIA H100 80GB HBM3, by JAX"),
    ],
)
def test_the_device_is_detected_by_its_name(gpus, backend, names, want):
    gpus(backend, *names)
    assert device_in_words() == want
    assert len(accelerators()) == len(names)


def test_without_keras_there_is_only_the_cpu(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras")
    assert device_in_words() == "the CPU"
    assert accelerators() == []
    assert "keras" not in sys.modules
