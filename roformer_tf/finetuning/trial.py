"""One training of a fine-tuning run: a checkpoint's encoder → predictions of the best weights.

FOLDER/best/          the best weights so far, as a model folder
FOLDER/checkpoints/   for resuming a killed training; removed when it is finished
FOLDER/held_out.npy   with --method vectors, logits of each fold from the rest
FOLDER/result.json    written when it is finished
FOLDER/metrics.jsonl, evaluations.jsonl, tensorboard/
"""

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from roformer_tf.engines.choice import KERAS, Choice
from roformer_tf.errors import InputError
from roformer_tf.files import read_json, remove, temporary_file, temporary_folder, write_json
from roformer_tf.finetuning.frozen import fit_head
from roformer_tf.finetuning.negatives import with_hard_negatives
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.trainer import InitialState, begin_training
from roformer_tf.inference.opening import open_finetuned, predict_encoded
from roformer_tf.internals import forgetting_gradients
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.labelled.examples import Example, labels_of
from roformer_tf.labelled.paraphrases import ParaphraseBatches
from roformer_tf.labelled.text_sides import SideBatches
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.lexical import LexicalFeatures, choose_lexical
from roformer_tf.tasks.losses import COLUMNS
from roformer_tf.tasks.metrics import Metric, Scores, scores_text
from roformer_tf.tasks.tfidf import FittedTfIdf
from roformer_tf.terminal import say
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.checkpointing import resume, save_checkpoint
from roformer_tf.training.fitting import PeriodicCallback, StepLog, fed, prefetched
from roformer_tf.training.optimizers import ema_weights
from roformer_tf.training.run_files import (
    BEST,
    CHECKPOINTS,
    EVALUATIONS_FILE,
    METRICS_FILE,
    RESULT,
    Track,
    metrics_file,
    read_metrics,
)
from roformer_tf.translation import Message

HELD_OUT = "held_out.npy"
ANEW = "Give another --output to start anew."
# Mean number of examples for each different second text from which it is encoded once for all of
# them. With fewer, the additional indexing costs more than it saves.
OFTEN = 1.25


@dataclass(frozen=True)
class Trial:
    """The settings of one training."""

    # Of its own if there are several trainings: then its name is that of the training.
    folder: Path
    train: Sequence[Example]
    valid: Sequence[Example]
    # The run's, with the learning rate and the seed of this training.
    config: FinetuneConfig
    # On the validation set, the best weights have the best value of it.
    metric: Metric
    # Examples that are trained on a teacher's predictions alone.
    unlabelled: Sequence[Example] = ()
    # With a teacher of labels: its logits for `train` and `unlabelled`.
    soft_targets: Sequence[np.ndarray] = ()
    # Texts → the vectors of the teacher of paraphrases, if there is one.
    teacher: Callable[[Sequence[str]], np.ndarray] | None = None
    # Fitted to `train`, to combine the model with; None if that is not wanted.
    tfidf: FittedTfIdf | None = None
    # Of the method "vectors": for each fold of `train` the rest and its examples.
    folds: Sequence[tuple[Sequence[Example], Sequence[Example]]] = ()
    # Whether `valid` is the examples of these folds, in this order. Their predictions come from a
    # model that was fitted to the rest.
    cross_validated: bool = False


@dataclass(frozen=True)
class TrialResult:
    """The predictions of the best weights of a training, and their figures."""

    trial: Trial
    # By set: "valid" and, if there is one, "test".
    predictions: dict[str, list[Prediction]]
    # By set, then by the metric's name.
    metrics: dict[str, Scores]
    # With what was chosen for its best weights, such as thresholds.
    task: Task
    # Duration of the training, in the process that finished it.
    seconds: float
    # Engine and precision of the predictions.
    choice: Choice = KERAS
    # The predictions of the model alone, and if TF-IDF is combined with it, its weight.
    alone: dict[str, list[Prediction]] = field(default_factory=dict)
    lexical: LexicalFeatures | None = None

    @property
    def goodness(self) -> tuple[float, float]:
        """The validation set's value of the metric, negated where less is better.

        Then that of the model alone: TF-IDF may make different models equal.
        """
        goodness = self.trial.metric.goodness
        combined = goodness(self.metrics["valid"])
        if self.lexical is None:
            return combined, combined
        gold, alone = labels_of(self.trial.valid), self.alone["valid"]
        return combined, goodness(self.task.metrics.compute(gold, alone))


def run_trial(
    trial: Trial, initial: InitialState, task: Task, test: Sequence[Example]
) -> TrialResult:
    """Train, or resume, unless it is finished; then predict validation and test set.

    Predictions have the engine and precision of `predict`, whatever those of training; models of
    vectors use Keras in float32.
    """
    sets = {"valid": trial.valid, "test": test} if test else {"valid": trial.valid}
    encoded = {name: task.labelling.encode(x, initial.tokenizer) for name, x in sets.items()}
    data_id = fingerprint(trial, task, initial.tokenizer)
    path = trial.folder / RESULT
    # The file is written last: if it exists, the training is complete, and not repeated.
    if not path.exists():
        began = time.perf_counter()
        if trial.folds:
            fit_vectors(trial, initial, task)
        else:
            fit(trial, initial, task, data_id, encoded["valid"])
        write_json(path, {"seconds": time.perf_counter() - began, "data": data_id})
    finished = read_json(path, ANEW)
    if finished["data"] != data_id:
        raise InputError(
            f"{trial.folder} holds a training on other examples than these. Give the same data "
            "and settings to continue, or another --output to start anew."
        )
    remove(trial.folder / CHECKPOINTS)  # large, and of no more use
    best = trial.folder / BEST
    # Vectors are not computed in bfloat16, nor by a graph.
    opened = (
        open_finetuned(best, "keras", "float32") if task.separate_texts else open_finetuned(best)
    )
    alone = {name: predict_encoded(opened.model, opened.task, x) for name, x in encoded.items()}
    # The model is fitted to these examples, so their logits are those of the other folds' heads.
    if trial.cross_validated:
        alone["valid"] = task.decoding.predict_all(np.load(trial.folder / HELD_OUT))
    task = opened.task  # with the choices on the validation set
    predictions, tfidf, lexical = alone, trial.tfidf, None
    if tfidf is not None:
        parts, config = (tfidf.model, trial.valid, alone["valid"]), trial.config
        options = config.lexical_features, tfidf.held_out, config.loss.balanced
        lexical = choose_lexical(task, *parts, *options)
        gain = Message("no gain beyond chance")
        if lexical is not None:
            gain = Message("weight {weight:.0%}", weight=lexical.weight)
            held_out = {"valid": tfidf.held_out}
            combined = {
                name: lexical.combined(task, x, alone[name], held_out.get(name))
                for name, x in sets.items()
            }
            task = task.decoding.with_choices(labels_of(trial.valid), combined["valid"])
            predictions = {name: list(map(task.decoding.reread, x)) for name, x in combined.items()}
        say("lexical features: {gain} ({name})", gain=gain, name=tfidf.name)
    return TrialResult(
        trial,
        predictions,
        {name: task.metrics.compute(labels_of(x), predictions[name]) for name, x in sets.items()},
        task,
        finished["seconds"],
        choice=opened.choice,
        alone=alone,
        lexical=lexical,
    )


@dataclass
class _TrialEvents:
    """What happens during a training: evaluations, checkpoints, early stopping."""

    trial: Trial
    task: Task
    valid: EncodedTexts
    data_id: str
    epoch_steps: int
    model: PretrainedModel
    # The model or its wrapper, which is fitted.
    trained: PretrainedModel
    write_scores: Track

    def evaluate(self, step: int) -> None:
        """Evaluate on the validation set, keep the best weights, save a checkpoint."""
        with ema_weights(self.trained):
            metrics = self._metrics()
        epoch = step / self.epoch_steps
        self.write_scores({"step": step, "epoch": epoch} | metrics)
        say("epoch {epoch:g}, validation: {figures}", epoch=epoch, figures=scores_text(metrics))
        self.save(step)
        self.stop_if_done()

    def _metrics(self) -> Scores:
        """Metrics on the validation set. If no earlier ones are better, save the weights."""
        trial = self.trial
        predictions = predict_encoded(self.model, self.task, self.valid)
        chosen, metrics = self.task.metrics.with_choices(labels_of(trial.valid), predictions)
        # Of equal epochs the last is best. On few validation examples many are equal: with 8
        # training examples of each class, the first of them had 28 % on the test set, the last 36.
        if all(trial.metric.goodness(metrics) >= earlier for earlier in self._goodness()):
            keep(trial, self.model, chosen)
        return metrics

    def _goodness(self) -> list[float]:
        lines = read_metrics(self.trial.folder / EVALUATIONS_FILE)
        return [self.trial.metric.goodness(line) for line in lines]

    def save(self, step: int) -> None:
        """Save a checkpoint."""
        folder = self.trial.folder / CHECKPOINTS
        save_checkpoint(folder, step, self.data_id, self.trained, keep=1)

    def save_within_epoch(self, step: int) -> None:
        """Save a checkpoint, except at the end of an epoch: there `evaluate` does it."""
        if step % self.epoch_steps:
            self.save(step)

    def stop_if_done(self) -> bool:
        """Stop the training if none of the last `patience` evaluations was better; 0 for never."""
        goodness, patience = self._goodness(), self.trial.config.patience
        # `argmax` is the first of equal evaluations, so equal ones do not prolong the training.
        since_best = len(goodness) - 1 - int(np.argmax(goodness)) if goodness else 0
        self.trained.stop_training = 0 < patience <= since_best
        return self.trained.stop_training


def keep(trial: Trial, model: PretrainedModel, task: Task) -> None:
    """Write a model and its task as the best of a training."""
    with temporary_folder(trial.folder / BEST) as folder:
        model.save_pretrained(folder, max_length=task.max_length)
        task.save(folder)
        task.decoding.save_files(folder, model.config)


def fit_vectors(trial: Trial, initial: InitialState, task: Task) -> None:
    """Fit the head to the vectors of the frozen encoder; keep the logits of the validation."""
    model = dataclasses.replace(initial, precision="float32").model(task)
    # By identity, because several examples may be equal.
    numbers = {id(example): number for number, example in enumerate(trial.train)}
    folds = [np.array([numbers[id(example)] for example in fold]) for _, fold in trial.folds]
    held_out = fit_head(
        model,
        task.labelling.encode(trial.train, initial.tokenizer),
        np.array([task.labelling.target(example) for example in trial.train]),
        folds,
    )
    keep(trial, model, task)
    with temporary_file(trial.folder / HELD_OUT) as new, new.open("wb") as file:
        np.save(file, held_out[np.concatenate(folds)])  # in the order of the validation set
    for name in (METRICS_FILE, EVALUATIONS_FILE):  # there are no steps
        (trial.folder / name).write_text("")


@forgetting_gradients()
def fit(trial: Trial, initial: InitialState, task: Task, data_id: str, valid: EncodedTexts) -> None:
    """Train from the last checkpoint to the end, and keep the best weights so far."""
    config, folder = trial.config, trial.folder
    examples = [*trial.train, *trial.unlabelled]
    data = task.labelling.training_data(examples, initial.tokenizer)
    if trial.soft_targets:
        data = task.labelling.with_soft_targets(data, trial.soft_targets, len(trial.train))
    epoch_steps = data.steps_per_epoch(config.batch_size)
    steps = int(config.epochs) * epoch_steps
    model, trained = begin_training(initial, task, config, trial.train, steps)
    # Hard negatives come from the weights that the training starts with, so that a resumed
    # training has the same: before a checkpoint is restored.
    data = complete_data(data, model, trial)
    start, _ = resume(folder / CHECKPOINTS, trained, data_id)
    with (
        metrics_file(folder / METRICS_FILE, resumed_at=start, board="training") as write_line,
        metrics_file(folder / EVALUATIONS_FILE, resumed_at=start, board="valid") as write_scores,
        StepLog(
            write_line,
            every=config.log_every,
            tokens_per_step=data.tokens_per_step(config.batch_size, config.seed),
            uniform_loss=math.inf,  # a batch of rare labels or extreme numbers may be high
            name="fine-tuning",
            start=start,
            last=steps,
        ) as log,
    ):
        events = _TrialEvents(
            trial, task, valid, data_id, epoch_steps, model, trained, write_scores
        )
        # A training that was killed right after its last evaluation has nothing left to do.
        if start >= steps or events.stop_if_done():
            return
        if not (start or task.objective.trains_new_head):
            # Without a new head the model predicts before any training, and may stay the best.
            events.evaluate(0)
        repeat = 2 if config.loss.r_drop else 1  # R-Drop needs each sequence twice
        batches = data.batches(config.batch_size, config.seed, repeat)
        trained.fit(
            fed(prefetched(batches[start:]), data.varying),
            # For Keras, the rest of the training is one epoch; `evaluate` ends each of ours.
            steps_per_epoch=steps - start,
            shuffle=False,  # the batches are shuffled already
            callbacks=[
                log,
                PeriodicCallback(events.evaluate, every=epoch_steps, log=log),
                PeriodicCallback(events.save_within_epoch, every=config.save_every, log=log),
            ],
            verbose=0,
        )


def complete_data(data: TrainingData, model: PretrainedModel, trial: Trial) -> TrainingData:
    """The data with hard negatives of the model or vectors of a teacher, if configured."""
    vectors = trial.config.vectors
    if isinstance(data, SideBatches) and data.positives and vectors.micro_batches == 1:
        # Examples of different micro-batches could not share the encoding of a text.
        data = dataclasses.replace(data, shared=data.repeats >= OFTEN)
    if vectors.hard_negatives and isinstance(data, SideBatches):
        return with_hard_negatives(data, model, vectors.hard_negatives)
    if trial.teacher and isinstance(data, ParaphraseBatches):
        data.teacher = trial.teacher(data.spelled)
    return data


def fingerprint(trial: Trial, task: Task, tokenizer: RoFormerTokenizer) -> str:
    """A hash of the data of a training, by which a resumed one recognizes it."""
    digest = hashlib.sha256(tokenizer.vocabulary_text().encode())
    # The validation examples have chosen the best weights so far, so they belong to a training.
    for examples in (trial.train, trial.unlabelled, trial.valid):
        for example in examples:
            target = task.labelling.target(example).tolist()
            content = repr((example.texts, example.units, target))
            digest.update(content.encode(errors="backslashreplace"))
        # An example that moves to another set changes the hash.
        digest.update(b"|")
    if trial.config.loss.teacher == COLUMNS:  # a model may compute other last digits elsewhere
        digest.update(np.array(trial.soft_targets).tobytes())
    return digest.hexdigest()
