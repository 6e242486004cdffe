"""Each task from a labelled file to the report and to `predict`."""

import csv
import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.stats import pearsonr
from seqeval.metrics import f1_score as span_f1
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import MultiLabelBinarizer

from roformer_tf.cli import main
from roformer_tf.finetuning import trial
from roformer_tf.finetuning.report import pages as report_pages

CHARACTERS = list(
    "今天气很好我们去公园学习中国经济发展人民生活改革工作新闻记者报道的了在和是不也都"
)
PLACES = {"北京": "LOC", "上海": "LOC"}


@pytest.fixture(autouse=True)
def plain_font(monkeypatch):
    """Skip cutting the font, which takes most of a report's time. test_report.py tests it."""
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")


def sentences(count, seed, length=(8, 11)):
    """Random characters, three quarters of them with 北京, 上海 or both.

    The lengths fit into one padded length, so that a model is traced once (for tagging, twice).
    """
    rng = np.random.default_rng(seed)
    for number in range(count):
        characters = list(rng.choice(CHARACTERS, rng.integers(*length)))
        for place in [[], ["北京"], ["上海"], ["北京", "上海"]][number % 4]:
            characters.insert(rng.integers(len(characters) + 1), place)
        yield "".join(characters)


def classification(count, seed):
    yield "text", "label"
    for text in sentences(count, seed):
        yield text, "北京" if "北京" in text else "别处"


def pair(count, seed):
    """The label depends only on the second text."""
    yield "text_a", "text_b", "label"
    texts = list(sentences(count, seed, (10, 12)))
    for number, text in enumerate(texts):
        yield texts[number - 1], text, int("北京" in text)


def multilabel(count, seed):
    yield "text", "labels"
    for text in sentences(count, seed):
        yield text, ",".join(place for place in PLACES if place in text)


def regression(count, seed):
    yield "text", "score"
    for text in sentences(count, seed):
        yield text, 0.5 + text.count("北京") + 2 * text.count("上海")


def ranking(count, seed):
    """The more similar text has a place name, which such a small model can detect."""
    yield "A", "B", "C", "label"
    texts = list(sentences(count, seed, (11, 12)))
    for number, text in enumerate(texts):
        far = "".join(letter for letter in text if letter not in "北京上海")
        near = far[:4] + "北京" + far[4:]
        first = texts[number - 1]
        yield (first, near, far, "B") if number % 2 else (first, far, near, "C")


def tagging(count, seed):
    for text in sentences(count, seed, (8, 13)):
        tags = ["O"] * len(text)
        for place in PLACES:
            for match in re.finditer(place, text):
                tags[match.start() : match.end()] = ["B-LOC", "I-LOC"]
        yield from zip(text, tags, strict=True)
        yield ()


TASKS = {f.__name__: f for f in (classification, pair, multilabel, regression, ranking, tagging)}


METRICS = {"regression": "pearson", "tagging": "f1", "multilabel": "micro_f1"}
MIN_SCORES = {  # reached by such a small model in few steps; in brackets, the score of a constant
    "classification": 0.9,  # (0.5)
    "pair": 0.8,  # (0.5)
    "multilabel": 0.85,  # (0.67)
    "regression": 0.7,  # (0)
    "ranking": 0.8,  # (0.5)
    "tagging": 0.6,  # (0)
}


def write(folder, task, name, count, seed):
    path = folder / f"{name}.{'conll' if task == 'tagging' else 'tsv'}"
    rows = TASKS[task](count, seed)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")
    return path


def finetune(checkpoint, train, output, *flags, **more):
    settings = {
        "checkpoint": checkpoint,
        "train": train,
        "output": output,
        "epochs": 2,
        "learning_rate": 1e-2,
        "layer_decay": 1.0,
        "batch_size": 16,
        "precision": "float32",
        "log_every": 3,
    }
    arguments = {f"--{key.replace('_', '-')}": str(x) for key, x in (settings | more).items()}
    return main(["finetune", *(word for pair in arguments.items() for word in pair), *flags])


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def reference_metric(task, rows):
    """The task's main metric of predictions.tsv, computed by SciPy, seqeval or scikit-learn."""
    gold = [row["gold"] for row in rows]
    if task == "regression":
        return pearsonr([*map(float, gold)], [float(row["score"]) for row in rows]).statistic
    if task == "tagging":
        return span_f1([x.split() for x in gold], [row["tags"].split() for row in rows])
    if task == "multilabel":
        binarizer = MultiLabelBinarizer(classes=list(PLACES))
        return f1_score(
            *(
                binarizer.fit_transform([x.split(",") if x else [] for x in labels])
                for labels in (gold, [row["labels"] for row in rows])
            ),
            average="micro",
        )
    return accuracy_score(gold, [row["label"] for row in rows])


@pytest.mark.quick_cases("pair")  # tagging is in finetuning/test_crf.py
@pytest.mark.parametrize("task", TASKS)
def test_from_labelled_file_to_report_to_predict(task, shallow, tmp_path, capsys):
    train = write(tmp_path, task, "train", 192, seed=1)
    valid = write(tmp_path, task, "valid", 32, seed=3)
    test = write(tmp_path, task, "test", 32, seed=2)
    run = tmp_path / "run"
    more = {"valid": valid, "epochs": 7, "learning_rate": 6e-3}
    more |= {} if task == "tagging" else {"pooling": "mean"}  # of tags it is refused
    assert finetune(shallow, train, run, test=test, **more) == 0
    result = capsys.readouterr().out
    assert f"task {task}" in result
    assert "device: the CPU, by " in result

    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    metric = METRICS.get(task, "accuracy")
    predicted = rows_of(run / "predictions.tsv")
    assert len(predicted) == 32
    assert report["test"][metric] == pytest.approx(reference_metric(task, predicted), abs=1e-4)
    assert report["test"][metric] > MIN_SCORES[task]
    ends = report["intervals"]["test"][metric]
    if ends is None:  # all bootstrap samples are perfect
        assert report["test"][metric] == 1
    else:
        assert ends[0] <= report["test"][metric] <= ends[1]
    for name in ("report.md", "report.html", "settings.yaml", "metrics.jsonl", "model/task.json"):
        assert (run / name).stat().st_size > 0
    assert not (run / "checkpoints").exists()
    tokenizer = json.loads((run / "model/tokenizer_config.json").read_text(encoding="utf-8"))
    assert tokenizer.get("units") == ("characters" if task == "tagging" else None)

    output = tmp_path / "answers.tsv"
    flags = ["--model", str(run / "model"), "--input", str(test), "--output", str(output)]
    assert main(["predict", *flags]) == 0
    for prediction, row in zip(rows_of(output), predicted, strict=True):
        assert set(prediction) < set(row)
        for key, value in prediction.items():
            if key == "score" or key.startswith("p("):
                assert float(value) == pytest.approx(float(row[key]), abs=1e-5), key
            else:
                assert value == row[key], key


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_model_distills_into_another(task, shallow, tmp_path):
    """Both runs split off the same test set, so the teacher's score equals its own report."""
    train, metric = write(tmp_path, task, "train", 96, seed=1), METRICS.get(task, "accuracy")
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    assert finetune(shallow, train, teacher, epochs=4) == 0
    flags = ["--teacher", str(teacher / "model"), "--unlabelled", str(train)]
    assert finetune(shallow, train, student, *flags, epochs=2) == 0
    first, second = (
        json.loads((folder / "report.json").read_text(encoding="utf-8"))
        for folder in (teacher, student)
    )
    # `predict` may choose bfloat16 here, but a teacher computes in float32.
    assert second["teacher"]["test"][metric] == pytest.approx(first["test"][metric], abs=0.05)
    assert second["losses"][-1]["loss"] < second["losses"][0]["loss"]


@pytest.mark.slow
def test_all_training_options_at_once(released, tmp_path):
    """A sweep with seeds on windows, with all options that make a step more expensive."""
    train = write(tmp_path, "multilabel", "train", 48, seed=1)
    run = tmp_path / "run"
    flags = "--sweep --r-drop 1 --fgm 0.5 --accumulate 2 --ema 0.9 --class-weights balanced"
    more = "--focal 2 --label-smoothing 0.1 --long-texts windows --max-length 16 --patience 1"
    words = [*flags.split(), *more.split(), "--metric", "macro_f1"]
    assert finetune(released("char"), train, run, *words, seeds=2, epochs=1) == 0
    names = {path.name for path in (run / "trials").iterdir()}
    rates = {name.rpartition("-seed-")[0] for name in names}
    assert rates == {"rate-0.005", "rate-0.01", "rate-0.02", "rate-0.04"}
    assert len(names) == 5  # the best rate has a second seed
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert {trial["name"] for trial in report["trials"]} == names
    highest = max(trial["valid"]["macro_f1"] for trial in report["trials"])
    # Of those that TF-IDF makes equal, the one that is better alone.
    best = [x["name"] for x in report["trials"] if x["valid"]["macro_f1"] == highest]
    files = [run / "trials" / name / "best" / "model.safetensors" for name in best]
    kept = (run / "model" / "model.safetensors").read_bytes()
    assert kept in [file.read_bytes() for file in files]


@pytest.mark.usefixtures("eager_steps")
def test_patience_stops_training_without_improvement(shallow, tmp_path, monkeypatch):
    train = write(tmp_path, "classification", "train", 20, seed=1)
    run = tmp_path / "run"
    settings = {"epochs": 9, "patience": 2, "learning_rate": 1e-9}
    monkeypatch.setattr(trial, "remove", lambda folder: None)  # the checkpoints stay
    for _ in range(2):
        assert finetune(shallow, train, run, "--no-baseline", **settings) == 0
        lines = (run / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [1, 2, 3]
        (run / "result.json").unlink()  # as if the run had been killed after its last evaluation


@pytest.mark.usefixtures("eager_steps")
def test_the_average_of_the_weights_is_saved(shallow, tmp_path):
    """It is nearer to the initial weights than the last ones; the steps are the same."""
    train = write(tmp_path, "regression", "train", 40, seed=1)
    kernel = "roformer.encoder.layer.0.attention.self.query.weight"
    start, moved, losses = load_file(shallow / "model.safetensors")[kernel], [], []
    for ema in (0.0, 0.9):
        run = tmp_path / f"run-{ema}"
        flags = ("--no-baseline", "--log-every", "1")
        assert finetune(shallow, train, run, *flags, ema=ema, epochs=2) == 0
        moved.append(np.linalg.norm(load_file(run / "model" / "model.safetensors")[kernel] - start))
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        losses.append([json.loads(line)["loss"] for line in lines])
    assert losses[0] == losses[1]
    assert 0 < moved[1] < moved[0]


@pytest.mark.usefixtures("eager_steps")
def test_another_test_file_evaluates_the_same_model_again(shallow, tmp_path, capsys):
    train = write(tmp_path, "regression", "train", 16, seed=1)
    files = {name: write(tmp_path, "regression", name, 16, seed) for seed, name in enumerate("abc")}
    run = tmp_path / "run"
    settings = {"valid": files["a"], "epochs": 1}
    assert finetune(shallow, train, run, test=files["b"], **settings) == 0
    weights = (run / "model" / "model.safetensors").read_bytes()
    first = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert "task regression" in capsys.readouterr().out
    assert finetune(shallow, train, run, test=files["c"], **settings) == 0
    assert "fine-tuning:" not in capsys.readouterr().err
    second = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert (run / "model" / "model.safetensors").read_bytes() == weights
    assert first["valid"] == second["valid"]
    assert first["test"] != second["test"]
    actual = reference_metric("regression", rows_of(run / "predictions.tsv"))
    assert second["test"]["pearson"] == pytest.approx(actual, abs=1e-4)


@pytest.mark.usefixtures("eager_steps")
def test_test_texts_in_the_training_set_are_reported(shallow, tmp_path, capsys):
    train = write(tmp_path, "classification", "train", 20, seed=1)
    test = write(tmp_path, "classification", "test", 16, seed=2)
    leaked = train.read_text(encoding="utf-8").splitlines(keepends=True)[1:9]
    with test.open("a", encoding="utf-8") as file:
        file.writelines(leaked)
    run = tmp_path / "run"
    assert finetune(shallow, train, run, test=test, epochs=1) == 0
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert (
        report["leaks"]["in_train"] + report["leaks"]["in_valid"],
        report["leaks"]["unseen"],
    ) == (8, 16)
    rows = rows_of(run / "predictions.tsv")
    correct = [row["gold"] == row["label"] for row in rows]
    assert report["test"]["accuracy"] == pytest.approx(np.mean(correct))
    assert report["test_unseen"]["accuracy"] == pytest.approx(np.mean(correct[:16]))
    leaked = f"{report['leaks']['in_train']} of 24 examples of the test set"
    result = capsys.readouterr().out
    assert leaked in result
    assert "task classification" in result
