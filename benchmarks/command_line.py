"""The command line of a benchmark: the fields of its settings dataclass are the flags."""

import sys
from typing import Any

from roformer_tf.errors import InputError
from roformer_tf.usage import from_words


def settings_of(kind: Any, first: str = "") -> Any:
    """The settings that `sys.argv` asks for. Wrong flags end the process with code 2.

    The flag `first` may be omitted: words at the beginning are its values.
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
