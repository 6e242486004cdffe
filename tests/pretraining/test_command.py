import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import keras
import numpy as np
import pytest
import yaml

from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.corpus import preparation
from roformer_tf.corpus.batches import held_out_batches
from roformer_tf.corpus.objectives import MaskingConfig, make_objective
from roformer_tf.corpus.part_writer import is_held_out
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.errors import InputError
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining.evaluation import TokenMetrics, evaluate
from roformer_tf.pretraining.initialization import new_model, read_checkpoint
from roformer_tf.pretraining.settings import PretrainConfig, StepConfig, step_flops
from roformer_tf.pretraining.train_step import PretrainingModel
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS
from roformer_tf.training import devices
from roformer_tf.training.run_files import read_metrics, scalars

ROOT = Path(__file__).parents[2]
STEPS, SAVE_EVERY, LOG_EVERY = 8, 3, 5  # must equal the values in `pretrain_flags`
pytestmark = pytest.mark.usefixtures("eager_steps")  # like `pretrained`
WEIGHTS = Path("model", "model.safetensors")


@pytest.fixture
def copy(pretrained, tmp_path):
    """A copy of the finished run that tests may change."""
    return shutil.copytree(pretrained, tmp_path / "run")


def content(folder):
    """Return the bytes and modification time of every file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def losses(run):
    return [(line["step"], line["loss"]) for line in read_metrics(run / "metrics.jsonl")]


def same_result(run, other):
    """Assert that weights, optimizer state, losses and evaluations of two runs are identical."""
    last = max((run / "checkpoints").iterdir()).relative_to(run)
    for file in (WEIGHTS, last / WEIGHTS, last / "training.safetensors", last / "state.json"):
        assert (run / file).read_bytes() == (other / file).read_bytes()
    assert losses(run) == losses(other)
    assert read_metrics(run / "evaluations.jsonl") == read_metrics(other / "evaluations.jsonl")
    return True


def refusal_of(flags, run, capsys):
    """Assert that `pretrain` rejects these flags and changes no file; return its message."""
    before = content(run)
    capsys.readouterr()
    assert main(["pretrain", *flags]) == 2
    assert content(run) == before
    return capsys.readouterr().err


# What a run writes


def test_metrics_are_logged_every_log_every_steps_and_at_the_end(pretrained):
    lines = read_metrics(pretrained / "metrics.jsonl")
    assert [line["step"] for line in lines] == [5, 8]
    for line in lines:
        assert list(line) == [
            "step",
            "loss",
            "learning_rate",
            "tokens_per_second",
            "gradient_norm",
            "skipped",
            "waiting",
        ]
        assert 0 < line["loss"] < 10
        assert 0 < line["gradient_norm"] < 100
        assert line["skipped"] == 0
        assert line["tokens_per_second"] > 0
        assert 0 <= line["waiting"] <= 1
    rates = [line["learning_rate"] for line in lines]
    assert rates == pytest.approx([1e-3 * (STEPS - (line["step"] - 1)) / STEPS for line in lines])


def test_held_out_rows_are_evaluated_at_step_0_and_at_every_save(pretrained):
    lines = read_metrics(pretrained / "evaluations.jsonl")
    assert [line["step"] for line in lines] == [0, 3, 6, 8]
    for line in lines:
        assert line["held_out_perplexity"] == pytest.approx(np.exp(line["held_out_loss"]))
        assert 0 <= line["held_out_accuracy"] < 1


def test_the_loss_is_plotted(pretrained):
    assert (pretrained / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_tensorboard_has_all_metrics_and_evaluations(pretrained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = {}
    for name in ("training", "held_out"):
        board = EventAccumulator(str(pretrained / "tensorboard" / name))
        board.Reload()
        for key in board.Tags()["tensors"]:
            shown[key] = [
                (e.step, pytest.approx(e.tensor_proto.float_val[0])) for e in board.Tensors(key)
            ]
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        lines = [{"step": line["step"]} | scalars(line) for line in read_metrics(pretrained / file)]
        for key in lines[0].keys() - {"step"}:
            assert [(line["step"], line[key]) for line in lines] == shown.pop(key)
    assert shown == {}


def test_the_resulting_model_can_be_loaded(pretrained):
    model = RoFormerForMaskedLM.from_pretrained(pretrained / "model")
    tokenizer = RoFormerTokenizer.from_pretrained(pretrained / "model")
    assert tokenizer.vocabulary == model.tokenizer.vocabulary
    assert tokenizer.vocab_size == model.config.vocab_size
    assert tokenizer.tokenization == "char"
    logits = model(tokenizer(["今天天气很好。", "北京"]))
    assert logits.shape == (2, 9, tokenizer.vocab_size)
    assert np.isfinite(keras.ops.convert_to_numpy(logits)).all()


def test_the_model_card_has_the_last_figures(pretrained):
    card = (pretrained / "model" / "README.md").read_text(encoding="utf-8")
    last = json.loads((pretrained / "evaluations.jsonl").read_text().splitlines()[-1])
    assert f"| 步数 · steps | {last['step']} |" in card
    assert f"(nats) | {last['held_out_loss']:.4f} |" in card
    assert not list((pretrained / "checkpoints").rglob("README.md"))


def test_two_checkpoints_and_no_temporary_files_are_kept(pretrained):
    names = sorted(path.name for path in (pretrained / "checkpoints").iterdir())
    assert names == ["step-00000006", "step-00000008"]
    assert sorted(path.name for path in pretrained.iterdir()) == [
        "best",
        "checkpoints",
        "evaluations.jsonl",
        "loss.png",
        "metrics.jsonl",
        "model",
        "rows",
        "settings.yaml",
        "tensorboard",
    ]


def test_prepared_rows_give_the_same_run_as_their_corpus(pretrained, pretrain_flags, tmp_path):
    """`--rows` takes the settings of preparation from the rows and records them."""
    settings_of_rows = ("length", "held_out", "tokenization", "vocab_size")
    flags = pretrain_flags(
        tmp_path / "run",
        rows=pretrained / "rows",
        corpus=None,
        save_every=100,
        log_every=LOG_EVERY,
        **dict.fromkeys(settings_of_rows),
    )
    assert main(["pretrain", *flags]) == 0
    used = yaml.safe_load((tmp_path / "run" / "settings.yaml").read_text())
    assert [used[name] for name in settings_of_rows] == [32, 0.1, "char", None]
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == (pretrained / WEIGHTS).read_bytes()
    assert losses(tmp_path / "run") == losses(pretrained)
    assert not (tmp_path / "run" / "rows").exists()


def test_rows_with_a_larger_vocabulary_are_refused(pretrained, pretrain_flags, tmp_path, capsys):
    flags = pretrain_flags(tmp_path / "run", rows=pretrained / "rows", corpus=None, vocab_size=20)
    assert main(["pretrain", *flags]) == 2
    assert "--vocab-size is 20, but" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.fixture
def pattern_flags(pretrain_flags, tmp_path):
    """A function that returns flags with a cyclic corpus, where neighbours determine a mask."""
    circle = "今天气很好我们去公园学习中国经济发展"
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(circle[i % 18 :] + circle * 3 for i in range(200)))
    settings = {"corpus": corpus, "held_out": 0.2, "steps": 300, "save_every": 200}
    settings |= {"learning_rate": 4e-3, "dropout": 0.01}
    return lambda output, **changes: pretrain_flags(output, **settings | changes)


def has_learnt(run):
    """Assert that a run with `pattern_flags` has learnt the pattern."""
    first, *_, last = read_metrics(run / "evaluations.jsonl")
    assert first["held_out_accuracy"] < 0.3
    assert last["held_out_accuracy"] > 0.8
    assert last["held_out_loss"] < 0.5 * first["held_out_loss"]
    assert losses(run)[-1][1] < 0.5 * losses(run)[0][1]
    return True


@pytest.mark.slow
def test_a_pattern_is_learnt(pattern_flags, tmp_path):
    quicker = {"steps": 150, "learning_rate": 1e-2, "optimizer": "muon"}
    assert main(["pretrain", *pattern_flags(tmp_path / "run", **quicker)]) == 0
    assert has_learnt(tmp_path / "run")


def test_rows_whose_vocabulary_has_changed_are_refused(copy, pretrain_flags, tmp_path, capsys):
    file = copy / "rows" / "vocab.txt"
    tokens = file.read_text("utf-8").split("\n")
    file.write_text("\n".join([*tokens[:-3], tokens[-2], tokens[-3], ""]), "utf-8")
    (copy / "rows" / "tokenizer.json").unlink()  # it would contradict the file
    for flags in (
        pretrain_flags(copy),  # resumed
        pretrain_flags(tmp_path / "run2", corpus=None, vocab_size=None, rows=copy / "rows"),
    ):
        message = refusal_of(flags, copy, capsys)
        assert "vocab.txt is not the vocabulary of the sequences" in message


def test_without_held_out_rows_nothing_is_evaluated(pretrain_flags, tmp_path):
    run = tmp_path / "run"
    assert main(["pretrain", *pretrain_flags(run, held_out=0, steps=2)]) == 0
    assert read_metrics(run / "evaluations.jsonl") == []
    assert [step for step, _ in losses(run)] == [2]
    assert (run / WEIGHTS).is_file()


# Running the same command again


def test_a_finished_run_reports_it_and_changes_nothing(pretrained, pretrain_flags, capsys):
    before = content(pretrained)
    assert main(["pretrain", *pretrain_flags(pretrained)]) == 0
    assert f"the run is finished: {STEPS} steps" in capsys.readouterr().out
    assert content(pretrained) == before


def flip(path):
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def resumed_run(pretrained, pretrain_flags, tmp_path_factory, eagerly):
    """A copy of the run with a damaged last checkpoint that was resumed, its stdout and stderr.

    The folder also has temporary files of a killed run. The resumed command saves at other steps,
    has --peak-flops, and runs on a machine that would choose another precision.
    """
    run = shutil.copytree(pretrained, tmp_path_factory.mktemp("continued") / "run")
    newest = run / "checkpoints" / "step-00000008"
    flip(newest / "training.safetensors")
    shutil.copytree(newest, run / "checkpoints" / ".step-00000008.abcdefgh.tmp")
    shutil.copytree(run / "model", run / ".model.12345678.old")
    (run / ".loss.png.abcd_123.tmp").write_bytes(b"half")
    settings = {"save_every": 8, "keep_checkpoints": 3, "workers": 2, "peak_flops": 1e9}
    original = devices.choose_precision("auto")
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(devices, "multiplies_bfloat16", lambda: original == "float32")
        assert devices.choose_precision("auto") != original
        with eagerly():
            assert main(["pretrain", *pretrain_flags(run, **settings)]) == 0
    return run, out.getvalue(), err.getvalue()


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(resumed_run, pretrained):
    """A run with a damaged checkpoint resumes from the previous one, in its original precision."""
    run, out, err = resumed_run
    saved = run / "checkpoints"
    damaged = f"{saved / 'step-00000008'}: training.safetensors is damaged."
    assert f"cannot read the checkpoint {damaged}" in err
    assert f"continuing from {saved / 'step-00000006'}" in out
    assert same_result(run, pretrained)
    assert [path.name for path in run.rglob(".*")] == []


def test_metrics_have_mfu_if_the_peak_is_given(resumed_run):
    run = resumed_run[0]
    flops = step_flops(RoFormerConfig.from_file(run / "model" / "config.json"), 32, 8, 4)
    lines = {line["step"]: line for line in read_metrics(run / "metrics.jsonl")}
    assert "mfu" not in lines[5]  # logged before --peak-flops was given
    steps_per_second = lines[8]["tokens_per_second"] / (8 * 32)
    assert lines[8]["mfu"] == pytest.approx(flops * steps_per_second / 1e9, abs=1e-4)


def test_damaged_checkpoints_are_kept_for_the_user(copy, pretrain_flags, capsys):
    for checkpoint in (copy / "checkpoints").iterdir():
        os.truncate(checkpoint / "training.safetensors", 10)
    message = refusal_of(pretrain_flags(copy), copy, capsys)
    assert "step-00000008" in message
    assert "No other checkpoint is left to continue from" in message
    assert "Choose another --output" in message


def test_an_unpublished_model_is_published_when_resuming(copy, pretrained, pretrain_flags):
    shutil.rmtree(copy / "model")
    shutil.copytree(copy / "checkpoints" / "step-00000006" / "model", copy / "model")
    assert main(["pretrain", *pretrain_flags(copy)]) == 0
    assert (copy / WEIGHTS).read_bytes() == (pretrained / WEIGHTS).read_bytes()


def test_a_run_without_checkpoints_restarts_from_its_settings_file(copy, pretrained):
    shutil.rmtree(copy / "checkpoints")
    shutil.rmtree(copy / "model")
    settings = str(pretrained / "settings.yaml")
    assert main(["pretrain", "--config", settings, "--output", str(copy)]) == 0
    assert same_result(copy, pretrained)


def test_wrong_weights_of_corpora_are_refused_before_the_preparation(
    pretrain_flags, tmp_path, write_corpus
):
    settings = {"corpus": write_corpus(tmp_path / "corpus.txt", 60), "steps": 1, "held_out": 0}
    output = tmp_path / "run"
    wrong = pretrain_flags(output, **settings)
    assert main(["pretrain", *wrong, "--corpus-weights", "news", "3"]) == 2
    assert not (output / "rows").exists()
    assert main(["pretrain", *pretrain_flags(output, **settings)]) == 0


def test_empty_settings_files_are_refused(copy, pretrain_flags, capsys):
    (copy / "settings.yaml").write_text("")
    message = refusal_of(pretrain_flags(copy), copy, capsys)
    assert "settings.yaml: there are no keys with values" in message


@pytest.mark.parametrize(
    "changes",
    [{"log_every": 7, "save_every": 5}, {"keep_checkpoints": 1, "workers": 2}],
    ids=["moments", "resources"],
)
def test_settings_without_effect_on_weights_may_change(copy, pretrain_flags, changes):
    assert main(["pretrain", *pretrain_flags(copy, **changes)]) == 0


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learning_rate": 2e-3}, "--learning-rate was 0.001 and is 0.002"),
        ({"seed": 1}, "--seed was 0 and is 1"),
        ({"steps": 9}, "--steps was 8 and is 9"),
        ({"mask_rate": 0.2}, "--mask-rate was 0.15 and is 0.2"),
        ({"length": 64}, "length"),
        ({"architecture": None}, "architecture"),
    ],
)
def test_other_settings_are_refused_and_named(copy, pretrain_flags, capsys, changes, named):
    assert named in refusal_of(pretrain_flags(copy, **changes), copy, capsys)


def test_another_corpus_is_refused(copy, pretrain_flags, write_corpus, tmp_path, capsys):
    other = write_corpus(tmp_path / "other.txt", 10)
    message = refusal_of(pretrain_flags(copy, corpus=other), copy, capsys)
    assert "prepared from other inputs" in message


def test_a_touched_or_moved_corpus_is_accepted(copy, pretrain_flags, tmp_path, capsys):
    """A touched or moved corpus is accepted, and the fix in the message for a changed one works."""
    flags = pretrain_flags(copy)
    corpus = tmp_path / "corpus.txt"
    shutil.copyfile(flags[flags.index("--corpus") + 1], corpus)
    os.utime(corpus, (1, 1))
    assert main(["pretrain", *pretrain_flags(copy, corpus=corpus)]) == 0
    assert f"the run is finished: {STEPS} steps" in capsys.readouterr().out

    corpus.write_bytes(corpus.read_bytes()[::-1])
    message = refusal_of(pretrain_flags(copy, corpus=corpus), copy, capsys)
    assert "what differs: files (corpus.txt has changed)" in message
    assert f"--rows {copy / 'rows'} instead of --corpus." in message
    assert main(["pretrain", *pretrain_flags(copy, corpus=None, rows=copy / "rows")]) == 0
    assert f"the run is finished: {STEPS} steps" in capsys.readouterr().out


def test_a_run_with_its_own_rows_instead_of_its_corpus_keeps_the_corpus(copy, pretrain_flags):
    started = yaml.safe_load((copy / "settings.yaml").read_text())
    shutil.rmtree(copy / "checkpoints" / f"step-{STEPS:08}")
    flags = pretrain_flags(copy, corpus=None, vocab_size=None, rows=copy / "rows", log_every=3)
    assert main(["pretrain", *flags]) == 0
    now = yaml.safe_load((copy / "settings.yaml").read_text())
    assert now == started | {"output": str(copy), "log_every": 3}
    assert main(["pretrain", *pretrain_flags(copy)]) == 0


def test_other_rows_are_refused(copy, pretrain_flags, write_corpus, tmp_path, capsys):
    rows = tmp_path / "rows"
    corpus = write_corpus(tmp_path / "other.txt", 50, seed=1)
    settings = ["--vocab", copy / "model" / "vocab.txt", "--length", 32, "--held-out", 0.1]
    flags = ["--corpus", corpus, "--output", rows, *settings]
    assert main(["prepare", *map(str, flags)]) == 0
    changed = yaml.safe_load((copy / "settings.yaml").read_text()) | {"vocab_size": None}
    (copy / "settings.yaml").write_text(yaml.safe_dump(changed))
    flags = pretrain_flags(copy, corpus=None, vocab_size=None, rows=rows)
    assert "was trained on other data" in refusal_of(flags, copy, capsys)


def test_an_architecture_that_was_edited_since_is_refused(copy, pretrain_flags, tmp_path, capsys):
    flags, file = pretrain_flags(copy), tmp_path / "architecture.json"
    original = Path(flags[flags.index("--architecture") + 1]).read_text()
    settings = yaml.safe_load((copy / "settings.yaml").read_text()) | {"architecture": str(file)}
    (copy / "settings.yaml").write_text(yaml.safe_dump(settings))
    flags = pretrain_flags(copy, architecture=file)
    # No weight has another shape.
    file.write_text(json.dumps(json.loads(original) | {"rotary_style": "half"}))
    assert "belongs to another model or optimizer" in refusal_of(flags, copy, capsys)
    file.write_text(original)
    assert main(["pretrain", *flags]) == 0


@pytest.mark.parametrize("name", ["model", "checkpoints"])
def test_foreign_files_in_the_output_folder_are_not_touched(pretrain_flags, tmp_path, capsys, name):
    (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / name / "mine.txt").write_text("precious")
    message = refusal_of(pretrain_flags(tmp_path / "run"), tmp_path, capsys)
    assert str(Path("run", name)) in message


def test_a_file_as_output_is_refused(pretrain_flags, tmp_path, capsys):
    (tmp_path / "run").write_text("precious")
    message = refusal_of(pretrain_flags(tmp_path / "run"), tmp_path, capsys)
    assert "File exists. Choose another place" in message
    assert (tmp_path / "run").read_text() == "precious"


# Continuing a checkpoint


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("bert4keras") and find_spec("tf_keras")),
    reason="bert4keras is not installed: `make test` does it",
)
def test_extend_vocab_trains_new_words_and_converts_to_bert4keras(
    released, pretrain_flags, tmp_path, capsys
):
    import jieba

    jieba.initialize()
    old = RoFormerTokenizer.from_pretrained(released("word"))
    frequent = sorted(jieba.dt.FREQ, key=jieba.dt.FREQ.get, reverse=True)
    words = [w for w in frequent if len(w) == 2 and old.tokenize(w) != [w] and jieba.lcut(w) == [w]]
    words = [w for w in words if w not in old.vocabulary][:200]
    file, corpus, run = (tmp_path / name for name in ("words.txt", "corpus.txt", "run"))
    file.write_text("\n".join([*words, words[0]]), encoding="utf-8")
    lines = ["，".join(words[i : i + 20]) + "。" for i in range(0, 200, 4)]
    corpus.write_text("\n".join(lines), encoding="utf-8")
    flags = pretrain_flags(
        run,
        corpus=corpus,
        init_from=released("word"),
        extend_vocab=file,
        vocab_size=None,
        architecture=None,
        tokenization=None,
        steps=4,
        save_every=2,
    )
    assert main(["pretrain", *flags]) == 0
    assert "200 words are new" in capsys.readouterr().out
    tokenizer = RoFormerTokenizer.from_pretrained(run / "model")
    assert list(tokenizer.vocabulary)[-200:] == words
    row = PreparedRows.open(run / "rows")[0]
    assert len(set(row[0].tolist()) & set(range(len(old.vocabulary), tokenizer.vocab_size))) > 5
    before = RoFormerForMaskedLM.from_pretrained(
        run / "checkpoints/step-00000002/model"
    ).named_variables()
    after = RoFormerForMaskedLM.from_pretrained(run / "model").named_variables()
    name = "encoder/embeddings/word/embeddings"
    moved = [keras.ops.convert_to_numpy(x[name])[-200:] for x in (before, after)]
    assert (moved[0] != moved[1]).any(axis=1).all()  # the tied decoder updates all of them

    zip_ = tmp_path / "chinese_roformer-mine.zip"
    assert main(["checkpoints", "convert", str(run / "model"), str(zip_), "--to", "tf1"]) == 0
    assert main(["checkpoints", "verify", str(zip_), "--against", "bert4keras"]) == 0

    shutil.rmtree(run / "checkpoints" / "step-00000004")
    weights = (run / WEIGHTS).read_bytes()
    assert main(["pretrain", *flags]) == 0
    assert (run / WEIGHTS).read_bytes() == weights
    assert main(["pretrain", *flags, "--init-from", "x.zip", "--extend-vocab", "y"]) == 2


def test_tokenization_flags_apply_to_a_continued_checkpoint(
    released, pretrain_flags, tmp_path, write_corpus, monkeypatch
):
    def fit(*_, **__):
        raise KeyboardInterrupt  # the rows are written

    monkeypatch.setattr(PretrainingModel, "fit", fit)
    flags = pretrain_flags(
        tmp_path / "run",
        corpus=write_corpus(tmp_path / "corpus.txt", 60),
        init_from=released("word"),
        vocab_size=None,
        architecture=None,
        tokenization="char",
        lower_case="False",
        held_out=0,
    )
    assert main(["pretrain", *flags]) == 130
    tokenizer = RoFormerTokenizer.from_pretrained(tmp_path / "run" / "rows")
    assert (tokenizer.tokenization, tokenizer.lower_case) == ("char", False)


def test_settings_of_the_architecture_apply_to_a_checkpoint_with_new_words(released, tmp_path):
    (tmp_path / "words.txt").write_text("公园学习\n", encoding="utf-8")
    for words in (None, str(tmp_path / "words.txt")):
        settings = {"init_from": str(released("word")), "extend_vocab": words}
        settings |= {"dropout": 0.3, "attention_dropout": 0.2, "precision": "float32"}
        config = PretrainConfig(corpus=("x",), output="run", **settings)
        model, tokenizer = read_checkpoint(config, 32)
        assert ("公园学习" in tokenizer.vocabulary) == (words is not None)
        assert model.config.hidden_dropout_prob == 0.3
        assert model.config.attention_probs_dropout_prob == 0.2


def test_a_released_checkpoint_is_continued(released, pretrain_flags, tmp_path, write_corpus):
    """A continued checkpoint starts with the checkpoint's loss and keeps its vocabulary."""
    corpus = write_corpus(tmp_path / "corpus.txt", 60)
    flags = pretrain_flags(
        tmp_path / "run",
        corpus=corpus,
        init_from=released("char"),
        vocab_size=None,
        architecture=None,
        tokenization=None,
        precision="float32",
        steps=2,
        evaluation_rows=None,
    )
    assert main(["pretrain", *flags]) == 0

    model = RoFormerForMaskedLM.from_pretrained(released("char"))
    tokenizer = model.tokenizer
    rows = PreparedRows.open(tmp_path / "run" / "rows", "held_out")
    batches = held_out_batches(
        rows,
        batch_size=8,
        seed=0,
        objective=make_objective("masked", tokenizer, MaskingConfig()),
    )
    scores = evaluate(TokenMetrics(model), batches)
    first, last = read_metrics(tmp_path / "run" / "evaluations.jsonl")
    assert first["held_out_loss"] == pytest.approx(scores.loss, rel=1e-6)
    assert first["held_out_accuracy"] == pytest.approx(scores.accuracy)
    assert last["held_out_loss"] < first["held_out_loss"]
    continued = RoFormerForMaskedLM.from_pretrained(tmp_path / "run" / "model")
    assert continued.tokenizer.vocabulary == tokenizer.vocabulary
    assert continued.config.replace(unknown={}) == model.config.replace(unknown={})


@pytest.mark.parametrize("scaling", [{}, {"use_logn_attn": True}])
def test_a_checkpoint_continued_on_longer_sequences_has_positions_for_them(
    released, tmp_path, scaling
):
    """Without them, texts would be cut at the length of the checkpoint."""
    source = RoFormerForMaskedLM.from_pretrained(released("char"), **scaling)
    length = source.config.max_position_embeddings + 88
    source.save_pretrained(tmp_path / "source")
    settings = {"output": "run", "precision": "float32"}
    config = PretrainConfig(corpus=("x",), init_from=str(tmp_path / "source"), **settings)
    model, _ = read_checkpoint(config, length)
    model.save_pretrained(tmp_path / "model")
    reopened = RoFormerForMaskedLM.from_pretrained(tmp_path / "model")
    assert reopened.config.max_position_embeddings == length
    inputs = {"token_ids": np.arange(5, 5 + length)[None]}
    expected = keras.ops.convert_to_numpy(source(inputs))
    assert keras.ops.convert_to_numpy(reopened(inputs)) == pytest.approx(expected, abs=1e-6)


# Parts


def test_a_new_model_predicts_by_frequency(pretrained):
    rows = PreparedRows.open(pretrained / "rows")
    tokenizer = RoFormerTokenizer.from_pretrained(pretrained / "rows")
    config = RoFormerConfig.from_file(pretrained / "model" / "config.json")
    model = new_model(config.replace(vocab_size=1), tokenizer, rows)
    bias = np.exp(keras.ops.convert_to_numpy(model.mlm.bias).astype("float64"))
    assert bias.sum() == pytest.approx(1)
    tokens = np.concatenate([row[0][row[2] > 0] for row in rows])  # without special tokens
    counts = np.bincount(tokens, minlength=tokenizer.vocab_size)
    assert bias == pytest.approx((counts + 0.5) / (counts + 0.5).sum(), rel=1e-5)
    assert model.config.vocab_size == tokenizer.vocab_size


@pytest.mark.parametrize("form", [{}, {"norm_type": "rms_norm", "use_bias": False}])
def test_embeddings_of_neighbours_are_as_long_as_random_ones(pretrained, form):
    rows = PreparedRows.open(pretrained / "rows")
    tokenizer = RoFormerTokenizer.from_pretrained(pretrained / "rows")
    config = RoFormerConfig.from_file(pretrained / "model" / "config.json").replace(**form)
    lengths = {}
    for embeddings in ("random", "neighbours"):
        model = new_model(config, tokenizer, rows, embeddings=embeddings)
        words = keras.ops.convert_to_numpy(model.encoder.embeddings.word.embeddings)
        lengths[embeddings] = np.linalg.norm(words, axis=1).max()
    assert lengths["neighbours"] == pytest.approx(lengths["random"], rel=0.3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpus": ()}, "either --corpus"),
        ({"rows": "rows"}, "either --corpus"),
        (
            {"init_from": "x.zip", "architecture": "y.json", "vocab_size": None},
            "either --init-from",
        ),
        ({"init_from": "x.zip"}, "Remove --vocab-size"),
        (
            {"init_from": "x.zip", "vocab_size": None, "embeddings": "neighbours"},
            "Remove --embeddings",
        ),
        ({"corpus": (), "rows": "rows", "vocab": "x"}, "have their own vocabulary"),
        ({"vocab": "vocab.txt"}, "vocab"),
        ({"length": 1}, "length is 1"),
        ({"seed": -1}, "seed is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"steps": 0}, "steps is 0"),
        ({"save_every": 0}, "save_every is 0"),
        ({"log_every": 0}, "log_every is 0"),
        ({"evaluation_rows": 0}, "evaluation_rows is 0"),
        ({"keep_checkpoints": 0}, "keep_checkpoints is 0"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        PretrainConfig(**{"corpus": ("x.txt",), "output": "run", "vocab_size": 100} | settings)


JAX = """
import json, os, shutil, sys

def loaded():
    return sorted(name for name in sys.modules if name.split(".")[0] == "tensorflow")[:3]

from roformer_tf import RoFormerConfig, RoFormerForMaskedLM
RoFormerForMaskedLM(RoFormerConfig(
    vocab_size=10, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
from roformer_tf.pretraining import command as pretraining
print(json.dumps(loaded()))

from roformer_tf.cli import main
output, *flags = sys.argv[1:]
assert main(["pretrain", *flags]) == 0
shutil.copytree(output, output + "-again")
shutil.rmtree(output + "-again/checkpoints/step-00000300")
assert main(["pretrain", *flags, "--output", output + "-again"]) == 0
"""


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("jax"), reason="needs the extra [jax]")
def test_a_run_on_jax_learns_and_resumes_exactly(pattern_flags, tmp_path):
    """A run on JAX learns, resumes exactly, and imports the models without TensorFlow.

    Only TensorBoard's writer imports TensorFlow, later. XLA's optimizations are off, because they
    take longer than running the programs.
    """
    run = tmp_path / "run"
    process = subprocess.run(
        [sys.executable, "-c", JAX, str(run), *pattern_flags(run)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ
        | {"KERAS_BACKEND": "jax", "XLA_FLAGS": "--xla_backend_optimization_level=0"},
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout.splitlines()[0]) == []
    assert "step-00000200" in process.stdout
    assert has_learnt(run)
    assert same_result(tmp_path / "run-again", run)
    assert RoFormerForMaskedLM.from_pretrained(run / "model").tokenizer


# What it is trained on


def test_held_out_documents_are_never_in_a_training_batch(pretrain_flags, tmp_path, monkeypatch):
    """No batch passed to `fit` in more than an epoch contains a held-out document.

    Each document repeats its own character, so that a batch shows which documents it contains.
    Some documents fill several rows. Each is in the corpus three times with different white space,
    which must not affect the split. Random replacement is off, so tokens and labels are original.
    """
    monkeypatch.setattr(preparation, "PART_CHARACTERS", 2_000)
    characters = [chr(0x4E00 + i) for i in range(240)]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join([*SPECIAL_TOKENS, *characters]), encoding="utf-8")
    sizes = np.random.default_rng(0).integers(1, 80, len(characters))
    texts = [character * size for character, size in zip(characters, sizes, strict=True)]
    lines = [form.format(text) for form in ("{}", "{} ", "\u3000{}") for text in texts]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(lines), encoding="utf-8")
    arguments = []

    def fit(_, batches, steps_per_epoch, **__):
        arguments.extend(islice(batches.as_numpy_iterator(), steps_per_epoch))
        raise KeyboardInterrupt  # ends the command without training

    monkeypatch.setattr(PretrainingModel, "fit", fit)
    settings = {"corpus": corpus, "vocab": vocabulary, "vocab_size": None, "held_out": 0.3}
    settings |= {"random_replace_rate": 0.0, "steps": 120, "evaluation_rows": 8}
    assert main(["pretrain", *pretrain_flags(tmp_path / "run", **settings)]) == 130

    tokenizer = RoFormerTokenizer.from_pretrained(vocabulary)
    training_ids = {tokenizer.ids(text)[0] for text in texts if not is_held_out(text, 0.3)}
    held_out = PreparedRows.open(tmp_path / "run" / "rows", "held_out")
    special = set(range(len(SPECIAL_TOKENS)))
    held_out_ids = set(np.unique(np.stack(list(held_out))[:, 0]).tolist()) - special
    seen = set()
    for inputs, labels, weights in arguments:
        seen |= {*inputs["token_ids"].ravel().tolist(), *labels[weights > 0].tolist()}
    assert len(arguments) * 8 > len(PreparedRows.open(tmp_path / "run" / "rows"))
    assert seen - special == training_ids
    assert not seen & held_out_ids
    assert len(training_ids | held_out_ids) == len(characters)


def test_the_settings_of_a_step_reach_every_stage(pretrain_flags, tmp_path, monkeypatch):
    configs = []
    monkeypatch.setattr(
        PretrainingModel, "fit", lambda model, *_, **__: configs.append(model.step_config)
    )
    flags = pretrain_flags(tmp_path / "run", steps=None, held_out=0, spike_factor=3, max_skipped=7)
    stages = ["steps=1 accumulate=2", "steps=1"]
    assert main(["pretrain", *flags, "--stages", *stages]) == 0
    assert configs == [StepConfig(number, 3.0, 7) for number in (2, 1)]


def test_the_seed_orders_the_sequences_and_draws_their_masks(pretrain_flags, tmp_path, monkeypatch):
    batches = []

    def fit(_, sequences, **__):
        batches.append(next(iter(sequences))[0])
        raise KeyboardInterrupt  # ends the command without training

    monkeypatch.setattr(PretrainingModel, "fit", fit)
    unchanged = {"mask_replace_rate": 0, "random_replace_rate": 0}  # tokens show only the order
    for seed in (0, 1):
        flags = pretrain_flags(tmp_path / f"run-{seed}", seed=seed, held_out=0, **unchanged)
        assert main(["pretrain", *flags]) == 130
    for name in ("token_ids", "masked_positions"):
        first, other = (np.array(batch[name]) for batch in batches)
        assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("flags", "share"),
    [
        ((), 0.2),
        (("--corpus-weights", "a", "3", "b", "1"), 0.75),
        (("--corpus-temperature", "1e9"), 0.5),
    ],
)
def test_corpora_are_sampled_with_the_given_weights(
    pretrain_flags, tmp_path, monkeypatch, flags, share
):
    """Each of two corpora repeats one character; the second is four times as large."""
    for name, character, lines in (("a", "一", 100), ("b", "二", 400)):
        text = f"{character * 30}\n" * lines
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    rows = []

    def fit(_, batches, steps_per_epoch, **__):
        for inputs, *_rest in islice(batches, steps_per_epoch):
            rows.extend(inputs["token_ids"])
        raise KeyboardInterrupt  # ends the command without training

    monkeypatch.setattr(PretrainingModel, "fit", fit)
    settings = {"corpus": None, "held_out": 0, "random_replace_rate": 0.0, "steps": 60}
    corpora = ["--corpus", *(f"{name}={tmp_path / name}.txt" for name in "ab")]
    run = tmp_path / "run"
    assert main(["pretrain", *pretrain_flags(run, **settings), *corpora, *flags]) == 130
    tokenizer = RoFormerTokenizer.from_pretrained(run / "rows")
    first, second = (tokenizer.vocabulary[character] for character in "一二")
    from_first = [np.sum(row == first) > np.sum(row == second) for row in rows]
    assert np.mean(from_first) == pytest.approx(share, abs=0.03)
