"""The one table of tasks: the classes by name, each composed of four parts in its own module."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from roformer_tf.checkpoints.detection import TASK_FILE
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.tagging import Tagging
from roformer_tf.tasks.vectors.paraphrase import Paraphrase
from roformer_tf.tasks.vectors.retrieval import Embedding

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        Classification,
        Multilabel,
        Pair,
        Regression,
        Ranking,
        Tagging,
        Embedding,
        Paraphrase,
    )
}
"""Where several fit the columns of a file, the first one is chosen."""

PROBLEMS: dict[str, type[Task]] = {
    "regression": Regression,
    "single_label_classification": Classification,
    "multi_label_classification": Multilabel,
}
"""The task of a model that was trained in transformers, by the `problem_type` of its config."""

if TYPE_CHECKING:
    TaskName: TypeAlias = str
else:  # type checkers want the names written out, but then a new task would be named twice
    TaskName = Literal[tuple(TASKS)]


def task_of_problem(problem: str | None, labels: tuple[str, ...], max_length: int) -> Task:
    """The task of a text classifier that was trained in transformers.

    Where its config has no `problem_type`, transformers takes one label for a number, and more for
    classes.
    """
    usual = Regression if len(labels) == 1 else Classification
    kind = PROBLEMS.get(problem, Classification) if problem else usual
    return kind(labels=() if kind is Regression else labels, max_length=max_length)


def load_task(folder: str | Path) -> Task:
    """Read the task.json of a folder. Raises InputError where there is none, or a damaged one."""
    path = Path(folder) / TASK_FILE
    try:
        return parse_task(path.read_bytes(), str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}. Fine-tune again.") from None


def parse_task(content: bytes, name: str) -> Task:
    """The task that a task.json holds; `name` of the file, for messages.

    Raises InputError for a damaged one.
    """
    try:
        values = parse_json(content, finite=True)
        task = values.pop("name")
        if task not in TASKS:
            raise ValueError(f"there is no task {task!r}, but {', '.join(TASKS)}")
        settings = {key: _as_tuples(value) for key, value in values.items()}
        return TASKS[task].from_settings(**settings)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"cannot read {name}: {error}. Fine-tune again.") from None


def _as_tuples(value: Any) -> Any:
    """A list of JSON, and the lists in it, as the tuples that settings are."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
