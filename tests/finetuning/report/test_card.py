"""The model card: front matter, metrics, code and language."""

import dataclasses
import re
from pathlib import Path

import pytest
import yaml

from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.report.analysis import analyse
from roformer_tf.finetuning.report.pages import front_matter, model_card
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.extraction.prompted_spans import PromptedSpans
from roformer_tf.tasks.table import TASKS
from roformer_tf.translation import LANGUAGES
from tests.support.report_run import english_in, make_run

SETTINGS = {
    "checkpoint": "/home/me/runs/demo/model",
    "train": "/home/me/secret/评论.tsv",
    "output": "/home/me/runs/reviews",
    "epochs": 3,
    "max_length": "auto",
    "learning_rate": 2e-5,
}


V2 = {"use_bias": False, "norm_type": "rms_norm"}


def card_of(name, language="en", **config):
    run = make_run(name, settings=SETTINGS)
    report = analyse(run)
    return report, model_card(report, run.task, language, RoFormerConfig(9, 8, 1, 1, 8, **config))


def split_card(card):
    """Return the front matter and the body of a card."""
    _, front, body = card.split("---\n", 2)
    return yaml.safe_load(front), body


@pytest.mark.parametrize("name", TASKS)
def test_the_front_matter_has_the_fields_of_the_hub(name):
    report, card = card_of(name)
    front, _ = split_card(card)
    assert front == front_matter(report)
    tags = dict.fromkeys(("tagging", "spans"), "token-classification")
    tags |= {x: x for x in ("multiple-choice", "question-answering")}
    tags |= dict.fromkeys(("ranking", "reranking"), "text-ranking")
    tags |= dict.fromkeys(("embedding", "paraphrase"), "sentence-similarity")
    assert front["language"] == "zh"
    assert front["pipeline_tag"] == tags.get(name, "text-classification")
    (entry,) = front["model-index"]
    (result,) = entry["results"]
    assert entry["name"] == "reviews"
    assert result["dataset"]["name"] == "评论.tsv"
    # The run has test texts that are also in the training set: they do not count.
    values = [round(x, 4) for x in report["test_unseen"].values()]
    assert values != [round(x, 4) for x in report["test"].values()]
    assert [item["value"] for item in result["metrics"]] == values
    assert {item["type"] for item in result["metrics"]} == set(front["metrics"])


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_card_has_the_metrics_but_no_folders_or_texts(name, language):
    report, card = card_of(name, language)
    assert "/home/me" not in card
    assert "`demo`" in card
    assert "`评论.tsv`" in card
    for key in ("test", "test_unseen"):
        metric = TASKS[name].metrics.named(report["metric"])
        spec = {"share": ".1%", "coefficient": ".3f", "distance": ".4g"}[metric.kind]
        low, high = report["intervals"][key][metric.name]
        figure = f"{report[key][metric.name]:{spec}} | [{low:{spec}}, {high:{spec}}]"
        assert f"| {figure} |" in card
    run = make_run(name)
    for example in (*run.train.examples, *run.test.examples):
        assert all(text not in card for text in example.texts if len(text) > 4)
    rows = [line for line in card.splitlines() if line.startswith("|")]
    assert len(rows) > 10
    assert report["warnings"]
    for warning in report["warnings"]:
        assert (warning in card) == (language == "en")


@pytest.mark.parametrize("name", TASKS)
def test_a_chinese_card_has_no_english_sentence(name):
    _, body = split_card(card_of(name, "zh")[1])
    body = re.sub(r"```.*?```|`[^`]*`|path/to/this/folder", " ", body, flags=re.S)
    known = {"RoFormer", "roformer", "tf", "reviews", "epochs", "max", "length", "learning", "rate"}
    assert english_in(body) - known == set()
    for title in ("使用方法", "结果", "适用范围", "局限", "数据", "训练过程"):
        assert f"## {title}\n" in body


def test_labels_and_names_are_escaped_in_markdown():
    run = make_run(settings=SETTINGS | {"checkpoint": "a`b", "train": "x|y<script>.tsv"})
    report = analyse(run)
    report["data"][0]["labels"] = {"0": 1, "1": 2}
    card = model_card(report, run.task, "en", RoFormerConfig(9, 8, 1, 1, 8))
    assert "``a`b``" in card
    assert "`x|y<script>.tsv`" in card
    assert {line.count("|") for line in card.splitlines() if line.startswith("| training set")} == {
        6
    }


def test_the_card_of_a_v2_model_warns_about_transformers():
    assert "Do not load this model with `transformers`" in card_of("classification", **V2)[1]
    assert "不要用 `transformers` 加载" in card_of("classification", "zh", **V2)[1]
    assert "Do not load this model with `transformers`" not in card_of("classification")[1]


def test_the_card_shows_code_for_other_libraries():
    classifier, pair, regression = (
        card_of(name)[1] for name in ("classification", "pair", "regression")
    )
    assert "truncation=True)" in classifier
    assert "CrossEncoder" not in classifier
    assert "apply_softmax=True)" in pair
    assert "`CrossEncoder.rank` only takes models with one score" in pair
    assert ("model.rank(" in regression) == (len(make_run("regression").task.text_columns) == 2)
    for name in TASKS:
        assert "CrossEncoder" not in card_of(name, **V2)[1]


@pytest.mark.parametrize(
    ("task", "takes_labels"),
    [
        (PromptedSpans(labels=("地点", "人名")), True),
        (Pair(labels=("entailment", "neutral"), text_columns=("a", "b")), True),
        (Classification(labels=("0", "1")), False),
    ],
)
def test_the_card_passes_labels_if_the_model_accepts_them(task, takes_labels):
    name = {"Pair": "pair", "PromptedSpans": "spans"}.get(type(task).__name__, "classification")
    run = make_run(name, settings=SETTINGS)
    card = model_card(analyse(run), task, "zh", RoFormerConfig(9, 8, 1, 1, 8))
    assert ("labels=[" in card) == takes_labels


@pytest.mark.hf
def test_huggingface_hub_parses_the_front_matter(tmp_path):
    from huggingface_hub import ModelCard

    for name in TASKS:
        report, text = card_of(name)
        (tmp_path / "README.md").write_text(text, encoding="utf-8")
        card = ModelCard.load(tmp_path / "README.md")
        assert card.data.pipeline_tag == TASKS[name].pipeline_tag
        actual = {item.metric_name: item.metric_value for item in card.data.eval_results}
        figures = report.get("test_unseen", report["test"])  # those of new texts, if some are not
        metrics = {TASKS[name].metrics.named(x).title: y for x, y in figures.items()}
        assert actual == {x: round(y, 4) for x, y in metrics.items()}
        assert Path(card.data.eval_results[0].dataset_name).name == "评论.tsv"


def test_cards_of_taggers_name_the_limits_of_transformers():
    run = make_run("tagging", settings=SETTINGS)
    report = analyse(run)
    plain, legal, crf = (
        model_card(
            report, dataclasses.replace(run.task, **changes), "en", RoFormerConfig(9, 8, 1, 1, 8)
        )
        for changes in ({"scheme": ""}, {"scheme": "IOB2"}, {"scheme": "IOB2", "crf": True})
    )
    assert "transformers" not in plain
    assert "does not decode" in legal
    assert "pipelines refuse the folder" in crf
    assert "does not decode" not in crf
