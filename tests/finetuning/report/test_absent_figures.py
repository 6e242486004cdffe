"""An undefined metric is null in report.json, "—" on the pages, and missing from the card."""

import json

import numpy as np
import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.labelled_evaluation import lines
from roformer_tf.finetuning.report import pages
from roformer_tf.finetuning.report.analysis import EvaluatedSet, ReportData, analyse
from roformer_tf.finetuning.report.figures import evaluation_warnings
from roformer_tf.finetuning.report.pages import front_matter, model_card, write_report
from roformer_tf.labelled.splits import Duplicates
from roformer_tf.tasks.table import TASKS
from roformer_tf.training import plots
from roformer_tf.translation import LANGUAGES, Translator
from tests.support.report_run import english_in, make_run, prediction_of

UNDEFINED = {
    "classification": ("1", {"macro_f1", "roc_auc"}, "0"),
    "pair": ("0", {"macro_f1", "roc_auc"}, "1"),
    "multilabel": (("甲",), {"macro_f1"}, "乙"),
    "regression": (3.0, {"pearson", "spearman"}, "all labels are the same number"),
    "tagging": ("O", {"f1", "precision", "recall"}, "no entity"),
}
"""For each task: the label of all test examples, the undefined metrics, a part of the reason."""


def single_label_run(name, sureness=1):
    """Return a run with 30 test examples of one label.

    Their predictions are right if `sureness` is positive.
    """
    run = make_run(name, leaked=0)
    label = UNDEFINED[name][0]
    examples = [
        item._replace(label=(label,) * len(item.units) if name == "tagging" else label)
        for item in run.test.examples[:30]
    ]
    answers = [prediction_of(run.task, item, sureness) for item in examples]
    test = EvaluatedSet(examples=examples, lengths=np.full(30, 5), predictions=answers)
    baselines = [(run.baselines[0][0], answers)]
    return ReportData(**run.__dict__ | {"test": test, "baselines": baselines})


@pytest.mark.parametrize("name", UNDEFINED)
def test_report_and_card_of_a_test_set_with_one_label(name, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "cut_font", lambda characters: b"font")
    monkeypatch.setattr(plots, "_svg", lambda figure: b"picture")
    _, undefined, reason = UNDEFINED[name]
    run = single_label_run(name)
    report = analyse(run)
    task = TASKS[name]
    assert {metric for metric, value in report["test"].items() if value is None} == undefined
    for metric in undefined:
        assert report["intervals"]["test"][metric] is None
        why = report["undefined"]["test"][metric]
        assert why["what"] == "value"
        assert reason in why["en"]
        titles = task.metrics.named(metric).title
        assert any(titles in x and why["en"] in x for x in report["warnings"])
    for ends in report["intervals"]["test"].values():
        assert ends is None or ends[0] < ends[1]
    for language in LANGUAGES:
        write_report(tmp_path, report, language)
        report_json = (tmp_path / "report.json").read_text(encoding="utf-8")
        assert json.loads(report_json, parse_constant=lambda x: pytest.fail(x)) == report
        for page in ("report.md", "report.html"):
            text = (tmp_path / page).read_text(encoding="utf-8")
            assert "—" in text
            assert "None" not in text
            assert "nan" not in text.lower()
        card = model_card(report, run.task, language, RoFormerConfig(9, 8, 1, 1, 8))
        assert not any(
            Translator(language)(task.metrics.named(metric).title)
            in card.replace("macro F1", "MF1")
            for metric in undefined - {"macro_f1", "f1", "recall"}
        )
        rows = card.split("##")[2] if language == "en" else card
        for metric in undefined:
            assert f"| {Translator(language)(task.metrics.named(metric).title)} |" not in rows
        if language == "zh":
            assert english_in((tmp_path / "report.md").read_text(encoding="utf-8")) == set()
    shown = front_matter(report)["model-index"][0]["results"][0]["metrics"]
    assert len(shown) == len(report["test"]) - len(undefined)
    assert all(np.isfinite(item["value"]) for item in shown)


@pytest.mark.parametrize("name", UNDEFINED)
def test_evaluate_prints_a_dash_and_the_reason(name):
    _, undefined, _ = UNDEFINED[name]
    run = single_label_run(name)
    report = analyse(run)
    report["data"] = [item for item in report["data"] if item["name"] == "test"]
    report |= {"undefined": {"test": report["undefined"]["test"]}}
    report["warnings"] = evaluation_warnings(report, Translator("en"))
    printed = "\n".join(lines(report, run.task, 100))
    for metric in undefined:
        title = TASKS[name].metrics.named(metric).title
        (row,) = [x for x in printed.splitlines() if x.strip().startswith(f"{title} ")]
        assert row.split()[-2:] == ["—", "—"]
        assert report["undefined"]["test"][metric]["en"] in printed


def test_a_leak_is_reported_if_the_metric_is_undefined():
    run = make_run("regression", leaked=0, baseline="")
    examples = [item._replace(label=3.0) for item in run.test.examples]
    examples[0] = examples[0]._replace(texts=run.train.examples[0].texts)
    test = EvaluatedSet(
        examples=examples,
        lengths=np.full(40, 5),
        predictions=[prediction_of(run.task, item, 1) for item in examples],
        duplicates=Duplicates(run.train.examples, examples),
    )
    message = analyse(ReportData(**run.__dict__ | {"test": test}))["warnings"]
    assert message[0].startswith("1 of 40 examples")
    assert not [x for x in message if "—" in x]


def test_missing_labels_are_reported_for_each_set():
    run = make_run(leaked=0)
    item = [x for x in run.valid.examples if x.label == "0"]
    valid = EvaluatedSet(
        examples=item,
        lengths=np.full(len(item), 5),
        predictions=[prediction_of(run.task, x, 1) for x in item],
    )
    message = analyse(ReportData(**run.__dict__ | {"valid": valid}))["warnings"]
    assert [x for x in message if x.startswith("The validation set has no example of 1:")]
    assert not [x for x in message if x.startswith("The test set has no example")]


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_a_perfect_metric_has_no_interval_of_zero_width(name, monkeypatch):
    """All bootstrap samples of a perfect test set are perfect, so F1 has no interval."""
    run = make_run(name, leaked=0)
    answers = [prediction_of(run.task, item, 1) for item in run.test.examples]
    test = EvaluatedSet(**run.test.__dict__ | {"predictions": answers})
    report = analyse(ReportData(**run.__dict__ | {"test": test}))
    metric = "macro_f1" if name == "classification" else "f1"
    assert report["test"][metric] == 1
    assert report["intervals"]["test"][metric] is None
    assert report["undefined"]["test"][metric]["what"] == "interval"
    wilson = pytest.approx((40 / 43.84, 1), abs=1e-3)  # of texts; units of a text are no trials
    assert report["intervals"]["test"]["accuracy"] == (None if name == "tagging" else wilson)
    page = pages.markdown_page(report)
    assert "| 100.0% — |" in page
    assert "instead of an interval: all samples drawn" in page
    assert "100.0% [100.0%" not in page
    if name == "tagging":  # F1 is its primary metric
        assert "F1 is 100.0% (no confidence interval: all samples" in page
        assert "clearly better" not in page
