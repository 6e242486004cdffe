import base64
import html as markup
import io
import json
import re
import warnings
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from statistics import mean, pstdev, stdev

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from jinja2 import UndefinedError
from matplotlib.figure import Figure

from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.report.analysis import EvaluatedSet, ReportData, analyse
from roformer_tf.finetuning.report.figures import figure
from roformer_tf.finetuning.report.figures import warnings as report_warnings
from roformer_tf.finetuning.report.pages import duration, html_page, markdown_page, write_report
from roformer_tf.finetuning.results import print_summary
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.labelled.examples import Example, labels_of
from roformer_tf.labelled.splits import Duplicates
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.scoring import MISTAKES
from roformer_tf.tasks.table import TASKS
from roformer_tf.training import plots
from roformer_tf.training.run_files import plain
from roformer_tf.translation import LANGUAGES, Message, Translator
from tests.support.report_run import BASELINE, english_in, make_run, prediction_of

SLOW_TASKS = ("pair", "paraphrase")  # their reports have the same sections as two other tasks
REPORTED = [pytest.param(x, marks=pytest.mark.slow) if x in SLOW_TASKS else x for x in TASKS]
EVIL = "<script>alert(1)</script> & \"'|`*[a](b)_"


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(autouse=True)
def font(request, monkeypatch):
    """Replace the slow subsetting of the font, except in the test of the font itself."""
    if "the_page_needs_no_other_file" not in request.node.name:
        monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")


class Page(HTMLParser):
    """Parse the elements, addresses and visible text of a page, as a browser does."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.text, self.open, self.addresses = [], "", [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.open.append(tag)
        self.addresses += [v for k, v in attributes if k in ("src", "href")]

    def handle_endtag(self, tag):
        while self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"style", "script"} & {*self.open}:
            self.text += data


@cache
def cached_report(name):
    """Return the report of a task's run, shared by several tests, which must not change it."""
    return analyse(make_run(name))


def figure_contents(figure):
    """Return the contents of a figure as bytes: rendering it takes most of a page's time."""
    actual = []
    for axes in figure.axes:
        actual += [axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), axes.get_xlim()]
        for item in (*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts):
            actual += [item.get_position(), item.get_text()]
        actual += [line.get_xydata().tolist() for line in axes.lines]
        actual += [patch.get_extents().bounds for patch in axes.patches]
        actual += [shapes.get_offsets().tolist() for shapes in axes.collections]
        actual += [image.get_array().tolist() for image in axes.images]
    return repr(actual).encode()


@pytest.mark.quick_cases("classification", "tagging", "regression", "embedding", "multi*", "spans")
@pytest.mark.parametrize("name", REPORTED)
def test_every_task_writes_its_report(name, tmp_path, monkeypatch):
    """Other tests render the pictures: those of languages and of escaping."""
    monkeypatch.setattr(plots, "_svg", figure_contents)
    report = cached_report(name)
    write_report(tmp_path, report)
    assert {path.name for path in tmp_path.iterdir()} == {"report.json", "report.md", "report.html"}
    report_json = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report_json["test"] == report["test"]
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    # The pages depend only on report.json: what was read back gives the same pages.
    assert markdown_page(report_json) == markdown
    assert html_page(report_json) == html
    titles = ["Results", "Errors", "Data", "Training", "Settings", "Hardware and time"]
    for page in (Page(html).text, markdown):
        positions = [
            page.index(f"\n{title}\n" if page is not markdown else f"## {title}")
            for title in titles
        ]
        assert positions == sorted(positions)
        assert (
            figure(
                report["test_unseen"][report["metric"]], TASKS[name].metrics.named(report["metric"])
            )
            in page
        )
        assert "nan" not in page.lower()


@pytest.mark.parametrize("name", TASKS)
def test_metrics_are_computed_from_the_predictions(name):
    run, report = make_run(name), cached_report(name)
    seen = {item.texts for item in run.train.examples}
    new = [i for i, item in enumerate(run.test.examples) if item.texts not in seen]
    assert report["leaks"]["in_train"] == 10
    assert len(new) == 30
    for source, answers in (
        (report, run.test.predictions),
        (report["baseline"], run.baselines[0][1]),
    ):
        gold = [item.label for item in run.test.examples]
        assert source["test"] == run.task.metrics.compute(gold, answers)
        unseen = run.task.metrics.compute([gold[i] for i in new], [answers[i] for i in new])
        assert source["test_unseen"] == unseen != source["test"]
        assert source["intervals"]["test"].keys() == source["test"].keys()
    assert report["data"][0]["longer"] == np.mean(
        [len(x.texts[0]) > 16 for x in run.train.examples]
    )


# The tables, cell by cell, against values computed in plain Python

WORDS = ("差", "好", "中")
SIZES = {"train": 201, "valid": 101, "test": 301}  # percentiles are exact examples
SET_NAMES = {"train": "training set", "valid": "validation set", "test": "test set"}
LEVELS = {"median": 0.5, "90th": 0.9, "99th": 0.99, "longest": 1}
CONFUSED = {
    "差": ("差", "好", "好"),
    "好": ("好", "好", "好", "中"),
    "中": ("中", "差", "差", "差"),
}


def cells_of(page):
    """Return the tables of report.md or report.html by heading, as lists of rows of cells."""
    if page.startswith("#"):
        parts = re.split(r"^## (.*)$", page, flags=re.M)[1:]
        rows = r"(?:^\|.*\n)+"
        actual = {
            title: [
                [
                    line.removeprefix("| ").removesuffix(" |").split(" | ")
                    for line in table.splitlines()
                ]
                for table in re.findall(rows, text, flags=re.M)
            ]
            for title, text in zip(parts[::2], parts[1::2], strict=True)
        }
        return {title: [[t[0], *t[2:]] for t in tables] for title, tables in actual.items()}
    parts = re.split(r"<h2>(.*?)</h2>", page)[1:]
    return {
        title: [
            [
                [
                    markup.unescape(cell).replace("\u00a0", " ")
                    for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
                ]
                for row in re.findall(r"<tr>(.*?)</tr>", table)
            ]
            for table in re.findall(r"<table>(.*?)</table>", text, flags=re.S)
        ]
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def random_examples(rng, name, size):
    """Return examples with distinct texts and imbalanced labels."""
    return [
        Example(
            (f"{name}{number}",), str(rng.choice(WORDS, p=(0.5, 0.35, 0.15))), f"{name}:{number}"
        )
        for number in range(size)
    ]


def random_predictions(rng, examples):
    """Yield predictions whose errors are more frequent in one direction."""
    for item in examples:
        label = str(rng.choice(CONFUSED[item.label]))
        confidence = rng.choice([0.45, 0.55, 0.65, 0.75, 0.85, 0.95])
        scores = dict.fromkeys(WORDS, (1 - confidence) / 2) | {label: confidence}
        yield Prediction(label, np.array([scores[word] for word in WORDS], np.float32))


@pytest.fixture(scope="module")
def counted_run():
    """A run of three labels; 9 test texts are also in train, 5 in valid, and 4 occur twice."""
    rng = np.random.default_rng(3)
    sets = {name: random_examples(rng, name, size) for name, size in SIZES.items()}
    test = sets["test"]
    for number in range(14):
        source = sets["train"][number] if number < 9 else sets["valid"][number]
        test[number] = test[number]._replace(texts=source.texts)
    for number in range(20, 24):
        test[number] = test[number]._replace(texts=test[99 + number].texts)
    parts = {
        name: {"examples": examples, "lengths": rng.permutation(np.arange(len(examples)) + 28)}
        for name, examples in sets.items()
    }
    for name in ("valid", "test"):
        parts[name]["predictions"] = [*random_predictions(rng, sets[name])]
    baseline = [*random_predictions(rng, test)]
    parts["test"]["duplicates"] = Duplicates(sets["train"], test, sets["valid"])
    return ReportData(
        task=Classification(labels=WORDS, max_length=128),
        metric="macro_f1",
        baselines=[(BASELINE, baseline)],
        evaluations=[
            {"step": 10 * i, "epoch": float(i), "accuracy": 0.5 + i / 9, "macro_f1": 0.9 - i / 7}
            for i in (1, 2, 3)
        ],
        trials=[
            {"name": f"rate-{rate:g}-seed-{i}", "learning_rate": rate, "seconds": 60.0 + i}
            | {"valid": {"accuracy": 0.5 + i / 9}, "test": {"accuracy": 0.4 + i / 11}}
            for i, rate in enumerate([1e-5, 2e-5, 2e-5, 2e-5])
        ],
        **{name: EvaluatedSet(**part) for name, part in parts.items()},
    )


@pytest.fixture(scope="module")
def written_report(counted_run, tmp_path_factory):
    """The contents of report.json, the tables of the pages, and the text of each file."""
    folder = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_pages, "cut_font", lambda characters: b"font")
        write_report(folder, analyse(counted_run))
    read = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    tables = cells_of(read["report.md"])
    assert tables == cells_of(read["report.html"])
    return json.loads(read["report.json"]), tables, read


def predicted_labels(answers):
    return [item.label for item in answers]


def plain_metrics(gold, predicted):
    """Return accuracy and macro F1 in plain Python."""
    f1 = []
    for word in WORDS:
        right = sum(a == b == word for a, b in zip(gold, predicted, strict=True))
        f1.append(2 * right / (gold.count(word) + predicted.count(word)))
    right = sum(a == b for a, b in zip(gold, predicted, strict=True))
    return {"accuracy": right / len(gold), "macro_f1": mean(f1)}


def test_the_results_table_is_right_in_each_cell(counted_run, written_report):
    report, tables, read = written_report
    test, valid = counted_run.test, counted_run.valid
    known = {x.texts for x in (*counted_run.train.examples, *valid.examples)}
    texts = [item.texts for item in test.examples]
    new = [i for i, item in enumerate(texts) if item not in known and item not in texts[:i]]
    assert len(new) == SIZES["test"] - 9 - 5 - 4
    all_indices, ((_, baseline),) = range(len(texts)), counted_run.baselines
    rows = []
    for name, part, answers, indices in (
        ("test set", test, test.predictions, all_indices),
        ("test set (new texts)", test, test.predictions, new),
        ("baseline, test set", test, baseline, all_indices),
        ("baseline, test set (new texts)", test, baseline, new),
        ("validation set", valid, valid.predictions, range(len(valid.examples))),
    ):
        labels = labels_of(part.examples)
        gold, answers = [labels[i] for i in indices], [answers[i] for i in indices]
        figures = plain_metrics(gold, predicted_labels(answers))
        source = report["baseline"] if name.startswith("baseline") else report
        key = "valid" if part is valid else "test" if indices is all_indices else "test_unseen"
        assert source[key] == pytest.approx(figures)
        ends = counted_run.task.metrics.intervals(gold, answers)
        assert source["intervals"][key] == {metric: [*pair] for metric, pair in ends.items()}
        cells = [f"{x:.1%} [{ends[m][0]:.1%}, {ends[m][1]:.1%}]" for m, x in figures.items()]
        rows.append([name, f"{len(gold)}", *cells])
    assert tables["Results"] == [[["", "examples", "accuracy", "macro F1"], *rows]]
    assert len({row[2] for row in rows}) == 5  # exchanged rows would be noticed
    assert "about 95 would contain the true figure" in read["report.md"]
    tile = "<span>{}</span> <b>{}</b> <small>{}</small>"
    for row in rows[:-1]:
        value, ends = row[3].split(" ", 1)
        name = row[0] if row[0].startswith("baseline") else f"macro F1, {row[0]}"
        assert tile.format(name, value, ends) in read["report.html"]


def test_the_data_tables_are_right_in_each_cell(counted_run, written_report):
    report, tables, _ = written_report
    parts = {name: getattr(counted_run, name) for name in SIZES}
    lengths, balance, repeated = tables["Data"]
    rows = []
    for name, part in parts.items():
        values = sorted(part.lengths.tolist())
        longer = sum(x > 128 for x in values) / len(values)
        levels = [str(values[round(fraction * (len(values) - 1))]) for fraction in LEVELS.values()]
        rows.append([SET_NAMES[name], str(len(values)), *levels, f"{longer:.1%}"])
    assert lengths[1:] == rows
    levels = ["median length (tokens)", "90th percentile", "99th percentile", "maximum"]
    head = ["set", "examples", *levels, "longer than 128"]
    assert lengths[0] == head
    counts = {name: Counter(labels_of(part.examples)) for name, part in parts.items()}
    assert [item["labels"] for item in report["data"]] == [dict(x) for x in counts.values()]
    assert balance == [
        ["label (fraction of examples)", *SET_NAMES.values()],
        *(
            [word, *(f"{x[word]} ({x[word] / SIZES[name]:.1%})" for name, x in counts.items())]
            for word in ("差", "好", "中")  # most frequent first
        ),
    ]
    known = {
        "test set: also in the training set": 9,
        "test set: also in the validation set": 5,
    }
    assert [[name, str(x)] for name, x in known.items()] == repeated[1:3]
    assert repeated[3:5] == [
        ["test set: repeated within the set", "4"],
        ["training set: repeated within the set", "0"],
    ]
    labels = {}
    for item in chain.from_iterable(part.examples for part in parts.values()):
        labels.setdefault(item.texts, set()).add(item.label)
    more = sum(len(x) > 1 for x in labels.values())
    assert repeated[5] == ["texts with more than one label", str(more)]
    assert more


@pytest.mark.parametrize("name", ["tagging", "spans"])
def test_entities_are_fractions_of_all_entities(name):
    """A text may have several: as fractions of the texts they were above 100 %."""
    report = analyse(make_run(name))
    page = markdown_page(report, "zh").partition("标签（占标签比例）")[2].partition("\n\n")[0]
    for data in report["data"]:
        whole = sum(data["labels"].values())
        assert whole > data["examples"]
        for number in data["labels"].values():
            assert f"| {number:,} ({number / whole:.1%}) |" in page


def test_the_label_tables_are_right_in_each_cell(counted_run, written_report):
    report, tables, _ = written_report
    test = counted_run.test
    gold, predictions = labels_of(test.examples), predicted_labels(test.predictions)
    pairs = Counter(zip(gold, predictions, strict=True))
    rows, numbers = [], []
    for word in WORDS:
        right, total, predicted = pairs[word, word], gold.count(word), predictions.count(word)
        precision, recall = right / predicted, right / total
        f1 = 2 * precision * recall / (precision + recall)
        rows.append(
            [word, *(f"{x:.1%}" for x in (precision, recall, f1)), str(total), str(predicted)]
        )
        numbers.append({"precision": precision, "recall": recall, "f1": f1})
    head = ["label", "precision", "recall", "F1", "labelled", "predicted"]
    assert tables["Precision, recall and F1 by label"] == [[head, *rows]]
    for row, want in zip(report["per_class"], numbers, strict=True):
        assert {name: row[name] for name in want} == pytest.approx(want)
    matrix = [[word, *(str(pairs[word, other]) for other in WORDS)] for word in WORDS]
    assert tables["Confusion matrix"] == [[["true ↓ predicted →", *WORDS], *matrix]]
    assert pairs["差", "好"] > 3 * max(1, pairs["好", "差"])  # a transposed matrix would differ
    assert {(x["gold"], x["predicted"]): x["count"] for x in report["confusion"]} == pairs


def test_the_calibration_table_is_right_in_each_cell(counted_run, written_report):
    report, tables, read = written_report
    test = counted_run.test
    bins = {}
    for item, prediction in zip(labels_of(test.examples), test.predictions, strict=True):
        confidence = float(max(prediction.scores))
        bins.setdefault(int(10 * confidence), []).append((confidence, item == prediction.label))
    rows, error = [], 0
    for number, actual in sorted(bins.items()):
        confidence, right = mean(x for x, _ in actual), mean(float(y) for _, y in actual)
        error += len(actual) * abs(confidence - right) / len(test.examples)
        interval = f"{number * 10}% to {number * 10 + 10}%"
        rows.append([interval, str(len(actual)), f"{confidence:.1%}", f"{right:.1%}"])
    head = ["predicted probability", "count", "mean predicted probability", "observed frequency"]
    assert tables["Calibration"] == [[head, *rows]]
    assert report["calibration"]["ece"] == pytest.approx(error)
    assert f"The expected calibration error (ECE) is {error:.1%}:" in read["report.md"]


def test_the_training_tables_are_right_in_each_cell(counted_run, written_report):
    _, tables, read = written_report
    assert "Of the 4 runs, this is the one whose weights are kept." in read["report.md"]
    assert tables["Training"] == [
        [
            ["epoch", "step", "accuracy, validation set", "macro F1, validation set"],
            *([str(i), str(10 * i), f"{0.5 + i / 9:.1%}", f"{0.9 - i / 7:.1%}"] for i in (1, 2, 3)),
        ]
    ]
    actual = [[0.5 + i / 9 for i in range(4)], [0.4 + i / 11 for i in range(4)]]
    names = [item["name"] for item in counted_run.trials]
    summary = [f"{mean(x[1:]):.1%} ± {stdev(x[1:]):.1%}" for x in actual]
    assert tables["Runs compared"] == [
        [
            ["run", "accuracy, validation set", "accuracy, test set", "time"],
            *(
                [name, f"{actual[0][i]:.1%}", f"{actual[1][i]:.1%}", f"1 min {i} s"]
                for i, name in enumerate(names)
            ),
            ["mean ± standard deviation of 3 runs at 2e-05", *summary, ""],
        ]
    ]


def test_mistakes_show_the_gold_label_and_the_prediction(counted_run, written_report):
    _, _, read = written_report
    test = counted_run.test
    wrong = [
        (float(max(answer.scores)), item, answer.label)
        for item, answer in zip(test.examples, test.predictions, strict=True)
        if item.label != answer.label
    ]
    wrong.sort(key=lambda pair: -pair[0])
    lines = re.findall(r"^\*\*(test:\d+)\*\* (.*)$", read["report.md"], flags=re.M)
    assert lines == [
        (
            item.source_line,
            f"· true label: {item.label} · prediction: {label} · confidence {score:.1%}",
        )
        for score, item, label in wrong[:MISTAKES]
    ]


def test_the_confusions_of_many_labels_are_right_in_each_cell():
    words = tuple(f"类{i}" for i in range(16))
    task = Classification(labels=words)
    examples = [Example((f"{i}",), words[i % 16], f"t:{i}") for i in range(64)]
    predicted = [words[(i % 16 + (i % 16 < 3 and i < 16 * (i % 16 + 1))) % 16] for i in range(64)]
    predictions = [Prediction(item, np.full(16, 1 / 16, np.float32)) for item in predicted]
    part = EvaluatedSet(examples=examples, lengths=np.full(64, 5), predictions=predictions)
    page = markdown_page(analyse(ReportData(task=task, metric="accuracy", train=part, valid=part)))
    wrong = [["类2", "类3", "3"], ["类1", "类2", "2"], ["类0", "类1", "1"]]
    head = ["true label", "predicted label", "count"]
    assert cells_of(page)["Confusion matrix"] == [[head, *wrong]]
    assert "most frequent" not in page
    # Each of 64 examples is confused in another way: 60 pairs, of which 40 are listed.
    several = [words[(i % 16 + 1 + i // 16) % 16] for i in range(60)]
    predictions[:60] = [Prediction(x, np.full(16, 1 / 16, np.float32)) for x in several]
    page = markdown_page(analyse(ReportData(task=task, metric="accuracy", train=part, valid=part)))
    assert len(cells_of(page)["Confusion matrix"][0]) == 1 + 40
    number = len({(examples[i].label, x) for i, x in enumerate(several)})
    assert f"The 40 most frequent of {number} pairs of confused labels." in page


def test_the_regression_table_is_right_in_each_cell():
    run = make_run("regression")
    rows = [
        [SET_NAMES[name], *(f"{x:.4g}" for x in (min(gold), mean(gold), max(gold), pstdev(gold)))]
        for name, gold in ((name, labels_of(getattr(run, name).examples)) for name in SIZES)
    ]
    head = ["set", "minimum", "mean", "maximum", "standard deviation"]
    assert cells_of(markdown_page(analyse(run)))["Data"][1] == [head, *rows]


def test_the_leak_is_reported_first():
    report = analyse(make_run(leaked=7))
    accuracy, (low, high) = (
        report["test_unseen"]["accuracy"],
        report["intervals"]["test_unseen"]["accuracy"],
    )
    message = (
        "7 of 40 examples of the test set have texts that are also in the training set. Without "
        f"them: accuracy {accuracy:.1%} [{low:.1%}, {high:.1%}]."
    )
    assert report["warnings"][0] == message
    for page in (Page(html_page(report)).text, markdown_page(report)):
        assert message in page
        assert page.index(message) < page.index("In brackets")


def test_no_leak_is_reported_without_one():
    report = analyse(make_run(leaked=0))
    assert "test_unseen" not in report
    assert not [sentence for sentence in report["warnings"] if "also in the training" in sentence]


def test_metrics_of_new_texts_are_missing_if_all_texts_leaked():
    report = analyse(make_run(leaked=40))
    assert "test_unseen" not in report
    assert "40 of 40 examples of the test set" in report["warnings"][0]
    assert "new texts" in report["warnings"][0]
    html_page(report)


def test_metrics_of_the_validation_set_are_used_without_a_test_set():
    run = make_run()
    report = analyse(make_run(test=None, baseline=""))
    assert report["judged"] == "valid"
    assert not {"test", "test_unseen", "baseline"} & report.keys()
    gold = [item.label for item in run.valid.examples]
    assert report["valid"] == run.task.metrics.compute(gold, run.valid.predictions)
    assert "There is no test set" in report["warnings"][0]
    assert report["warnings"][0] in Page(html_page(report)).text
    assert report["warnings"][0] in markdown_page(report).replace("\\", "")


def single_warning(part, **changes):
    """Return the only warning of a report that contains `part`."""
    report = analyse(make_run(**changes))
    (actual,) = [sentence for sentence in report["warnings"] if part in sentence]
    return actual


def test_few_examples_and_a_better_baseline_are_reported():
    assert "examples: 40" in single_warning("The test set is small")
    run = make_run()
    perfect = [Prediction(item.label, np.float32([0.5, 0.5])) for item in run.test.examples]
    assert "no better" in single_warning("simple baseline", baselines=[(BASELINE, perfect)])
    perfect_set = EvaluatedSet(**run.test.__dict__ | {"predictions": perfect})
    better = analyse(make_run(test=perfect_set))
    assert not [x for x in better["warnings"] if "baseline" in x]
    right = run.task.metrics.compute(
        [item.label for item in run.test.examples], run.test.predictions
    )
    assert 0.5 < right["accuracy"] < 1
    worse = [*run.test.predictions]  # worse by one prediction
    actual = next(
        i for i, item in enumerate(run.test.examples) if i > 10 and item.label == worse[i].label
    )
    worse[actual] = prediction_of(run.task, run.test.examples[actual], -1)
    assert "is not shown" in single_warning("simple baseline", baselines=[(BASELINE, worse)])


@pytest.mark.parametrize(
    ("right", "verdict", "zh"),
    [
        (range(40), "no better with the teacher", "有教师时学生模型并不更好"),
        (range(1, 40), "not shown that the teacher helped", "不能说明教师有帮助"),
        (range(20), "the teacher helped", "教师有帮助"),
    ],
)
def test_the_report_states_whether_the_teacher_helped(right, verdict, zh, capsys):
    """The student is right on all test examples; without the teacher, on those in `right`."""
    run = make_run(leaked=0)
    gold = [item.label for item in run.test.examples]
    answers = [
        Prediction(label if i in right else "10"[int(label)], np.float32([0.5, 0.5]))
        for i, label in enumerate(gold)
    ]
    perfect = [Prediction(label, np.float32([0.5, 0.5])) for label in gold]
    test = EvaluatedSet(examples=run.test.examples, lengths=run.test.lengths, predictions=perfect)
    run = ReportData(**run.__dict__ | {"test": test, "without_teacher": answers})
    report = analyse(run)
    gain = 1 - len(right) / 40
    assert report["without_teacher"]["difference"]["test"]["accuracy"][0] == pytest.approx(gain)
    page, chinese = (Page(html_page(report, language)).text for language in LANGUAGES)
    shown = f"student's accuracy on the test set by {gain:+.1%} (95% CI "
    assert shown in page
    assert verdict in page
    assert "student without teacher, test set" in page
    assert zh in chinese
    assert "不加教师的学生模型（测试集）" in chinese
    print_summary(Path("run"), report)
    terminal = capsys.readouterr().out
    assert shown in terminal
    assert verdict in terminal
    assert f"  student without teacher: accuracy {1 - gain:.4f}" in terminal


def test_the_interval_of_a_difference_is_paired():
    """Two models differ on 40 of 400 examples.

    The interval is that of the mean of the differences 1, 0 and −1.
    """
    rng = np.random.default_rng(0)
    run = make_run()
    right = rng.random(400) < 0.5
    other = right.copy()
    other[:40] = ~right[:40]
    gold = ["0"] * 400
    ours, theirs = (
        [Prediction("0" if x else "1", np.float32([0.5, 0.5])) for x in each]
        for each in (right, other)
    )
    value, ends = run.task.metrics.differences(gold, ours, theirs)["accuracy"]
    difference = right.astype(float) - other
    error = 1.96 * difference.std() / 20
    assert value == pytest.approx(difference.mean())
    np.testing.assert_allclose(ends, (value - error, value + error), atol=error / 8)
    assert run.task.metrics.differences(gold, ours, ours)["accuracy"] == (0, None)


def test_the_figures_of_folds_have_a_warning():
    run = make_run()
    report = analyse(make_run(test=None, valid=run.test, settings=run.settings | {"folds": 5}))
    [sentence] = [x for x in report["warnings"] if "no test set" in x]
    assert "each fold also selected the best epoch" in sentence
    assert "每个模型的最佳轮次正是按同一折选取的" in markdown_page(report, "zh")


def test_a_line_break_in_a_label_is_escaped_in_warnings():
    run = make_run()
    task = Classification(labels=("0", "好\n评"))
    parts = {
        name: EvaluatedSet(
            **vars(part)
            | {
                "examples": [
                    x._replace(label="好\n评" if x.label == "1" else "0") for x in part.examples
                ],
                "predictions": [Prediction("0", np.float32([0.9, 0.1]))] * len(part.examples),
            }
        )
        for name, part in (("train", run.train), ("valid", run.valid), ("test", run.test))
    }
    report = analyse(make_run(task=task, baselines=[], **parts))
    assert "Never predicted, although in the data: 好\\n评." in report["warnings"]


def test_calibration_is_doubted_only_beyond_chance():
    report = analyse(make_run())
    for ece, chance, doubted in [(0.15, 0.2, False), (0.25, 0.2, True), (0.09, 0.05, False)]:
        report["calibration"] |= {"ece": ece, "chance": chance}
        sentences = report_warnings(report, Translator("en"))
        assert any("expected calibration error" in x for x in sentences) == doubted


def test_truncation_imbalance_and_unpredicted_labels_are_reported():
    run = make_run()
    assert "longer than 16 tokens" in single_warning("tokens")
    train_examples = [x._replace(label="1") for x in run.train.examples[:39]] + [
        run.train.examples[39]._replace(label="0")
    ]
    train = EvaluatedSet(examples=train_examples, lengths=run.train.lengths)
    message = single_warning("imbalanced", train=train)
    assert "39 of 1, but 1 of 0." in message
    constant = [Prediction("1", np.float32([0.1, 0.9]))] * 40
    test = EvaluatedSet(**run.test.__dict__ | {"predictions": constant})
    assert single_warning("Never predicted", test=test).endswith(": 0.")


@pytest.mark.usefixtures("pictures")
@pytest.mark.quick_cases("classification", "tagging", "embedding")
@pytest.mark.parametrize("name", REPORTED)
def test_texts_of_the_data_are_escaped_in_pages(name):
    run = make_run(name, leaked=0, text=EVIL, settings={EVIL: EVIL}, baseline=EVIL)
    first, *rest = run.test.examples
    answers = [
        prediction_of(run.task, first, -9),
        *(prediction_of(run.task, item, 9) for item in rest),
    ]
    test = EvaluatedSet(**run.test.__dict__ | {"predictions": answers})
    report = analyse(ReportData(**run.__dict__ | {"test": test}))
    assert report["mistakes"][0]["place"] == "test.tsv:2"
    if name == "tagging":
        assert ["<script>alert(1)</script>", "人名"] in report["mistakes"][0]["gold"]
    elif name == "spans":
        assert "<script>alert(1)</script>" in report["mistakes"][0]["gold"][0][0]
    else:
        assert report["mistakes"][0]["texts"][0] == EVIL
    html, markdown = html_page(report), markdown_page(report)
    page = Page(html)
    assert "script" not in page.elements
    assert "<script>alert(1)</script>" in page.text
    assert "<script" not in markdown.replace("\\<", "")
    assert not re.search(r"(?<!\\)\]\(", markdown)
    for line in markdown.splitlines():
        if line.startswith("|"):  # bars in the text are escaped
            assert len(re.findall(r"(?<!\\)\|", line)) >= 3


@pytest.mark.usefixtures("pictures")
def test_the_page_needs_no_other_file_and_brings_its_characters():
    text = "生僻字龘靐𠀀测试"
    html = html_page(analyse(make_run(leaked=0, text=text)))
    page = Page(html)
    assert page.addresses
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.addresses)
    addresses = re.findall(r"url\(([^)]*)\)", html)
    assert len(addresses) == 1
    font = TTFont(io.BytesIO(base64.b64decode(addresses[0].partition(",")[2])))
    assert {ord(x) for x in page.text if "\u4e00" <= x < "\u9fff"} <= font.getBestCmap().keys()
    assert len(html) < 1_000_000
    for address in page.addresses:  # text is drawn as paths, and there is no date
        drawing = base64.b64decode(address.partition(",")[2]).decode()
        assert "<text" not in drawing
        assert "<dc:date>" not in drawing


def test_tables_of_many_labels_are_limited():
    rng = np.random.default_rng(0)
    labels = tuple(f"类{i}" for i in range(60))
    task = Classification(labels=labels, max_length=16)
    examples = [Example((f"文{i}",), labels[rng.integers(60)], f"f:{i}") for i in range(500)]
    predictions = [task.decoding.predict(x) for x in rng.normal(size=(500, 60))]
    part = EvaluatedSet(examples=examples, lengths=np.full(500, 5), predictions=predictions)
    report = analyse(ReportData(task=task, metric="accuracy", train=part, valid=part))
    markdown = markdown_page(report)
    assert "The 40 of 60 labels with the lowest F1." in markdown
    assert "| true label | predicted label | count |" in markdown
    assert max(map(len, markdown.splitlines())) < 600


def test_several_trainings_have_mean_and_standard_deviation():
    trials = [
        {"name": f"seed-{i}", "learning_rate": rate, "seconds": 60.0, "valid": {"accuracy": x}}
        for i, (rate, x) in enumerate([(1e-5, 0.5), (2e-5, 0.8), (2e-5, 0.9)])
    ]
    markdown = markdown_page(analyse(make_run(trials=trials)))
    assert "| seed-0 | 50.0% | 1 min 0 s |" in markdown
    assert "| mean ± standard deviation of 2 runs at 2e-05 | 85.0% ± 7.1% |" in markdown
    assert "of 1 at" not in markdown


def test_loss_curves_are_averaged_to_a_limited_number_of_points():
    run = make_run(losses=[{"step": step, "loss": float(step)} for step in range(1, 2501)])
    losses = analyse(run)["losses"]
    assert len(losses) <= 1000
    assert losses[0] == {"step": 3, "loss": 2.0}
    assert losses[-1]["step"] == 2500


def test_a_failure_leaves_the_old_report(tmp_path):
    report = analyse(make_run())
    write_report(tmp_path, report)
    before = (tmp_path / "report.html").read_bytes()
    with pytest.raises(UndefinedError):
        write_report(tmp_path, {name: x for name, x in report.items() if name != "mistakes"})
    assert (tmp_path / "report.html").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        (0.04, "0.0 s"),
        (59.9, "59.9 s"),
        (60, "1 min 0 s"),
        (3599.7, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_durations_are_formatted(seconds, want):
    assert duration(seconds, Translator("en")) == want


# In both languages

FIGURE = r"[\d.,%\[\] ()±-]+"


@pytest.fixture
def figure_texts(pictures, monkeypatch):
    """The texts of all figures that were saved so far."""
    actual, save = [], Figure.savefig

    def record_and_save(figure, *args, **kwargs):
        for axes in figure.axes:
            ticks = [x.get_text() for x in (*axes.get_xticklabels(), *axes.get_yticklabels())]
            actual.extend([axes.get_xlabel(), axes.get_ylabel(), axes.get_title(), *ticks])
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", record_and_save)
    return actual


@pytest.mark.parametrize("name", REPORTED)
def test_a_chinese_report_has_no_english_sentence_left(name, figure_texts):
    report = cached_report(name)
    html, markdown = html_page(report, "zh"), markdown_page(report, "zh")
    page = Page(html)
    assert '<html lang="zh-CN">' in html
    shown = html.replace("</", " </").replace("roformer_tf", "")
    assert english_in(Page(shown).text) == set()
    assert english_in(markdown) == set()
    assert english_in(" ".join(re.findall(r'alt="([^"]*)"', html))) == set()
    assert english_in(" ".join(figure_texts)) == set()
    assert sum("\u4e00" <= x <= "\u9fff" for x in "".join(figure_texts)) > 10
    for title in ("结果", "错误样本", "数据", "训练过程", "参数设置", "硬件与耗时"):
        assert f"## {title}" in markdown
        assert f"\n{title}\n" in page.text
    assert "95% 置信区间" in page.text
    assert "逻辑回归" in page.text
    assert "{" not in markdown


def test_settings_that_differ_from_defaults_come_first():
    settings = plain(FinetuneConfig(train="a.tsv", output="run", epochs=7))
    page = markdown_page(cached_report("classification") | {"settings": settings}, "en")
    changed, defaults = page.partition("## Settings")[2].split("**The other settings")
    assert re.findall(r"^\| (\w+) \|", changed, re.MULTILINE) == [
        *("setting", "train", "output", "epochs"),
    ]
    assert "| batch_size | 32 |" in defaults
    assert "finetune --config run/settings.yaml --output run-2" in changed
    page = markdown_page(cached_report("classification") | {"settings": {"output": "my run"}}, "en")
    assert "--config 'my run/settings.yaml' --output 'my run-2'" in page


def test_five_mistakes_are_shown_and_the_rest_folded():
    report = cached_report("classification")
    mistakes = [report["mistakes"][0] | {"place": f"place {n}"} for n in range(12)]
    html = html_page(report | {"mistakes": mistakes}, "en")
    shown, _, folded = html.partition("<summary>7 more</summary>")
    assert re.findall(r"place \d+", shown) == [f"place {n}" for n in range(5)]
    assert re.findall(r"place \d+", folded) == [f"place {n}" for n in range(5, 12)]


@pytest.mark.parametrize("name", TASKS)
def test_both_languages_have_the_same_figures(name):
    """Both pages have the same numbers in the same order within each table."""
    report = cached_report(name)
    en, zh = (cells_of(markdown_page(report, language)) for language in LANGUAGES)
    assert len(en) == len(zh)
    for ours, theirs in zip(chain(*en.values()), chain(*zh.values()), strict=True):
        shapes = [[len(row) for row in table] for table in (ours, theirs)]
        assert shapes[0] == shapes[1]
        for row, other in zip(ours[1:], theirs[1:], strict=True):
            numbers = [
                [c for c in item if re.fullmatch(r"[\d.,%\[\] ()±-]+", c)] for item in (row, other)
            ]
            assert numbers[0] == numbers[1]
    assert set(en) & set(zh) == set()


def test_precision_and_recall_have_their_chinese_names():
    """The table of labels and the table of results both use them."""
    row = {
        "label": "甲",
        "precision": 0.25,
        "recall": 0.75,
        "f1": 0.375,
        "gold": 4,
        "predicted": 12,
    }
    report = cached_report("tagging") | {"per_class": [row]}
    report["test"] = report["test"] | {"precision": 0.25, "recall": 0.75}
    tables = [x for each in cells_of(markdown_page(report, "zh")).values() for x in each]
    with_both = [table for table in tables if {"精确率", "召回率"} <= set(table[0])]
    assert len(with_both) == 2
    for head, *rows in with_both:
        cells = next(
            item
            for item in map(dict, (zip(head, x, strict=True) for x in rows))
            if "25.0%" in " ".join(item.values())
        )
        assert cells["精确率"].startswith("25.0%")
        assert cells["召回率"].startswith("75.0%")


def test_warnings_are_in_the_language_of_the_page():
    report = analyse(make_run(leaked=7))
    accuracy = report["test_unseen"]["accuracy"]
    page = Page(html_page(report, "zh")).text
    assert "测试集的 40 条样本中，有 7 条的文本也出现在训练集里" in page
    assert f"去掉这些样本后：准确率 {accuracy:.1%} [" in page
    assert "测试集只有 40 条样本" in page
    assert all(sentence.isascii() for sentence in report["warnings"])


def test_the_summary_states_metric_interval_and_baseline(counted_run):
    report = analyse(counted_run)
    ours, other = (x["test_unseen"]["macro_f1"] for x in (report, report["baseline"]))
    low, high = report["intervals"]["test_unseen"]["macro_f1"]
    en, zh = (Page(html_page(report, language)).text for language in LANGUAGES)
    verdict = {
        (True, True): ("the difference may be due to chance", "可能只是偶然"),
        (True, False): ("the model is clearly better", "模型明显优于基线"),
    }.get((ours > other, low <= other <= high), ("the model is no better", "模型并不优于基线"))
    assert f"macro F1 is {ours:.1%} (95% CI [{low:.1%}, {high:.1%}])" in en
    assert f"A simple baseline (logistic regression) has {other:.1%} on the same examples" in en
    assert f"模型的指标（宏平均 F1）为 {ours:.1%}" in zh
    assert f"简单基线（逻辑回归）在同样的样本上为 {other:.1%}" in zh
    assert verdict[0] in en
    assert verdict[1] in zh


def test_a_single_point_is_not_plotted():
    evaluation = [{"step": 10, "epoch": 1.0, "accuracy": 0.5}]
    run = make_run(evaluations=evaluation, losses=[{"step": 10, "loss": 0.7}])
    right = [Prediction(x.label, np.float32([0.5, 0.5])) for x in run.test.examples]
    test = EvaluatedSet(examples=run.test.examples, lengths=run.test.lengths, predictions=right)
    run = ReportData(**run.__dict__ | {"test": test})
    html = html_page(analyse(run))
    assert re.findall(r'alt="([^"]*)"', html) == ["accuracy with 95% CI, model and baseline"]
    without_test = analyse(make_run(test=None, evaluations=evaluation, losses=[], baseline=""))
    assert "by step" not in html_page(without_test)
    assert "CI, model and" not in html_page(without_test)


def test_markdown_has_no_heading_for_a_picture_only():
    report = analyse(make_run("regression"))
    assert "Predicted and true values" not in markdown_page(report)
    assert "<h2>Predicted and true values</h2>" in html_page(report)


def test_every_metric_is_explained():
    for task in TASKS.values():
        for metric in task.metrics.all:
            assert metric.meaning is not None
            assert isinstance(metric.title, Message)
