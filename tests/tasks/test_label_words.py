"""`--method cloze`: encoding, label scores, the saved task and a fine-tuning run."""

import csv
import json

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.trainer import check_loss
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.choices.cloze import LabelWords
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.table import parse_task
from tests.support.finetuned import predict
from tests.support.random_model import random_model, tokenizer_of

pytestmark = pytest.mark.usefixtures("eager_steps")
PATTERN = "我们{label}。{text}"
TASK = LabelWords(labels=("学习", "公园", "好"), pattern=PATTERN, max_length=16)
EXAMPLES = [Example(("今天____天气",), "公园", "a:1"), Example(("人民{label}",), "好", "a:2")]


def test_label_scores_are_mean_log_probabilities_in_the_gap():
    """A label's logit is the mean log-probability of its characters in the gap.

    The same mean without the text is subtracted from it.
    """
    keras.utils.set_random_seed(1)
    model = random_model(TASK)
    tokenizer = model.tokenizer

    def log_probs(before, count, after):
        ids = [tokenizer.cls_id, *tokenizer.ids(before), *[tokenizer.mask_id] * count]
        ids = np.array([[*ids, *tokenizer.ids(after), tokenizer.sep_id]], np.int32)
        inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids)}
        inputs["masked_positions"] = np.flatnonzero(ids[0] == tokenizer.mask_id)[None]
        scores = np.asarray(model(inputs), np.float64)[0]
        return scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)

    predictions = predict(model, tokenizer, TASK, EXAMPLES)
    # The gap in a text is removed, and braces in a text are ordinary characters.
    for text, prediction in zip(("今天天气", "人民{label}"), predictions, strict=True):
        want = []
        for label in TASK.labels:
            ids = tokenizer.ids(label)
            rows = log_probs("我们", len(ids), f"。{text}"), log_probs("", len(ids), "")
            want.append(np.subtract(*(row[range(len(ids)), ids].mean() for row in rows)))
        probabilities = np.exp(want) / np.exp(want).sum()
        np.testing.assert_allclose(prediction.scores, probabilities, rtol=1e-4)
        assert prediction.label == TASK.labels[int(np.argmax(probabilities))]
        assert TASK.decoding.as_json(EXAMPLES[0], prediction)["label"] == prediction.label


@pytest.mark.parametrize("setting", [{"label_smoothing": 0.1}, {"class_weights": "balanced"}])
def test_settings_of_a_classifier_are_refused_with_the_method_that_has_them(setting):
    with pytest.raises(InputError, match=r"is for --method full, not for cloze\. Remove --"):
        check_loss(TASK, LossConfig(**setting))


def test_targets_are_label_indices():
    data = TASK.labelling.training_data(EXAMPLES, tokenizer_of())
    assert np.array(data.targets).tolist() == [[0, 1, 0], [0, 0, 1]]


def test_a_classification_teacher_gives_soft_targets():
    data = TASK.labelling.training_data(EXAMPLES, tokenizer_of())
    logits = [np.float32([1, 2, 3]), np.float32([4, 5, 6])]
    targets = TASK.labelling.with_soft_targets(data, logits, labelled=1).targets
    assert targets[1].tolist() == [[0, 4, 1], [0, 5, 1], [1, 6, 1]]


def test_labels_with_the_same_tokens_are_rejected():
    task = LabelWords(labels=("股", "票"), pattern=PATTERN, max_length=16)  # both are unknown
    with pytest.raises(InputError, match="the label 股 and another one are the same tokens"):
        task.labelling.encode(EXAMPLES, tokenizer_of())


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "cloze"},
        {"pattern": PATTERN},
        {"method": "cloze", "pattern": "我们{label}"},
        {"method": "cloze", "pattern": "{text}{text}{label}"},
    ],
)
def test_method_cloze_requires_a_valid_pattern(settings):
    wanted = r"and --pattern '.*', but .* needs a sentence with one \{text\} and one \{label\}"
    with pytest.raises(InputError, match=wanted):
        FinetuneConfig(train="", output="", **settings)


def test_finetuning_with_method_cloze(shallow, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
    rows = [f"{word}天气{x}\t{'pn'[word == '坏']}\n" for x in "今我们去公园学习" for word in "好坏"]
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + "".join(rows), "utf-8")
    files = [(f"--{name}", str(tmp_path / f"{name}.tsv")) for name in ("train", "valid", "test")]
    arguments = [word for pair in files for word in pair]
    arguments += ["--checkpoint", str(shallow), "--output", str(tmp_path / "run"), "--epochs", "2"]
    arguments += ["--method", "cloze", "--pattern", "{text}很{label}", "--label-names", "坏", "好"]
    arguments += ["--learning-rate", "1e-2", "--precision", "float32", "--no-baseline"]
    arguments += ["--lexical-features", "yes"]
    assert main(["finetune", *arguments]) == 0
    model = tmp_path / "run" / "model"
    task = parse_task((model / "task.json").read_bytes(), "task.json")
    assert (type(task), task.pattern, task.labels) == (LabelWords, "{text}很{label}", ("坏", "好"))
    report = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))
    assert report["evaluations"][0]["step"] == 0  # zero-shot predictions before training
    predicted = roformer_tf.load(str(model), precision="float32")(["好天气很好", "坏天气很坏"])
    assert set(predicted[0]["scores"]) == {"坏", "好"}
    length = task.max_length
    (tmp_path / "new.txt").write_text(f"天\n{'天' * length}\n", "utf-8")
    output = tmp_path / "answers.csv"
    new = ["--input", str(tmp_path / "new.txt"), "--output", str(output)]
    capsys.readouterr()
    assert main(["predict", str(model), *new, "--precision", "float32"]) == 0
    # 很, the mask, [CLS] and [SEP] have no room for 4 characters.
    assert f"; 1 cut to fit {length} tokens" in capsys.readouterr().err
    with output.open(encoding="utf-8-sig") as file:
        assert [row["tokens_cut"] for row in csv.DictReader(file)] == ["", "4"]
    pairs = ["--train", str(tmp_path / "pairs.tsv"), *arguments[len(files) * 2 :]]
    (tmp_path / "pairs.tsv").write_text(
        "text_a\ttext_b\tlabel\n" + "".join(f"天{row}" for row in rows).replace("天气", "\t"),
        "utf-8",
    )
    pairs[pairs.index("--output") + 1] = str(tmp_path / "other")
    assert main(["finetune", *pairs]) == 2
    assert "--method cloze: it is not for the task pair" in capsys.readouterr().err
