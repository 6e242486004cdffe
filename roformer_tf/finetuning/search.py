"""The trainings of a fine-tuning run: one, or those that seeds, folds and a sweep ask for."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from roformer_tf.errors import DivergedError
from roformer_tf.finetuning.trainer import Start, Trainer
from roformer_tf.finetuning.trial import Outcome, Recipe, Trial, run_trial
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Task
from roformer_tf.training.run_files import TRIALS

SWEEP = (0.5, 1.0, 2.0, 4.0)
"""Multiples of the learning rate that a sweep tries."""


@dataclass(frozen=True)
class Sets:
    """The examples of a run."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]
    folds: list[tuple[list[Example], list[Example]]]
    """For cross-validation: training examples, and those held out."""


@dataclass(frozen=True)
class Search:
    """The trainings of a run, and what they have in common."""

    output: Path
    sets: Sets
    start: Start
    task: Task
    recipe: Recipe
    seed: int
    seeds: int
    sweep: bool

    def run(self) -> list[Outcome]:
        """Do all trainings, each in a folder of its own if there are several.

        With folds one for each, without it. Else with each learning rate of the sweep, then with
        each further seed at the best of them. Raises DivergedError where all diverge.
        """
        if self.sets.folds:
            return [self._fold(number) for number in range(len(self.sets.folds))]
        trainer = self._trainer(self.sets.train)
        rate = self._rate
        outcomes = self._sweep(rate, trainer) if self.sweep else [self._seed(rate, 0, trainer)]
        best = max(outcomes, key=lambda outcome: outcome.goodness)
        rate = float(best.trial.recipe.optimizer.learning_rate)  # a number in every trial
        return outcomes + [self._seed(rate, further, trainer) for further in range(1, self.seeds)]

    def _trainer(self, train: list[Example]) -> Trainer:
        return Trainer(self.start, self.task, self.recipe.loss, train, self.recipe.vectors.pieces)

    def _fold(self, number: int) -> Outcome:
        """Train without a fold, which is then its validation set."""
        train, valid = self.sets.folds[number]
        name = f"fold-{number + 1}"
        print(f"\n{name}")
        return self._train(name, self._rate, self.seed, self._trainer(train), train, valid)

    @property
    def _rate(self) -> float:
        return float(self.recipe.optimizer.learning_rate)

    def _sweep(self, middle: float, trainer: Trainer) -> list[Outcome]:
        """Train with each learning rate; one that diverges is reported and skipped."""
        outcomes, errors = list[Outcome](), list[DivergedError]()
        for factor in SWEEP:
            rate = middle * factor
            try:
                outcomes.append(self._seed(rate, 0, trainer))
            except DivergedError as error:
                trainer.forget()
                print(f"a learning rate of {rate:g} is too high: {error}")
                errors.append(error)
        if not outcomes:
            raise errors[0]
        return outcomes

    def _seed(self, rate: float, further: int, trainer: Trainer) -> Outcome:
        """Train with one of the seeds, the first of which is number 0."""
        seed = self.seed + further
        name = f"rate-{rate:g}-seed-{seed}" if self.sweep or self.seeds > 1 else ""
        if name:
            print(f"\n{name}")
        return self._train(name, rate, seed, trainer, self.sets.train, self.sets.valid)

    def _train(
        self,
        name: str,
        rate: float,
        seed: int,
        trainer: Trainer,
        train: list[Example],
        valid: list[Example],
    ) -> Outcome:
        """Do one training, of a name and a folder of its own if there are several."""
        optimizer = dataclasses.replace(self.recipe.optimizer, learning_rate=rate)
        trial = Trial(
            name=name or f"rate-{rate:g}-seed-{seed}",
            folder=self.output / TRIALS / name if name else self.output,
            seed=seed,
            train=train,
            valid=valid,
            recipe=dataclasses.replace(self.recipe, optimizer=optimizer),
        )
        return run_trial(trial, trainer, self.task, self.sets.test)
