"""Errors that end a command without a traceback, and checks of the user's numbers."""

import math
import operator
from typing import Any


class InputError(ValueError):
    """Bad input from the user. The message states what was wrong, where, and what to do.

    Commands print the message to stderr and exit with code 2. Any other exception is a bug and
    keeps its traceback.
    """


class DivergedError(RuntimeError):
    """Training gave NaN or an exploding loss: commands print the message and exit with code 1."""


class TerminatedError(BaseException):
    """Stopped by SIGTERM with everything saved: commands print the message, exit with code 75.

    That is EX_TEMPFAIL of sysexits.h, "try again later", on which schedulers requeue a job. It is
    no Exception, like KeyboardInterrupt, so that no handler of errors catches it.
    """


TRY_AGAIN = 75
"""Exit code after a TerminatedError."""


class DifferenceError(RuntimeError):
    """Outputs that should be equal differ: commands print the message and exit with code 1."""


def check_number(
    name: str,
    value: float | str | None,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    hint: str = "",
) -> None:
    """Raise InputError unless the value is in the range. None and "auto" are always allowed.

    NaN and infinity are in no range. `hint` ends the message: "such as 0.15" or "which is …".
    """
    if value is None or isinstance(value, str):
        return
    bounds = [
        ("at least", at_least, operator.ge),
        ("above", above, operator.gt),
        ("at most", at_most, operator.le),
        ("below", below, operator.lt),
    ]
    used = [(words, bound, holds) for words, bound, holds in bounds if bound is not None]
    # Not math.isfinite, which fails for integers that are too large for a float.
    if abs(value) < math.inf and all(holds(value, bound) for _, bound, holds in used):
        return
    span = " and ".join(f"{words} {_shown(bound)}" for words, bound, _ in used)
    raise InputError(f"{name} is {_shown(value)}, but must be {span}{hint and f', {hint}'}.")


def check_type_and_number(name: str, value: Any, *, whole: bool = False, **bounds: Any) -> None:
    """`check_number` for values of a JSON file, which may have any type."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        kind = "whole number" if whole else "number"
        raise InputError(f"{name} is {value!r}, but must be a {kind}.")
    check_number(name, value, **bounds)


def check_numbers(settings: Any, *names: str, **bounds: Any) -> None:
    """`check_number` for some fields of a settings dataclass, all with the same bounds."""
    for name in names:
        check_number(name, getattr(settings, name), **bounds)


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


MAX_SEED = 2**32 - 1
"""Seeds are 32 bits wide."""
