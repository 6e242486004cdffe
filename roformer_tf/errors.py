"""Errors that end a command without a traceback, and checks of the user's numbers."""

import math
import operator
import re
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from roformer_tf.translation import Message, Translator, terminal_language


class InputError(ValueError):
    """Bad input from the user. The message states what was wrong, where, and what to do.

    Commands print the message to stderr and exit with code 2. Any other exception is a bug and
    keeps its traceback. A `Message` is shown in the language of the locale.
    """

    def __str__(self) -> str:
        message = self.args[0] if self.args else ""
        is_message = isinstance(message, Message)
        return Translator(terminal_language())(message) if is_message else super().__str__()


class DamagedError(InputError):
    """A model or an index that is damaged, or was changed: for a service, no fault of a request."""


class DivergedError(RuntimeError):
    """Training gave NaN or an exploding loss: commands print the message and exit with code 1."""


class TerminatedError(BaseException):
    """Stopped by SIGTERM with everything saved: commands print the message, exit with code 75.

    That is EX_TEMPFAIL of sysexits.h, "try again later", on which schedulers requeue a job. It is
    no Exception, like KeyboardInterrupt, so that no handler of errors catches it.
    """


_OUT_OF_MEMORY = re.compile(
    "OOM when|[Oo]ut of memory|RESOURCE_EXHAUSTED|Failed to allocate memory"
)
"""TensorFlow's, JAX's and ONNX Runtime's errors."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, of the CPU or of a GPU."""
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


TRY_AGAIN = 75
"""Exit code after a TerminatedError."""


@contextmanager
def handling_termination(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Call the handler at SIGTERM within the block, on Windows also at SIGBREAK."""
    if threading.current_thread() is not threading.main_thread():  # only it gets signals
        yield
        return
    # Windows has no SIGTERM between processes; Ctrl+Break and a closed console send SIGBREAK.
    numbers = [getattr(signal, x) for x in ("SIGTERM", "SIGBREAK") if hasattr(signal, x)]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


class DifferenceError(RuntimeError):
    """Outputs that should be equal differ: commands print the message and exit with code 1."""


def check_packages(user: str, extra: str, *packages: str, otherwise: str = "") -> None:
    """Raise InputError, with the command that installs them, where packages are missing.

    user: what needs them. extra: ours that installs them. otherwise: what can be done instead.
    """
    if missing := [name for name in packages if find_spec(name) is None]:
        instead = f", or {otherwise}" if otherwise else ""
        raise InputError(
            f"{user} needs {', '.join(missing)}: `pip install 'roformer-tf[{extra}]'`{instead}."
        )


def check_number(
    name: str,
    value: float | str | None,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    example: str = "",
    hint: str = "",
) -> None:
    """Raise InputError unless the value is in the range. None and "auto" are always allowed.

    NaN and infinity are in no range. The message ends in `example`, such as "0.15", or `hint`.
    """
    if value is None or isinstance(value, str):
        return
    bounds = [
        (Message("at least {bound}", bound=_shown(at_least)), at_least, operator.ge),
        (Message("above {bound}", bound=_shown(above)), above, operator.gt),
        (Message("at most {bound}", bound=_shown(at_most)), at_most, operator.le),
        (Message("below {bound}", bound=_shown(below)), below, operator.lt),
    ]
    used = [(span, bound, holds) for span, bound, holds in bounds if bound is not None]
    # Not math.isfinite, which fails for integers that are too large for a float.
    is_finite = abs(value) < math.inf
    if is_finite and all(holds(value, bound) for _, bound, holds in used):
        return
    # Callers give one bound, or a lower and an upper one.
    spans = [span for span, *_ in used]
    span, *further = spans if is_finite else [Message("a finite number")]
    if further:
        span = Message("{first} and {last}", first=span, last=further[0])
    if example:
        hint = Message("such as {example}", example=example)
    raise InputError(
        Message(
            "{name} is {value}, but must be {span}{hint}.",
            name=name,
            value=_shown(value),
            span=span,
            hint=Message(", {hint}", hint=hint) if hint else "",
        )
    )


def check_type_and_number(name: str, value: Any, *, whole: bool = False, **bounds: Any) -> None:
    """`check_number` for values of a JSON file, which may have any type."""
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        kind = "whole number" if whole else "number"
        raise InputError(f"{name} is {value!r}, but must be a {kind}.")
    check_number(name, value, **bounds)


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise InputError unless the value is one of the choices. Commands check their flags."""
    if value not in choices:
        raise InputError(f"{name} is {value!r}, but must be one of {', '.join(map(str, choices))}.")


def check_numbers(settings: Any, *names: str, **bounds: Any) -> None:
    """`check_number` for some fields of a settings dataclass, all with the same bounds."""
    for name in names:
        check_number(name, getattr(settings, name), **bounds)


def check_needed(settings: Any, needed: str, *names: str) -> None:
    """Raise InputError for a field that is not at its default, and has no effect without a flag."""
    for name in names:
        if getattr(settings, name) != getattr(type(settings), name):
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} needs {needed}. Give both or neither.")


def _shown(value: float | None) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


MAX_SEED = 2**32 - 1
"""Seeds are 32 bits wide."""
