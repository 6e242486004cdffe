"""The body of `evaluate --data`: a finished model, a labelled file → the figures of a report."""

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.files import check_writable, write_text
from roformer_tf.finetuning.report.analysis import (
    EvaluatedSet,
    LabelledPredictions,
    describe_set,
    with_intervals,
)
from roformer_tf.finetuning.report.figures import ABSENT, figure, interval, lowest_f1, reasons
from roformer_tf.finetuning.report.warnings import evaluation_warnings
from roformer_tf.inference.opening import open_finetuned, predict_encoded
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import Layout, find_layout, read_examples
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.metrics import ACCURACY
from roformer_tf.tasks.scoring import JsonObject
from roformer_tf.tasks.table import TASKS
from roformer_tf.terminal import printable, table, terminal_width
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Translator

JUDGED = "test"
"""What the file is called, as the set is that a report judges by: one shape for both."""
SHOWN = 10
"""Labels that an error names."""
SHOWN_LABELS = 40
"""Rows of a table of labels."""
CUT = {
    "head": "their end is not read",
    "head-tail": "their middle is not read",
    "windows": "all is read, in windows",
}
"""What happens to texts that are longer than the model's sequences."""


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
        check_numbers(self, "batch_size", at_least=1)


def evaluate(config: EvaluateConfig) -> None:
    """Print how well the model answers, and write what is asked for."""
    if config.output is not None:
        check_writable(config.output)
    opened = open_finetuned(config.model, config.engine, config.precision)
    for note in opened.notes:
        print(note)
    model, tokenizer, task = opened.model, opened.tokenizer, opened.task
    layout, columns = find_columns(config.data, config.columns, task)
    print(layout.report)
    read = read_examples(config.data, layout, columns)
    examples = [task.labelling.for_prediction(example) for example in read]
    check_labels(config.data, task, examples)
    task = TASKS[task.name].adapted(task, examples)
    report = judge(model, tokenizer, task, examples, config.batch_size)
    report = {"model": config.model, "file": config.data} | report
    if config.output is not None:
        text = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
        write_text(config.output, text.encode("utf-8", "backslashreplace").decode())
    print("\n".join(lines(report, task, terminal_width())))


def find_columns(path: str, columns: ColumnsConfig, task: Task) -> tuple[Layout, ColumnsConfig]:
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
        f"{label!r} ({number:,} {'row' if number == 1 else 'rows'}, first {first[label]})"
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

    `model` as `Task.decoding.run` takes it. → {"task": …, "judged": "test", "test": {"accuracy":
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
        **with_intervals(task, {JUDGED: LabelledPredictions(judged.gold, predictions)}),
        **task.metrics.details(examples, predictions),
    }
    return report | {"warnings": evaluation_warnings(report, Translator("en"))}


def lines(report: Mapping[str, Any], task: Task, width: int) -> Iterator[str]:
    """The figures with their intervals, those of each label, and warnings, for a terminal."""
    _ = Translator("en")
    (described,) = report["data"]
    of_several = "the longer text is cut" if len(task.text_columns) > 1 else ""
    cut = (
        task.labelling.fixed_long_texts.removesuffix(".") or of_several or CUT[report["long_texts"]]
    )
    longer = f"{described['longer']:.1%} are longer than {report['max_length']} tokens ({cut})"
    none = f"none is longer than {report['max_length']} tokens"
    yield f"examples: {described['examples']:,}; {longer if described['longer'] else none}"
    yield ""
    values, intervals = report[JUDGED], report["intervals"][JUDGED]
    metrics = [task.metrics.named(name) for name in values]
    rows = [
        [str(m.title), figure(values[m.name], m), interval(intervals[m.name], m)] for m in metrics
    ]
    yield from table([["", "figure", "95% CI"], *rows], width)
    for reason in reasons(report, "interval", _):
        yield f"{ABSENT} instead of an interval: {reason}."
    if labels := report.get("per_class"):
        yield ""
        if len(labels) > SHOWN_LABELS:
            yield f"The {SHOWN_LABELS} of {len(labels):,} labels with the lowest F1."
        rows = [
            [
                printable(row["label"]),
                *(figure(row[name], ACCURACY) for name in ("precision", "recall", "f1")),
                f"{row['gold']:,}",
                f"{row['predicted']:,}",
            ]
            for row in lowest_f1(labels, SHOWN_LABELS)
        ]
        head = ["label", "precision", "recall", "F1", "labelled", "predicted"]
        yield from table([head, *rows], width)
    if report["warnings"]:
        yield ""
    for warning in report["warnings"]:
        yield f"! {warning}"
