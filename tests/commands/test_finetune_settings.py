"""The settings of `finetune` have their documented effect on losses, weights and metrics.

At a learning rate of 1e-12, the saved weights equal the initial weights. The first loss of a run
can then be recomputed in NumPy from the model in its folder.
"""

import csv
import json
from pathlib import Path

import keras
import numpy as np
import pytest
from scipy.stats import pearsonr
from sklearn.metrics import f1_score

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning import trial as trials
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.labelled.examples import Example
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.tasks.classification import ClassificationMetrics
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS
from tests.support.baseline import baseline_of
from tests.support.finetuned import load_finetuned, predict

CHARACTERS = list(
    "今天气很好我们去公园学习中国经济发展人民生活改革工作新闻记者报道的了在和是不也都"
)
MARKS = ("北京", "上海")
ZERO_RATE = 1e-12
"""A learning rate at which weights do not change."""


@pytest.fixture(scope="module", autouse=True)
def eager_training(eagerly):
    """Most of these runs take only a few steps."""
    with eagerly():
        yield


@pytest.fixture(autouse=True)
def plain_font(monkeypatch):
    """Skip cutting the font, which takes most of a report's time."""
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")


def texts(count, seed, marks=("",), length=10):
    """Random characters after one of the marks, all of one length and so of one shape."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        mark = marks[number % len(marks)]
        yield mark + "".join(rng.choice(CHARACTERS, length - len(mark)))


def write(path, rows, header=("text", "label")):
    lines = ("\t".join(map(str, row)) + "\n" for row in (header, *rows))
    path.write_text("".join(lines), encoding="utf-8")
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rows_of(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def report_of(run):
    return json.loads((run / "report.json").read_text(encoding="utf-8"))


def encoder_weights(source):
    encoder = RoFormerEncoder.from_pretrained(source)
    variables = encoder.named_variables()
    return {name: keras.ops.convert_to_numpy(variable) for name, variable in variables.items()}


def classifier_kernels(model):
    """All kernels of a fine-tuned model's head in one vector."""
    head = load_finetuned(model)[0].named_variables()
    kernels = [
        head[name] for name in sorted(head) if name[:11] == "classifier/" and "kernel" in name
    ]
    return np.concatenate([keras.ops.convert_to_numpy(kernel).ravel() for kernel in kernels])


def predictions_of(model, inputs):
    """The predictions of a model's folder for texts."""
    return predict(*load_finetuned(model), [Example((text,), None, "") for text in inputs])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model of one layer with weights large enough that each affects the output."""
    tokens = [*SPECIAL_TOKENS, *CHARACTERS, *"".join(MARKS)]
    keras.utils.set_random_seed(1)
    config = RoFormerConfig(
        vocab_size=len(tokens),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.2,
    )
    model = RoFormerForMaskedLM(config)
    model.tokenizer = RoFormerTokenizer({token: i for i, token in enumerate(tokens)}, "char")
    model.save_pretrained(folder := tmp_path_factory.mktemp("checkpoint") / "model")
    return folder


@pytest.fixture
def finetune(checkpoint, tmp_path):
    """finetune("run", *flags, train=…) → the folder of a finished run."""

    def run(name, *flags, **more):
        settings = {
            "checkpoint": checkpoint,
            "output": tmp_path / name,
            "epochs": 1,
            "precision": "float32",
            "layer_decay": 1.0,
            "log_every": 1,
        }
        arguments = {f"--{key.replace('_', '-')}": str(x) for key, x in (settings | more).items()}
        words = [word for pair in arguments.items() for word in pair]
        assert main(["finetune", *words, *flags]) == 0
        return Path(settings["output"])

    return run


def cross_entropy(scores, gold, *, smoothing=0.0, focal=0.0, weights=(1, 1)):
    """Mean of −Σ q log p · (1 − p)^focal · weight over examples, from probabilities (N, C)."""
    scores = scores.astype(np.float64)
    targets = (1 - smoothing) * np.eye(2)[gold] + smoothing / 2
    probabilities = scores[np.arange(len(gold)), gold]
    losses = -np.sum(targets * np.log(scores), axis=1) * (1 - probabilities) ** focal
    return np.mean(losses * np.array(weights)[gold])


def test_the_loss_follows_its_settings(finetune, checkpoint, tmp_path):
    actual, gold = [*texts(24, 1)], np.array([0] * 18 + [1] * 6)
    train = write(tmp_path / "train.tsv", zip(actual, gold, strict=True))
    valid = write(tmp_path / "valid.tsv", zip(texts(4, 2), [0, 1, 0, 1], strict=True))
    flags = "--focal 2 --label-smoothing 0.2 --class-weights balanced --dropout 0 --no-baseline"
    settings = {"train": train, "valid": valid, "batch_size": 24, "learning_rate": ZERO_RATE}
    run = finetune("run", *flags.split(), **settings)
    [line] = lines(run / "metrics.jsonl")

    scores = np.array([item.scores for item in predictions_of(run / "model", actual)])
    options = {"smoothing": 0.2, "focal": 2, "weights": (24 / 36, 24 / 12)}
    want = cross_entropy(scores, gold, **options)
    assert line["loss"] == pytest.approx(want, rel=1e-5)
    for name in options:  # each setting changes the loss noticeably
        without = {key: value for key, value in options.items() if key != name}
        assert abs(cross_entropy(scores, gold, **without) - want) > 1e-4 * want, name

    initial = encoder_weights(checkpoint)
    for name, array in encoder_weights(run / "model").items():
        np.testing.assert_allclose(array, initial[name], atol=1e-6, err_msg=name)

    run = finetune("dropout", *flags.replace("--dropout 0", "--dropout 0.4").split(), **settings)
    [line] = lines(run / "metrics.jsonl")
    assert line["loss"] != pytest.approx(want, rel=1e-3)
    written = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    assert written["hidden_dropout_prob"] == written["attention_probs_dropout_prob"] == 0.4


@pytest.mark.slow
def test_each_fold_is_evaluated_by_the_model_trained_on_the_rest(finetune, checkpoint, tmp_path):
    actual = [*texts(18, 1)]
    gold = dict(zip(actual, [0, 1] * 9, strict=True))
    train = write(tmp_path / "train.tsv", gold.items())
    flags = "--folds 3 --test-share 0 --from-scratch --dropout 0 --no-baseline"
    run = finetune("run", *flags.split(), train=train, batch_size=18, learning_rate=ZERO_RATE)
    report = report_of(run)
    assert [trial["name"] for trial in report["trials"]] == ["fold-1", "fold-2", "fold-3"]
    assert "test" not in report

    predicted = rows_of(run / "predictions.tsv")
    assert sorted(row["text"] for row in predicted) == sorted(actual)
    for number in range(3):  # six consecutive texts each
        fold, held_out = (
            run / "trials" / f"fold-{number + 1}",
            predicted[6 * number : 6 * number + 6],
        )
        fold_scores = {row["text"]: float(row["p(1)"]) for row in held_out}
        scores = {
            text: item.scores
            for text, item in zip(actual, predictions_of(fold / "best", actual), strict=True)
        }
        assert fold_scores == pytest.approx(
            {text: scores[text][1] for text in fold_scores}, abs=1e-6
        )

        def loss(subset, scores=scores):
            return cross_entropy(
                np.array([scores[text] for text in subset]),
                np.array([gold[text] for text in subset]),
            )

        rest = [text for text in actual if text not in fold_scores]
        [line] = lines(fold / "metrics.jsonl")
        assert line["loss"] == pytest.approx(loss(rest), rel=1e-6)
        for subset in (actual, fold_scores):
            assert abs(loss(subset) - loss(rest)) > 1e-4

    initial = encoder_weights(checkpoint)["encoder/embeddings/word/embeddings"]
    fresh = encoder_weights(run / "model")["encoder/embeddings/word/embeddings"]
    assert abs(np.corrcoef(initial.ravel(), fresh.ravel())[0, 1]) < 0.1  # trained from scratch


def write_numbers(path, count, seed, number):
    """Write texts whose mark determines a number: `number` of 0 or of 2."""
    values = [number(2 * (i % 2)) for i in range(count)]
    return write(path, zip(texts(count, seed, MARKS), values, strict=True))


def test_the_validation_metric_selects_the_best_weights(finetune, tmp_path):
    """The validation values are so near their mean that every epoch makes predictions worse.

    The first epoch has the best mean absolute error there. The correlation and the test set would
    choose a later epoch.
    """
    files = {
        "train": write_numbers(tmp_path / "train.tsv", 32, 1, lambda x: x),
        "valid": write_numbers(tmp_path / "valid.tsv", 16, 2, lambda x: 1 + (x - 1) / 100),
        "test": write_numbers(tmp_path / "test.tsv", 16, 2, lambda x: x),
    }
    flags = "--metric mae --no-baseline --dropout 0 --warmup 0"
    settings = {"task": "regression", "epochs": 3, "batch_size": 16, "learning_rate": 1e-3}
    run = finetune("run", *flags.split(), **files, **settings)
    predicted = lines(run / "evaluations.jsonl")
    errors = [line["mae"] for line in predicted]
    assert int(np.argmin(errors)) == 0
    assert int(np.argmax([line["pearson"] for line in predicted])) > 0

    report = report_of(run)
    rows = rows_of(run / "predictions.tsv")  # the test set has the texts of the validation set
    values = np.array([float(row["score"]) for row in rows])
    gold = np.array([float(row["gold"]) for row in rows])
    assert np.mean(np.abs(values - (1 + (gold - 1) / 100))) == pytest.approx(errors[0], abs=1e-5)
    assert report["valid"]["mae"] == pytest.approx(errors[0], abs=1e-5)
    assert report["test"]["mae"] == pytest.approx(np.mean(np.abs(values - gold)), abs=1e-5)
    assert report["test"]["mae"] > 0.5 > errors[0]  # nothing has been learned yet


@pytest.mark.slow
def test_seeds_differ_and_the_validation_set_selects_the_best(finetune, tmp_path):
    """The validation labels mirror the test labels.

    A better score on one set is a worse score on the other.
    """
    files = {
        "train": write_numbers(tmp_path / "train.tsv", 32, 1, lambda x: x),
        "valid": write_numbers(tmp_path / "valid.tsv", 16, 2, lambda x: 2 - x),
        "test": write_numbers(tmp_path / "test.tsv", 16, 2, lambda x: x),
    }
    settings = {"task": "regression", "batch_size": 16, "learning_rate": 6e-3}
    run = finetune("run", seeds=2, seed=5, **files, **settings)
    report = report_of(run)
    assert [trial["name"] for trial in report["trials"]] == [
        "rate-0.006-seed-5",
        "rate-0.006-seed-6",
    ]
    folders = [run / "trials" / trial["name"] for trial in report["trials"]]
    losses = [[line["loss"] for line in lines(folder / "metrics.jsonl")] for folder in folders]
    assert losses[0] != losses[1]
    on_test = [trial["test"]["pearson"] for trial in report["trials"]]
    on_valid = [trial["valid"]["pearson"] for trial in report["trials"]]
    assert on_valid == pytest.approx([-x for x in on_test])
    assert on_test[0] != on_test[1]
    assert report["test"]["pearson"] == min(on_test)
    weights = [(folder / "best" / "model.safetensors").read_bytes() for folder in folders]
    heads = [classifier_kernels(folder / "best") for folder in folders]
    assert abs(np.corrcoef(*heads)[0, 1]) < 0.5  # each has its own initial head
    assert (run / "model" / "model.safetensors").read_bytes() == weights[np.argmin(on_test)]

    def read(name):
        rows = rows_of(files[name])
        return [Example((row["text"],), float(row["label"]), "") for row in rows]

    task = load_finetuned(run / "model")[2]
    train, valid, test = read("train"), read("valid"), read("test")
    for fitted_to, same in ((train, True), (train + test, False)):
        _, simple = baseline_of(task, fitted_to, test, valid)
        want = task.metrics.compute([item.label for item in test], simple)
        assert (report["baseline"]["test"] == pytest.approx(want, abs=1e-6)) == same

    averaged = finetune("averaged", "--no-baseline", "--ema", "0.9", seed=5, **files, **settings)
    assert [line["loss"] for line in lines(averaged / "metrics.jsonl")] == losses[0]
    assert (averaged / "model" / "model.safetensors").read_bytes() != weights[0]
    values = [float(row["score"]) for row in rows_of(averaged / "predictions.tsv")]
    gold = [float(row["gold"]) for row in rows_of(averaged / "predictions.tsv")]
    assert report_of(averaged)["test"]["pearson"] == pytest.approx(pearsonr(gold, values)[0])


def test_thresholds_of_several_labels_are_chosen_on_the_validation_set(finetune, tmp_path):
    """Labels are rare in training and common in `valid`.

    All thresholds are equally good on `test`, which has no labels.
    """

    def write_labels(name, seed, counts):
        actual = [label for label, count in counts.items() for _ in range(count)]
        return write(tmp_path / name, zip(texts(len(actual), seed), actual, strict=True))

    files = {
        "train": write_labels("train.tsv", 1, {"甲": 4, "乙": 2, "": 26}),
        "valid": write_labels("valid.tsv", 2, {"甲": 9, "乙": 4, "": 3}),
        "test": write_labels("test.tsv", 3, {"": 16}),
    }
    settings = {"task": "multilabel", "epochs": 2, "batch_size": 16, "learning_rate": 6e-3}
    run = finetune("run", "--no-baseline", **files, **settings)
    rows = rows_of(files["valid"])
    gold = np.array([[label == row["label"] for label in ("乙", "甲")] for row in rows])
    scores = np.array(
        [item.scores for item in predictions_of(run / "model", [x["text"] for x in rows])]
    )

    def f1(threshold):
        return f1_score(gold, scores > threshold, average="micro", zero_division=0)

    task, report = load_finetuned(run / "model")[2], report_of(run)
    assert report["thresholds"] == dict(zip(("乙", "甲"), task.thresholds, strict=True))
    [threshold] = set(task.thresholds)  # too few examples for separate thresholds
    best = max(f1(step / 20) for step in range(1, 20))
    assert f1(threshold) == best > f1(0.5)
    assert report["valid"]["micro_f1"] == pytest.approx(best)
    assert max(line["micro_f1"] for line in report["evaluations"]) == pytest.approx(best)
    assert f"| 甲 | {threshold:.2f} |" in (run / "report.md").read_text(encoding="utf-8")
    actual = rows_of(run / "predictions.tsv")
    for row in actual:
        message = [label for label in ("乙", "甲") if float(row[f"p({label})"]) > threshold]
        assert row["labels"] == ",".join(message)
    nothing = np.mean([not row["labels"] for row in actual])
    assert report["test"]["exact_match"] == pytest.approx(nothing)
    assert nothing < 1


@pytest.mark.slow
def test_a_failing_baseline_does_not_prevent_the_report(finetune, tmp_path, monkeypatch, capsys):
    """Every text is a different character."""
    characters = [chr(0x4E00 + 7 * number) for number in range(160)]
    train = write(tmp_path / "train.tsv", zip(characters, [0, 1] * 80, strict=True))
    run = finetune("run", train=train, batch_size=64)
    assert report_of(run)["baseline"]["test"]["accuracy"] >= 0

    def fail(*_):
        raise MemoryError("no room\nfor it")

    monkeypatch.setattr(ClassificationMetrics, "fit_linear", fail)
    (run / "report.json").unlink()
    capsys.readouterr()
    finetune("run", train=train, batch_size=64)
    report = report_of(run)
    sentence = "There is no baseline to compare with, because it failed: MemoryError: no room."
    assert "baseline" not in report
    assert sentence in report["warnings"]
    assert sentence in capsys.readouterr().out
    for name in ("report.md", "report.html"):
        page = (run / name).read_text(encoding="utf-8")
        assert "没有基线可供对比，拟合基线时出错：MemoryError: no room。" in page


def test_a_run_does_not_resume_with_other_validation_examples(
    finetune, tmp_path, monkeypatch, capsys
):
    train = write(tmp_path / "train.tsv", zip(texts(16, 1), [0, 1] * 8, strict=True))
    valid = write(tmp_path / "valid.tsv", zip(texts(8, 2), [0, 1] * 4, strict=True))
    settings = {"train": train, "valid": valid, "epochs": 2, "batch_size": 16}
    flags = ["--no-baseline"]
    save = trials.save_checkpoint

    def save_and_stop(*arguments, **more):
        save(*arguments, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trials, "save_checkpoint", save_and_stop)
        with pytest.raises((KeyboardInterrupt, SystemExit, AssertionError)):
            finetune("run", *flags, **settings)
    run, original = tmp_path / "run", valid.read_text(encoding="utf-8")
    assert [line["epoch"] for line in lines(run / "evaluations.jsonl")] == [1]

    def is_refused(reason):
        valid.write_text(original.replace("\t1\n", "\t0\n", 1), encoding="utf-8")
        with pytest.raises(AssertionError):
            finetune("run", *flags, **settings)
        valid.write_text(original, encoding="utf-8")
        return reason in capsys.readouterr().err

    assert is_refused("was trained on other data than this")
    finetune("run", *flags, **settings)
    assert [line["epoch"] for line in lines(run / "evaluations.jsonl")] == [1, 2]
    assert is_refused("holds a training on other examples than these")


@pytest.mark.quick_cases("multilabel")
@pytest.mark.parametrize("task", ["classification", "multilabel"])
def test_label_names_are_used(task, finetune, tmp_path, capsys):
    gold = [("10", "2")[n % 2] for n in range(24)]
    labels = [
        f"{label},10" if task == "multilabel" and n == 3 else label for n, label in enumerate(gold)
    ]
    rows = [*zip(texts(24, 1, MARKS), labels, strict=True)]
    file = write(tmp_path / "train.tsv", rows)
    names = ["--task", task, "--label-names", "差评", "好评"]  # for 2 and 10
    run = finetune("run", *names, train=file, valid=file, test=file)
    assert "names of the labels: 2 → 差评, 10 → 好评\n" in capsys.readouterr().out
    report = report_of(run)
    assert [row["label"] for row in report["per_class"]] == ["差评", "好评"]
    assert sum(row["gold"] for row in report["per_class"]) == (25 if task == "multilabel" else 24)
    names_of = {"10": "好评", "2": "差评", "2,10": "好评,差评", "10,10": "好评"}
    actual = [row["gold"] for row in rows_of(run / "predictions.tsv")]
    assert [{*x.split(",")} for x in actual] == [{*names_of[x].split(",")} for x in labels]
    (prediction,) = roformer_tf.load(run / "model")(["北京今天天气很好我"])
    assert [*prediction["scores"]] == ["差评", "好评"]
    config = json.loads((run / "model" / "config.json").read_text("utf-8"))
    assert config["id2label"] == {"0": "差评", "1": "好评"}

    # Files with the original labels and with their names give equal metrics.
    renamed = write(tmp_path / "named.tsv", [(text, names_of[label]) for text, label in rows])
    figures = []
    for data in (file, renamed):
        words = [
            "evaluate",
            "--model",
            run / "model",
            "--data",
            data,
            "--output",
            tmp_path / "f.json",
        ]
        assert main([*map(str, words)]) == 0
        figures.append(json.loads((tmp_path / "f.json").read_text("utf-8")) | {"file": ""})
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--label-names", "坏"], "but there are 2 labels: 0, 1. Give a name for each"),
        (["--label-names", "坏", "坏"], "--label-names has 1 different names"),
        (
            ["--task", "regression", "--label-names", "坏", "好"],
            "labels of whole texts, not for regression. Remove --label-names",
        ),
    ],
)
def test_names_that_do_not_fit_the_labels_are_refused(flags, problem, checkpoint, tmp_path, capsys):
    file = write(tmp_path / "train.tsv", [(x, n % 2) for n, x in enumerate(texts(24, 1))])
    words = ["--checkpoint", checkpoint, "--train", file, "--output", tmp_path / "run"]
    assert main(["finetune", *map(str, words), *flags]) == 2
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
