"""The body of `search`: queries → the documents that answer them."""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from roformer_tf.checkpoints.embedding_config import Pooling
from roformer_tf.engines.choice import Precision
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.files import check_writable, is_folder
from roformer_tf.inference.answers import one_line
from roformer_tf.inference.embed import TextEmbedder, open_embedder
from roformer_tf.inference.index import SearchIndex, is_index, write_index
from roformer_tf.inference.reranking import report_reranking
from roformer_tf.inference.retrieval import Retriever, load_reranker
from roformer_tf.inference.text_files import TextFileConfig, checked_documents, checked_texts
from roformer_tf.inference.tsv import STANDARD, opened_tsv
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.readers.streams import is_stdin, is_url
from roformer_tf.terminal import Progress

COLUMNS = ("query", "rank", "score", "document")
NAME = "id"
"""A further column, where the documents have names."""


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Find the documents that answer queries, by the cosine of their vectors.

    What is written is a TSV with the columns query, rank, score, document, and id where the
    documents have one. A document longer than the model reads is read in passages, and is as near
    as the nearest of them, or by --beginning-weight as that and the first.
    """

    model: str
    """A released zip or name, or a folder: of a checkpoint, or the model/ of a run."""
    documents: str | None = None
    """File of documents: one a line, or a .tsv, .csv, .jsonl, .parquet or .xlsx. With --index they
    are added to it, but for those that it has."""
    index: Path | None = None
    """Folder that keeps vectors and texts; it is made of --documents where it is not there yet."""
    queries: tuple[str, ...] = ()
    """A file of queries, "-" for the standard input, or the queries themselves. Unset, an index is
    made and nothing asked."""
    top: int = 10
    """Documents to find for each query."""
    hybrid: bool = False
    """Search by words (BM25), too: the score is a sum of both by --hybrid-weight or, without one,
    of both ranks (reciprocal rank fusion)."""
    hybrid_weight: float | None = None
    """What a cosine weighs beside BM25, in parts of a query's largest: such as 1, chosen on queries
    whose answers are known. An index that is made keeps it. It asks for --hybrid, too."""
    beginning_weight: float | None = None
    """What a document's first passage weighs beside its nearest, as 0.3: in manuals and news the
    beginning says what the rest is about. An index that is made keeps it; unset, nothing."""
    rerank: str | None = None
    """The model/ of a run on pairs, with labels 0 and 1 or a number, that puts the first documents
    into an order of its own. Whether that helps is measured first, on the pairs that the model was
    validated on; a warning tells where it does not."""
    rerank_top: int = 50
    """How many of the first --rerank reads."""
    passage_length: int | None = None
    """Tokens of a passage; unset, as many as the model reads. Fewer are slower and may find more
    in long documents."""
    output: str = STANDARD
    """File to write; "-" is the standard output."""
    pooling: Pooling | None = None
    """What a vector is made of; unset, what the index has, or what `embed` takes."""
    dimensions: int | None = None
    """Cut vectors to so many numbers, for a model that was trained for it, or is whitened."""
    max_length: int | None = None
    """Most tokens of a text that are read at once; unset, what the model was trained for."""
    batch_size: int = BATCH_SIZE
    """Most texts that the model reads at once."""
    precision: Precision = "float32"
    """bfloat16 is faster where the hardware has it; cosines move by some thousandths."""
    reading: TextFileConfig = field(default_factory=TextFileConfig)

    def __post_init__(self) -> None:
        if self.documents is None and self.index is None:
            raise InputError("give --documents to search in, or --index with an index of them.")
        if not self.queries and (self.index is None or self.documents is None):
            raise InputError("give --queries: a file of them, or the queries themselves.")
        check_numbers(self, "top", "rerank_top", "batch_size", at_least=1)
        check_numbers(self, "hybrid_weight", "beginning_weight", at_least=0, hint="such as 1")
        if self.beginning_weight is not None and self.documents is None:
            raise InputError(
                "--beginning-weight is kept by an index when it is written: give --documents, too."
            )
        for number, query in enumerate(self.queries, 1):
            if not query.strip():
                raise InputError(f"query {number} is blank: there is nothing to search for.")
        if is_folder(self.output):
            raise InputError(f"--output {self.output} is a folder. Name a file.")
        if self.documents is not None and is_stdin(self.documents) and self.queries == (STANDARD,):
            raise InputError("documents and queries cannot both be the standard input.")

    @property
    def by_words(self) -> bool:
        """Whether words count."""
        return self.hybrid or self.hybrid_weight is not None


def search(config: SearchConfig) -> None:
    """Make or open the index, ask, and tell on stderr what was done."""
    if config.output != STANDARD:
        check_writable(config.output)
    if config.index is not None and config.documents is not None:
        check_writable(config.index)
    reranker = None if config.rerank is None else load_reranker(config.rerank, config.precision)
    with ExitStack() as held:
        queries = held.enter_context(_asked(config))
        folder = config.index or Path(held.enter_context(_scratch())) / "index"
        embedder = _opened(config, folder)
        print(f"{embedder.described}.", file=sys.stderr)
        if config.documents is not None:
            _add(config, folder, embedder, config.documents)
        if not config.queries:
            return
        index = SearchIndex(folder)
        index.check_model(embedder)
        retriever = Retriever(
            index,
            embedder,
            config.by_words,
            config.hybrid_weight,
            reranker,
            config.rerank_top,
            config.batch_size,
        )
        if config.rerank is not None:
            for line in report_reranking(config.rerank, retriever):
                print(line, file=sys.stderr)
        began = time.perf_counter()
        with (
            opened_tsv(config.output) as out,
            Progress(desc="search", unit=" queries", total=len(queries)) as bar,
        ):
            _write(out, retriever, queries, config.top, bar)
        seconds = time.perf_counter() - began
        print(
            f"{len(queries):,} queries among {len(index):,} documents in {seconds:.1f} s, "
            f"{1e3 * seconds / len(queries):.1f} ms each.",
            file=sys.stderr,
        )
        del index, retriever  # Windows removes no file that is open


def _write(
    out: TextIO, retriever: Retriever, queries: Sequence[str], top: int, bar: Progress
) -> None:
    """A line for each document that was found."""
    index = retriever.index
    columns = (*COLUMNS, NAME) if index.has_names else COLUMNS
    out.write("\t".join(columns) + "\n")
    for query, answers in zip(queries, retriever.answers(queries, top), strict=True):
        for rank, answer in enumerate(answers, 1):
            text, name = index.document(answer.place)
            cells = [one_line(query), str(rank), f"{answer.score:.6f}", one_line(text)]
            cells += [one_line(name or "")] * index.has_names
            out.write("\t".join(cells) + "\n")
        bar.update()


@contextmanager
def _asked(config: SearchConfig) -> Iterator[Sequence[str]]:
    """The queries: those that were typed, or those of the file that was named."""
    if len(config.queries) != 1 or not _is_file(config.queries[0]):
        yield config.queries
        return
    # what is said of columns is said of the documents, where both are files
    of_both = config.documents is not None
    reading = replace(config.reading, text_columns=()) if of_both else config.reading
    with checked_texts(config.queries[0], reading) as texts:
        if texts.said:
            print(texts.said, file=sys.stderr)
        yield list(texts.texts())


def _is_file(query: str) -> bool:
    """Whether one query is the name of a file."""
    if is_stdin(query) or is_url(query):
        return True
    try:
        return Path(query).is_file()
    except (OSError, ValueError):  # longer than a name, or with a character that none has
        return False


def _opened(config: SearchConfig, folder: Path) -> TextEmbedder:
    """The model, with the settings of an index that is there already, unless others are given."""
    pooling, dimensions, max_length = config.pooling, config.dimensions, config.max_length
    if config.documents is None or is_index(folder):
        made = SearchIndex(folder).manifest
        pooling = pooling or made.pooling
        dimensions = dimensions or made.dimensions
        max_length = max_length or made.max_length
    return open_embedder(config.model, pooling, dimensions, config.precision, max_length)


def _add(config: SearchConfig, folder: Path, embedder: TextEmbedder, path: str) -> None:
    """Put the documents of a file into the index."""
    with checked_documents(path, config.reading) as documents:
        if documents.said:
            print(documents.said, file=sys.stderr)
        added = write_index(
            folder,
            embedder,
            documents,
            passage_length=config.passage_length,
            hybrid_weight=config.hybrid_weight,
            beginning_weight=config.beginning_weight,
            with_words=config.by_words,
            batch_size=config.batch_size,
        )
    if config.index is not None:
        known = f", {added.known:,} were there already" if added.known else ""
        now = f"{added.before + added.new:,} documents"
        print(f"{folder} has {now}: {added.new:,} are new{known}.", file=sys.stderr)
        if added.graph:
            print(f"A graph of neighbours {added.graph}.", file=sys.stderr)


def _scratch() -> "tempfile.TemporaryDirectory[str]":
    """A folder for an index that is not kept."""
    return tempfile.TemporaryDirectory(prefix="roformer-tf-", ignore_cleanup_errors=True)
