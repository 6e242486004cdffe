"""A graph of neighbours (HNSW, by the library faiss): nearly the nearest of very many vectors.

The graph is a copy of vectors of the database, in a file of its own: INDEX/neighbours-KEY.faiss.
It may be older than the database. Documents that were added later are compared one by one, and
deleted ones are not read: results never depend on whether it is up to date.
"""

from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file

# Numbers of all vectors together, such as 524,288 vectors of 256, from which a graph is built.
# Below, all products of a query take less than 20 ms on two cores, and nothing is missed.
LARGE = 1 << 27
# Edges per vector and level, twice as many on the lowest; vectors visited to find them; vectors
# visited per query. In docs/LOG.md recall@10 is .9966 with nearly equal texts, .9988 of a million.
NEIGHBOURS, WHEN_ADDED, WHEN_SEARCHED = 32, 200, 512
# Ids of vectors: a document's number, times 2^20, plus the number of the passage.
SHIFT = 20


class Neighbours:
    """A graph of vectors of length 1, in which a walk finds those nearest to a query.

    Raises InputError if faiss is missing, which the extra [search] installs.
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        # Keep all edges that fit. HNSW's rule removes those to vectors that are nearer to another
        # neighbor: of texts that are nearly equal, such as sentences cut in several ways, it
        # removes so many that some vectors cannot be reached. faiss does not store this setting.
        _faiss().downcast_index(index.index).keep_max_size_level0 = True

    @classmethod
    def empty(cls, size: int) -> "Neighbours":
        """A graph for vectors of `size` numbers."""
        faiss = _faiss()
        graph = faiss.IndexHNSWFlat(size, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = WHEN_ADDED
        return cls(faiss.IndexIDMap2(graph))

    @classmethod
    def find(cls, folder: Path, key: str) -> "Neighbours | None":
        """The graph of an index, if it has one; more vectors can be added."""
        file = file_of(folder, key)
        if not file.exists():
            return None
        try:
            return cls(_faiss().read_index(str(file)))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(
                f"cannot read {file}: {reason}. Remove this file; the next `search --documents` "
                "writes it again."
            ) from None

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def last(self) -> int:
        """The largest number of a document whose vectors it has."""
        if not len(self):
            return 0
        return int(_faiss().vector_to_array(self._index.id_map).max() >> SHIFT)

    def add(self, vectors: np.ndarray, ids: np.ndarray) -> None:
        """Add vectors (N, D) float32 with their ids (N,) int64."""
        self._index.add_with_ids(np.ascontiguousarray(vectors, np.float32), ids)

    def search(self, queries: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and cosines (Q, top) of nearly the nearest vectors; id -1 where there are fewer."""
        parameters = _faiss().SearchParametersHNSW(efSearch=max(WHEN_SEARCHED, 2 * top))
        queries = np.ascontiguousarray(queries, np.float32)
        scores, ids = self._index.search(queries, top, params=parameters)
        return ids, np.where(ids < 0, -np.inf, scores).astype(np.float32)

    def documents(self, query: np.ndarray, count: int) -> np.ndarray:
        """Numbers of nearly the `count` nearest documents, as far as it has so many."""
        wanted = min(4 * count, len(self))
        while True:
            ids = self.search(query[None], wanted)[0][0]
            numbers = np.unique(ids[ids >= 0] >> SHIFT)
            if len(numbers) >= count or wanted == len(self):
                return numbers
            wanted = min(4 * wanted, len(self))

    def save(self, folder: Path, key: str) -> None:
        """Write the graph, which holds the vectors, too, as that of an index."""
        with temporary_file(file_of(folder, key)) as temporary:
            _faiss().write_index(self._index, str(temporary))


def file_of(folder: Path, key: str) -> Path:
    """The file of an index's graph."""
    return folder / f"neighbours-{key}.faiss"


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        raise InputError(
            "searching so many vectors needs faiss: `pip install 'roformer-tf[search]'`."
        ) from None
    return faiss
