"""`finetune` and `evaluate` on data that is too small or too uniform for some metrics."""

import json

import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.finetuning.report import pages
from roformer_tf.finetuning.trial import TrialResult
from tests.support.random_model import LETTERS

pytestmark = pytest.mark.usefixtures("eager_steps")


@pytest.fixture(autouse=True)
def plain_font(monkeypatch):
    monkeypatch.setattr(pages, "cut_font", lambda characters: b"font")


def texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(list(LETTERS), 8)) for _ in range(count)]


def write(path, header, labels, seed=0):
    rows = [
        f"{text}\t{label}" for text, label in zip(texts(len(labels), seed), labels, strict=True)
    ]
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def run(shallow, tmp_path, *words):
    flags = ["--checkpoint", shallow, "--output", tmp_path / "run", "--epochs", 1]
    flags += ["--batch-size", 8, "--learning-rate", 1e-4, "--language", "en", *words]
    code = main(["finetune", *map(str, flags)])
    file = tmp_path / "run" / "report.json"
    return code, json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def test_ten_examples_have_a_wide_interval(shallow, tmp_path, capsys):
    """Each set has an example of each label, and the interval of two test rows is wide."""
    train = write(tmp_path / "train.tsv", "text\tlabel", ["好", "坏"] * 5)
    code, report = run(shallow, tmp_path, "--train", train)
    assert code == 0
    for data in report["data"]:
        assert min(data["labels"].values()) >= 1
    low, high = report["intervals"]["test"]["accuracy"]
    assert high - low > 0.6
    assert "nan" not in capsys.readouterr().out


@pytest.mark.slow
def test_constant_labels_are_evaluated_by_their_errors(shallow, tmp_path, capsys):
    """The validation set is constant too, so that no correlation can choose the best epoch."""
    train = write(tmp_path / "train.tsv", "text\tscore", np.linspace(1, 5, 24).round(2))
    same = write(tmp_path / "same.tsv", "text\tscore", [3.0] * 12, seed=1)
    words = ["--train", train, "--valid", same, "--test", same, "--task", "regression"]
    code, report = run(shallow, tmp_path, *words)
    out = capsys.readouterr().out
    assert code == 0
    assert "pearson" in out
    assert "all labels are the same number" in out
    assert report["metric"] == "mae"
    assert report["test"]["pearson"] is report["valid"]["spearman"] is None
    assert "pearson —" in out
    assert report["baseline"]["test"]["pearson"] is None
    assert main(["evaluate", str(tmp_path / "run" / "model"), "--data", str(same)]) == 0
    assert "Pearson r" in (out := capsys.readouterr().out)
    assert "0.000" not in out


def test_a_metric_that_is_undefined_on_the_validation_set_is_refused(shallow, tmp_path, capsys):
    train = write(tmp_path / "train.tsv", "text\tlabel", ["好", "坏"] * 8)
    valid = write(tmp_path / "valid.tsv", "text\tlabel", ["好"] * 4, seed=1)
    words = ["--train", train, "--valid", valid, "--metric", "macro_f1"]
    code, report = run(shallow, tmp_path, *words)
    assert (code, report) == (2, None)
    message = capsys.readouterr().err
    assert "macro_f1" in message
    assert "no example of 坏" in message
    assert "--metric accuracy" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_card_has_the_rate_and_the_seed_of_the_model(shallow, tmp_path, monkeypatch):
    """Of a sweep with seeds the last training is the best here; the report has the run's own."""
    highest = property(lambda x: (x.trial.config.optimizer.learning_rate, x.trial.config.seed))
    monkeypatch.setattr(TrialResult, "goodness", highest)
    train = write(tmp_path / "train.tsv", "text\tlabel", ["好", "坏"] * 5)
    code, report = run(shallow, tmp_path, "--train", train, "--sweep", "--seeds", 2, "--seed", 5)
    assert code == 0
    card = (tmp_path / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert "| learning_rate | 0.0004 |" in card
    assert "| seed | 6 |" in card
    assert (report["settings"]["learning_rate"], report["settings"]["seed"]) == (1e-4, 5)
