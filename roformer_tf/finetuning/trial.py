"""One training of a fine-tuning run: a checkpoint's encoder → the predictions of the best weights.

FOLDER/best/          the best weights so far, as a model folder
FOLDER/valid.json     fingerprint of the validation examples
FOLDER/checkpoints/   for continuing a killed training; removed when it is finished
FOLDER/result.json    written when it is finished
FOLDER/metrics.jsonl, evaluations.jsonl, tensorboard/
"""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from roformer_tf.engines.choice import Choice
from roformer_tf.errors import InputError
from roformer_tf.files import folder_beside, read_json, remove, write_text
from roformer_tf.finetuning.negatives import with_hard_negatives
from roformer_tf.finetuning.settings import VectorConfig
from roformer_tf.finetuning.teacher import with_teacher
from roformer_tf.finetuning.trainer import Start, Trainer
from roformer_tf.inference.opening import open_finetuned, predict_encoded
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.labelled.paraphrases import ParaphraseBatches
from roformer_tf.labelled.text_sides import SideBatches
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.metrics import Metric, Scores, score_text
from roformer_tf.tasks.table import load_task
from roformer_tf.training.callbacks import MetricsFile, PeriodicCallback, StepLog
from roformer_tf.training.checkpointing import RunState, checkpoints, resume, save_checkpoint
from roformer_tf.training.feeding import fed, prefetched
from roformer_tf.training.optimizers.adamw import ema_weights
from roformer_tf.training.optimizers.settings import FinetuneOptimizerConfig
from roformer_tf.training.run_files import (
    BEST,
    CHECKPOINTS,
    EVALUATIONS_FILE,
    METRICS_FILE,
    RESULT,
    read_metrics,
)

VALID = "valid.json"
ANEW = "Give another --output to start anew."
OFTEN = 1.25
"""Examples for each different second text, on average, from which it is encoded once for all of
them: below, the bookkeeping costs more than it saves."""


@dataclass(frozen=True)
class Recipe:
    """Settings that all trainings of a run have in common."""

    optimizer: FinetuneOptimizerConfig
    loss: LossConfig
    metric: Metric
    """Figure on the validation set by which the best weights are chosen."""
    epochs: int
    batch_size: int
    patience: int
    """Epochs without a better figure after which to stop; 0, never early."""
    save_every: int
    log_every: int
    vectors: VectorConfig = dataclasses.field(default_factory=VectorConfig)


@dataclass(frozen=True)
class Trial:
    """The settings of one training."""

    name: str
    folder: Path
    seed: int
    train: Sequence[Example]
    valid: Sequence[Example]
    recipe: Recipe


class Training(NamedTuple):
    """The data of a training, and their fingerprint."""

    data: TrainingData
    fingerprint: str


@dataclass(frozen=True)
class Outcome:
    """The result of a training: the predictions of its best weights, and their figures."""

    trial: Trial
    predictions: dict[str, list[Prediction]]
    """By set: "valid" and, if there is one, "test"."""
    metrics: dict[str, Scores]
    """By set, each by its name."""
    task: Task
    """With what was chosen for its best weights, such as thresholds."""
    seconds: float
    """Duration of the training, in the process that finished it."""
    choice: Choice = Choice("keras", "float32")  # noqa: RUF009 (it is frozen)
    """Engine and precision of the predictions."""

    @property
    def goodness(self) -> float:
        """The validation set's figure, negated where less is better."""
        return self.trial.recipe.metric.goodness(self.metrics["valid"])


def run_trial(trial: Trial, trainer: Trainer, task: Task, test: Sequence[Example]) -> Outcome:
    """Train, or continue, unless it is finished; then predict validation and test set.

    Predictions have the engine and precision of `predict`, whatever those of training; models of
    vectors use Keras in float32.
    """
    start = trainer.start
    sets = {"valid": trial.valid, "test": test} if test else {"valid": trial.valid}
    encoded = {name: task.labelling.encode(x, start.tokenizer) for name, x in sets.items()}
    training = task.labelling.training_data(trial.train, start.tokenizer)
    data = fingerprint(training.fingerprinted())
    _check_valid(trial, encoded["valid"], task)
    result = trial.folder / RESULT
    if not result.exists():
        began = time.perf_counter()
        fit(trial, trainer, task, Training(training, data), encoded["valid"])
        done = {"seconds": time.perf_counter() - began, "data": data}
        write_text(result, json.dumps(done) + "\n")
    done = read_json(result, ANEW)
    if done["data"] != data:
        raise InputError(
            f"{trial.folder} holds a training on other examples than these. Give the same data "
            "and settings to continue, or another --output to start anew."
        )
    remove(trial.folder / CHECKPOINTS)  # large, and of no more use
    model, chosen, choice = _for_judging(start, task, trial.folder / BEST)
    predictions = {name: predict_encoded(model, chosen, x) for name, x in encoded.items()}
    task = task.decoding.with_choices_of(chosen)
    return Outcome(
        trial,
        predictions,
        {name: task.metrics.compute(labels_of(x), predictions[name]) for name, x in sets.items()},
        task,
        done["seconds"],
        choice=choice,
    )


def _for_judging(start: Start, task: Task, folder: Path) -> tuple[Any, Task, Choice]:
    """The model of a folder as `predict` opens it, and the task with its choices."""
    if not (task.texts_apart or task.writes):
        found = open_finetuned(folder)
        if found.choice.engine != "keras":
            return found.model, found.task, found.choice
    model = dataclasses.replace(start, precision="float32").model(task)
    model.load_pretrained(folder)
    return model, task.decoding.with_choices_of(load_task(folder)), Choice("keras", "float32")


def fit(
    trial: Trial, trainer: Trainer, task: Task, training: Training, valid: EncodedTexts
) -> None:
    """Train from the last checkpoint to the end, and keep the best weights so far."""
    recipe, folder = trial.recipe, trial.folder
    an_epoch = training.data.steps_per_epoch(recipe.batch_size)
    steps = recipe.epochs * an_epoch
    model, trained = trainer.begin(trial.seed, recipe.optimizer, steps)
    # Hard negatives come from the weights that the training starts with, so that a continued
    # training has the same: before a checkpoint is restored.
    data = complete_data(training, model, recipe.vectors, folder)
    begun, _ = resume(folder / CHECKPOINTS, trained, training.fingerprint)
    span: dict[str, Any] = {"start": begun, "last": steps}
    board = folder / "tensorboard"
    with (
        MetricsFile(
            folder / METRICS_FILE, resumed_at=begun, tensorboard=board / "training"
        ) as lines,
        MetricsFile(
            folder / EVALUATIONS_FILE, resumed_at=begun, tensorboard=board / "valid"
        ) as judged,
        StepLog(
            lines,
            every=recipe.log_every,
            tokens_per_step=round(recipe.batch_size * data.tokens_each),
            uniform_loss=math.inf,  # a batch of rare labels or extreme numbers may be high
            name="fine-tuning",
            **span,
        ) as log,
    ):

        def judge(step: int) -> None:
            before = read_metrics(judged.path)
            gold = labels_of(trial.valid)
            with ema_weights(trained):
                chosen, metrics = compare(task, gold, predict_encoded(model, task, valid))
                if _is_best(metrics, before, recipe.metric):
                    _keep(model, chosen, folder / BEST)
            judged.write({"step": step, "epoch": step / an_epoch} | metrics)
            figures = ", ".join(f"{name} {score_text(value)}" for name, value in metrics.items())
            log.say(f"epoch {step / an_epoch:g}: {figures}")
            save(step)
            stop_if_done()

        def save(step: int) -> None:
            save_checkpoint(
                folder / CHECKPOINTS, RunState(step, training.fingerprint), trained, keep=1
            )

        def save_within_epoch(step: int) -> None:
            if step % an_epoch:  # at its end, it is saved after the evaluation
                save(step)

        def stop_if_done() -> bool:
            trained.stop_training = _is_exhausted(judged.path, recipe)
            return trained.stop_training

        if begun >= steps or stop_if_done():
            return
        trained.fit(
            fed(prefetched(training_batches(data, recipe, trial.seed)[begun:]), data.varying),
            steps_per_epoch=steps - begun,
            shuffle=False,  # the batches are shuffled already
            callbacks=[
                log,
                PeriodicCallback(judge, every=an_epoch, log=log, **span),
                PeriodicCallback(save_within_epoch, every=recipe.save_every, log=log, **span),
            ],
            verbose=0,
        )


def complete_data(
    training: Training, model: PretrainedModel, vectors: VectorConfig, folder: Path
) -> TrainingData:
    """The data with hard negatives of the model or vectors of a teacher, if configured."""
    data, mark = training
    if isinstance(data, SideBatches) and data.positives and vectors.pieces == 1:
        data = dataclasses.replace(data, shared=data.repeats >= OFTEN)
    if vectors.hard_negatives and isinstance(data, SideBatches):
        return with_hard_negatives(data, model, vectors.hard_negatives, folder, mark)
    if vectors.teacher and isinstance(data, ParaphraseBatches):
        return with_teacher(data, vectors.teacher, folder, mark)
    return data


def training_batches(data: TrainingData, recipe: Recipe, seed: int) -> Any:
    """The batches of all epochs; R-Drop needs each row twice."""
    return data.batches(recipe.batch_size, seed, repeat=2 if recipe.loss.r_drop else 1)


def compare(
    task: Task, gold: Sequence[Label], answers: Sequence[Prediction]
) -> tuple[Task, Scores]:
    """The task with its choices on these examples, such as thresholds, and its metrics then."""
    chosen = task.decoding.with_choices(gold, answers)
    predictions = [chosen.decoding.reread(answer) for answer in answers]
    return chosen, chosen.metrics.compute(gold, predictions)


def _check_valid(trial: Trial, valid: EncodedTexts, task: Task) -> None:
    """Raise InputError where weights were chosen by other validation examples than these."""
    found = fingerprint(
        [*valid.token_ids, *(task.labelling.target(example) for example in trial.valid)]
    )
    known = trial.folder / VALID
    begun = (trial.folder / RESULT).exists() or any(checkpoints(trial.folder / CHECKPOINTS))
    if not (begun and known.exists()):
        write_text(known, json.dumps({"fingerprint": found}) + "\n")
    elif read_json(known, ANEW)["fingerprint"] != found:
        raise InputError(
            f"{trial.folder} holds a training whose best weights were chosen by other validation "
            "examples than these. Give the same --valid to continue, or another --output to start "
            "anew."
        )


def _is_best(metrics: Scores, before: Sequence[Scores], metric: Metric) -> bool:
    """Whether the metrics are better than all before; of equal ones the earlier is best."""
    return all(metric.goodness(metrics) > metric.goodness(line) for line in before)


def _is_exhausted(evaluations: Path, recipe: Recipe) -> bool:
    """Whether none of the last `patience` evaluations was better."""
    figures = [recipe.metric.goodness(line) for line in read_metrics(evaluations)]
    if not recipe.patience or len(figures) <= recipe.patience:
        return False
    return len(figures) - 1 - int(np.argmax(figures)) >= recipe.patience


def _keep(model: PretrainedModel, task: Task, folder: Path) -> None:
    """Write a fine-tuned model's folder."""
    with folder_beside(folder) as beside:
        model.save_pretrained(beside, max_length=task.max_length)
        task.save(beside)
        task.decoding.save_files(beside, model.config)


def labels_of(examples: Sequence[Example]) -> list[Label]:
    """The labels in the data."""
    return [example.label for example in examples if example.label is not None]  # all have one


def fingerprint(arrays: Iterable[np.ndarray]) -> str:
    """Of what is trained on."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes() + b"|")
    return digest.hexdigest()
