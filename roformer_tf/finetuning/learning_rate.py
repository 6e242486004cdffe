"""The learning rate of who gives none: by the model's size, and by short trainings around that.

FOLDER/search.json   what each of them gave; killed, a search goes on behind the last one
"""

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roformer_tf.errors import DivergedError, InputError
from roformer_tf.files import read_json, write_text
from roformer_tf.finetuning.rates import FoundRate, beside, spelled, usual_rate
from roformer_tf.finetuning.trainer import Trainer
from roformer_tf.finetuning.trial import (
    Recipe,
    Training,
    compare,
    complete_data,
    fingerprint,
    labels_of,
    training_batches,
)
from roformer_tf.labelled.batches import TrainingData
from roformer_tf.labelled.encoding import Rows
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import BATCH_SIZE
from roformer_tf.runs.callbacks import MetricsFile, StepLog
from roformer_tf.runs.ema import ema_weights
from roformer_tf.runs.feeding import fed, prefetched
from roformer_tf.runs.optimizers.settings import FinetuneOptimizerConfig
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.metrics import Metric, score_text
from roformer_tf.tokenizers.padding import padded

FILE = "search.json"
SHARE = 0.22
"""Of the training's batches that a search takes: a little below a quarter."""
RESTART, FORWARD = 5, 0.45
"""Measured in batches trained on: making a model anew and beginning to train it, and judging a
batch (docs/LOG.md)."""
JUDGED = 0.25
"""Of a short training's time that judging it may take."""
FEWEST, MOST = 12, 500
"""Steps and batches of a short training: with fewer steps it tells little, more tell no more."""
CERTAIN = 2.0
"""Standard errors by which another rate must be better than the usual one to be taken."""


@dataclass(frozen=True)
class Plan:
    """What a search does."""

    rates: tuple[float, ...]
    """In rising order."""
    batches: int
    """Of each short training."""
    examples: int
    """Of the validation set, by which they are judged."""


def make_plan(
    usual: float, recipe: Recipe, train_rows: int, valid_rows: int, valid_examples: int
) -> Plan | None:
    """What a search may take of the training that follows; None where that is too little.

    Of a short one the higher rate is left out: to err there is graver. It goes by numbers of
    batches, not by the clock, so that the same command does the same.
    """
    epochs = min(recipe.epochs, recipe.patience + 1) if recipe.patience else recipe.epochs
    batches = epochs * -(-train_rows // recipe.batch_size)  # at least
    lower, higher = beside(usual, up=False), beside(usual, up=True)
    for rates in ((lower, usual, higher), (lower, usual)):
        each = SHARE * batches / len(rates)
        share = min(1.0, JUDGED * each * recipe.batch_size / FORWARD / valid_rows)
        examples = int(share * valid_examples)
        judging = FORWARD * examples / valid_examples * valid_rows / recipe.batch_size
        accumulate = recipe.optimizer.accumulate
        steps = int(min(MOST, each - judging - RESTART) / accumulate)
        if steps >= FEWEST and examples:
            return Plan(rates, steps * accumulate, examples)
    return None


@dataclass(frozen=True)
class RateSearch:
    """Finds the learning rate of trainings on one set of examples."""

    folder: Path
    trainer: Trainer
    task: Task
    recipe: Recipe
    train: Sequence[Example]
    valid: Sequence[Example]
    seed: int

    def run(self) -> FoundRate | None:
        """Try the usual rate and those beside it, each on a short training with its whole schedule.

        They begin alike and get the same batches, and the same validation examples judge them by
        the loss, which is finer than any metric of a few hundred examples. Another rate than the
        usual one is taken where that is lower by more than chance, and the metric no worse. A
        search that is done already is
        only read. None where the training is too short for any. Raises DivergedError where every
        rate diverges, and InputError where the folder holds a search on other examples.
        """
        start = self.trainer.start
        usual = usual_rate(start.architecture, from_scratch=not start.weights)
        data = self.task.labelling.training_data(self.train, start.tokenizer)
        judged = self.task.labelling.encode(self.valid, start.tokenizer)
        # What batches count: examples whose texts are apart, else rows.
        rows = judged.examples if self.task.texts_apart else len(judged.token_ids)
        plan = make_plan(usual, self.recipe, data.steps_per_epoch(1), rows, len(self.valid))
        return _Tries(self, plan, usual, data).run() if plan else None


class _Tries:
    """The short trainings of a search."""

    def __init__(self, search: RateSearch, plan: Plan, usual: float, data: TrainingData) -> None:
        self.search, self.plan, self.usual = search, plan, usual
        self.trainer, self.task, self.recipe = search.trainer, search.task, search.recipe
        self.data = data
        chosen = np.random.default_rng(search.seed).permutation(len(search.valid))[: plan.examples]
        self.judged_by = [search.valid[number] for number in sorted(chosen.tolist())]
        self.valid = self.task.labelling.encode(self.judged_by, self.trainer.start.tokenizer)
        self.path = search.folder / FILE

    def run(self) -> FoundRate:
        """Do those that are not done yet; give the rate to take."""
        plan, known = self.plan, self._known()
        an_epoch = self.data.steps_per_epoch(self.recipe.batch_size)
        of = self.recipe.epochs * an_epoch
        tried = list(known["tried"])
        if "learning_rate" not in known:
            print(
                f"learning rate: trying {', '.join(map(spelled, plan.rates))}, each for "
                f"{plan.batches:,} of {of:,} batches, judged by {plan.examples:,} examples"
            )
            before = len(tried)
            for rate in plan.rates[before:]:
                tried.append(self._try(rate))
                self._write(known | {"tried": tried})
                print(self._told(tried[-1]))
            self._share_compiling(tried[before:])
            known |= {
                "tried": tried,
                "learning_rate": choose(tried, self.usual, self.recipe.metric),
            }
            self._write(known)
        rate = known["learning_rate"]
        print(f"learning rate {spelled(rate)}")
        return FoundRate(
            rate,
            self.usual,
            batches=plan.batches,
            of=of,
            examples=plan.examples,
            tried=tuple(
                {x: one[x] for x in one if x not in ("losses", "seconds")} for one in tried
            ),
            seconds=sum(one["seconds"] for one in tried),
        )

    def _known(self) -> dict[str, Any]:
        """What is done already. Raises InputError where it was done on other examples."""
        targets = [self.task.labelling.target(example) for example in self.judged_by]
        arrays = [*self.data.fingerprinted(), *self.valid.token_ids, *targets]
        fresh: dict[str, Any] = {
            "data": fingerprint(arrays),
            "plan": dataclasses.asdict(self.plan) | {"rates": list(self.plan.rates)},
            "tried": [],
        }
        if not self.path.exists():
            return fresh
        known: dict[str, Any] = read_json(self.path, "Remove it: the search begins anew.")
        if known["data"] != fresh["data"]:
            raise InputError(
                f"{self.path} is of a search for the learning rate on other examples than these. "
                "Give the same data and settings to continue, or another --output to start anew."
            )
        # of another version's plan the rate that was found holds, but not half of a search
        return known if known["plan"] == fresh["plan"] or "learning_rate" in known else fresh

    def _write(self, known: Mapping[str, Any]) -> None:
        write_text(self.path, json.dumps(known) + "\n")

    def _try(self, rate: float) -> dict[str, Any]:
        """Train with a rate, for short, and judge what came out."""
        began = time.perf_counter()
        try:
            found = self._judge(rate)
        except DivergedError:
            self.trainer.forget()
            found = {}
        return {"learning_rate": rate, **found, "seconds": time.perf_counter() - began}

    def _share_compiling(self, tried: Sequence[dict[str, Any]]) -> None:
        """Count to the training what the first took longer than the fastest of this process.

        That is compiling: of the step, and of some of its operations for each length of rows. The
        training finds all of it done, unless a conditional random field has the model made anew.
        """
        whole = [one["seconds"] for one in tried if "loss" in one]
        if len(whole) > 1 and "loss" in tried[0] and not self.task.crf:
            self.trainer.preparation += tried[0]["seconds"] - min(whole)
            tried[0]["seconds"] = min(whole)

    def _judge(self, rate: float) -> dict[str, Any]:
        """The validation loss, of each row and of all, and the metrics. {} if it is not finite."""
        model, trained = self._fit(rate)
        with ema_weights(trained):
            task = self.task.decoding.with_weights(model)
            rows = task.decoding.run(model, self.valid, BATCH_SIZE)
        losses = task.objective.example_losses(rows, self.valid, self.judged_by)
        if losses is None:
            losses = row_losses(task, rows, *task.labelling.row_targets(self.valid, self.judged_by))
        if not np.isfinite(losses).all():
            return {}
        answers = task.decoding.read_rows(rows, self.valid)
        _, metrics = compare(self.task, labels_of(self.judged_by), answers)
        return {"loss": float(losses.mean()), "losses": losses.tolist(), "metrics": metrics}

    def _fit(self, rate: float) -> tuple[Any, Any]:
        """Train for short, with warm-up and decay; give the model and what was fitted."""
        recipe, path = self.recipe, self.path
        seed, optimizer = self.search.seed, self._optimizer(rate)
        model, trained = self.trainer.begin(seed, optimizer, self.plan.batches)
        training = Training(self.data, fingerprint(self.data.fingerprinted()))
        data = complete_data(training, model, recipe.vectors, self.search.folder)
        rows = training_batches(data, recipe, seed)
        with (
            MetricsFile(path, resumed_at=0, writing=False) as lines,
            StepLog(
                lines,
                every=recipe.log_every,
                start=0,
                last=self.plan.batches,
                tokens_per_step=round(recipe.batch_size * self.data.tokens_each),
                uniform_loss=math.inf,
                name=f"trying {spelled(rate)}",
            ) as log,
        ):
            trained.fit(
                fed(prefetched(rows), data.varying),
                steps_per_epoch=self.plan.batches,
                shuffle=False,
                callbacks=[log],
                verbose=0,
            )
        return model, trained

    def _optimizer(self, rate: float) -> FinetuneOptimizerConfig:
        return dataclasses.replace(self.recipe.optimizer, learning_rate=rate)

    def _told(self, one: Mapping[str, Any]) -> str:
        """What a rate gave, in a line."""
        if "loss" not in one:
            return f"tried {spelled(one['learning_rate'])}: the loss is not finite"
        name = self.recipe.metric.name
        figure = f"{name} {score_text(one['metrics'][name])}"
        return f"tried {spelled(one['learning_rate'])}: {figure}, loss {one['loss']:.4f}"


def row_losses(task: Task, logits: Rows, targets: Rows, weights: Rows) -> np.ndarray:
    """Loss of each row, (rows,) float64, such that their mean is the loss of all: Σ w l / Σ w.

    logits: (C,) of each row, or (T, C); targets and weights as the task's `row_targets`.
    """
    import keras

    tokens = np.ndim(weights[0]) > 0
    longest = max(len(one) for one in logits) if tokens else 0

    def together(arrays: Rows) -> np.ndarray:
        arrays = [np.asarray(one) for one in arrays]
        shape = (longest, *arrays[0].shape[1:]) if tokens else arrays[0].shape
        return padded(arrays, (len(arrays), *shape))

    losses = keras.ops.convert_to_numpy(task.objective.losses(together(targets), together(logits)))
    weighed = losses.astype(np.float64) * together(weights)  # (rows,) or (rows, T)
    each = weighed.reshape(len(weighed), -1).sum(axis=1)
    return np.asarray(each * len(each) / max(float(together(weights).sum()), 1e-7))


def choose(tried: Sequence[Mapping[str, Any]], usual: float, metric: Metric) -> float:
    """The rate of the lowest loss; the usual one, unless that is better by more than chance.

    The same rows judge all, so that it is their differences that scatter. Nor must its metric be
    worse: the loss alone also falls where a model is only surer. Raises DivergedError where none
    has a loss.
    """
    finite = [one for one in tried if "loss" in one]
    if not finite:
        rates = ", ".join(spelled(one["learning_rate"]) for one in tried)
        raise DivergedError(f"the loss is not finite at any learning rate tried ({rates}).")
    by_rule = next((one for one in finite if one["learning_rate"] == usual), None)
    if by_rule is not None:
        least = metric.goodness(by_rule["metrics"])
        finite = [one for one in finite if metric.goodness(one["metrics"]) >= least]
    best = min(finite, key=lambda one: float(one["loss"]))
    if by_rule is None:
        return float(best["learning_rate"])
    gained = np.subtract(by_rule["losses"], best["losses"])
    error = float(np.std(gained, ddof=1)) / math.sqrt(len(gained)) if len(gained) > 1 else math.inf
    certain = float(gained.mean()) > CERTAIN * error
    return float((best if certain else by_rule)["learning_rate"])
