"""A real search, made and measured: a manual's pages, its titles and index entries as queries.

    python -m benchmarks.search --data ../shared/data/search

Makes runs/search/model and runs/search/index by the commands that a user types, which it prints,
and a table of every way to search in runs/search/table.md. What is done is not done again: killed,
the same line goes on. `python -m benchmarks.search.manual` makes the data from Debian's package.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tyro

from benchmarks.search.judging import NEVER, SearchFigures, judge, ranks, table
from benchmarks.search.recipe import RERANKED, SearchRecipe
from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.inference.lexical import BM25, DocumentBM25, Lexical, TfIdfSearch


@dataclass(frozen=True)
class SearchBenchmark:
    """Make a search in a manual, and measure it beside search by words."""

    data: Path
    """Folder with documents.jsonl.gz and queries_{train,valid,test}.tsv.gz."""
    output: Path = Path("runs/search")
    """Folder of models, indexes and the table."""
    seeds: int = 3
    """Trainings, whose figures are told one by one; the model has the mean of their weights."""
    split: str = "test"
    """Queries that are judged by: valid, while something is chosen."""
    translations: bool = True
    """Whether the model also learns from what LibreOffice's menus and dialogs say in Chinese and in
    English, which apt fetches (Debian or Ubuntu)."""
    reranker: bool = True
    """Whether a model of pairs is trained, too, and reads the first 50."""


def main(config: SearchBenchmark) -> None:
    """Make what is not there, and judge. Raises InputError for data that are none."""
    recipe = SearchRecipe(config.data, config.output, config.seeds, config.translations)
    try:
        recipe.write_translations()
    except InputError as error:  # a search without them is worse, and a search all the same
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
    """Search without a model."""
    texts = recipe.texts()
    names = list(texts)
    queries = recipe.queries(split)
    methods: dict[str, type[BM25] | type[TfIdfSearch]] = {
        "BM25 of words": BM25,
        "TF-IDF of 1 to 3 characters": TfIdfSearch,
        "BM25 as `--hybrid` has it: words, pairs of characters, the beginning thrice": DocumentBM25,
    }
    for title, method in methods.items():
        index: Lexical = method(texts.values())
        found = index.search(queries.texts, RERANKED)
        wanted = np.array([names.index(document) for document in queries.documents])
        there = found.places == wanted[:, None]
        yield title, judge([np.where(there.any(axis=1), 1 + there.argmax(axis=1), NEVER).tolist()])


def by_vectors(recipe: SearchRecipe, split: str) -> Iterator[tuple[str, SearchFigures]]:
    """Search by vectors before training, after each kind of it, and by words, too."""
    output = recipe.output
    ways: dict[str, list[tuple[Path, Path, tuple[str, ...], str]]] = {}
    before = (output / "pretrained" / "model", output / "indexes" / "pretrained")
    ways["vectors before training"] = [(*before, (), "before")]
    kinds = {
        "pages": ("trained on the pages, without labels", output / "pages" / "model"),
        "pairs": ("trained on the pairs, too", output / "model"),
    }
    for kind, (told, mean) in kinds.items():
        models = [recipe.trained(kind, seed) for seed in range(recipe.seeds)]
        indexes = [output / "indexes" / f"{kind}-{seed}" for seed in range(recipe.seeds)]
        of_mean = output / ("index" if kind == "pairs" else "indexes/pages")
        for way, flags in (("vectors", ()), ("hybrid", ("--hybrid",))):
            ways[f"{way}, {told}"] = [
                (model, index, flags, f"{way}-{index.name}")
                for model, index in zip(models, indexes, strict=True)
            ]
            ways[f"{way}, {told}, weights averaged"] = [(mean, of_mean, flags, f"{way}-{kind}")]
    queries = recipe.queries(split)
    for title, of_seeds in ways.items():
        found = []
        for model, index, flags, name in of_seeds:
            recipe.index(model, index)
            found.append(ranks(recipe.ask(split, model, index, *flags, name=name), queries))
        yield title, judge(found)


def by_reranker(recipe: SearchRecipe, split: str) -> Iterator[tuple[str, SearchFigures]]:
    """The hybrid search, its first in the order of a model of pairs, which is trained here."""
    recipe.train_reranker()
    flags = ("--hybrid", "--rerank", recipe.output / "rerank" / "model")
    model, index = recipe.output / "model", recipe.output / "index"
    found = recipe.ask(split, model, index, *flags, name="reranked")
    title = f"hybrid, its first {RERANKED} reranked by a model of pairs"
    yield title, judge([ranks(found, recipe.queries(split))])


if __name__ == "__main__":
    try:
        main(tyro.cli(SearchBenchmark))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
