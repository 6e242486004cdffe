"""The learning rate of who gives none: by the model's size, and by short trainings around that."""

import json
import math
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.errors import DivergedError
from roformer_tf.finetuning import learning_rate
from roformer_tf.finetuning.learning_rate import FORWARD, RESTART, choose, make_plan, row_losses
from roformer_tf.finetuning.losses import TaskLoss
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.trial import Recipe
from roformer_tf.runs.optimizers.settings import FinetuneOptimizerConfig
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.metrics import ACCURACY

PLACES = {"北京": "甲", "上海": "乙"}
RATES = [5e-4, 1e-3, 2e-3]  # around what is usual for so small a model
LITTLE = {"SHARE": 2.0, "RESTART": 0, "FEWEST": 2}
"""By what a search may take twice as many batches as the training, and two are enough."""


@pytest.fixture(autouse=True)
def plain_font(monkeypatch):
    """Cutting a font takes most of a report's time."""
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")


def reviews(path, count, seed):
    """Random characters with one of two places among them, which is the label."""
    rng = np.random.default_rng(seed)
    places = list(PLACES)
    texts = [
        "".join(rng.choice(list("今天气很好我们去公园学习中国经济"), 8)) + places[number % 2]
        for number in range(count)
    ]
    rows = [f"{text}\t{PLACES[text[8:]]}\n" for text in texts]
    path.write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    return path


@pytest.fixture
def soon(monkeypatch):
    """Have a search be done in a few batches."""
    with monkeypatch.context() as patch:
        for name, value in LITTLE.items():
            patch.setattr(learning_rate, name, value)
        yield


@pytest.fixture(scope="module")
def flags(shallow, tmp_path_factory):
    """flags(output, …) of a training of 4 batches, dropout on, and a validation set of 24."""
    folder = tmp_path_factory.mktemp("reviews")
    settings = {
        "checkpoint": shallow,
        "train": reviews(folder / "train.tsv", 16, 1),
        "valid": reviews(folder / "valid.tsv", 24, 2),
        "epochs": 2,
        "batch-size": 8,
        "precision": "float32",
        "log-every": 1,
    }

    def flags(output, *more, **changes):
        given = settings | changes | {"output": output}
        words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
        return ["finetune", *words, "--no-baseline", *more]

    return flags


@pytest.fixture(scope="module")
def searched(flags, tmp_path_factory, eagerly):
    """The folder of a run that nobody gave a learning rate."""
    run = tmp_path_factory.mktemp("searched") / "run"
    with pytest.MonkeyPatch.context() as patch, eagerly():
        for name, value in LITTLE.items():
            patch.setattr(learning_rate, name, value)
        patch.setattr(report_pages, "cut_font", lambda characters: b"font")
        assert main(flags(run)) == 0
    return run


def report_of(run):
    return json.loads((run / "report.json").read_text(encoding="utf-8"))


def weights(run):
    return (run / "model" / "model.safetensors").read_bytes()


def without_times(search):
    """search.json but for how long each training took."""
    known = json.loads(search.read_text(encoding="utf-8"))
    return known | {"tried": [one | {"seconds": 0} for one in known["tried"]]}


def test_what_was_tried_is_told_and_the_best_is_taken(searched):
    report = report_of(searched)
    found = report["rate_search"]
    assert report["settings"]["learning_rate"] == "auto"
    assert "learning_rate: auto" in (searched / "settings.yaml").read_text(encoding="utf-8")
    assert [one["learning_rate"] for one in found["tried"]] == RATES
    assert found["usual"] == 1e-3
    losses = {one["learning_rate"]: one["loss"] for one in found["tried"]}
    assert found["learning_rate"] in (min(losses, key=losses.get), 1e-3)
    assert len(set(losses.values())) == 3
    lines = (searched / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    highest = max(json.loads(line)["learning_rate"] for line in lines)
    assert found["learning_rate"] / 2 < highest <= np.float32(found["learning_rate"])
    assert report["seconds"]["learning rate search"] == found["seconds"] > 0
    page = (searched / "report.md").read_text(encoding="utf-8")
    assert "## 学习率" in page
    for rate, loss in losses.items():
        assert f"| {learning_rate.spelled(rate)} | {loss:.4f} |" in page
    assert not list(searched.glob("**/checkpoints"))


@pytest.mark.usefixtures("soon", "eager_steps")
def test_the_training_is_that_of_who_gives_the_rate_by_hand(searched, flags, tmp_path, capsys):
    found = report_of(searched)["rate_search"]["learning_rate"]
    capsys.readouterr()
    assert main(flags(tmp_path / "run", **{"learning-rate": found})) == 0
    assert "tried" not in capsys.readouterr().out
    assert weights(tmp_path / "run") == weights(searched)
    assert report_of(tmp_path / "run")["rate_search"] == {}
    for name in ("predictions.tsv", "evaluations.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (searched / name).read_bytes()


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_a_killed_search_goes_on_and_ends_the_same(searched, flags, tmp_path, capsys, monkeypatch):
    """Killed within the second rate; the folder then goes on without the first one."""
    run = tmp_path / "run"
    judge = learning_rate.row_losses
    judged = []

    def killed(*given):
        judged.append(given)
        if len(judged) == 2:
            raise KeyboardInterrupt
        return judge(*given)

    with monkeypatch.context() as patch:
        patch.setattr(learning_rate, "row_losses", killed)
        assert main(flags(run)) == 130
    assert len(json.loads((run / "search.json").read_text(encoding="utf-8"))["tried"]) == 1
    capsys.readouterr()
    assert main(flags(run)) == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line.startswith("tried 5e-4")] == []
    assert [line[:10] for line in said.splitlines() if line.startswith("tried")] == [
        "tried 1e-3",
        "tried 2e-3",
    ]
    assert without_times(run / "search.json") == without_times(searched / "search.json")
    assert weights(run) == weights(searched)

    assert main(flags(run)) == 0  # all is done: nothing is tried again
    assert "tried" not in capsys.readouterr().out
    other = reviews(tmp_path / "other.tsv", 128, 7)
    assert main(flags(run, train=other)) == 2


def test_a_rate_that_diverges_is_out(monkeypatch):
    """And so is the model that it broke."""
    forgotten = []
    tries = object.__new__(learning_rate._Tries)
    tries.trainer = SimpleNamespace(forget=lambda: forgotten.append(True))
    tries.recipe = recipe()

    def diverges(rate):
        raise DivergedError("the loss is nan at step 3.")

    monkeypatch.setattr(tries, "_judge", diverges)
    one = tries._try(2e-3)
    assert {key for key in one if key != "seconds"} == {"learning_rate"}
    assert forgotten == [True]
    assert tries._told(one) == "tried 2e-3: the loss is not finite"
    assert choose([*tried([1.0], [1.1], None)[:2], one], RATES[1], ACCURACY) == RATES[1]


def tried(*losses, accuracies=(0.8, 0.8, 0.8)):
    """The losses of each row, by rates in rising order; None where one diverged."""
    found = [{"learning_rate": rate} for rate in RATES]
    for one, rows, accuracy in zip(found, losses, accuracies, strict=True):
        if rows is not None:
            metrics = {"accuracy": accuracy}
            one |= {"losses": list(rows), "loss": float(np.mean(rows)), "metrics": metrics}
    return found


def test_another_rate_than_the_usual_is_taken_where_it_is_certainly_better():
    rng = np.random.default_rng(0)
    usual = rng.normal(0.6, 0.3, 200)
    worse, better, little = (usual + rng.normal(x, 0.1, 200) for x in (0.1, -0.05, -0.008))
    low, middle, high = RATES

    def chosen(*losses, **more):
        return choose(tried(*losses, **more), middle, ACCURACY)

    assert chosen(worse, usual, worse) == middle
    assert chosen(worse, usual, better) == high
    assert chosen(better, usual, worse) == low
    assert little.mean() < usual.mean()
    assert chosen(worse, usual, little) == middle
    assert chosen(worse, usual, better, accuracies=(0.7, 0.8, 0.79)) == middle
    assert chosen(little, usual, better, accuracies=(0.8, 0.8, 0.79)) == middle
    assert chosen(worse, None, little, accuracies=(0.9, None, 0.1)) == high
    assert chosen([0.1], [0.2], [0.3]) == middle  # one row says nothing
    with pytest.raises(DivergedError, match=r"5e-4, 1e-3, 2e-3"):
        chosen(None, None, None)


def recipe(**changes):
    settings = {"epochs": 3, "batch_size": 32, "patience": 0}
    given = {key: value for key, value in (settings | changes).items() if key != "accumulate"}
    optimizer = FinetuneOptimizerConfig(accumulate=changes.get("accumulate", 1))
    return Recipe(
        optimizer=optimizer, loss=LossConfig(), metric=ACCURACY, save_every=9, log_every=9, **given
    )


@pytest.mark.parametrize("train", [3000, 5000, 16_883, 1_000_000])
@pytest.mark.parametrize("changes", [{}, {"accumulate": 4, "epochs": 12}, {"patience": 2}])
@pytest.mark.parametrize("valid", [270, 50_000])
def test_a_search_takes_less_than_a_quarter_of_the_training(train, changes, valid):
    given = {"epochs": 9, **changes}
    plan = make_plan(1e-3, recipe(**given), train, valid, valid)
    fewest = min(given["epochs"], given.get("patience", 99) + 1)  # epochs that it has for certain
    batches = fewest * math.ceil(train / 32)
    assert plan.rates == ((5e-4, 1e-3, 2e-3) if batches > 300 else (5e-4, 1e-3))
    judged = FORWARD * math.ceil(plan.examples / 32)
    taken = len(plan.rates) * (plan.batches + judged + RESTART)
    assert taken <= 0.25 * batches
    assert taken > 0.15 * batches or plan.batches > 490
    assert plan.batches % given.get("accumulate", 1) == 0
    assert plan.examples <= valid


def test_a_short_training_is_no_ground_for_a_search():
    assert make_plan(1e-3, recipe(), 30, 4, 4) is None
    assert make_plan(1e-3, recipe(), 1000, 100, 100) is None
    assert make_plan(1e-3, recipe(accumulate=8), 2160, 270, 270) is None
    assert make_plan(1e-3, recipe(epochs=30, patience=1), 1000, 100, 100) is None
    assert make_plan(1e-3, recipe(epochs=30), 1000, 100, 100)


def test_all_of_a_search_is_a_share_of_the_batches_that_a_run_has_for_certain():
    patient, whole = (make_plan(1e-3, recipe(epochs=9, patience=n), 5000, 99, 99) for n in (2, 0))
    assert whole.batches > 2 * patient.batches


def test_row_losses_average_to_the_loss_that_is_trained_on():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(7, 3)).astype("float32")
    targets, weights = rng.integers(0, 3, 7), rng.uniform(0.5, 1, 7).astype("float32")
    task = Classification(labels=("a", "b", "c"))
    want = TaskLoss("classification")(targets, logits, weights)
    got = row_losses(task, [*logits], targets, weights)
    assert got.shape == (7,)
    assert got.mean() == pytest.approx(float(keras.ops.convert_to_numpy(want)), rel=1e-6)
    scores = np.exp(logits.astype("float64"))
    each = -np.log(scores[np.arange(7), targets] / scores.sum(1))
    np.testing.assert_allclose(got, each * weights * 7 / weights.sum(), rtol=1e-5)


def test_losses_of_tokens_count_by_their_weights():
    from roformer_tf.tasks.tagging import Tagging

    rng = np.random.default_rng(0)
    lengths = (5, 9, 2)
    logits = [rng.normal(size=(n, 3)).astype("float32") for n in lengths]
    targets = [rng.integers(0, 3, n) for n in lengths]
    weights = [(np.arange(n) > 0).astype("float32") for n in lengths]
    got = row_losses(Tagging(labels=("O", "B-甲", "I-甲")), logits, targets, weights)
    each = [
        sum(-np.log(np.exp(x[i, t]) / np.exp(x[i]).sum()) * w for i, (t, w) in enumerate(pairs))
        for x, pairs in (
            (x.astype("float64"), [*zip(t, w, strict=True)])
            for x, t, w in zip(logits, targets, weights, strict=True)
        )
    ]
    np.testing.assert_allclose(got, np.array(each) * 3 / 13, rtol=1e-5)


@pytest.mark.parametrize(
    ("tried", "of_training", "of_search"),
    [
        ([9.0, 4.0, 5.0], 5, 13),  # the first compiled
        ([9.0], 0, 9),  # nothing tells what of it was compiling
        ([9.0, None, 5.0], 4, 10 + 1),  # the second diverged, after a second
        ([None, 6.0, 5.0], 0, 11 + 1),
    ],
)
def test_what_the_first_compiles_counts_to_the_training(tried, of_training, of_search):
    tries = object.__new__(learning_rate._Tries)
    tries.trainer, tries.task = SimpleNamespace(preparation=0.0), Classification(labels=("a", "b"))
    tried = [{"seconds": x, "loss": 0.5} if x else {"seconds": 1.0} for x in tried]
    tries._share_compiling(tried)
    assert tries.trainer.preparation == of_training
    assert sum(one["seconds"] for one in tried) == of_search
