"""Build and evaluate a search in a manual, with titles and index entries as queries.

    python -m benchmarks.search --data ../shared/data/search

Builds runs/search/model and runs/search/index with ordinary roformer-tf commands, which it prints,
and writes a table of all search methods to runs/search/table-test.md. After an interruption the
same command resumes. `python -m benchmarks.search.manual` creates the data from Debian's package.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.command_line import settings_of
from benchmarks.search.recipe import RERANKED, SearchRecipe
from benchmarks.search.search_figures import NEVER, SearchFigures, evaluate, ranks, table
from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.search.database import open_to_write, transaction
from roformer_tf.search.document_files import Document
from roformer_tf.search.index import word_scores
from roformer_tf.search.keywords import BM25, TfIdfSearch
from roformer_tf.search.writing import write_block
from roformer_tf.top_k import top_k


@dataclass(frozen=True)
class SearchBenchmark:
    """Build a search in a manual, and compare it with search by words."""

    data: Path
    """Folder with documents.jsonl.gz and queries_{train,valid,test}.tsv.gz."""
    output: Path = Path("runs/search")
    """Folder of models, indexes and the table."""
    seeds: int = 3
    """Number of training runs; the model has the mean of their weights."""
    split: str = "test"
    """Queries to evaluate. Use valid for choosing settings."""
    translations: bool = True
    """Also train on the strings of LibreOffice's menus and dialogs in Chinese and English, which
    apt downloads (Debian or Ubuntu)."""
    checkpoint: str | None = None
    """Model to start from, such as chinese_roformer-tf-mini. Default: pretrain one on the pages."""
    reranker: bool = True
    """Also train a cross-encoder that reranks the first 50 results."""


def main(config: SearchBenchmark) -> None:
    """Build what is missing, and evaluate. Raises InputError for wrong data."""
    recipe = SearchRecipe(
        config.data, config.output, config.seeds, config.translations, config.checkpoint
    )
    try:
        recipe.write_translations()
    except InputError as error:  # continue without translations: the search is only less accurate
        print(f"! {error} The model learns without translations.", file=sys.stderr)
        recipe = replace(recipe, translations=False)
    recipe.make()
    rows: dict[str, SearchFigures] = {}
    parts = [by_words, by_vectors, *[by_reranker] * config.reranker]
    for part in parts:
        for title, figures in part(recipe, config.split):
            rows[title] = figures
            write_text(config.output / f"table-{config.split}.md", table(rows))
    print(f"\n{table(rows)}\n{config.output / 'model'} and {config.output / 'index'} are made")


def by_words(recipe: SearchRecipe, split: str) -> Iterator[tuple[str, SearchFigures]]:
    """Evaluate search by words, without a model."""
    texts = recipe.texts()
    names = list(texts)
    queries = recipe.queries(split)
    relevant = np.array([names.index(document) for document in queries.documents])
    methods: dict[str, Callable[[], np.ndarray]] = {
        "BM25 of words": lambda: BM25(texts.values()).scores(queries.texts),
        "TF-IDF of 1 to 3 characters": lambda: TfIdfSearch(texts.values()).scores(queries.texts),
        "BM25 as `--hybrid` has it: words, pairs of characters, the beginning three times": (
            lambda: index_scores(list(texts.values()), queries.texts)
        ),
    }
    for title, scores_of in methods.items():
        ranked = []
        for scores, page in zip(scores_of(), relevant, strict=True):
            positions = np.flatnonzero(top_k(scores, RERANKED) == page)
            ranked.append(int(positions[0]) + 1 if len(positions) else NEVER)
        yield title, evaluate([ranked])


def index_scores(texts: Sequence[str], queries: Sequence[str]) -> np.ndarray:
    """Return the BM25 scores (queries, texts) of an index, which is built with dummy vectors."""
    with tempfile.TemporaryDirectory() as folder, closing(open_to_write(Path(folder))) as database:
        documents = [Document(text, str(number)) for number, text in enumerate(texts)]
        with transaction(database):
            database.execute("INSERT INTO settings VALUES ('{}', 0)")
            write_block(database, documents, [np.ones((1, 1))] * len(texts))
        numbers = np.arange(1, len(texts) + 1)
        return np.stack([word_scores(database, query, numbers) for query in queries])


def by_vectors(recipe: SearchRecipe, split: str) -> Iterator[tuple[str, SearchFigures]]:
    """Evaluate vectors before and after each training stage, and hybrid search."""
    output = recipe.output
    methods: dict[str, list[tuple[Path, Path, tuple[str, ...], str]]] = {}
    before = (Path(recipe.start), output / "indexes" / "pretrained")
    methods["vectors before training"] = [(*before, (), "before")]
    kinds = {
        "pages": ("trained on the pages, without labels", output / "pages" / "model"),
        "pairs": ("trained on the pairs, too", output / "model"),
    }
    for kind, (title_of_kind, mean) in kinds.items():
        models = [recipe.model_path(kind, seed) for seed in range(recipe.seeds)]
        indexes = [output / "indexes" / f"{kind}-{seed}" for seed in range(recipe.seeds)]
        mean_index = output / ("index" if kind == "pairs" else "indexes/pages")
        ways: dict[str, tuple[str, ...]] = {"vectors": (), "hybrid": ("--hybrid",)}
        for way, flags in ways.items():
            methods[f"{way}, {title_of_kind}"] = [
                (model, index, flags, f"{way}-{index.name}")
                for model, index in zip(models, indexes, strict=True)
            ]
            methods[f"{way}, {title_of_kind}, weights averaged"] = [
                (mean, mean_index, flags, f"{way}-{kind}")
            ]
    queries = recipe.queries(split)
    for title, runs in methods.items():
        actual = []
        for model, index, flags, name in runs:
            recipe.index(model, index)
            actual.append(ranks(recipe.search(split, model, index, *flags, name=name), queries))
        yield title, evaluate(actual)


def by_reranker(recipe: SearchRecipe, split: str) -> Iterator[tuple[str, SearchFigures]]:
    """Train a cross-encoder and evaluate hybrid search with its reranking."""
    recipe.train_reranker()
    flags = ("--hybrid", "--rerank", recipe.output / "rerank" / "model")
    model, index = recipe.output / "model", recipe.output / "index"
    actual = recipe.search(split, model, index, *flags, name="reranked")
    title = f"hybrid, its first {RERANKED} reranked by a model of pairs"
    yield title, evaluate([ranks(actual, recipe.queries(split))])


if __name__ == "__main__":
    try:
        main(settings_of(SearchBenchmark))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
