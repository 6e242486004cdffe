"""The body of `evaluate --data`: a finished model, a labelled file → the figures of a report."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from roformer_tf.engines.choice import Engine, Precision
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.files import write_json
from roformer_tf.finetuning.first_stage import FirstStage, text_vectors
from roformer_tf.finetuning.report import figures
from roformer_tf.finetuning.report.analysis import EvaluatedSet, described_task, with_intervals
from roformer_tf.finetuning.report.figures import ABSENT, figure, interval
from roformer_tf.inference.opening import Finetuned, open_finetuned
from roformer_tf.inference.prediction_files import check_output
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example, labels_of
from roformer_tf.labelled.reading import find_layout, read_examples
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.metrics import ACCURACY
from roformer_tf.tasks.scoring import JsonObject
from roformer_tf.tasks.table import TASKS
from roformer_tf.terminal import printable, say, show, table, terminal_width
from roformer_tf.translation import Translator

# Name of the file's examples in the JSON. It is that of the test set in report.json, so that both
# have the same keys.
SET = "test"
# Maximum number of rows of a table of labels.
SHOWN_LABELS = 40


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Evaluate a fine-tuned model on a labelled file; print metrics with confidence intervals.

    Columns have the names of training. If the file does not have them, they are detected and
    printed, as by `finetune`. A language model is evaluated on text, with --corpus instead of
    --data: see `roformer-tf evaluate --corpus --help`.

    Examples:
        roformer-tf evaluate runs/reviews/model --data test.tsv
        roformer-tf evaluate runs/mine/model --corpus news.jsonl --lengths 512 1024
    """

    model: Annotated[str, "MODEL"]
    """The model/ folder of a run of `finetune`, or its export; --model itself may be omitted."""
    data: Annotated[str, "FILE"]
    """Labelled examples that the model was not trained on, in a file as for `finetune`."""
    output: Path | None = None
    """JSON file to write: metrics, intervals and mistakes, with the keys of report.json."""
    first_stage: Annotated[str | None, "MODEL"] = None
    """For reranking: as for `finetune`. Default: BM25 alone."""
    columns: ColumnsConfig = dataclasses.field(default_factory=ColumnsConfig)
    batch_size: int = BATCH_SIZE
    """Maximum number of texts in a batch; a batch of long texts has fewer."""
    precision: Precision | None = None
    """As for `predict`. Default: what `predict` chooses. An export keeps its own precision."""
    engine: Engine = "auto"
    """As for `predict`."""

    def __post_init__(self) -> None:
        check_numbers(self, "batch_size", at_least=1)


def evaluate(config: EvaluateConfig) -> None:
    """Print metrics of a model on a labelled file, and write them if --output is given."""
    check_output(config.output, config.data, only=(".json", ".txt"))
    opened = open_finetuned(
        config.model,
        config.engine,
        config.precision,
        batch_size=config.batch_size,
        text_columns=config.columns.text_columns,
    )
    for note in opened.notes:
        say(note)
    task = opened.task
    columns = config.columns
    if columns.label_separator == ColumnsConfig.label_separator:
        columns = dataclasses.replace(columns, label_separator=task.label_separator)
    names = task.text_columns, task.label_column
    layout = find_layout(config.data, columns, task.name, {task.name: task}, *names)
    say(layout.report)
    labelled = map(task.labelling.for_prediction, read_examples(config.data, layout, columns))
    # The file has the labels of the data; the model may have names in their place (--label-names).
    examples = task.labelling.named(list(labelled))
    task = TASKS[task.name].adapted(task, examples)
    for example in examples:
        task.labelling.target(example)  # raises InputError for a label that it does not know
    if task.reranks:
        first_stage = FirstStage(examples, text_vectors(examples, config.first_stage))
        examples = first_stage.ordered(examples)
    elif config.first_stage is not None:
        raise InputError(
            f"first_stage is for reranking documents, not for {task.name}. Remove --first-stage."
        )
    report = evaluated(dataclasses.replace(opened, task=task), examples)
    report = {"model": config.model, "file": config.data} | report
    if config.output is not None:
        write_json(config.output, report)
    show("\n".join(lines(report, task, terminal_width())))


def evaluated(finetuned: Finetuned, examples: Sequence[Example]) -> JsonObject:
    """Predict the examples, and compare: the part of a report that is about its test set.

    → {"task": …, "test": {"accuracy": 0.93, …},
    "intervals": {"test": {"accuracy": [0.92, 0.94], …}}, "per_class": […], "mistakes": […], …}
    """
    task = finetuned.task
    encoded = task.labelling.encode(examples, finetuned.tokenizer)
    predictions = finetuned.predict(examples, encoded)
    lost = task.labelling.in_no_window(examples, finetuned.tokenizer)
    result = EvaluatedSet(
        examples=examples, lengths=encoded.lengths, in_no_window=lost, predictions=predictions
    )
    report = {
        **described_task(task, SET, {SET: result}),
        **with_intervals(task, {SET: (labels_of(examples), predictions)}),
        **task.metrics.details(examples, predictions),
    }
    return report | {"warnings": figures.evaluation_warnings(report, Translator("en"))}


def lines(report: Mapping[str, Any], task: Task, width: int) -> Iterator[str]:
    """The figures with their intervals, those of each label, and warnings, for a terminal."""
    _ = Translator("en")
    (described,) = report["data"]
    share = f"{described['longer']:.1%} are" if described["longer"] else "none is"
    longer = f"{share} longer than {report['max_length']} tokens"
    if described["longer"]:
        how = "read in windows" if report["long_texts"] == "windows" else "truncated"
        if how != "truncated" and len(task.text_columns) > 1:
            how += ", except queries and questions, which are truncated"
        longer += f", {how}"
    yield f"examples: {described['examples']:,}; {longer}"
    yield ""
    values, intervals = report[SET], report["intervals"][SET]
    metrics = [task.metrics.named(name) for name in values]
    rows = [
        [str(m.title), figure(values[m.name], m), interval(intervals[m.name], m)] for m in metrics
    ]
    yield from table([["", "figure", "95% CI"], *rows], width)
    for reason in figures.absent_intervals(report, _):
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
            for row in figures.lowest_f1(labels, SHOWN_LABELS)
        ]
        head = ["label", "precision", "recall", "F1", "labelled", "predicted"]
        yield from table([head, *rows], width)
    if report["warnings"]:
        yield ""
    for warning in report["warnings"]:
        yield f"! {warning}"
