"""What a report advises where a model is no better than its baseline."""

import shlex

import pytest

from roformer_tf.cli import load_settings
from roformer_tf.finetuning.report.advice import advise, command, next_output
from roformer_tf.flags import parsed

GIVEN = {"checkpoint": "my models/a", "train": "t.tsv", "valid": "v.tsv", "output": "runs/a"}


def tried(*rates, taken):
    return {
        "learning_rate": taken,
        "usual": rates[1],
        "reason": "",
        "tried": [{"learning_rate": x, "loss": 0.5, "metrics": {}} for x in rates],
    }


def report(ours=0.8, baseline=0.86, accuracies=(0.7, 0.8, 0.75), examples=2700, **changes):
    """A finished run, as far as advice goes by it."""
    return {
        "task": "classification",
        "metric": "accuracy",
        "judged": "test",
        "test": {"accuracy": ours},
        "intervals": {"test": {"accuracy": [ours - 0.02, ours + 0.02]}},
        "baseline": {"name": "TF-IDF", "test": {"accuracy": baseline}},
        "data": [{"name": "train", "examples": examples}],
        "evaluations": [
            {"epoch": float(number), "accuracy": x} for number, x in enumerate(accuracies, 1)
        ],
        "rate_search": tried(1e-4, 2e-4, 5e-4, taken=2e-4),
        "settings": {"epochs": 3, "learning_rate": "auto", "sweep": False, "folds": 0},
    } | changes


def kinds(found, width=256, given=GIVEN):
    return [one["kind"] for one in advise(found, given, width)]


def test_who_is_better_than_the_baseline_gets_no_advice():
    assert kinds(report(ours=0.95)) == []
    assert kinds(report(ours=0.87)) != []  # by what may be chance
    assert kinds({key: x for key, x in report().items() if key != "baseline"}) == []


def test_advice_goes_by_what_the_run_shows():
    assert kinds(report()) == ["released-checkpoint", "sweep"]
    assert kinds(report(accuracies=(0.6, 0.7, 0.8)))[0] == "more-epochs"
    assert "more-epochs" not in kinds(report(accuracies=(0.6, 0.7)))  # of 3: it stopped early
    one = report(accuracies=(0.7,), settings=report()["settings"] | {"epochs": 1})
    assert "more-epochs" not in kinds(one)  # chosen: the examples are many
    assert kinds(one, given=GIVEN | {"epochs": 1})[0] == "more-epochs"
    usual = {"rate_search": tried(1e-4, 2e-4, taken=2e-4)}
    assert "rate-at-the-edge" not in kinds(report(**usual))
    edge = {"rate_search": tried(1e-4, 2e-4, 5e-4, taken=5e-4)}
    assert kinds(report(**edge))[0] == "rate-at-the-edge"
    assert kinds(report(examples=300))[-2:] == ["more-data", "sweep"]
    assert kinds(report(), width=768)[0] == "continue-pretraining"
    by_hand = {"rate_search": {}, "settings": {"epochs": 3, "learning_rate": 2e-5}}
    assert kinds(report(**by_hand))[0] == "search-rate"
    scratch = {"settings": report()["settings"] | {"from_scratch": True}}
    assert kinds(report(**scratch))[0] == "pretrained"
    assert len(kinds(report(accuracies=(0.6, 0.7, 0.8), examples=9, **edge))) == 3


def test_every_command_can_be_typed_and_changes_what_it_says():
    edge = report(
        rate_search=tried(1e-4, 2e-4, 5e-4, taken=1e-4), accuracies=(0.6, 0.7, 0.8), examples=9
    )
    found = [*advise(edge, GIVEN, 256), *advise(report(), GIVEN, 256)]
    changes = {
        "rate-at-the-edge": ("optimizer.learning_rate", 5e-5),
        "more-epochs": ("epochs", 6),
        "released-checkpoint": ("checkpoint", "chinese_roformer-base"),
        "sweep": ("sweep", True),
    }
    assert {one["kind"] for one in found} == set(changes)
    for one in found:
        program, name, *words = shlex.split(one["command"])
        assert (program, name) == ("roformer-tf", "finetune")
        settings = parsed(load_settings("finetune"), words, "finetune")
        assert settings.output == "runs/a-2"
        assert (settings.train, settings.valid) == ("t.tsv", "v.tsv")
        key, value = changes[one["kind"]]
        for part in key.split("."):
            settings = getattr(settings, part)
        assert settings == value
        assert one["en"]
        assert one["zh"]


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ({"learning_rate": 0.00031415}, "--learning-rate 0.00031415"),
        ({"learning_rate": 5e-4, "valid_share": 0.125}, "--learning-rate 5e-4 --valid-share 0.125"),
        ({"text_columns": ["标题", "正 文"]}, "--text-columns 标题 '正 文'"),
        ({"baseline": False, "sweep": True}, "--no-baseline --sweep"),
        ({"precision": "float32", "test": None}, ""),
    ],
)
def test_settings_are_typed_as_they_were(given, flags):
    words = shlex.split(command({"output": "runs/a"} | given))
    assert words == ["roformer-tf", "finetune", *shlex.split(flags), "--output", "runs/a-2"]


def test_another_output_is_one_that_is_not_there(tmp_path):
    run = tmp_path / "run"
    assert next_output(str(run)) == f"{run}-2"
    (tmp_path / "run-2").mkdir()
    assert next_output(str(run)) == f"{run}-3"
    assert next_output(f"{run}-2") == f"{run}-3"
    assert next_output("run-x") == "run-x-2"
