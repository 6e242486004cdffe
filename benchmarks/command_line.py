"""Command line of a benchmark: one flag for each field of its settings dataclass."""

import sys
from typing import Any

from roformer_tf.errors import InputError
from roformer_tf.usage import from_words


def settings_of(kind: Any, first: str = "") -> Any:
    """Return the settings given in `sys.argv`. Wrong flags end the process with code 2.

    Words before the first flag are values of the flag `first`.
    """
    spec = sys.modules["__main__"].__spec__
    program = (
        f"python -m {spec.name.removesuffix('.__main__')}" if spec else f"python {sys.argv[0]}"
    )
    words = sys.argv[1:]
    if first and words and not words[0].startswith("-"):
        words = [f"--{first}", *words]
    try:
        return from_words(kind, words, program)
    except InputError as error:
        print(f"{program}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
