"""How much a reranker should count in a search, measured on its own validation pairs.

Such a model classifies pairs of the kind that it was trained on. The first documents of a search
are all similar to the query, which is another kind: reranking can destroy a good order.

RUN/validation_pairs.jsonl   {"texts": [query, document], "label": "1"}, written by `finetune`
RUN/reranking.json           what was measured; a minute or two with a large model, so only once
RUN/model/                   what --rerank opens
"""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from roformer_tf.files import write_text
from roformer_tf.search.documents import MEASURED, VALIDATION_PAIRS, Document
from roformer_tf.search.index import SearchIndex
from roformer_tf.search.writing import add_documents
from roformer_tf.tasks.choices.reranking import WEIGHTS, order_of

if TYPE_CHECKING:
    from roformer_tf.search.retrieval import Reranker, Retriever

# Limits of the time to measure: each query costs `--rerank-top` predictions of pairs.
MAX_QUERIES, MAX_DOCUMENTS = 50, 500
# What a damaged file of this folder raises; RecursionError by JSON that is nested too deeply.
DAMAGED = (OSError, ValueError, TypeError, KeyError, RecursionError)


class RankedQuery(NamedTuple):
    """A query of the validation pairs."""

    text: str
    relevant: frozenset[str]
    """Documents that belong to it."""
    documents: tuple[str, ...]
    """All that it was paired with, these and others."""


@dataclass(frozen=True)
class RerankingFigures:
    """Mean reciprocal rank (MRR) of the first relevant document, 0 where it is not reranked."""

    queries: int
    documents: int
    before: float
    after: float
    """With the best weight."""
    weight: float
    """Of the reranker's order relative to the search's; 0 if no weight is better."""


def with_measured_weight(folder: str | Path, retriever: "Retriever") -> "tuple[Retriever, str]":
    """The retriever with the weight that is best on the reranker's validation pairs, and a line.

    Its model, weights and reranker search in the documents of the pairs. Without any gain the
    retriever has no reranker; where nothing can be measured, it is unchanged.
    """
    assert retriever.reranker is not None
    path = Path(folder).resolve().parent / VALIDATION_PAIRS
    reason = ""
    try:
        queries = _queries(path, retriever.reranker)
        if not any(query.relevant for query in queries):
            reason = "has no query with a document that belongs to it."
    except FileNotFoundError:
        reason = "does not exist. `finetune` writes it; keep the model in its run's folder."
    except DAMAGED as error:
        reason = f"is damaged: {error}. Run `finetune` again."
    if reason:
        line = f"--rerank {folder}: its effect on the order could not be measured: {path} {reason}"
        return retriever, line
    figures = _known_or_measured(path.with_name(MEASURED), Path(folder), path, queries, retriever)
    line = (
        f"--rerank {folder}: MRR {figures.before:.3f} before and {figures.after:.3f} after "
        f"reranking with the weight {figures.weight:g}, on {figures.queries:,} queries that it was "
        f"validated on, among {figures.documents:,} documents."
    )
    if not figures.weight:
        line += " It does not improve the order, so it is not used."
        return replace(retriever, reranker=None), line
    reranker = replace(retriever.reranker, weight=figures.weight)
    return replace(retriever, reranker=reranker), line


def _known_or_measured(
    measured: Path, model: Path, pairs: Path, queries: "list[RankedQuery]", retriever: "Retriever"
) -> RerankingFigures:
    """The figures of an earlier search with the same settings, or new ones, which are kept."""
    manifest = retriever.index.manifest
    files = [(x.name, x.stat().st_size, x.stat().st_mtime_ns) for x in sorted(model.glob("*"))]
    settings = (
        *(manifest.fingerprint, manifest.passage_length, manifest.hybrid_weight),
        *(manifest.beginning_weight, retriever.hybrid, retriever.weight, retriever.reranked),
        *(files, pairs.read_bytes()),
    )
    key = hashlib.sha256(repr(settings).encode()).hexdigest()
    with suppress(*DAMAGED):
        content = json.loads(measured.read_text(encoding="utf-8"))
        if content["settings"] == key:
            return RerankingFigures(**content["figures"])
    figures = measure_reranking(queries, retriever)
    with suppress(OSError):  # a read-only folder: it is measured again each time
        content = {"settings": key, "figures": asdict(figures)}
        write_text(measured, json.dumps(content, indent=2) + "\n")
    return figures


def measure_reranking(queries: Sequence[RankedQuery], retriever: "Retriever") -> RerankingFigures:
    """Search for queries that have relevant documents, and rerank with each of `WEIGHTS`.

    They search among the documents of all queries.
    """
    asked = [query for query in queries if query.relevant]
    asked = asked[:: -(-len(asked) // MAX_QUERIES)]  # evenly spaced
    texts = (text for query in (*asked, *queries) for text in query.documents)
    documents = list(dict.fromkeys(texts))
    needed = len({text for query in asked for text in query.documents})
    documents = documents[: max(needed, MAX_DOCUMENTS)]
    manifest = retriever.index.manifest
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        add_documents(
            Path(scratch) / "index",
            retriever.embedder,
            list(map(Document, documents)),
            passage_length=manifest.passage_length,
            hybrid_weight=manifest.hybrid_weight,
            beginning_weight=manifest.beginning_weight,
            batch_size=retriever.batch_size,
        )
        with SearchIndex(Path(scratch) / "index") as index:
            search = replace(retriever, index=index, reranker=None)
            results = search.results([query.text for query in asked], retriever.reranked)
            all_texts = [[x.text for x in of_query] for of_query in results]
    assert retriever.reranker is not None
    totals = dict.fromkeys(WEIGHTS, 0.0)
    for query, searched in zip(asked, all_texts, strict=True):
        scores = retriever.reranker.scores(query.text, searched, retriever.batch_size)
        for weight in totals:
            order = [searched[i] for i in order_of(scores, weight)]
            ranks = [rank for rank, text in enumerate(order, 1) if text in query.relevant]
            totals[weight] += 1 / ranks[0] if ranks else 0
    weight = max(totals, key=totals.__getitem__)  # of equal ones the lowest
    before, after = totals[0.0] / len(asked), totals[weight] / len(asked)
    return RerankingFigures(len(asked), len(documents), before, after, weight)


def _queries(path: Path, reranker: "Reranker") -> list[RankedQuery]:
    """The queries of a file of validation pairs.

    Relevant is a document with the label whose probability is the score; where the model predicts
    numbers, one with a number in the upper half of their range. Raises ValueError, TypeError or
    KeyError for a damaged file.
    """
    labels: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        query, document = row["texts"]
        labels.setdefault(query, {}).setdefault(document, row["label"])
    if reranker.label is None:
        numbers = [float(label) for row in labels.values() for label in row.values()]
        middle = (min(numbers, default=0.0) + max(numbers, default=0.0)) / 2
    else:
        wanted = reranker.finetuned.task.labels[reranker.label]

    def is_relevant(label: Any) -> bool:
        return bool(label > middle if reranker.label is None else label == wanted)

    return [
        RankedQuery(query, frozenset(x for x in row if is_relevant(row[x])), tuple(row))
        for query, row in labels.items()
    ]
