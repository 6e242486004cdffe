"""Tables, and progress: a bar on a terminal, lines in a log file."""

import io
import os
import re
import sys
from contextlib import suppress

import pytest
from tqdm import tqdm

from roformer_tf import terminal
from roformer_tf.checkpoints.registry import MINI
from roformer_tf.cli import main
from roformer_tf.terminal import Progress, printable, table


class Clock:
    """A clock that is advanced by hand."""

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
    """stderr(terminal=False): replace sys.stderr by a buffer, and return the buffer."""

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
        for _ in range(700):  # each takes a tenth of a second
            clock.now += 0.1
            bar.update()
            bar.set_postfix(loss="0.5")
            tqdm.write("said", file=io.StringIO())
    lines = file.getvalue().splitlines()
    assert "\r" not in file.getvalue()
    assert len(lines) == 2
    assert lines[0] == "fine-tuning: 1,300 of 2,000 steps, elapsed 00:30, remaining 01:10, loss=0.5"


def test_short_progress_prints_no_line_and_bytes_are_rounded(clock, stderr):
    file = stderr()
    with Progress(total=5_000_000, desc="base", unit="B", unit_scale=True) as bar:
        bar.update(4_000_000)
    assert file.getvalue() == ""
    with Progress(desc="base", unit="B", unit_scale=True) as bar:
        bar._time = clock.monotonic
        bar.start_t = bar.last_print_t = clock.now
        clock.now += 65
        bar.update(4_000_000)
    assert file.getvalue() == "base: 4.00M B, elapsed 01:05\n"


def test_a_terminal_gets_a_bar(stderr):
    file = stderr(terminal=True)
    with Progress(total=3, desc="predict", unit=" texts") as bar:
        bar.update(3)
    assert file.getvalue().startswith("\r")
    assert re.search(r"predict: 100%\|[█#]+\| 3/3 \[", file.getvalue())


def columns(text):
    """Terminal columns, counted independently of the package: Chinese characters take two."""
    return len(text) + len(re.findall(r"[\u3000-\u30ff\u4e00-\u9fff\uff00-\uff60]", text))


def test_a_table_aligns_its_columns_without_color_or_trailing_spaces():
    rows = [["name", "x", "loss", "none"], ["基线", "[b]1", "2.5", ""], ["b", "", "12.25", ""]]
    assert list(table(rows, 100)) == [
        "name     x   loss",
        "基线  [b]1    2.5",
        "b        -  12.25",
    ]
    assert list(table([["key", "value"], ["a", "x"], ["", "long"]], 100, left=True)) == [
        "key  value",
        "a    x",
        "     long",
    ]


@pytest.mark.parametrize("width", [40, 60, 100])
def test_a_table_fits_and_loses_no_text(width):
    cells = [["name", "value", "path"]]
    cells += [[f"第{n:02}次实验", "1.25", f"/data/很长的路径/{n}/" + "x" * 50] for n in range(9)]
    lines = list(table(cells, width, left=True))
    assert max(map(columns, lines)) <= width
    assert "".join("".join(lines).split()).count("x") == 9 * 50
    assert len({columns(line) for line in table([r[:2] for r in cells], width)}) == 1


def test_unprintable_characters_are_printed_as_escapes():
    assert printable("基线 a\n\udcc4\x1b[31m") == r"基线 a\n\udcc4\x1b[31m"


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["finetune", "--help-all"],
        ["checkpoints", "list"],
        pytest.param(["fill-mask", MINI, "今天天[MASK]很好"], marks=pytest.mark.slow),
    ],
)
def test_a_closed_pipe_ends_the_output_alone(words, monkeypatch):
    """`| head -1` closes the pipe like this."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with suppress(SystemExit):
            assert main(words) == 0
