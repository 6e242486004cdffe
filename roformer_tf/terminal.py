"""Progress of a long task: a bar on a terminal, lines in a log file."""

import sys
import time
from typing import Any

from tqdm import tqdm

EVERY = 30.0
"""Seconds between two lines of progress where no terminal shows a bar."""


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
