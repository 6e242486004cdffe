"""One row of the tables: a flag as it is typed, and where the outcome shows it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Row(NamedTuple):
    """`command base without` and `command base with_flags` are run and compared.

    Words are separated by spaces; {name} is a file or model of the fixture `inputs`, and {out} an
    empty folder that each run has to itself.
    """

    with_flags: str
    """The flag with a value that is not its default; several where one needs another."""
    part: str
    """What differs: "exit", "stdout", "stderr", "computed" (which engine computes, in which
    precision, batches of which shape), "writes" (the separate writes to stdout), an answer of a
    service (see `service.ask_all`), or the name of a file in {out}."""
    check: Callable[[Any, Any], Any] | None = None
    """check(without, with): what must also hold for the two values of the part."""
    without: str = ""
    """What is typed in place of the flag, where the command needs something there."""
    base: str | None = None
    """Instead of the table's own base."""
    exits: tuple[int, int] = (0, 0)
    """Exit codes of the two runs."""
    slow: bool = False
    """Whether it is a slow test: the same setting has a quick row or test elsewhere."""


def has(*texts: str) -> Callable[[Any, Any], bool]:
    """A check: texts that only the second value has."""

    def check(without: Any, with_it: Any) -> bool:
        return all(text in str(with_it) and text not in str(without) for text in texts)

    return check


def tables() -> dict[str, tuple[str, list[Row]]]:
    """Command → base, rows: those of every table in this folder.

    "evaluate (corpus)" is `evaluate` with --corpus, which has flags of its own.
    """
    from tests.every_flag import inference, other_commands, training

    actual: dict[str, tuple[str, list[Row]]] = {}
    for module in (inference, training, other_commands):
        actual |= module.TABLES
    return actual
