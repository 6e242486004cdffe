"""recall@10 and MRR@10 of the results of `roformer-tf search`, with intervals.

With several training seeds, a query's value is its mean over the seeds, and the interval is over
queries.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.tasks.metrics import bootstrap, mean
from roformer_tf.tasks.vectors.ranked_texts import query_figures

# Rank of a document that is not among the results.
NEVER = 10**9
SHOWN = ("recall_at_1", "recall_at_10", "mrr_at_10")


class Queries(NamedTuple):
    """Queries and the relevant document of each."""

    texts: list[str]
    documents: list[str]


class SearchFigures(NamedTuple):
    """Figures of one search method."""

    figures: dict[str, float]
    intervals: dict[str, tuple[float, float] | None]
    spread: dict[str, float]
    """Difference between the best and the worst seed."""


def ranks(results: Path, queries: Queries) -> list[int]:
    """Return the rank of each query's document in a TSV written by `search`.

    Raises InputError if a query is missing in the file.
    """
    with results.open(encoding="utf-8") as lines:
        columns = next(lines).rstrip("\n").split("\t")
        query, rank, name = (columns.index(x) for x in ("query", "rank", "id"))
        ranks_by_query: dict[str, dict[str, int]] = defaultdict(dict)
        for line in lines:
            cells = line.rstrip("\n").split("\t")
            ranks_by_query[cells[query]].setdefault(cells[name], int(cells[rank]))
    if missing := [text for text in queries.texts if text not in ranks_by_query]:
        raise InputError(
            f"{results} has no results for {missing[0]!r}. Remove it, and search again."
        )
    pairs = zip(queries.texts, queries.documents, strict=True)
    return [ranks_by_query[text].get(document, NEVER) for text, document in pairs]


def evaluate(ranks_by_seed: Sequence[Sequence[int]]) -> SearchFigures:
    """Return the figures of ranks (seeds, queries), averaged over both."""
    each = [query_figures([[rank] for rank in item]) for item in ranks_by_seed]
    chosen = {name: np.mean([item[name] for item in each], axis=0) for name in SHOWN}
    count = len(chosen[SHOWN[0]])

    def measure(weights: np.ndarray) -> dict[str, np.ndarray]:
        return {name: mean(values, weights) for name, values in chosen.items()}

    seeds = {name: [float(item[name].mean()) for item in each] for name in SHOWN}
    return SearchFigures(
        {name: float(values.mean()) for name, values in chosen.items()},
        bootstrap(measure, count),
        {name: max(values) - min(values) for name, values in seeds.items()},
    )


def table(rows: Mapping[str, SearchFigures]) -> str:
    """Return a Markdown table of figures, 95 % intervals over queries and spread over seeds."""
    lines: Iterable[Sequence[str]] = (
        ("", "recall@1", "recall@10 [95 %]", "MRR@10 [95 %]", "spread of the seeds: recall, MRR"),
        ("---",) * 5,
        *((name, *_cells(item)) for name, item in rows.items()),
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cells(row: SearchFigures) -> tuple[str, ...]:
    def figure(name: str) -> str:
        ends = row.intervals[name]
        shown = "—" if ends is None else f"[{ends[0]:.3f}, {ends[1]:.3f}]"
        return f"{row.figures[name]:.3f} {shown}"

    first, recall, mrr = SHOWN
    spread = f"{row.spread[recall]:.3f}, {row.spread[mrr]:.3f}"
    return f"{row.figures[first]:.3f}", figure(recall), figure(mrr), spread
