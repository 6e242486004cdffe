import gc
import subprocess
import sys
import weakref
from importlib import import_module

import pytest

from roformer_tf import companions
from roformer_tf.cli import main


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


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_not_collected_within_and_is_again_after(collects):
    was = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with companions.uncollected():
            within = gc.isenabled()
        assert (within, gc.isenabled()) == (False, collects)
    finally:
        (gc.enable if was else gc.disable)()


def test_of_commands_in_one_process_garbage_is_collected():
    import_module("keras")  # as an earlier command did

    class Cycle:
        def __init__(self):
            self.itself = self

    garbage = weakref.ref(Cycle())
    assert main(["fill-mask", "--model", "no-such-model", "[MASK]"]) == 2
    gc.collect()
    assert garbage() is None


@pytest.mark.slow
def test_keras_is_imported_without_collections():
    code = (
        "import gc, roformer_tf\n"
        "begun = []\n"
        "gc.callbacks.append(lambda phase, _: begun.append(phase == 'start'))\n"
        "import keras\n"
        "print(sum(begun), gc.isenabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    collections, enabled = done.stdout.split()
    assert enabled == "True"
    assert int(collections) < 100  # of a thousand


def test_a_command_loads_keras_without_them_and_can_load_them_then():
    """In a process of its own, where nothing has loaded Keras yet."""
    code = (
        "import gc, sys\n"
        "from roformer_tf.cli import main\n"
        "assert main(['fill-mask', '--model', 'no-such-model', '[MASK]']) == 2\n"
        "print({'keras', 'tensorflow', 'sklearn', 'matplotlib', 'jax'} & sys.modules.keys())\n"
        "assert gc.isenabled() and gc.get_freeze_count() > 100_000, gc.get_freeze_count()\n"
        "import roformer_tf.runs.plots, sklearn.base"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert eval(done.stdout.splitlines()[-1]) == {"keras", "tensorflow"}
