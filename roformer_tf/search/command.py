"""The body of `search`: build an index, and find the documents that match queries."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from roformer_tf.errors import InputError, check_needed, check_numbers
from roformer_tf.files import check_writable
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.inference.prediction_files import STANDARD, check_output, opened_text, tsv_line
from roformer_tf.inference.text_files import TextFileConfig, check_not_blank, checked_texts, report
from roformer_tf.readers.kinds import KINDS
from roformer_tf.readers.streams import is_stdin, is_url
from roformer_tf.search.database import is_index
from roformer_tf.search.document_files import Document, checked_documents
from roformer_tf.search.filters import parse_filter
from roformer_tf.search.index import SearchIndex
from roformer_tf.search.retriever import Retriever, open_reranker
from roformer_tf.search.writing import add_documents, delete_documents
from roformer_tf.terminal import Progress
from roformer_tf.translation import Message

COLUMNS = ("query", "rank", "score", "document")
# A fifth column, if the documents have ids.
ID_COLUMN = "id"


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    r"""Find the documents that match queries, by the cosine of their vectors.

    The output is a TSV with the columns query, rank, score, document, and id if the documents have
    ids. A document longer than the model's maximum length is split into passages. Its score is that
    of the nearest passage, or with --beginning-weight of the nearest and the first one.

    Examples:
        roformer-tf search --model chinese_roformer-sim-char-base \
            --documents help.jsonl --index help-index
        roformer-tf search --model chinese_roformer-sim-char-base --index help-index \
            --queries '如何退款' --hybrid --top 5
    """

    model: Annotated[str | None, "MODEL"] = None
    """A released zip or name, or a folder: of a checkpoint, or the model/ of a run. Only --delete
    works without one."""
    documents: Annotated[str | None, "FILE"] = None
    """File of documents: one per line, or a .tsv, .csv, .jsonl, .parquet or .xlsx. With --index
    they are added to it, except those it already has; a document with a known id replaces the
    former one. Other columns are stored for --where."""
    index: Annotated[Path | None, "DIR"] = None
    """Folder of an index, which keeps vectors and texts, and how vectors are computed; created from
    --documents if it does not exist."""
    queries: Annotated[tuple[str, ...], "FILE|TEXT"] = ()
    """A file of queries, "-" for the standard input, or the queries themselves. Default: none; the
    index is created or changed only."""
    delete: tuple[str, ...] = ()
    """Ids of documents to delete from --index, before --documents are added."""
    id_column: str | None = None
    """Column of the documents' ids. Default: the one called "id", if there is one."""
    top: int = 10
    """Documents to find for each query."""
    where: str | None = None
    """Search only documents whose columns satisfy a condition, such as "year >= 2020 and lang in
    ('zh', 'en')". Comparisons, in, like, is null, and, or, not."""
    hybrid: bool = False
    """Search by words (BM25), too. The score is the sum of BM25, divided by the query's largest,
    and the cosine times --hybrid-weight."""
    hybrid_weight: float | None = None
    """Weight of the cosine, chosen on queries whose documents are known. Default: 1. Implies
    --hybrid; stored in an index that is created."""
    beginning_weight: float | None = None
    """Weight of a document's first passage relative to its nearest one, such as 0.3: the beginning
    of a manual page or a news article says what the rest is about. Stored in an index that is
    created. Default: 0."""
    rerank: Annotated[str | None, "MODEL"] = None
    """The model/ of a run of `finetune` for reranking, or on pairs with labels 0 and 1 or a number,
    that reorders the first documents. With the first kind the search's scores count, too, by the
    weight that its validation set selected."""
    rerank_top: int = 50
    """How many of the first documents --rerank reads."""
    passage_length: int | None = None
    """Tokens of a passage. Default: the model's maximum length. Shorter ones are slower, and may
    find more in long documents."""
    output: Annotated[str, "FILE"] = STANDARD
    """File to write; "-" is the standard output."""
    vectors: VectorSettings = field(default_factory=VectorSettings)
    reading: TextFileConfig = field(default_factory=TextFileConfig)

    def __post_init__(self) -> None:
        if self.delete and self.index is None:
            raise InputError("--delete needs --index: the index to delete documents from.")
        if self.model is None and (self.queries or self.documents is not None or not self.delete):
            raise InputError("give --model: the model whose vectors are searched.")
        if self.documents is None and self.index is None:
            raise InputError("give --documents to search in, or --index with an index of them.")
        changes_index = self.index is not None and (self.documents is not None or self.delete)
        if not self.queries and not changes_index:
            raise InputError("give --queries: a file of them, or the queries themselves.")
        check_numbers(self, "top", "rerank_top", at_least=1)
        check_numbers(self, "hybrid_weight", "beginning_weight", at_least=0, example="1")
        if self.documents is None:
            check_needed(self, "--documents", "beginning_weight", "passage_length", "id_column")
        if self.rerank is None:
            check_needed(self, "--rerank", "rerank_top")
        if self.where is not None:
            parse_filter(self.where)
        check_not_blank("query", self.queries)


def search(config: SearchConfig) -> None:
    """Change or create the index, search it, and report on stderr."""
    check_output(config.output, config.documents, *config.queries)
    if config.index is not None and (config.documents is not None or config.delete):
        check_writable(config.index)
    if config.model is None:
        assert config.index is not None  # of --delete
        _delete(config.index, config.delete)
        return
    vectors = config.vectors
    reranker = None if config.rerank is None else open_reranker(config.rerank, vectors)
    queries, documents = _queries(config), list[Document]()
    if config.documents is not None:
        documents = checked_documents(config.documents, config.reading, config.id_column)
    with ExitStack() as stack:
        # Errors are ignored, since Windows cannot remove a file that another program has opened.
        scratch = TemporaryDirectory(prefix="roformer-tf-", ignore_cleanup_errors=True)
        folder = config.index or Path(stack.enter_context(scratch)) / "index"
        if config.documents is None or is_index(folder):
            with SearchIndex(folder) as index:
                vectors = index.manifest.settings(vectors)
        embedder = vectors.open(config.model)
        report(*embedder.notes)
        if config.delete:  # after the model and what the files hold, which may be wrong
            _delete(folder, config.delete)
        if documents:
            added = add_documents(
                *(folder, embedder, documents),
                passage_length=config.passage_length,
                hybrid_weight=config.hybrid_weight,
                beginning_weight=config.beginning_weight,
            )
            if config.index is not None:
                report(
                    f"documents in {folder}: {added.total:,} ({added.new:,} new, "
                    f"{added.updated:,} updated, {added.unchanged:,} unchanged)."
                )
        if not config.queries:
            return
        index = stack.enter_context(SearchIndex(folder))
        index.manifest.check_model(folder, embedder)
        if config.where is not None:
            parse_filter(config.where, index.fields)  # before the header of the output
        retriever = Retriever(
            index, embedder, config.hybrid, config.hybrid_weight, reranker, config.rerank_top
        )
        _search(retriever, queries, config)


def _search(retriever: Retriever, queries: Sequence[str], config: SearchConfig) -> None:
    """Write a line for each result, and print the time."""
    has_ids = retriever.index.has_ids
    start = time.perf_counter()
    with (
        opened_text(config.output) as out,
        Progress(desc=Message("search"), unit=Message("queries"), total=len(queries)) as bar,
    ):
        out.write(tsv_line((*COLUMNS, ID_COLUMN) if has_ids else COLUMNS))
        all_results = retriever.results(queries, config.top, config.where)
        for query, results in zip(queries, all_results, strict=True):
            for rank, result in enumerate(results, 1):
                ids = (result.id,) if has_ids else ()
                out.write(tsv_line((query, rank, f"{result.score:.6f}", result.text, *ids)))
            bar.update()
    seconds = time.perf_counter() - start
    report(
        f"queries: {len(queries):,}, documents: {len(retriever.index):,}; {seconds:.1f} s, "
        f"{1e3 * seconds / len(queries):.1f} ms a query."
    )


def _queries(config: SearchConfig) -> Sequence[str]:
    """The queries: those of the command line, or those of the file that it names."""
    if len(config.queries) != 1 or not _is_file(config.queries[0]):
        return config.queries
    # --text-columns is for the documents, if both are files.
    both = config.documents is not None
    reading = replace(config.reading, text_columns=()) if both else config.reading
    return checked_texts(config.queries[0], reading)


def _is_file(query: str) -> bool:
    """Whether one query is the name of a file; a single word may be that of a missing one."""
    with suppress(OSError, ValueError):  # longer than a name, or with a character that none has
        if Path(query).is_file():
            return True
    is_name = is_stdin(query) or is_url(query) or Path(query).suffix.lower() in KINDS
    return is_name and len(query.split()) == 1


def _delete(folder: Path, ids: Sequence[str]) -> None:
    """Delete documents from the index, and name those that it does not have."""
    missing = delete_documents(folder, ids)
    report(f"documents deleted from {folder}: {len(set(ids)) - len(missing):,}.")
    if missing:
        report(f"warning: no document has the id {', '.join(missing)}.")
