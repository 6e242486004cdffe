"""Results of the training runs of a search: the data of the report, and the output files."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.checkpoints.archives import LEXICAL_FILE, TASK_FILE
from roformer_tf.checkpoints.huggingface import MODEL_CARD
from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.finetuning.label_issues import CheckedSet, LabelIssues, find_issues
from roformer_tf.finetuning.report.analysis import EvaluatedSet, ReportData
from roformer_tf.finetuning.report.figures import baseline_name, compare, teacher_notes, warnings
from roformer_tf.inference.prediction_files import cell_names, cells, prediction_file, text_names
from roformer_tf.labelled.examples import Example, labels_of
from roformer_tf.labelled.reading import GOLD
from roformer_tf.labelled.splits import Duplicates
from roformer_tf.labelled.text_sides import EncodedSides
from roformer_tf.search.keywords import BM25, TfIdfSearch, scores_of
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.metrics import scores_text
from roformer_tf.tasks.tfidf import fit_tfidf
from roformer_tf.tasks.vectors.ranked_texts import DifferentTexts
from roformer_tf.tasks.vectors.scored_pairs import ScoredPairs
from roformer_tf.terminal import say
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.checkpointing import publish
from roformer_tf.training.devices import describe_machine
from roformer_tf.training.run_files import BEST, EVALUATIONS_FILE, METRICS_FILE, read_metrics
from roformer_tf.translation import Message, Translator, terminal_language

if TYPE_CHECKING:
    from roformer_tf.finetuning.search import Search
    from roformer_tf.finetuning.trial import TrialResult

# Those of a training run, by set.
Predictions: TypeAlias = "Callable[[TrialResult], dict[str, list[Prediction]]]"

PREDICTIONS = "predictions.tsv"
# Searches that vectors are compared with.
METHODS: dict[Message, type[BM25] | type[TfIdfSearch]] = {
    Message("BM25 of words"): BM25,
    Message("TF-IDF cosine of 1–3 characters"): TfIdfSearch,
}


class FittedBaseline(NamedTuple):
    """A simple method, fitted to the training examples of one training run."""

    name: str
    # Its predictions for the validation set of that run.
    valid: list[Prediction]
    test: list[Prediction]


@dataclass(frozen=True)
class Results:
    """The training runs of a search. The best one on its validation set gives the model."""

    search: "Search"
    trials: "list[TrialResult]"
    # Those of the same trainings without the teacher, if they are compared.
    without_teacher: "Results | None" = None

    @cached_property
    def best(self) -> "TrialResult":
        """The training run whose weights are kept."""
        return max(self.trials, key=lambda result: result.goodness)

    @property
    def validated(self) -> "list[TrialResult]":
        """The runs whose validation sets are reported: of folds all, otherwise the best one."""
        return self.trials if self.search.sets.folds else [self.best]

    @property
    def examples(self) -> list[Example]:
        """The examples of the report: the test set, or without one the validation set."""
        validated = [example for result in self.validated for example in result.trial.valid]
        return self.search.sets.test or validated

    @property
    def predictions(self) -> list[Prediction]:
        """The predictions for `examples`."""
        return self._of_examples(lambda result: result.predictions)

    def _of_examples(self, predictions: "Predictions") -> list[Prediction]:
        if self.search.sets.test:
            return predictions(self.best)["test"]
        return self._joined([predictions(result)["valid"] for result in self.validated])

    def _joined(self, parts: Sequence[Sequence[Prediction]]) -> list[Prediction]:
        """The predictions for the sets of `validated`, concatenated."""
        joined: list[Prediction] = []
        for result, predictions in zip(self.validated, parts, strict=True):
            # A prediction may name other examples of its set, by number: these move on, too.
            shifted, before = result.task.decoding.shifted, len(joined)
            joined += [shifted(x, before, self.best.task) for x in predictions]
        return joined

    def save(self, card: str) -> None:
        """Write the model of the best run, its card and metrics, and the predictions."""
        output, folder, task = self.search.output, self.best.trial.folder, self.search.task
        files = {MODEL_CARD: card.encode(), TASK_FILE: self.best.task.to_json().encode()}
        if self.best.lexical is not None:
            files[LEXICAL_FILE] = self.best.lexical.to_bytes()
            if (exports := output / "export").exists():
                say("{folder} is older: its models lack the lexical features", folder=exports)
        else:  # a finished run may be repeated without them
            (output / "model" / LEXICAL_FILE).unlink(missing_ok=True)
        publish(folder / BEST, output / "model", files)
        for name in (METRICS_FILE, EVALUATIONS_FILE):
            if folder != output:
                write_text(output / name, (folder / name).read_text(encoding="utf-8"))
        # A column of predictions may have the name of a column of texts, which is then renamed.
        names = text_names(task.text_columns, (GOLD, *cell_names(task)))
        rows = [
            dict(zip(names, task.labelling.as_cells(example), strict=False))
            | {GOLD: task.decoding.gold_cell(example)}
            | cells(example, prediction, task)
            for example, prediction in zip(self.examples, self.predictions, strict=True)
        ]
        with prediction_file(str(output / PREDICTIONS), list(rows[0]), task) as out:
            for row in rows:
                out.write(row)

    def label_issues(self, report: Mapping[str, Any]) -> LabelIssues | None:
        """Validation examples whose labels are probably wrong.

        With folds these are all examples outside the test set, each checked by the model that was
        not trained on it. Texts that are also in the training set are skipped. The report decides
        whether labels are checked: there must be a baseline, and the model must be better.
        """
        alone = {**report, **report.get("lexical", {})}  # with the figures of the model alone
        comparison, parts = compare(alone), self.search.sets
        sets = []
        for number, result in enumerate(self.validated):
            trial = result.trial
            baseline = self._fitted[number][0].valid if "baseline" in report else []
            # Combined with the baseline, the model would no longer be another opinion.
            checked = CheckedSet(trial.valid, result.alone["valid"], baseline)
            if not trial.cross_validated:
                new = ~Duplicates(trial.train, trial.valid).in_train
                checked = CheckedSet._make(list(compress(part, new)) for part in checked)
            sets.append(checked)
        total = len(parts.train) + len(parts.valid)
        is_better = comparison is not None and comparison.verdict != "no better"
        return find_issues(self.search.task, sets, total, self.search.config.train, is_better)

    def for_report(self, settings: Mapping[str, Any], with_baseline: bool) -> ReportData:
        """The data of the report. Fits the baseline."""
        search, trial, untaught = self.search, self.best.trial, self.without_teacher
        choice = self.best.choice
        taught, ids = search.taught, list(map(id, self.examples))
        began = time.perf_counter()
        baselines, problem = self._baselines() if with_baseline else ([], "")
        fitted = time.perf_counter() - began
        fitted += sum(x.trial.tfidf.seconds for x in self.validated if x.trial.tfidf)
        # Predictions for a test set are those of the best run.
        lexical = _described(self.best, [self.best] if search.sets.test else self.validated)
        reported = self._evaluated(
            self.examples,
            predictions=self.predictions,
            alone=self._of_examples(lambda result: result.alone) if lexical else [],
            duplicates=self._duplicates(),
        )
        selection = self._evaluated(trial.valid, predictions=self.best.predictions["valid"])
        return ReportData(
            task=self.best.task,
            metric=search.metric.name,
            train=self._evaluated(search.sets.train),
            valid=selection if search.sets.test else reported,
            # In a cross-validation, no prediction is of a model that was fitted to the example.
            test=reported if search.sets.test or trial.cross_validated else None,
            baselines=baselines,
            # A teacher in columns may have no predictions for them.
            teacher=[taught[number] for number in ids] if taught.keys() >= {*ids} else [],
            without_teacher=untaught.predictions if untaught else [],
            trials_without_teacher=[_line(x) for x in untaught.trials] if untaught else [],
            lexical=lexical,
            method=search.method,
            no_baseline=problem,
            losses=read_metrics(trial.folder / METRICS_FILE),
            evaluations=read_metrics(trial.folder / EVALUATIONS_FILE),
            trials=[_line(result) for result in self.trials] if len(self.trials) > 1 else [],
            settings=settings,
            hardware=describe_machine(),
            computed_by={"engine": choice.engine, "precision": choice.precision},
            seconds={"training": sum(result.seconds for result in self.trials), "baseline": fitted},
        )

    def _baselines(self) -> tuple[list[tuple[str, list[Prediction]]], str]:
        """Name and predictions of each baseline, the best first; and why there is none.

        Each is fitted to the training set of the model, or of each fold's model, and tuned on its
        validation set. An error here must not lose the report of a long training run.
        """
        try:
            fitted = self._fitted
        except InputError as error:
            return [], error.args[0]  # not str(error): a report's language is not the locale's
        except Exception as error:  # scikit-learn, SciPy and NumPy raise many kinds
            return [], f"{type(error).__name__}: {error}".split("\n")[0].rstrip(".: ")
        if self.search.sets.test:
            # The best run predicts the test set: its baselines have the same training set.
            is_best = [result is self.best for result in self.validated]
            baselines = [(x.name, x.test) for x in fitted[is_best.index(True)]]
        else:
            baselines = [
                (_joint_name([x.name for x in parts]), self._joined([x.valid for x in parts]))
                for parts in zip(*fitted, strict=True)
            ]
        if len(baselines) > 1:
            gold, metrics = labels_of(self.examples), self.best.task.metrics
            goodness = self.search.metric.goodness
            baselines.sort(key=lambda x: goodness(metrics.compute(gold, x[1])), reverse=True)
        return baselines, ""

    @cached_property
    def _fitted(self) -> list[list[FittedBaseline]]:
        """The baselines of each run of `validated`."""
        return [self._fit_baselines(result) for result in self.validated]

    def _fit_baselines(self, result: "TrialResult") -> list[FittedBaseline]:
        """Those of one run. Lexical search predicts for the reported set only."""
        task, test, trial = self.search.task, self.search.sets.test, result.trial
        if task.separate_texts:
            tokenizer = self.search.initial.tokenizer
            baselines = search_baselines(result.task, trial.valid, test or trial.valid, tokenizer)
            return [FittedBaseline(name, x, x) for name, x in baselines]
        if task.metrics.linear_model:
            folds = trial.folds if trial.cross_validated else ()
            options = self.search.metric, folds, self.search.config.loss.balanced
            tfidf = trial.tfidf or fit_tfidf(task, trial.train, trial.valid, *options)
            of = partial(tfidf.predictions, task, valid=trial.valid)
            return [FittedBaseline(tfidf.name, of(trial.valid), of(test))]
        name, predictions = task.metrics.rule(trial.train, [*trial.valid, *test], trial.valid)
        if not predictions:  # a task without a rule
            return []
        size = len(trial.valid)
        return [FittedBaseline(name, predictions[:size], predictions[size:])]

    def _duplicates(self) -> Duplicates:
        """Reported texts that occur elsewhere, or more than once."""
        sets, trial, task = self.search.sets, self.best.trial, self.search.task

        def compared(examples: Sequence[Example]) -> Sequence[Example]:
            if not task.reranks:
                return examples
            # Only queries count: their documents are those of searches that differ.
            return [example._replace(texts=example.texts[:1], label=None) for example in examples]

        if sets.test:  # a text in both training and validation counts as one of training
            parts = compared(trial.train), compared(sets.test), compared(trial.valid)
            return Duplicates(*parts)
        # In a cross-validation each part has a training set of its own.
        splits = [(result.trial.train, result.trial.valid) for result in self.validated]
        if trial.cross_validated:
            splits = list(trial.folds)
        in_train = [Duplicates(compared(x), compared(y)).in_train for x, y in splits]
        repeated = Duplicates(compared(sets.train), compared(self.examples))
        repeated.in_train = np.concatenate(in_train)
        return repeated

    def _evaluated(self, examples: Sequence[Example], **more: Any) -> EvaluatedSet:
        labelling, tokenizer = self.search.task.labelling, self.search.initial.tokenizer
        lengths = labelling.encode(examples, tokenizer).lengths
        more["in_no_window"] = labelling.in_no_window(examples, tokenizer)
        return EvaluatedSet(examples=examples, lengths=lengths, **more)


def search_baselines(
    task: Any, valid: Sequence[Example], test: Sequence[Example], tokenizer: RoFormerTokenizer
) -> list[tuple[Message, list[Prediction]]]:
    """The name of each method, and its predictions for `test` in the form of the model's.

    If the model's cosines have a threshold, chosen on `valid`, each method has one, too.
    """

    def predicted(examples: Sequence[Example], method: Any) -> list[Prediction]:
        """Search among the other texts of the examples by their first ones."""
        encoded = task.labelling.encode(examples, tokenizer)
        assert isinstance(encoded, EncodedSides)
        different = DifferentTexts(encoded)
        # Texts come example by example, `sides` of each: the queries are every first one.
        spelled = task.labelling.evaluated_texts(examples, tokenizer)
        sides = len(spelled) // len(examples)
        # The index of each different text in `spelled`.
        rows = different.examples * sides + different.sides
        index = method([spelled[row] for row in rows.tolist()])
        return task.decoding.read_scores(different, scores_of(index, spelled[::sides]))

    baselines = []
    for name, method in METHODS.items():
        predictions = predicted(test, method)
        if isinstance(task, ScoredPairs) and task.is_binary:
            on_valid = predicted(valid, method)
            # Scores of BM25 have another scale. Shifted, they are split by the model's threshold.
            chosen = task.decoding.with_choices(labels_of(valid), on_valid)
            predictions = [chosen.decoding.shifted(x, 0, task) for x in predictions]
        baselines.append((name, predictions))
    return baselines


def print_summary(output: Path, report: Mapping[str, Any]) -> None:
    """Print the figures and warnings of a report, and where the files are."""
    _ = Translator(terminal_language())
    name_of_set = report["judged"]
    compared = [report.get("baseline", {}), *report.get("other_baselines", ())]
    compared += [report.get("teacher", {}), report.get("without_teacher", {})]
    lexical = report.get("lexical")
    for name in (name_of_set, f"{name_of_set}_unseen"):
        if name in report:
            print(f"{name}: {scores_text(report[name])}")
            if lexical:
                say("  without lexical features: {figures}", figures=scores_text(lexical[name]))
            for other in compared:
                if name in other:
                    print(f"  {baseline_name(other, _)}: {scores_text(other[name])}")
    for note in teacher_notes(report, _):
        print(note)
    for warning in warnings(report, _):
        print(f"! {warning}")
    say(
        "the model is in {model}, the report in {report}",
        model=output / "model",
        report=output / "report.html",
    )


def _described(best: "TrialResult", reported: "Sequence[TrialResult]") -> dict[str, Any]:
    """Lexical features as an entry of report.json; {} without any in the runs.

    "weight" and "factors" are those of the model that is kept, "weights" those of all runs.
    """
    names = [x.trial.tfidf.name for x in reported if x.lexical and x.trial.tfidf]
    if not names:
        return {}
    of_best = best.lexical
    return {
        "name": _joint_name(names),
        "weight": of_best.weight if of_best else 0.0,
        "factors": of_best.factors if of_best else (1.0, 0.0),
        "weights": [x.lexical.weight if x.lexical else 0.0 for x in reported],
    }


def _joint_name(names: Sequence[str]) -> str:
    """The name of a method that was fitted in each fold, where its settings were chosen."""
    if len(set(names)) == 1:
        return names[0]
    return Message("{name} in one fold, other settings in others", name=names[0])


def _line(result: "TrialResult") -> dict[str, Any]:
    """A training run as an entry of report.json."""
    return {
        "name": result.trial.folder.name,
        "learning_rate": result.trial.config.optimizer.learning_rate,
        "seconds": result.seconds,
        **result.metrics,
    }
