"""What a graph of neighbours misses, and what it saves, on vectors that `embed` wrote.

    roformer-tf embed --model M --input texts.txt --output vectors.npy
    roformer-tf embed --model M --input questions.txt --output questions.npy
    python -m benchmarks.neighbours --vectors vectors.npy --queries questions.npy

Makes the graph that `search --index` makes of many vectors, asks it for the ten nearest of each
query, one query at a time as a service does and all at once as a file's, and compares them with
those of all products. Figures are printed as JSON.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import settings_of
from benchmarks.peers.worker import peak_memory
from roformer_tf.errors import InputError
from roformer_tf.search.graph import WHEN_SEARCHED, Neighbours
from roformer_tf.terminal import Progress
from roformer_tf.top_k import top_k

# Vectors that are added at a time.
BLOCK = 65_536
# Queries whose products with all vectors are in memory.
QUERIES = 64
# Queries that are also asked one by one.
ALONE = 1_000


@dataclass(frozen=True)
class NeighbourBenchmark:
    """Compare a graph of neighbours with the products of all vectors."""

    vectors: Path
    """(N, D) float32 of length 1, as `roformer-tf embed` writes them."""
    queries: Path
    """(Q, D) of the same model."""
    top: int = 10


def main(config: NeighbourBenchmark) -> None:
    """Measure, and print what came out. Raises InputError for vectors of two models."""
    vectors, queries = (np.load(path, mmap_mode="r") for path in (config.vectors, config.queries))
    if vectors.shape[1] != queries.shape[1]:
        raise InputError(
            f"{config.vectors} has vectors of {vectors.shape[1]} numbers, {config.queries} of "
            f"{queries.shape[1]}. Give those of one model."
        )
    print(json.dumps(measure(vectors, np.asarray(queries), config.top), indent=2))


def measure(vectors: np.ndarray, queries: np.ndarray, top: int) -> dict[str, Any]:
    """Figures of a graph of vectors (N, D), searched for queries (Q, D)."""

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(vectors), BLOCK):
            block = np.asarray(vectors[start : start + BLOCK])
            yield block, np.arange(start, start + len(block))

    seconds: dict[str, float] = {}
    graph = timed(seconds, "build", lambda: _graph(blocks(), *vectors.shape))
    actual = timed(seconds, "graph", lambda: graph.search(queries, top))
    alone = queries[:ALONE]
    timed(seconds, "graph, alone", lambda: [graph.search(item[None], top) for item in alone])
    wanted = timed(seconds, "exact", lambda: exact(queries, vectors, top))
    return {
        "vectors": len(vectors),
        "queries": len(queries),
        "recall": recall(*actual, *wanted),
        "visited": WHEN_SEARCHED,
        "build_s": round(seconds["build"], 1),
        "graph_ms_a_query": round(1000 * seconds["graph"] / len(queries), 3),
        "graph_ms_a_query_alone": round(1000 * seconds["graph, alone"] / len(alone), 3),
        "exact_ms_a_query": round(1000 * seconds["exact"] / len(queries), 3),
        "peak_memory": peak_memory(),
    }


def exact(queries: np.ndarray, vectors: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and products (Q, top) of the nearest vectors, by computing all products."""
    indices, scores = [], []
    for start in range(0, len(queries), QUERIES):
        for products in queries[start : start + QUERIES] @ vectors.T:
            indices.append(top_k(products, top))
            scores.append(products[indices[-1]])
    return np.array(indices), np.array(scores)


def recall(
    indices: np.ndarray, scores: np.ndarray, exact_indices: np.ndarray, exact_scores: np.ndarray
) -> float:
    """Fraction of the k nearest that an approximate search returned, all (Q, k).

    A vector that is as near as the k-th counts, whichever of equals was returned.
    """
    among = (indices[:, :, None] == exact_indices[:, None, :]).any(axis=2)
    return float((among | (scores >= exact_scores[:, -1:])).mean())


def timed(seconds: dict[str, float], name: str, work: Callable[[], Any]) -> Any:
    """What the work gives; the seconds that it took are put down under the name."""
    began = time.perf_counter()
    result = work()
    seconds[name] = time.perf_counter() - began
    return result


def _graph(blocks: Iterable[tuple[np.ndarray, np.ndarray]], vectors: int, size: int) -> Neighbours:
    graph = Neighbours.empty(size)
    with Progress(desc="neighbours", unit=" vectors", total=vectors) as bar:
        for block, ids in blocks:
            graph.add(block, ids)
            bar.update(len(block))
    return graph


if __name__ == "__main__":
    try:
        main(settings_of(NeighbourBenchmark))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
