"""The trainings of a fine-tuning run: one, or those that seeds, folds and a sweep ask for."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from roformer_tf.errors import DivergedError, InputError
from roformer_tf.finetuning.frozen import Folds, cross_validation
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.teacher import teacher_predictions
from roformer_tf.finetuning.trainer import InitialState
from roformer_tf.finetuning.trial import Trial, TrialResult, run_trial
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.tfidf import FittedTfIdf, fit_tfidf
from roformer_tf.terminal import Progress, say
from roformer_tf.training.run_files import TRIALS
from roformer_tf.translation import Message

# Factors on the learning rate in a sweep. The default is first: it is chosen among equal ones.
SWEEP = (1.0, 0.5, 2.0, 4.0)

Change: TypeAlias = Callable[[Sequence[Example]], list[Example]]


@dataclass(frozen=True)
class Sets:
    """The examples of a run."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]
    # For cross-validation: training examples, and the rest.
    folds: list[tuple[list[Example], list[Example]]]
    # With a teacher: examples without a label of the data.
    unlabelled: list[Example] = field(default_factory=list)

    def mapped(self, training: Change, evaluated: Change) -> "Sets":
        """The sets with changed examples: those of trainings, and those of evaluations."""
        return dataclasses.replace(
            self,
            train=training(self.train),
            valid=evaluated(self.valid),
            test=evaluated(self.test),
            folds=[(training(train), evaluated(valid)) for train, valid in self.folds],
        )


@dataclass(frozen=True)
class Search:
    """The trainings of a run, and what they have in common."""

    # With numbers for the learning rate and the epochs, not "auto".
    config: FinetuneConfig
    sets: Sets
    initial: InitialState
    task: Task
    # On the validation set, the best weights have the best value of it.
    metric: Metric
    # By the `id` of a training set, which all seeds have in common.
    fitted: dict[int, FittedTfIdf | None] = field(default_factory=dict)
    # The predictions of a teacher, by the `id` of an example of any set.
    taught: Mapping[int, Prediction] = field(default_factory=dict)
    # Before the name of each training, if searches that differ in `initial` are compared.
    prefix: str = ""
    # How the method was chosen: see `method.with_method`.
    method: Mapping[str, Any] = field(default_factory=dict)

    def with_teacher(self) -> "Search":
        """The same with the teacher's predictions of all examples; see `teacher_predictions`."""
        labelled = [*self.sets.train, *self.sets.valid, *self.sets.test]
        # Folds may have examples of their own: in reranking, a query has other documents there.
        labelled += [example for fold in self.sets.folds for part in fold for example in part]
        # Folds have mostly the examples of the training set: each is predicted once.
        labelled = list({id(example): example for example in labelled}.values())
        examples = [*labelled, *self.sets.unlabelled]
        predictions = teacher_predictions(self.config, self.task, examples)
        # Training data have labels, even where these do not count.
        unlabelled = [
            example._replace(label=None if prediction is None else prediction.label)
            for example, prediction in zip(examples, predictions, strict=True)
        ][len(labelled) :]
        known = zip([*labelled, *unlabelled], predictions, strict=True)
        return dataclasses.replace(
            self,
            sets=dataclasses.replace(self.sets, unlabelled=unlabelled),
            taught={id(example): x for example, x in known if x is not None},
        )

    def without_teacher(self) -> "Search":
        """The same trainings on the labels alone, in folders of their own."""
        loss = dataclasses.replace(self.config.loss, teacher=None)
        config = dataclasses.replace(
            self.config, loss=loss, unlabelled=(), compare_without_teacher=False
        )
        sets = dataclasses.replace(self.sets, unlabelled=[])
        prefix = f"{self.prefix}without-teacher-"
        return dataclasses.replace(self, config=config, sets=sets, taught={}, prefix=prefix)

    def first(self) -> TrialResult:
        """The first training; `run` does not repeat it if there are several or a prefix."""
        return self._train_seed(self._rate, 0)

    def run(self) -> list[TrialResult]:
        """Do all trainings, each in a folder of its own if there are several.

        With folds: one for each, without it. Otherwise: one with each learning rate of the sweep,
        then one with each further seed at the best rate. Raises DivergedError if all diverge.
        """
        if self.sets.folds:
            return [self._train_without(number) for number in range(len(self.sets.folds))]
        results = self._sweep() if self.config.sweep else [self.first()]
        # Seeds are compared at one rate. It is chosen on the validation set, never on the test set.
        best = max(results, key=lambda result: result.goodness)
        rate = float(best.trial.config.optimizer.learning_rate)
        further = range(1, self.config.seeds)
        return results + [self._train_seed(rate, number) for number in further]

    @property
    def output(self) -> Path:
        """The run's folder."""
        return Path(self.config.output)

    @property
    def _rate(self) -> float:
        return float(self.config.optimizer.learning_rate)

    def _train_without(self, number: int) -> TrialResult:
        """Train without a fold, which is then the validation set."""
        train, valid = self.sets.folds[number]
        sets = dataclasses.replace(self.sets, train=train, valid=valid)
        search = dataclasses.replace(self, sets=sets)
        return search._train(f"{self.prefix}fold-{number + 1}", self._rate, self.config.seed)

    def _sweep(self) -> list[TrialResult]:
        """Train with each learning rate; one that diverges is reported and skipped."""
        results, errors = list[TrialResult](), list[DivergedError]()
        for rate in (self._rate * factor for factor in SWEEP):
            try:
                results.append(self._train_seed(rate, 0))
            except DivergedError as error:
                say("a learning rate of {rate:g} is too high: {error}", rate=rate, error=error)
                errors.append(error)
        if not results:
            raise errors[0]
        return results

    def _train_seed(self, rate: float, number: int) -> TrialResult:
        """Train with one of the seeds; number 0 is the first."""
        seed = self.config.seed + number
        several = self.config.sweep or self.config.seeds > 1 or self.prefix
        name = f"{self.prefix}rate-{rate:g}-seed-{seed}" if several else ""
        return self._train(name, rate, seed)

    def _train(self, name: str, rate: float, seed: int) -> TrialResult:
        """Do one training; if there are several, it has a name and a folder of its own."""
        if name:
            print(f"\n{name}")
        optimizer = dataclasses.replace(self.config.optimizer, learning_rate=rate)
        train = self.sets.train
        parts: Folds = []
        if self.config.method == "vectors":
            parts = cross_validation(train, self.task, self.config.seed)
        # Without a validation set, each fold is validated by a head that was fitted to the others.
        valid_folds = [] if self.sets.valid else parts
        valid = self.sets.valid or [example for _, fold in valid_folds for example in fold]
        source, unlabelled = self.config.loss.teacher, self.sets.unlabelled
        examples = [*train, *unlabelled] if self.taught else []
        trial = Trial(
            folder=self.output / TRIALS / name if name else self.output,
            train=train,
            valid=valid,
            config=dataclasses.replace(self.config, optimizer=optimizer, seed=seed),
            metric=self.metric,
            unlabelled=unlabelled,
            soft_targets=[self.task.decoding.soft_targets(self.taught[id(x)]) for x in examples],
            teacher=partial(teacher_vectors, source) if source else None,
            tfidf=self._tfidf(train, valid, valid_folds),
            folds=parts,
            cross_validated=bool(valid_folds),
        )
        return run_trial(trial, self.initial, self.task, self.sets.test)

    def _tfidf(
        self, train: list[Example], valid: list[Example], folds: Folds
    ) -> FittedTfIdf | None:
        """TF-IDF to combine a model with; None if that is not wanted, or for "auto" fails."""
        wanted = self.config.lexical_features
        automatic = wanted == "auto" and self.config.baseline and not self.config.export
        if not self.task.metrics.linear_model or not (wanted == "yes" or automatic):
            return None
        if id(train) not in self.fitted:
            options = self.metric, folds, self.config.loss.balanced
            try:
                self.fitted[id(train)] = fit_tfidf(self.task, train, valid, *options)
            except Exception as error:  # scikit-learn, SciPy and NumPy raise many kinds
                if wanted == "yes":
                    raise InputError(f"--lexical-features yes is not possible: {error}.") from error
                self.fitted[id(train)] = None  # the report's baseline gives the reason
        return self.fitted[id(train)]


def teacher_vectors(source: str, texts: Sequence[str]) -> np.ndarray:
    """Vectors (texts, H) of a model of any kind. Raises InputError for one without vectors."""
    embedder = VectorSettings().open(source)
    say("the teacher is {described}", described=embedder.described)
    return embedder.embed(Progress(texts, desc=Message("teacher"), unit=Message("texts")))
