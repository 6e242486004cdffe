"""`roformer-tf evaluate --data` on a labelled file, compared with metrics that are computed here.

The models are random. Their predictions are read from the output of `predict`.
"""

import json
from functools import cache
from itertools import chain

import numpy as np
import pytest
from seqeval.metrics import f1_score

from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.finetuning import labelled_evaluation
from roformer_tf.inference import predict_file
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tasks.vectors.retrieval import Retrieval
from roformer_tf.tasks.vectors.scored_pairs import ScoredPairs
from tests.support.random_model import LETTERS, save_random_models

LABELS = ("坏", "好", "一般")
TAGS = ("B-LOC", "I-LOC", "O")
TASKS = {
    "classification": Classification(labels=LABELS, text_columns=("话",), label_column="情绪"),
    "multilabel": Multilabel(labels=("甲", "乙"), label_column="label", label_separator="|"),
    "tagging": Tagging(labels=TAGS, max_length=20, long_texts="windows"),  # as `finetune` saves it
    "retrieval": Retrieval(
        text_columns=("query", "document"), max_length=8, long_texts="windows", data="pairs"
    ),
    "scored pairs": ScoredPairs(text_columns=("text_a", "text_b"), label_column="score"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A dictionary of folders with a random model for each task."""
    return save_random_models(TASKS, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", autouse=True)
def cached_models():
    """Open each model only once for all tests, because opening takes longest."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (labelled_evaluation, "open_finetuned"),
            (predict_file, "open_finetuned"),
        ):
            patch.setattr(module, name, cache(getattr(module, name)))
        yield


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """A file of 60 texts with random labels, the texts, and the labels.

    The file has the column names of the training data.
    """
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list(LETTERS), rng.integers(3, 30))) for _ in range(60)]
    labels = [str(label) for label in rng.choice(LABELS, 60)]
    file = tmp_path_factory.mktemp("reviews") / "reviews.tsv"
    lines = [f"7\t{text}\t{label}" for text, label in zip(texts, labels, strict=True)]
    file.write_text("\n".join(["id\t话\t情绪", *lines]) + "\n", encoding="utf-8")
    return file, texts, labels


def predictions(model, source, target):
    """The rows of cells that `predict` writes."""
    flags = ["--model", model, "--input", source, "--output", target]
    assert main(["predict", *map(str, flags)]) == 0
    return [line.split("\t") for line in target.read_text(encoding="utf-8").splitlines()[1:]]


def evaluated(capsys, tmp_path, *words):
    """The JSON file that `evaluate` writes, and its stdout."""
    output = tmp_path / "new" / "figures.json"
    assert main(["evaluate", *map(str, words), "--output", str(output)]) == 0
    assert [path.name for path in output.parent.iterdir()] == ["figures.json"]
    return json.loads(output.read_text(encoding="utf-8")), capsys.readouterr().out


def accuracy_of(pairs):
    return np.mean([item == other for item, other in pairs])


def test_metrics_intervals_and_labels_equal_those_computed_here(models, reviews, capsys, tmp_path):
    file, _, labels = reviews
    predicted = [row[0] for row in predictions(models["classification"], file, tmp_path / "a.tsv")]
    pairs = list(zip(labels, predicted, strict=True))
    report, printed = evaluated(capsys, tmp_path, models["classification"], "--data", file)
    assert (report["task"], report["judged"], report["file"]) == (
        "classification",
        "test",
        str(file),
    )
    accuracy = accuracy_of(pairs)
    assert 0.1 < accuracy < 0.9
    assert report["test"]["accuracy"] == pytest.approx(accuracy)
    low, high = report["intervals"]["test"]["accuracy"]
    half = 1.96 * np.sqrt(accuracy * (1 - accuracy) / len(pairs))  # of a binomial distribution
    assert (low, high) == pytest.approx((accuracy - half, accuracy + half), abs=half / 4)
    by_label = {}
    for label in LABELS:
        correct = pairs.count((label, label))
        by_label[label] = 2 * correct / max(1, labels.count(label) + predicted.count(label))
    assert report["test"]["macro_f1"] == pytest.approx(np.mean(list(by_label.values())))
    assert {item["label"]: item["f1"] for item in report["per_class"]} == pytest.approx(by_label)
    wrong = {f"{file}:{n}" for n, (item, other) in enumerate(pairs, start=2) if item != other}
    assert {item["place"] for item in report["mistakes"]} <= wrong
    rows = [line.split() for line in printed.splitlines()]
    assert ["accuracy", f"{accuracy:.1%}", f"[{low:.1%},", f"{high:.1%}]"] in rows
    for label in LABELS:
        counts = [str(labels.count(label)), str(predicted.count(label))]
        assert any(row[:1] == [label] and row[-2:] == counts for row in rows)
    assert "text in column 话, label in column 情绪" in printed
    assert "! The test set is small (examples: 60)" in printed


def test_without_output_only_the_table_is_printed(models, reviews, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--data", str(reviews[0]), "--model", str(models["classification"])]
    assert main(["evaluate", *flags]) == 0
    out, err = capsys.readouterr()
    assert "macro F1" in out
    assert err == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        ("文本\t标签", []),  # names that `finetune` detects
        ("话\tgold", ["--label-column", "gold"]),
        ("a\tb", ["--text-columns", "1", "--label-column", "b"]),
    ],
)
def test_columns_are_detected_as_in_training(header, flags, models, reviews, capsys, tmp_path):
    _, texts, labels = reviews
    lines = [f"{text}\t{label}" for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "x.tsv").write_text("\n".join([header, *lines]), encoding="utf-8")
    words = [models["classification"], "--data", tmp_path / "x.tsv", *flags]
    report, printed = evaluated(capsys, tmp_path, *words)
    text, label = header.split("\t")
    assert f"text in column {text}, label in column {label}" in printed
    want, _ = evaluated(capsys, tmp_path, models["classification"], "--data", reviews[0])
    assert (report["test"], report["intervals"]) == (want["test"], want["intervals"])


def test_unknown_labels_are_reported(models, reviews, capsys, tmp_path):
    _, texts, labels = reviews
    labels = ["很好", *labels[1:5], "中", "很好", *labels[7:]]
    lines = [f"{text}\t{label}" for text, label in zip(texts, labels, strict=True)]
    file = tmp_path / "x.tsv"
    file.write_text("\n".join(["话\t情绪", *lines]), encoding="utf-8")
    output = tmp_path / "figures.json"
    flags = ["--model", models["classification"], "--data", file, "--output", output]
    assert main(["evaluate", *map(str, flags)]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert f"{file}:2: the label '很好' does not occur in the training data" in message
    assert "which has 坏, 好, 一般." in message
    assert [path.name for path in tmp_path.iterdir()] == ["x.tsv"]


def test_several_labels_are_separated_as_in_training(models, capsys, tmp_path):
    rows = [("今天", "甲|乙"), ("天气", "乙"), ("很好", ""), ("公园", "甲")]
    lines = [f"{text}\t{labels}" for text, labels in rows]
    (tmp_path / "x.tsv").write_text("\n".join(["text\tlabel", *lines]), encoding="utf-8")
    predicted = predictions(models["multilabel"], tmp_path / "x.tsv", tmp_path / "a.tsv")
    report, _ = evaluated(capsys, tmp_path, models["multilabel"], "--data", tmp_path / "x.tsv")
    pairs = [(row[0], labels) for row, (_, labels) in zip(predicted, rows, strict=True)]
    assert report["test"]["exact_match"] == pytest.approx(accuracy_of(pairs))


def test_tags_are_evaluated_by_entities(models, capsys, tmp_path):
    rng = np.random.default_rng(1)
    sentences = [
        (rng.choice(list(LETTERS), size), rng.choice(TAGS, size)) for size in (3, 40, 12, 9, 1)
    ]
    blocks = ["\n".join(f"{x} {tag}" for x, tag in zip(*item, strict=True)) for item in sentences]
    (tmp_path / "x.conll").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    predicted = predictions(models["tagging"], tmp_path / "x.conll", tmp_path / "a.tsv")
    report, printed = evaluated(capsys, tmp_path, models["tagging"], "--data", tmp_path / "x.conll")
    gold, tags = [list(tags) for _, tags in sentences], [row[0].split(" ") for row in predicted]
    assert report["test"]["f1"] == pytest.approx(f1_score(gold, tags))
    units = zip(chain.from_iterable(gold), chain.from_iterable(tags), strict=True)
    assert report["test"]["accuracy"] == pytest.approx(accuracy_of(units))
    assert "tokens, read in windows" in printed


def test_documents_are_read_in_windows_and_queries_truncated(models, capsys, tmp_path):
    lines = ["query\tdocument", *(f"{query}学习\t{query}公园" for query in ("今天", "天气" * 9))]
    (tmp_path / "x.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _, printed = evaluated(capsys, tmp_path, models["retrieval"], "--data", tmp_path / "x.tsv")
    assert "read in windows, except queries and questions, which are truncated" in printed


def test_vectors_trained_with_scores_are_evaluated_on_pairs_without(models, capsys, tmp_path):
    rng = np.random.default_rng(1)
    texts = ["".join(rng.choice(list(LETTERS), 12)) for _ in range(20)]
    pairs = [(text[:5], text) for text in texts]
    lines = ["\t".join(row) for row in [("text_a", "text_b"), *pairs]]
    (tmp_path / "x.tsv").write_text("\n".join(lines), encoding="utf-8")
    report, _ = evaluated(capsys, tmp_path, models["scored pairs"], "--data", tmp_path / "x.tsv")
    embedder = VectorSettings(pooling="cls").open(models["scored pairs"])
    cosines = embedder.embed([first for first, _ in pairs]) @ embedder.embed(texts).T
    ranks = 1 + (cosines > cosines.diagonal()[:, None]).sum(axis=1)
    assert report["test"]["mrr_at_10"] == pytest.approx(np.mean(np.where(ranks > 10, 0, 1 / ranks)))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data", "missing.tsv"], "missing.tsv"),
        (["--data", "x.txt"], "a .txt file holds texts alone"),
        (["--data", "x.tsv", "--label-column", "z"], "has no column 'z'"),
        (["--data", "x.tsv", "--output", "x.tsv/y.json"], "cannot write x.tsv/y.json"),
        (["--data", "empty.tsv"], "empty.tsv"),
    ],
)
def test_data_that_cannot_be_evaluated_gives_one_message(
    flags, message, models, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("今天\n", encoding="utf-8")
    (tmp_path / "x.tsv").write_text("话\t情绪\n今天\t好\n", encoding="utf-8")
    (tmp_path / "empty.tsv").write_text("话\t情绪\n", encoding="utf-8")
    assert main(["evaluate", str(models["classification"]), *flags]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert (out, "Traceback" in err) == ("", False)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_model_that_is_not_fine_tuned_is_refused(released, reviews, capsys):
    assert main(["evaluate", str(released("hf_word")), "--data", str(reviews[0])]) == 2
    assert "no fine-tuned model" in capsys.readouterr().err


def test_invalid_settings_are_refused():
    with pytest.raises(InputError, match="batch_size is 0"):
        labelled_evaluation.EvaluateConfig(model="x", data="y", batch_size=0)
