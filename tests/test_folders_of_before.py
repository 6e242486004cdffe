"""What an earlier version wrote opens, and goes on.

`fixtures/before/` is by commit f659b99 and the commands below; two of its runs are half-way:
`run/` after step 16 of 22 (its model/ is that of the end), `half/` after step 2 of 40. `keras/` is
by commit c0b4d36: a model of the user's with one attention layer, and one of ours, by `model.save`.
"""

import json
import shutil

import keras
import numpy as np
import pytest
import yaml

from roformer_tf.cli import main
from roformer_tf.flags import RENAMED

PRETRAIN = (
    "pretrain --corpus corpus.txt --vocab-size 100 --tokenization char --length 32 --held-out 0.1 "
    "--workers 1 --architecture architecture.json --batch-size 8 --steps 22 --save-every 8 "
    "--log-every 3 --learning-rate 1e-3 --precision float32 --output run"
)
FINETUNE = (
    "finetune --checkpoint run/model --train reviews.tsv --output half --epochs 8 --batch-size 8 "
    "--max-length 24 --learning-rate 1e-3 --precision float32 --save-every 2"
)


@pytest.fixture
def before(request, tmp_path, monkeypatch):
    """A copy of the old folders, which is where one is."""
    here = request.path.parent / "fixtures" / "before"
    shutil.copytree(here, tmp_path / "before")
    monkeypatch.chdir(tmp_path / "before")
    return tmp_path / "before"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.usefixtures("eager_steps")
def test_a_half_done_pretraining_goes_on_and_ends_as_it_did(before, capsys):
    """With other settings that change no weight; one that does is refused by its name of now."""
    assert main([*PRETRAIN.split(), "--rate", "0.2"]) == 2
    said = capsys.readouterr().err
    assert "--rate is now --mask-rate" in said
    assert "run holds a run with other settings: mask_rate was 0.15 and is 0.2." in said
    rows = {path.name: path.read_bytes() for path in (before / "run/rows").iterdir()}
    assert main([*PRETRAIN.split(), "--keep-checkpoints", "1", "--max-skipped", "3"]) == 0
    assert len([*(before / "run/checkpoints").iterdir()]) == 1
    said = capsys.readouterr()
    assert "continuing from run/checkpoints/step-00000016" in said.out
    told = [line for line in said.err.splitlines() if line.startswith("run/settings.yaml: ")]
    assert len(told) == 1
    assert told[0].count(" is now ") == len(RENAMED["pretrain"])
    recorded = yaml.safe_load((before / "run/settings.yaml").read_text(encoding="utf-8"))
    assert recorded["mask_rate"] == 0.15
    assert {old.replace("-", "_") for old in RENAMED["pretrain"]}.isdisjoint(recorded)
    assert {path.name: path.read_bytes() for path in (before / "run/rows").iterdir()} == rows
    for name, figure in (("metrics", "loss"), ("evaluations", "held_out_loss")):
        ended, now = lines(before / f"ended_{name}.jsonl"), lines(before / f"run/{name}.jsonl")
        assert [line["step"] for line in now] == [line["step"] for line in ended]
        np.testing.assert_allclose(
            [line[figure] for line in now], [line[figure] for line in ended], rtol=1e-4
        )


@pytest.mark.usefixtures("eager_steps")
def test_rows_are_trained_on(before):
    flags = "--architecture architecture.json --batch-size 8 --steps 1 --output again"
    assert main(["pretrain", "--rows", "run/rows", *flags.split(), "--evaluation-rows", "4"]) == 0
    assert (before / "again/model/model.safetensors").exists()


def test_a_half_done_fine_tuning_goes_on_to_its_report(before, capsys):
    assert main(FINETUNE.split()) == 0
    assert "continuing from half/checkpoints/step-00000002" in capsys.readouterr().out
    report = json.loads((before / "half/report.json").read_text(encoding="utf-8"))
    assert lines(before / "half/metrics.jsonl")[-1]["step"] == 40
    assert report["data"][0]["examples"] == 38


def test_a_fine_tuned_model_answers_as_it_did(before):
    flags = "predict --model finetuned/model --input new.txt --output now.tsv"
    assert main(flags.split()) == 0

    def answers(name):
        head, *rows = (before / name).read_text(encoding="utf-8").splitlines()
        return head, [(row.split("\t")[0], *map(float, row.split("\t")[1:3])) for row in rows]

    (head, then), (now_head, now) = answers("answers.tsv"), answers("now.tsv")
    assert head == now_head
    assert [row[0] for row in now] == [row[0] for row in then]
    np.testing.assert_allclose([row[1:] for row in now], [row[1:] for row in then], atol=1e-5)


def test_keras_files_open_and_answer_as_they_did(before):
    answers = np.load(before / "keras/answers.npz")
    layer = keras.saving.load_model(before / "keras/layer.keras")
    got = layer.predict([answers["features"], answers["sequence_ids"]], verbose=0)
    real = answers["sequence_ids"] != 0
    np.testing.assert_allclose(got[real], answers["layer"][real], atol=1e-5)
    model = keras.saving.load_model(before / "keras/model.keras")
    got = keras.ops.convert_to_numpy(model({"token_ids": answers["token_ids"]}))
    np.testing.assert_allclose(got, answers["model"], atol=1e-5)
    config = layer.get_layer("rotary").get_config()
    assert (config["rotary_style"], config["rotary_base"], config["dropout"]) == ("half", 500, 0.1)
