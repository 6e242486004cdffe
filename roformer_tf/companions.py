"""What takes time where Keras and TensorFlow are imported, and nobody needs.

Companions are what they import wherever it is installed, though no command uses it by them. They
would be scikit-learn's estimators, show galleries of pictures, and convert JAX's functions for
TFLite: two fifths of the time that it takes to load them. A program that imports this package may
want just that, so only a command leaves it out.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

COMPANIONS = ("sklearn", "matplotlib", "jax")
_left_out: set[str] = set()


def leave_out_companions(backend: str) -> None:
    """From now on, have Keras loaded without those that its backend does not need."""
    _left_out.update(name for name in COMPANIONS if name != backend)


@contextmanager
def without_companions() -> Iterator[None]:
    """Import without what is to be left out; afterwards whoever needs it imports it as ever.

    What is there already stays.
    """
    hidden = [name for name in _left_out if name not in sys.modules]
    modules: dict[str, ModuleType | None] = cast(Any, sys.modules)
    modules.update(dict.fromkeys(hidden))  # None: to import it raises ModuleNotFoundError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without the collector of garbage, which would begin a thousand times.

    Some of these times it looks through all that is there by then, in the end a million objects
    that stay: a fifth of the time that an import takes.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
