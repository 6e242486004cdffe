"""Which trainings a run consists of. How good each turns out is made up here."""

from pathlib import Path

import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import DivergedError
from roformer_tf.finetuning import search
from roformer_tf.finetuning.search import Search, Sets
from roformer_tf.finetuning.trainer import Start
from roformer_tf.finetuning.trial import Outcome, Recipe
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import folds
from roformer_tf.runs.optimizers.settings import FinetuneOptimizerConfig
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.metrics import ACCURACY

TASK = Classification(labels=("a", "b"))


@pytest.fixture
def trainings(tmp_path, monkeypatch):
    """trainings(accuracy, …) → (learning rate, seed) of each, whose accuracy the function gives."""

    def searched(accuracy, **asked):
        tried = []

        def outcome(trial, start, task, test):
            rate = trial.recipe.optimizer.learning_rate
            tried.append((pytest.approx(rate), trial.seed))
            assert trial.folder.parent.name == "trials"
            scores = {"valid": {"accuracy": accuracy(rate)}, "test": {"accuracy": -rate}}
            return Outcome(trial, {}, scores, task, 0.0)

        monkeypatch.setattr(search, "run_trial", outcome)
        optimizer = FinetuneOptimizerConfig(learning_rate=1e-3)
        recipe = Recipe(optimizer, LossConfig(), ACCURACY, 1, 8, 0, 10, 10)
        sets = Sets(["train"], ["valid"], ["test"], [])
        given = {"seed": 7, "seeds": 1, "sweep": False} | asked
        found = Search(tmp_path, sets, None, TASK, recipe, **given).run()
        assert len({one.trial.folder for one in found}) == len(found)
        return tried

    return searched


def test_further_seeds_train_at_the_best_rate_of_the_sweep_on_valid(trainings):
    rates = [5e-4, 1e-3, 2e-3, 4e-3]
    tried = trainings(lambda rate: 0.9 if rate == 2e-3 else 0.5, sweep=True, seeds=3)
    assert tried == [*((rate, 7) for rate in rates), (2e-3, 8), (2e-3, 9)]


def test_a_rate_that_diverges_is_left_out_of_the_sweep(trainings, capsys):
    def accuracy(rate):
        if rate > 1e-3:
            raise DivergedError("the loss is not finite.")
        return rate

    tried = trainings(accuracy, sweep=True, seeds=2)
    assert tried[-1] == (1e-3, 8)
    assert capsys.readouterr().out.count("is too high") == 2
    with pytest.raises(DivergedError):
        trainings(lambda rate: accuracy(1.0), sweep=True)


def test_seeds_alone_keep_the_rate(trainings):
    assert trainings(lambda rate: 0.5, seeds=3) == [(1e-3, 7), (1e-3, 8), (1e-3, 9)]


@pytest.fixture
def searches(tmp_path, monkeypatch):
    """searches(sets, …) → what each search for a rate got, and the rate of each training."""

    def run(sets, found=3e-4, **asked):
        searched, rates = [], []

        class FakeSearch:
            def __init__(self, folder, trainer, task, recipe, train, valid, seed):
                searched.append((folder.relative_to(tmp_path), train, valid))

            def run(self):
                return found and search.FoundRate(found, 1e-3)

        def outcome(trial, trainer, task, test):
            rates.append(pytest.approx(trial.recipe.optimizer.learning_rate))
            return Outcome(trial, {}, {"valid": {"accuracy": 0.5}}, task, 0.0)

        monkeypatch.setattr(search, "RateSearch", FakeSearch)
        monkeypatch.setattr(search, "run_trial", outcome)
        recipe = Recipe(FinetuneOptimizerConfig(), LossConfig(), ACCURACY, 1, 8, 0, 10, 10)
        given = {"seed": 7, "seeds": 1, "sweep": False} | asked
        sizes = {"num_hidden_layers": 12, "num_attention_heads": 2, "intermediate_size": 8}
        config = RoFormerConfig(vocab_size=9, hidden_size=384, **sizes)
        start = Start(config, {"a": None}, None, "float32")
        outcomes = Search(tmp_path, sets, start, TASK, recipe, **given).run()
        return searched, rates, outcomes

    return run


def examples(*numbers):
    return [Example((f"文{number}",), "ab"[number % 2], "") for number in numbers]


def test_the_rate_is_searched_once_for_all_seeds(searches):
    sets = Sets(examples(1, 2), examples(3), [], [])
    searched, rates, outcomes = searches(sets, seeds=3)
    assert searched == [(Path(), sets.train, sets.valid)]
    assert rates == [3e-4] * 3
    assert {outcome.found_rate.learning_rate for outcome in outcomes} == {3e-4}


def test_a_training_too_short_for_a_search_and_a_sweep_go_by_the_models_size(searches, capsys):
    sets = Sets(examples(1, 2), examples(3), [], [])
    _, rates, outcomes = searches(sets, found=None)
    assert rates == [1e-4]
    assert outcomes[0].found_rate.reason == "few-steps"
    assert "learning rate 1e-4, by the model's size" in capsys.readouterr().out
    searched, rates, outcomes = searches(sets, sweep=True)
    assert not searched
    assert rates == [5e-5, 1e-4, 2e-4, 4e-4]
    assert outcomes[0].found_rate.reason == "sweep"


def test_who_searches_the_rate_of_a_fold_has_not_seen_what_it_is_judged_by(searches):
    found = examples(*range(40))
    sets = Sets(found, [], [], folds(found, Classification, 4, 0))
    searched, rates, outcomes = searches(sets)
    assert rates == [3e-4] * 4
    assert len(searched) == 4
    for number, (folder, train, valid) in enumerate(searched):
        assert folder == Path("trials", f"fold-{number + 1}")
        given, held_out = sets.folds[number]
        assert not {one.texts for one in [*train, *valid]} & {one.texts for one in held_out}
        assert sorted(one.texts for one in [*train, *valid]) == sorted(one.texts for one in given)
        assert valid
    assert all(outcome.found_rate for outcome in outcomes)
    _, rates, _ = searches(Sets(found[:4], [], [], folds(found[:4], Classification, 2, 0)))
    assert rates == [1e-4] * 2  # too few to set some apart
