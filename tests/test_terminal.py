"""What is seen while a program works: bars for people, lines in log files, no TensorFlow."""

import io
import os
import re
import sys
from contextlib import suppress

import pytest
from tqdm import tqdm

from roformer_tf import terminal
from roformer_tf.terminal import Progress, quiet_import


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(terminal, "time", clock)
    monkeypatch.setattr(Progress, "_time", staticmethod(clock.monotonic), raising=False)
    return clock


@pytest.fixture
def stderr(monkeypatch):
    """stderr(terminal=False) → what sys.stderr is from now on."""

    def replace(terminal=False):
        file = io.StringIO()
        file.isatty = lambda: terminal
        monkeypatch.setattr(sys, "stderr", file)
        return file

    return replace


def test_a_log_file_gets_a_line_every_thirty_seconds(clock, stderr):
    file = stderr()
    with Progress(total=2000, initial=1000, desc="fine-tuning", unit=" steps") as bar:
        bar._time = clock.monotonic
        bar.start_t = bar.last_print_t = clock.now
        for _ in range(700):  # of a tenth of a second
            clock.now += 0.1
            bar.update()
            bar.set_postfix(loss="0.5")
            tqdm.write("said", file=io.StringIO())
    lines = file.getvalue().splitlines()
    assert "\r" not in file.getvalue()
    assert len(lines) == 2
    assert lines[0] == "fine-tuning: 1,300 of 2,000 steps, 00:30 gone, 01:10 to go, loss=0.5"


def test_what_is_done_before_has_no_line_and_bytes_are_rounded(clock, stderr):
    file = stderr()
    with Progress(total=5_000_000, desc="base", unit="B", unit_scale=True) as bar:
        bar.update(4_000_000)
    assert file.getvalue() == ""
    with Progress(desc="base", unit="B", unit_scale=True) as bar:
        bar._time = clock.monotonic
        bar.start_t = bar.last_print_t = clock.now
        clock.now += 65
        bar.update(4_000_000)
    assert file.getvalue() == "base: 4.00M B, 01:05 gone\n"


def test_a_terminal_gets_a_bar(stderr):
    file = stderr(terminal=True)
    with Progress(total=3, desc="predict", unit=" texts") as bar:
        bar.update(3)
    assert file.getvalue().startswith("\r")
    assert re.search(r"predict: 100%\|[█#]+\| 3/3 \[", file.getvalue())


NOTES = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795401932.806351   17074 port.cc:153] oneDNN custom operations are on. You may see
E0000 00:00:1795402034.998750   17074 cuda_platform.cc:52] failed call to cuInit
2025-01-31 09:08:07.123456: W tensorflow/core/util/port.cc:1] TF-TRT Warning
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow
"""
OTHERS = b"""\
F0000 00:00:1795402034.998750   17074 cpu_feature_guard.cc:1] TensorFlow was compiled to use AVX
UserWarning: INFO is said by others, too
I am a line
"""


@pytest.mark.parametrize(("level", "seen"), [(None, False), ("3", False), ("0", True)])
def test_notes_of_an_import_are_left_out_and_nothing_else(level, seen, monkeypatch, capfd):
    if level is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    else:
        monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    with quiet_import(), quiet_import():  # a command imports what imports Keras
        os.write(2, NOTES + OTHERS)
    os.write(2, b"behind\n")
    want = NOTES * seen + OTHERS + b"behind\n"
    assert capfd.readouterr().err == want.decode()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == (level or "3")


def test_what_was_said_before_an_error_is_not_lost(monkeypatch, capfd):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    with suppress(ImportError), quiet_import():
        os.write(2, b"the library says why\n")
        import roformer_tf.no_such_module  # noqa: F401
    assert capfd.readouterr().err == "the library says why\n"
