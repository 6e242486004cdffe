"""How a command loads Keras and TensorFlow: quickly, with oneDNN, and without start-up notes.

Only the command line uses this, in its own process. `import roformer_tf` changes nothing.
"""

import gc
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""TensorFlow's environment variable for its C++ log: 0 writes everything, 3 fatal errors only."""
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
"""TensorFlow's environment variable for oneDNN's matrix products, softmax and so on."""
UNUSED = ("sklearn", "matplotlib", "jax")
"""Keras and TensorFlow import these if they are installed, for wrappers that no command uses."""

# The notes that TensorFlow writes before it reads its log level. Fatal errors (F) are no notes.
_NOTES_FILTER = r"""
import re, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both processes; only ours reports it
note = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ \S+:\d+\] "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    rb"|To enable the following instructions: "
)
for line in sys.stdin.buffer:
    if not note.match(line):
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
"""


_backend = ""
"""Backend of the command that this process runs; "" in other programs."""


def set_up_tensorflow(backend: str = "") -> None:
    """Set TensorFlow's log level and oneDNN for this process and its children.

    `backend`: that of a command, for `import_quickly`. What the user has set stays. TensorFlow
    itself uses oneDNN only on CPUs with AVX512-VNNI or better. With AVX2 alone, pretraining is 1.9
    times as fast with it (docs/LOG.md).
    """
    global _backend
    _backend = backend
    os.environ.setdefault(LOG_LEVEL, "3")
    if platform.machine() in ("x86_64", "AMD64"):
        os.environ.setdefault(ONEDNN, "1")


def import_quickly(*modules: str) -> None:
    """Import a command's modules; a missing one is reported later by the code that needs it.

    In other programs nothing is imported here.

    Keras on TensorFlow takes 2.1 s of CPU instead of 4.2 s: Python's garbage collector would run a
    thousand times meanwhile (0.9 s), and `UNUSED` packages would be imported (1.2 s).
    """
    if not _backend or sys.modules.keys() >= set(modules):
        return
    is_first = "keras" not in sys.modules
    skipped = [name for name in UNUSED if name != _backend and name not in sys.modules]
    # None is Python's documented way to make an import fail. It is undone right afterwards, so
    # that a command that plots or splits data imports these packages as usual.
    sys.modules.update(dict.fromkeys(skipped))  # type: ignore[arg-type]
    gc.disable()
    try:
        with suppress(ModuleNotFoundError):
            import_module("absl.logging")
            logging.getLogger("absl").addFilter(_is_no_note_on_jax)
        with _without_notes():
            for module in modules:
                with suppress(ModuleNotFoundError):
                    import_module(module)
    finally:
        gc.enable()
        for name in skipped:
            del sys.modules[name]
    if is_first and "keras" in sys.modules:
        # The million objects of these modules stay: the collector need not look at them again.
        # Only the first time, because a later freeze would also keep garbage forever.
        gc.freeze()


def _is_no_note_on_jax(record: logging.LogRecord) -> bool:
    """False for Grain's warning that jax is missing, which it does not need."""
    return "jax profiler" not in str(record.msg)


@contextmanager
def _without_notes() -> Iterator[None]:
    """Send file descriptor 2 through a process that drops TensorFlow's notes.

    TensorFlow writes past `sys.stderr`. A process of its own passes everything else on at once,
    and still does so when this one aborts, for example on a CPU without AVX.
    """
    if os.environ.get(LOG_LEVEL) != "3":  # the user wants to see them
        yield
        return
    try:
        stderr = os.dup(2)
    except OSError:  # a service without a console has no stderr
        yield
        return
    # -I: no variables or packages of the user; -S: no `site`, so that it starts sooner.
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _NOTES_FILTER], stdin=subprocess.PIPE, stdout=stderr
    ) as process:
        assert process.stdin
        os.dup2(process.stdin.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    # Leaving the block closes the pipe and waits until its last line is written.
