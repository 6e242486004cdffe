"""What Keras and TensorFlow import wherever it is installed, though no command uses it by them.

They would be scikit-learn's estimators, show galleries of pictures, and convert JAX's functions for
TFLite: two fifths of the time that it takes to load them. A program that imports this package may
want just that, so only a command leaves it out.
"""

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
