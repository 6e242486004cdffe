import contextlib
import shutil
import sys

import pytest

from roformer_tf import errors
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.training import run_files
from roformer_tf.training.run_files import read_metrics, tracked


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture
def logged_lines(monkeypatch):
    """A list of ((project, run id), line) with all lines that wandb receives."""
    import wandb

    lines, log = [], wandb.Run.log

    def recording_log(run, line, *rest, **settings):
        lines.append(((run.project, run.id), line))
        return log(run, line, *rest, **settings)

    monkeypatch.setattr(wandb.Run, "log", recording_log)
    return lines


@pytest.mark.slow
def test_wandb_has_every_line_and_a_resumed_run_keeps_its_id(
    pretrain_flags, logged_lines, tmp_path
):
    run = tmp_path / "run"
    flags = pretrain_flags(run, steps=6, save_every=3, log_every=3, tracker="wandb", project="字")
    assert main(["pretrain", *flags]) == 0
    losses = {line["step"]: line["loss"] for _, line in logged_lines if "loss" in line}
    assert losses == {x["step"]: x["loss"] for x in read_metrics(run / "metrics.jsonl")}
    evaluations = [line for _, line in logged_lines if "held_out_loss" in line]
    assert [line["step"] for line in evaluations] == [0, 3, 6]
    assert "held_out_loss_by_length/64" in evaluations[0]
    assert len(list(run.glob("wandb/offline-run-*/*.wandb"))) == 1

    shutil.rmtree(run / "checkpoints/step-00000006")
    count = len(logged_lines)
    assert main(["pretrain", *flags]) == 0
    assert [line["step"] for _, line in logged_lines[count:]] == [6, 6]
    assert {name for name, _ in logged_lines} == {("字", (run / "wandb-id").read_text())}


def test_pretrain_passes_tracker_project_and_settings(
    pretrain_flags, tmp_path, monkeypatch, capsys
):
    def start(project, output, settings, former):
        assert (project, output, settings["steps"], former) == ("字", tmp_path / "run", 6, "")
        raise RuntimeError("no server")

    monkeypatch.setattr(errors, "find_spec", lambda name: name == "mlflow")
    monkeypatch.setitem(run_files._STARTERS, "mlflow", start)
    flags = pretrain_flags(tmp_path / "run", steps=6, tracker="mlflow", project="字")
    assert main(["pretrain", *flags]) == 2
    assert "mlflow could not start a run of 字: no server." in capsys.readouterr().err


def test_a_resumed_run_continues_the_trackers_run(tmp_path, monkeypatch):
    formers = []

    def start(project, output, settings, former):
        formers.append(former)
        return former or "first", lambda *_: None, lambda _: None

    monkeypatch.setitem(run_files._STARTERS, "mlflow", start)
    for _ in range(2):
        with tracked("mlflow", "p", tmp_path, {}):
            pass
    assert formers == ["", "first"]


def test_without_a_project_nothing_is_written(tmp_path):
    with tracked(None, "p", tmp_path, {}) as track:
        track({"step": 1})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("tracker", ["wandb", "mlflow", "swanlab"])
def test_a_missing_package_is_reported_before_any_work(
    tracker, pretrain_flags, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, tracker, None)
    assert main(["pretrain", *pretrain_flags(tmp_path / "run", tracker=tracker)]) == 2
    assert f"pip install 'roformer-tf[{tracker}]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_refusing_service_is_named(tmp_path, monkeypatch):
    import wandb

    def refuse(**settings):
        raise wandb.errors.CommError("no such team")

    monkeypatch.setattr(wandb, "init", refuse)
    refusal = pytest.raises(InputError, match="of p: no such team")
    with refusal, tracked("wandb", "p", tmp_path, {}):
        pass


LINES = [{"step": 1, "loss": 2.5}, {"step": 3, "loss": 1.5, "held_out_by_corpus": {"法律": 2.0}}]


def track_twice(tracker, project, output):
    """Log two lines in a run and one more in a resumed run that fails; return the run's id."""
    settings = {"length": 64, "corpus": ["a.txt"], "rows": None}
    with tracked(tracker, project, output, settings) as track:
        for line in LINES:
            track(line)
    with contextlib.suppress(KeyError), tracked(tracker, project, output, {}) as track:
        track({"step": 4, "loss": 1.25})
        raise KeyError("the run fails")
    return (output / f"{tracker}-id").read_text()


@pytest.mark.clients
def test_mlflow_has_every_line(tmp_path, monkeypatch):
    """MLflow's file store has every line of a resumed run."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    run = track_twice("mlflow", "字", tmp_path / "run")
    client = mlflow.MlflowClient()
    result = client.get_run(run)
    assert (result.info.run_name, result.info.status) == ("run", "FAILED")
    assert result.info.experiment_id == client.get_experiment_by_name("字").experiment_id
    assert result.data.params == {"length": "64", "corpus": "['a.txt']", "rows": "None"}
    losses = [(x.step, x.value) for x in client.get_metric_history(run, "loss")]
    assert losses == [(1, 2.5), (3, 1.5), (4, 1.25)]
    ((step, value),) = [
        (x.step, x.value) for x in client.get_metric_history(run, "held_out_by_corpus/法律")
    ]
    assert (step, value) == (3, 2.0)
    assert [x.info.run_id for x in client.search_runs([result.info.experiment_id])] == [run]


@pytest.mark.clients
def test_swanlab_has_every_line(tmp_path, monkeypatch):
    """SwanLab's offline files, for `swanlab sync`, have every line of a resumed run."""
    swanlab = pytest.importorskip("swanlab")
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    lines, log = [], swanlab.Run.log

    def recording_log(run, data, step=None):
        lines.append((run.id, step, data))
        return log(run, data, step)

    monkeypatch.setattr(swanlab.Run, "log", recording_log)
    run = track_twice("swanlab", "project", tmp_path / "run")
    assert lines == [
        (run, 1, {"loss": 2.5}),
        (run, 3, {"loss": 1.5, "held_out_by_corpus/法律": 2.0}),
        (run, 4, {"loss": 1.25}),
    ]
    assert len(list((tmp_path / "run" / "swanlab").glob(f"*/run-{run}.swanlab"))) == 2
    with pytest.raises(InputError, match="Log in with `swanlab login`"):
        track_twice("swanlab", "名", tmp_path / "other")
