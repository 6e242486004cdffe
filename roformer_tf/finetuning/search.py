"""The trainings of a fine-tuning run: one, or those that seeds, folds and a sweep ask for."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from roformer_tf.errors import DivergedError
from roformer_tf.finetuning.trial import Outcome, Recipe, Start, Trial, run_trial
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Task

SWEEP = (0.5, 1.0, 2.0, 4.0)
"""Multiples of the learning rate that a sweep tries."""


@dataclass(frozen=True)
class Sets:
    """The examples of a run."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]
    folds: list[tuple[list[Example], list[Example]]]
    """Of cross-validation: training examples, and those held out of them."""


@dataclass(frozen=True)
class Search:
    """Which trainings there are, and what they have in common."""

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
        each further seed at the best of them. Raises DivergedError where none comes to an end.
        """
        rate = self.recipe.optimizer.learning_rate
        if self.sets.folds:
            return [self._train(rate, self.seed, number) for number in range(len(self.sets.folds))]
        outcomes = self._sweep() if self.sweep else [self._train(rate, self.seed)]
        best = max(outcomes, key=lambda outcome: outcome.goodness)
        rate = best.trial.recipe.optimizer.learning_rate
        further = range(self.seed + 1, self.seed + self.seeds)
        return outcomes + [self._train(rate, seed) for seed in further]

    def _sweep(self) -> list[Outcome]:
        """Train with each learning rate; one that diverges is said, and left out."""
        outcomes, errors = list[Outcome](), list[DivergedError]()
        for factor in SWEEP:
            rate = self.recipe.optimizer.learning_rate * factor
            try:
                outcomes.append(self._train(rate, self.seed))
            except DivergedError as error:
                print(f"a learning rate of {rate:g} is too high: {error}")
                errors.append(error)
        if not outcomes:
            raise errors[0]
        return outcomes

    def _train(self, learning_rate: float, seed: int, fold: int | None = None) -> Outcome:
        """Do one training."""
        train, valid = self.sets.train, self.sets.valid
        name = f"rate-{learning_rate:g}-seed-{seed}"
        if fold is not None:
            (train, valid), name = self.sets.folds[fold], f"fold-{fold + 1}"
        several = self.sweep or self.seeds > 1 or fold is not None
        if several:
            print(f"\n{name}")
        optimizer = dataclasses.replace(self.recipe.optimizer, learning_rate=learning_rate)
        trial = Trial(
            name=name,
            folder=self.output / "trials" / name if several else self.output,
            seed=seed,
            train=train,
            valid=valid,
            recipe=dataclasses.replace(self.recipe, optimizer=optimizer),
        )
        return run_trial(trial, self.start, self.task, self.sets.test)
