"""Nearly the nearest of very many vectors: a graph of neighbours (HNSW), by the library faiss."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.inference.nearest import Found

LARGE = 1 << 27
"""Numbers of all vectors together, as of 524,288 of 256, from which a graph is made. Below, all
products of a query take less than 20 ms on two cores, and nothing is missed."""
NEIGHBOURS, WHEN_ADDED, WHEN_SEARCHED = 32, 200, 256
"""Of each vector; and how many are looked at to find them, and to answer. Measured in docs/LOG.md:
more than 99 of 100 of the nearest ten are found."""


class Neighbours:
    """A graph of vectors of length 1, in which a walk finds those nearest to a query.

    Raises InputError where faiss is missing, which the extra [search] brings.
    """

    def __init__(self, size: int) -> None:
        faiss = _faiss()
        self._graph: Any = faiss.IndexHNSWFlat(size, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        self._graph.hnsw.efConstruction = WHEN_ADDED

    def add(self, blocks: Iterable[np.ndarray]) -> None:
        """Add vectors (N, D) float32, block by block; they are numbered as they come."""
        for block in blocks:
            self._graph.add(np.ascontiguousarray(block))

    def __len__(self) -> int:
        return int(self._graph.ntotal)

    def search(self, queries: np.ndarray, top: int) -> Found:
        """Nearly the best of each query (Q, D), the best first."""
        self._graph.hnsw.efSearch = max(WHEN_SEARCHED, 2 * top)
        scores, places = self._graph.search(np.ascontiguousarray(queries, np.float32), top)
        return Found(places, np.where(places < 0, -np.inf, scores).astype(np.float32))

    def save(self, file: Path) -> None:
        """Write the graph, which holds the vectors too."""
        _faiss().write_index(self._graph, str(file))

    @classmethod
    def load(cls, file: Path) -> "Neighbours":
        """Open what `save` wrote; more can be added."""
        found = cls.__new__(cls)
        try:
            found._graph = _faiss().read_index(str(file))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"cannot read {file}: {reason}. Make the index anew.") from None
        return found


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        raise InputError(
            "searching in so many vectors needs faiss: `pip install 'roformer-tf[search]'`."
        ) from None
    return faiss
