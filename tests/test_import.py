"""`import roformer_tf` prints nothing and changes nothing in the process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import roformer_tf

ROOT = Path(roformer_tf.__file__).parents[1]
KERAS_FREE = ("InputError", "RoFormerConfig", "RoFormerTokenizer", "load")
STATE = """
import builtins, gc, logging, os, signal, sys, threading, warnings


def state():
    # Of each descriptor the file that it refers to: a replaced stderr has the same number.
    files = {}
    for descriptor in range(64):
        try:
            status = os.fstat(descriptor)
            files[descriptor] = (status.st_dev, status.st_ino)
        except OSError:
            pass
    return {
        "meta_path": list(map(id, sys.meta_path)),
        "path_hooks": list(map(id, sys.path_hooks)),
        "import": id(builtins.__import__),
        "environment": dict(os.environ),
        "files": files,
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks)),
        "loggers": sorted(logging.root.manager.loggerDict),
        "logging": (logging.root.level, len(logging.root.handlers), logging.root.manager.disable),
        "warnings": list(map(str, warnings.filters)),
        "showwarning": id(warnings.showwarning),
        "excepthook": id(sys.excepthook),
        "signals": {s: str(signal.getsignal(s)) for s in signal.valid_signals()},
        "threads": threading.active_count(),
    }
"""


def run(code, *flags, **environment):
    """Run code in a new Python process, and return its stdout and stderr."""
    inherited = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=inherited | {"PYTHONPATH": str(ROOT)} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_an_import_changes_nothing_else_in_the_process():
    check = """
before = state()
import roformer_tf
after = state()
print([name for name in before if before[name] != after[name]])
print([name for name in sys.modules if name.startswith("roformer_tf.")])
"""
    assert run(STATE + check) == ("[]\n[]\n", "")


def test_a_program_that_imports_tensorflow_later_keeps_its_stderr(tmp_path):
    """A TensorFlow that aborts during its import must still show its last message."""
    (tmp_path / "tensorflow.py").write_text(
        "import os\nos.write(2, b'F0000 no AVX\\n')\nos.abort()\n", encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import roformer_tf, tensorflow"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    assert done.returncode != 0
    assert done.stderr == "F0000 no AVX\n"


def test_an_import_is_silent_where_warnings_are_errors():
    assert run("import roformer_tf", "-W", "error") == ("", "")


def test_names_that_need_no_keras_do_not_load_it():
    code = f"""
import sys
for name in {json.dumps(KERAS_FREE)}:
    exec(f"from roformer_tf import {{name}}")
    assert not {{"keras", "tensorflow", "jax"}} & set(sys.modules), name
"""
    assert run(code) == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", [x for x in roformer_tf.__all__ if x not in KERAS_FREE])
def test_names_that_load_keras_print_nothing_of_ours(name):
    """Messages of TensorFlow itself are allowed: `import tensorflow` prints them as well."""
    _, stderr = run(f"from roformer_tf import {name}", TF_CPP_MIN_LOG_LEVEL="3")
    notes = ("WARNING: All log messages before absl", "I0000 ", "E0000 ", "W0000 ")
    assert [line for line in stderr.splitlines() if not line.startswith(notes)] == []
