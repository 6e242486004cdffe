"""A killed fine-tuning run that is started again ends with the same weights and metrics."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from roformer_tf.cli import main
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.tasks.classification import Classification
from tests.support.random_model import save_random_models

WEIGHTS = Path("model", "model.safetensors")


@pytest.fixture(scope="module")
def flags(shallow, tmp_path_factory):
    """flags(output) → flags of two runs of nine steps with dropout, saved within epochs too."""
    train = tmp_path_factory.mktemp("data") / "train.tsv"
    rows = [f"第{number}条评论很{'好差'[number % 2]}\t{number % 2}" for number in range(60)]
    train.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    settings = {
        "checkpoint": shallow,
        "train": train,
        "epochs": 3,
        "batch-size": 16,
        "seeds": 2,
        "save-every": 2,
        "log-every": 2,
        "learning-rate": 1e-3,
        "ema": 0.9,
    }
    arguments = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return lambda output: [*arguments, "--output", str(output)]


def figures(run):
    """report.json without times and the run's path."""
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    for trial in report["trials"]:
        trial.pop("seconds")
    report["settings"].pop("output")
    report.pop("seconds")
    return report


@pytest.mark.slow  # interrupted without a kill: wiring/test_finetuned.py
@pytest.mark.skipif(os.name == "nt", reason="kills process groups")
def test_a_killed_run_resumes_with_the_same_weights_and_metrics(
    flags, start_command, tmp_path, capsys, monkeypatch, optimized_graphs
):
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")  # takes long
    uninterrupted, run = tmp_path / "whole", tmp_path / "run"
    with optimized_graphs():
        assert main(["finetune", *flags(uninterrupted)]) == 0
    process = start_command("finetune/run_classifier.py", *flags(run))
    deadline = time.monotonic() + 180
    second = run / "trials" / "rate-0.001-seed-1" / "checkpoints"
    while not any(second.glob("step-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (run / "model").exists()

    with optimized_graphs():
        assert main(["finetune", *flags(run)]) == 0
    assert (run / WEIGHTS).read_bytes() == (uninterrupted / WEIGHTS).read_bytes()
    for trial in ("rate-0.001-seed-0", "rate-0.001-seed-1"):
        best = Path("trials", trial, "best", "model.safetensors")
        assert (run / best).read_bytes() == (uninterrupted / best).read_bytes()
    assert figures(run) == figures(uninterrupted)
    again = (run / "report.html").stat().st_mtime_ns
    settings = ["--config", str(run / "settings.yaml")]
    assert main(["finetune", *settings]) == 0  # already trained: only writes the report
    assert (run / "report.html").stat().st_mtime_ns > again
    assert figures(run) == figures(uninterrupted)
    capsys.readouterr()
    assert main(["finetune", *flags(run), "--learning-rate", "1e-4"]) == 2
    assert "--learning-rate was 0.001 and is 0.0001" in capsys.readouterr().err


GROUPS = [[f"第{number}条怎么{word}" for word in ("办理", "处理", "弄")] for number in range(60)]
VECTORS = {
    "embedding": [*("--hard-negatives", "1"), *("--dimensions", "16")],
    "paraphrase": [],
    "texts": [],
    "classification": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", VECTORS)
@pytest.mark.skipif(os.name == "nt", reason="kills process groups")
def test_embedding_models_and_distillation_resume_too(
    kind, released, start_command, tmp_path, monkeypatch, optimized_graphs
):
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")
    train, uninterrupted, run = tmp_path / "train.jsonl", tmp_path / "whole", tmp_path / "run"
    rows = [{"text": item[0], "similar": item[1:]} for item in GROUPS]
    if kind == "texts":
        rows = [{"text": "。".join(item)} for item in GROUPS]
    teacher = ["--teacher", released("sim_char_ft")] if kind == "paraphrase" else []
    if kind == "classification":  # probabilities are not stored, so the teacher predicts again
        rows = [{"text": item[0], "label": "ab"[number % 2]} for number, item in enumerate(GROUPS)]
        labels = {"teacher": Classification(labels=("a", "b"))}
        teacher = ["--teacher", save_random_models(labels, tmp_path)["teacher"]]
    train.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    flags = [
        *("--checkpoint", released("sim_char"), "--train", train, "--epochs", 3, *teacher),
        *("--task", "embedding" if kind == "texts" else kind, "--batch-size", 8, *VECTORS[kind]),
        *("--learning-rate", 1e-3, "--save-every", 2, "--dropout", 0.2, "--no-baseline"),
    ]
    flags = [str(flag) for flag in flags]
    with optimized_graphs():
        assert main(["finetune", *flags, "--output", str(uninterrupted)]) == 0
    process = start_command("roformer-tf", "finetune", *flags, "--output", run)
    deadline = time.monotonic() + 180
    while not any((run / "checkpoints").glob("step-*")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (run / "model").exists()
    with optimized_graphs():
        assert main(["finetune", *flags, "--output", str(run)]) == 0
    assert (run / WEIGHTS).read_bytes() == (uninterrupted / WEIGHTS).read_bytes()
    assert {path.name for path in run.glob("*.npz")} == {
        path.name for path in uninterrupted.glob("*.npz")
    }
