"""What may come out of a file, for all readers: small files may be large inside.

A line or a cell has at most `LONGEST` bytes, and a file unpacks to at most `MAX_RATIO` times its
size. So a hostile file fills neither memory nor the disk.
"""

LONGEST = 1 << 24
"""Bytes of a line, or of the cells of a row: more than five million Chinese characters."""
MAX_RATIO = 100
"""Times its size that a file may unpack to, from `UNSUSPICIOUS` on. Usual texts: 3 to 20."""
UNSUSPICIOUS = 1 << 26
"""Bytes that any file may unpack to."""


class LimitError(Exception):
    """A file is beyond the budget; the text says how, and continues the file's name."""


class Budget:
    """Counts what comes out of one file."""

    def __init__(self, packed: int) -> None:
        """`packed`: bytes of the file."""
        self.packed = packed
        self._unpacked = 0

    def take(self, size: int) -> None:
        """Count so many bytes more. Raises LimitError where they are too many."""
        self._unpacked += size
        self.check(self._unpacked)

    def check(self, unpacked: int) -> None:
        """Raise LimitError if a file of this size may not unpack to so many bytes."""
        if unpacked > max(UNSUSPICIOUS, MAX_RATIO * self.packed):
            ratio = max(UNSUSPICIOUS / max(1, self.packed), MAX_RATIO)
            raise LimitError(
                f"has {self.packed / 1e6:,.2f} MB, but unpacks to more than {ratio:,.0f} times as "
                "much, which is not read. If you trust it, write it uncompressed, as .jsonl or .txt"
            )


def check_row(number: int, size: int) -> None:
    """Raise LimitError for a row whose cells are too large."""
    if size > LONGEST:
        raise LimitError(f"has more than {LONGEST >> 20} MiB in row {number:,}. Split its text")


def too_long(number: int) -> LimitError:
    """Say that a line is too long."""
    return LimitError(
        f"has more than {LONGEST >> 20} MiB in line {number:,}. Put each text in a line of its own"
    )
