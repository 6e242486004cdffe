"""Synthetic fine-tuned runs of any task, for the tests of reports."""

import re

import numpy as np

from roformer_tf.finetuning.report.analysis import EvaluatedSet, ReportData
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import Duplicates
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.choices.reranking import Judgment
from roformer_tf.tasks.ranking import RANKED
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.vectors.ranked_texts import Retrieved
from roformer_tf.tasks.vectors.sentence_vectors import BELONGS
from roformer_tf.translation import Message

TAGS = ("B-地名", "B-人名", "I-地名", "I-人名", "O")


def example(rng, name, number, text=None):
    """An example of a task with a random text and label."""
    units = tuple(
        text.split()
        if text
        else rng.choice(list("酒店房间服务很好太差北京上海"), rng.integers(3, 30))
    )
    label = {
        "classification": str(rng.integers(0, 2)),
        "pair": str(rng.integers(0, 2)),
        "multilabel": tuple(label for label in ("甲", "乙") if rng.random() < 0.5),
        "regression": float(rng.normal()),
        "ranking": str(rng.choice(RANKED)),
        "multiple-choice": int(rng.integers(0, 3)),
        "reranking": Judgment(tuple(map(float, rng.permutation([0, 0, 1]))), (0.9, 0.5, 0.4)),
        "question-answering": ((text or units[0], 0),),
        "tagging": tuple("B-人名" if text else str(tag) for tag in rng.choice(TAGS, len(units))),
        "spans": nested_entities(rng, len(text or "".join(units))),
    }.get(name, BELONGS)
    texts = (text or "".join(units),) * (len(COLUMNS.get(name, "1")) + 2 * (name in LISTS))
    return Example(texts, label, f"test.tsv:{number + 2}", units if name == "tagging" else ())


def nested_entities(rng, length):
    """An entity that spans the whole text and, with probability ½, another one inside it."""
    inner = [("人名", 1, 2)] if rng.random() < 0.5 else []
    return [("地名", 0, length), *inner]


def prediction_of(task, example, sureness, noise=0.0):
    """A prediction: confidently correct if `sureness` is high, confidently wrong if it is low."""
    if task.separate_texts:
        rank = 1 if sureness + noise > 0 else int(rng_of(example).integers(2, 12))
        near = [(int(i), 1, 0.9 - i / 100) for i in rng_of(example).integers(0, 30, 3)]
        label = Retrieved(rank, rank == 1, 0.1 + noise / 100, tuple(near))
        return Prediction(label, np.array([0.8 + noise / 100], np.float32))
    if task.name == "regression":
        return task.decoding.predict(np.array([example.label + 9 - sureness + noise]))
    if task.name == "spans":
        rows = [
            (a, b, task.label_numbers[label], sureness + noise) for label, a, b in example.label
        ]
        rows.append((0, 1, 1, -sureness - noise))
        logits = np.array(rows, np.float32)
        logits[:, 3] = 1 / (1 + np.exp(-logits[:, 3]))
        return task.decoding.predict(logits)
    if task.name == "question-answering":
        label = example.label if sureness + noise > 0 else (("不", 1),)
        return Prediction(label, np.array([0.5 + np.tanh(abs(sureness)) / 3, 0], "float32"))
    target = task.labelling.target(example)
    hot = (
        target
        if task.name in ("multilabel", "ranking", *LISTS)
        else np.eye(len(task.labels))[target]
    )
    return task.decoding.predict(
        sureness * (2 * hot - 1) + noise * np.sin(np.arange(hot.size)).reshape(hot.shape)
    )


def rng_of(example):
    """A random generator that depends on the example."""
    return np.random.default_rng(int(example.source_line.rpartition(":")[2]))


LABELS = {
    "classification": ("0", "1"),
    "pair": ("0", "1"),
    "multilabel": ("甲", "乙"),
    "tagging": TAGS,
    "spans": ("地名", "人名"),
}
COLUMNS = dict.fromkeys(("pair", "embedding", "paraphrase"), ("text_a", "text_b"))
# These tasks have a text and a list of three texts.
LISTS = ("multiple-choice", "reranking")
COLUMNS |= dict.fromkeys(LISTS, ("问题", "候选"))
COLUMNS["ranking"] = ("A", "B", "C")
COLUMNS["question-answering"] = ("问题", "上下文")
BASELINE = Message("logistic regression")


def make_run(
    name="classification",
    examples=40,
    leaked=10,
    text=None,
    baseline=BASELINE,
    **changes,
):
    """A run with `leaked` test examples that are in the training set as well."""
    rng = np.random.default_rng(0)
    task = TASKS[name](
        labels=LABELS.get(name, ()),
        text_columns=COLUMNS.get(name, ("text",)),
        max_length=16,
    )
    train, valid, test = ([example(rng, name, i) for i in range(examples)] for _ in range(3))
    if text:
        test[0] = example(rng, name, 0, text)
    test[:leaked] = train[:leaked]

    def evaluated_set(examples, **more):
        return EvaluatedSet(
            examples=examples, lengths=np.array([len(x.texts[0]) for x in examples]), **more
        )

    def predictions_of(examples):
        return [
            prediction_of(task, item, 1, noise)
            for item, noise in zip(examples, 3 * rng.normal(size=len(examples)), strict=True)
        ]

    return ReportData(
        **{
            "task": task,
            "metric": TASKS[name].metrics.all[0].name,
            "train": evaluated_set(train),
            "valid": evaluated_set(valid, predictions=predictions_of(valid)),
            "test": evaluated_set(
                test,
                predictions=predictions_of(test),
                duplicates=Duplicates(train, test),
            ),
            "baselines": [(baseline, predictions_of(test))] if baseline else [],
            "losses": [{"step": step, "loss": 1 / step} for step in range(1, 30)],
            "evaluations": [
                {"step": 10 * (i + 1), "epoch": float(i + 1), TASKS[name].metrics.all[0].name: 0.5}
                for i in range(3)
            ],
            "settings": {"checkpoint": "某.zip", "train": "a.tsv", "valid": None},
            "hardware": {"processor": "CPU", "accelerators": "none"},
            "seconds": {"training": 75.0},
        }
        | changes
    )


# Terms that are not translated.
TERMS = {
    "F1",
    "ROC",
    "AUC",
    "MRR",
    "nDCG",
    "ECE",
    "TF",
    "IDF",
    "token",
    "batch",
    "bootstrap",
    "Wilson",
}
NAMES_IN_THE_RUN = {"zip", "checkpoint", "train", "valid", "CPU", "text", *"ABCIOab"}


def english_in(text):
    """English words in a Chinese page, except flags, positions in files, and standard terms."""
    rest = re.sub(r"--[a-z-]+|\w+\.tsv(:\d+)?|\d+e-\d+", " ", text)
    return set(re.findall(r"[A-Za-z]+\d?", rest)) - TERMS - NAMES_IN_THE_RUN
