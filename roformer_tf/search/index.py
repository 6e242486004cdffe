"""An index of documents that is open for searching.

by vectors   the cosine of a query and a document: that of its nearest passage, or with a weight
             of beginnings b, (nearest + b · first) / (1 + b)
hybrid       words and vectors: BM25, divided by the query's largest, plus the cosine times a
             weight
"""

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.errors import DamagedError
from roformer_tf.search.database import (
    VERSION,
    Connection,
    check_index,
    explained,
    open_to_read,
    transaction,
)
from roformer_tf.search.filters import parse_filter
from roformer_tf.search.keywords import document_terms, hybrid_scores
from roformer_tf.top_k import top_k

if TYPE_CHECKING:
    from roformer_tf.inference.embed import TextEmbedder, VectorSettings

# How often the words of a document's beginning count, and BM25's k1. Measured in docs/LOG.md.
BEGINNING_TIMES, K1, FTS5_K1 = 3, 2.0, 1.2
# Of the columns `beginning` and `text`; the latter contains the beginning as well. FTS5 has a fixed
# k1 of 1.2, but tf / (tf + k1) depends only on their ratio: a smaller tf acts as a larger k1.
WEIGHTS = ((BEGINNING_TIMES - 1) * FTS5_K1 / K1, FTS5_K1 / K1)
# The rarest words of a query, which are looked up: FTS5's time grows with their square.
RAREST = 64


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What the vectors of an index were made with."""

    fingerprint: str
    """Of the model."""
    model: str
    """Its name, for messages."""
    pooling: Pooling
    max_length: int
    dimensions: int | None
    size: int
    """Numbers per vector."""
    passage_length: int
    """Tokens above which a document has several vectors."""
    hybrid_weight: float = 1.0
    """Weight of a cosine relative to the words."""
    beginning_weight: float = 0.0
    """Weight of a document's first passage relative to its nearest one."""
    version: int = VERSION

    def settings(self, wanted: "VectorSettings") -> "VectorSettings":
        """The settings of vectors, those of the index where the user gives none."""
        return replace(
            wanted,
            pooling=wanted.pooling or self.pooling,
            dimensions=wanted.dimensions or self.dimensions,
            max_length=wanted.max_length or self.max_length,
        )

    def check_model(self, folder: Path, embedder: "TextEmbedder") -> None:
        """Raise DamagedError unless a model gives the vectors of the index in this folder."""
        if embedder.fingerprint == self.fingerprint:
            return
        cut = f", cut to {self.dimensions}" if self.dimensions else ""
        raise DamagedError(
            f"{folder} was made with another model, or other settings: {self.model}, pooling "
            f"{self.pooling}{cut}, texts of at most {self.max_length} tokens. {embedder.source} "
            "gives other vectors. Give that model as it was then, or make an index with this one "
            "in another folder."
        )


class Hit(NamedTuple):
    """A document that matches a query, without its text: many texts may not fit into memory."""

    number: int
    """Its number in the database."""
    score: float
    """The cosine; of a hybrid search the sum; of a reranked document the combined score."""


class Result(NamedTuple):
    """A document that matches a query."""

    number: int
    score: float
    """Both as of `Hit`."""
    text: str
    id: str | None = None


class Vectors(NamedTuple):
    """The vectors of all documents."""

    numbers: np.ndarray
    """(documents,) int64, ascending."""
    starts: np.ndarray
    """(documents,) int64: the first row of each document's passages."""
    matrix: np.ndarray
    """(rows, D) float32 of length 1."""

    def cosines(self, query: np.ndarray, beginning_weight: float) -> np.ndarray:
        """How near each document is to a query's vector (D,): (documents,) float32."""
        if not len(self.numbers):
            return np.zeros(0, np.float32)
        # (rows,): the cosine of each passage. `reduceat` takes the maximum of the rows from each
        # start to the next: starts [0, 2, 3] → rows 0 and 1, row 2, row 3 to the last.
        of_rows = self.matrix @ query
        nearest, weight = np.maximum.reduceat(of_rows, self.starts), np.float32(beginning_weight)
        return (nearest + weight * of_rows[self.starts]) / (1 + weight) if weight else nearest


class SearchIndex:
    """An index that is open; threads may share it, one at a time searches.

    A search sees what was committed before it, such as documents that another process has just
    added. Raises DamagedError for a folder that holds no index, or a damaged one.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._loaded: tuple[int, Vectors] | None = None
        # Reentrant: `search` holds it while `_values` takes it again.
        self._lock = threading.RLock()
        with explained(self.folder):
            check_index(self.folder)
            self._connection = open_to_read(self.folder)
            self.manifest = read_manifest(self._connection, self.folder)

    def __len__(self) -> int:
        return int(self._values("SELECT count(*) FROM documents")[0])

    def __enter__(self) -> "SearchIndex":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()  # Windows removes no file that is open

    @property
    def has_ids(self) -> bool:
        """Whether any document has an id."""
        return bool(self._values("SELECT 1 FROM documents WHERE id IS NOT NULL LIMIT 1"))

    @property
    def fields(self) -> list[str]:
        """Names of the metadata that any document has had."""
        return self._values("SELECT name FROM fields")

    def _values(self, query: str, parameters: Sequence[str | float] = ()) -> list[Any]:
        """The only column of a query."""
        with explained(self.folder), self._lock:
            return [value for (value,) in self._connection.execute(query, parameters)]

    def search(
        self,
        queries: Sequence[str],
        vectors: np.ndarray,
        top: int,
        *,
        hybrid: bool = False,
        weight: float | None = None,
        where: str | None = None,
    ) -> list[list[Hit]]:
        """The best documents of each query, best first; `read` gives their texts.

        queries and their vectors (Q, D) float32 of length 1; hybrid: by words, too; weight: of the
        cosine in a hybrid search, unless the index has one; where: a condition on metadata, see
        `filters`.
        """
        weight = self.manifest.hybrid_weight if weight is None else weight
        hits = []
        # One state of the database: vectors and words of the same documents.
        with explained(self.folder), self._lock, transaction(self._connection, "DEFERRED"):
            documents = self._vectors()
            # (documents,): which of them satisfy the condition. All cosines are computed, then
            # selected.
            kept = np.ones(len(documents.numbers), bool)
            if where is not None:
                condition, values = parse_filter(where, self.fields)
                allowed = self._values(f"SELECT number FROM documents WHERE {condition}", values)
                kept = np.isin(documents.numbers, allowed)
            numbers = documents.numbers[kept]
            for query, vector in zip(queries, vectors, strict=True):
                scores = documents.cosines(vector, self.manifest.beginning_weight)[kept]
                if hybrid:
                    words = word_scores(self._connection, query, numbers)
                    scores = hybrid_scores(words, scores, weight)
                hits.append([Hit(int(numbers[i]), float(scores[i])) for i in top_k(scores, top)])
        return hits

    def read(self, hits: Iterable[Hit]) -> list[Result]:
        """The texts of documents; without those that were deleted after the search."""
        query = "SELECT text, id FROM documents WHERE number = ?"
        with explained(self.folder), self._lock:
            rows = [(x, self._connection.execute(query, (x.number,)).fetchone()) for x in hits]
        return [Result(*hit, *row) for hit, row in rows if row is not None]

    def _vectors(self) -> Vectors:
        """The vectors of all documents, kept in memory until documents change."""
        # Each change of documents increases it, in the same transaction.
        (revision,) = self._values("SELECT revision FROM settings")
        if self._loaded is None or self._loaded[0] != revision:
            numbers, starts, content = list[int](), list[int](), bytearray()
            query = "SELECT number, passages FROM vectors ORDER BY number"
            for number, passages in self._connection.execute(query):
                numbers.append(number)
                # Bytes so far → rows so far, of 4-byte numbers.
                starts.append(len(content) // (4 * self.manifest.size))
                content += passages
            matrix = np.frombuffer(content, "<f4").reshape(-1, self.manifest.size)
            vectors = Vectors(np.array(numbers, np.int64), np.array(starts, np.int64), matrix)
            self._loaded = (revision, vectors)
        return self._loaded[1]


def read_manifest(connection: Connection, folder: Path) -> Manifest:
    """The settings of an index. Raises DamagedError for those of another version."""
    (text,) = connection.execute("SELECT manifest FROM settings").fetchone()
    values = json.loads(text)
    if values.get("version") != VERSION:
        raise DamagedError(
            f"{folder} was made by another version of roformer-tf. Remove it, and make the index "
            "again from its documents."
        )
    return Manifest(**values)


def word_scores(connection: Connection, query: str, numbers: np.ndarray) -> np.ndarray:
    """BM25 of the documents with these ascending numbers: (documents,) float32.

    It is 0 for a document without a word of the query.
    """
    # A word that repeats stays in the list: FTS5 adds up its phrases, so it counts twice.
    terms = document_terms(query)
    count = "SELECT doc FROM frequencies WHERE term = ?"
    rows = {term: connection.execute(count, (term,)).fetchone() for term in set(terms)}
    frequency = {term: row[0] for term, row in rows.items() if row is not None}
    # Rarest first, so that RAREST keeps the most specific ones.
    known = sorted((term for term in terms if term in frequency), key=frequency.__getitem__)
    # FTS5 gives words of more than half of the documents next to no weight. Without them, it does
    # not have to go through all these documents.
    (documents,) = connection.execute("SELECT count(*) FROM documents").fetchone()
    rare = [term for term in known if 2 * frequency[term] <= documents] or known
    scores = np.zeros(len(numbers), np.float32)
    if not rare:  # FTS5 refuses an empty expression
        return scores
    # Terms as phrases of an FTS5 query.
    quoted = ['"' + term.replace('"', '""') + '"' for term in rare[:RAREST]]
    cursor = connection.execute(
        "SELECT rowid, -bm25(words, ?, ?) FROM words WHERE words MATCH ?",
        (*WEIGHTS, " OR ".join(quoted)),
    )
    # (matches, 2) float64, in which numbers of documents are exact; (0, 2) without matches. FTS5's
    # bm25 is negative, the best the smallest: hence the sign in the query.
    matches = np.array(cursor.fetchall()).reshape(-1, 2)
    rowids = matches[:, 0].astype(np.int64)
    allowed = np.isin(rowids, numbers)
    # The position of each matching document among `numbers`, which are ascending.
    scores[np.searchsorted(numbers, rowids[allowed])] = matches[allowed, 1]
    return scores
