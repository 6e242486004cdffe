"""What commands print: tables, and the progress of a long task."""

import io
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from tqdm import tqdm

from roformer_tf.translation import Translator, terminal_language

EVERY = 30.0
"""Seconds between two lines of progress where no terminal shows a bar."""

FALLBACK = (100, 24)
"""Columns and lines where the output is no terminal; the variable COLUMNS overrides it."""
NARROWEST = 40


def say(text: str, **values: Any) -> None:
    """Print a message in the language of the terminal, without breaking a progress bar."""
    with until_pipe_closes():
        tqdm.write(Translator(terminal_language())(text, **values), file=sys.stdout)


@contextmanager
def until_pipe_closes() -> Iterator[None]:
    """Write to the standard output, until its reader, such as `head`, has read enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # Python would flush again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(text: str) -> None:
    """Print results, whose reader may be `head`."""
    with until_pipe_closes():
        print(text)


def terminal_width() -> int:
    """Columns that a line of output may take."""
    return max(shutil.get_terminal_size(FALLBACK).columns, NARROWEST)


def table(rows: Sequence[Sequence[str]], width: int, *, left: bool = False) -> Iterator[str]:
    """Lines of a table at most `width` columns wide. The first row holds the headings.

    The first column is aligned to the left, the others to the right, or with `left` all to the
    left. Columns without any value are skipped. Long cells are folded.
    """
    from rich.cells import cell_len  # rich takes a while to import; many commands print no table
    from rich.console import Console
    from rich.table import Table

    headings, *body = rows
    kept = [number for number in range(len(headings)) if any(row[number] for row in body)]
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True)
    for number in kept:
        justify: Literal["left", "right"] = "left" if left or number == 0 else "right"
        # Where a table is too wide, other columns are folded before short names are.
        longest = max(cell_len(row[number]) for row in rows)
        whole = number == 0 and longest <= width // 3
        grid.add_column(headings[number], justify=justify, overflow="fold", no_wrap=whole)
    for row in body:
        grid.add_row(*(row[number] or ("" if left else "-") for number in kept))
    # Rendered to text: the output is the same on a terminal, in a pipe and in a file.
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(grid)
    yield from (line.rstrip() for line in capture.get().splitlines())


def printable(text: str) -> str:
    """Text with an escape in place of each character that a terminal cannot show."""
    return "".join(
        x if x.isprintable() else x.encode("unicode_escape").decode("ascii") for x in text
    )


class Progress(tqdm):
    """A tqdm bar on a terminal; elsewhere, as in a log file, a line every `EVERY` seconds.

    Both are written to stderr. A task that takes less than `EVERY` seconds writes no line.
    `desc` and `unit` may be messages.
    """

    def __init__(self, *arguments: Any, desc: str, unit: str, **settings: Any) -> None:
        self.translated = Translator(terminal_language())
        settings |= {"desc": self.translated(desc), "unit": f" {self.translated(unit)}"}
        self.in_lines = not sys.stderr.isatty()
        self.last_line = time.monotonic()
        super().__init__(*arguments, **settings)

    def display(self, msg: str | None = None, pos: int | None = None) -> Any:
        """Draw the bar, or write a line if the last one is old enough."""
        if not self.in_lines:
            return super().display(msg, pos)
        if time.monotonic() - self.last_line >= EVERY:
            self.last_line = time.monotonic()
            print(self.line(), file=self.fp, flush=True)
        return True

    def line(self) -> str:
        """For example "predict: 4,096 of 10,000 texts, elapsed 00:30, remaining 00:43"."""

        def amount(number: float) -> str:
            return self.format_sizeof(number) if self.unit_scale else f"{number:,}"

        elapsed, done = self.format_dict["elapsed"], self.n - self.initial
        _ = self.translated
        counted = amount(self.n)
        if self.total:
            counted = _("{done} of {total}", done=counted, total=amount(self.total))
        facts = [
            f"{self.desc}: {counted} {self.unit.strip()}",
            _("elapsed {time}", time=self.format_interval(elapsed)),
        ]
        if self.total and done:
            remaining = elapsed * (self.total - self.n) / done
            facts.append(_("remaining {time}", time=self.format_interval(remaining)))
        if self.postfix:
            facts.append(str(self.postfix))
        return ", ".join(facts)

    def clear(self, *arguments: Any, **settings: Any) -> None:
        """Remove the bar from the terminal, so that a line can be printed."""
        if not self.in_lines:
            super().clear(*arguments, **settings)

    def close(self) -> None:
        """Finish. On a terminal the bar stays visible."""
        if self.in_lines:
            self.leave = False
            self.sp = None  # tqdm then leaves the screen alone
        super().close()
