"""Add documents to an index, update and delete them.

Each block of some thousand documents is committed before the next one is embedded. A killed command
goes on with the first document that is missing; what it had reported is there.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.errors import InputError, check_number
from roformer_tf.inference.embed import TextEmbedder
from roformer_tf.readers.records import CHUNK, chunks
from roformer_tf.search.database import (
    Connection,
    check_index,
    explained,
    is_index,
    open_to_write,
    transaction,
)
from roformer_tf.search.document_files import Document
from roformer_tf.search.index import Manifest, read_manifest
from roformer_tf.search.keywords import document_terms
from roformer_tf.terminal import Progress
from roformer_tf.translation import Message

# Characters that mostly show what a document is about; `index.WEIGHTS` has their weight.
BEGINNING = 60


@dataclass(frozen=True)
class Added:
    """What became of documents."""

    new: int
    updated: int
    """Those that replaced one with the same id."""
    unchanged: int
    """Those that were there already, or came twice."""
    total: int
    """Documents of the index now."""


def add_documents(
    folder: str | Path,
    embedder: TextEmbedder,
    documents: Sequence[Document],
    *,
    passage_length: int | None = None,
    hybrid_weight: float | None = None,
    beginning_weight: float | None = None,
) -> Added:
    """Create an index of documents, or add them to the one that is there.

    A document with the id of another one replaces it; one that is there already is not embedded
    again. passage_length: tokens of a passage, by default the model's longest text; hybrid_weight,
    beginning_weight: stored for searches, and changed in an index that is there. Raises InputError
    for an index of another model or of other passages, and for a vector that is not finite: blocks
    that were committed before that stay.
    """
    folder = Path(folder)
    if not is_index(folder):  # raises for a folder that holds something else
        _plan(documents, {})  # before it is created, so that an error leaves no empty index
    longest = embedder.config.max_length
    check_number("passage_length", passage_length, at_least=3, at_most=longest)
    weights = {"hybrid_weight": hybrid_weight, "beginning_weight": beginning_weight}
    with explained(folder), closing(open_to_write(folder)) as connection:
        with transaction(connection):
            manifest = _manifest(connection, folder, embedder, passage_length, weights)
            # Read in the transaction that stores the settings. A document that another process adds
            # after it is written again by `write_block`, which replaces it.
            known = dict(connection.execute("SELECT identity, content FROM documents"))
        changed, added = _plan(documents, known)
        with Progress(desc=Message("index"), unit=Message("documents"), total=len(changed)) as bar:
            for block in chunks(changed, CHUNK, length=lambda document: len(document.text)):
                texts = [document.text for document in block]
                passages = embedder.passages(texts, manifest.passage_length)
                # After the model has run: other processes can write during the slow step.
                with transaction(connection):
                    write_block(connection, block, passages)
                bar.update(len(block))
        (total,) = connection.execute("SELECT count(*) FROM documents").fetchone()
    return replace(added, total=total)


def delete_documents(folder: str | Path, ids: Sequence[str]) -> list[str]:
    """Delete documents by their ids; return the ids that no document has."""
    folder = Path(folder)
    with explained(folder):
        check_index(folder)
        with closing(open_to_write(folder)) as connection, transaction(connection):
            read_manifest(connection, folder)
            missing = [x for x in dict.fromkeys(ids) if not _delete(connection, Document("", x))]
            # Only if something was deleted: a new revision makes all readers load the vectors
            # again.
            if len(missing) < len(set(ids)):
                connection.execute("UPDATE settings SET revision = revision + 1")
    return missing


def _manifest(
    connection: Connection,
    folder: Path,
    embedder: TextEmbedder,
    passage_length: int | None,
    weights: Mapping[str, Any],
) -> Manifest:
    """Store the settings of a new index, or check and change those of an existing one."""
    longest = embedder.config.max_length
    exists = connection.execute("SELECT 1 FROM settings").fetchone()
    if exists:
        manifest = read_manifest(connection, folder)
        manifest.check_model(folder, embedder)
        if passage_length not in (None, manifest.passage_length):
            raise InputError(
                f"{folder} has passages of {manifest.passage_length} tokens, not {passage_length}. "
                "Omit --passage-length, or make another index."
            )
    else:
        connection.execute("INSERT INTO settings VALUES ('', 0)")
        manifest = Manifest(
            fingerprint=embedder.fingerprint,
            model=embedder.source,
            pooling=embedder.config.pooling,
            max_length=longest,
            dimensions=embedder.dimensions,
            size=embedder.size,
            passage_length=passage_length or longest,
        )
    changed = {key: x for key, x in weights.items() if x is not None}
    manifest = replace(manifest, **changed)
    if changed or not exists:
        connection.execute("UPDATE settings SET manifest = ?", (json.dumps(asdict(manifest)),))
    return manifest


def _plan(documents: Sequence[Document], known: dict[bytes, bytes]) -> tuple[list[Document], Added]:
    """The documents that are to be written, and counts. Updates `known`.

    Raises InputError for an id that two different documents have.
    """
    changed, seen = list[Document](), set()
    new = 0
    for document in documents:
        identity, content = _identity(document), document.content
        # The content in the index, or of an earlier document of this call; None if there is none.
        before = known.get(identity)
        if identity in seen and before != content:
            raise InputError(
                f"two different documents have the id {document.id!r}. Give each an id of its "
                "own, or name another column by --id-column."
            )
        if before != content:
            changed.append(document)
            new += before is None
            known[identity] = content
        seen.add(identity)
    return changed, Added(new, len(changed) - new, len(documents) - len(changed), 0)


def _identity(document: Document) -> bytes:
    """What makes a document the same one: its id, or all of it where it has none."""
    return document.content if document.id is None else Document("", document.id).content


def write_block(
    connection: Connection, documents: Sequence[Document], passages: Sequence[np.ndarray]
) -> None:
    """Write documents and the vectors of their passages, in place of those with the same ids."""
    for document, vectors in zip(documents, passages, strict=True):
        name, text = document.id, document.text
        # Replaced, not updated: the new text has a new number, and a hit on the old one finds
        # nothing.
        _delete(connection, document)
        values = (name, text, document.metadata_json, _identity(document), document.content)
        number = connection.execute(
            "INSERT INTO documents (id, text, metadata, identity, content) VALUES (?, ?, ?, ?, ?)",
            values,
        ).lastrowid
        content = vectors.astype("<f4").tobytes()
        connection.execute("INSERT INTO vectors VALUES (?, ?)", (number, content))
        # The whole text contains the beginning, too: `index.WEIGHTS` takes that into account.
        words = (" ".join(document_terms(part)) for part in (text[:BEGINNING], text))
        connection.execute(
            "INSERT INTO words (rowid, beginning, text) VALUES (?, ?, ?)", (number, *words)
        )
    fields = {(name,) for document in documents for name in document.metadata}
    connection.executemany("INSERT OR IGNORE INTO fields VALUES (?)", fields)
    connection.execute("UPDATE settings SET revision = revision + 1")


def _delete(connection: Connection, document: Document) -> bool:
    """Delete a document with all that belongs to it; return whether it was there."""
    row = connection.execute(
        "SELECT number FROM documents WHERE identity = ?", (_identity(document),)
    ).fetchone()
    if row is None:
        return False
    connection.execute("DELETE FROM words WHERE rowid = ?", row)
    connection.execute("DELETE FROM vectors WHERE number = ?", row)
    connection.execute("DELETE FROM documents WHERE number = ?", row)
    return True
