"""GlobalPointer against a float64 reference for single spans; windows, threshold and metrics."""

import csv
import dataclasses
import json
from itertools import pairwise

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.adaptation import finetune
from roformer_tf.cli import main
from roformer_tf.engines.model import graph_model
from roformer_tf.errors import InputError
from roformer_tf.export.command import export
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.opening import open_model
from roformer_tf.labelled.batches import RowBatches
from roformer_tf.labelled.examples import Example
from roformer_tf.models.heads import RoFormerForSpanExtraction
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.extraction.global_pointer import candidates, span_losses, span_scores
from roformer_tf.tasks.extraction.spans import Spans
from roformer_tf.tasks.tags.schemes import marked
from roformer_tf.training.settings import FinetuneOptimizerConfig
from tests.support.random_model import LETTERS, TINY, tokenizer_of
from tests.support.service_app import create_task_app, served_task
from tests.support.wiring import alike, post

pytestmark = pytest.mark.usefixtures("eager_steps")
SIZE = 64


def score(pointers, i, j, label):
    """s(i, j, label) in float64: a product of complex numbers, each rotated by its position."""
    labels = pointers.shape[-1] // 2 - SIZE
    row = pointers.astype("float64")
    speeds = 10000.0 ** (-2 * np.arange(SIZE // 2) / SIZE)
    query = (row[i, :SIZE:2] + 1j * row[i, 1:SIZE:2]) * np.exp(1j * i * speeds)
    key = (row[j, SIZE : 2 * SIZE : 2] + 1j * row[j, SIZE + 1 : 2 * SIZE : 2]) * np.exp(
        1j * j * speeds
    )
    start = row[i, 2 * SIZE + label]
    return (query @ key.conj()).real / 8 + start + row[j, 2 * SIZE + labels + label]


def random_pointers(batch, length, labels, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return (scale * rng.normal(size=(batch, length, 2 * (SIZE + labels)))).astype("float32")


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("length", [3, 9, 300])
def test_scores_equal_a_float64_reference(length, labels):
    pointers = random_pointers(2, length, labels)
    scores = np.asarray(span_scores(keras.ops.convert_to_tensor(pointers)))
    assert scores.shape == (2, labels, length, length)
    rng = np.random.default_rng(1)
    for row, label, i, j in rng.integers(0, (2, labels, length, length), (60, 4)).tolist():
        assert scores[row, label, i, j] == pytest.approx(
            score(pointers[row], i, j, label), abs=2e-5
        )


TARGETS = np.array(  # length, last token before the text; first and last token, and the label
    [
        [[9, 3, 0], [4, 6, 0], [5, 5, 1], [0, 0, 0]],  # three tokens before the text
        [[9, 0, 0], [1, 2, 0], [1, 1, 1], [3, 7, 0]],
        [[6, 0, 0], [4, 4, 1], [0, 0, 0], [0, 0, 0]],
        [[9, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],
        [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]],  # padding of a batch
    ],
    "int32",
)


@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_the_loss_equals_a_float64_reference(scale):
    pointers, want = random_pointers(5, 9, 2, scale), []
    for row, target in zip(pointers, TARGETS, strict=True):
        spans, label_losses = {tuple(x) for x in target[1:].tolist() if x != [0, 0, 0]}, []
        for label in range(2):
            wrong = right = 1.0
            for i in range(target[0, 1] + 1, target[0, 0] - 1):
                for j in range(i, target[0, 0] - 1):
                    s = score(row, i, j, label)
                    if (i, j, label) in spans:
                        right += np.exp(-s)
                    else:
                        wrong += np.exp(s)
            label_losses.append(np.log(wrong) + np.log(right))
        want.append(np.mean(label_losses))
    got = np.asarray(span_losses(TARGETS, keras.ops.convert_to_tensor(pointers)))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert want[4] == 0


def test_soft_targets_equal_a_float64_reference():
    """The float64 reference sums (1 − t) exp s and t exp −s over all spans."""
    pointers = random_pointers(1, 7, 2)
    fractions = {(1, 3, 0): 0.25, (2, 2, 0): 1.0, (4, 5, 1): 0.9}
    targets = np.zeros((1, 5, 4), "float32")
    targets[0, 0] = 7, 0, 0, 0.5  # length, last token before the text, unused, weight
    targets[0, 1:4] = [[*span, t] for span, t in fractions.items()]
    want = []
    for label in range(2):
        sums = [1.0, 1.0]
        for i in range(1, 6):
            for j in range(i, 6):
                s, t = score(pointers[0], i, j, label), fractions.get((i, j, label), 0)
                sums = [sums[0] + (1 - t) * np.exp(s), sums[1] + t * np.exp(-s)]
        want.append(np.log(sums).sum())
    got = float(np.asarray(span_losses(targets, keras.ops.array(pointers), soft=True))[0])
    assert got == pytest.approx(np.mean(want), rel=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="tf.data's own")
def test_the_loss_is_traced_for_targets_of_unknown_shape():
    import tensorflow as tf

    pointers = keras.ops.convert_to_tensor(random_pointers(len(TARGETS), 9, 2))
    unknown = tf.TensorSpec([None, None, None], "int32")
    step = tf.function(lambda targets: span_losses(targets, pointers))
    traced = step.get_concrete_function(unknown)  # always traced, even if functions run eagerly
    want = span_losses(TARGETS, pointers)
    np.testing.assert_allclose(traced(tf.constant(TARGETS)), want, rtol=1e-5)


def test_the_loss_is_lowest_at_the_teachers_scores():
    teacher = random_pointers(1, 6, 2, 0.5)
    rows = candidates(teacher[0], np.arange(1, 5))
    assert len(rows) == 2 * 10  # all spans are above the lowest threshold
    text = Example(("今天天气",), [], "a:1")
    data = TASK.labelling.training_data([text], tokenizer_of())
    rows[:, 1] += 1  # ends are exclusive
    distilled = TASK.labelling.with_soft_targets(data, [rows], labelled=0)
    assert distilled.targets.shape == (1, 2, 21, 4)
    assert distilled.targets[0, :, 0].tolist() == [[6, 0, 0, 1]] * 2

    def loss(pointers):
        tensor = keras.ops.convert_to_tensor(pointers)
        return float(np.asarray(TASK.objective.taught_losses(distilled.targets, tensor))[0])

    lowest = loss(teacher)
    assert all(loss(teacher + random_pointers(1, 6, 2, 0.1, seed)) > lowest for seed in range(1, 9))


def test_padding_does_not_change_the_loss():
    pointers = random_pointers(5, 9, 2)
    longer = np.concatenate([pointers, random_pointers(5, 5, 2, 9.0, seed=3)], axis=1)
    losses = [np.asarray(span_losses(TARGETS, keras.ops.array(x))) for x in (pointers, longer)]
    np.testing.assert_allclose(*losses, atol=1e-5)


@pytest.mark.parametrize("tokens", [[1, 2, 3, 4, 5, 6, 7], [1, 3, 4, 7], []])
def test_candidates_are_the_spans_above_the_lowest_threshold(tokens):
    pointers = random_pointers(1, 9, 3)[0]
    want = {}
    for label in range(3):
        for i, first in enumerate(tokens):
            for j, last in list(enumerate(tokens))[i:]:
                probability = 1 / (1 + np.exp(-score(pointers, first, last, label)))
                if probability > 0.05:
                    want[i, j, label] = probability
    assert not tokens or len(want) > 9
    actual = candidates(pointers, np.array(tokens, int))
    best = dict(sorted(want.items(), key=lambda item: -item[1])[:32])
    assert {tuple(x) for x in actual[:, :3].astype(int).tolist()} == set(best)
    np.testing.assert_allclose(actual[:, 3], sorted(best.values(), reverse=True), atol=1e-5)


TASK = Spans(labels=("LOC", "ORG"), max_length=18, long_texts="windows")


def oracle_pointers(row_ids, wanted, tokenizer):
    """Return pointers that give a high score to the wanted substrings only.

    Each character must occur once in the text.
    """
    pointers = np.zeros((len(row_ids), 2 * (SIZE + 2)), "float32")
    pointers[:, 2 * SIZE :] = -9.0
    ids = row_ids.tolist()
    for label, text in wanted:
        first, last = (tokenizer.ids(x)[0] for x in (text[0], text[-1]))
        if first in ids and last in ids:
            pointers[ids.index(first), 2 * SIZE + label] = 6.0
            pointers[ids.index(last), 2 * SIZE + 2 + label] = 6.0
    return pointers


def test_training_without_entities_is_rejected():
    with pytest.raises(InputError, match="no training text has an entity"):
        Spans.from_examples([Example(("今天",), [], "a:1"), Example(("天气",), (), "a:2")])


def test_a_span_in_two_windows_is_predicted_once():
    text = "".join(dict.fromkeys(LETTERS))
    assert len(text) > 20
    tokenizer = tokenizer_of()
    # Nested spans, spans at both ends, and one in the overlap of two windows.
    wanted = [(0, text[:2]), (1, text[:4]), (0, text[-2:]), (1, text[-1:]), (0, text[9:11])]
    example = Example((text,), None, "a:1")
    encoded = TASK.labelling.encode([example, example], tokenizer)
    assert len(encoded.token_ids) == 4
    rows = [oracle_pointers(ids, [x], tokenizer) for x in wanted for ids in encoded.token_ids]
    for number, (label, part) in enumerate(wanted):
        predictions = TASK.decoding.read_rows(rows[4 * number : 4 * number + 4], encoded)
        start = text.index(part)
        for prediction in predictions:
            assert prediction.label == [(TASK.labels[label], start, start + len(part))]
            assert len(prediction.scores) == 1


def test_targets_contain_the_whole_spans_of_each_window():
    text = "".join(dict.fromkeys(LETTERS))
    tokenizer = tokenizer_of()
    label = [("ORG", 0, 4), ("LOC", 0, 2), ("LOC", 9, 11), ("ORG", len(text) - 1, len(text))]
    example = Example((text,), label, "a:1")
    encoded = TASK.labelling.encode([example], tokenizer)
    targets, weights = TASK.labelling.row_targets(encoded, [example])
    assert weights.tolist() == [1, 1]
    for ids, target in zip(encoded.token_ids, targets, strict=True):
        assert target[0].tolist() == [len(ids), 0, 0]
        got = {
            (TASK.labels[number], tuple(ids[first : last + 1].tolist()))
            for first, last, number in target[1:].tolist()
            if first
        }
        window_text = "".join(tokenizer.decode([i]) for i in ids[1:-1].tolist())
        parts = [(name, text[a:b]) for name, a, b in label if text[a:b] in window_text]
        assert got == {(name, tuple(tokenizer.ids(part))) for name, part in parts}
    batch = RowBatches(encoded, targets, weights).build(np.array([0, 1]), 3, None)
    assert batch[1].shape == (3, *targets.shape[1:])


def test_the_threshold_has_the_highest_f1_and_ties_go_to_one_half():
    def predicted(*scores):
        rows = [(i, i + 1, 0, p) for i, p in enumerate(scores)]
        return Prediction([], np.array(rows, "float32").reshape(-1, 4))

    gold = [[("LOC", 0, 1)], [("LOC", 1, 2)], []]
    chosen = TASK.decoding.with_choices(gold, [predicted(0.9), predicted(0.62, 0.9), predicted()])
    assert chosen.thresholds == (0.65, 0.65)
    assert chosen.decoding.reread(predicted(0.7, 0.6)).label == [("LOC", 0, 1)]
    chosen = TASK.decoding.with_choices(gold, [predicted(0.22), predicted(0.1, 0.22), predicted()])
    assert chosen.thresholds == (0.2, 0.2)
    assert TASK.decoding.with_choices(gold, [predicted()] * 3).threshold == 0.5


def test_metrics_count_nested_entities():
    gold = [[("ORG", 0, 4), ("LOC", 0, 2)], [("LOC", 3, 5)], []]
    predicted = [[("ORG", 0, 4), ("LOC", 0, 1)], [("LOC", 3, 5)], [("ORG", 1, 2)]]
    predictions = [Prediction(x, np.zeros((0, 4), "float32")) for x in predicted]
    figures = TASK.metrics.compute(gold, predictions)
    assert figures == pytest.approx(
        {"f1": 4 / 7, "precision": 0.5, "recall": 2 / 3, "macro_f1": 7 / 12}
    )


def test_the_baseline_predicts_strings_that_are_usually_entities():
    def example(text, *spans):
        return Example((text,), list(spans), "a:1")

    training = [
        example("北京市委", ("ORG", 0, 4), ("LOC", 0, 2)),
        example("北京人", ("LOC", 0, 2)),
        example("好人", ("LOC", 1, 2)),
        example("人和人"),
    ]
    test = [example("去北京市委"), example("人")]
    _, (first, second) = TASK.metrics.rule(training, test, [])
    assert first.label == [("ORG", 1, 5), ("LOC", 1, 3)]
    assert second.label == []


def test_nested_entities_are_listed_in_the_outer_mark():
    spans = [("ORG", 1, 5), ("LOC", 1, 3), ("PER", 6, 7)]
    assert marked("去北京市委见张。", spans, range(1, 7)) == [
        ["…", ""],
        ["北京市委", "ORG; 北京 LOC"],
        ["见", ""],
        ["张", "PER"],
        ["…", ""],
    ]


LONG = {"text": "生活" * 15, "entities": [{"start": 10, "end": 20, "label": "ORG"}]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run on texts with the LOC 我们 inside the ORG 我们公园, and the LOC 学.

    The last text has an ORG that is not whole in any window.
    """
    folder = tmp_path_factory.mktemp("spans")
    tokenizer = tokenizer_of()
    keras.utils.set_random_seed(3)
    encoder = roformer_tf.RoFormerEncoder(
        roformer_tf.RoFormerConfig(**TINY, vocab_size=tokenizer.vocab_size)
    )
    encoder.tokenizer = tokenizer
    encoder.save_pretrained(folder / "checkpoint")
    rng = np.random.default_rng(0)

    def line():
        parts = ["我们公园", "学", *rng.choice(list("今天气很好去"), 4)]
        text = "".join(parts[i] for i in rng.permutation(6))
        org, loc = text.index("我"), text.index("学")
        spans = [("ORG", org, org + 4), ("LOC", org, org + 2), ("LOC", loc, loc + 1)]
        entities = [dict(zip(("label", "start", "end"), x, strict=True)) for x in spans]
        return json.dumps({"text": text, "entities": entities}, ensure_ascii=False) + "\n"

    for name, count in (("train", 64), ("test", 24)):
        (folder / f"{name}.jsonl").write_text("".join(line() for _ in range(count)), "utf-8")
    with (folder / "train.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(LONG) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
        finetune(
            FinetuneConfig(
                checkpoint=str(folder / "checkpoint"),
                train=str(folder / "train.jsonl"),
                test=str(folder / "test.jsonl"),
                output=str(folder / "run"),
                optimizer=FinetuneOptimizerConfig(learning_rate=2e-2, layer_decay=1.0),
                max_length=16,
                epochs=8,
                batch_size=16,
                precision="float32",
            )
        )
    return folder


@pytest.mark.slow
def test_nested_entities_are_learned_and_reported(run):
    report = json.loads((run / "run/report.json").read_text("utf-8"))
    assert (report["task"], report["metric"]) == ("spans", "f1")
    assert report["test"]["f1"] > 0.9
    assert set(report["test"]) == {"f1", "precision", "recall", "macro_f1"}
    assert [x["label"] for x in report["per_class"]] == ["LOC", "ORG"]
    assert report["baseline"]["test"]["f1"] > 0.5
    lost = [x["in_no_window"] for x in report["data"] if "in_no_window" in x]
    assert [(x["number"], x["longest"], x["enough"]) for x in lost] == [(1, 10, 32)]
    card = (run / "run/model/README.md").read_text("utf-8")
    assert "transformers" in card
    assert "实体" in card
    config = json.loads((run / "run/model/config.json").read_text("utf-8"))
    assert config["model_type"] == "roformer_tf"
    assert config["id2label"] == {"0": "LOC", "1": "ORG"}


def test_api_service_and_command_agree(run, tmp_path):
    folder = run / "run/model"
    rows = [json.loads(x) for x in (run / "test.jsonl").read_text("utf-8").splitlines()]
    texts = [row["text"] for row in rows]
    answers = roformer_tf.load(folder)(texts)
    report = json.loads((run / "run/report.json").read_text("utf-8"))
    right = sum(
        (x["label"], x["start"], x["end"]) in {(y["label"], y["start"], y["end"]) for y in y_all}
        for answer, y_all in zip(answers, (row["entities"] for row in rows), strict=True)
        for x in answer["spans"]
    )
    assert right / (3 * len(rows)) == pytest.approx(report["test"]["recall"])
    for text, answer in zip(texts, answers, strict=True):
        for span in answer["spans"]:
            assert list(span) == ["start", "end", "label", "text", "score"]
            assert span["text"] == text[span["start"] : span["end"]]
            assert 0.05 < span["score"] <= 1
        assert all(a["start"] <= b["start"] for a, b in pairwise(answer["spans"]))
    served = served_task(folder)
    (response,) = post(create_task_app(served), ("/predict", {"texts": texts}))
    assert response["predictions"] == answers
    for name in ("a.tsv", "a.jsonl"):
        main(
            [
                "predict",
                str(folder),
                "--input",
                str(run / "test.jsonl"),
                "--output",
                str(tmp_path / name),
            ]
        )
    lines = (tmp_path / "a.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(x)["spans"] for x in lines] == [x["spans"] for x in answers]
    header, *lines = (tmp_path / "a.tsv").read_text("utf-8").splitlines()
    assert header == "spans\terror"
    assert [json.loads(x.split("\t")[0]) for x in lines] == [x["spans"] for x in answers]


def test_entities_of_the_data_are_written_like_predicted_ones(run):
    with (run / "run/predictions.tsv").open(encoding="utf-8", newline="") as file:
        row = next(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    org, loc = row["text"].index("我"), row["text"].index("学")
    gold = [
        {"start": org, "end": org + 2, "label": "LOC", "text": "我们"},
        {"start": org, "end": org + 4, "label": "ORG", "text": "我们公园"},
        {"start": loc, "end": loc + 1, "label": "LOC", "text": "学"},
    ]
    actual = sorted(json.loads(row["gold"]), key=lambda x: (x["start"], x["end"]))
    assert actual == sorted(gold, key=lambda x: (x["start"], x["end"]))


@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_engines_agree_with_keras(run, engine):
    pytest.importorskip({"onnx": "onnxruntime"}.get(engine, engine))
    with open_model(run / "run/model", "keras", "float32") as opened:
        model = opened.finetuned().model
        assert type(model) is RoFormerForSpanExtraction
        graph = graph_model(opened.network("global_pointer"), engine, "float32")
    for shape in ((1, 3), (3, 40)):
        ids = np.random.default_rng(0).integers(1, 20, shape, "int32")
        inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids)}
        got, want = graph(inputs), np.asarray(model(inputs))
        np.testing.assert_allclose(got, want, atol=1e-5 * max(1, np.abs(want).max()))
        scores = [np.asarray(span_scores(keras.ops.array(x))) for x in (got, want)]
        np.testing.assert_allclose(*scores, atol=1e-5 * max(1, np.abs(scores[1]).max()))


@pytest.mark.parametrize("to", ["onnx", "onnxruntime"])
def test_the_code_in_an_export_card_gives_the_same_spans(to, run, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    export(run / "run/model", tmp_path / "onnx", to)
    text = json.loads((run / "test.jsonl").read_text("utf-8").splitlines()[0])["text"]
    want = roformer_tf.load(run / "run/model", engine="keras", precision="float32")(text)["spans"]
    assert alike(roformer_tf.load(tmp_path / "onnx")(text)["spans"], want, 1e-5)
    card = (tmp_path / "onnx/README.md").read_text("utf-8")
    blocks = [block.split("```")[0] for block in card.split("```python\n")[2:]]
    ids = tokenizer_of()([text])  # the first block needs the package tokenizers
    inputs = {"token_ids": ids["token_ids"], "segment_ids": ids["segment_ids"]}
    if to == "onnx":
        inputs = {
            "input_ids": ids["token_ids"].astype("int64"),
            "attention_mask": (ids["token_ids"] != 0).astype("int64"),
            "token_type_ids": ids["segment_ids"].astype("int64"),
        }
    names = {"np": np, "inputs": inputs}
    monkeypatch.chdir(tmp_path / "onnx")
    exec("".join(blocks), names)
    assert [set(x) for x in names["spans"]] == [{(x["label"], x["start"], x["end"]) for x in want}]


def test_settings_without_effect_are_rejected(run, tmp_path):
    def start(**settings):
        finetune(
            FinetuneConfig(
                train=str(run / "train.jsonl"),
                checkpoint=str(run / "checkpoint"),
                output=str(tmp_path / "run"),
                **settings,
            )
        )

    with pytest.raises(InputError, match="crf is for sequences of labels, not for spans"):
        start(crf=True)
    with pytest.raises(InputError, match=r"^--focal treats labels separately; spans have one loss"):
        start(loss=dataclasses.replace(FinetuneConfig(train="", output="").loss, focal=2.0))
    assert not (tmp_path / "run/model").exists()


def test_evaluate_reports_spans_in_no_window(run, tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text(json.dumps(LONG), "utf-8")
    command = ["evaluate", str(run / "run/model"), "--data", str(tmp_path / "a.jsonl")]
    assert main([*command, "--output", str(tmp_path / "a.json")]) == 0
    want = "1 of 1 entities of the test set are cut by every window of 16 tokens"
    assert f"! {want}" in capsys.readouterr().out
    (data,) = json.loads((tmp_path / "a.json").read_text("utf-8"))["data"]
    assert data["in_no_window"] == {"number": 1, "of": 1, "longest": 10, "enough": 32}


def test_evaluate_rejects_an_unknown_label(run, tmp_path, capsys):
    row = {"text": "我们去", "entities": [{"start": 0, "end": 2, "label": "PER"}]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row), "utf-8")
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(
            main(["evaluate", str(run / "run/model"), "--data", str(tmp_path / "a.jsonl")])
        )
    assert ended.value.code == 2
    assert "a.jsonl:1: the label 'PER' does not occur in the training" in capsys.readouterr().err
