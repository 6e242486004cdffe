"""A run with lexical features: all ways to predict give the metrics of the report."""

import json

import numpy as np
import pytest
import yaml

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.finetuning import trial
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.results import print_summary
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.opening import open_finetuned
from roformer_tf.labelled.examples import Example
from roformer_tf.serving.serve_predictions import as_example
from roformer_tf.tasks.lexical import choose_lexical
from tests.support.service_app import served_task

LABELS = ("甲", "乙")
SIZES = {"train": 96, "valid": 48, "test": 60}


def rows_of(size, seed):
    """Yield texts with a character pair for each of their labels; 10 % of the labels are wrong."""
    rng = np.random.default_rng(seed)
    for _ in range(size):
        has = [bool(x) for x in rng.random(2) < 0.4]
        pairs = ["好看" if has[0] else "看好", "中国" if has[1] else "国中"]
        text = "".join(x for pair in pairs for x in (*rng.choice(list("今天我们的了在"), 3), pair))
        right = rng.random(2) < 0.9
        yield text, ",".join(x for x, keep in zip(LABELS, has == right, strict=True) if keep)


DATA = {name: [*rows_of(size, seed)] for seed, (name, size) in enumerate(SIZES.items())}


@pytest.fixture(scope="module")
def finetune(shallow, tmp_path_factory):
    """finetune(*flags) → exit code; every call uses the same run folder."""
    folder = tmp_path_factory.mktemp("lexical")
    for name, rows in DATA.items():
        lines = "".join(f"{text}\t{labels}\n" for text, labels in rows)
        (folder / f"{name}.tsv").write_text("text\tlabels\n" + lines, encoding="utf-8")
    files = [word for name in DATA for word in (f"--{name}", str(folder / f"{name}.tsv"))]
    flags = ["--checkpoint", str(shallow), "--output", str(folder / "run"), "--task", "multilabel"]
    flags += ["--epochs", "2", "--batch-size", "16", "--precision", "float32"]

    def run(*options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
            return main(["finetune", *flags, *files, *options])

    run.folder = folder
    return run


@pytest.fixture(scope="module")
def run(finetune):
    """The folder of the finished run."""
    assert finetune() == 0
    return finetune.folder / "run"


@pytest.fixture(scope="module")
def report(run):
    return json.loads((run / "report.json").read_text(encoding="utf-8"))


def micro_f1(gold, predicted):
    common = sum(len(set(a) & set(b)) for a, b in zip(gold, predicted, strict=True))
    return 2 * common / sum(map(len, [*gold, *predicted]))


GOLD = [tuple(filter(None, labels.split(","))) for _, labels in DATA["test"]]
TEXTS = [text for text, _ in DATA["test"]]


def test_all_ways_to_predict_give_the_metrics_of_the_report(run, report, tmp_path, capsys):
    """load, serve, predict and evaluate use the thresholds of the combined probabilities."""
    loaded = roformer_tf.load(run / "model")(TEXTS)
    assert micro_f1(GOLD, [x["labels"] for x in loaded]) == pytest.approx(
        report["test"]["micro_f1"]
    )
    assert len(set(report["thresholds"].values())) == 1
    served = served_task(run / "model")
    examples = [as_example([text], served.task) for text in TEXTS]
    for prediction, other in zip(loaded, served.predict(examples), strict=True):
        assert prediction["scores"] == served.task.decoding.as_json(None, other)["scores"]
    source, target = run.parent / "test.tsv", tmp_path / "out.tsv"
    assert (
        main(["predict", str(run / "model"), "--input", str(source), "--output", str(target)]) == 0
    )
    assert target.read_text("utf-8").split("\n")[1:5] == [
        line.split("\t", 2)[2]
        for line in (run / "predictions.tsv").read_text("utf-8").split("\n")[1:5]
    ]
    flags = ["--data", str(source), "--output", str(tmp_path / "figures.json")]
    assert main(["evaluate", str(run / "model"), *flags]) == 0
    assert json.loads((tmp_path / "figures.json").read_text("utf-8"))["test"] == report["test"]


def test_the_summary_has_one_line_per_system(run, report, capsys):
    print_summary(run, report)
    lines = capsys.readouterr().out.splitlines()
    shown = [float(line.partition("micro_f1 ")[2].partition(",")[0]) for line in lines[:3]]
    sources = report["test"], report["lexical"]["test"], report["baseline"]["test"]
    assert shown == [pytest.approx(x["micro_f1"], abs=1e-4) for x in sources]
    assert shown[1] not in (shown[0], shown[2])  # exchanged values would be noticed
    marks = ["test: ", "  without lexical features: ", f"  {report['baseline']['name']}: "]
    assert [line[: len(mark)] for line, mark in zip(lines, marks, strict=False)] == marks


def test_thresholds_suit_the_combined_probabilities(run):
    opened = open_finetuned(run / "model")
    predictions = opened.predict([Example((text,), None, "") for text, _ in DATA["valid"]])
    gold = [tuple(filter(None, labels.split(","))) for _, labels in DATA["valid"]]
    chosen = opened.task.decoding.with_choices(gold, predictions)
    assert chosen.thresholds == opened.task.thresholds
    plain = open_finetuned(run / "best").task  # the model without lexical features differs
    assert plain.thresholds != opened.task.thresholds


def test_report_and_card_name_both_metrics(run, report):
    plain = open_finetuned(run / "best")
    assert plain.lexical is None
    predictions = plain.predict([Example((text,), None, "") for text in TEXTS])
    lexical = report["lexical"]
    actual = micro_f1(GOLD, [x.label for x in predictions])
    assert lexical["test"]["micro_f1"] == pytest.approx(actual)
    assert report["test"]["micro_f1"] > actual
    assert lexical["name"] == report["baseline"]["name"]
    weight = open_finetuned(run / "model").lexical.weight
    assert lexical["weight"] == weight > 0.2
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    for page in (card, (run / "report.md").read_text(encoding="utf-8")):
        assert f"词面特征：预测与{lexical['name_zh']}的预测合并，后者的权重为 {weight:.0%}" in page
    row = next(line for line in card.splitlines() if line.startswith("| 微平均 F1"))
    figures = [report["test"], lexical["test"], report["baseline"]["test"]]
    assert [f"{x['micro_f1']:.1%}" for x in figures] == [
        cell.strip() for cell in row.split("|")[2:] if "[" not in cell and cell.strip()
    ]
    assert "其他库不读取" in card


def test_class_weights_count_for_the_weight_of_tfidf(finetune, tmp_path, monkeypatch):
    chosen = []

    def choose(*arguments):
        chosen.extend(choose_lexical(*arguments[:-1], balanced=x) for x in (True, arguments[-1]))
        raise SystemExit  # what follows does not count

    monkeypatch.setattr(trial, "choose_lexical", choose)
    flags = ["--class-weights", "balanced", "--lexical-features", "yes", "--epochs", "1"]
    with pytest.raises(SystemExit):
        finetune(*flags, "--output", str(tmp_path / "run"))
    weighted, actual = chosen
    assert actual.factors == weighted.factors


@pytest.mark.slow
def test_export_requires_a_run_without_lexical_features(finetune, run, report, tmp_path, capsys):
    export = ["export", str(run / "model"), "--to", "savedmodel", "--output", str(tmp_path / "1")]
    assert main(export) == 2
    assert "--lexical-features no" in capsys.readouterr().err
    assert not (tmp_path / "1").exists()
    trained = (run / "metrics.jsonl").read_bytes()
    before = {path.name: path.read_bytes() for path in (run / "model").iterdir() if path.is_file()}
    assert finetune("--lexical-features", "no") == 0
    second_report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert "lexical" not in second_report
    assert second_report["test"] == report["lexical"]["test"]
    assert not (run / "model" / "lexical.npz").exists()
    assert "lexical" not in (run / "model" / "README.md").read_text(encoding="utf-8")
    assert (run / "model" / "task.json").read_bytes() == (run / "best" / "task.json").read_bytes()
    capsys.readouterr()
    assert finetune("--export", "savedmodel") == 0  # "auto" then uses no lexical features
    assert "no lexical features, because a model with them cannot be exported" in (
        capsys.readouterr().out
    )
    assert not (run / "model" / "lexical.npz").exists()
    assert (run / "export" / "savedmodel").exists()
    assert finetune() == 0  # restores the first state
    # The export is of another model than the run has now. Somebody may use it: it stays.
    assert "its models lack the lexical features" in capsys.readouterr().out
    assert (run / "export" / "savedmodel").exists()
    after = {path.name: path.read_bytes() for path in (run / "model").iterdir() if path.is_file()}
    assert after == before
    assert (run / "metrics.jsonl").read_bytes() == trained
    assert yaml.safe_load((run / "settings.yaml").read_text("utf-8"))["lexical_features"] == "auto"


def test_conversion_keeps_lexical_features(run, tmp_path):
    flags = [str(run / "model"), str(tmp_path / "copy"), "--to", "huggingface"]
    assert main(["checkpoints", "convert", *flags]) == 0
    name = "lexical.npz"
    assert (tmp_path / "copy" / name).read_bytes() == (run / "model" / name).read_bytes()
    predict = [roformer_tf.load(folder) for folder in (run / "model", tmp_path / "copy")]
    assert predict[0](TEXTS[:5]) == predict[1](TEXTS[:5])


def test_incompatible_settings_are_rejected_before_training(shallow, tmp_path, capsys):
    settings = {"checkpoint": "a", "train": "b", "output": "c", "lexical_features": "yes"}
    with pytest.raises(InputError, match="Remove --export, or give --lexical-features no"):
        FinetuneConfig(**settings, export=("onnx",))
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tb\n" + "今天好\t今天很好\n中国\t人民\n" * 20, encoding="utf-8")
    flags = ["--checkpoint", str(shallow), "--train", str(path), "--output", str(tmp_path / "run")]
    assert main(["finetune", *flags, "--task", "embedding", "--lexical-features", "yes"]) == 2
    assert "--lexical-features is for whole texts, not for embedding" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()
