"""Tests against new recordings of bert4keras, with other weights and inputs than the fixtures."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parents[1]
LEGACY = {"TF_KERAS": "1", "TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (find_spec("bert4keras") and find_spec("tf_keras")),
        reason="bert4keras is not installed: `make test` does it",
    ),
]


@pytest.fixture(scope="module")
def fresh_oracle(tmp_path_factory):
    """A folder written by make_oracle.py."""
    folder = tmp_path_factory.mktemp("oracle")
    run_python(TESTS / "support" / "make_oracle.py", folder, "--seed", 20, **LEGACY)
    return folder


def run_python(*arguments, **environment):
    """Run this Python and return its output."""
    process = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=TESTS.parent,
        env=os.environ | environment,
    )
    assert process.returncode == 0, (
        f"{arguments}\n{process.stdout[-10_000:]}{process.stderr[-2_000:]}"
    )
    return process.stdout


def test_new_recordings_have_the_arrays_of_the_fixtures(fresh_oracle):
    for path in (TESTS / "fixtures" / "oracle").glob("*.npz"):
        if not path.name.startswith("hf_"):  # recorded from transformers
            with np.load(path) as recorded, np.load(fresh_oracle / path.name) as new:
                assert recorded.keys() == new.keys(), path.name
                for key in new:
                    assert new[key].dtype == recorded[key].dtype, f"{path.name}: {key}"
                    assert new[key].ndim == recorded[key].ndim, f"{path.name}: {key}"


def test_oracle_tests_pass_with_new_recordings(fresh_oracle):
    modules = [
        "models/test_families.py",
        "models/test_finetune_oracle.py",
        "finetuning/test_sim_oracle.py",
        "models/test_generation.py::test_generated_ids_equal_bert4keras",
        "layers/test_rotary.py",
    ]
    output = run_python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *(TESTS / module for module in modules),
        ROFORMER_TF_ORACLE=str(fresh_oracle),
    )
    assert "gpt_char" in output
