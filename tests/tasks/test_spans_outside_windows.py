"""Counting and reporting of entities and answers that are not whole in any window."""

import dataclasses
import json

import pytest

from roformer_tf.adaptation import finetune
from roformer_tf.errors import InputError
from roformer_tf.finetuning.command import check_windows
from roformer_tf.finetuning.report.analysis import analyse
from roformer_tf.finetuning.report.pages import markdown_page
from roformer_tf.finetuning.search import Sets
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.extraction.prompted_spans import PromptedSpans
from roformer_tf.tasks.extraction.question_answering import QuestionAnswering
from roformer_tf.tasks.extraction.spans import Spans
from roformer_tf.tasks.table import TASKS
from tests.support.random_model import LETTERS, tokenizer_of
from tests.support.report_run import make_run

LABELS = ("国", "人民")
QUESTION = "我们去"
# A task and the number of tokens in a sequence besides those of the text.
TASKS_AND_OVERHEAD = [
    (Spans(labels=LABELS), 2),
    (PromptedSpans(labels=LABELS), 2 + 1 + 2),
    (QuestionAnswering(), 3 + 3),
]
MESSAGES = [
    (
        "C.UTF-8",
        "1 of 2 entities of the training set are cut by every window of 18 tokens: the model "
        "cannot find them. The longest has 9 characters; with --max-length 38 or more none is "
        "cut.\n"
        "2 of 3 entities of the test set are",
    ),
    (
        "zh_CN.UTF-8",
        "训练集的 2 个实体中，有 1 个在哪个窗口（18 个 token）里都不完整，模型找不出来。"
        "最长的有 9 个字；要全部完整，训练时请把 --max-length 设为至少 38。\n"
        "测试集的 3 个实体中，有 2 个",
    ),
]


def text_of(length):
    return (LETTERS * (1 + length // len(LETTERS)))[:length]


def example(task, length, spans):
    text = text_of(length)
    if isinstance(task, QuestionAnswering):
        return Example((QUESTION, text), tuple((text[a:b], a) for a, b in spans), "a:1")
    return Example((text,), [(LABELS[a % 2], a, b) for a, b in spans], "a:1")


def windows_of(length, window):
    """Return [first, end) of each window; neighbours overlap by a quarter of a window."""
    starts = [0]
    while starts[-1] + window < length:
        starts.append(starts[-1] + window - window // 4)
    return [(min(x, max(0, length - window)), min(x + window, length)) for x in starts]


@pytest.mark.parametrize(("task", "overhead"), TASKS_AND_OVERHEAD)
@pytest.mark.parametrize("window", [15, 16, 39])
def test_in_no_window_counts_spans_outside_all_windows(task, overhead, window):
    task = type(task)(labels=task.labels, max_length=window + overhead)
    lengths = (40, 53, window, 90)
    spans = [
        [(a, a + size) for size in (1, 4, 5, 6, 13) for a in range(length - size + 1)]
        for length in lengths
    ]
    lost = [
        (length, b - a)
        for length, pairs in zip(lengths, spans, strict=True)
        for a, b in pairs
        if not any(first <= a and b <= end for first, end in windows_of(length, window))
    ]
    examples = [example(task, *x) for x in zip(lengths, spans, strict=True)]
    got = task.labelling.in_no_window(examples, tokenizer_of())
    longest = max(size for _, size in lost)
    assert got == {
        "number": len(lost),
        "of": sum(map(len, spans)),
        "longest": longest,
        "enough": overhead + min(4 * longest, max(length for length, _ in lost)),
    }
    task = type(task)(labels=task.labels, max_length=got["enough"])
    assert task.labelling.in_no_window(examples, tokenizer_of()) == {}


def test_spans_in_no_window_are_those_missing_from_targets():
    task = Spans(labels=LABELS, max_length=18)
    spans = [(a, a + size) for size in (4, 9) for a in range(50 - size)]
    examples = [example(task, 50, spans)]
    encoded = task.labelling.encode(examples, tokenizer_of())
    targets, _ = task.labelling.row_targets(encoded, examples)
    in_targets = {
        (units[first], units[last] + 1)
        for units, (_, *target_spans) in zip(encoded.first_units, targets, strict=True)
        for first, last, _ in target_spans
        if first
    }
    lost = task.labelling.in_no_window(examples, tokenizer_of())["number"]
    assert lost == len({*spans} - in_targets) > 0


@pytest.mark.parametrize(("locale", "want"), MESSAGES)
def test_check_windows_prints_one_message_per_set(locale, want, monkeypatch, capsys):
    monkeypatch.setenv("LC_ALL", locale)
    task = Spans(labels=LABELS, max_length=18)
    train = example(task, 90, [(10, 19), (5, 7)])  # windows: 0 to 16, 12 to 28, …
    test = example(task, 90, [(10, 18), (10, 19), (0, 1)])
    valid, without_spans = example(task, 90, [(10, 19)]), example(task, 90, [])
    check_windows(task, Sets([train], [valid, without_spans], [test], []), tokenizer_of())
    train_line, valid_line, test_line = capsys.readouterr().out.splitlines()
    assert f"{train_line}\n{test_line}".startswith(want)
    assert (
        "1 of 1 entities of the validation set" in valid_line or "验证集的 1 个实体中" in valid_line
    )


@pytest.mark.parametrize(("task", "overhead"), TASKS_AND_OVERHEAD)
def test_training_without_a_span_in_a_window_is_rejected(task, overhead):
    task = type(task)(labels=task.labels, max_length=16 + overhead)
    sets = Sets([example(task, 90, [(5, 18), (8, 30)])], [], [], [])
    message = rf"^2 of 2 \w+ of the training set are .* --max-length {4 * 22 + overhead} or more"
    with pytest.raises(InputError, match=message):
        check_windows(task, sets, tokenizer_of())


def test_other_tasks_have_no_spans(capsys):
    task = TASKS["tagging"](labels=("B-国", "O"), max_length=18)
    units = tuple(text_of(90))
    sets = Sets([Example((text_of(90),), ("O",) * 90, "a:1", units)], [], [], [])
    check_windows(task, sets, tokenizer_of())
    assert capsys.readouterr().out == ""


def test_a_run_without_a_span_in_a_window_stops_before_training(released, tmp_path):
    rows = [
        {"text": text_of(60) + str(i), "entities": [{"start": 5, "end": 40, "label": "国"}]}
        for i in range(40)
    ]
    train = tmp_path / "train.jsonl"
    train.write_text("".join(json.dumps(x) + "\n" for x in rows), encoding="utf-8")
    config = FinetuneConfig(
        checkpoint=str(released("char")),
        train=str(train),
        output=str(tmp_path / "run"),
        max_length=18,
        precision="float32",
    )
    with pytest.raises(InputError, match=r"^32 of 32 entities of the training set"):
        finetune(config)
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.parametrize(
    ("language", "want"),
    [
        ("en", "3 of 7 answers of the training set are cut by every window of 16 tokens"),
        ("zh", "训练集的 7 个答案中，有 3 个在哪个窗口（16 个 token）里都不完整"),
    ],
)
def test_the_report_shows_spans_in_no_window(language, want):
    run = make_run("question-answering")
    figures = {"number": 3, "of": 7, "longest": 12, "enough": 51}
    train = dataclasses.replace(run.train, in_no_window=figures)
    report = analyse(dataclasses.replace(run, train=train))
    assert [data.get("in_no_window") for data in report["data"]] == [figures, None, None]
    assert markdown_page(report, language).count(want) == 1
