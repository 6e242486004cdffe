"""Multiple choice: reading, encoding of candidates, loss, prediction, export and training."""

import json
import re

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.adaptation import finetune
from roformer_tf.config import RoFormerConfig
from roformer_tf.engines.choice import installed
from roformer_tf.errors import InputError
from roformer_tf.export.command import export
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.predict_file import PredictConfig, predict_file
from roformer_tf.labelled.choices import ABSENT, ChoiceBatches, encode_choices, encode_cloze
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import find_layout, read_examples
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.choices.cloze import Cloze, MultipleChoice
from roformer_tf.tasks.losses import listwise_softmax, mean_log_probabilities
from roformer_tf.tasks.table import TASKS
from roformer_tf.training.settings import FinetuneOptimizerConfig
from tests.support.random_model import TINY, random_model, tokenizer_of
from tests.support.task_files import load_task

TOKENIZER = tokenizer_of()
TEXT = "今天#idiom#，我们去公园"
ROWS = [(TEXT, ["天气很好", "学习", "经济发", "生活", "去"]), ("好#idiom#", ["人民", "中国"])]
COLUMNS = {"text_columns": ("text", "choices"), "label_column": "label"}


def examples_of(rows, label=0):
    return [Example((text, *choices), label, str(n)) for n, (text, choices) in enumerate(rows)]


def write(path, rows):
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """models[gaps]: a folder with a random model, as `finetune` writes it."""
    folders = {}
    for gaps in (False, True):
        keras.utils.set_random_seed(1)
        task = MultipleChoice.from_settings(gaps=gaps, max_length=24, **COLUMNS)
        if gaps:
            size = TOKENIZER.vocab_size
            model = RoFormerForMaskedLM(RoFormerConfig(**TINY, vocab_size=size, num_labels=1))
            model.tokenizer = TOKENIZER
        else:
            model = random_model(task)
        folders[gaps] = tmp_path_factory.mktemp("choices") / str(gaps)
        model.save_pretrained(folders[gaps])
        task.save(folders[gaps])
    return folders


@pytest.mark.parametrize("with_teacher", [False, True])
def test_the_loss_equals_a_float64_reference(with_teacher):
    rng = np.random.default_rng(0)
    scores = 5 * rng.normal(size=(4, 5))
    targets = np.where(rng.random((4, 5)) < 0.5, rng.random((4, 5)), 0)
    targets[:, 0] = 0.3
    targets /= targets.sum(axis=1, keepdims=True)
    targets[1, 3:], targets[2, 2:] = ABSENT, ABSENT
    weights = np.array([1, 1, 0.5, 0])
    losses = []
    for target, row in zip(targets, scores, strict=True):
        real = target >= 0
        exponentials = np.exp(row[real])
        losses.append(-np.sum(target[real] * np.log(exponentials / exponentials.sum())))
    if with_teacher:  # distillation from a teacher's logits at temperature 2, with weight ¼
        teacher = 5 * rng.normal(size=(4, 5))
        for number, target in enumerate(targets):
            real = target >= 0
            p, q = (np.exp(x[number][real] / 2) for x in (teacher, scores))
            p, q = p / p.sum(), q / q.sum()
            losses[number] = 0.75 * losses[number] + 0.25 * 4 * np.sum(p * np.log(p / q))
    want = np.sum(weights * losses) / weights.sum()
    if with_teacher:
        teacher_targets = [np.where(targets < 0, ABSENT, x) for x in (teacher, 0.25)]
        targets = np.stack([targets, *teacher_targets], axis=-1)
    arrays = (x.astype(np.float32) for x in (targets, scores, weights))
    assert float(listwise_softmax(*arrays)) == pytest.approx(want, abs=1e-5)


def test_mean_log_probabilities_equal_a_float64_reference():
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(5, 3, 7)).astype(np.float32)
    positions = rng.integers(0, 5, (2, 4, 2)).astype(np.int32)
    tokens = rng.integers(1, 7, (2, 4, 3)).astype(np.int32)
    tokens[0, 0, 1:] = 0
    got = np.array(mean_log_probabilities(logits, positions, tokens))
    for b, c, r in np.ndindex(2, 4, 2):
        row_logits = logits[positions[b, c, r]].astype(np.float64)
        real = [t for t in tokens[b, c] if t]
        each = [row_logits[p, t] - np.log(np.exp(row_logits[p]).sum()) for p, t in enumerate(real)]
        assert got[b, c, r] == pytest.approx(np.mean(each), abs=1e-5)


def test_cloze_encoding():
    encoded = encode_cloze(examples_of(ROWS), TOKENIZER, 12)
    words = [TOKENIZER.tokens[i] for i in encoded.token_ids[0]]
    # Candidates of 1, 2, 3 and 4 tokens, each encoded with the text and without it.
    assert words == ["[CLS]", *"今天", "[MASK]", "[UNK]", *"我们去公园", "[SEP]"]
    assert [TOKENIZER.tokens[i] for i in encoded.token_ids[1]] == ["[CLS]", "[MASK]", "[SEP]"]
    assert [len(mask) for mask in encoded.masks] == [1, 1, 2, 2, 3, 3, 4, 4, 2, 2]
    assert encoded.candidate_rows[0].tolist() == [[6, 7], [2, 3], [4, 5], [2, 3], [0, 1]]
    for row, mask in zip(encoded.token_ids, encoded.masks, strict=True):
        assert np.flatnonzero(row == TOKENIZER.mask_id).tolist() == mask.tolist()
    # A long text is truncated to the tokens nearest to the gap.
    cut = encode_cloze(examples_of(ROWS), TOKENIZER, 8)
    assert [TOKENIZER.tokens[i] for i in cut.token_ids[6]][1:-1] == ["天", *["[MASK]"] * 4, "[UNK]"]
    assert max(map(len, cut.token_ids)) == 8
    assert cut.lengths.tolist() == [2 + 6 + 4 + 2, 1 + 2 + 2]


def test_a_text_without_a_gap_gets_one_at_its_end():
    encoded = encode_cloze(examples_of([("今天", ["好", "去"])]), TOKENIZER, 12)
    assert encoded.masks[0].tolist() == [3]


@pytest.mark.parametrize("encode", [encode_choices, encode_cloze])
def test_batches_hold_each_sequence_once(encode):
    rows = [*ROWS, ROWS[0], ("天#idiom#", ["去", "好", "人"])]
    encoded = encode(examples_of(rows), TOKENIZER, 16)
    targets = [np.eye(len(choices), dtype=np.float32)[0] for _, choices in rows]
    data = ChoiceBatches(encoded, targets)
    inputs, got_targets, weights = data.build(np.array([2, 1, 0]), 4, lambda item: None)
    assert weights.tolist() == [1, 1, 1, 0]
    assert got_targets.tolist()[1] == [1, 0, ABSENT, ABSENT, ABSENT]
    token_ids = inputs["token_ids"]
    real = [row.tolist() for row in token_ids if row.any()]
    assert len({str(row) for row in real}) == len(real)
    assert len(token_ids) % 8 == 0
    for position, item in enumerate((2, 1, 0)):
        for choice, places in enumerate(encoded.candidate_rows[item]):
            for term, row in enumerate(places):
                got = token_ids[inputs["row_index"][position, choice, term]]
                assert got[got > 0].tolist() == encoded.token_ids[row].tolist()


@pytest.mark.parametrize(("choices", "right"), [(["好", "坏"], [1, 0]), (["B", "A"], [0, 1])])
def test_letters_are_indices_unless_candidates_are_called_so(choices, right, tmp_path):
    rows = [{"text": "天气", "choices": choices, "label": label} for label in "BA"]
    path = write(tmp_path / "train.jsonl", rows)
    layout = find_layout(path, ColumnsConfig(), None, TASKS)
    examples = read_examples(path, layout, ColumnsConfig())
    assert [example.label for example in examples] == right


BAD = [
    ({"label": "C"}, r"label 'C', but it is an index from 0 to 1, or one of 好、坏"),
    ({"label": 3}, r"label '3', but it is an index from 0 to 1, or one of 好、坏"),
    ({"label": -1}, "has the label '-1'"),
    ({"label": 0.5}, "has the label '0.5'"),
    ({"label": "中"}, "has the label '中'"),
    ({"choices": ["好"]}, "has too few texts in 'choices': 1, not 2 or more"),
    ({"choices": ["好", " "]}, "has an empty text in 'choices'"),
    ({"choices": ["坏", "坏"]}, "has the right candidate '坏' twice"),
    ({"choices": ["坏", "坏"], "label": "坏"}, "has the right candidate '坏' twice"),
    ({"choices": "好"}, "has too few texts in 'choices': 1, not 2 or more"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_errors_name_the_bad_line(change, message, tmp_path):
    row = {"text": "天气", "choices": ["好", "坏"], "label": 1}
    path = write(tmp_path / "train.jsonl", [row, row | change])
    columns = ColumnsConfig(strict=True)
    layout = find_layout(path, columns, None, TASKS)
    with pytest.raises(InputError, match=message) as caught:
        read_examples(path, layout, columns)
    assert "train.jsonl:2" in str(caught.value)


def test_lists_in_a_csv_written_by_pandas_are_read(tmp_path):
    (path := tmp_path / "a.csv").write_text(
        "text,choices,label\n" + "天气,\"['好', '坏']\",1\n" * 2
    )
    layout = find_layout(path, ColumnsConfig(), None, TASKS)
    assert layout.task is MultipleChoice
    examples = read_examples(path, layout, ColumnsConfig())
    assert [(example.texts, example.label) for example in examples] == [
        (("天气", "好", "坏"), 1)
    ] * 2


@pytest.mark.parametrize("text", ["question", "content"])
def test_an_answer_column_is_the_label_if_there_are_choices(text, tmp_path):
    choices = "candidates" if text == "content" else "choices"
    rows = [{"id": n, text: f"天气{n}", choices: ["好", "坏"], "answer": n} for n in range(2)]
    layout = find_layout(path := write(tmp_path / "a.jsonl", rows), ColumnsConfig(), None, TASKS)
    assert (layout.task, layout.label_column) == (MultipleChoice, "answer")
    assert [x.label for x in read_examples(path, layout, ColumnsConfig())] == [0, 1]


@pytest.mark.parametrize("task", [None, "multiple-choice"])
def test_a_passage_next_to_question_and_choices_is_not_ignored(task, tmp_path):
    text = "昨天下午小明和他的妹妹一起去了公园，晚上才回家。"
    row = {"context": text, "question": "小明去了哪里？", "choices": ["公园", "学校"], "label": 0}
    path = write(tmp_path / "a.jsonl", [row] * 9)
    with pytest.raises(InputError, match="hold the texts: question choices or context"):
        find_layout(path, ColumnsConfig(), task, TASKS)
    columns = ColumnsConfig(text_columns=("question", "choices"))
    assert find_layout(path, columns, task, TASKS).text_columns == ("question", "choices")


def test_questions_of_c3_are_read_from_its_arrays(tmp_path):
    questions = [
        {"question": "他去哪儿？", "choice": ["北京", "上海", "公园"], "answer": "上海"},
        {"question": "天气呢？", "choice": ["好", "坏"], "answer": "好"},
    ]
    data = [[["女：你去哪儿？", "男：去上海。"], questions, "14-1"]]
    (path := tmp_path / "a.json").write_text(json.dumps(data), "utf-8")
    layout = find_layout(path, ColumnsConfig(), None, TASKS)
    assert layout.task is MultipleChoice
    first, second = read_examples(path, layout, ColumnsConfig())
    text = "他去哪儿？\n女：你去哪儿？\n男：去上海。"
    assert (first.texts, first.label) == ((text, "北京", "上海", "公园"), 1)
    assert (second.texts[1:], second.label) == (("好", "坏"), 0)


@pytest.mark.parametrize("task", [None, "multiple-choice"])
def test_labels_are_indices_or_texts(task, tmp_path):
    labels = [1, "坏", "1", 0.0, "好"]
    rows = [{"text": f"天气{n}", "choices": ["好", "坏"], "label": x} for n, x in enumerate(labels)]
    layout = find_layout(path := write(tmp_path / "a.jsonl", rows), ColumnsConfig(), task, TASKS)
    assert layout.task is MultipleChoice
    assert layout.text_columns == ("text", "choices")
    read = read_examples(path, layout, ColumnsConfig())
    assert [example.label for example in read] == [1, 1, 1, 0, 0]
    assert read[0].texts == ("天气0", "好", "坏")


def test_labels_that_count_from_1_are_refused(tmp_path):
    rows = [{"text": f"天气{n}", "choices": ["好", "坏"], "label": 1 + n % 2} for n in range(4)]
    layout = find_layout(path := write(tmp_path / "a.jsonl", rows), ColumnsConfig(), None, TASKS)
    with pytest.raises(InputError, match=r"a\.jsonl:2 has the label 2, .* subtract 1"):
        read_examples(path, layout, ColumnsConfig())


@pytest.mark.parametrize(
    ("choices", "label", "right"),
    [
        (["甲", "乙", "丙"], "2", 2),
        (["5", "6", "7"], "7", 2),
        (["1", "2", "3"], "3", 2),
        (["1", "2", "3"], 1.0, 1),
        (["0", "1", "2"], "1", 1),
    ],
)
def test_a_label_among_numbers_is_an_index_or_a_text(choices, label, right, tmp_path):
    rows = [{"text": "几", "choices": choices, "label": x} for x in (label, 0)]
    layout = find_layout(path := write(tmp_path / "a.jsonl", rows), ColumnsConfig(), None, TASKS)
    assert read_examples(path, layout, ColumnsConfig())[0].label == right


def test_a_label_that_may_be_an_index_or_a_text_is_rejected(tmp_path):
    rows = [{"text": "几", "choices": ["1", "2"], "label": label} for label in ("2", "1")]
    layout = find_layout(path := write(tmp_path / "a.jsonl", rows), ColumnsConfig(), None, TASKS)
    with pytest.raises(InputError, match=r"jsonl:2 has the label '1', .*an index or a choice"):
        read_examples(path, layout, ColumnsConfig())


def test_the_saved_task_restores_cloze_or_multiple_choice(tmp_path):
    for rows, kind in ((ROWS, Cloze), ([*ROWS, ("没有", ["好", "坏"])], MultipleChoice)):
        task = MultipleChoice.from_examples(examples_of(rows), **COLUMNS)
        task.save(tmp_path)
        assert type(load_task(tmp_path)) is type(task) is kind


def test_baselines_and_ties():
    rows = [("今天天气很好", ["经济", "天气"])] * 3
    examples = examples_of(rows, 1)
    metrics = MultipleChoice(**COLUMNS).metrics
    name, predictions = metrics.rule(examples_of(rows, 0), examples * 2, examples)
    assert str(name) == "character overlap (Jaccard)"
    assert [x.label for x in predictions] == [1] * 6
    gaps = examples_of(ROWS, 1)
    name, predictions = Cloze(gaps=True).metrics.rule(gaps, gaps, gaps)
    assert str(name) == "most frequent index (chance: 35.0%)"
    assert [x.label for x in predictions] == [1, 1]
    assert not metrics.is_right(0, Prediction(0, np.array([0.5, 0.5], np.float32)))


def expected_scores(folder, text, choices):
    """Return the probabilities of cloze candidates, computed with one sequence per call."""
    model = RoFormerForMaskedLM.from_pretrained(folder)
    logits = []
    for choice in choices:
        ids, means = TOKENIZER.ids(choice), []
        before, after = text.split("#idiom#") if text else ("", "")
        for sides in ((before, after), ("", "")):
            left, right = map(TOKENIZER.ids, sides)
            row = [TOKENIZER.cls_id, *left, *[TOKENIZER.mask_id] * len(ids), *right]
            out = np.array(model({"token_ids": np.array([[*row, TOKENIZER.sep_id]], np.int32)}))[0]
            out = out[1 + len(left) :].astype(np.float64)
            each = [out[i, t] - np.log(np.exp(out[i]).sum()) for i, t in enumerate(ids)]
            means.append(np.mean(each))
        logits.append(means[0] - means[1])
    exponentials = np.exp(logits)
    return exponentials / exponentials.sum()


def test_cloze_predictions_equal_the_masked_language_model(models):
    model = roformer_tf.load(models[True], precision="float32", engine="keras")
    for answer, (text, choices) in zip(model(ROWS), ROWS, strict=True):
        want = expected_scores(models[True], text, choices)
        assert answer["scores"] == pytest.approx(want, abs=1e-5)
        assert answer["label"] == int(np.argmax(want))
    assert model(ROWS[0]) == model(ROWS)[0]


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("engine", ["onnx", "openvino"])
@pytest.mark.slow
def test_engines_agree(gaps, engine, models):
    if not installed(engine):
        pytest.skip(f"{engine} is not installed")
    ours, theirs = (
        roformer_tf.load(models[gaps], precision="float32", engine=name)(ROWS)
        for name in ("keras", engine)
    )
    for our, other in zip(ours, theirs, strict=True):
        assert our["scores"] == pytest.approx(other["scores"], abs=1e-5)


@pytest.mark.parametrize("bad", ["今天", ("今天", "好"), ("今天", []), ("今天", ["好", 3])])
def test_invalid_examples_are_rejected(bad, models):
    model = roformer_tf.load(models[False], precision="float32", engine="keras")
    with pytest.raises(InputError, match="a tuple of a text and a list of texts"):
        model([ROWS[0], bad])


def test_predict_file_returns_the_same_predictions(models, tmp_path):
    rows = [{"text": text, "choices": choices} for text, choices in ROWS]
    path = write(tmp_path / "in.jsonl", [*rows, {"text": "今天", "choices": []}])
    output = tmp_path / "out.jsonl"
    settings = {"engine": "keras", "precision": "float32"}
    predict_file(
        PredictConfig(
            model=str(models[True]), input=str(path), output=str(output), with_text=True, **settings
        )
    )
    *lines, bad = map(json.loads, output.read_text("utf-8").splitlines())
    want = roformer_tf.load(models[True], **settings)(ROWS)
    for line, answer, (text, choices) in zip(lines, want, ROWS, strict=True):
        assert (line["text"], line["choices"]) == (text, choices)
        assert line["choice"] == choices[line["label"]]
        assert {name: line[name] for name in answer} == answer
    assert bad["label"] is None
    assert "has too few texts in 'choices': 0" in bad["error"]


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("gaps", [False, True])
def test_exports_predict_the_same(gaps, models, tmp_path):
    pytest.importorskip("onnx")
    if gaps:  # models of transformers have no input for the positions of masks
        with pytest.raises(InputError, match="Export it as onnxruntime"):
            export(models[gaps], tmp_path / "onnx", "onnx")
    export(models[gaps], tmp_path / "onnx", "onnxruntime" if gaps else "onnx")
    want = roformer_tf.load(models[gaps], precision="float32", engine="keras")(ROWS)
    for our, other in zip(roformer_tf.load(tmp_path / "onnx")(ROWS), want, strict=True):
        assert our["scores"] == pytest.approx(other["scores"], abs=1e-5)


@pytest.mark.parametrize("gaps", [False, True])
def test_the_code_in_an_export_card_runs(gaps, models, tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    pytest.importorskip("tokenizers")
    export(models[gaps], tmp_path / "onnx", "onnxruntime" if gaps else "onnx")
    card = (tmp_path / "onnx" / "README.md").read_text("utf-8")
    lines = "".join(re.findall("```python\n(.*?)```", card, re.DOTALL))
    names = {}
    monkeypatch.chdir(tmp_path / "onnx")
    exec(compile(lines, "card", "exec"), names)
    answers = names["answers"]["logits"]
    assert answers.shape == ((1, 1, TOKENIZER.vocab_size) if gaps else (1, 1))


def test_a_cloze_needs_a_language_model_head(tmp_path):
    encoder = RoFormerEncoder(RoFormerConfig(**TINY, vocab_size=TOKENIZER.vocab_size))
    encoder.tokenizer = TOKENIZER
    encoder.save_pretrained(tmp_path / "encoder")
    rows = [{"text": t, "choices": c, "label": 0} for t, c in ROWS * 3]
    config = FinetuneConfig(
        checkpoint=str(tmp_path / "encoder"),
        train=str(write(tmp_path / "train.jsonl", rows)),
        valid=str(tmp_path / "train.jsonl"),
        output=str(tmp_path / "run"),
    )
    with pytest.raises(InputError, match="no head that scores the vocabulary"):
        finetune(config)
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("text", ["{}是#idiom#", "{}"], ids=["gap", "pairs"])
@pytest.mark.slow
def test_finetuning_learns_the_right_choice(text, shallow, tmp_path, eagerly, capsys):
    """A run learns that the choice with 好 is right and reports a baseline."""
    rng = np.random.default_rng(0)
    words, rows = ["天气", "公园", "学习", "我们"], []
    for _ in range(24):
        choices = [str(rng.choice(words)) + "去" for _ in range(rng.integers(1, 4))]
        label = int(rng.integers(len(choices) + 1))
        choices.insert(label, str(rng.choice(words)) + "好")
        row = {"text": text.format(rng.choice(words)), "choices": choices, "label": label}
        rows.append(row)
    path = str(write(tmp_path / "train.jsonl", rows))
    config = FinetuneConfig(
        checkpoint=str(shallow),
        train=path,
        valid=path,
        output=str(tmp_path / "run"),
        optimizer=FinetuneOptimizerConfig(learning_rate=3e-3, layer_decay=1.0),
        epochs=4,
        batch_size=8,
        precision="float32",
        language="zh",
    )
    with eagerly():
        finetune(config)
    report = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))
    assert report["valid"]["accuracy"] > 0.9 > report["baseline"]["valid"]["accuracy"]
    low, high = report["intervals"]["valid"]["accuracy"]
    assert low < report["valid"]["accuracy"] <= high
    page = (tmp_path / "run" / "report.md").read_text("utf-8")
    assert "多项选择" in page
    assert f"{report['baseline']['name_zh']}" in page
    answers = roformer_tf.load(tmp_path / "run" / "model")(
        [(row["text"], row["choices"]) for row in rows]
    )
    right = np.mean([a["label"] == row["label"] for a, row in zip(answers, rows, strict=True)])
    assert right == pytest.approx(report["valid"]["accuracy"], abs=0.05)
