"""One row of the tables: a flag with a value, and the part of the outcome that it changes."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Row(NamedTuple):
    """Runs `command base without` and `command base with_flags`, and compares their outcomes.

    Words are separated by spaces. {name} is a file or model of the fixture `inputs`, and {out} is
    an empty folder of the run.
    """

    with_flags: str
    """The flag with a value other than its default. Several flags if one needs another."""
    part: str
    """The part that differs.

    One of "exit", "stdout", "stderr", "computed" (engine, precision and batch shapes), "writes"
    (the separate writes to stdout), a response of a service (see `service.ask_all`), or the name of
    a file in {out}.
    """
    check: Callable[[Any, Any], Any] | None = None
    """check(without, with): a further condition on the two values of the part."""
    without: str = ""
    """Words in place of the flag, if the command needs something there."""
    base: str | None = None
    """Replaces the table's base."""
    exits: tuple[int, int] = (0, 0)
    """Exit codes of the two runs."""
    slow: bool = False
    """Whether this row is a slow test: a quick row or test covers the same setting."""


def has(*texts: str) -> Callable[[Any, Any], bool]:
    """A check: only the second value contains these texts."""

    def check(without: Any, with_flag: Any) -> bool:
        return all(text in str(with_flag) and text not in str(without) for text in texts)

    return check


def tables() -> dict[str, tuple[str, list[Row]]]:
    """Command → (base, rows), from every table in this folder.

    "evaluate (corpus)" is `evaluate` with --corpus, which has its own flags.
    """
    from tests.every_flag import inference, other_commands, training

    actual: dict[str, tuple[str, list[Row]]] = {}
    for module in (inference, training, other_commands):
        actual |= module.TABLES
    return actual
