"""The trials of a run: sweeps, seeds and folds, with made-up accuracies."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from roformer_tf.errors import DivergedError
from roformer_tf.finetuning import search, trial
from roformer_tf.finetuning.search import Search, Sets
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.trial import Trial, TrialResult
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import folds
from roformer_tf.tasks.base import Prediction
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.metrics import ACCURACY
from roformer_tf.training.run_files import metrics_file
from roformer_tf.training.settings import FinetuneOptimizerConfig
from tests.support.random_model import tokenizer_of

TASK = Classification(labels=("a", "b"))


def settings(output, **changes):
    optimizer = FinetuneOptimizerConfig(learning_rate=1e-3)
    needed = {"checkpoint": "", "train": "", "output": str(output), "epochs": 1, "seed": 7}
    return FinetuneConfig(**needed, optimizer=optimizer, **changes)


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    """trainings(accuracy, …) → the learning rate and seed of each trial.

    accuracy(rate) returns the validation accuracy of a trial.
    """

    def run_search(accuracy, **options):
        trials = []

        def result(trial, initial, task, test):
            rate = trial.config.optimizer.learning_rate
            trials.append((pytest.approx(rate), trial.config.seed))
            assert trial.folder.parent.name == "trials"
            scores = {"valid": {"accuracy": accuracy(rate)}, "test": {"accuracy": -rate}}
            return TrialResult(trial, {}, scores, task, 0.0)

        monkeypatch.setattr(search, "run_trial", result)
        sets = Sets(["train"], ["valid"], ["test"], [])
        actual = Search(settings(tmp_path, **options), sets, None, TASK, ACCURACY).run()
        assert len({item.trial.folder for item in actual}) == len(actual)
        return trials

    return run_search


def test_further_seeds_use_the_best_rate_of_the_sweep(trainings):
    rates = [1e-3, 5e-4, 2e-3, 4e-3]
    tried = trainings(lambda rate: 0.9 if rate == 2e-3 else 0.5, sweep=True, seeds=3)
    assert tried == [*((rate, 7) for rate in rates), (2e-3, 8), (2e-3, 9)]


def test_of_equal_rates_the_default_is_best(trainings):
    assert trainings(lambda rate: 0.5, sweep=True, seeds=2)[-1] == (1e-3, 8)


def test_where_tfidf_makes_models_equal_the_better_one_alone_is_best():
    examples = [Example((f"文{number}",), "ab"[number % 2], "") for number in range(4)]
    right = [Prediction(x.label, np.float32([0.5, 0.5])) for x in examples]

    def trained(alone, lexical="TF-IDF", accuracy=0.75):
        trial = SimpleNamespace(valid=examples, metric=ACCURACY)
        figures = {"valid": {"accuracy": accuracy}}
        return TrialResult(trial, {}, figures, TASK, 0.0, alone={"valid": alone}, lexical=lexical)

    wrong = [Prediction("a", x.scores) for x in right]
    assert trained(wrong).goodness == (0.75, 0.5) < trained(right).goodness == (0.75, 1.0)
    assert trained(right).goodness < trained(wrong, accuracy=1.0).goodness
    assert trained(wrong, lexical=None).goodness == (0.75, 0.75)


def test_a_diverging_rate_is_excluded_from_the_sweep(trainings, capsys):
    def accuracy(rate):
        if rate > 1e-3:
            raise DivergedError("the loss is not finite.")
        return rate

    tried = trainings(accuracy, sweep=True, seeds=2)
    assert tried[-1] == (1e-3, 8)
    assert capsys.readouterr().out.count("is too high") == 2
    with pytest.raises(DivergedError):
        trainings(lambda rate: accuracy(1.0), sweep=True)


def test_seeds_without_a_sweep_keep_the_rate(trainings):
    assert trainings(lambda rate: 0.5, seeds=3) == [(1e-3, 7), (1e-3, 8), (1e-3, 9)]


def test_each_fold_is_held_out_once(tmp_path, monkeypatch):
    examples = [Example((f"文{number}",), "ab"[number % 2], "") for number in range(40)]
    parts = folds(examples, Classification, 4, 0)
    trials = []

    def result(trial, initial, task, test):
        trials.append(trial)
        return TrialResult(trial, {}, {"valid": {"accuracy": 0.5}}, task, 0.0)

    monkeypatch.setattr(search, "run_trial", result)
    sets = Sets(examples, [], [], parts)
    Search(settings(tmp_path, folds=4), sets, None, TASK, ACCURACY).run()
    assert [(trial.train, trial.valid) for trial in trials] == parts
    assert [trial.folder for trial in trials] == [
        tmp_path / "trials" / f"fold-{number}" for number in (1, 2, 3, 4)
    ]


def test_tfidf_learns_from_the_training_set_and_is_tuned_on_the_validation_set(
    tmp_path, monkeypatch
):
    fitted = []

    def fit(task, train, valid, metric, held_out_folds, balanced):
        fitted.append((train, valid, held_out_folds, balanced))

    def result(trial, initial, task, test):
        return TrialResult(trial, {}, {"valid": {"accuracy": 0.5}}, task, 0.0)

    monkeypatch.setattr(search, "fit_tfidf", fit)
    monkeypatch.setattr(search, "run_trial", result)
    examples = [Example((f"文{number}",), "ab"[number % 2], "") for number in range(40)]
    sets = Sets(examples[:20], examples[20:30], examples[30:], [])
    Search(settings(tmp_path), sets, None, TASK, ACCURACY).run()
    parts = folds(examples, Classification, 2, 0)
    weighted = settings(tmp_path, folds=2, loss=LossConfig(class_weights="balanced"))
    Search(weighted, Sets(examples, [], [], parts), None, TASK, ACCURACY).run()
    assert fitted == [
        (examples[:20], examples[20:30], [], False),
        *((*part, [], True) for part in parts),
    ]


def test_a_teacher_predicts_for_examples_that_only_folds_have(tmp_path, monkeypatch):
    """With named labels, and in reranking, the examples of folds are not those of the whole."""
    examples = [Example((f"文{number}",), "ab"[number % 2], "") for number in range(8)]
    parts = folds(examples, Classification, 2, 0)
    sets = Sets(examples, [], [], parts).mapped(copied, copied)
    trials = []

    def predict(config, task, some):
        logits = {"a": np.array([2.0, 0.0]), "b": np.array([0.0, 2.0])}
        return [task.decoding.predict(logits[example.label]) for example in some]

    def result(trial, initial, task, test):
        trials.append(trial)
        return TrialResult(trial, {}, {"valid": {"accuracy": 0.5}}, task, 0.0)

    monkeypatch.setattr(search, "teacher_predictions", predict)
    monkeypatch.setattr(search, "run_trial", result)
    config = settings(tmp_path, folds=2, loss=LossConfig(teacher="model"))
    Search(config, sets, None, TASK, ACCURACY).with_teacher().run()
    for trial_of_fold in trials:
        right = [TASK.labels[logits.argmax()] for logits in trial_of_fold.soft_targets]
        assert right == [example.label for example in trial_of_fold.train]


def copied(examples):
    return [example._replace() for example in examples]


def test_a_fingerprint_covers_all_data_of_a_training():
    """By it a resumed training recognizes its data."""
    first, second = Example(("今天",), "a", "file:2"), Example(("天气",), "b", "file:3")

    def mark(train, unlabelled, valid, letters="今天气很好", teacher=None, logits=()):
        config = settings("run", loss=LossConfig(teacher=teacher))
        data = Trial(Path(), train, valid, config, ACCURACY, unlabelled, logits)
        return trial.fingerprint(data, TASK, tokenizer_of(letters))

    logits = [np.array([0.5, -0.5], np.float32)]

    marks = [
        mark([first], [], []),
        mark([first], [second], []),
        mark([first], [], [second]),
        mark([first, second], [], []),
        mark([second, first], [], []),
        mark([first._replace(label="b")], [], []),
        mark([first._replace(texts=("今", "天"))], [], []),
        mark([first], [], [], letters="今天气"),
        mark([first], [], [], teacher="columns", logits=logits),
        mark([first], [], [], teacher="columns", logits=[2 * logits[0]]),
    ]
    assert len({*marks}) == len(marks)
    assert mark([first._replace(source_line="other:9")], [], []) == marks[0]
    # What a model predicts may differ in the last digits on another machine.
    assert mark([first], [], [], teacher="model", logits=logits) == marks[0]


def test_ties_between_epochs_keep_the_last_weights(tmp_path, monkeypatch):
    """Small validation sets give many ties, and later weights have trained longer."""
    accuracies, saved_steps = iter([0.4, 0.5, 0.5, 0.3, 0.5, 0.4]), []
    part = SimpleNamespace(save=lambda folder: None, save_files=lambda *_: None)
    chosen_task = SimpleNamespace(save=part.save, decoding=part, max_length=8)
    model = SimpleNamespace(config=None)
    monkeypatch.setattr(trial, "predict_encoded", lambda *_: [])
    metrics = SimpleNamespace(with_choices=lambda *_: (chosen_task, {"accuracy": next(accuracies)}))
    task = SimpleNamespace(metrics=metrics)
    with metrics_file(tmp_path / "evaluations.jsonl", resumed_at=0, board="training") as write_line:
        events = trial._TrialEvents(
            *(SimpleNamespace(folder=tmp_path, valid=[], metric=ACCURACY), task, None, "", 1),
            *(model, None, write_line),
        )
        for step in range(1, 7):
            model.save_pretrained = lambda *_, step=step, **__: saved_steps.append(step)
            write_line({"step": step, **events._metrics()})
    assert saved_steps == [1, 2, 3, 5]
