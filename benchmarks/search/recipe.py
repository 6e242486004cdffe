"""The roformer-tf commands that build a search in a manual, in their order.

A finished step leaves a file in the folder `steps` that contains its command. After an
interruption the next run resumes the unfinished step.
"""

import gzip
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.search.manual import DOCUMENTS, QUERIES
from benchmarks.search.search_figures import Queries
from benchmarks.search.translations import TranslationConfig
from benchmarks.search.translations import main as write_translations
from pretrain.demo.corpus import write_corpus
from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file, temporary_folder, write_text

CONFIGS = Path("benchmarks/search")
# Tokens of a passage. On the valid queries 112 to 160 were equally good; shorter is cheaper.
PASSAGE_LENGTH = 112
# Weight of the cosine relative to max-normalized BM25; chosen on the valid queries.
HYBRID_WEIGHT = 1.0
# Weight of a page's first passage relative to its nearest; chosen on the valid queries.
BEGINNING_WEIGHT = 0.5
RERANKED = 50
# Wrong pages for each query in the training of the reranker.
WRONG = 4


@dataclass(frozen=True)
class SearchRecipe:
    """Paths and settings of a search in a manual, and its steps."""

    data: Path
    output: Path
    seeds: int
    translations: bool = True
    """Also train on a program's strings in two languages."""
    checkpoint: str | None = None
    """The model to start from. None: pretrain one on the pages."""

    @property
    def documents(self) -> Path:
        """The file of pages."""
        return self.data / DOCUMENTS

    @property
    def start(self) -> str | Path:
        """The model before any training of vectors."""
        return self.checkpoint or self._at("pretrained") / "model"

    def queries(self, split: str) -> Queries:
        """Return the queries of train, valid or test. Raises InputError if the file is missing."""
        path = self.data / QUERIES.format(split)
        try:
            rows = gzip.decompress(path.read_bytes()).decode().splitlines()[1:]
        except OSError as error:
            raise InputError(
                f"cannot read {path}: {error.strerror or error}. --data is a folder as "
                "`python -m benchmarks.search.manual --output FOLDER` makes it."
            ) from None
        texts, documents = zip(*(row.split("\t") for row in rows), strict=True)
        return Queries(list(texts), list(documents))

    # Files that commands read

    def write_translations(self) -> None:
        """Write a program's strings in two languages. Raises InputError if apt fails."""
        if self.translations and not self._at("translations.jsonl").exists():
            self.output.mkdir(parents=True, exist_ok=True)
            write_translations(TranslationConfig(self._at("translations.jsonl")))

    def write_files(self) -> None:
        """Write news for pretraining, pairs of query and page, and queries, one a line."""
        if not self._at("news.jsonl").exists():
            write_corpus(self._at("news.jsonl"))
        texts = self.texts()
        for split in ("train", "valid", "test"):
            queries = self.queries(split)
            write_text(self._at(f"{split}.txt"), "".join(f"{text}\n" for text in queries.texts))
            pairs = zip(queries.texts, queries.documents, strict=True)
            rows = ({"query": query, "text": texts[page]} for query, page in pairs)
            _write_jsonl(self._at(f"{split}.jsonl"), rows)

    def write_labelled(self) -> None:
        """Write queries with their own page (label 1) and with wrong search results (label 0).

        Wrong pages are drawn from all results that a reranker reads, but only pages that are right
        for another query of the same split. Otherwise the model would memorize the pages of the
        other splits as wrong, because they never occur with label 1.
        """
        texts, random = self.texts(), np.random.default_rng(0)
        for split in ("train", "valid"):
            page_by_query = dict(zip(*self.queries(split), strict=True))
            relevant = set(page_by_query.values())
            actual: dict[str, list[str]] = {query: [] for query in page_by_query}
            with self.results_path(f"candidates-{split}").open(encoding="utf-8") as lines:
                columns = next(lines).rstrip("\n").split("\t")
                for line in lines:
                    cells = dict(zip(columns, line.rstrip("\n").split("\t"), strict=True))
                    actual[cells["query"]].append(cells["id"])
            rows = []
            for query, pages in actual.items():
                rest = [page for page in pages if page in relevant and page != page_by_query[query]]
                drawn = random.permutation(len(rest))[:WRONG]
                for page in (page_by_query[query], *[rest[number] for number in drawn]):
                    label = str(int(page == page_by_query[query]))
                    rows.append({"query": query, "text": texts[page], "label": label})
            _write_jsonl(self._at(f"labelled-{split}.jsonl"), rows)

    # Commands

    def make(self) -> None:
        """Train the models, average them, and build `model` and `index`."""
        self.output.mkdir(parents=True, exist_ok=True)
        self.write_files()
        before = self.start
        if not self.checkpoint:
            corpora = ("--corpus", self.documents, self._at("news.jsonl"))
            output = ("--output", self._at("pretrained"))
            self.step("pretrain", *corpora, *_config("pretrain"), *output)
        if self.translations:
            pairs = ("--train", self._at("translations.jsonl"), "--output", self._at("translated"))
            self.step("finetune", *_config("translations"), "--checkpoint", before, *pairs)
            before = self._at("translated") / "model"
        pairs = ("--train", self._at("train.jsonl"), "--valid", self._at("valid.jsonl"))
        for seed in range(self.seeds):
            self.train("pages", seed, before, "--train", self.documents)
            self.train("pairs", seed, self.model_path("pages", seed), *pairs)
        self.average("pages", self._at("pages") / "model")
        self.average("pairs", self._at("model"))
        self.index(self._at("model"), self._at("index"))

    def train(self, kind: str, seed: int, start: str | Path, *sets: object) -> None:
        """Train a model on the pages or on the pairs, with the config of that name."""
        arguments = ("--checkpoint", start, "--seed", seed, *sets)
        output = ("--output", self.model_path(kind, seed).parent)
        self.step("finetune", *_config(kind), *arguments, *output)

    def average(self, kind: str, model: Path) -> None:
        """Average the weights of all runs of a kind; the result is better than each run.

        The runs start from the same checkpoint, so averaging is possible.
        """
        models = [self.model_path(kind, seed) for seed in range(self.seeds)]
        if len(models) > 1:
            self.step("checkpoints", "average", *models, "--output", model, replaced=True)
        elif not model.exists():
            with temporary_folder(model) as temporary:
                shutil.copytree(models[0], temporary, dirs_exist_ok=True)

    def model_path(self, kind: str, seed: int) -> Path:
        """Return the folder of the model trained on the pages or on the pairs with this seed."""
        return self._at(f"{kind}-{seed}") / "model"

    def train_reranker(self) -> None:
        """Train a cross-encoder on search results for the training queries.

        The results come from the model trained on pages only, which has not seen the queries. A
        model trained on them would return wrong pages that are too easy, unlike for new queries.
        """
        model, index = self._at("pages") / "model", self._at("indexes") / "pages"
        self.index(model, index)
        search = ("--model", model, "--index", index, "--hybrid")
        for split in ("train", "valid"):
            actual = self.results_path(f"candidates-{split}")
            queries = ("--queries", self._at(f"{split}.txt"), "--top", RERANKED)
            self.step("search", *search, *queries, "--output", actual)
        self.write_labelled()
        sets = [("--train", "labelled-train.jsonl"), ("--valid", "labelled-valid.jsonl")]
        arguments = [x for flag, name in sets for x in (flag, self._at(name))]
        start = ("--checkpoint", model)
        self.step(
            "finetune", *_config("reranker"), *start, *arguments, "--output", self._at("rerank")
        )

    def index(self, model: Path, folder: Path) -> None:
        """Build an index of the pages that stores the chosen search settings."""
        settings = (
            *("--passage-length", PASSAGE_LENGTH, "--hybrid-weight", HYBRID_WEIGHT),
            *("--beginning-weight", BEGINNING_WEIGHT),
        )
        self.step(
            "search", "--model", model, "--documents", self.documents, "--index", folder, *settings
        )

    def search(self, split: str, model: Path, index: Path, *flags: object, name: str) -> Path:
        """Search with the queries of a split; return the file of results."""
        actual = self.results_path(f"{name}-{split}")
        queries = ("--queries", self._at(f"{split}.txt"), "--top", RERANKED, "--output", actual)
        self.step("search", "--model", model, "--index", index, *queries, *flags)
        return actual

    def results_path(self, name: str) -> Path:
        """Return the path of a file of search results."""
        return self._at("found") / f"{name}.tsv"

    def step(self, *words: object, replaced: bool = False) -> None:
        """Run a roformer-tf command, unless it is already finished.

        If its command line or one of its inputs has changed, its output is removed and it runs
        again. replaced: remove existing output first, for commands that do not overwrite it.
        """
        command_line = f"roformer-tf {shlex.join(map(str, words))}"
        output = Path(str(words[words.index("--output" if "--output" in words else "--index") + 1]))
        mark = self._mark(output)
        if mark.exists() and mark.read_text(encoding="utf-8").strip() == command_line:
            if self._is_newest(mark, words):
                print(f"done: {command_line}", flush=True)
                return
            replaced = True
        print(f"\n$ {command_line}", flush=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        if replaced and output.is_dir():
            shutil.rmtree(output)
        mark.unlink(missing_ok=True)  # if killed after this, the next run resumes the step
        if code := run_command(list(map(str, words))):
            raise SystemExit(code)
        write_text(mark, command_line + "\n")

    def _mark(self, output: Path) -> Path:
        """Return the file that marks the step with this output as finished."""
        return self._at("steps") / "-".join(output.relative_to(self.output).parts)

    def _is_newest(self, mark: Path, words: Sequence[object]) -> bool:
        """Return whether no input of a step (a folder or the model in it) is newer than it."""
        paths = [word for word in words if isinstance(word, Path) and self.output in word.parents]
        marks = [self._mark(result) for path in paths for result in (path, path.parent)]
        result = [other.stat().st_mtime_ns for other in marks if other.is_file()]
        return max(result) <= mark.stat().st_mtime_ns

    def texts(self) -> dict[str, str]:
        """Return the text of each page by its name."""
        lines = gzip.decompress(self.documents.read_bytes()).decode().splitlines()
        return {row["id"]: row["text"] for row in map(json.loads, lines)}

    def _at(self, name: str) -> Path:
        return self.output / name


def run_command(words: list[str]) -> int:
    """Run roformer-tf in a separate process; return its exit code."""
    return subprocess.run([sys.executable, "-m", "roformer_tf", *words], check=False).returncode


def _config(name: str) -> tuple[str, str]:
    return "--config", str(CONFIGS / f"{name}.yaml")


def _write_jsonl(path: Path, rows: Iterable[dict[str, str]]) -> None:
    with (
        temporary_file(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
