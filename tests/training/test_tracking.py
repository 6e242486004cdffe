import shutil
import sys

import pytest

from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.training.run_files import read_metrics
from roformer_tf.training.tracking import IDENTITY, tracked


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture
def told(monkeypatch):
    """[((project, identity of the run), line), …] that the real package receives."""
    import wandb

    lines, log = [], wandb.Run.log

    def listen(run, line, *rest, **settings):
        lines.append(((run.project, run.id), line))
        return log(run, line, *rest, **settings)

    monkeypatch.setattr(wandb.Run, "log", listen)
    return lines


@pytest.mark.slow
def test_every_line_is_at_wandb_too_and_a_resumed_run_is_the_same_run(
    pretrain_flags, told, tmp_path
):
    run = tmp_path / "run"
    flags = pretrain_flags(run, steps=6, save_every=3, log_every=3, wandb="字")
    assert main(["pretrain", *flags]) == 0
    trained = {line["step"]: line["loss"] for _, line in told if "loss" in line}
    assert trained == {x["step"]: x["loss"] for x in read_metrics(run / "metrics.jsonl")}
    judged = [line for _, line in told if "held_out_loss" in line]
    assert [line["step"] for line in judged] == [0, 3, 6]
    assert "held_out_loss_by_length/64" in judged[0]
    assert len(list(run.glob("wandb/offline-run-*/*.wandb"))) == 1

    shutil.rmtree(run / "checkpoints/step-00000006")
    count = len(told)
    assert main(["pretrain", *flags]) == 0
    assert [line["step"] for _, line in told[count:]] == [6, 6]
    assert {name for name, _ in told} == {("字", (run / IDENTITY).read_text())}


def test_without_a_project_nothing_is_written(tmp_path):
    with tracked(None, tmp_path, {}) as track:
        track({"step": 1})
    assert not list(tmp_path.iterdir())


def test_without_the_package_it_is_said_what_to_install_before_any_work(
    pretrain_flags, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["pretrain", *pretrain_flags(tmp_path / "run", wandb="p")]) == 2
    assert "pip install 'roformer-tf[wandb]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_service_that_refuses_is_named(tmp_path, monkeypatch):
    import wandb

    def refuse(**settings):
        raise wandb.errors.CommError("no such team")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(InputError, match="of p: no such team"), tracked("p", tmp_path, {}):
        pass
