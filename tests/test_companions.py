import subprocess
import sys
from importlib import import_module

import pytest

from roformer_tf import companions


def test_what_is_left_out_is_missing_only_within(monkeypatch):
    monkeypatch.setattr(companions, "COMPANIONS", ("this", "json", "antigravity"))
    monkeypatch.setattr(companions, "_left_out", set())
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with companions.without_companions():
        pass  # of a program that left out nothing
    assert "this" not in sys.modules
    companions.leave_out_companions("antigravity")
    with companions.without_companions(), companions.without_companions():
        import_module("json")  # it was there
        with pytest.raises(ModuleNotFoundError):
            import_module("this")
    assert "this" not in sys.modules
    assert companions._left_out == {"this", "json"}


def test_a_command_loads_keras_without_them_and_can_load_them_then():
    """In a process of its own, where nothing has loaded Keras yet."""
    code = (
        "import sys\n"
        "from roformer_tf.cli import main\n"
        "assert main(['fill-mask', '--model', 'no-such-model', '[MASK]']) == 2\n"
        "print({'keras', 'tensorflow', 'sklearn', 'matplotlib', 'jax'} & sys.modules.keys())\n"
        "import roformer_tf.runs.plots, sklearn.base"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert eval(done.stdout.splitlines()[-1]) == {"keras", "tensorflow"}
