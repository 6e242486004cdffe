"""Results of the training runs of a search: the data of the report, and the output files."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from roformer_tf.checkpoints.huggingface import MODEL_CARD
from roformer_tf.engines.choice import Precision, installed
from roformer_tf.errors import InputError
from roformer_tf.export.formats import MAX_MEASURED
from roformer_tf.files import write_text
from roformer_tf.finetuning.label_issues import CheckedSet, LabelIssues, find_issues
from roformer_tf.finetuning.lexical import lexical_baselines
from roformer_tf.finetuning.report.analysis import EvaluatedSet, ReportData
from roformer_tf.finetuning.report.figures import compare
from roformer_tf.finetuning.search import Search
from roformer_tf.finetuning.trial import Outcome, labels_of
from roformer_tf.inference.opening import open_finetuned, save_int8_cost
from roformer_tf.inference.prediction_files import cell_names, cells, prediction_file, text_names
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import Duplicates, duplicates
from roformer_tf.search.reranking import write_validation_pairs
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.metrics import Scores, score_text
from roformer_tf.training.checkpointing import publish
from roformer_tf.training.devices import describe_machine
from roformer_tf.training.run_files import BEST, EVALUATIONS_FILE, METRICS_FILE, read_metrics

PREDICTIONS = "predictions.tsv"
GOLD = "gold"
"""Its column with the labels of the data."""


Baseline: TypeAlias = tuple[str, list[Prediction]]
"""The name of a simple method, and its predictions."""
NONE: tuple[Baseline, list[Baseline], str] = (("", []), [], "")


class FittedBaseline(NamedTuple):
    """A simple method, fitted to the training examples of one training run."""

    name: str
    valid: list[Prediction]
    """Its predictions for the validation set of that run."""
    test: list[Prediction]


@dataclass(frozen=True)
class Results:
    """The training runs of a search. The best one on its validation set gives the model."""

    search: Search
    outcomes: list[Outcome]

    @cached_property
    def best(self) -> Outcome:
        """The training run whose weights are kept."""
        return max(self.outcomes, key=lambda outcome: outcome.goodness)

    @property
    def validated(self) -> list[Outcome]:
        """The runs whose validation sets are reported: of folds all, otherwise the best one."""
        return self.outcomes if self.search.sets.folds else [self.best]

    @property
    def examples(self) -> list[Example]:
        """The examples of the report: the test set, or without one the validation set."""
        validated = [example for outcome in self.validated for example in outcome.trial.valid]
        return self.search.sets.test or validated

    @property
    def predictions(self) -> list[Prediction]:
        """The predictions for `examples`."""
        if self.search.sets.test:
            return self.best.predictions["test"]
        return self._joined([outcome.predictions["valid"] for outcome in self.validated])

    def _joined(self, parts: Sequence[Sequence[Prediction]]) -> list[Prediction]:
        """The predictions for several sets, concatenated."""
        joined: list[Prediction] = []
        for answers in parts:
            before = len(joined)
            joined += [self.search.task.decoding.shifted(answer, before) for answer in answers]
        return joined

    def save(self, card: str) -> None:
        """Write the model of the best run, its card and metrics, and the predictions."""
        output, folder = self.search.output, self.best.trial.folder
        publish(folder / BEST, output / "model", {MODEL_CARD: card})
        self._keep_int8_cost(output / "model")
        for name in (METRICS_FILE, EVALUATIONS_FILE):
            if folder != output:
                write_text(output / name, (folder / name).read_text(encoding="utf-8"))
        rows = [self._row(*pair) for pair in zip(self.examples, self.predictions, strict=True)]
        with prediction_file(str(output / PREDICTIONS), list(rows[0]), self.search.task) as out:
            for row in rows:
                out.write(row)
        task = self.search.task
        if len(task.text_columns) == 2 and not (task.texts_apart or task.writes):
            write_validation_pairs(output, self.best.trial.valid)
        for name, other in zip(task.text_columns, self._text_names, strict=True):
            if name != other:
                print(f"in {PREDICTIONS} the column {name!r} is called {other!r}")

    def _keep_int8_cost(self, folder: Path) -> None:
        """Measure on the validation set how much accuracy int8 loses; `predict` reports it."""
        task, best = self.best.task, self.best
        if task.texts_apart or task.writes or best.choice.engine == "keras":
            return
        if not installed("onnx"):
            return
        step = -(-len(best.trial.valid) // MAX_MEASURED)
        examples = best.trial.valid[::step]
        gold = labels_of(examples)

        def answers(precision: Precision) -> list[Prediction]:
            return open_finetuned(folder, "onnx", precision).predict(examples)

        judged = best.choice.precision == "float32"  # else float32 has not run yet
        exact = best.predictions["valid"][::step] if judged else answers("float32")
        save_int8_cost(
            folder,
            task.metrics.compute(gold, exact),
            task.metrics.compute(gold, answers("int8")),
            len(examples),
        )

    def label_issues(
        self, settings: Mapping[str, Any], report: Mapping[str, Any]
    ) -> LabelIssues | None:
        """Validation examples whose labels are probably wrong.

        With folds these are all examples outside the test set, each checked by the model that was
        not trained on it. Texts that are also in the training set are skipped. The report decides
        whether labels are checked: there must be a baseline, and the model must be better.
        """
        comparison, parts = compare(report), self.search.sets
        sets = []
        for number, outcome in enumerate(self.validated):
            trial = outcome.trial
            baseline = self._fitted[number][0].valid if "baseline" in report else []
            checked = CheckedSet(trial.valid, outcome.predictions["valid"], baseline)
            sets.append(checked.without(example.texts for example in trial.train))
        total = len(parts.train) + len(parts.valid)
        is_better = comparison is not None and comparison.verdict != "no better"
        return find_issues(self.search.task, sets, total, settings, is_better)

    def for_report(self, settings: Mapping[str, Any], with_baseline: bool) -> ReportData:
        """The data of the report. Fits the baseline."""
        search, trial = self.search, self.best.trial
        began = time.perf_counter()
        (name, simple), others, problem = self._baselines() if with_baseline else NONE
        fitted = time.perf_counter() - began
        judged = self._evaluated(
            self.examples,
            predictions=self.predictions,
            baseline=simple,
            duplicates=self._duplicates(),
        )
        selection = self._evaluated(trial.valid, predictions=self.best.predictions["valid"])
        return ReportData(
            task=self.best.task,
            metric=search.recipe.metric.name,
            train=self._evaluated(search.sets.train),
            valid=selection if search.sets.test else judged,
            test=judged if search.sets.test else None,
            baseline=name,
            other_baselines=others,
            no_baseline=problem,
            losses=read_metrics(trial.folder / METRICS_FILE),
            evaluations=read_metrics(trial.folder / EVALUATIONS_FILE),
            trials=[_line(outcome) for outcome in self.outcomes] if len(self.outcomes) > 1 else (),
            settings=settings,
            hardware=describe_machine(),
            answered_by={
                "engine": self.best.choice.engine,
                "precision": self.best.choice.precision,
            },
            seconds={
                "training": sum(outcome.seconds for outcome in self.outcomes),
                "baseline": fitted,
            },
        )

    def _baselines(self) -> tuple[Baseline, list[Baseline], str]:
        """The best baseline, the others, and why there is none.

        Each is fitted to the training set of the model, or of each fold's model, and tuned on its
        validation set. An error here must not lose the report of a long training run.
        """
        try:
            fitted = self._fitted
        except InputError as error:
            return NONE[0], [], str(error)
        except Exception as error:  # scikit-learn, SciPy and NumPy raise many kinds
            problem = f"{type(error).__name__}: {error}".split("\n")[0].rstrip(".: ")
            return NONE[0], [], problem
        if self.search.sets.test:
            of_best = zip(self.validated, fitted, strict=True)
            found = [(x.name, x.test) for one, fits in of_best if one is self.best for x in fits]
        else:
            found = [
                (parts[0].name, self._joined([one.valid for one in parts]))
                for parts in zip(*fitted, strict=True)
            ]
        if len(found) > 1:
            gold, metric = [one.label for one in self.examples], self.search.recipe.metric
            task = self.best.task
            found.sort(key=lambda one: -metric.goodness(task.metrics.compute(gold, one[1])))
        return found[0], found[1:], ""

    @cached_property
    def _fitted(self) -> list[list[FittedBaseline]]:
        """The baselines of each run of `validated`."""
        return [self._fit_baselines(outcome) for outcome in self.validated]

    def _fit_baselines(self, outcome: Outcome) -> list[FittedBaseline]:
        """Those of one run. Lexical search predicts for the reported set only."""
        task, test, trial = self.search.task, self.search.sets.test, outcome.trial
        if task.texts_apart:
            tokenizer = self.search.start.tokenizer
            found = lexical_baselines(outcome.task, trial.valid, test or trial.valid, tokenizer)
            return [FittedBaseline(name, answers, answers) for name, answers in found]
        metric = self.search.recipe.metric
        name, answers = task.metrics.baseline(
            trial.train, [*trial.valid, *test], trial.valid, metric
        )
        return [FittedBaseline(name, answers[: len(trial.valid)], answers[len(trial.valid) :])]

    def _duplicates(self) -> Duplicates | None:
        """Reported texts that occur elsewhere; those of folds are never in their training set."""
        sets, trial, question = (
            self.search.sets,
            self.best.trial,
            self.search.task.labelling.question,
        )
        if sets.test:
            return duplicates(trial.train, sets.test, trial.valid, question)
        return None if sets.folds else duplicates(trial.train, trial.valid, question=question)

    def _evaluated(self, examples: Sequence[Example], **more: Any) -> EvaluatedSet:
        search = self.search
        lengths = search.task.labelling.encode(examples, search.start.tokenizer).lengths
        return EvaluatedSet(examples=examples, lengths=lengths, **more)

    @property
    def _text_names(self) -> tuple[str, ...]:
        """The columns of the texts, renamed where a column of predictions has the name."""
        task = self.search.task
        return text_names(task.text_columns, (GOLD, *cell_names(task)))

    def _row(self, example: Example, prediction: Prediction) -> dict[str, Any]:
        """Texts, label and prediction of an example by column."""
        texts = dict(zip(self._text_names, example.texts, strict=False))
        return texts | {GOLD: example.label} | cells(example, prediction, self.search.task)


def print_summary(output: Path, report: Mapping[str, Any]) -> None:
    """Print the figures and warnings of a report, and where the files are."""
    judged = report["judged"]
    baselines = [report.get("baseline", {}), *report.get("other_baselines", ())]
    for name in (judged, f"{judged}_unseen"):
        if name in report:
            print(f"{name}: {_figures(report[name])}")
            for baseline in baselines:
                if name in baseline:
                    print(f"  {baseline['name']}: {_figures(baseline[name])}")
    for warning in report["warnings"]:
        print(f"! {warning}")
    print(f"the model is in {output / 'model'}, the report in {output / 'report.html'}")


def _line(outcome: Outcome) -> dict[str, Any]:
    """A training run as an entry of report.json."""
    return {
        "name": outcome.trial.name,
        "learning_rate": outcome.trial.recipe.optimizer.learning_rate,
        "seconds": outcome.seconds,
        **outcome.metrics,
    }


def _figures(scores: Scores) -> str:
    return ", ".join(f"{name} {score_text(value)}" for name, value in scores.items())
