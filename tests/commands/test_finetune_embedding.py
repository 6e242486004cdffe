"""Sentence embeddings from a file to a model folder."""

import json

import numpy as np
import pytest

from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.cli import main
from roformer_tf.engines.model import onnx_session
from roformer_tf.finetuning import trainer, trial
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.vectors import VectorTraining
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.models.heads import RoFormerForSentenceEmbedding
from tests.support.embedding_file import load

CHARACTERS = list(
    "今天气很好我们去公园学习中国经济发展人民生活改革工作新闻记者报道的了在和是不也都"
)
QUICK_FLAGS = ("--epochs", 1, "--max-length", 24, "--no-baseline")


@pytest.fixture(autouse=True)
def plain_font(monkeypatch):
    """Skip cutting the font, which takes most of a report's time."""
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")


def write(path, count, seed=0, more=0):
    """Write queries that are part of their document.

    A few documents have `more` further queries.
    """
    rng = np.random.default_rng(seed)
    lines = ["query\tdocument"]
    for _ in range(count):
        document = "".join(rng.choice(CHARACTERS, rng.integers(20, 40)))
        begin = rng.integers(0, 10)
        lines.append(f"{document[begin : begin + 8]}\t{document}")
        if len(lines) % 3 == 0:
            lines += [f"{document[i : i + 6]}\t{document}" for i in range(more)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def finetune(checkpoint, train, output, *flags, batch_size=16, learning_rate=1e-3):
    settings = {
        "task": "embedding",
        "checkpoint": checkpoint,
        "train": train,
        "output": output,
        "learning-rate": learning_rate,
        "batch-size": batch_size,
        "precision": "float32",
    }
    arguments = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return main(["finetune", *arguments, *map(str, flags)])


@pytest.mark.slow
def test_an_export_gives_the_models_vectors(released, tmp_path, eagerly):
    pytest.importorskip("onnxruntime")
    train = write(tmp_path / "train.tsv", 40)
    with eagerly():
        code = finetune(
            released("sim_char"), train, tmp_path / "run", *QUICK_FLAGS, "--export", "onnxruntime"
        )
    assert code == 0
    texts = ["今天天气很好", "北京"]
    exported = tmp_path / "run" / "export" / "onnxruntime"
    embedder = VectorSettings().open(tmp_path / "run" / "model")
    rows = embedder.tokenizer(texts)
    actual = onnx_session(exported / "model.onnx")(rows)
    np.testing.assert_allclose(actual, embedder.embed(texts), rtol=0, atol=1e-5)


@pytest.fixture
def hard_negatives(monkeypatch):
    """A list of the hard negatives of each training."""
    recorded, compute = [], trial.with_hard_negatives

    def recording(*arguments):
        data = compute(*arguments)
        recorded.append(data.negatives)
        return data

    monkeypatch.setattr(trial, "with_hard_negatives", recording)
    return recorded


def test_a_resumed_training_has_the_hard_negatives_of_its_first_weights(
    released, tmp_path, eagerly, monkeypatch, hard_negatives
):
    train = write(tmp_path / "train.tsv", 40)
    flags = ("--hard-negatives", 2, "--save-every", 1, "--warmup", 0, "--dropout", 0, *QUICK_FLAGS)
    save, fit = trial.save_checkpoint, VectorTraining.fit

    def interrupted(*arguments, **settings):
        save(*arguments, **settings)
        raise KeyboardInterrupt

    def fit_once(model, *arguments, **settings):
        if len(hard_negatives) == 2:
            raise KeyboardInterrupt  # only the negatives of a resumed training matter
        return fit(model, *arguments, **settings)

    monkeypatch.setattr(trial, "save_checkpoint", interrupted)
    monkeypatch.setattr(VectorTraining, "fit", fit_once)
    for _ in range(2):
        with eagerly():
            arguments = released("sim_char"), train, tmp_path / "run", *flags
            assert finetune(*arguments, learning_rate=0.1) == 130
    first, resumed = hard_negatives
    np.testing.assert_array_equal(first, resumed)


def test_pairs_train_a_retrieval_model(
    released, tmp_path, eagerly, capsys, monkeypatch, hard_negatives
):
    train, micro_batches = write(tmp_path / "train.tsv", 40), []
    result = trainer.VectorTraining
    monkeypatch.setattr(
        trainer,
        "VectorTraining",
        lambda *arguments: micro_batches.append(arguments[2]) or result(*arguments),
    )
    with eagerly():
        code = finetune(
            *(released("sim_char"), train, tmp_path / "run", "--epochs", 1),
            *(
                "--dimensions",
                8,
                16,
                "--micro-batches",
                2,
                "--max-length",
                24,
                "--hard-negatives",
                2,
            ),
            batch_size=32,
        )
    shown = capsys.readouterr().out
    assert code == 0
    assert micro_batches == [2]
    (negatives,) = hard_negatives
    assert negatives.shape[1] == 2
    assert (negatives % 2 == 1).all()  # documents
    assert "text in columns query, document, no label" in shown
    assert "gives vectors, of its pooler" in shown
    assert load(tmp_path / "run" / "model") == EmbeddingConfig("pooler", 24, (8, 16, 32))
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    names = ["ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_5", "recall_at_10"]
    assert list(report["test"]) == names
    assert list(report["intervals"]["test"]) == names
    baselines = [report["baseline"], *report["other_baselines"]]
    assert sorted(item["name"] for item in baselines) == [
        "BM25 of words",
        "TF-IDF cosine of 1–3 characters",
    ]
    assert all(list(item["test"]) == names for item in baselines)
    assert baselines[0]["test"]["ndcg_at_10"] >= baselines[1]["test"]["ndcg_at_10"] > 0.9
    (shown, *_) = report["neighbours"]
    assert len(shown["texts"]) == 2
    assert len(shown["neighbours"]) == 3
    assert sum(report["cosines"]["near"]) == sum(report["cosines"]["far"]) == 4
    page = (tmp_path / "run" / "report.md").read_text(encoding="utf-8")
    assert "## 最近邻示例" in page
    assert "| BM25（按词）（测试集） | 4 |" in page
    model = RoFormerForSentenceEmbedding.from_pretrained(tmp_path / "run" / "model")
    assert sorted(model.parts()) == ["encoder", "pooler"]
    before = RoFormerForSentenceEmbedding.from_pretrained(released("sim_char"), pooling="pooler")
    changes = {
        name: float(np.abs(np.asarray(x) - np.asarray(before.named_variables()[name])).max())
        for name, x in model.named_variables().items()
    }
    assert changes["pooler/dense/kernel"] > 0
    assert changes["encoder/layer_0/attention/query/kernel"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fgm", 0.5], "--fgm is about labels of single texts"),
        (["--r-drop", 1], "--r-drop is about"),
        (["--label-smoothing", 0.1], "--label-smoothing is about"),
        (["--class-weights", "balanced"], "--class-weights is about"),
        (["--crf"], "crf is for sequences of labels"),
        (["--long-texts", "head-tail"], "--long-texts is head-tail, but with embedding"),
        (["--loss", "cosent"], "Give --loss softmax"),
        (["--metric", "spearman"], "the task embedding has no metric 'spearman'"),
    ],
)
def test_flags_of_other_tasks_are_refused(flags, message, released, tmp_path, capsys):
    train = write(tmp_path / "train.tsv", 20)
    assert finetune(released("char"), train, tmp_path / "run", "--epochs", 1, *flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "settings.yaml").exists()


def test_flags_of_embeddings_are_refused_for_other_tasks(released, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("text\tlabel\n好天\t1\n坏天\t0\n", encoding="utf-8")
    flags = ["--checkpoint", released("char"), "--train", tmp_path / "train.tsv"]
    flags += ["--output", tmp_path / "run", "--hard-negatives", 2]
    assert main(["finetune", *map(str, flags)]) == 2
    assert "--hard-negatives is for sentence vectors" in capsys.readouterr().err


@pytest.mark.slow
def test_unlabelled_texts_are_enough(released, tmp_path, eagerly, capsys):
    rng = np.random.default_rng(0)
    sentences = ["".join(rng.choice(CHARACTERS, 8)) + "。" for _ in range(48)]
    lines = ["".join(sentences[i : i + 3]) for i in range(0, 48, 3)]
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    flags = [released("char"), tmp_path / "texts.txt", tmp_path / "run", "--epochs", 1]
    with eagerly():
        assert finetune(*flags) == 0
    shown = capsys.readouterr().out
    assert "one text a line" in shown
    assert "a sentence belongs to the passage" in shown
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert "recall_at_10" in report["test"]


@pytest.mark.slow
def test_hard_negatives_are_documents(released, tmp_path, eagerly, monkeypatch, hard_negatives):
    train, repeated_inputs, fed = write(tmp_path / "train.tsv", 40, more=4), [], trial.fed
    monkeypatch.setattr(
        trial, "fed", lambda *arguments: repeated_inputs.append(arguments[1]) or fed(*arguments)
    )
    with eagerly():
        code = finetune(
            *(released("char"), train, tmp_path / "run", "--epochs", 1),
            *("--hard-negatives", 2, "--no-baseline"),
        )
    assert code == 0
    assert repeated_inputs == [("side_1",)]  # documents occur again, so each is encoded once
    (negatives,) = hard_negatives
    assert negatives.shape[1] == 2
    assert (negatives % 2 == 1).all()  # documents


class StoppedError(Exception):
    """Interrupts a training run."""


def stop_at(monkeypatch, number):
    """Interrupt training after it has written that many checkpoints."""
    saves, save = [], trial.save_checkpoint

    def save_and_stop(*arguments, **settings):
        save(*arguments, **settings)
        saves.append(1)
        if len(saves) == number:
            raise StoppedError

    monkeypatch.setattr(trial, "save_checkpoint", save_and_stop)


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_weights(
    released, tmp_path, eagerly, monkeypatch, hard_negatives
):
    """With hard negatives from the initial weights, and with repeated documents."""
    train = write(tmp_path / "train.tsv", 30)
    header, *lines = train.read_text(encoding="utf-8").splitlines()
    lines += [f"{line.split(chr(9))[1][-6:]}\t{line.split(chr(9))[1]}" for line in lines]
    train.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    flags = ["--epochs", 2, "--hard-negatives", 1, "--no-baseline", "--save-every", 2]
    with eagerly():
        assert finetune(released("char"), train, tmp_path / "whole", *flags) == 0
        with monkeypatch.context() as patch:
            stop_at(patch, 3)
            with pytest.raises(StoppedError):
                finetune(released("char"), train, tmp_path / "run", *flags)
        assert not (tmp_path / "run" / "model").exists()
        assert finetune(released("char"), train, tmp_path / "run", *flags) == 0
    uninterrupted, begun, resumed = hard_negatives
    assert (uninterrupted == begun).all()
    assert (uninterrupted == resumed).all()
    uninterrupted, run = (
        tmp_path / name / "model" / "model.safetensors" for name in ("whole", "run")
    )
    assert run.read_bytes() == uninterrupted.read_bytes()
