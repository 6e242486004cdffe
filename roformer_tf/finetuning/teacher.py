"""Distillation: what a teacher predicts becomes targets for a smaller model (Hinton et al., 2015).

A teacher of labels is a fine-tuned model of the same task. It predicts all examples once, before
the training, with its own tokenizer and maximum length. Or its predictions are in columns of the
files, as `predict` writes them. The teacher of paraphrases, which may be any model with vectors, is
in `search`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.opening import open_model
from roformer_tf.labelled.cells import listed, stripped, to_number
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import good_examples, open_texts_to_predict
from roformer_tf.readers.kinds import kind_of
from roformer_tf.readers.records import Row
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.losses import COLUMNS
from roformer_tf.terminal import Progress, say
from roformer_tf.translation import Message

# Examples between two updates of the progress; those of similar length form batches.
CHUNK = 1024
SHOWN = 10  # labels that an error names
# How much the probabilities in a row may differ from those with the sum 1.
TOLERANCE = 0.01


def read_unlabelled(config: FinetuneConfig, task: Task) -> list[Example]:
    """The examples of --unlabelled, without labels. Raises InputError for files without any."""
    examples: list[Example] = []
    for path in config.unlabelled:
        # The user names the columns of --train. A .txt may have none; --adapt needs a single one.
        count = 0 if kind_of(path) == "txt" else len(task.text_columns)
        named = config.columns.text_columns[:count]
        columns = dataclasses.replace(config.columns, text_columns=named)
        opened = open_texts_to_predict(path, task, columns)
        if opened.report:
            say(opened.report)
        good = good_examples(path, opened.examples, config.columns.strict)
        say("{path}: {number:,} unlabelled examples", path=path, number=len(good))
        examples += good
    return examples


def teacher_predictions(
    config: FinetuneConfig, task: Task, examples: Sequence[Example]
) -> Sequence[Prediction | None]:
    """What a teacher predicts for each example; None where the columns of its file have nothing.

    Raises InputError for a model that is not fine-tuned, of another task, or with other labels, and
    as `stored_predictions`.
    """
    source = str(config.loss.teacher)
    if source == COLUMNS:
        return stored_predictions(config, task, examples)
    with open_model(source, precision="float32") as opened:
        if opened.task is not None:
            check_teacher(source, opened.task, task)
        finetuned = opened.finetuned()
    engine, precision = finetuned.choice.engine, finetuned.choice.precision
    say("the teacher is {described}", described=f"{source} ({engine}, {precision})")
    predictions: list[Prediction] = []
    with Progress(total=len(examples), desc=Message("teacher"), unit=Message("texts")) as bar:
        for start in range(0, len(examples), CHUNK):
            predictions += finetuned.predict(examples[start : start + CHUNK])
            bar.update(len(predictions) - start)
    return predictions


def stored_predictions(
    config: FinetuneConfig, task: Task, examples: Sequence[Example]
) -> list[Prediction | None]:
    """The predictions of a teacher in the columns of the files; None for a row that has none.

    Rows of --train and --unlabelled need them. Raises InputError for a file without the columns,
    and for a row whose cells are no prediction.
    """
    names = task.decoding.score_columns
    if not names or task.label_column in names:
        reason = "is the label here" if names else "is not in columns"
        raise InputError(
            f"--teacher {COLUMNS}: what a teacher of {task.name} predicts {reason}. Give a model."
        )
    stored: dict[str, Prediction] = {}
    places = {example.source_line for example in examples}
    for path in filter(None, (config.train, *config.unlabelled, config.valid, config.test)):
        table = config.columns.open(path, names)
        if {*names} <= {*table.columns}:
            # A row that is no example, such as one without a label, needs no prediction either.
            rows = (row for row in table.rows if row.source_line in places)
            stored.update((row.source_line, _stored(row, task)) for row in rows)
        elif path not in (config.valid, config.test):
            missing = ", ".join([name for name in names if name not in table.columns][:SHOWN])
            raise InputError(
                f"{path}: --teacher {COLUMNS} reads the columns that `predict` writes, but there "
                f"is no {missing}. Add what the teacher predicts, or give a model as --teacher."
            )
    say("the teacher is {described}", described=", ".join(names[:SHOWN]))
    return [stored.get(example.source_line) for example in examples]


def _stored(row: Row, task: Task) -> Prediction:
    """The prediction in the cells of a row."""
    names = task.decoding.score_columns
    numbers = [to_number(row.cells.get(name)) for name in names]
    # NaN is close to no number, so a cell without a number fails the check below.
    scores = np.array([np.nan if x is None else x for x in numbers], np.float32)
    prediction = task.decoding.predict(task.decoding.logits(scores))
    # A sum that is not 1, and a number that is no probability, would be changed.
    if not np.allclose(prediction.scores, scores, rtol=1e-4, atol=TOLERANCE):
        shown = ", ".join(f"{name} {row.cells.get(name)}" for name in names[:SHOWN])
        raise InputError(
            f"{row.source_line} has no prediction of {task.name} in its columns: {shown}. Correct "
            "it, or remove the row."
        )
    column = task.decoding.cell_names()[0]
    if task.labelling.separates_labels and column in row.cells and column != task.label_column:
        # The student does not know the teacher's thresholds, but which labels are above them.
        above = map(stripped, listed(row.cells[column], task.label_separator))
        label = tuple(name for name in above if name in task.label_numbers)
        prediction = prediction._replace(label=label)
    return prediction


def check_teacher(source: str, teacher: Task, task: Task) -> None:
    """Raise InputError for a teacher whose task, texts or labels are not those of the training."""
    problem = ""
    if teacher.name != task.name:
        problem = f"its task is {teacher.name}, not {task.name}"
    elif len(teacher.text_columns) != len(task.text_columns):
        problem = f"an example of it has the texts {', '.join(teacher.text_columns)}"
    elif teacher.labels != task.labels:
        unknown = sorted({*task.labels} - {*teacher.labels})[:SHOWN]
        unused = sorted({*teacher.labels} - {*task.labels})[:SHOWN]
        differences = [f"it does not know {', '.join(unknown)}"] if unknown else []
        differences += [f"--train has no {', '.join(unused)}"] if unused else []
        problem = " and ".join(differences) or "its labels have another order"
    if problem:
        raise InputError(
            f"{source} cannot be the --teacher: {problem}. Give a model that was fine-tuned for "
            "the same task and labels."
        )
