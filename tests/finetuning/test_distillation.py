"""Training on a teacher's probabilities: where they go, what is refused, and a whole run.

The loss is compared with float64 in `test_losses` and `tasks/test_choices`.
"""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.engines.choice import Choice
from roformer_tf.errors import InputError
from roformer_tf.finetuning.losses import make_loss
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.teacher import check_teacher
from roformer_tf.inference.opening import Finetuned
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.choices.choices import Choices
from roformer_tf.tasks.choices.reranking import Reranking
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.tagging import Tagging
from tests.support.random_model import random_model, save_random_models

LABELS = {"labels": ("a", "b", "c"), "max_length": 16}
TEXT, OTHER = "今天天气很好", "我们去公园"
LONG = "今天天气很好我们去公园学习中国经济发展"
TASKS = {
    "classification": (Classification(**LABELS), [((TEXT,), "b"), ((OTHER,), "a")]),
    "pair": (Pair(**LABELS, text_columns=("a", "b")), [((TEXT, OTHER), "c")]),
    "multilabel": (Multilabel(**LABELS), [((TEXT,), ("a", "c")), ((OTHER,), ())]),
    "regression": (Regression(mean=3.0, deviation=2.0), [((TEXT,), 7.0), ((OTHER,), 1.0)]),
    "ranking": (Ranking(), [((TEXT, OTHER, "发展"), "C"), ((OTHER, "学", TEXT), "B")]),
    # The second text is read in windows.
    "tagging": (Tagging(**LABELS, long_texts="windows"), [((OTHER,), "abcab"), ((LONG,), None)]),
    "multiple-choice": (Choices(), [((TEXT, "学", "人民", OTHER), 1), ((OTHER, "好", "去"), 0)]),
    "reranking": (Reranking(), [((TEXT, "学", OTHER), (0, 1)), ((OTHER, "好"), (1,))]),
}


def examples_of(name):
    examples = []
    for texts, label in TASKS[name][1]:
        units = tuple(texts[0]) if name == "tagging" else ()
        if name == "tagging" and label is None:
            label = "ab" * len(units)
        if units:
            label = tuple(label[: len(units)])
        examples.append(Example(texts, label, "train:1", units))
    return examples


@pytest.mark.quick_cases(
    *("classification", "multilabel", "regression", "tagging", "ranking", "reranking"),
)
@pytest.mark.parametrize("name", TASKS)
def test_nobody_differs_from_oneself_as_the_teacher(name):
    """Each number of the teacher meets the logit that it came from; the labels keep their half."""
    task, examples = TASKS[name][0], examples_of(name)
    keras.utils.set_random_seed(1)
    model = random_model(task)
    teacher = Finetuned(model, model.tokenizer, task, Choice("keras", "float32"))
    logits = [task.decoding.logits(x.scores) for x in teacher.predict(examples)]
    data = task.labelling.training_data(examples, model.tokenizer)

    def loss(data, **settings):
        inputs, targets, weights = data.build(np.arange(len(data.lengths)), 6, None)
        taken = {name: inputs[name] for name in ("token_ids", "segment_ids")}
        outputs = model(taken)
        if task.compares:
            return float(task.objective.batch_loss(targets, outputs, weights, inputs))
        return float(make_loss(task, LossConfig(**settings), [])(targets, outputs, weights))

    half = task.labelling.with_soft_targets(data, logits, len(examples))
    assert loss(half, teacher="it") == pytest.approx(loss(data) / 2, rel=1e-5)
    alone = task.labelling.with_soft_targets(data, logits, labelled=0)
    assert loss(alone, teacher="it") == pytest.approx(0, abs=1e-6)
    moved = [x + 1 + np.arange(x.size).reshape(x.shape) for x in logits]
    assert loss(task.labelling.with_soft_targets(data, moved, labelled=0), teacher="it") > 1e-3


def test_windows_of_a_text_have_its_probabilities():
    task = Classification(**LABELS, long_texts="windows")
    examples = [Example((text,), "b", "") for text in (TEXT, LONG * 2)]
    data = task.labelling.training_data(examples, random_model(task).tokenizer)
    logits = np.float32([[1, 2, 3], [4, 5, 6]])
    targets = task.labelling.with_soft_targets(data, logits, labelled=1).targets
    assert targets[0].tolist() == [1, 1, 2, 3, 0.5]
    assert len(targets) > 3
    assert targets[1:].tolist() == [[1, 4, 5, 6, 1]] * (len(targets) - 1)


def test_a_teachers_number_is_in_the_unit_of_the_data():
    """The teacher's mean and deviation are its own."""
    task = Regression(mean=3.0, deviation=2.0)
    assert task.decoding.logits(np.float32([7])).tolist() == [2]


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        (Pair(**LABELS), "its task is pair, not classification"),
        (Classification(labels=("a", "b")), "it does not know c. Give"),
        (Classification(labels=("a", "c", "d")), "it does not know b and --train has no d"),
        (Classification(labels=("a", "b", "c", "d")), "--train has no d. Give"),
        (Classification(labels=("b", "a", "c")), "its labels have another order"),
        (Classification(**LABELS, text_columns=("a", "b")), "has the texts a, b"),
    ],
)
def test_a_teacher_of_something_else_is_refused(teacher, message):
    with pytest.raises(InputError, match=rf"^folder cannot be the --teacher: .*{message}"):
        check_teacher("folder", teacher, TASKS["classification"][0])


def test_unlabelled_texts_need_a_teacher_or_an_adaptation():
    with pytest.raises(InputError, match="or for --teacher"):
        FinetuneConfig(train="", output="", unlabelled=("more.txt",))
    FinetuneConfig(train="", output="", unlabelled=("more.txt",), loss=LossConfig(teacher="folder"))


@pytest.fixture(scope="module")
def typed(shallow, tmp_path_factory):
    """A folder with files, and finetune(name, *flags) → exit code."""
    folder = tmp_path_factory.mktemp("distillation")
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("今天气很好我们去公园学习"), 9)) for _ in range(80)]
    sets = {"train": texts[:32], "valid": texts[32:40], "test": texts[40:60]}
    for name, some in sets.items():
        lines = "".join(f"{text}\t{'好坏'['好' in text]}\n" for text in some)
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + lines, encoding="utf-8")
    (folder / "more.txt").write_text("\n".join(["", *texts[60:]]) + "\n", encoding="utf-8")
    files = [word for name in sets for word in (f"--{name}", str(folder / f"{name}.tsv"))]
    settings = "--epochs 2 --batch-size 16 --learning-rate 1e-2 --precision float32 --no-baseline"
    teacher = Classification(labels=("坏", "好"), max_length=16)
    models = save_random_models({"teacher": teacher}, folder)

    def finetune(name, *flags):
        words = ["--checkpoint", str(shallow), "--output", str(folder / name), *settings.split()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(report_pages, "cut_font", lambda characters: b"font")  # takes long
            return main(["finetune", *files, *words, *flags])

    return SimpleNamespace(folder=folder, finetune=finetune, teacher=str(models["teacher"]))


@pytest.mark.usefixtures("eager_steps")
def test_a_run_with_a_teacher(typed, capsys):
    folder, flags = typed.folder, ["--teacher", typed.teacher]
    assert typed.finetune("plain") == 0
    assert typed.finetune("taught", *flags, "--unlabelled", str(folder / "more.txt")) == 0
    actual = capsys.readouterr()
    assert "more.txt: 20 unlabelled examples" in actual.out
    assert "1 of 21 rows skipped" in actual.err
    assert f"the teacher is {typed.teacher}" in actual.out
    taught, plain = (
        json.loads((folder / name / "report.json").read_text(encoding="utf-8"))
        for name in ("taught", "plain")
    )
    assert (taught["losses"][-1]["step"], plain["losses"][-1]["step"]) == (8, 4)
    assert "teacher" not in plain
    rows = [line.split("\t") for line in (folder / "test.tsv").read_text("utf-8").splitlines()[1:]]
    predicted = roformer_tf.load(typed.teacher, precision="float32")([text for text, _ in rows])
    right = [x["label"] == label for x, (_, label) in zip(predicted, rows, strict=True)]
    assert taught["teacher"]["test"]["accuracy"] == pytest.approx(np.mean(right))
    assert f"  the teacher: accuracy {np.mean(right):.4f}" in actual.out
    assert "教师模型（测试集）" in (folder / "taught" / "report.md").read_text(encoding="utf-8")
    weights = {
        (folder / name / "model" / "model.safetensors").read_bytes() for name in ("taught", "plain")
    }
    assert len(weights) == 2


def test_a_teacher_that_is_no_model_of_the_task_leaves_no_run(typed, capsys):
    other = save_random_models({"pair": Pair(labels=("坏", "好"))}, typed.folder)["pair"]
    assert typed.finetune("other", "--teacher", str(other)) == 2
    assert "its task is pair, not classification" in capsys.readouterr().err
    assert not (typed.folder / "other" / "settings.yaml").exists()
