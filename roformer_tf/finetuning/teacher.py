"""Distillation: what a teacher predicts becomes targets for a smaller model (Hinton et al., 2015).

A teacher of labels is a fine-tuned model of the same task. It predicts all examples once, before
the training, with its own tokenizer and maximum length. The teacher of paraphrases, which may be
any model with vectors, is in `search`.
"""

from collections.abc import Sequence

from roformer_tf.errors import InputError
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.opening import open_model
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import good_examples, open_unanswered
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.terminal import Progress, say
from roformer_tf.translation import Message

# Examples between two updates of the progress; those of similar length form batches.
CHUNK = 1024
SHOWN = 10  # labels that an error names


def read_unlabelled(config: FinetuneConfig, task: Task) -> list[Example]:
    """The examples of --unlabelled, without labels. Raises InputError for files without any."""
    examples: list[Example] = []
    for path in config.unlabelled:
        opened = open_unanswered(path, task, config.columns)
        if opened.report:
            say(opened.report)
        good = good_examples(path, opened.examples, config.columns.strict)
        say("{path}: {number:,} unlabelled examples", path=path, number=len(good))
        examples += good
    return examples


def teacher_predictions(source: str, task: Task, examples: Sequence[Example]) -> list[Prediction]:
    """What a teacher predicts for each example.

    Raises InputError for a model that is not fine-tuned, of another task, or with other labels.
    """
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
