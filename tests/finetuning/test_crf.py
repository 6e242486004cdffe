"""Tagging with a CRF layer: training, prediction, conversion and messages of the commands."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from seqeval.metrics import f1_score

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

CHARACTERS = list(
    "今天气很好我们去公园学习中国经济发展人民生活改革工作新闻记者报道的了在和是不也都"
)


def write(path, count, seed):
    """Write sentences with 北京 or 上海; those of more than ten characters need several windows."""
    rng = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            characters = list(rng.choice(CHARACTERS, rng.integers(4, 15)))
            characters.insert(rng.integers(len(characters) + 1), str(rng.choice(["北京", "上海"])))
            text = "".join(characters)
            tags = ["O"] * len(text)
            match = re.search("北京|上海", text)
            tags[match.start() : match.end()] = ["B-LOC", "I-LOC"]
            file.writelines(f"{x}\t{y}\n" for x, y in zip(text, tags, strict=True))
            file.write("\n")
    return path


def flags(**settings):
    pairs = ((f"--{key.replace('_', '-')}", str(x)) for key, x in settings.items())
    return [word for pair in pairs for word in pair]


@pytest.fixture(scope="module")
def run(shallow, tmp_path_factory):
    """The folder of a run with --crf, --fgm and --ema, next to its data files."""
    folder = tmp_path_factory.mktemp("crf")
    train, test = write(folder / "train.conll", 192, 1), write(folder / "test.conll", 32, 2)
    settings = flags(
        checkpoint=shallow,
        train=train,
        test=test,
        valid=write(folder / "valid.conll", 32, 3),
        output=folder / "run",
        max_length=12,
        epochs=5,
        batch_size=16,
        learning_rate=4e-3,
        layer_decay=1.0,
        precision="float32",
        fgm=0.1,
        ema=0.5,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
        assert main(["finetune", *settings, "--crf"]) == 0
    return folder / "run"


@pytest.mark.slow
def test_crf_learns_and_all_commands_agree(run, tmp_path):
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert report["test"]["f1"] > 0.9
    test = run.parent / "test.conll"
    output = tmp_path / "answers.jsonl"
    arguments = ["--input", str(test), "--output", str(output)]
    assert main(["predict", "--model", str(run / "model"), *arguments]) == 0
    predicted = [json.loads(line)["tags"] for line in output.open(encoding="utf-8")]
    blocks = test.read_text(encoding="utf-8").strip().split("\n\n")
    sentences = [[line.split("\t") for line in block.splitlines()] for block in blocks]
    gold = [[tag for _, tag in item] for item in sentences]
    assert report["test"]["f1"] == pytest.approx(f1_score(gold, predicted), abs=1e-6)
    loaded = roformer_tf.load(run / "model")(["".join(x for x, _ in item) for item in sentences])
    assert [[unit["label"] for unit in item["tags"]] for item in loaded] == predicted
    figures = tmp_path / "judged.json"
    assert main(["evaluate", str(run / "model"), *flags(data=test, output=figures)]) == 0
    assert json.loads(figures.read_text(encoding="utf-8"))["test"] == report["test"]


@pytest.mark.slow
def test_crf_weights_are_trained_saved_and_dropped_with_a_warning(run, tmp_path, caplog):
    model = roformer_tf.RoFormerForTokenClassification.from_pretrained(run / "model")
    labels = json.loads((run / "model" / "task.json").read_text(encoding="utf-8"))["labels"]
    steps, start = np.asarray(model.crf.transitions), np.asarray(model.crf.start)
    b, i, o = (labels.index(x) for x in ("B-LOC", "I-LOC", "O"))
    assert steps[o, i] < -99  # forbidden by the scheme
    assert start[i] < -99
    assert steps[b, i] > 0.05 > steps[b, o]  # learned: every place name has two characters
    assert steps[i, o] > steps[i, b]
    config = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    assert (config["crf"], config["model_type"]) == (True, "roformer_crf")
    assert caplog.text == ""
    roformer_tf.RoFormerEncoder.from_pretrained(run / "model").save_pretrained(tmp_path / "encoder")
    assert "crf, token_classifier left unused" in caplog.text
    config = json.loads((tmp_path / "encoder" / "config.json").read_text(encoding="utf-8"))
    assert "crf" not in config
    assert config["model_type"] == "roformer"


@pytest.mark.slow
def test_conversion_keeps_crf_weights(run, tmp_path):
    """Converting to another layout and back keeps all weights bit-identical."""
    source = run / "model"
    for number, to in enumerate(("tf1", "own")):
        target = tmp_path / str(number)
        assert main(["checkpoints", "convert", str(source), str(target), "--to", to]) == 0
        source = target
    models = [
        roformer_tf.RoFormerForTokenClassification.from_pretrained(x)
        for x in (run / "model", source)
    ]
    before, after = (model.named_variables() for model in models)
    assert before.keys() == after.keys()
    assert sum(name.startswith("crf/") for name in before) == 3
    for name, variable in before.items():
        np.testing.assert_array_equal(np.asarray(variable), np.asarray(after[name]))


def test_label_input_marks_the_start_and_end_of_a_text(released):
    """Only the window of the first unit has a start label, only that of the last an end label."""
    tokenizer = RoFormerTokenizer.from_pretrained(released("char"))
    task = Tagging(labels=("O", "B", "I"), crf=True, max_length=10)
    units = tuple("今天天气很好我们去公园学习中国经济")
    tags = ("O", "B", "I") * 5 + ("O", "O")
    long, short = (
        Example(("".join(units),), tags, "", units),
        Example(("今天",), ("B", "I"), "", units[:2]),
    )
    data = task.labelling.training_data([long, short], tokenizer)
    assert len(data.lengths) == 4
    inputs, *_ = data.build(np.arange(4), 5, None)
    *padded, empty = inputs["labels"].tolist()
    assert set(empty) == {-1}
    actual = [row[:length] for row, length in zip(padded, data.lengths, strict=True)]
    assert actual[3] == [3, 1, 2, 4]
    assert [row[0] for row in actual[:3]] == [3, -1, -1]
    assert [row[-1] for row in actual[:3]] == [-1, -1, 4]
    assert [label for row in actual[:3] for label in row if 0 <= label < 3] == [
        task.labels.index(tag) for tag in tags
    ]
    for row, length in zip(padded, data.lengths, strict=True):
        assert set(row[length:]) <= {-1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--r-drop", "1"], "--r-drop treats labels separately; --crf has one loss for all."),
        (["--focal", "2"], "finetune: --focal treats labels separately"),
        (["--label-smoothing", "0.1"], "--label-smoothing treats labels separately"),
        (["--class-weights", "balanced"], "--class-weights treats labels separately"),
    ],
)
def test_incompatible_loss_settings_are_rejected(options, message, shallow, tmp_path, capsys):
    train = write(tmp_path / "train.conll", 24, 1)
    arguments = flags(checkpoint=shallow, train=train, output=tmp_path / "run")
    assert main(["finetune", *arguments, "--crf", *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "model").exists()


def test_crf_is_only_for_tagging(shallow, tmp_path, capsys):
    train = Path(tmp_path / "train.tsv")
    lines = "".join(f"今天很好{'坏好'[i % 2] * i}\t{i % 2}\n" for i in range(24))
    train.write_text("text\tlabel\n" + lines, encoding="utf-8")
    arguments = flags(checkpoint=shallow, train=train, output=tmp_path / "run")
    assert main(["finetune", *arguments, "--crf"]) == 2
    assert "sequences of labels, not for classification. Remove --crf." in capsys.readouterr().err


def test_tags_that_violate_the_scheme_are_reported(shallow, tmp_path, capsys):
    """A few violations are reported as errors; many mean another scheme, which is then allowed."""
    right = "今\tO\n北\tB-LOC\n京\tI-LOC\n\n"
    wrong = "今\tO\n北\tI-LOC\n京\tI-LOC\n\n"
    task = Tagging(labels=("B-LOC", "I-LOC", "O"))
    for bad, scheme in ((1, "IOB2"), (100, "")):
        examples = [
            Example(("",), tuple(line[2:] for line in text.split()), f"f:{i}", ("",) * 3)
            for i, text in enumerate(
                [right.replace("\t", "/")] * 200 + [wrong.replace("\t", "/")] * bad
            )
        ]
        task = Tagging.from_examples(examples)
        assert task.scheme == scheme
        (message,) = task.labelling.notes(examples)
        assert f"{bad} of {200 + bad} sentences with entities are no IOB2" in message
        assert "(first: I-LOC after O in f:200)" in message
        assert ("predictions need not be either" in message) == (not scheme)
