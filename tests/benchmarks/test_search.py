import gzip
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.search import __main__ as command
from benchmarks.search import recipe as recipes
from benchmarks.search.__main__ import SearchBenchmark, by_words
from benchmarks.search.recipe import SearchRecipe
from benchmarks.search.search_figures import NEVER, Queries, evaluate, ranks, table
from roformer_tf import cli
from roformer_tf.errors import InputError

PAGES = {
    "a/1": "日期函数计算两个日期之间的天数。",
    "b": "打印文档，选择打印机。",
    "c": "公式与引用。",
}
QUERIES = {"train": {"打印": "b"}, "valid": {"公式": "c"}, "test": {"天数": "a/1", "打印机": "b"}}


@dataclass(frozen=True)
class RecordingRecipe(SearchRecipe):
    """A recipe that records its commands; the next command exits with the last of `codes`."""

    run: list = field(default_factory=list)
    codes: list = field(default_factory=lambda: [0])


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A recipe for three pages that records its commands instead of running them."""
    data = tmp_path / "data"
    data.mkdir()
    rows = (json.dumps({"id": name, "text": text}) + "\n" for name, text in PAGES.items())
    (data / "documents.jsonl.gz").write_bytes(gzip.compress("".join(rows).encode()))
    for split, queries in QUERIES.items():
        lines = ["query\tid", *(f"{query}\t{page}" for query, page in queries.items())]
        path = data / f"queries_{split}.tsv.gz"
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    result = RecordingRecipe(data, tmp_path / "out", 2)

    def run(words):
        result.run.append(words)
        return result.codes[-1]

    monkeypatch.setattr(recipes, "run_command", run)
    monkeypatch.setattr(recipes, "write_corpus", lambda path: path.write_text("{}"))
    monkeypatch.setattr(
        recipes, "write_translations", lambda config: config.output.write_text("{}")
    )
    return result


def write_results(path, rows):
    lines = ["query\trank\tscore\tdocument\tid", *("\t".join(map(str, row)) for row in rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_ranks_are_those_of_the_relevant_document(tmp_path):
    rows = [("甲", 1, 0.9, "x", "b"), ("甲", 2, 0.8, "y", "a"), ("乙", 1, 0.7, "y", "a")]
    path = write_results(tmp_path / "found.tsv", rows)
    assert ranks(path, Queries(["乙", "甲", "乙"], ["a", "a", "b"])) == [1, 2, NEVER]
    with pytest.raises(InputError, match="no results for '丙'"):
        ranks(path, Queries(["丙"], ["a"]))


def test_figures_are_means_over_seeds_and_queries():
    item = evaluate([[1, 2, 11, NEVER], [1, 1, 10, 4]])
    assert item.figures["recall_at_1"] == pytest.approx((0.25 + 0.5) / 2)
    assert item.figures["recall_at_10"] == pytest.approx((0.5 + 1) / 2)
    assert item.figures["mrr_at_10"] == pytest.approx((1.5 + 2.35) / 8)
    assert item.spread["recall_at_10"] == pytest.approx(0.5)
    low, high = item.intervals["mrr_at_10"]
    assert low < item.figures["mrr_at_10"] < high


def test_an_interval_is_that_of_a_proportion():
    rng = np.random.default_rng(0)
    drawn = rng.integers(1, 30, 400)
    low, high = evaluate([drawn.tolist()]).intervals["recall_at_10"]
    share = np.mean(drawn <= 10)
    error = 1.96 * np.sqrt(share * (1 - share) / 400)
    assert low == pytest.approx(share - error, abs=0.01)
    assert high == pytest.approx(share + error, abs=0.01)


def test_a_table_has_a_line_for_each_method():
    lines = table({"BM25": evaluate([[1, 2]]), "hybrid": evaluate([[1, 1]])}).splitlines()
    assert lines[2].startswith("| BM25 | 0.500 | 1.000 — | 0.750 [")
    assert len({line.count("|") for line in lines}) == 1


def test_search_by_words_returns_the_right_pages(recipe):
    for _, item in by_words(recipe, "test"):
        assert item.figures["recall_at_10"] == 1


def test_commands_run_once_and_use_each_others_output(recipe):
    recipe.output.mkdir()
    recipe.make()
    commands = [" ".join(words) for words in recipe.run]
    kinds = [words.split()[0] for words in commands]
    assert kinds == ["pretrain", *["finetune"] * 5, "checkpoints", "checkpoints", "search"]
    models = {  # each output and the models that its command reads
        "translated": ["pretrained/model"],
        "pages-0": ["translated/model"],
        "pairs-0": ["pages-0/model"],
        "pages-1": ["translated/model"],
        "pairs-1": ["pages-1/model"],
        "pages": ["pages-0/model", "pages-1/model"],
        "model": ["pairs-0/model", "pairs-1/model"],
        "index": ["model"],
    }
    for words, (output, arguments) in zip(recipe.run[1:], models.items(), strict=True):
        target = words[words.index("--index" if output == "index" else "--output") + 1]
        target = Path(target).relative_to(recipe.output)
        assert target == Path(output) / ("model" if output == "pages" else "")
        read = [Path(word) for word in words if word.endswith("/model")]
        read = [str(path.relative_to(recipe.output)) for path in read]
        assert [name for name in read if name != str(target)] == arguments
        if words[0] == "finetune":
            assert output == "translated" or f"--seed {output[-1]}" in " ".join(words)
    assert "translations.jsonl" in commands[1]
    assert recipe.data.joinpath("documents.jsonl.gz").name in commands[2]
    assert "train.jsonl" in commands[3]
    files = [Path(word).name for words in recipe.run for word in words]
    assert "train.jsonl" in files
    # Test queries are used only for evaluation.
    assert not {"test.jsonl", "test.txt", "queries_test.tsv.gz"} & set(files)
    recipe.make()
    assert len(recipe.run) == len(commands)


def test_a_checkpoint_takes_the_place_of_pretraining(recipe):
    recipe = replace(recipe, checkpoint="a-model", translations=False)
    recipe.output.mkdir()
    recipe.make()
    assert "pretrain" not in [words[0] for words in recipe.run]
    starts = [words[words.index("--checkpoint") + 1] for words in recipe.run[:4]]
    assert [starts[0], starts[2]] == ["a-model"] * 2
    assert [Path(path).parent.name for path in starts[1::2]] == ["pages-0", "pages-1"]
    recipe.run.clear()
    replace(recipe, checkpoint="a-model", translations=True).make()
    assert recipe.run[0][recipe.run[0].index("--checkpoint") + 1] == "a-model"


def test_more_seeds_rebuild_the_mean_and_everything_based_on_it(recipe):
    def all_of(recipe):
        recipe.make()
        recipe.search("test", recipe.output / "model", recipe.output / "index", name="hybrid")
        recipe.search(
            "test", recipe.model_path("pairs", 0), recipe.output / "indexes" / "pairs-0", name="one"
        )

    all_of(recipe)
    recipe.run.clear()
    all_of(recipe)
    assert not recipe.run
    (recipe.output / "index").mkdir()
    all_of(replace(recipe, seeds=3))
    outputs = [
        words[words.index("--output") + 1 :][0] for words in recipe.run if words[0] != "search"
    ]
    folders = ["pages-2", "pairs-2", "pages/model", "model"]
    assert outputs == [str(recipe.output / name) for name in folders]
    searches = [words for words in recipe.run if words[0] == "search"]
    assert [("--documents" in words, words[2]) for words in searches] == [
        (True, str(recipe.output / "model")),
        (False, str(recipe.output / "model")),
    ]
    assert not (recipe.output / "index").exists()  # removed; the real command would write it


def test_a_rebuilt_step_resumes_after_a_kill(recipe):
    model, run = recipe.output / "pages-0" / "model", recipe.output / "pairs-0"
    train = ("finetune", "--checkpoint", model, "--output", run)
    recipe.step("finetune", "--output", model.parent)
    recipe.step(*train)
    recipe.step("finetune", "--output", model.parent, "--seed", 1)
    (run / "old").mkdir(parents=True)
    recipe.codes.append(9)
    with pytest.raises(SystemExit):
        recipe.step(*train)
    assert not run.exists()
    (run / "half").mkdir(parents=True)
    recipe.codes.append(0)
    recipe.step(*train)
    assert (run / "half").exists()
    count = len(recipe.run)
    recipe.step(*train)
    assert len(recipe.run) == count


def test_a_single_run_is_copied_as_the_model(recipe):
    alone = replace(recipe, seeds=1)
    for kind in ("pages", "pairs"):
        alone.model_path(kind, 0).mkdir(parents=True)
        (alone.model_path(kind, 0) / "config.json").write_text(kind)
    alone.make()
    assert [words[0] for words in alone.run].count("checkpoints") == 0
    assert (recipe.output / "pages" / "model" / "config.json").read_text() == "pages"
    assert (recipe.output / "model" / "config.json").read_text() == "pairs"


def test_an_unmarked_mean_is_rebuilt(recipe):
    model = recipe.output / "model"
    model.mkdir(parents=True)
    recipe.average("pairs", model)
    assert not model.exists()  # removed; the real command would write it
    model.mkdir()
    recipe.average("pairs", model)
    assert len(recipe.run) == 1
    assert model.exists()


def test_vectors_are_evaluated_for_each_run_and_for_the_mean(recipe, monkeypatch):
    searches = []

    def search(split, model, index, *flags, name):
        searches.append((model.relative_to(recipe.output), index.name, "--hybrid" in flags))
        rows = [(query, 1, 1.0, "…", page) for query, page in QUERIES[split].items()]
        return write_results(recipe.results_path(name), rows)

    monkeypatch.setattr(
        SearchRecipe, "search", lambda self, *arguments, **name: search(*arguments, **name)
    )
    figures_by_title = dict(command.by_vectors(recipe, "test"))
    assert all(item.figures["recall_at_1"] == 1 for item in figures_by_title.values())
    each = [(Path(f"{kind}-{s}/model"), f"{kind}-{s}") for kind in ("pages", "pairs") for s in "01"]
    means = [(Path("pages/model"), "pages"), (Path("model"), "index")]
    for model, index in [*each, *means]:
        assert [hybrid for *where, hybrid in searches if where == [model, index]] == [False, True]
    assert len(searches) == 2 * len([*each, *means]) + 1
    assert len([name for name in figures_by_title if name.endswith("weights averaged")]) == 4
    assert len(figures_by_title) == 9


def test_without_translations_training_starts_with_the_pages(recipe, monkeypatch, capsys):
    def fails(config):
        raise InputError("apt-get failed for libreoffice-l10n-zh-cn.")

    monkeypatch.setattr(recipes, "write_translations", fails)
    result = []
    monkeypatch.setattr(SearchRecipe, "make", lambda self: result.append(self.translations))
    monkeypatch.setattr(command, "by_words", lambda *arguments: iter([]))
    monkeypatch.setattr(command, "by_vectors", lambda *arguments: iter([]))
    for translations in (True, False):
        command.main(
            SearchBenchmark(recipe.data, recipe.output, translations=translations, reranker=False)
        )
    assert result == [False, False]
    assert capsys.readouterr().err.count("learns without translations") == 1
    monkeypatch.undo()
    without = replace(recipe, translations=False)
    monkeypatch.setattr(recipes, "run_command", lambda words: without.run.append(words) or 0)
    monkeypatch.setattr(recipes, "write_corpus", lambda path: path.write_text("{}"))
    without.make()
    commands = [" ".join(words) for words in without.run]
    assert not any("translations.jsonl" in words or "translated" in words for words in commands)
    assert sum("pretrained/model" in words for words in commands) == 2


def test_a_command_that_failed_is_run_again(recipe):
    recipe.codes.append(3)
    for _ in range(2):
        with pytest.raises(SystemExit) as stopped:
            recipe.step("finetune", "--output", recipe.output / "pairs-0")
        assert stopped.value.code == 3
    assert len(recipe.run) == 2
    recipe.codes.append(0)
    recipe.step("finetune", "--output", recipe.output / "pairs-0")
    recipe.step("finetune", "--output", recipe.output / "pairs-0")
    assert len(recipe.run) == 3
    recipe.step("search", "--index", recipe.output / "indexes" / "pairs-0")
    recipe.step("finetune", "--output", recipe.output / "pairs-0")
    assert len(recipe.run) == 4  # the index has the same name but another path
    recipe.step("finetune", "--output", recipe.output / "pairs-0", "--seed", 1)
    assert len(recipe.run) == 5  # the command changed


def test_reranker_pairs_have_wrong_results_of_the_same_split(recipe):
    recipe.output.mkdir()
    recipe.write_files()
    train = [json.loads(x) for x in (recipe.output / "train.jsonl").read_text("utf-8").splitlines()]
    assert train == [{"query": "打印", "text": PAGES["b"]}]
    assert (recipe.output / "test.txt").read_text("utf-8") == "天数\n打印机\n"
    relevant = {"train": {"打印": "b", "天数": "a/1"}, "valid": {"公式": "c"}}
    for split, queries in relevant.items():
        path = recipe.data / f"queries_{split}.tsv.gz"
        lines = ["query\tid", *(f"{query}\t{page}" for query, page in queries.items())]
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
        near = [
            (query, rank, 1.0, "…", name)
            for query in queries
            for rank, name in enumerate(("a/1", "b", "c"), 1)
        ]
        write_results(recipe.results_path(f"candidates-{split}"), near)
    recipe.write_labelled()
    lines = (recipe.output / "labelled-train.jsonl").read_text("utf-8").splitlines()
    rows = [(x["query"], x["text"], x["label"]) for x in map(json.loads, lines)]
    assert rows == [  # without c, which is not relevant to any training query
        ("打印", PAGES["b"], "1"),
        ("打印", PAGES["a/1"], "0"),
        ("天数", PAGES["a/1"], "1"),
        ("天数", PAGES["b"], "0"),
    ]


def test_a_folder_without_data_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"benchmarks\.search\.manual"):
        SearchRecipe(tmp_path, tmp_path / "out", 1).queries("test")


def test_the_commands_and_their_configs_are_valid(recipe, monkeypatch):
    from roformer_tf.conversion import average as averaging
    from roformer_tf.finetuning import command as finetuning
    from roformer_tf.pretraining import command as pretraining
    from roformer_tf.search import command as searching

    def pretrain(config: pretraining.PretrainConfig) -> None:
        seen.append(config)

    def finetune(config: finetuning.FinetuneConfig, adapt: object, files: object) -> None:
        seen.append(config)

    def search(config: searching.SearchConfig) -> None:
        seen.append(config)

    def average(config: averaging.AverageConfig) -> None:
        seen.append(config)

    seen = []
    monkeypatch.setattr(averaging, "average", average)
    monkeypatch.setattr(pretraining, "pretrain", pretrain)
    monkeypatch.setattr(finetuning, "finetune", finetune)
    monkeypatch.setattr(searching, "search", search)
    for name in ("found/candidates-train.tsv", "found/candidates-valid.tsv"):
        write_results(recipe.output / name, [])
    recipe.make()
    recipe.train_reranker()
    unseen = str(recipe.output / "pages" / "model")  # the model not trained on pairs
    reranking = [
        words for words in recipe.run if "rerank" in words[-1] or "candidates" in words[-1]
    ]
    assert [words[0] for words in reranking] == ["search", "search", "finetune"]
    assert all(unseen in words for words in reranking)
    recipe.search(
        "test", recipe.output / "model", recipe.output / "index", "--hybrid", name="hybrid"
    )
    for words in recipe.run:
        assert cli.main(words) == 0
    assert [item.task for item in seen if hasattr(item, "task")] == [*["embedding"] * 5, "pair"]
    means = [item for item in seen if isinstance(item, averaging.AverageConfig)]
    assert [mean.output.name for mean in means] == ["model", "model"]
    index = seen[seen.index(means[-1]) + 1]
    assert index.passage_length == recipes.PASSAGE_LENGTH <= seen[3].max_length
    assert index.hybrid_weight == recipes.HYBRID_WEIGHT
    assert index.beginning_weight == recipes.BEGINNING_WEIGHT
    assert seen[-1].hybrid
    assert seen[-1].hybrid_weight is None  # read from the index
