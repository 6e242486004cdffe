import os
import re
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from roformer_tf.cli import main
from roformer_tf.corpus.batches import pretraining_batches
from roformer_tf.errors import InputError, TerminatedError
from roformer_tf.pretraining import training_loop
from roformer_tf.pretraining.settings import PretrainConfig, Stage, make_stages, rows_before
from roformer_tf.training import devices
from roformer_tf.training.comparison import best_evaluation, read_run
from roformer_tf.training.run_files import read_metrics

DEFAULTS = {
    "length": 512,
    "batch_size": 32,
    "steps": 1000,
    "learning_rate": 1e-4,
    "warmup": 0.05,
    "accumulate": 1,
}
SIX = [  # the paper's stages in miniature
    {"length": 32, "batch-size": 8, "steps": 3},
    {"length": 64, "batch-size": 8, "steps": 2},
    {"length": 24, "batch-size": 8, "steps": 3},
    {"length": 16, "batch-size": 16, "steps": 2, "accumulate": 2},
    {"length": 64, "batch-size": 8, "steps": 2},
    {"length": 32, "batch-size": 16, "steps": 4, "learning-rate": 5e-4},
]
BORDERS = [3, 5, 8, 10, 12, 16]


def test_without_stages_there_is_one():
    (stage,) = make_stages([], DEFAULTS)
    assert stage == Stage(512, 32, 1000, 1e-4, 0.05, 1, start=0)


def test_stages_follow_each_other():
    first, second = make_stages(
        ["length=128 steps=10", "batch-size=64,steps=20,learning-rate=2e-4"], DEFAULTS
    )
    assert first == Stage(128, 32, 10, 1e-4, 0.05, 1, start=0)
    assert second == Stage(512, 64, 20, 2e-4, 0.05, 1, start=10)


def test_a_stage_continues_after_the_rows_of_earlier_ones():
    texts = ["steps=10", "length=128 steps=5", "steps=3 batch-size=64", "steps=1"]
    stages = make_stages(texts, DEFAULTS)
    assert [rows_before(stages, stage) for stage in stages] == [0, 0, 320, 320 + 192]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("length=64", "has no number of steps"),
        ("steps=ten", "is 'ten', not a number"),
        ("steps=0", "steps is 0"),
        ("steps=5 depth=3", "has 'depth=3', but takes only length"),
        ("steps", "not a number"),
    ],
)
def test_a_stage_that_cannot_be_read_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        make_stages(["steps=1", text], DEFAULTS)


@pytest.fixture(scope="module", autouse=True)
def untraced(eagerly):
    """Run steps eagerly: four lengths and two batch sizes would each need a trace."""
    with eagerly():
        yield


@pytest.fixture(scope="module")
def flags(pretrain_flags, tmp_path_factory):
    """A function that returns the flags of a run with six stages in a YAML file."""
    file = tmp_path_factory.mktemp("yaml") / "stages.yaml"
    file.write_text(yaml.safe_dump({"stages": SIX, "mask-rate": [0.3, 0.15]}))
    settings = {
        "steps": None,
        "length": None,
        "save_every": 3,
        "log_every": 1,
        "keep_checkpoints": 20,
        "held_out": 0.03,
    }
    return lambda output, **changes: [
        *("--config", str(file)),
        *pretrain_flags(output, **settings | changes),
    ]


@pytest.fixture(scope="module")
def first_rows():
    """The first row of each stage of `six`, among the rows of its length."""
    return []


@pytest.fixture(scope="module")
def read_batches():
    """The batches of each stage of `six`, from its first step."""
    return []


@pytest.fixture(scope="module")
def six(flags, first_rows, read_batches, tmp_path_factory):
    """The folder of a finished run with six stages."""

    def batches(rows, start_row, **settings):
        first_rows.append(start_row)
        read_batches.append(pretraining_batches(rows, start_row=start_row, **settings))
        return read_batches[-1]

    output = tmp_path_factory.mktemp("six") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_loop, "pretraining_batches", batches)
        assert main(["pretrain", *flags(output)]) == 0
    return output


def checkpoint_steps(run):
    return sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").iterdir())


def test_the_papers_six_stages_run_from_a_yaml_file(six):
    lines = read_metrics(six / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 17))
    assert checkpoint_steps(six) == sorted({*range(3, 16, 3), *BORDERS})
    assert {path.name for path in six.glob("rows-*")} == {f"rows-{x}" for x in (16, 24, 32, 64)}
    vocabularies = {(folder / "vocab.txt").read_bytes() for folder in six.glob("rows-*")}
    assert len(vocabularies) == 1


def test_evaluations_of_rows_of_other_lengths_are_not_compared(six):
    """The best model is chosen within the last length, although stage 2 has the lowest loss."""
    lines = read_metrics(six / "evaluations.jsonl")
    stages = [sum(line["step"] > stop for stop in BORDERS) for line in lines]
    assert [line["length"] for line in lines] == [SIX[number]["length"] for number in stages]
    losses = {line["step"]: line["held_out_loss"] for line in lines if line["step"]}
    best = min((15, 16), key=losses.__getitem__)
    assert losses[5] < losses[best] - 0.01
    want = six / "checkpoints" / f"step-{best:08}" / "model" / "model.safetensors"
    assert (six / "best" / "model.safetensors").read_bytes() == want.read_bytes()
    assert best_evaluation(read_run(six, "six").evaluations) == (best, losses[best])


def test_each_stage_continues_after_the_rows_of_its_length(six, first_rows):
    assert first_rows == [0, 0, 0, 0, 2 * 8, 3 * 8]


def test_each_stage_has_its_own_learning_rate_schedule(six):
    rates = [line["learning_rate"] for line in read_metrics(six / "metrics.jsonl")]
    for start, stop in zip([0, *BORDERS], BORDERS, strict=False):
        peak = 5e-4 if stop == BORDERS[-1] else 1e-3
        assert rates[start] == pytest.approx(peak)
        assert rates[stop - 1] == pytest.approx(peak / (stop - start))


def test_the_mask_rate_decreases_over_all_stages(six, read_batches):
    """The mask rate decreases linearly over all stages.

    Every token is a word here, so the number of masked tokens is exact.
    """
    for batches, start, stop in zip(read_batches, [0, *BORDERS], BORDERS, strict=False):
        for step in range(start, stop):
            inputs, _, weights = batches[step - start]
            documents = inputs["sequence_ids"]
            tokens = (documents > 0).sum(1) - 2 * documents.max(1)  # without [CLS] and [SEP]
            rate = 0.3 - 0.15 * step / (BORDERS[-1] - 1)
            want = np.maximum(1, np.round(rate * tokens))
            assert np.abs(weights.sum(1) - want).max() <= 1  # a half may round either way
            assert np.abs(weights.sum(1) - want).mean() < 0.2


def test_one_schedule_spans_all_stages(pretrain_flags, tmp_path):
    run = tmp_path / "run"
    flags = pretrain_flags(run, steps=None, log_every=1, warmup=0, held_out=0)
    stages = ["steps=2", "steps=3 batch-size=4"]
    assert main(["pretrain", *flags, "--one-schedule", "--stages", *stages]) == 0
    rates = [line["learning_rate"] for line in read_metrics(run / "metrics.jsonl")]
    assert rates == pytest.approx([1e-3 * (5 - step) / 5 for step in range(5)])


@pytest.mark.parametrize("own", ["learning-rate=1e-4", "warmup=0.5"])
def test_one_schedule_with_several_learning_rates_is_refused(pretrain_flags, tmp_path, own, capsys):
    run = tmp_path / "run"
    flags = pretrain_flags(run, steps=None, warmup=0)
    flags += ["--one-schedule", "--stages", "steps=2", f"steps=3 {own}"]
    assert main(["pretrain", *flags]) == 2
    assert "--one-schedule has one learning rate" in capsys.readouterr().err
    # The same for all stages is one schedule.
    stages = (f"steps=2 {own}", f"steps=3 {own}")
    PretrainConfig(corpus=("a",), vocab="b", output="c", stages=stages, one_schedule=True)


@pytest.mark.parametrize(
    "back_to", [pytest.param(step, marks=pytest.mark.slow) for step in (3, 5, 6, 9, 10)]
)
def test_a_run_resumes_exactly_near_a_border(six, flags, stable_metrics, tmp_path, back_to):
    """A run resumes exactly from a checkpoint at, before and after the border of two stages."""
    run = shutil.copytree(six, tmp_path / "run")
    for step in checkpoint_steps(run):
        if step > back_to:
            shutil.rmtree(run / "checkpoints" / f"step-{step:08}")
    assert main(["pretrain", *flags(run)]) == 0
    for file in (Path("model", "model.safetensors"), Path("best", "model.safetensors")):
        assert (run / file).read_bytes() == (six / file).read_bytes()
    last = Path("checkpoints", f"step-{BORDERS[-1]:08}", "training.safetensors")
    assert (run / last).read_bytes() == (six / last).read_bytes()
    assert stable_metrics(run / "metrics.jsonl") == stable_metrics(six / "metrics.jsonl")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM between processes")
def test_sigterm_at_the_last_checkpoint_of_a_stage_stops_the_run(
    flags, monkeypatch, tmp_path, capsys
):
    """The stage has no further step at whose end the signal could be noticed."""
    run, take_snapshot = tmp_path / "run", training_loop.take_snapshot

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGTERM)
        return take_snapshot(*arguments)

    monkeypatch.setattr(training_loop, "take_snapshot", interrupted)
    assert main(["pretrain", *flags(run)]) == 75
    last = run / "checkpoints" / f"step-{BORDERS[0]:08}"
    assert f"stopped by SIGTERM, saved {last}." in capsys.readouterr().err
    assert checkpoint_steps(run) == [BORDERS[0]]


def test_other_stages_are_another_run(six, flags, capsys):
    assert main(["pretrain", *flags(six), "--stages", "length=32 steps=16"]) == 2
    assert "stages was" in capsys.readouterr().err


def test_rows_of_one_length_are_refused_for_stages_of_several(six, flags, tmp_path, capsys):
    run = tmp_path / "run"
    arguments = flags(run, corpus=None, vocab_size=None, rows=six / "rows-32")
    assert main(["pretrain", *arguments]) == 2
    assert "stage 2 has length 64" in capsys.readouterr().err
    assert not run.exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"warmup": 1.5}, "stage 2: warmup is 1.5"),
        ({"learning-rate": "inf"}, "stage 2: --learning-rate is inf"),
        ({"learning-rate": "nan"}, "stage 2: --learning-rate is nan"),
        ({"warmup": 0.95}, "stage 2: --warmup and --decay-share are 0.95 and 0.1"),
        ({"length": 2}, "stage 2: length is 2"),
        ({"batch-size": 6, "accumulate": 4}, "stage 2: batches of 6 sequences"),
    ],
)
def test_a_later_stage_is_checked_before_the_first_begins(wrong, message, flags, tmp_path, capsys):
    file, run = tmp_path / "stages.yaml", tmp_path / "run"
    file.write_text(yaml.safe_dump({"stages": [{"steps": 2}, {"steps": 2} | wrong]}))
    arguments = [*flags(run, schedule="wsd")[2:], "--config", str(file)]
    try:
        code = main(["pretrain", *arguments])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2
    err = " ".join(re.sub("[│╭╮╰╯─]", " ", capsys.readouterr().err).split())
    assert message in err
    assert "Traceback" not in err
    assert not run.exists()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes."), 1),
        (MemoryError(), 1),
        (OSError(28, "No space left on device"), 1),
        (RuntimeError("Gloo AllReduce failed: Connection reset by peer"), 75),
    ],
)
def test_only_an_error_of_another_process_is_reported_as_a_lost_one(
    error, code, tmp_path, monkeypatch
):
    codes = []
    for module in (training_loop, devices):
        monkeypatch.setattr(module, "exit_at_once", codes.append)
    monkeypatch.setattr(training_loop.PreparedRows, "open", lambda folder: None)
    run = SimpleNamespace(group=SimpleNamespace(count=2), folders={32: tmp_path}, output=tmp_path)
    stage = Stage(32, 8, 1, 1e-4, 0.0, 1, start=0)
    expected = pytest.raises(TerminatedError if code == 75 else type(error))
    with expected as raised, training_loop._explained(run, stage):
        raise error
    assert codes == [code]
    assert ("lost another process" in str(raised.value)) == (code == 75)
