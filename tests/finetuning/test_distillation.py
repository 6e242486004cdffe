"""Distillation from a teacher: soft targets, rejected teachers, and complete runs.

`test_losses` and `tasks/test_choices` compare the loss with a float64 reference.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.engines.choice import Choice
from roformer_tf.errors import InputError
from roformer_tf.finetuning.command import check_uses
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.teacher import check_teacher, stored_predictions
from roformer_tf.finetuning.trainer import TaskLoss
from roformer_tf.inference.opening import Finetuned
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.questions import character_logits, token_logits
from roformer_tf.tasks import labelling
from roformer_tf.tasks.choices.multiple_choice import Choices
from roformer_tf.tasks.choices.reranking import Judgment, Reranking
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.extraction.prompted_spans import PromptedSpans
from roformer_tf.tasks.extraction.question_answering import QuestionAnswering
from roformer_tf.tasks.extraction.spans import Spans
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tasks.vectors.paraphrase import Paraphrase
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
    # The second text needs several windows.
    "tagging": (Tagging(**LABELS, long_texts="windows"), [((OTHER,), "abcab"), ((LONG,), None)]),
    "multiple-choice": (Choices(), [((TEXT, "学", "人民", OTHER), 1), ((OTHER, "好", "去"), 0)]),
    "question-answering": (
        QuestionAnswering(max_length=32, unanswerable=True),
        [((OTHER, LONG), (("公园学", 9),)), ((TEXT, LONG), ())],
    ),
    "reranking": (
        Reranking(),
        [((TEXT, "学", OTHER), Judgment((0, 1))), ((OTHER, "好"), Judgment((1,)))],
    ),
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


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.slow
def test_the_loss_is_zero_with_the_model_as_its_own_teacher(name):
    """With the model as its own teacher, the distillation loss is 0.

    This shows that each teacher logit is compared with the student's logit at the same index.
    With labels, half of the label loss remains.
    """
    task, examples = TASKS[name][0], examples_of(name)
    keras.utils.set_random_seed(1)
    model = random_model(task)
    teacher = Finetuned(model, model.tokenizer, task, Choice("keras", "float32"))
    logits = [task.decoding.soft_targets(x) for x in teacher.predict(examples)]
    data = task.labelling.training_data(examples, model.tokenizer)

    def loss(data, **settings):
        rng = np.random.default_rng(0)
        inputs, targets, weights = data.build(np.arange(len(data.lengths)), 6, lambda _: rng)
        model_inputs = {name: inputs[name] for name in ("token_ids", "segment_ids")}
        outputs = model(model_inputs)
        if task.compares:
            return float(task.objective.batch_loss(targets, outputs, weights, inputs))
        return float(TaskLoss(task, LossConfig(**settings))(targets, outputs, weights))

    with_labels = task.labelling.with_soft_targets(data, logits, len(examples))
    assert loss(with_labels, teacher="it") == pytest.approx(loss(data) / 2, rel=1e-5)
    without_labels = task.labelling.with_soft_targets(data, logits, labelled=0)
    assert loss(without_labels, teacher="it") == pytest.approx(0, abs=1e-6)
    shifted = [x + 1 + np.arange(x.size).reshape(x.shape) for x in logits]
    assert loss(task.labelling.with_soft_targets(data, shifted, labelled=0), teacher="it") > 1e-3


def test_documents_without_labels_have_the_relevance_that_the_teacher_predicts():
    task = Reranking()
    prediction = task.decoding.predict(np.array([0.0, np.log(3)]))  # 1/2 and 3/4
    example = Example((TEXT, "学", OTHER), prediction.label, "more:1")
    np.testing.assert_allclose(task.labelling.target(example), [0.4, 0.6], rtol=1e-6)


def test_answer_logits_are_converted_between_tokenizers():
    """Token probabilities are sums over characters.

    One tokenizer has words (今天, 天气, 很好), the other one characters.
    """
    words, characters = (
        np.array([[-1, -1], *([i, i + size] for i in range(0, 6, size)), [-1, -1]])
        for size in (2, 1)
    )
    rng = np.random.default_rng(0)
    word_logits, char_logits = rng.normal(size=(5, 2)), rng.normal(size=(8, 2))
    logits = token_logits(character_logits([(char_logits, characters)], 6), words)
    relative = np.exp(char_logits - char_logits[0])[1:-1]
    want = np.log(relative.reshape(3, 2, 2).sum(axis=1))
    np.testing.assert_allclose(logits[1:-1], want, rtol=1e-5)
    assert (logits[[0, -1]] == 0).all()
    logits = token_logits(character_logits([(word_logits, words)], 6), characters)[1:-1]
    want = (word_logits - word_logits[0])[1:-1]
    # A word starts at its first character and ends at its last one.
    np.testing.assert_allclose(logits[::2, 0], want[:, 0], rtol=1e-5)
    np.testing.assert_allclose(logits[1::2, 1], want[:, 1], rtol=1e-5)
    assert logits[1::2, 0].max() < -1e29 > logits[::2, 1].max()


def test_overlapping_windows_use_the_higher_logit():
    first, second = (np.array([[-1, -1], [start, start + 1]]) for start in (0, 1))
    windows = [(np.eye(2), first), (np.float32([[1, 0], [5, 3]]), second), (-np.eye(2), second)]
    assert character_logits(windows, 2).tolist() == [[-1, 1], [4, 3]]


@pytest.mark.parametrize("prompts", [False, True])
def test_teacher_spans_are_converted_to_student_tokens(prompts):
    task = (PromptedSpans if prompts else Spans)(labels=("LOC", "PER"), max_length=32)
    example = Example((OTHER,), [("PER", 0, 2)], "a:1")  # 我们去公园
    data = task.labelling.training_data([example], random_model(task).tokenizer)
    spans = np.float32([[3, 5, 0, 0.9], [0, 2, 1, 0.5]])
    targets = task.labelling.with_soft_targets(data, [spans], labelled=1).targets
    t = 0.81 / (0.81 + 0.01)
    if not prompts:
        assert targets[0, 0].tolist() == [[7, 0, 0, 0.5], [1, 2, 1, 1], [0, 0, 0, 0]]
        np.testing.assert_allclose(targets[0, 1], [[7, 0, 0, 0.5], [4, 5, 0, t], [1, 2, 1, 0.5]])
        return
    # PER comes first because it is a gold label of the text.
    for row, (hard, soft) in enumerate(targets):
        start = int(hard[0, 1]) + 1
        assert hard[0, [0, 3]].tolist() == [start + 6, 0.5]
        expected = [start, start + 1, 0, 0.5] if row == 0 else [start + 3, start + 4, 0, t]
        np.testing.assert_allclose(soft[1], expected)
        assert hard[1].tolist() == ([start, start + 1, 0, 1] if row == 0 else [0] * 4)


def test_teacher_answers_are_converted_to_student_tokens():
    task = QuestionAnswering(max_length=32)
    example = Example(("学", OTHER), (("公园", 3),), "a:1")  # 我们去公园, by characters
    data = task.labelling.training_data([example], random_model(task).tokenizer)
    logits = np.stack([np.arange(5), -np.arange(5)], axis=-1).astype("float32")
    distilled = task.labelling.with_soft_targets(data, [logits], labelled=1)
    (_, (targets,), _) = distilled.batches(1, seed=0)[0]
    in_context = targets[3:8]  # the context follows [CLS] 学 [SEP]
    assert in_context[:, :2].argmax(axis=0).tolist() == [3, 4]
    np.testing.assert_array_equal(in_context[:, 2:4], logits)
    assert set(in_context[:, 4]) == {0.5}


def test_all_windows_of_a_text_get_its_soft_targets():
    task = Classification(**LABELS, long_texts="windows")
    examples = [Example((text,), "b", "") for text in (TEXT, LONG * 2)]
    data = task.labelling.training_data(examples, random_model(task).tokenizer)
    logits = np.float32([[1, 2, 3], [4, 5, 6]])
    targets = task.labelling.with_soft_targets(data, logits, labelled=1).targets
    assert targets[0].tolist() == [1, 1, 2, 3, 0.5]
    assert len(targets) > 3
    assert targets[1:].tolist() == [[1, 4, 5, 6, 1]] * (len(targets) - 1)


def test_regression_logits_use_the_students_mean_and_deviation():
    """A teacher with another mean and deviation returns numbers in the unit of the labels."""
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
def test_a_mismatched_teacher_is_rejected(teacher, message):
    with pytest.raises(InputError, match=rf"^folder cannot be the --teacher: .*{message}"):
        check_teacher("folder", teacher, TASKS["classification"][0])


def test_unlabelled_texts_require_a_teacher_or_adaptation():
    with pytest.raises(
        InputError, match="--unlabelled needs --adapt yes, --adapt auto or --teacher"
    ):
        FinetuneConfig(train="", output="", unlabelled=("more.txt",))
    FinetuneConfig(train="", output="", unlabelled=("more.txt",), loss=LossConfig(teacher="folder"))


@pytest.fixture(scope="module")
def runs(shallow, tmp_path_factory):
    """A folder with data files, finetune(name, *flags) → exit code, and a random teacher."""
    folder = tmp_path_factory.mktemp("distillation")
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("今天气很好我们去公园学习"), 9)) for _ in range(80)]
    sets = {"train": texts[:16], "valid": texts[16:24], "test": texts[40:60]}
    for name, texts_of_set in sets.items():
        lines = "".join(f"{text}\t{'好坏'['好' in text]}\n" for text in texts_of_set)
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + lines, encoding="utf-8")
    (folder / "more.txt").write_text("\n".join(["", *texts[60:]]) + "\n", encoding="utf-8")
    files = [word for name in sets for word in (f"--{name}", str(folder / f"{name}.tsv"))]
    settings = "--epochs 2 --batch-size 16 --learning-rate 1e-2 --precision float32 --no-baseline"
    teacher = Classification(labels=("坏", "好"), max_length=16)
    models = save_random_models({"teacher": teacher}, folder)

    def finetune(name, *flags):
        args = ["--checkpoint", str(shallow), "--output", str(folder / name), *settings.split()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
            return main(["finetune", *files, *args, *flags])

    return SimpleNamespace(folder=folder, finetune=finetune, teacher=str(models["teacher"]))


@pytest.mark.usefixtures("eager_steps")
def test_finetuning_with_a_teacher(runs, capsys, monkeypatch):
    folder, flags = runs.folder, ["--teacher", runs.teacher]
    weights_of, weighted = labelling.teacher_weights, []

    def recorded(*arguments):
        weighted.append(weights_of(*arguments))
        return weighted[-1]

    monkeypatch.setattr(labelling, "teacher_weights", recorded)
    assert runs.finetune("plain") == 0
    flags += ["--unlabelled", str(folder / "more.txt"), "--compare-without-teacher"]
    assert runs.finetune("taught", *flags) == 0
    assert [x.tolist() for x in weighted] == [[0.5] * 16 + [1] * 20]  # all unlabelled ones count
    actual = capsys.readouterr()
    assert "more.txt: 20 unlabelled examples" in actual.out
    assert "1 of 21 rows skipped" in actual.err
    assert f"the teacher is {runs.teacher}" in actual.out
    with_teacher, plain = (
        json.loads((folder / name / "report.json").read_text(encoding="utf-8"))
        for name in ("taught", "plain")
    )
    assert (with_teacher["losses"][-1]["step"], plain["losses"][-1]["step"]) == (6, 2)
    assert "teacher" not in plain
    rows = [line.split("\t") for line in (folder / "test.tsv").read_text("utf-8").splitlines()[1:]]
    predicted = roformer_tf.load(runs.teacher, precision="float32")([text for text, _ in rows])
    right = [x["label"] == label for x, (_, label) in zip(predicted, rows, strict=True)]
    assert with_teacher["teacher"]["test"]["accuracy"] == pytest.approx(np.mean(right))
    assert f"  the teacher: accuracy {np.mean(right):.4f}" in actual.out
    assert "教师模型（测试集）" in (folder / "taught" / "report.md").read_text(encoding="utf-8")
    weights = {
        (folder / name / "model" / "model.safetensors").read_bytes() for name in ("taught", "plain")
    }
    assert len(weights) == 2
    assert_same_as_plain(folder)


def assert_same_as_plain(folder):
    """Assert that run `taught` without its teacher gives the same model as run `plain`."""
    with_teacher, plain = (
        json.loads((folder / name / "report.json").read_text(encoding="utf-8"))
        for name in ("taught", "plain")
    )
    result = with_teacher["without_teacher"]
    assert result["test"] == plain["test"]
    assert result["intervals"]["test"] == plain["intervals"]["test"]
    for name, (gain, _) in result["difference"]["test"].items():
        assert gain == pytest.approx(with_teacher["test"][name] - plain["test"][name])
    (best,) = folder.glob("taught/trials/without-teacher-*/best/model.safetensors")
    assert best.read_bytes() == (folder / "plain/model/model.safetensors").read_bytes()


@pytest.mark.slow
def test_spans_compared_without_the_teacher_equal_a_plain_run(shallow, tmp_path, monkeypatch):
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")
    rng = np.random.default_rng(0)
    for name, size in (("train", 24), ("valid", 8), ("test", 16)):
        texts = ["".join(rng.choice(list("我们去公园学习天气"), 8)) for _ in range(size)]
        rows = [
            {
                "text": text,
                "entities": [
                    {"start": i, "end": i + 1, "label": "公" if character == "公" else "天"}
                    for i, character in enumerate(text)
                    if character in "公天"
                ],
            }
            for text in texts
        ]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    task = Spans(labels=("公", "天"), max_length=16)
    teacher = str(save_random_models({"teacher": task}, tmp_path)["teacher"])
    files = [word for name in ("train", "valid", "test") for word in (f"--{name}", f"{name}.jsonl")]
    monkeypatch.chdir(tmp_path)
    settings = "--epochs 6 --batch-size 8 --learning-rate 1e-2 --precision float32 --no-baseline"
    command = ["finetune", *files, "--checkpoint", str(shallow), *settings.split()]
    assert main([*command, "--output", "plain"]) == 0
    with_teacher = [*command, "--teacher", teacher, "--output", "taught"]
    assert main(with_teacher) == 0
    before = Path("taught/model/model.safetensors").read_bytes()
    assert main([*with_teacher, "--compare-without-teacher"]) == 0  # continues the finished run
    assert Path("taught/model/model.safetensors").read_bytes() == before
    assert_same_as_plain(tmp_path)
    report = json.loads(Path("taught/report.json").read_text("utf-8"))
    assert report["without_teacher"]["test"]["f1"] > 0


def test_compare_without_teacher_requires_a_teacher():
    with pytest.raises(InputError, match=r"-teacher needs --teacher\. Give both"):
        FinetuneConfig(train="", output="", compare_without_teacher=True)
    with_teacher = LossConfig(teacher="folder")
    config = FinetuneConfig(train="", output="", loss=with_teacher, compare_without_teacher=True)
    with pytest.raises(InputError, match="is for a loss that a teacher adds to, not for paraphr"):
        check_uses(Paraphrase, config)


def test_a_mismatched_teacher_leaves_no_run_folder(runs, capsys):
    other = save_random_models({"pair": Pair(labels=("坏", "好"))}, runs.folder)["pair"]
    assert runs.finetune("other", "--teacher", str(other)) == 2
    assert "its task is pair, not classification" in capsys.readouterr().err
    assert not (runs.folder / "other" / "settings.yaml").exists()


def with_columns(source, folder, name, cells):
    """Copy `source` and add the columns p(坏) and p(好) with the values cells(label)."""
    header, *rows = source.read_text("utf-8").splitlines()
    lines = [f"{header}\tp(坏)\tp(好)", *(f"{row}\t{cells(row[-1])}" for row in rows)]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / name)


@pytest.mark.usefixtures("eager_steps")
def test_teacher_probabilities_can_be_columns(runs, capsys):
    folder = runs.folder
    probabilities = {"好": "0.25\t0.75", "坏": "0.9\t0.1"}.__getitem__
    files = [
        word
        for name in ("train", "test")
        for word in (
            f"--{name}",
            with_columns(folder / f"{name}.tsv", folder, f"p{name}.tsv", probabilities),
        )
    ]
    columns = ["--text-columns", "text", "--label-column", "label", "--teacher", "columns"]
    columns += ["--epochs", "1"]
    assert runs.finetune("columns", *files, *columns) == 0
    assert "the teacher is p(坏), p(好)" in capsys.readouterr().out
    report = json.loads((folder / "columns" / "report.json").read_text(encoding="utf-8"))
    assert report["teacher"]["test"]["accuracy"] == 1
    # The columns are optional in the test set.
    assert runs.finetune("columns2", *files[:2], *columns) == 0
    report = json.loads((folder / "columns2" / "report.json").read_text(encoding="utf-8"))
    assert "teacher" not in report


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("0.5\t0.7", r"ptrain.tsv:2 has no prediction of class.*: p\(坏\) 0.5, p\(好\) 0.7. Co"),
        ("1.2\t-0.2", "ptrain.tsv:2 has no prediction .* 1.2, .* -0.2. Correct"),
        ("0.5\t", "ptrain.tsv:2 has no prediction .* 0.5, "),
        ("0.5\tnan", "ptrain.tsv:2 has no prediction .* 0.5, .* nan. Correct"),
    ],
)
def test_invalid_probabilities_in_columns_are_rejected(runs, tmp_path, cells, message):
    path = with_columns(runs.folder / "train.tsv", tmp_path, "ptrain.tsv", lambda label: cells)
    config = FinetuneConfig(train=path, output="")
    examples = [Example(("今天",), "好", f"{path}:{line}") for line in (2, 3)]
    with pytest.raises(InputError, match=message):
        stored_predictions(config, Classification(labels=("坏", "好")), examples)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            Classification(labels=("坏", "好", "中")),
            r"train.tsv: .* there is no p\(坏\), p\(好\), p",
        ),
        (Regression(label_column="score"), "what a teacher of regression predicts is the label"),
        (QuestionAnswering(), "predicts is not in columns. Give a model"),
    ],
)
def test_files_without_teacher_columns_are_rejected(runs, task, message):
    config = FinetuneConfig(train=str(runs.folder / "train.tsv"), output="")
    with pytest.raises(InputError, match=message):
        stored_predictions(config, task, [])


def test_teacher_predictions_of_a_regression_can_be_a_column(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,value,score\n今天,3,7\n公园,1,-2.5\n", encoding="utf-8")
    task = Regression(mean=3.0, deviation=2.0, label_column="value")
    examples = [Example(("公园",), 1.0, f"{path}:3"), Example(("今天",), 3.0, f"{path}:2")]
    config = FinetuneConfig(train=str(path), output="")
    predictions = stored_predictions(config, task, examples)
    assert [task.decoding.soft_targets(x).tolist() for x in predictions] == [[-2.75], [2]]


def test_several_labels_of_a_teacher_in_columns_are_those_above_its_thresholds(tmp_path):
    rows = '今天,甲,0.4,0.1\n公园,,0.4,0.1\n学习,"[""甲"", ""乙""]",0.9,0.3\n'
    path = tmp_path / "rows.csv"
    config = FinetuneConfig(train=str(path), output="")
    examples = [Example((text,), (), f"{path}:{line}") for line, text in ((2, "今"), (4, "学"))]
    for column, want in (("labels", [("甲",), ("甲", "乙")]), ("gold", [(), ("甲",)])):
        path.write_text(f"text,{column},p(甲),p(乙)\n{rows}", encoding="utf-8")
        task = Multilabel(labels=("甲", "乙"), label_column="gold")
        assert [x.label for x in stored_predictions(config, task, examples)] == want
