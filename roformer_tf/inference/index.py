"""A folder of documents and their vectors, to be searched.

index.json       what made the vectors (its fingerprint), how many there are, of how many numbers
documents.arrow  texts and, if they have any, names, mapped into memory
vectors.npy      (rows, D) float32 of length 1, mapped into memory
starts.npy       (documents + 1,) int64: the first row of each document. A long one has several, a
                 row for each of its passages, and is as near to a query as the nearest of them
words/           BM25's figures, where the index was made with --hybrid
near.faiss       a graph of neighbours, where there are too many vectors to multiply them all

A folder is written beside and renamed: it is the old one or the new one, whole.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.errors import InputError
from roformer_tf.files import folder_beside, locked, parse_json, write_text
from roformer_tf.inference.approximate import LARGE, Neighbours
from roformer_tf.inference.embed import TextEmbedder
from roformer_tf.inference.lexical import DocumentBM25
from roformer_tf.inference.nearest import NONE, Found, best_of, exact
from roformer_tf.inference.text_files import Document
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.terminal import Progress

MANIFEST, DOCUMENTS, VECTORS, STARTS = "index.json", "documents.arrow", "vectors.npy", "starts.npy"
WORDS, NEAR = "words", "near.faiss"
VERSION = 1
COPIED = 65_536
"""Rows that are read at a time where all are read."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What stands in index.json."""

    fingerprint: str
    """Of the model that made the vectors."""
    model: str
    """What it was called, for messages."""
    pooling: Pooling
    max_length: int
    dimensions: int | None
    size: int
    """Numbers of a vector."""
    passage_length: int
    """Tokens above which a document has several rows."""
    hybrid_weight: float | None = None
    """What a cosine weighs beside the words, chosen for these documents; None for ranks alone."""
    beginning_weight: float = 0.0
    """What the cosine of a document's first passage weighs beside that of its nearest."""
    documents: int = 0
    rows: int = 0
    version: int = VERSION


class Added(NamedTuple):
    """What became of documents that were given."""

    new: int
    known: int
    """Those that were there already, or came twice."""
    before: int
    """Those that were there."""
    graph: str = ""
    """What a graph of their vectors finds, in words, where one was made."""


class SearchIndex:
    """An index that is open. Raises InputError for a folder that holds none, or a damaged one."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.manifest = _read_manifest(self.folder)
        try:
            self.vectors: np.ndarray = np.load(self.folder / VECTORS, mmap_mode="r")
            self.starts: np.ndarray = np.load(self.folder / STARTS)
            self._documents = _open_documents(self.folder / DOCUMENTS)
        except (OSError, EOFError, ValueError) as error:
            raise _damaged(self.folder, str(error)) from None
        count, rows = self.manifest.documents, self.manifest.rows
        whole = self.vectors.shape == (rows, self.manifest.size) and self.starts[-1:] == [rows]
        if not whole or {len(self._documents), len(self.starts) - 1} != {count}:
            raise _damaged(self.folder, "its files do not belong together")

    def __len__(self) -> int:
        return self.manifest.documents

    def document(self, place: int) -> Document:
        """The document of a number."""
        (row,) = self._documents.slice(place, 1).to_pylist()
        return Document(row["text"], row["id"])

    def documents(self) -> Iterator[Document]:
        """All of them, in their order."""
        for batch in self._documents.to_batches():
            yield from (Document(row["text"], row["id"]) for row in batch.to_pylist())

    def batches(self) -> Iterator[Any]:
        """All of them, as they are written."""
        yield from self._documents.to_batches()

    @property
    def has_names(self) -> bool:
        """Whether its documents have names."""
        return self._documents["id"].null_count < len(self)

    def check_model(self, embedder: TextEmbedder) -> None:
        """Raise InputError unless the model gives the vectors that the index holds."""
        if embedder.fingerprint != self.manifest.fingerprint:
            raise InputError(
                f"{self.folder} was made with another model, or other settings: {_made(self)}. "
                f"{embedder.source} gives other vectors. Give that model, or make an index with "
                "this one in another folder."
            )

    def nearest(self, queries: np.ndarray, top: int) -> Found:
        """The documents nearest to each query's vector, (Q, D) of length 1; scores are cosines."""
        rows = self.manifest.rows
        if rows == len(self):
            return self._nearest_rows(queries, top)
        wanted = 4 * top
        while True:
            found = self._nearest_rows(queries, min(wanted, rows))
            best = self._documents_of(queries, found, top)
            # A document that is left out has no passage nearer than the last row that was found,
            # its first one included: its score is no larger than that row's.
            least = best.scores[:, min(top, len(self)) - 1]
            enough = (least > -np.inf) & (least >= found.scores[:, -1])
            if wanted >= rows or enough.all():
                return best
            wanted *= 4

    def cosines(self, query: np.ndarray, places: np.ndarray) -> np.ndarray:
        """How near some documents are to a query's vector (D,): (places,) float32.

        The cosine of the nearest passage; with a weight of beginnings b, which say what a document
        is about, (nearest + b · first) / (1 + b).
        """
        first, last = self.starts[places], self.starts[places + 1]
        counts = last - first
        begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
        rows = np.arange(counts.sum()) + np.repeat(first - begins, counts)
        of_rows = self.vectors[rows] @ query
        nearest, weight = np.maximum.reduceat(of_rows, begins), self.manifest.beginning_weight
        return (nearest + weight * of_rows[begins]) / (1 + weight) if weight else nearest

    @cached_property
    def words(self) -> DocumentBM25:
        """BM25 over its documents: as it is kept, or made now."""
        if (self.folder / WORDS).is_dir():
            return DocumentBM25.load(self.folder / WORDS, len(self))
        return DocumentBM25(document.text for document in self.documents())

    def _nearest_rows(self, queries: np.ndarray, top: int) -> Found:
        if self._neighbours is not None:
            return self._neighbours.search(queries, top)
        return exact(queries, self.vectors, top)

    @cached_property
    def _neighbours(self) -> Neighbours | None:
        file = self.folder / NEAR
        return Neighbours.load(file) if file.exists() else None

    def _documents_of(self, queries: np.ndarray, found: Found, top: int) -> Found:
        """The documents of the best rows (Q, rows): each where its best row stands.

        Where beginnings count, it stands where that row and the document's first put it.
        """
        owners = np.searchsorted(self.starts, found.places, "right") - 1
        if self.manifest.beginning_weight:
            documents = [np.unique(row[row >= 0]) for row in owners]
            rows = [
                best_of(self.cosines(query, places)[None], top).among(places)
                for query, places in zip(queries, documents, strict=True)
            ]
            return Found.joined(rows, top)
        places = np.full((len(owners), top), NONE, np.int64)
        scores = np.full((len(owners), top), -np.inf, np.float32)
        for query, row in enumerate(owners):
            there = found.places[query] != NONE
            _, first = np.unique(row[there], return_index=True)
            kept = np.sort(first)[:top]
            places[query, : len(kept)] = row[there][kept]
            scores[query, : len(kept)] = found.scores[query][there][kept]
        return Found(places, scores)


def is_index(folder: str | Path) -> bool:
    """Whether there is one. Raises InputError for something else under its name."""
    folder = Path(folder)
    if (folder / MANIFEST).is_file():
        return True
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there, and is no index. Name another --index.")
    return False


def write_index(
    folder: str | Path,
    embedder: TextEmbedder,
    documents: Iterable[Document],
    *,
    passage_length: int | None = None,
    hybrid_weight: float | None = None,
    beginning_weight: float | None = None,
    with_words: bool = False,
    batch_size: int = BATCH_SIZE,
) -> Added:
    """Make an index of documents, or add them to the one that is there.

    What is there already, text and name, is not added again. passage_length: tokens of a passage,
    the model's longest text unless given; hybrid_weight, beginning_weight: kept for the searches
    that come, and changed in an index that is there.
    with_words: keep BM25's figures too. Raises InputError, with the folder as it was, for an index
    of another model or of other passages, for something else in its place, and for a vector that
    is none; and while another command writes it.
    """
    folder = Path(folder)
    with locked(folder.with_name(f".{folder.name}.lock"), guarded=folder, flag="--index"):
        weights = {"hybrid_weight": hybrid_weight, "beginning_weight": beginning_weight}
        given = {name: weight for name, weight in weights.items() if weight is not None}
        return _write_index(
            folder, embedder, documents, passage_length, given, with_words, batch_size
        )


def _write_index(
    folder: Path,
    embedder: TextEmbedder,
    documents: Iterable[Document],
    passage_length: int | None,
    weights: Mapping[str, float],
    with_words: bool,
    batch_size: int,
) -> Added:
    old = SearchIndex(folder) if is_index(folder) else None
    manifest = _new_manifest(embedder, passage_length) if old is None else old.manifest
    if old is not None:
        old.check_model(embedder)
        if passage_length not in (None, manifest.passage_length):
            raise InputError(
                f"{folder} has passages of {manifest.passage_length} tokens, not {passage_length}. "
                "Leave --passage-length out, or make another index."
            )
    manifest = Manifest(**{**asdict(manifest), **weights})
    with_words = with_words or (folder / WORDS).is_dir()
    known = set() if old is None else {document.key for document in old.documents()}
    fresh = np.array([_is_fresh(document, known) for document in documents], bool)
    added = Added(int(fresh.sum()), int((~fresh).sum()), manifest.documents)
    unchanged = old is not None and manifest == old.manifest
    if unchanged and not added.new and with_words == (folder / WORDS).is_dir():
        return added
    with folder_beside(folder) as beside:
        rows = _write_rows(beside, old, embedder, documents, fresh, manifest, batch_size)
        manifest = replace(manifest, documents=added.before + added.new, rows=rows)
        if rows * manifest.size >= LARGE:
            said = _write_graph(beside, folder / NEAR if old is not None else None)
            added = added._replace(graph=said)
        write_text(beside / MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")
        if with_words:
            SearchIndex(beside).words.save(beside / WORDS)
        old = None  # which Windows would not rename while it is open
    return added


def _new_manifest(embedder: TextEmbedder, passage_length: int | None) -> Manifest:
    config = embedder.config
    if passage_length is not None and not 3 <= passage_length <= config.max_length:
        raise InputError(
            f"passage_length is {passage_length}, but must be at least 3 and at most what the "
            f"model reads of a text, {config.max_length}."
        )
    return Manifest(
        fingerprint=embedder.fingerprint,
        model=embedder.source,
        pooling=config.pooling,
        max_length=config.max_length,
        dimensions=embedder.model.dimensions,
        size=embedder.size,
        passage_length=passage_length or config.max_length,
    )


def _is_fresh(document: Document, known: set[bytes]) -> bool:
    """Whether a document is new among those that are known, to which it now belongs."""
    before = len(known)
    known.add(document.key)
    return len(known) > before


def _write_rows(
    folder: Path,
    old: SearchIndex | None,
    embedder: TextEmbedder,
    documents: Iterable[Document],
    fresh: np.ndarray,
    manifest: Manifest,
    batch_size: int,
) -> int:
    """Write documents, starts and vectors: those of before, and the new ones. → rows."""
    counts = [] if old is None else np.diff(old.starts).tolist()
    new = (one for one, is_new in zip(documents, fresh, strict=True) if is_new)
    taken: list[Document] = []

    def texts() -> Iterator[str]:
        for document in new:
            taken.append(document)
            yield document.text

    with (
        _document_file(folder / DOCUMENTS) as written,
        (folder / VECTORS).open("wb") as file,
        Progress(desc="index", unit=" documents", total=int(fresh.sum())) as bar,
    ):
        matrix = MatrixFile(file, manifest.size)
        if old is not None:
            for batch in old.batches():
                written.write_batch(batch)
            for start in range(0, manifest.rows, COPIED):
                matrix.write((), old.vectors[start : start + COPIED])
        for block, each in embedder.passages(texts(), manifest.passage_length, batch_size):
            matrix.write(block.texts, block.vectors)
            done, taken[:] = taken[: len(each)], taken[len(each) :]
            written.write_batch(_as_batch(done))
            counts += each
            bar.update(len(each))
        matrix.finish()
    np.save(folder / STARTS, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))
    return matrix.rows


def _write_graph(folder: Path, before: Path | None) -> str:
    """Write a graph of all vectors, from the one of before if there is one. → what it finds."""
    vectors = np.load(folder / VECTORS, mmap_mode="r")
    has_some = before is not None and before.exists()
    graph = Neighbours.load(before) if before and has_some else Neighbours(vectors.shape[1])
    first = len(graph)
    with Progress(desc="neighbours", unit=" vectors", total=len(vectors) - first) as bar:
        for start in range(first, len(vectors), COPIED):
            block = np.asarray(vectors[start : start + COPIED])
            graph.add([block])
            bar.update(len(block))
    share = graph.calibrate(vectors)
    graph.save(folder / NEAR)
    return f"finds {share:.1%} of the nearest ten, by looking at {graph.depth:,} of {len(graph):,}"


def _read_manifest(folder: Path) -> Manifest:
    """What made an index. Raises InputError where there is none."""
    if not (folder / MANIFEST).is_file():
        raise InputError(
            f"{folder} is no index. Make one: `roformer-tf search --model M --documents F --index "
            f"{folder}`."
        )
    try:
        values = parse_json((folder / MANIFEST).read_text("utf-8"))
        if values["version"] != VERSION:
            raise InputError(
                f"{folder} was made by another version of roformer-tf: make the index anew."
            )
        return Manifest(**values)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise _damaged(folder, f"{MANIFEST} cannot be read") from None


def _damaged(folder: Path, reason: str) -> InputError:
    return InputError(f"{folder} is damaged: {reason}. Remove it, and make the index anew.")


def _made(index: SearchIndex) -> str:
    """What an index was made with, in words."""
    made = index.manifest
    cut = f", cut to {made.dimensions}" if made.dimensions else ""
    return f"{made.model}, pooling {made.pooling}{cut}, texts of at most {made.max_length} tokens"


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema([("text", pa.large_string()), ("id", pa.large_string())])


@contextmanager
def _document_file(path: Path) -> Iterator[Any]:
    """A file of documents that takes batches of them."""
    import pyarrow as pa

    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, _schema()) as writer:
        yield writer


def _as_batch(documents: list[Document]) -> Any:
    import pyarrow as pa

    def column(values: list[str | None]) -> Any:
        # A lone surrogate, which JSON may hold and UTF-8 cannot, becomes a question mark
        plain = [x if x is None else x.encode(errors="replace").decode() for x in values]
        return pa.array(plain, pa.large_string())

    columns = [column([one.text for one in documents]), column([one.name for one in documents])]
    return pa.record_batch(columns, schema=_schema())


def _open_documents(path: Path) -> Any:
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


class MatrixFile:
    """A .npy file of vectors of D float32, whose number is known only at the end."""

    def __init__(self, file: IO[bytes], columns: int) -> None:
        self._file, self._columns = file, columns
        self.rows = 0
        self._write_header()

    def write(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Write (texts, D) float32, without the texts."""
        self._file.write(np.ascontiguousarray(vectors, "<f4").data)
        self.rows += len(vectors)

    def finish(self) -> None:
        """Write the number of rows into the header, in which NumPy leaves room for it."""
        end = self._file.tell()
        self._file.seek(0)
        self._write_header()
        self._file.seek(end)

    def _write_header(self) -> None:
        shape = (self.rows, self._columns)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
