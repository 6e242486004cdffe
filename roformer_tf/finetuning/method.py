"""Few examples: whether all weights are trained, or a head on the vectors of a frozen encoder.

OUTPUT/method.json   what was chosen, and the figures that were compared
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from roformer_tf.errors import InputError
from roformer_tf.files import read_json, remove, write_json
from roformer_tf.finetuning.frozen import Folds, cross_validation, why_no_room
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import split_examples
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.metrics import scores_text
from roformer_tf.terminal import say
from roformer_tf.training.run_files import plain

if TYPE_CHECKING:
    from roformer_tf.finetuning.search import Search

METHOD = "method.json"
# With more examples of a label, "auto" trains all weights.
MOST = 64
# Mean number of examples of a label below which "auto" does not try to train all weights.
FEW = 8
# Settings of a training of all weights, besides those of optimizer and loss. A user who gives one
# wants such a training: they have no effect on a head alone.
TRAINING = ("epochs", "batch_size", "dropout", "patience", "seeds", "sweep")
# A user who gives one of these wants such a training, too, but they have an effect on a head.
OF_BOTH = ("folds", "adapt", "from_scratch")


def training_flags(config: FinetuneConfig, further: Sequence[str] = ()) -> list[str]:
    """The flags of a training of all weights, of optimizer and loss too, that the user gave.

    further: settings whose flags also count.
    """
    own, usual = plain(config), plain(FinetuneConfig(train="", output=""))
    names = (*TRAINING, *further, *plain(config.optimizer), *plain(config.loss))
    return [f"--{name.replace('_', '-')}" for name in names if own[name] != usual[name]]


def settle_method(
    config: FinetuneConfig, task: type[Task], examples: Sequence[Example]
) -> FinetuneConfig:
    """Replace "auto" by "full" where there is no choice for these training examples.

    Raises InputError where "vectors" or "cloze" is not possible.
    """
    if config.method == "full":
        return config
    problem = ""
    if not task.has_vector_method:
        problem = f"it is not for the task {task.name}. Give --method full."
    elif config.method == "cloze":
        return config
    else:
        try:
            # Only for its error: the folds are made again for the training.
            cross_validation(examples, task, config.seed)
        except InputError as error:
            problem = str(error)
    if problem and config.method != "auto":
        raise InputError(f"--method {config.method}: {problem}")
    are_few = not problem and max(Counter(x.label for x in examples).values()) <= MOST
    if config.method == "auto" and not are_few:
        return dataclasses.replace(config, method="full")
    return config


def with_method(search: "Search") -> "Search":
    """The trainings by the method of the settings; for "auto" by the better one.

    The figures that were compared are kept in the run's folder, for the report of a repeated run.
    """
    config, path = search.config, search.output / METHOD
    if config.method == "vectors" and (
        problem := why_no_room(search.initial.architecture, search.task.outputs)
    ):
        raise InputError(f"--method vectors: {problem}. Give --pooling mean or --method full.")
    known: dict[str, Any] = {}
    if config.method == "auto":
        known = _compared(search)
        write_json(path, known)
    elif path.exists():
        known = read_json(path, "Give another --output to start anew.")
        if known["name"] != config.method:  # a choice of "auto" that the user has replaced
            remove(path)
            known = {}
    if not known and config.method != "vectors":
        return search
    name = known.get("name", config.method)
    is_cross_validated = name == "vectors" and not (search.sets.valid or search.sets.folds)
    if is_cross_validated:
        say("no row is split off: a cross-validation replaces each set that has no file")
    method = known | {"name": name, "cross_validated": is_cross_validated}
    chosen = dataclasses.replace(_of_method(search, name), method=method)
    # By its prefix a training that was compared is known, and not repeated. Without --valid, those
    # of all weights were compared on other sets.
    is_known = known and (name == "vectors" or config.valid)
    return chosen if is_known else dataclasses.replace(chosen, prefix="")


def _compared(search: "Search") -> dict[str, Any]:
    """The better method, and the figures that say so; of equal ones "vectors", which is faster."""
    train = search.sets.train
    if why_no_room(search.initial.architecture, search.task.outputs):
        return {"name": "full"}
    if len(train) < FEW * search.task.outputs:
        return {"name": "vectors", "fewest": FEW}
    metric = search.metric
    by_vectors = _of_method(search, "vectors").first()
    figures = {"vectors": by_vectors.metrics["valid"][metric.name]}
    if search.sets.valid:
        full = _of_method(search, "full").first().metrics["valid"]
        parts: Folds = []
    else:
        parts = cross_validation(train, search.task, search.config.seed)
        full = _cross_validated(search, parts)
    figures["full"] = full[metric.name]
    better = metric.goodness(full) > metric.goodness(by_vectors.metrics["valid"])
    name = "full" if better else "vectors"
    print()
    say(
        "{metric} by method: {values}. The method is {name}.",
        metric=metric.name,
        values=scores_text(figures),
        name=name,
    )
    return {"name": name, "metric": metric.name, "compared": figures, "folds": len(parts)}


def _of_method(search: "Search", name: Any) -> "Search":
    config = dataclasses.replace(search.config, method=name)
    return dataclasses.replace(search, config=config, prefix=f"{name}-")


def _cross_validated(search: "Search", parts: Folds) -> Any:
    """Metrics of trainings of all weights, each without a fold, for the examples of that fold.

    The best epoch is chosen as usual, on a part of the remaining folds. On the fold itself the
    figures would be too good.
    """
    gold, predictions = [], []
    for number, (rest, fold) in enumerate(parts, 1):
        shares = (search.config.valid_share, 0.0)
        train, valid, _ = split_examples(rest, search.task, shares, search.config.seed)
        sets = dataclasses.replace(search.sets, train=train, valid=valid, test=fold)
        full = _of_method(search, "full")
        # `fitted` is keyed by the id of a list, and a later list may get the id of a freed one.
        part = dataclasses.replace(full, prefix=f"fold-{number}-", sets=sets, fitted={}).first()
        predictions += part.predictions["test"]
        gold += [example.label for example in fold]
    return search.task.metrics.compute(gold, predictions)
