"""Nearly the nearest of very many vectors: a graph of neighbours (HNSW), by the library faiss."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.inference.nearest import Found, exact, recall

LARGE = 1 << 27
"""Numbers of all vectors together, as of 524,288 of 256, from which a graph is made. Below, all
products of a query take less than 20 ms on two cores, and nothing is missed."""
NEIGHBOURS, WHEN_ADDED = 32, 200
"""Of each vector on each level, twice as many on the lowest; and how many are looked at to find
them. Measured in docs/LOG.md."""
WHEN_SEARCHED = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""How many may be looked at for an answer: as few as find `ENOUGH`."""
ENOUGH = 0.995
"""Of the nearest `TOP` of `ASKED` vectors. Queries, which stand outside, find a little less than
vectors of the graph do: .99 of them is what is wanted."""
ASKED, TOP = 500, 10
UNMEASURED = 256
"""How many are looked at where a graph was never calibrated, as those of older indexes were not."""


class Neighbours:
    """A graph of vectors of length 1, in which a walk finds those nearest to a query.

    Raises InputError where faiss is missing, which the extra [search] brings.
    """

    def __init__(self, size: int) -> None:
        faiss = _faiss()
        self._graph: Any = faiss.IndexHNSWFlat(size, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        self._graph.hnsw.efConstruction = WHEN_ADDED
        self._fill()

    def add(self, blocks: Iterable[np.ndarray]) -> None:
        """Add vectors (N, D) float32, block by block; they are numbered as they come."""
        for block in blocks:
            self._graph.add(np.ascontiguousarray(block))

    def __len__(self) -> int:
        return int(self._graph.ntotal)

    def calibrate(self, vectors: np.ndarray) -> float:
        """Look at as many from now on as it takes to find nearly all, and no more; → share found.

        vectors (N, D) are those of the graph, in their order. Some of them are asked for the ten
        others that are nearest, and answers compared with those of all products. Texts that are
        nearly the same, or vectors of many independent directions, need more to be looked at. Where
        the most that may be is not enough, the share that it finds is less than `ENOUGH`.
        """
        numbers = np.random.default_rng(0).permutation(len(vectors))[:ASKED]
        asked = np.asarray(vectors[np.sort(numbers)])
        wanted = exact(asked, vectors, TOP + 1)  # the first of which is the vector itself
        share = 0.0
        for depth in WHEN_SEARCHED:
            self._graph.hnsw.efSearch = depth
            share = 1 - (1 - recall(self.search(asked, TOP + 1), wanted)) * (TOP + 1) / TOP
            if share >= ENOUGH:
                break
        return share

    @property
    def depth(self) -> int:
        """How many vectors are looked at for an answer, if ten are asked for."""
        found = int(self._graph.hnsw.efSearch)
        return found if found >= WHEN_SEARCHED[0] else UNMEASURED  # faiss begins with 16

    def search(self, queries: np.ndarray, top: int) -> Found:
        """Nearly the best of each query (Q, D), the best first."""
        parameters = _faiss().SearchParametersHNSW(efSearch=max(self.depth, 2 * top))
        queries = np.ascontiguousarray(queries, np.float32)
        scores, places = self._graph.search(queries, top, params=parameters)
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
        found._fill()
        return found

    def _fill(self) -> None:
        """Give each vector all the neighbours that it may have when more are added.

        The rule of HNSW leaves out who is nearer to another neighbour than to the vector. Of texts
        that are nearly the same, such as sentences cut in several places, it leaves out so many
        that some are found from nowhere. faiss does not keep this in its file.
        """
        self._graph.keep_max_size_level0 = True


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError:
        raise InputError(
            "searching in so many vectors needs faiss: `pip install 'roformer-tf[search]'`."
        ) from None
    return faiss
