"""The body of `evaluate --data`: a finished model, a labelled file → the figures of a report."""

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.errors import InputError
from roformer_tf.files import check_writable, write_text
from roformer_tf.finetuning.report import phrases, words
from roformer_tf.finetuning.report.analysis import (
    Answers,
    EvaluatedSet,
    describe_set,
    with_intervals,
)
from roformer_tf.finetuning.report.sections import each_label, without_interval
from roformer_tf.finetuning.report.warnings import warnings_of_answers
from roformer_tf.inference.engines import open_finetuned
from roformer_tf.inference.predict import predict_encoded
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import ColumnsConfig, Layout, find_layout, read_examples
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.runs.comparison import printable, table
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.blocks import ReportTable
from roformer_tf.tasks.details import JsonObject
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.wording import in_language
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

JUDGED = "test"
"""What the file is called, as the set is that a report judges by: one shape for both."""
SHOWN = 10  # labels that an error names
WIDTH = 100  # of a table where no terminal tells


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Judge a fine-tuned model by a labelled file, and say how far chance may move the figures.

    Columns have the names of training. Where the file has none such they are found, and said, as
    `finetune` does it. A language model is judged by text, with --corpus in the place of --data:
    `roformer-tf evaluate --corpus --help` lists the flags of that.
    """

    model: str
    """The model/ folder of a run of `finetune`, or an export to onnx or int8; --model itself may be
    left out."""
    data: str
    """Labelled examples that the model was not trained on, in a file as `finetune` takes them."""
    output: Path | None = None
    """File of JSON to write: the figures, intervals and mistakes, named as in report.json."""
    columns: ColumnsConfig = dataclasses.field(default_factory=ColumnsConfig)
    batch_size: int = BATCH_SIZE
    """Most texts that the model reads at once; of long ones it reads fewer."""
    precision: Precision | None = None
    """As `predict` has it: unset, what that takes by itself. An export keeps the precision that it
    has."""
    engine: Engine = "auto"
    """As `predict` has it."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}, but must be at least 1.")


def evaluate(config: EvaluateConfig) -> None:
    """Print how well the model answers, and write what is asked for."""
    if config.output is not None:
        check_writable(config.output)
    opened = open_finetuned(config.model, config.engine, config.precision, lossy=True)
    if opened.choice.said:
        print(f"{opened.choice.said}.")
    model, tokenizer, task = opened.model, opened.tokenizer, opened.task
    layout, columns = find_columns(config.data, config.columns, task)
    print(layout.said)
    read = read_examples(config.data, layout, columns)
    examples = [task.labelling.for_prediction(example) for example in read]
    check_labels(config.data, task, examples)
    task = TASKS[task.name].adapted(task, examples)
    report = judge(model, tokenizer, task, examples, config.batch_size)
    report = {"model": config.model, "file": config.data} | report
    if config.output is not None:
        text = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
        write_text(config.output, text.encode("utf-8", "backslashreplace").decode())
    print("\n".join(lines(report, task, shutil.get_terminal_size((WIDTH, 0)).columns)))


def find_columns(
    path: str, columns: ColumnsConfig, task: Task
) -> tuple[Layout[Task], ColumnsConfig]:
    """Where texts and labels stand: as the user says, as in training, or as it can be found.

    Raises InputError where none of that gives an answer.
    """
    if columns.label_separator == ColumnsConfig.label_separator:
        columns = dataclasses.replace(columns, label_separator=task.label_separator)
    as_trained = dataclasses.replace(
        columns,
        text_columns=columns.text_columns or task.text_columns,
        label_column=columns.label_column or task.label_column,
    )
    try:
        return find_layout(path, as_trained, task.name, {task.name: task}), columns
    except InputError:
        if columns.text_columns or columns.label_column:
            raise
    return find_layout(path, columns, task.name, {task.name: task}), columns


def check_labels(path: str, task: Task, examples: Sequence[Example]) -> None:
    """Raise InputError, naming them, for labels that the model does not know.

    A number is none, and of a ranking the labels are the same for all.
    """
    if not task.labels:
        return
    found = Counter(
        label
        for example in examples
        for label in sorted(task.labelling.labels_in(example.label))
        if label not in task.labels
    )
    if not found:
        return
    first = {
        label: example.place
        for example in reversed(examples)
        for label in task.labelling.labels_in(example.label)
    }
    told = [
        f"{label!r} ({words.several(number, 'row')}, first {first[label]})"
        for label, number in found.most_common(SHOWN)
    ]
    more = f" and {len(found) - SHOWN:,} more" if len(found) > SHOWN else ""
    known = ", ".join(task.labels[:SHOWN]) + ("…" if len(task.labels) > SHOWN else "")
    raise InputError(
        f"{path} has labels that the model does not know: {', '.join(told)}{more}. It knows "
        f"{known}. Correct them, name the right column by --label-column, or fine-tune with "
        "examples of them."
    )


def judge(
    model: Any,
    tokenizer: RoFormerTokenizer,
    task: Task,
    examples: Sequence[Example],
    batch_size: int = BATCH_SIZE,
) -> JsonObject:
    """Have the examples answered, and compare: what a report has of the set that it judges by.

    `model` as `Decoding.run` takes it. → {"task": …, "judged": "test", "test": {"accuracy":
    0.93, …}, "intervals": {"test": {"accuracy": [0.92, 0.94], …}}, "per_class": […], "mistakes":
    […], "warnings": […], …}
    """
    encoded = task.labelling.encode(examples, tokenizer)
    predictions = predict_encoded(model, task, encoded, batch_size)
    judged = EvaluatedSet(examples=examples, lengths=encoded.lengths, predictions=predictions)
    report: JsonObject = {
        "task": task.name,
        "judged": JUDGED,
        "text_columns": list(task.text_columns),
        "max_length": task.max_length,
        "long_texts": task.long_texts,
        "data": [describe_set(JUDGED, judged, task)],
        "thresholds": dict(zip(task.labels, task.thresholds, strict=False)),  # all, or none
        **with_intervals(task, {JUDGED: Answers(judged.gold, predictions)}),
        **task.metrics.details(examples, predictions),
    }
    return report | {"warnings": in_language(warnings_of_answers(report), "en")}


def lines(report: Mapping[str, Any], task: Task, width: int) -> Iterator[str]:
    """The figures with their intervals, those of each label, and what to know of them."""
    (described,) = report["data"]
    of_several = "the longer text is cut" if len(task.text_columns) > 1 else ""
    cuts = in_language(phrases.CUT, "en")
    usual = cuts.get(report["long_texts"], "all is read, in windows")
    cut = task.labelling.fixed_long_texts.removesuffix(".") or of_several or usual
    longer = f"{described['longer']:.1%} are longer than {report['max_length']} tokens ({cut})"
    none = f"none is longer than {report['max_length']} tokens"
    examples = words.several(described["examples"], "example")
    yield f"{examples}; {longer if described['longer'] else none}"
    yield ""
    metrics = [task.metrics.named(name) for name in report[JUDGED]]
    figures = [
        [
            metric.title.en,
            words.figure(metric, report[JUDGED][metric.name]),
            words.interval(metric, report["intervals"][JUDGED][metric.name]),
        ]
        for metric in metrics
    ]
    yield from table([["", "figure", "95 % interval"], *figures], width)
    for reason in without_interval(report):
        yield in_language(phrases.ABSENT_INTERVALS.format(reason=reason), "en")
    for block in in_language(list(each_label(report)), "en"):
        yield ""
        if isinstance(block, ReportTable):
            rows = [[printable(str(row[0])), *map(str, row[1:])] for row in block.rows]
            yield from table([[*map(str, block.head)], *rows], width)
        else:
            yield block.words
    if report["warnings"]:
        yield ""
    for warning in report["warnings"]:
        yield f"! {warning}"
