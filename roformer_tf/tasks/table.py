"""The one table of tasks: the classes by name, each composed of four parts in its own module."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from roformer_tf.checkpoints.detection import TASK_FILE
from roformer_tf.errors import InputError
from roformer_tf.files import parse_json
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.paraphrase import Paraphrase
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.retrieval import Embedding
from roformer_tf.tasks.tagging import Tagging

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
    """Read `task.json`. Raises InputError where a folder has none, or a damaged one."""
    path = Path(folder) / TASK_FILE
    try:
        values = parse_json(path.read_bytes(), finite=True)
        name = values.pop("name")
        if name not in TASKS:
            raise ValueError(f"there is no task {name!r}, but {', '.join(TASKS)}")
        settings = {key: _as_tuples(value) for key, value in values.items()}
        return TASKS[name].from_settings(**settings)
    except FileNotFoundError:
        raise InputError(
            f"{folder} holds no fine-tuned model: there is no {TASK_FILE}. Give the model/ folder "
            "of a run of `roformer-tf finetune`."
        ) from None
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"cannot read {path}: {error}. Fine-tune again.") from None


def _as_tuples(value: Any) -> Any:
    """A list of JSON, and the lists in it, as the tuples that settings are."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
