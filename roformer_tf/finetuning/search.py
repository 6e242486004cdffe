"""The trainings of a fine-tuning run: one, or those that seeds, folds and a sweep ask for."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from roformer_tf.errors import DivergedError, InputError
from roformer_tf.finetuning.learning_rate import RateSearch
from roformer_tf.finetuning.rates import FoundRate, spelled, usual_rate
from roformer_tf.finetuning.trainer import Start, Trainer
from roformer_tf.finetuning.trial import Outcome, Recipe, Trial, run_trial
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import split_examples
from roformer_tf.runs.run_files import TRIALS
from roformer_tf.tasks.base import Task

SWEEP = (0.5, 1.0, 2.0, 4.0)
"""Multiples of the learning rate that a sweep tries."""
REASONS = {
    "few-steps": "the steps are too few to try others",
    "sweep": "the sweep goes around it",
}
"""Why no other rate is tried before."""
INNER_VALID = 0.1
"""Fraction of a fold's training examples for the choice of its learning rate."""


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
        rate = self.recipe.optimizer.learning_rate
        found = None
        if isinstance(rate, str):  # "auto"
            found = self._usual("sweep") if self.sweep else self._find(trainer)
            rate = found.learning_rate
        outcomes = self._sweep(rate, trainer) if self.sweep else [self._seed(rate, 0, trainer)]
        best = max(outcomes, key=lambda outcome: outcome.goodness)
        rate = float(best.trial.recipe.optimizer.learning_rate)  # a number in every trial
        outcomes += [self._seed(rate, further, trainer) for further in range(1, self.seeds)]
        return [dataclasses.replace(outcome, found_rate=found) for outcome in outcomes]

    def _trainer(self, train: list[Example]) -> Trainer:
        return Trainer(self.start, self.task, self.recipe.loss, train, self.recipe.vectors.pieces)

    def _usual(self, reason: str) -> FoundRate:
        """The learning rate by the model's size, and why no other is tried."""
        rate = usual_rate(self.start.architecture, from_scratch=not self.start.weights)
        print(f"learning rate {spelled(rate)}, by the model's size: {REASONS[reason]}")
        return FoundRate(rate, rate, reason)

    def _find(self, trainer: Trainer) -> FoundRate:
        """Search the learning rate of all seeds once."""
        return self._search(self.output, trainer, self.sets.train, self.sets.valid)

    def _search(
        self, folder: Path, trainer: Trainer, train: list[Example], valid: list[Example]
    ) -> FoundRate:
        search = RateSearch(folder, trainer, self.task, self.recipe, train, valid, self.seed)
        return search.run() or self._usual("few-steps")

    def _fold(self, number: int) -> Outcome:
        """Train without a fold; the choice of the learning rate does not see it either."""
        train, valid = self.sets.folds[number]
        name, trainer = f"fold-{number + 1}", self._trainer(train)
        rate = self.recipe.optimizer.learning_rate
        print(f"\n{name}")
        found = None
        if isinstance(rate, str):  # "auto"
            try:
                inner, judged_by, _ = split_examples(
                    train, type(self.task), (INNER_VALID, 0.0), self.seed
                )
            except InputError:  # too few to hold some out
                found = self._usual("few-steps")
            else:
                folder = self.output / TRIALS / name
                found = self._search(folder, trainer, inner, judged_by)
            rate = found.learning_rate
        outcome = self._train(name, rate, self.seed, trainer, train, valid)
        return dataclasses.replace(outcome, found_rate=found)

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
