"""Tests of running graphs within a process."""

import subprocess
import sys

import pytest

TWO_MODELS = """
import gc, signal, sys
import roformer_tf
older, newer = (roformer_tf.load(sys.argv[1], engine="openvino") for _ in range(2))
older(["[MASK]"]), newer(["[MASK]"])
del older
gc.collect()
del newer
gc.collect()
signal.signal(signal.SIGTERM, lambda *_: print("received"))
signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_is_received_after_openvino_models_are_deleted(released):
    """Threads that ran OpenVINO had another signal stack, on which Python's handlers run."""
    pytest.importorskip("openvino")
    process = subprocess.run(
        [sys.executable, "-c", TWO_MODELS, str(released("hf_char"))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.stdout == "received\n", process.stderr
    assert process.returncode == 0
