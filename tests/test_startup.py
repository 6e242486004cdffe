"""Loading TensorFlow in a command hides TensorFlow's notes and no other output."""

import gc
import json
import logging
import os
import subprocess
import sys
import weakref
from importlib import import_module
from pathlib import Path

import pytest

import roformer_tf
from roformer_tf import startup
from roformer_tf.cli import main

ROOT = Path(roformer_tf.__file__).parents[1]
NOTES = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795401932.806351   17074 port.cc:153] oneDNN custom operations are on. You may see
E0000 00:00:1795402034.998750   17074 cuda_platform.cc:52] failed call to cuInit
2025-01-31 09:08:07.123456: W tensorflow/core/util/port.cc:1] TF-TRT Warning
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow
"""
OTHER_OUTPUT = b"""\
UserWarning: INFO is a word of other libraries, too
F0000 00:00:1795402034.998750   17074 cpu_feature_guard.cc:1] TensorFlow was compiled to use AVX
a last line that does not end"""


ONEDNN = "TF_ENABLE_ONEDNN_OPTS"


def environment_without_level():
    """The environment without the variables that JAX or a command in this process sets."""
    return {k: v for k, v in os.environ.items() if k not in ("TF_CPP_MIN_LOG_LEVEL", ONEDNN)}


@pytest.fixture
def fake_tensorflow(tmp_path):
    """fake_tensorflow(last statement) → stderr and exit code of a command that imports it."""

    def run(statement, command=("checkpoints", "inspect", "none"), **environment):
        (tmp_path / "tensorflow.py").write_text(
            f"import os\nos.write(2, {NOTES + OTHER_OUTPUT!r})\n{statement}\n", encoding="utf-8"
        )
        done = subprocess.run(
            [sys.executable, "-m", "roformer_tf", *command],
            capture_output=True,
            check=False,
            env=environment_without_level()
            | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
            | environment,
        )
        return done.stderr, done.returncode

    return run


@pytest.mark.parametrize("statement", ["os.abort()", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_the_last_output_of_an_aborting_process_is_shown(fake_tensorflow, statement):
    stderr, code = fake_tensorflow(statement)
    assert stderr == OTHER_OUTPUT
    assert code != 0


def test_an_import_error_is_shown_after_earlier_output(fake_tensorflow):
    stderr, _ = fake_tensorflow("raise ImportError('no such symbol')")
    assert stderr.startswith(OTHER_OUTPUT)
    assert b"ImportError: no such symbol" in stderr


def test_a_command_hides_the_notes_unless_the_user_sets_a_log_level(fake_tensorflow):
    stderr, code = fake_tensorflow("")
    assert code == 2
    assert stderr.startswith(OTHER_OUTPUT + b"roformer-tf checkpoints inspect: ")
    stderr, _ = fake_tensorflow("", TF_CPP_MIN_LOG_LEVEL="0")
    assert stderr.startswith(NOTES + OTHER_OUTPUT)


def test_a_model_that_needs_keras_is_loaded_without_notes(fake_tensorflow, shallow, tmp_path):
    """Only a `--model` shows whether `embed` or `serve` needs Keras."""
    texts = tmp_path / "texts.txt"
    texts.write_text("今天\n", encoding="utf-8")
    files = ["--input", str(texts), "--output", str(tmp_path / "vectors.npy")]
    command = ["embed", "--model", str(shallow), "--engine", "keras", *files]
    stderr, _ = fake_tensorflow("", command)
    assert stderr.startswith(OTHER_OUTPUT)


@pytest.mark.parametrize("command", ["pretrain --rows", "finetune --teacher none --train"])
def test_a_training_on_jax_hides_the_notes(fake_tensorflow, tmp_path, command):
    """Keras imports TensorFlow there as well, when it sets the seed."""
    pytest.importorskip("jax")
    words = [*command.split(), "none", "--output", str(tmp_path / "run")]
    stderr, code = fake_tensorflow("", words, KERAS_BACKEND="jax")
    assert code == 2
    assert stderr.startswith(OTHER_OUTPUT + b"roformer-tf ")


def test_a_tf1_checkpoint_is_read_without_notes(fake_tensorflow, released):
    """Only the checkpoint shows whether a command that computes without Keras needs TensorFlow."""
    stderr, _ = fake_tensorflow(
        "", ["similarity", "--model", str(released("sim_char")), "天", "气"]
    )
    assert stderr.startswith(OTHER_OUTPUT)


@pytest.mark.parametrize(
    ("machine", "set_by_user", "want"),
    [("x86_64", None, "1"), ("AMD64", None, "1"), ("x86_64", "0", "0"), ("aarch64", None, None)],
)
def test_onednn_is_used_on_every_x86_cpu_unless_the_user_disables_it(
    machine, set_by_user, want, fake_tensorflow, tmp_path
):
    (tmp_path / "sitecustomize.py").write_text(
        f"import platform\nplatform.machine = lambda: {machine!r}\n"
    )
    environment = {} if set_by_user is None else {ONEDNN: set_by_user}
    stderr, _ = fake_tensorflow(
        f"os.write(2, os.environ.get({ONEDNN!r}, 'no').encode())", **environment
    )
    assert stderr.startswith(OTHER_OUTPUT + (want or "no").encode())


def test_garbage_is_collected_after_commands_in_one_process():
    import_module("keras")  # as an earlier command did

    class Cycle:
        def __init__(self):
            self.itself = self

    garbage = weakref.ref(Cycle())
    assert main(["fill-mask", "--model", "no-such-model", "[MASK]"]) == 2
    assert gc.isenabled()
    gc.collect()
    assert garbage() is None


@pytest.mark.slow
def test_a_command_loads_keras_without_unused_packages_and_can_load_them_later():
    """Run in a separate process, where Keras is not loaded yet."""
    code = (
        "import gc, json, sys\n"
        "from roformer_tf.cli import main\n"
        "assert main(['fill-mask', '--model', 'no-such-model', '[MASK]']) == 2\n"
        "names = {'keras', 'tensorflow', 'sklearn', 'matplotlib', 'jax'} & sys.modules.keys()\n"
        "print(json.dumps(sorted(names)))\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 100_000, gc.get_freeze_count()\n"
        "import roformer_tf.training.plots, sklearn.base"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment_without_level(),
    )
    assert json.loads(done.stdout.splitlines()[-1]) == ["keras", "tensorflow"]
    assert done.stderr.count("\n") == 1  # our own message, and no note of TensorFlow


def test_only_grains_warning_about_a_missing_jax_is_hidden(monkeypatch):
    monkeypatch.setattr(startup, "_backend", "tensorflow")
    startup.import_quickly("no_such_module")
    startup.import_quickly("no_such_module")
    absl = logging.getLogger("absl")

    def is_printed(text):
        return bool(
            absl.filter(absl.makeRecord("absl", logging.WARNING, "", 0, text, ("x",), None))
        )

    assert not is_printed("Failed to load jax profiler: %s")
    assert is_printed("Failed to load the corpus: %s")
    assert absl.filters.count(startup._is_no_note_on_jax) == 1
