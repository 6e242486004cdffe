"""Question answering models: training, evaluation, prediction and export."""

import json
from importlib.util import find_spec

import numpy as np
import pytest

import roformer_tf
from roformer_tf.adaptation import finetune
from roformer_tf.errors import InputError
from roformer_tf.export.command import export
from roformer_tf.finetuning.datasets import LabelledDataset
from roformer_tf.finetuning.labelled_evaluation import EvaluateConfig, evaluate
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.inference.predict_file import PredictConfig, predict_file
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.models.heads import RoFormerForQuestionAnswering
from roformer_tf.search.retriever import open_reranker
from roformer_tf.tasks.table import TASKS
from roformer_tf.training.settings import FinetuneOptimizerConfig
from tests.support.random_model import random_model, tokenizer_of
from tests.support.task_files import load_task

pytestmark = pytest.mark.usefixtures("eager_steps")
FILLER = list("我们去公园学习中国经济")


def row(rng, number, answerable=True):
    """Return a question whose answer is the text between 好 and 了."""
    answer = "".join(rng.choice(list("天气人民"), rng.integers(1, 4)))
    before, after = ("".join(rng.choice(FILLER, n)) for n in rng.integers(1, 25, 2))
    middle = f"好{answer}了" if answerable else ""
    answers = {"text": [answer], "answer_start": [len(before) + 1]}
    return {
        "id": f"q{number}",
        "question": "好什么了",
        "context": f"{before}{middle}{after}。",
        "answers": answers if answerable else {"text": [], "answer_start": []},
    }


@pytest.fixture(scope="module")
def run(shallow, tmp_path_factory):
    """The folder of a run and its data files; a quarter of the questions has no answer."""
    folder = tmp_path_factory.mktemp("questions")
    rng = np.random.default_rng(0)
    for name, count in (("train", 64), ("valid", 32), ("test", 40)):
        rows = [row(rng, i, i % 4 > 0) for i in range(count)]
        lines = "".join(json.dumps(x, ensure_ascii=False) + "\n" for x in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
        finetune(
            FinetuneConfig(
                checkpoint=str(shallow),
                **{name: str(folder / f"{name}.jsonl") for name in ("train", "valid", "test")},
                output=str(folder / "run"),
                optimizer=FinetuneOptimizerConfig(learning_rate=1e-2, layer_decay=1.0),
                epochs=6,
                batch_size=16,
                max_length=32,
                precision="float32",
                language="en",
            )
        )
    return folder


def test_the_report_has_f1_and_exact_match_of_model_and_baseline(run):
    report = json.loads((run / "run" / "report.json").read_text(encoding="utf-8"))
    assert (report["task"], report["metric"]) == ("question-answering", "f1")
    assert set(report["test"]) == {"exact_match", "f1"} == set(report["intervals"]["test"])
    assert report["test"]["f1"] > 0.55 > 0.5 > report["baseline"]["test"]["f1"]
    assert report["data"][2]["labels"] == {"answer": 30, "no answer": 10}
    page = (run / "run" / "report.md").read_text(encoding="utf-8")
    assert "the sentence with the most characters of the question" in page
    card = (run / "run" / "model" / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: question-answering" in card
    config = json.loads((run / "run" / "model" / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["RoFormerForQuestionAnswering"]
    assert config["model_type"] == "roformer"  # transformers has this model
    assert config["id2label"] == {"0": "start", "1": "end"}


def test_predict_evaluate_and_load_agree_with_the_report(run, tmp_path):
    folder, test = run / "run" / "model", run / "test.jsonl"
    task = load_task(folder)
    assert (task.unanswerable, task.max_answer_length) == (True, 3)
    output = tmp_path / "answers.tsv"
    predict_file(PredictConfig(model=str(folder), input=str(test), output=str(output)))
    header, *lines = output.read_text(encoding="utf-8").splitlines()
    assert header == "answer\tstart\tscore\terror"
    rows = [json.loads(line) for line in test.read_text(encoding="utf-8").splitlines()]
    exact = 0
    for line, question in zip(lines, rows, strict=True):
        answer, start, score, _ = line.split("\t")
        exact += answer == "".join(question["answers"]["text"])
        assert 0 < float(score) <= 1
        if answer:
            assert question["context"][int(start) :].startswith(answer)
    report = json.loads((run / "run" / "report.json").read_text(encoding="utf-8"))
    assert exact / len(rows) == pytest.approx(report["test"]["exact_match"])
    evaluate(EvaluateConfig(model=str(folder), data=str(test), output=str(tmp_path / "e.json")))
    evaluated = json.loads((tmp_path / "e.json").read_text(encoding="utf-8"))
    assert evaluated["data"][0]["examples"] == 40
    loaded = roformer_tf.load(folder)
    answers = loaded([(question["question"], question["context"]) for question in rows[:5]])
    for line, answer in zip(lines, answers, strict=False):
        assert set(answer) == {"answer", "start", "score"}
        assert answer["answer"] == line.split("\t")[0]
    with pytest.raises(InputError, match=r'\("question", "context"\)'):
        loaded("好什么了")
    with pytest.raises(InputError, match="--rerank needs a model of --task reranking"):
        open_reranker(str(folder), VectorSettings())


@pytest.mark.skipif(not find_spec("onnxruntime"), reason="needs the extra [onnx]")
@pytest.mark.parametrize("to", ["onnx", "int8"])
def test_an_export_predicts_like_the_model(run, tmp_path, to):
    dataset = LabelledDataset.from_file(run / "test.jsonl", max_length=32)
    export(run / "run" / "model", tmp_path / to, to)
    pairs = [example.texts for example in dataset.examples[:8]]
    want = roformer_tf.load(run / "run" / "model", engine="keras", precision="float32")(pairs)
    got = roformer_tf.load(tmp_path / to)(pairs)
    if to == "onnx":
        assert [x["answer"] for x in got] == [x["answer"] for x in want]
    scores = [[x["score"] for x in answers] for answers in (got, want)]
    np.testing.assert_allclose(*scores, atol=1e-5 if to == "onnx" else 0.5)


def test_a_dataset_gives_batches_and_predictions(run):
    dataset = LabelledDataset.from_file(run / "valid.jsonl", max_length=24)
    model = random_model(dataset.task, tokenizer_of("天气人民了好什么。" + "".join(FILLER)))
    inputs, targets, weights = next(iter(dataset.batches(model.tokenizer, batch_size=8)))
    assert tuple(targets.shape) == (*inputs["token_ids"].shape, 2)
    assert tuple(weights.shape) == (8,)
    assert len(dataset.predict(model)) == len(dataset)


def test_a_model_without_task_json_can_predict(tmp_path):
    model = random_model(task_of("question-answering"), tokenizer_of())
    model.save_pretrained(tmp_path / "model")
    (answer,) = roformer_tf.load(tmp_path / "model")([("今天", "我们去公园")])
    assert answer["answer"] in "我们去公园"


def task_of(name):
    return TASKS[name](text_columns=("question", "context"))


@pytest.mark.parametrize(
    ("setting", "value"), [("label_smoothing", 0.1), ("focal", 2.0), ("r_drop", 1.0)]
)
def test_settings_for_labels_are_rejected(run, tmp_path, setting, value):
    from roformer_tf.tasks.losses import LossConfig

    flag = setting.replace("_", "-")
    with pytest.raises(InputError, match=f"--{flag} is for labels"):
        finetune(
            FinetuneConfig(
                train=str(run / "train.jsonl"),
                output=str(tmp_path / "run"),
                loss=LossConfig(**{setting: value}),
                columns=ColumnsConfig(),
            )
        )


@pytest.mark.hf
def test_transformers_gives_the_same_logits(tmp_path, torch, transformers):
    model = random_model(task_of("question-answering"), tokenizer_of(), num_hidden_layers=2)
    assert isinstance(model, RoFormerForQuestionAnswering)
    model.save_pretrained(tmp_path / "model")
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "model")
    assert type(theirs).__name__ == "RoFormerForQuestionAnswering"
    inputs = model.tokenizer([("今天", "我们去公园学习"), ("天气", "很好")])
    hf_inputs = {
        "input_ids": inputs["token_ids"],
        "token_type_ids": inputs["segment_ids"],
        "attention_mask": inputs["token_ids"] != 0,
    }
    with torch.no_grad():
        output = theirs.eval()(**{k: torch.tensor(v.astype("int64")) for k, v in hf_inputs.items()})
    real = inputs["token_ids"] != 0
    for side, logits in enumerate((output.start_logits, output.end_logits)):
        ours = np.asarray(model(inputs))[..., side]
        np.testing.assert_allclose(ours[real], logits.numpy()[real], atol=1e-5)
