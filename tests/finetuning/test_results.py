"""A fine-tuning run and its report: which set each metric describes, and the order of labels.

Expected metrics are computed in plain Python from the data files and the output of `predict`.
"""

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from roformer_tf.cli import main
from roformer_tf.finetuning.command import read_sets, split_sets
from roformer_tf.finetuning.label_issues import NO_BASELINE, NOT_BETTER
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.report.pages import report_templates
from roformer_tf.finetuning.results import FittedBaseline, Results, _described
from roformer_tf.finetuning.search import Sets
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.trial import TrialResult
from roformer_tf.inference.opening import open_finetuned
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import find_layout
from roformer_tf.serving.serve_predictions import as_example
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.choices.reranking import Judgment, Reranking
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.metrics import ACCURACY
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.tfidf import fit_tfidf
from roformer_tf.tasks.vectors.scored_pairs import ScoredPairs
from roformer_tf.training.settings import FinetuneOptimizerConfig
from roformer_tf.translation import Message, Translator
from tests.support.baseline import baseline_of
from tests.support.random_model import tokenizer_of
from tests.support.service_app import served_task

LETTERS = {
    "差": "今天气很好我们",
    "10": "学习中国经济发展",
    "好": "人民生活改革工作",
    "9": "新闻记者报道",
}
LABELS = ("9", "10", "好", "差")  # numbers by value, then words by their characters
SIZES = {"train": 96, "valid": 40, "test": 60}


def rows_of(size, seed):
    """Yield texts with mostly the letters of one label, and labels of decreasing frequency.

    Every fourth text gets a random label.
    """
    rng = np.random.default_rng(seed)
    for number in range(size):
        text_label = str(rng.choice([*LETTERS], p=(0.4, 0.3, 0.2, 0.1)))
        letters = [*rng.choice(list(LETTERS[text_label]), 12), *rng.choice(list("的了在和是"), 4)]
        label = text_label if number % 4 else str(rng.choice([*LETTERS]))
        yield "".join(map(str, rng.permutation(letters))), label


DATA = {name: list(rows_of(size, seed)) for seed, (name, size) in enumerate(SIZES.items())}
for number, (name, row) in enumerate((("train", 5), ("train", 8), ("valid", 3))):  # leaks
    DATA["test"][number] = DATA[name][row]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with three data files; the column of texts has the misleading name `label`."""
    folder = tmp_path_factory.mktemp("results")
    for name, rows in DATA.items():
        lines = "".join(f"{text}\t{label}\n" for text, label in rows)
        (folder / f"{name}.tsv").write_text("label\t情绪\n" + lines, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(shallow, folder):
    """The folder of a run on the three files."""
    settings = {
        "checkpoint": shallow,
        "output": folder / "run",
        "text-columns": 1,
        "label-column": 2,
        "epochs": 5,
        "batch-size": 16,
        "learning-rate": 1e-2,
        "layer-decay": 1.0,
        "precision": "float32",
        "lexical-features": "no",
    } | {name: folder / f"{name}.tsv" for name in DATA}
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
        assert main(["finetune", *flags]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def report(run):
    return json.loads((run / "report.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def predicted_rows(run, tmp_path_factory):
    """For each data file, the rows of `predict` as dictionaries by column."""
    folder, actual = tmp_path_factory.mktemp("answers"), {}
    for name in ("valid", "test"):
        source, target = run.parent / f"{name}.tsv", folder / f"{name}.tsv"
        flags = ["--model", run / "model", "--input", source, "--output", target, "--with-text"]
        assert main(["predict", *map(str, flags)]) == 0
        actual[name] = table(target)
    return actual


@pytest.mark.slow
def test_the_report_names_the_engine_that_predict_uses(run, report):
    choice = open_finetuned(run / "model").choice
    assert report["computed_by"] == {"engine": choice.engine, "precision": choice.precision}


def table(path):
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    return [dict(zip(header.split("\t"), x.split("\t"), strict=True)) for x in lines]


def accuracy(gold, predictions):
    return sum(item == guess for item, guess in zip(gold, predictions, strict=True)) / len(gold)


@pytest.mark.parametrize("given_sets", [(), ("valid",), ("test",), ("valid", "test")])
def test_missing_sets_are_split_from_training(folder, given_sets):
    """Sets are disjoint, and every training example is in one of them."""
    columns = ColumnsConfig(text_columns=("1",), label_column="2")
    files: dict = {name: str(folder / f"{name}.tsv") for name in ("train", *given_sets)}
    config = FinetuneConfig(checkpoint="", output="", columns=columns, **files)
    layout = find_layout(config.train, columns, None, TASKS)
    sets = split_sets(config, layout, read_sets(config, layout))
    from_train = []
    for name in DATA:
        actual = [(item.texts[0], item.label) for item in getattr(sets, name)]
        if name in given_sets:
            assert actual == DATA[name]
        else:
            from_train += actual
    assert sorted(from_train) == sorted(DATA["train"])
    assert sets.valid
    assert bool(sets.test) == (given_sets != ("valid",))  # with only --valid, the report uses it


@pytest.mark.parametrize("count", [0, 3])
def test_another_seed_splits_the_training_set_differently(count, folder):
    columns = ColumnsConfig(text_columns=("1",), label_column="2")
    files = {name: str(folder / f"{name}.tsv") for name in ("train", "test")}
    valid = []
    for seed in (0, 0, 1):
        config = FinetuneConfig(output="", columns=columns, **files, folds=count, seed=seed)
        layout = find_layout(config.train, columns, None, TASKS)
        sets = split_sets(config, layout, read_sets(config, layout))
        valid.append(sets.folds[0][1] if count else sets.valid)
    assert valid[0] == valid[1] != valid[2]


@pytest.mark.parametrize("header", ["标签\t评论", "类别\t内容", None])
def test_the_test_set_may_have_other_columns_than_training(header, tmp_path, capsys):
    lines = [f"{label}\t{text}" for text, label in DATA["test"]]
    (tmp_path / "test.tsv").write_text("\n".join(filter(None, [header, *lines])), "utf-8")
    lines = [f"{text}\t{label}" for text, label in DATA["train"]]
    (tmp_path / "train.tsv").write_text("\n".join(["评论\t标签", *lines]), "utf-8")
    paths = {name: str(tmp_path / f"{name}.tsv") for name in ("train", "test")}
    config = FinetuneConfig(checkpoint="", output="", **paths)
    layout = find_layout(config.train, config.columns, None, TASKS)
    capsys.readouterr()
    actual = read_sets(config, layout).test
    assert [(item.texts[0], item.label) for item in actual] == DATA["test"]
    assert "test.tsv: task classification, text in column" in capsys.readouterr().out


def test_metrics_belong_to_their_set(report, predicted_rows):
    assert {item["name"]: item["examples"] for item in report["data"]} == SIZES
    for item in report["data"]:
        gold = [label for _, label in DATA[item["name"]]]
        assert item["labels"] == {label: gold.count(label) for label in LABELS}
    actual = {}
    for name in ("valid", "test"):
        actual[name] = accuracy(
            [label for _, label in DATA[name]], [row["label"] for row in predicted_rows[name]]
        )
        assert report[name]["accuracy"] == pytest.approx(actual[name])
        low, high = report["intervals"][name]["accuracy"]
        assert low < actual[name] < high
    assert report["judged"] == "test"
    assert actual["valid"] != actual["test"]  # exchanged sets would be noticed
    assert actual["test"] > 0.6  # labels in another order would give less than chance
    assert len({row["label"] for row in predicted_rows["test"]}) >= 3


def test_leaks_of_training_and_validation_are_counted(report, predicted_rows):
    seen = {name: {text for text, _ in DATA[name]} for name in ("train", "valid")}
    test = [text for text, _ in DATA["test"]]
    assert report["leaks"]["in_train"] == sum(text in seen["train"] for text in test) == 2
    assert report["leaks"]["in_valid"] == sum(text in seen["valid"] for text in test) == 1
    new = [number for number, text in enumerate(test) if text not in seen["train"] | seen["valid"]]
    assert len({test[number] for number in new}) == len(new) == report["leaks"]["unseen"]
    right = [DATA["test"][n][1] == predicted_rows["test"][n]["label"] for n in new]
    assert report["test_unseen"]["accuracy"] == pytest.approx(sum(right) / len(right))


def test_the_best_epoch_has_the_best_validation_metric(run, report):
    assert report["valid"]["accuracy"] == max(x["accuracy"] for x in report["evaluations"])
    lines = (run / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    assert report["evaluations"] == [*map(json.loads, lines)]


def test_baseline_metrics_are_computed_from_its_predictions(report):
    examples = {
        name: [Example((text,), label, "") for text, label in rows] for name, rows in DATA.items()
    }
    task = Classification(labels=LABELS)
    name, answers = baseline_of(task, examples["train"], examples["test"], examples["valid"])
    gold = [label for _, label in DATA["test"]]
    assert (report["baseline"]["name"], report["baseline"]["name_zh"]) == (
        name,
        Translator("zh")(name),
    )
    actual = accuracy(gold, [item.label for item in answers])
    assert (
        report["baseline"]["test"]["accuracy"]
        == pytest.approx(actual)
        != report["test"]["accuracy"]
    )


def test_tensorboard_has_curves_of_both_sets(run):
    folders = list((run / "tensorboard").iterdir())
    assert {folder.name for folder in folders} == {"training", "valid"}
    assert all(any(folder.iterdir()) for folder in folders)


def test_predictions_tsv_equals_the_output_of_predict(run, predicted_rows):
    """A text column with the name of an output column is renamed."""
    rows = table(run / "predictions.tsv")
    scores = [f"p({label})" for label in LABELS]
    assert list(rows[0]) == ["text:label", "gold", "label", *scores, "error"]
    assert [(row["text:label"], row["gold"]) for row in rows] == DATA["test"]
    for row, predicted in zip(rows, predicted_rows["test"], strict=True):
        assert (row["label"], row["error"]) == (predicted["label"], "")
        assert row["text:label"] == predicted["text:label"]
        numbers = [float(predicted[name]) for name in scores]
        assert [float(row[name]) for name in scores] == pytest.approx(numbers, abs=1e-5)
        assert scores[int(np.argmax(numbers))] == f"p({row['label']})"


def test_labels_have_the_same_order_everywhere(run, predicted_rows):
    """The saved folder, `predict` and the service use the order of training."""
    folder = run / "model"
    assert tuple(json.loads((folder / "task.json").read_text(encoding="utf-8"))["labels"]) == LABELS
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {str(i): label for i, label in enumerate(LABELS)}
    assert config["label2id"] == {label: i for i, label in enumerate(LABELS)}
    texts = [text for text, _ in DATA["test"]]
    want = [[float(row[f"p({label})"]) for label in LABELS] for row in predicted_rows["test"]]
    served = served_task(folder)
    examples = [as_example([text], served.task) for text in texts]
    for example, answer, row, scores in zip(
        examples, served.predict(examples), predicted_rows["test"], want, strict=True
    ):
        actual = served.task.decoding.as_json(example, answer)
        assert actual["label"] == row["label"]
        assert list(actual["scores"]) == list(LABELS)
        assert [*actual["scores"].values()] == pytest.approx(scores, abs=1e-5)


def test_evaluate_returns_the_metrics_of_the_report(run, report, tmp_path):
    """Evaluating the test file again gives the values of the report."""
    output = tmp_path / "figures.json"
    flags = ["--data", run.parent / "test.tsv", "--output", output]
    assert main(["evaluate", *map(str, [run / "model", *flags])]) == 0
    actual = json.loads(output.read_text(encoding="utf-8"))
    assert actual["test"] == pytest.approx(report["test"])
    assert actual["intervals"]["test"] == {
        name: pytest.approx(ends) for name, ends in report["intervals"]["test"].items()
    }
    for part in ("per_class", "confusion", "thresholds", "text_columns"):
        assert actual[part] == report[part]


def test_the_code_in_the_model_card_runs(run, report):
    """The card is in Chinese, like the texts, and its code runs."""
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    _, front, rest = card.split("---\n", 2)
    assert yaml.safe_load(front)["metrics"] == ["accuracy", "f1"]
    assert f"| 准确率 | {report['test']['accuracy']:.1%} | [" in rest
    # The first block uses roformer_tf, the second one transformers.
    code, _ = re.findall(r"```python\n(.*?)```", rest, flags=re.S)
    *before, last = code.replace("path/to/this/folder", str(run / "model")).splitlines()
    actual: dict = {}
    exec("\n".join([*before, f"answers = {last}"]), actual)
    assert actual["answers"][0]["label"] in LABELS
    page = (run / "report.html").read_text(encoding="utf-8")
    assert '<html lang="zh-CN">' in page
    assert "<h2>疑似标注错误</h2>" in page


def test_a_model_worse_than_its_baseline_lists_no_label_issues(run, report):
    assert report["test_unseen"]["accuracy"] < report["baseline"]["test_unseen"]["accuracy"]
    assert not list(run.glob("label_issues.*"))
    result = report["label_issues"]
    assert (result["reason"], result["found"], result["shown"]) == (NOT_BETTER, 0, [])
    page = (run / "report.md").read_text(encoding="utf-8")
    assert "没有检查标注：模型并不比基线好" in page


def doubtful_prediction(example):
    """Predict the label of the data, or the other label for the doubtful example."""
    probability = {"0": 0.1, "1": 0.9, "doubtful": 0.05}[example.texts[1]]
    return Prediction("01"[probability > 0.5], np.float32([1 - probability, probability]))


TEST = [Example(("test", "doubtful"), "1", "test:0")]


def report_with(ours, baseline):
    """Return a report with these accuracies of the model and the baseline."""
    return {
        "task": "classification",
        "metric": "accuracy",
        "judged": "valid",
        "valid": {"accuracy": ours},
        "intervals": {"valid": {"accuracy": [ours - 0.1, ours + 0.1]}},
    } | ({} if baseline is None else {"baseline": {"valid": {"accuracy": baseline}}})


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (report_with(0.9, 0.8), ""),
        (report_with(0.9, 0.89), ""),
        (report_with(0.9, 0.9), NOT_BETTER),
        (report_with(0.8, 0.9), NOT_BETTER),
        (report_with(0.9, None), NO_BASELINE),
    ],
)
def test_label_issues_need_a_model_better_than_the_baseline(report, reason):
    task = Classification(labels=("0", "1"))

    def trial_result(name):
        examples = [
            Example((f"{name}{i}", kind), "0" if kind == "0" else "1", f"{name}:{i}")
            for i, kind in enumerate(("0", "1", "0", "doubtful"))
        ]
        train = [Example((f"{name}2", "0"), "0", "")]
        trial = SimpleNamespace(valid=examples, train=train, cross_validated=False, tfidf=None)
        predictions = {"valid": [doubtful_prediction(item) for item in examples]}
        return SimpleNamespace(trial=trial, alone=predictions, goodness=0.0, task=task)

    trials = [trial_result(name) for name in "ab"]
    trials[0].alone["test"] = [doubtful_prediction(item) for item in TEST]
    train = [example for item in trials for example in item.trial.valid]
    for test, folds, actual in (
        ([], [([], [])] * 2, ["a:3", "b:3"]),
        ([], [], ["a:3"]),
        (TEST, [], ["a:3"]),  # rows of the test set are never checked
    ):
        config = SimpleNamespace(train="train.tsv", loss=LossConfig())
        sets = Sets(train, [], test, folds)
        search = SimpleNamespace(sets=sets, task=task, metric=ACCURACY, config=config)
        results = Results(search, trials)
        result = results.label_issues(report).as_json()
        assert result["reason"] == reason
        assert result["checked"] == (
            0 if reason else 3 * len(actual)
        )  # one text of each set is also in training
        assert result["all"] == 8
        assert [item["place"] for item in result["shown"]] == ([] if reason else actual)


def test_the_validation_set_selects_the_training():
    def trained(valid, test):
        figures = {"valid": {"accuracy": valid}, "test": {"accuracy": test}}
        return TrialResult(SimpleNamespace(metric=ACCURACY), {}, figures, None, 0.0)

    first, second = trained(0.7, 0.9), trained(0.8, 0.6)
    for trials in ([first, second], [second, first]):
        assert Results(SimpleNamespace(sets=Sets([], [], TEST, [])), trials).best is second


def test_the_best_baseline_is_the_first():
    examples = [Example((text,), label, "") for text, label in (("坏", "差"), ("棒", "好"))]
    right = [Prediction(example.label, np.array([0.5, 0.5], np.float32)) for example in examples]
    task = Classification(labels=("差", "好"))
    search = SimpleNamespace(sets=Sets([], [], examples, []), metric=ACCURACY)
    trial = SimpleNamespace(valid=[])
    results = Results(search, [SimpleNamespace(task=task, trial=trial, goodness=0.0)])
    weak, good = FittedBaseline("weak", [], right[::-1]), FittedBaseline("good", [], right)
    for fitted in ([weak, good], [good, weak]):
        vars(results)["_fitted"] = [fitted]  # a cached property
        assert [name for name, _ in results._baselines()[0]] == ["good", "weak"]


def test_a_baseline_that_fails_does_not_lose_the_report(tmp_path, monkeypatch):
    def fail(*_):
        raise MemoryError("no room\nfor it")

    monkeypatch.setattr(Results, "_fit_baselines", fail)
    report = results_of(tmp_path, {tmp_path: 0.5}).for_report({}, with_baseline=True)
    assert (report.baselines, report.no_baseline) == ([], "MemoryError: no room")


def test_a_baseline_has_the_class_weights_of_the_model():
    train, valid = (
        [Example((text,), label, "") for text, label in DATA[x]] for x in ("train", "valid")
    )
    task = Classification(labels=LABELS)
    config = SimpleNamespace(loss=LossConfig(class_weights="balanced"))
    sets = Sets(train, valid, [], [])
    search = SimpleNamespace(sets=sets, task=task, metric=ACCURACY, config=config)
    trial = SimpleNamespace(train=train, valid=valid, cross_validated=False, tfidf=None)
    results = Results(search, [SimpleNamespace(task=task, trial=trial, goodness=0.0)])
    [(_, predictions)] = results._baselines()[0]
    fitted = (fit_tfidf(task, train, valid, ACCURACY, (), balanced=x) for x in (False, True))
    plain, weighted = (x.predictions(task, valid, valid=valid) for x in fitted)
    ours, other, want = ([x.scores for x in each] for each in (predictions, plain, weighted))
    np.testing.assert_array_equal(ours, want)
    assert not np.allclose(ours, other, atol=0.01)


def results_of(output, goodness_of):
    """Results of trainings, by the folder of each, whose files hold its goodness."""
    task, trained = Classification(labels=("0", "1")), []
    for folder, goodness in goodness_of.items():
        for file in ("best/model.safetensors", "metrics.jsonl", "evaluations.jsonl"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(f'{{"step": 1, "loss": {goodness}}}\n', encoding="utf-8")
        examples = {"train": [Example(("差",), "0", "")], "valid": [Example(("好",), "1", "")]}
        trial = SimpleNamespace(folder=folder, **examples, cross_validated=False, tfidf=None)
        trial.config = SimpleNamespace(optimizer=FinetuneOptimizerConfig(learning_rate=goodness))
        predictions = {"valid": [Prediction("1", np.float32([1 - goodness, goodness]))]}
        result = TrialResult(trial, predictions, {"valid": {"accuracy": goodness}}, task, 1.0)
        trained.append(SimpleNamespace(**vars(result), goodness=goodness))
    tokenizer = SimpleNamespace(tokenizer=tokenizer_of("好差"))
    settings = {"output": output, "task": task, "metric": ACCURACY, "initial": tokenizer}
    sets = Sets([], [], [], [])
    return Results(SimpleNamespace(**settings, sets=sets, taught={}, method={}), trained)


def test_the_best_training_gives_the_model_and_the_metrics(tmp_path):
    goodness_of = {tmp_path / "trials" / str(x): x for x in (0.5, 0.75, 0.625)}
    results = results_of(tmp_path, goodness_of)
    results.save("card")
    for file in ("model/model.safetensors", "metrics.jsonl", "evaluations.jsonl"):
        assert (tmp_path / file).read_text(encoding="utf-8") == '{"step": 1, "loss": 0.75}\n'
    report = results.for_report({}, with_baseline=False)
    assert report.losses == report.evaluations == [{"step": 1, "loss": 0.75}]
    assert report.valid.predictions[0].scores[1] == 0.75
    assert [line["valid"]["accuracy"] for line in report.trials] == [0.5, 0.75, 0.625]


def test_lexical_features_of_an_earlier_run_are_removed(tmp_path):
    """The same command with --lexical-features no writes the model again, without them."""
    results = results_of(tmp_path, {tmp_path: 0.5})
    (tmp_path / "model").mkdir()
    for name in ("model.safetensors", "lexical.npz"):  # the weights are those of the earlier run
        shutil.copy(tmp_path / "best" / "model.safetensors", tmp_path / "model" / name)
    results.save("card")
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert files == {"model.safetensors", "task.json", "README.md"}


def test_the_predictions_of_folds_are_joined_by_the_thresholds_of_their_models():
    """Each model is right about its own pairs, at cosines of a scale of its own."""
    gold = [0.0, 1.0]
    scored, trials = ScoredPairs(levels=(0.0, 1.0)), []
    for cosines in ([0.9, 0.99], [-0.2, 0.1]):
        predictions = [Prediction(x, np.array([x], np.float32)) for x in cosines]
        kind = scored.decoding.with_choices(gold, predictions)
        trials.append(SimpleNamespace(task=kind, predictions={"valid": predictions}, goodness=0.0))
    search = SimpleNamespace(sets=Sets([], [], [], [([], [])] * 2), task=scored)
    results = Results(search, trials)
    assert results.best.task.metrics.compute(gold * 2, results.predictions)["accuracy"] == 1.0


def test_a_query_of_training_is_not_new_whatever_documents_the_search_adds():
    def example(query, *documents):
        relevance = (1.0, *[0.0] * (len(documents) - 1))
        return Example((query, *documents), Judgment(relevance), "")

    train = [example("怎么打印", "打印文件", "打开表格"), example("保存", "保存图片", "打印文件")]
    test = [example("打印", "打印文件", "表格"), example("怎么 打印", "打印文件", "图片")]
    trial = SimpleNamespace(train=train, valid=[], cross_validated=False)
    search = SimpleNamespace(sets=Sets(train, [], test, []), task=Reranking())
    repeated = Results(search, [SimpleNamespace(trial=trial, goodness=0.0)])._duplicates()
    assert repeated.in_train.tolist() == [False, True]
    assert (repeated.within, repeated.contradicting) == (0, 0)


@pytest.mark.parametrize("method", ["full", "vectors"])
def test_a_cross_validation_reports_repeated_and_contradicting_texts(method):
    """No text of a fold is in its training set, but a fold may have a text twice."""
    rows = [("一", "0"), ("一", "1"), ("二", "1"), ("三", "0"), ("三", "0"), ("四", "1")]
    examples = [Example((text,), label, "") for text, label in rows]
    parts = [(examples[3:], examples[:3]), (examples[:3], examples[3:])]
    is_cross_validated = method == "vectors"
    trials = [
        SimpleNamespace(train=rest, valid=fold, cross_validated=False) for rest, fold in parts
    ]
    if is_cross_validated:
        trials = [
            SimpleNamespace(train=examples, valid=examples, cross_validated=True, folds=parts)
        ]
    sets = Sets(examples, [], [], [] if is_cross_validated else parts)
    search = SimpleNamespace(sets=sets, task=Classification(labels=("0", "1")))
    results = Results(search, [SimpleNamespace(trial=trial, goodness=0.0) for trial in trials])
    repeated = results._duplicates()
    assert not repeated.in_train.any()
    assert repeated.repeated.tolist() == [False, True, False, False, True, False]
    assert (repeated.within, repeated.contradicting) == (2, 1)
    # Where a fold has a text of its training set, as in a query of several passages, it is counted.
    if not is_cross_validated:
        trials[1].train.append(examples[5])
        assert results._duplicates().in_train.tolist() == [False] * 5 + [True]


def fold_result(name, weight=None):
    """A training of a fold, of which TF-IDF has a name and a weight, None if it is not used."""
    lexical = None if weight is None else SimpleNamespace(weight=weight, factors=(1.0, weight))
    trial = SimpleNamespace(tfidf=SimpleNamespace(name=Message(name)))
    return SimpleNamespace(lexical=lexical, trial=trial)


def lexical_note(report):
    templates = report_templates(report, "en")
    notes = templates.get_template("notes.jinja").make_module({"report": report})
    return notes.lexical(templates.get_template("blocks.md.jinja").module).strip()


def test_lexical_features_of_folds_have_the_weight_of_each():
    """The best fold has the model. The figures of the others may be with TF-IDF, too."""
    folds = [fold_result("words", 0.2), fold_result("characters"), fold_result("characters", 0.6)]
    described = _described(folds[1], folds)
    assert described == {
        "name": "words in one fold, other settings in others",
        "weight": 0.0,
        "factors": (1.0, 0.0),
        "weights": [0.2, 0.0, 0.6],
    }
    report = {"lexical": described | {"name_zh": "词"}}
    assert lexical_note(report).endswith("chosen in each fold: 20%, 0%, 60%.")
    assert _described(folds[1], folds[1:2]) == {}
    alone = _described(folds[2], folds[2:])
    assert (alone["name"], alone["weight"]) == ("characters", 0.6)
    report = {"lexical": alone | {"name_zh": "字"}}
    assert "is 60%, chosen on the validation set" in lexical_note(report)
    report["method"] = {"name": "vectors", "cross_validated": True}
    assert "is 60%, chosen by cross-validation." in lexical_note(report)


def test_the_name_of_a_baseline_of_folds_is_not_that_of_the_first():
    sets = Sets([], [], [], [([], [])] * 2)
    search = SimpleNamespace(sets=sets, task=Classification(), metric=ACCURACY)
    results = Results(search, [SimpleNamespace(task=search.task, goodness=0.0)] * 2)
    for names, name in [("aa", "a"), ("ab", "a in one fold, other settings in others")]:
        vars(results)["_fitted"] = [[FittedBaseline(Message(x), [], [])] for x in names]
        assert results._baselines() == ([(name, [])], "")


def test_texts_of_a_test_set_are_compared_with_the_sets_of_the_best_fold():
    examples = [Example((text,), "0", "") for text in "一二三"]
    trial = SimpleNamespace(train=examples[:1], valid=examples[1:2], cross_validated=False)
    parts = [(examples[:1], examples[1:2]), (examples[1:2], examples[:1])]
    search = SimpleNamespace(sets=Sets(examples[:2], [], examples, parts), task=Classification())
    repeated = Results(search, [SimpleNamespace(trial=trial, goodness=0.0)])._duplicates()
    assert repeated.in_train.tolist() == [True, False, False]
    assert repeated.in_valid.tolist() == [False, True, False]
