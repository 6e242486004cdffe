"""A TSV that is written whole or not at all, or goes to the standard output."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from roformer_tf.files import file_beside

STANDARD = "-"


@contextmanager
def opened_tsv(output: str) -> Iterator[TextIO]:
    """A text file in UTF-8, "-" being the standard output.

    A lone surrogate, which JSON may hold, becomes its escape.
    """
    if output == STANDARD:
        with suppress(BrokenPipeError):  # as by `| head`: who reads has seen enough
            yield sys.stdout
        return
    with (
        file_beside(output) as beside,
        beside.open("w", encoding="utf-8", errors="backslashreplace", newline="") as out,
    ):
        yield out
