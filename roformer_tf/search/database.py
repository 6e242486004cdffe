"""The SQLite database of a search index: its tables, connections to it, and its errors.

INDEX/index.sqlite has documents, metadata, vectors and words. It is in write-ahead mode: a killed
process loses nothing that was committed, and others search while one adds documents. This mode
needs shared memory, which network file systems lack.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from roformer_tf.errors import DamagedError

# On Linux, TensorFlow exports a SQLite of its own to all libraries that are loaded after it, one
# without full-text search. With this flag Python's module prefers the SQLite that it came with.
_FLAGS = sys.getdlopenflags() if hasattr(sys, "getdlopenflags") else 0
if hasattr(os, "RTLD_DEEPBIND"):
    sys.setdlopenflags(_FLAGS | os.RTLD_DEEPBIND)
try:
    import sqlite3 as sqlite3
finally:
    if hasattr(os, "RTLD_DEEPBIND"):
        sys.setdlopenflags(_FLAGS)
Connection = sqlite3.Connection

FILE = "index.sqlite"
# Version of the tables.
VERSION = 4
# Seconds to wait while another process writes; it commits every few thousand documents.
PATIENCE = 60
# Bytes per page: a vector of 768 numbers has 3,072, of which a page of 4,096 would hold one.
PAGE = 16_384

SCHEMA = (
    # The model, how texts are embedded, and a counter of changes to documents
    "CREATE TABLE IF NOT EXISTS settings (manifest TEXT NOT NULL, revision INTEGER NOT NULL)",
    # AUTOINCREMENT: the number of a deleted document is never used again, so that a hit is never
    # read as another document. `identity` is a hash of the id, or of all columns where a document
    # has none; `content` is a hash of all columns
    """CREATE TABLE IF NOT EXISTS documents (
        number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, text TEXT NOT NULL,
        metadata TEXT NOT NULL, identity BLOB NOT NULL UNIQUE, content BLOB NOT NULL)""",
    # All passages of a document, (passages, size) float32, in a table of their own: filters by
    # metadata do not have to read them
    "CREATE TABLE IF NOT EXISTS vectors (number INTEGER PRIMARY KEY, passages BLOB NOT NULL)",
    # Our own words, separated by spaces. Of ASCII, FTS5 accepts only letters and digits in a word,
    # unless other characters are listed; these occur in ours
    """CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(
        beginning, text, tokenize="ascii tokenchars '+#&._%-*^='")""",
    "CREATE VIRTUAL TABLE IF NOT EXISTS frequencies USING fts5vocab(words, row)",
    # Names of the metadata that any document has had, for messages
    "CREATE TABLE IF NOT EXISTS fields (name TEXT PRIMARY KEY) WITHOUT ROWID",
)


# What to do about an error of SQLite, by words of its message.
ADVICE = {
    "locked": "Another process is writing; try again when it has finished.",
    "readonly": "Check the permissions of the folder.",
    "unable to open": "Check the permissions of the folder.",
    "no such module": "The SQLite of this process has no full-text search (FTS5). Import sqlite3 "
    "before TensorFlow, or use a Python of python.org, conda or your system's packages.",
}
DAMAGED = "If it is damaged, remove it, and make the index again from its documents."


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index that was created to the end, not one of a killed process.

    Raises DamagedError if it holds something else.
    """
    if not folder.exists():
        return False
    # One listing: between two looks another process may create the index.
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
    if names and FILE not in names:
        raise DamagedError(f"{folder} exists, and is not an index. Choose another --index.")
    if FILE not in names:
        return False
    with explained(folder), closing(open_to_read(folder)) as connection:
        tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'settings'")
        return bool(tables.fetchone() and connection.execute("SELECT 1 FROM settings").fetchone())


def check_index(folder: Path) -> None:
    """Raise DamagedError for a folder without an index, which is to be searched."""
    if not is_index(folder):
        raise DamagedError(
            f"{folder} is no index. Make one: `roformer-tf search --model M --documents F --index "
            f"{folder}`."
        )


def open_to_write(folder: Path) -> Connection:
    """Open the database of an index, or create it without settings and documents."""
    folder.mkdir(parents=True, exist_ok=True)
    # isolation_level None: Python's module begins no transactions, `transaction` does.
    connection = sqlite3.connect(folder / FILE, timeout=PATIENCE, isolation_level=None)
    try:
        # First, since the size of pages is fixed from write-ahead mode and the first table on.
        connection.execute(f"PRAGMA page_size = {PAGE}")
        # SQLite does not wait here for another process that is just setting the mode, or using the
        # new database without it. The file keeps the mode, and the next process sets it if not.
        with suppress(sqlite3.OperationalError):
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk
        with transaction(connection):
            for statement in SCHEMA:
                connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def open_to_read(folder: Path) -> Connection:
    """Open the database of an index for queries only; where nothing can be written, too."""
    try:
        # "rw", not "ro": a connection of the latter kind cannot remove SQLite's files when it
        # closes
        return _opened(folder, "mode=rw")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise
        # Without locks and without write-ahead files, which a read-only folder does not allow.
        return _opened(folder, "mode=ro&immutable=1")


def _opened(folder: Path, mode: str) -> Connection:
    connection = sqlite3.connect(
        f"{(folder / FILE).resolve().as_uri()}?{mode}",
        uri=True,
        timeout=PATIENCE,
        isolation_level=None,
        check_same_thread=False,  # `SearchIndex` has a lock
    )
    try:
        # SQLite reads nothing before a query: a damaged file would be noticed only at the first
        # search.
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """Do all of it or nothing. Kind DEFERRED: read one state, whatever others commit meanwhile."""
    with connection:  # commits, or rolls back
        # IMMEDIATE takes the lock for writing now: a transaction that reads first and then writes
        # would fail if another process has written in between.
        connection.execute(f"BEGIN {kind}")
        yield


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Raise what SQLite reports as DamagedError, or as OSError for a full or failing disk."""
    try:
        yield
    except sqlite3.Error as error:
        reason = str(error)
        for text, number in (("full", errno.ENOSPC), ("disk I/O error", errno.EIO)):
            if text in reason:
                raise OSError(number, os.strerror(number), str(folder / FILE)) from None
        advice = next((x for text, x in ADVICE.items() if text in reason), DAMAGED)
        raise DamagedError(f"{folder} cannot be used: {reason}. {advice}") from None
