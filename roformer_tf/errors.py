"""Errors with which a command ends without a traceback: the message is for the user."""


class InputError(ValueError):
    """Bad input from the user: the message says what was wrong, where, and what to do.

    Commands print the message on stderr and exit with code 2; any other exception is our
    mistake and keeps its traceback.
    """


class DivergedError(RuntimeError):
    """Training gave NaN or an exploding loss: commands print the message and exit with code 1."""


class TerminatedError(BaseException):
    """Told to end (SIGTERM), with all saved: commands print the message and exit with code 75.

    That is EX_TEMPFAIL of sysexits.h, "try again later", upon which schedulers requeue a job. As
    with KeyboardInterrupt, nothing on the way should take it for an error and go on.
    """


TRY_AGAIN = 75
"""Exit code after a TerminatedError."""


class DifferenceError(RuntimeError):
    """Two things that should be equal are not: commands print the message and exit with code 1."""
