"""Evaluations of a run: figures of each corpus, speed, the best model and precision."""

import json
import shutil
import time

import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.corpus.batches import held_out_batches
from roformer_tf.corpus.objectives import MaskingConfig, make_objective
from roformer_tf.corpus.packing import Documents, pack
from roformer_tf.corpus.shards import PreparedRows, write_shard
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining.evaluation import TokenMetrics, evaluate, token_metrics
from roformer_tf.pretraining.settings import step_flops
from roformer_tf.pretraining.training_loop import publish_checkpoint
from roformer_tf.training import devices
from roformer_tf.training.fitting import StepLog
from roformer_tf.training.run_files import read_metrics, scalars

PEAK = 1e9
CORPORA = {"news": 300, "law": 24}  # documents


@pytest.fixture(scope="module")
def timed(pretrain_flags, write_corpus, tmp_path_factory, eagerly):
    """The folder of a run over two corpora, and the times of its log.

    The times are {step: (start, end)} of the log's callback. Only a few rows are evaluated.
    """
    folder, times = tmp_path_factory.mktemp("corpora"), {}
    original = StepLog.on_train_batch_end

    def timing(log, batch, logs=None):
        began = time.perf_counter()
        original(log, batch, logs)
        times[batch + 1] = began, time.perf_counter()

    files = [
        f"{name}={write_corpus(folder / f'{name}.txt', documents, seed=seed)}"
        for seed, (name, documents) in enumerate(CORPORA.items())
    ]
    flags = pretrain_flags(
        folder / "run",
        corpus=None,
        held_out=0.3,
        steps=5,
        save_every=5,  # no evaluation and no checkpoint before the last line is written
        log_every=2,
        peak_flops=PEAK,
        evaluation_rows=9,
        precision="float32",
    )
    with pytest.MonkeyPatch.context() as patch, eagerly():
        patch.setattr(StepLog, "on_train_batch_end", timing)
        assert main(["pretrain", *flags, "--corpus", *files]) == 0
    return folder / "run", times


@pytest.fixture(scope="module")
def corpora(timed):
    """The folder of the run over two corpora."""
    return timed[0]


def held_out(run, batch_size, numbers=None):
    """Return the model of a run, and the batches of its evaluation."""
    model = RoFormerForMaskedLM.from_pretrained(run / "model")
    rows = PreparedRows.open(run / "rows", "held_out")
    objective = make_objective("masked", model.tokenizer, MaskingConfig())
    batches = held_out_batches(
        rows, batch_size=batch_size, seed=0, objective=objective, numbers=numbers
    )
    return model, batches


def test_every_corpus_is_evaluated_and_reported_by_name(corpora):
    rows = PreparedRows.open(corpora / "rows", "held_out").corpora
    assert min(rows.values()) >= 2
    assert sum(rows.values()) > 3 * 9
    first = {"news": 0, "law": rows["news"]}
    shares = {"news": 8, "law": 1}  # 9 rows in proportion, at least one of each
    assert rows["law"] / sum(rows.values()) < 1.5 / 9
    model, batches = held_out(corpora, 1)
    arrays = token_metrics(TokenMetrics(model), batches)  # (rows, P) for all rows
    for line in read_metrics(corpora / "evaluations.jsonl"):
        assert list(line["held_out_by_corpus"]) == ["news", "law"]
    assert line["step"] == 5
    sums = np.zeros(3)
    for name, share in shares.items():
        numbers_of_corpus = [first[name] + i * rows[name] // share for i in range(share)]
        weights, losses = (arrays[key][numbers_of_corpus] for key in ("weights", "log_likelihood"))
        hits = (arrays["likeliest"] == arrays["labels"])[numbers_of_corpus] * weights
        figures = np.array([-(losses * weights).sum(), hits.sum(), weights.sum()], "float64")
        sums += figures
        output = line["held_out_by_corpus"][name]
        assert output == {
            "loss": pytest.approx(figures[0] / figures[2], rel=1e-5),
            "accuracy": pytest.approx(figures[1] / figures[2]),
        }
    assert line["held_out_loss"] == pytest.approx(sums[0] / sums[2], rel=1e-5)
    assert line["held_out_accuracy"] == pytest.approx(sums[1] / sums[2])
    assert "held_out_by_corpus/law/loss" in scalars(line)  # for TensorBoard and wandb


def test_a_single_corpus_has_no_figures_of_its_own(pretrained):
    assert not any(
        "held_out_by_corpus" in line for line in read_metrics(pretrained / "evaluations.jsonl")
    )


def test_logged_speed_is_within_the_measured_bounds(timed):
    """The logged speed is within the bounds measured around the log's callback.

    The timing of a line starts when the callback has finished the previous line or the first step.
    """
    run, times = timed
    flops = step_flops(RoFormerConfig.from_file(run / "model" / "config.json"), 32, 8, 4)
    lines = read_metrics(run / "metrics.jsonl")
    for line, (before, step) in zip(lines, [(1, 2), (2, 4), (4, 5)], strict=True):
        assert line["step"] == step
        min_seconds = (times[step][0] - times[before][1]) / (step - before)  # seconds per step
        max_seconds = (times[step][1] - times[before][0]) / (step - before)
        assert 8 * 32 / max_seconds - 0.1 < line["tokens_per_second"] < 8 * 32 / min_seconds + 0.1
        assert flops / max_seconds / PEAK - 1e-4 < line["mfu"] < flops / min_seconds / PEAK + 1e-4


# The best model


@pytest.mark.parametrize(
    ("lines", "best_of_6", "best"),
    [
        ([(3, 32, 3.0), (6, 32, 2.0), (8, 32, 2.5)], 6, 6),
        ([(3, 32, 3.0), (6, 32, 2.5), (8, 32, 2.0)], 6, 8),
        # the first of equal losses
        ([(0, 32, 1.0), (3, 32, 3.0), (6, 32, 2.0), (8, 32, 2.0)], 6, 6),
        ([(3, 32, 1.0), (6, 64, 2.0), (8, 64, 2.5)], 6, 6),
        ([(3, 32, 1.0), (6, 32, 2.0), (8, 64, 2.5)], 3, 8),
    ],
)
def test_best_is_the_lowest_loss_at_the_last_length(pretrained, tmp_path, lines, best_of_6, best):
    """When the checkpoint of step 6 is published, that of step 8 may be evaluated already."""
    run = shutil.copytree(pretrained, tmp_path / "run")
    shutil.rmtree(run / "best")
    output = [
        {"step": step, "held_out_loss": loss, "length": length} for step, length, loss in lines
    ]
    (run / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in output))
    for step in (6, 8):
        publish_checkpoint(run, run / "checkpoints" / f"step-{step:08}")
        assert step == 8 or (run / "best").exists() == (best_of_6 == 6)
    weights = "model/model.safetensors"
    want = (run / "checkpoints" / f"step-{best:08}" / weights).read_bytes()
    assert (run / "best" / "model.safetensors").read_bytes() == want


# Held-out rows without anything to predict


@pytest.fixture
def unpredictable(pretrained, tmp_path):
    """Prepared rows with one held-out row: a single word that is too long to be masked."""
    rows = shutil.copytree(pretrained / "rows", tmp_path / "rows")
    length = 32
    documents = Documents(np.arange(20, 27), np.zeros(7, int), np.array([0, 7]))
    held_out, _ = pack(documents, length, cls_id=1, sep_id=2, dtype=np.uint8)
    manifest = json.loads((rows / "manifest.json").read_text())
    shards = [shard for shard in manifest["shards"] if shard["split"] == "train"]
    shard = write_shard(rows, "held_out-00000.npy", "held_out", held_out)
    manifest["shards"] = [*shards, vars(shard)]
    (rows / "manifest.json").write_text(json.dumps(manifest))
    return rows


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.slow
def test_a_run_without_held_out_predictions_finishes(
    unpredictable, pretrain_flags, tmp_path, capsys
):
    run = tmp_path / "run"
    flags = pretrain_flags(run, rows=unpredictable, corpus=None, steps=4, save_every=2)
    assert main(["pretrain", *flags]) == 0
    message = capsys.readouterr()
    assert message.out.count("No evaluation: all words of the 1 held-out sequences") == 1
    assert "diverged" not in message.err
    assert read_metrics(run / "evaluations.jsonl") == []
    assert (run / "model" / "model.safetensors").is_file()
    assert not (run / "best").exists()


# Precision


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.quick_cases("mixed_bfloat16")
@pytest.mark.parametrize("precision", ["float32", "mixed_bfloat16"])
def test_a_run_uses_the_given_precision(precision, pretrain_flags, tmp_path, monkeypatch, capsys):
    """A run trains and evaluates in the given precision, although the machine would choose another.

    The model's loss in the other precision differs.
    """
    other = {"float32": "mixed_bfloat16", "mixed_bfloat16": "float32"}[precision]
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: other == "mixed_bfloat16")
    run = tmp_path / "run"
    settings = {"precision": precision, "learning_rate": 1e-2, "steps": 4, "held_out": 0.03}
    assert main(["pretrain", *pretrain_flags(run, **settings)]) == 0
    output = capsys.readouterr().out
    assert f"parameters, {precision}" in output
    assert "device: the CPU, by " in output
    logged = read_metrics(run / "evaluations.jsonl")[-1]["held_out_loss"]
    _, batches = held_out(run, 8)
    losses = {}
    for dtype in (precision, other):
        model = RoFormerForMaskedLM.from_pretrained(run / "model", dtype=dtype)
        losses[dtype] = evaluate(TokenMetrics(model), batches).loss
    assert logged == pytest.approx(losses[precision], abs=1e-6)
    assert logged != pytest.approx(losses[other], abs=2e-6)
