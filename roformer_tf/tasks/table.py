"""The one table of tasks: classes by name. `base` explains how to add one."""

from typing import Any, Literal, TypeAlias

from roformer_tf.errors import InputError
from roformer_tf.files import parse_json
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.choices.cloze import MultipleChoice, TextClassification
from roformer_tf.tasks.choices.reranking import Reranking
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.extraction.prompted_spans import Extraction
from roformer_tf.tasks.extraction.question_answering import QuestionAnswering
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tasks.vectors.paraphrase import Paraphrase
from roformer_tf.tasks.vectors.scored_pairs import Embedding

# If the columns of a file suit several tasks, the first one is chosen.
TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        TextClassification,
        Multilabel,
        MultipleChoice,
        Reranking,
        Pair,
        Regression,
        Ranking,
        Tagging,
        Extraction,
        QuestionAnswering,
        Embedding,
        Paraphrase,
    )
}

# The task of a model from transformers, by the `problem_type` of its config.
PROBLEMS: dict[str, type[Task]] = {
    "regression": Regression,
    "single_label_classification": Classification,
    "multi_label_classification": Multilabel,
}

# Type checkers accept only literal names here, which would repeat each name.
TaskName: TypeAlias = Literal[tuple(TASKS)]  # type: ignore[valid-type]


def task_of_problem(
    problem: str | None, labels: tuple[str, ...], max_length: int, texts: tuple[str, ...], name: str
) -> Task:
    """The task of a text classifier that was trained in transformers.

    texts: their columns. name: of the model, for messages.

    Without a `problem_type` in its config, transformers treats one label as a number, and more as
    classes. Raises InputError for a regression of several numbers.
    """
    usual = Regression if len(labels) == 1 else Classification
    kind = PROBLEMS.get(problem, Classification) if problem else usual
    if kind is Regression and len(labels) > 1:
        raise InputError(
            f"{name} predicts {len(labels)} numbers; only models of one number are supported."
        )
    kind = Pair if kind is Classification and len(texts) > 1 else kind
    # A regression's single "label" in such configs is LABEL_0, which names nothing.
    labels = () if kind is Regression else labels
    return kind(labels=labels, max_length=max_length, text_columns=texts)


def parse_task(content: bytes, name: str) -> Task:
    """The task in the content of a task.json; `name` of the file, for messages.

    Raises InputError for a damaged file.
    """
    try:
        values = parse_json(content, finite=True)
        # Unknown keys raise TypeError: the settings of a newer version are not ignored.
        task = values.pop("name")
        if task not in TASKS:
            raise ValueError(f"there is no task {task!r}, but {', '.join(TASKS)}")
        settings = {key: _as_tuples(value) for key, value in values.items()}
        return TASKS[task].from_settings(**settings)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"cannot read {name}: {error}. Fine-tune again.") from None


def _as_tuples(value: Any) -> Any:
    """Lists of JSON as tuples, the type of settings; nested lists, too."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
