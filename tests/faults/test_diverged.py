"""A diverging loss stops the run, and the last good checkpoint stays usable."""

import json

import keras
import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.models.heads import RoFormerForMaskedLM


def everything_finite(folder):
    model = RoFormerForMaskedLM.from_pretrained(folder)
    return all(np.isfinite(keras.ops.convert_to_numpy(v)).all() for v in model.weights)


@pytest.mark.slow
def test_an_absurd_learning_rate_stops_the_run_with_one_message(pretrain_flags, tmp_path, capsys):
    """The rate rises by 0.02 per step: first steps are harmless, later ones diverge."""
    run = tmp_path / "run"
    rising = {"learning_rate": 1000, "warmup": 0.99, "steps": 50_500, "clip_norm": 1e9}
    assert main(["pretrain", *pretrain_flags(run, **rising, save_every=10)]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("roformer-tf pretrain: training stopped: the ")
    assert "lower --learning-rate" in message

    newest = max((run / "checkpoints").iterdir())
    assert f"The last good checkpoint is {newest}" in message
    assert f"--init-from {newest / 'model'}" in message
    for checkpoint in (run / "checkpoints").iterdir():
        assert everything_finite(checkpoint / "model")
    weights = (run / "model" / "model.safetensors").read_bytes()
    assert weights == (newest / "model" / "model.safetensors").read_bytes()

    evaluations = [json.loads(x) for x in (run / "evaluations.jsonl").read_text().splitlines()]
    assert evaluations[-1]["step"] == int(newest.name.removeprefix("step-"))
    start = evaluations[0]["held_out_loss"]
    assert all(line["held_out_loss"] < 3.5 * start for line in evaluations)
    assert "NaN" not in (run / "metrics.jsonl").read_text()


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize("held_out", [0.1, 0], ids=["evaluated", "not evaluated"])
def test_weights_that_become_nan_are_not_saved(pretrain_flags, tmp_path, capsys, held_out):
    """One step of infinite length makes the weights NaN, although its own loss is still finite."""
    run = tmp_path / "run"
    absurd = {"learning_rate": 1e38, "warmup": 0, "clip_norm": 1e30, "weight_decay": 1e10}
    flags = pretrain_flags(run, **absurd, save_every=1, held_out=held_out)
    assert main(["pretrain", *flags]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert "training stopped" in message
    assert "Start again under another --output" in message
    assert not list((run / "checkpoints").glob("*"))
    assert not (run / "model").exists()
