"""A public name imported alone, in a new process, prints nothing, whether jax is there or not."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import roformer_tf

ROOT = Path(roformer_tf.__file__).parents[1]
HIDE_JAX = """
import sys
class NoJax:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("jax", "jaxlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoJax())
"""
KERAS_FREE = ("InputError", "RoFormerConfig", "RoFormerTokenizer", "load")
ALONE = {  # a name → whether it is quick; the first one has failed, and is of the longest chain
    name: name == "LabelledDataset" for name in roformer_tf.__all__ if name not in KERAS_FREE
}


def run(code):
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("hidden", ["", pytest.param(HIDE_JAX, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [x if quick else pytest.param(x, marks=pytest.mark.slow) for x, quick in ALONE.items()],
)
def test_a_name_that_loads_keras_prints_nothing(name, hidden):
    assert run(f"{hidden}\nfrom roformer_tf import {name}") == ""


def test_names_that_load_no_keras_print_nothing():
    """All in one process, after each of which Keras is still not there."""
    code = f"""
import sys
for name in {json.dumps(KERAS_FREE)}:
    exec(f"from roformer_tf import {{name}}")
    assert not {{"keras", "tensorflow", "jax"}} & set(sys.modules), name
"""
    assert run(code) == ""


@pytest.mark.skipif(not find_spec("jax"), reason="needs the extra [jax]")
@pytest.mark.slow
@pytest.mark.parametrize("before", ["jax", "grain"])
def test_nor_behind_what_loads_jax(before):
    """Which sets TensorFlow's log level, as if the user had."""
    assert run(f"import {before}\nfrom roformer_tf import RoFormerEncoder") == ""
