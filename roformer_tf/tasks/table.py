"""The one table of tasks: by name, the class that knows all about it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from roformer_tf.checkpoints.detection import TASK_FILE
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.embedding import Embedding
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.pair import Pair
from roformer_tf.tasks.paraphrase import Paraphrase
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.tagging import Tagging

TASKS: dict[str, type[Task]] = {
    task.name: task
    for task in (
        *(Classification, Multilabel, Pair, Regression, Ranking, Tagging, Embedding),
        *(Paraphrase,),
    )
}
"""Where several are possible for a file's columns, the first is taken."""

PROBLEMS: dict[str, type[Task]] = {
    "regression": Regression,
    "single_label_classification": Classification,
    "multi_label_classification": Multilabel,
}
"""By the `problem_type` of transformers' config, the task of a model that was trained there."""

if TYPE_CHECKING:
    TaskName: TypeAlias = str
else:  # type checkers want the names written out, but then a new task would be named twice
    TaskName = Literal[tuple(TASKS)]


def task_of_problem(problem: str | None, labels: tuple[str, ...], max_length: int) -> Task:
    """What a classifier of texts that was trained in transformers answers.

    Where its config is silent, transformers takes one label for a number, and more for classes.
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
        return TASKS[task](**{key: _as_tuples(x) for key, x in values.items()})
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"cannot read {name}: {error}. Fine-tune again.") from None


def _as_tuples(value: Any) -> Any:
    """A list of JSON, and the lists in it, as the fields of a task are."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
