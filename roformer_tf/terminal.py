"""What a program shows while it works: how far it is; and not what TensorFlow notes on its own."""

import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import Any

from tqdm import tqdm

EVERY = 30.0
"""Seconds between two lines of progress where no terminal shows a bar."""

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
"""TensorFlow's environment variable: which of its notes are written; 3, none but what is fatal."""
QUIET = "3"
_NOTE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog"
    rb"|[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ \S+:\d+\] "  # absl's
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "
    rb"|To enable the following instructions: "  # the second line of one
)
"""How such a note begins."""


class Progress(tqdm):
    """tqdm's bar on a terminal; elsewhere, as in a log file, a line every `EVERY` seconds.

    It is written to stderr. What takes less time has no line.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self.in_lines = not sys.stderr.isatty()
        self.told = time.monotonic()
        super().__init__(*arguments, **settings)

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Show how far it is, or write it if it is time to."""
        if not self.in_lines:
            return super().display(msg, pos)
        if time.monotonic() - self.told >= EVERY:
            self.told = time.monotonic()
            print(self.line(), file=self.fp, flush=True)
        return True

    def line(self) -> str:
        """How far it is: "predict: 4,096 of 10,000 texts, 00:30 gone, 00:43 to go"."""

        def amount(number: float) -> str:
            return self.format_sizeof(number) if self.unit_scale else f"{number:,}"

        of_all = f" of {amount(self.total)}" if self.total else ""
        gone, done = self.format_dict["elapsed"], self.n - self.initial
        facts = [
            f"{self.desc}: {amount(self.n)}{of_all} {self.unit.strip()}",
            f"{self.format_interval(gone)} gone",
        ]
        if self.total and done:
            facts.append(f"{self.format_interval(gone * (self.total - self.n) / done)} to go")
        return ", ".join([*facts, *[str(self.postfix)] * bool(self.postfix)])

    def clear(self, *arguments: Any, **settings: Any) -> None:
        """Make room for other words, on a terminal."""
        if not self.in_lines:
            super().clear(*arguments, **settings)

    def close(self) -> None:
        """End; on a terminal the bar stays."""
        if self.in_lines:
            self.leave = False
            self.sp = None  # by which tqdm tells that there is nothing on the screen
        super().close()


@contextmanager
def quiet_import() -> Iterator[None]:
    """Keep TensorFlow's notes on processor and drivers from burying what a program says.

    Most come while it is imported, before it reads its own log level, and past Python's stderr:
    that is put aside meanwhile, and what is no such note is written when the import is done. Who
    has set TF_CPP_MIN_LOG_LEVEL, such as to 0, sees what that asks for.
    """
    level = os.environ.setdefault(LEVEL, QUIET)
    of_jax = level == "1" and "jax" in sys.modules  # jax sets it where the user has not
    if level != QUIET and not of_jax:
        yield
        return
    with _stderr_put_aside():
        yield


@contextmanager
def _stderr_put_aside() -> Iterator[None]:
    try:
        stderr = os.dup(2)
    except OSError:  # there is none, as of a service without a console
        yield
        return
    with TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            aside.seek(0)
            with suppress(OSError):
                for line in aside:
                    if not _NOTE.match(line):
                        os.write(2, line)
