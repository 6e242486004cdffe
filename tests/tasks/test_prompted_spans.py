"""Entity extraction with label prompts: encoding, targets, decoding and prediction."""

import json

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.adaptation import finetune
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.export.command import export
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.opening import open_finetuned
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.extraction.prompted_spans import PromptedSpans
from roformer_tf.training.settings import FinetuneOptimizerConfig
from tests.support.random_model import LETTERS, TINY, tokenizer_of
from tests.support.task_files import load_task
from tests.support.wiring import alike, post

pytestmark = pytest.mark.usefixtures("eager_steps")
TEXT = "".join(dict.fromkeys(LETTERS))  # each character once
LABELS = ("人民", "国")
TASK = PromptedSpans(labels=LABELS, max_length=20, long_texts="windows")
SIZE = 64


def decoded_pairs(encoded, tokenizer):
    """Return the label and the text of each sequence, decoded from its tokens."""
    rows = []
    for ids, segments in zip(encoded.token_ids, encoded.segment_ids, strict=True):
        cls, *rest = ids.tolist()
        separator = rest.index(tokenizer.sep_id)
        assert (cls, rest[-1]) == (tokenizer.cls_id, tokenizer.sep_id)
        assert segments.tolist() == [0] * (separator + 2) + [1] * (len(rest) - separator - 1)
        parts = rest[:separator], rest[separator + 1 : -1]
        rows.append(tuple("".join(tokenizer.decode([i]) for i in part) for part in parts))
    return rows


def test_every_label_is_paired_with_every_window():
    tokenizer = tokenizer_of()
    encoded = TASK.labelling.encode([Example((x,), None, "a:1") for x in (TEXT, "好")], tokenizer)
    rows = decoded_pairs(encoded, tokenizer)
    windows = [text for label, text in rows if label == "国" and len(text) > 1]
    assert len(windows) == 2
    assert rows == [(x, y) for x in LABELS for y in windows] + [(x, "好") for x in LABELS]
    assert windows[0][-3:] in windows[1]
    assert TEXT.startswith(windows[0])
    assert TEXT.endswith(windows[1])
    assert encoded.label.tolist() == [0, 0, 1, 1, 0, 1]
    assert encoded.example.tolist() == [0, 0, 0, 0, 1, 1]
    assert encoded.lengths.tolist() == [len(TEXT) + 5, 6]
    assert max(encoded.row_lengths) <= TASK.max_length
    for (label, text), units in zip(rows, encoded.first_units, strict=True):
        first = TEXT.find(text) if len(text) > 1 else 0
        want = [-1] * (len(label) + 2) + [first + i for i in range(len(text))] + [-1]
        assert units.tolist() == want


def test_targets_contain_only_spans_of_the_prompted_label():
    tokenizer = tokenizer_of()
    spans = [("人民", 0, 4), ("国", 0, 2), ("国", len(TEXT) - 1, len(TEXT))]
    example = Example((TEXT,), spans, "a:1")
    encoded = TASK.labelling.encode([example], tokenizer)
    targets, weights = TASK.labelling.row_targets(encoded, [example])
    assert weights.tolist() == [1] * 4
    for (label, text), ids, (lengths, *target_spans) in zip(
        decoded_pairs(encoded, tokenizer), encoded.token_ids, targets.tolist(), strict=True
    ):
        assert lengths == [len(ids), len(label) + 1, 0]
        got = {
            "".join(tokenizer.decode([i]) for i in ids[first : last + 1].tolist())
            for first, last, number in target_spans
            if first and number == 0
        }
        assert got == {TEXT[a:b] for x, a, b in spans if x == label and TEXT[a:b] in text}


def test_training_prompts_the_gold_labels_and_three_negatives():
    labels = tuple("今天气很好我们")
    task = PromptedSpans(labels=labels, max_length=20)
    examples = [
        Example(("公园学习",), [("好", 0, 1), ("今", 1, 2), ("好", 2, 3)], "a:1"),
        *(Example(("公园",), [], f"a:{i}") for i in range(2, 40)),
    ]
    data = task.labelling.training_data(examples, tokenizer_of())
    rows = np.bincount(data.encoded.example).tolist()
    assert rows == [5] + [3] * 38
    first = [labels[i] for i in data.encoded.label[:5]]
    assert {*first[:2]} == {"好", "今"}
    assert len({*first}) == 5
    assert {*data.encoded.label.tolist()} == {*range(7)}
    spans = [sum(x[0] > 0 for x in target[1:]) for target in data.targets.tolist()]
    assert spans[:5] == [{"好": 2, "今": 1}.get(x, 0) for x in first]
    assert not any(spans[5:])


def test_decoded_spans_have_the_prompted_label():
    tokenizer = tokenizer_of()
    encoded = TASK.labelling.encode([Example((TEXT,), None, "a:1")] * 2, tokenizer)
    wanted = {"人民": [TEXT[9:12], TEXT[:1]], "国": [TEXT[10:11], TEXT[-2:]]}

    def pointers(label, ids):
        row = np.zeros((len(ids), 2 * SIZE + 2), "float32")
        row[:, 2 * SIZE :] = -9.0
        for part in wanted[label]:
            first, last = (tokenizer.ids(x)[0] for x in (part[0], part[-1]))
            # The label before the text may have the same characters.
            row[len(label) + 2 :, 2 * SIZE][ids[len(label) + 2 :] == first] = 6.0
            row[len(label) + 2 :, 2 * SIZE + 1][ids[len(label) + 2 :] == last] = 6.0
        return row

    labelled_ids = zip(decoded_pairs(encoded, tokenizer), encoded.token_ids, strict=True)
    rows = [pointers(label, ids) for (label, _), ids in labelled_ids]
    want = {(x, TEXT.index(y), TEXT.index(y) + len(y)) for x in LABELS for y in wanted[x]}
    for prediction in TASK.decoding.read_rows(rows, encoded):
        # Longer spans start in one wanted span and end in another.
        short = {x for x in prediction.label if x[2] - x[1] <= 3}
        assert short == want


def test_new_labels_keep_the_threshold():
    task = PromptedSpans(labels=LABELS, thresholds=(0.3, 0.3)).with_labels(["甲", "乙", "丙"])
    assert (task.labels, task.threshold, task.outputs) == (("甲", "乙", "丙"), 0.3, 1)
    for settings, message in (
        ({"labels": []}, "must be a list of texts"),
        ({"labels": ["甲", "甲"]}, "give each label once"),
        ({"labels": ["甲"], "template": "{}"}, "template is for a model of natural language"),
    ):
        with pytest.raises(InputError, match=message):
            task.with_labels(**settings)


@pytest.fixture(scope="module")
def run(tmp_path_factory, eagerly):
    """The folder of a run on texts in which 我 is a 人, and 公园 and 学 are a 国."""
    folder = tmp_path_factory.mktemp("prompted")
    tokenizer = tokenizer_of()
    keras.utils.set_random_seed(3)
    encoder = roformer_tf.RoFormerEncoder(
        roformer_tf.RoFormerConfig(**TINY, vocab_size=tokenizer.vocab_size)
    )
    encoder.tokenizer = tokenizer
    encoder.save_pretrained(folder / "checkpoint")
    rng = np.random.default_rng(0)

    def line():
        parts = [*rng.choice(["公园", "学", "我"], 2, replace=False), *"今天气很好"]
        text = "".join(parts[i] for i in rng.permutation(len(parts)))
        known = (("国", "公园"), ("国", "学"), ("人", "我"))
        entities = [
            {"label": label, "start": text.find(x), "end": text.find(x) + len(x)}
            for label, x in known
            if x in text
        ]
        return json.dumps({"text": text, "entities": entities}, ensure_ascii=False) + "\n"

    for name, count in (("train", 64), ("test", 24)):
        (folder / f"{name}.jsonl").write_text("".join(line() for _ in range(count)), "utf-8")
    with pytest.MonkeyPatch.context() as patch, eagerly():
        patch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
        finetune(
            FinetuneConfig(
                checkpoint=str(folder / "checkpoint"),
                train=str(folder / "train.jsonl"),
                test=str(folder / "test.jsonl"),
                output=str(folder / "run"),
                label_prompts=True,
                optimizer=FinetuneOptimizerConfig(learning_rate=2e-2, layer_decay=1.0),
                epochs=8,
                batch_size=16,
                precision="float32",
            )
        )
    return folder


@pytest.mark.slow
def test_label_prompts_are_learned_and_reported(run):
    report = json.loads((run / "run/report.json").read_text("utf-8"))
    assert (report["task"], report["metric"]) == ("spans", "f1")
    assert report["test"]["f1"] > 0.9
    assert [x["label"] for x in report["per_class"]] == ["人", "国"]
    task = load_task(run / "run/model")
    assert (type(task), task.labels) == (PromptedSpans, ("人", "国"))
    assert open_finetuned(run / "run/model", "keras").task == task
    config = json.loads((run / "run/model/config.json").read_text("utf-8"))
    assert config["id2label"] == {"0": "entity"}


@pytest.mark.slow
def test_api_service_and_command_agree(run, tmp_path):
    folder = run / "run/model"
    texts = [json.loads(x)["text"] for x in (run / "test.jsonl").read_text("utf-8").splitlines()]
    model = roformer_tf.load(folder)
    trained, requested = model(texts), model(texts, labels=["国", "好"])
    assert any(x["spans"] for x in requested)
    for before, after in zip(trained, requested, strict=True):
        # The entities of a label do not depend on the other requested labels.
        of_label = [[x for x in each["spans"] if x["label"] == "国"] for each in (before, after)]
        assert alike(*of_label, 1e-4)
    pytest.importorskip("fastapi", reason="needs the extra [serve]")
    from tests.support.service_app import create_task_app, served_task

    (response,) = post(
        create_task_app(served_task(folder)),
        ("/predict", {"texts": texts, "labels": ["国", "好"]}),
    )
    assert alike(response["predictions"], requested, 1e-4)
    flags = ["--input", str(run / "test.jsonl"), "--output", str(tmp_path / "a.jsonl")]
    assert main(["predict", str(folder), *flags, "--labels", "国", "好"]) == 0
    lines = (tmp_path / "a.jsonl").read_text("utf-8").splitlines()
    assert alike([json.loads(x)["spans"] for x in lines], [x["spans"] for x in requested], 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_engines_agree_with_keras(run, engine):
    pytest.importorskip({"onnx": "onnxruntime"}.get(engine, engine))
    text = json.loads((run / "test.jsonl").read_text("utf-8").splitlines()[0])["text"]
    folder = run / "run/model"
    predictions = [
        roformer_tf.load(folder, engine=x, precision="float32")([text, text * 9])
        for x in (engine, "keras")
    ]
    assert alike(*predictions, 1e-4)


@pytest.mark.slow
def test_unsupported_uses_are_rejected(run, tmp_path):
    with pytest.raises(InputError, match="reads a text once for each label"):
        export(run / "run/model", tmp_path / "export", "onnx")
    settings = {"checkpoint": str(run / "checkpoint"), "output": str(tmp_path / "run")}
    settings |= {"label_prompts": True}
    rows = [json.dumps({"text": f"很好{i}", "label": i % 2}) + "\n" for i in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(rows), "utf-8")
    with pytest.raises(InputError, match=r"label_prompts is for entities.* for classification"):
        finetune(FinetuneConfig(train=str(tmp_path / "a.jsonl"), **settings))
    assert not (tmp_path / "run/model").exists()
