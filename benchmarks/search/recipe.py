"""The commands that a search in a manual is made of, in their order, as a user types them.

A step is done when its mark is in the folder `steps`, with exactly its command. After a kill, the
next run continues with the step that was running, which itself resumes where it stopped.
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
# Tokens; prototypes on the valid queries found 112 to 160 alike, and fewer cost less.
PASSAGE_LENGTH = 112
# Of a cosine relative to max-normalized BM25; chosen on the valid queries.
HYBRID_WEIGHT = 1.0
# Of a page's first passage relative to its nearest; chosen on the valid queries, too.
BEGINNING_WEIGHT = 0.5
RERANKED = 50
# Wrong pages for each query in the training of the reranker.
WRONG = 4


@dataclass(frozen=True)
class SearchRecipe:
    """Where everything comes from and goes to."""

    data: Path
    output: Path
    seeds: int
    translations: bool = True
    """Whether it learns from a program's strings in two languages, too."""

    @property
    def documents(self) -> Path:
        """The pages."""
        return self.data / DOCUMENTS

    def queries(self, split: str) -> Queries:
        """The queries of train, valid or test. Raises InputError where there are none."""
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
        """A program's strings in two languages. Raises InputError where apt cannot fetch them."""
        if self.translations and not self._at("translations.jsonl").exists():
            self.output.mkdir(parents=True, exist_ok=True)
            write_translations(TranslationConfig(self._at("translations.jsonl")))

    def write_files(self) -> None:
        """Text of another kind for pretraining; pairs with their pages; queries, one a line."""
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
        """Queries with their own page, 1, and with other pages that were found for them, 0.

        The others are drawn from all that a reranker reads, of pages that queries of the same split
        ask for: each page is right for some and wrong for others. A page that was only ever wrong,
        as all of valid's and test's would be in training, would be memorized as wrong.
        """
        texts, random = self.texts(), np.random.default_rng(0)
        for split in ("train", "valid"):
            owners = dict(zip(*self.queries(split), strict=True))
            asked = set(owners.values())
            actual: dict[str, list[str]] = {query: [] for query in owners}
            with self.found(f"candidates-{split}").open(encoding="utf-8") as lines:
                columns = next(lines).rstrip("\n").split("\t")
                for line in lines:
                    cells = dict(zip(columns, line.rstrip("\n").split("\t"), strict=True))
                    actual[cells["query"]].append(cells["id"])
            rows = []
            for query, pages in actual.items():
                rest = [page for page in pages if page in asked and page != owners[query]]
                drawn = random.permutation(len(rest))[:WRONG]
                for page in (owners[query], *[rest[number] for number in drawn]):
                    label = str(int(page == owners[query]))
                    rows.append({"query": query, "text": texts[page], "label": label})
            _write_jsonl(self._at(f"labelled-{split}.jsonl"), rows)

    # Commands

    def make(self) -> None:
        """Train the models, and make `model` and `index` of all."""
        self.output.mkdir(parents=True, exist_ok=True)
        self.write_files()
        pretrained, corpora = self._at("pretrained"), (self.documents, self._at("news.jsonl"))
        self.step("pretrain", "--corpus", *corpora, *_config("pretrain"), "--output", pretrained)
        if self.translations:
            start = ("--checkpoint", pretrained / "model")
            pairs = ("--train", self._at("translations.jsonl"), "--output", self._at("translated"))
            self.step("finetune", *_config("translations"), *start, *pairs)
        before = self._at("translated" if self.translations else "pretrained") / "model"
        pairs = ("--train", self._at("train.jsonl"), "--valid", self._at("valid.jsonl"))
        for seed in range(self.seeds):
            self.train("pages", seed, before, "--train", self.documents)
            self.train("pairs", seed, self.trained("pages", seed), *pairs)
        self.average("pages", self._at("pages") / "model")
        self.average("pairs", self._at("model"))
        self.index(self._at("model"), self._at("index"))

    def train(self, kind: str, seed: int, start: Path, *sets: object) -> None:
        """Train a model on the pages, or on the pairs, as the config of that name says."""
        arguments = ("--checkpoint", start, "--seed", seed, *sets)
        output = ("--output", self.trained(kind, seed).parent)
        self.step("finetune", *_config(kind), *arguments, *output)

    def average(self, kind: str, model: Path) -> None:
        """Make one model of all trainings of a kind, which began alike: it is better than each."""
        trained = [self.trained(kind, seed) for seed in range(self.seeds)]
        if len(trained) > 1:
            self.step("checkpoints", "average", *trained, "--output", model, replaced=True)
        elif not model.exists():
            with temporary_folder(model) as temporary:
                shutil.copytree(trained[0], temporary, dirs_exist_ok=True)

    def trained(self, kind: str, seed: int) -> Path:
        """The model that one training has made of the pages, or of the pairs."""
        return self._at(f"{kind}-{seed}") / "model"

    def train_reranker(self) -> None:
        """Train a model of pairs on what a search finds for train's queries.

        It is a search that has not seen them. The other one was trained on their pages: the wrong
        pages that it finds for them differ much, and those for new queries little.
        """
        model, index = self._at("pages") / "model", self._at("indexes") / "pages"
        self.index(model, index)
        search = ("--model", model, "--index", index, "--hybrid")
        for split in ("train", "valid"):
            actual = self.found(f"candidates-{split}")
            asked = ("--queries", self._at(f"{split}.txt"), "--top", RERANKED)
            self.step("search", *search, *asked, "--output", actual)
        self.write_labelled()
        sets = [("--train", "labelled-train.jsonl"), ("--valid", "labelled-valid.jsonl")]
        arguments = [x for flag, name in sets for x in (flag, self._at(name))]
        start = ("--checkpoint", model)
        self.step(
            "finetune", *_config("reranker"), *start, *arguments, "--output", self._at("rerank")
        )

    def index(self, model: Path, folder: Path) -> None:
        """Make an index of the pages by a model, which remembers how it is best searched."""
        kept = (
            *("--passage-length", PASSAGE_LENGTH, "--hybrid-weight", HYBRID_WEIGHT),
            *("--beginning-weight", BEGINNING_WEIGHT),
        )
        self.step(
            "search", "--model", model, "--documents", self.documents, "--index", folder, *kept
        )

    def ask(self, split: str, model: Path, index: Path, *flags: object, name: str) -> Path:
        """Ask the queries of a split; the file of what was found."""
        actual = self.found(f"{name}-{split}")
        asked = ("--queries", self._at(f"{split}.txt"), "--top", RERANKED, "--output", actual)
        self.step("search", "--model", model, "--index", index, *asked, *flags)
        return actual

    def found(self, name: str) -> Path:
        """The file of what a search found."""
        return self._at("found") / f"{name}.tsv"

    def step(self, *words: object, replaced: bool = False) -> None:
        """Run a command of roformer-tf, unless it was run to its end before.

        It is run again, in place of what it made, where something that it reads was made anew.
        replaced: what another command of this step has left is removed first, for a command that
        overwrites nothing.
        """
        typed = f"roformer-tf {shlex.join(map(str, words))}"
        output = Path(str(words[words.index("--output" if "--output" in words else "--index") + 1]))
        mark = self._mark(output)
        if mark.exists() and mark.read_text(encoding="utf-8").strip() == typed:
            if self._is_newest(mark, words):
                print(f"done: {typed}", flush=True)
                return
            replaced = True
        print(f"\n$ {typed}", flush=True)
        output.parent.mkdir(parents=True, exist_ok=True)
        if replaced and output.is_dir():
            shutil.rmtree(output)
        mark.unlink(missing_ok=True)  # a kill from here on leaves something to go on with
        if code := run_command(list(map(str, words))):
            raise SystemExit(code)
        write_text(mark, typed + "\n")

    def _mark(self, output: Path) -> Path:
        """The mark of the finished step that makes a file or folder."""
        return self._at("steps") / "-".join(output.relative_to(self.output).parts)

    def _is_newest(self, mark: Path, words: Sequence[object]) -> bool:
        """Whether nothing that a step reads, a folder or the model in it, was made after it."""
        paths = [word for word in words if isinstance(word, Path) and self.output in word.parents]
        marks = [self._mark(result) for path in paths for result in (path, path.parent)]
        result = [other.stat().st_mtime_ns for other in marks if other.is_file()]
        return max(result) <= mark.stat().st_mtime_ns

    def texts(self) -> dict[str, str]:
        """The text of each page."""
        lines = gzip.decompress(self.documents.read_bytes()).decode().splitlines()
        return {row["id"]: row["text"] for row in map(json.loads, lines)}

    def _at(self, name: str) -> Path:
        return self.output / name


def run_command(words: list[str]) -> int:
    """Run roformer-tf in a process of its own; its exit code."""
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
