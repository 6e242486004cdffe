"""Vectors from file to model folder, as a user types it."""

import json

import numpy as np
import pytest

from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.cli import main
from roformer_tf.engines.model import onnx_session
from roformer_tf.finetuning import trainer, trial
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.models.heads import RoFormerForSentenceEmbedding
from tests.support.embedding_file import load

CHARACTERS = list(
    "今天气很好我们去公园学习中国经济发展人民生活改革工作新闻记者报道的了在和是不也都"
)
FEW = ("--epochs", 1, "--max-length", 24, "--no-baseline")


@pytest.fixture(autouse=True)
def plain_font(monkeypatch):
    """Cutting a font takes most of a report's time."""
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")


def written(path, count, seed=0, more=0):
    """Queries that are a part of the document that they belong to; of a few there are `more`."""
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


def finetune(checkpoint, train, output, *flags, batch_size=16):
    settings = {
        "task": "embedding",
        "checkpoint": checkpoint,
        "train": train,
        "output": output,
        "learning-rate": 1e-3,
        "batch-size": batch_size,
        "precision": "float32",
    }
    typed = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return main(["finetune", *typed, *map(str, flags)])


@pytest.mark.slow
def test_its_vectors_are_exported(released, tmp_path, eagerly):
    pytest.importorskip("onnxruntime")
    train = written(tmp_path / "train.tsv", 40)
    with eagerly():
        done = finetune(
            released("sim_char"), train, tmp_path / "run", *FEW, "--export", "onnxruntime"
        )
    assert done == 0
    texts = ["今天天气很好", "北京"]
    exported = tmp_path / "run" / "export" / "onnxruntime"
    embedder = VectorSettings().open(tmp_path / "run" / "model")
    rows = embedder.tokenizer(texts)
    actual = onnx_session(exported / "model.onnx")(rows)
    np.testing.assert_allclose(actual, embedder.embed(texts), rtol=0, atol=1e-5)


@pytest.fixture
def mined(monkeypatch):
    """The hard negatives of each training."""
    seen, mine = [], trial.with_hard_negatives

    def spied(*arguments):
        data = mine(*arguments)
        seen.append(data.negatives)
        return data

    monkeypatch.setattr(trial, "with_hard_negatives", spied)
    return seen


def test_pairs_become_a_model_that_finds(released, tmp_path, eagerly, capsys, monkeypatch, mined):
    train, micro_batches = written(tmp_path / "train.tsv", 40), []
    result = trainer.VectorTraining
    monkeypatch.setattr(
        trainer,
        "VectorTraining",
        lambda *arguments: micro_batches.append(arguments[2]) or result(*arguments),
    )
    with eagerly():
        done = finetune(
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
    assert done == 0
    assert micro_batches == [2]
    (negatives,) = mined
    assert negatives.shape[1] == 2
    assert (negatives % 2 == 1).all()  # documents
    assert "text in columns query, document, no label" in shown
    assert "vectors are the output of the checkpoint's pooler" in shown
    assert load(tmp_path / "run" / "model") == EmbeddingConfig("pooler", 24, (8, 16, 32))
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    names = ["ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_5", "recall_at_10"]
    assert list(report["test"]) == names
    assert list(report["intervals"]["test"]) == names
    by_words = [report["baseline"], *report["other_baselines"]]
    assert sorted(item["name"] for item in by_words) == [
        "BM25 of words",
        "TF-IDF cosine of 1–3 characters",
    ]
    assert all(list(item["test"]) == names for item in by_words)
    assert by_words[0]["test"]["ndcg_at_10"] >= by_words[1]["test"]["ndcg_at_10"] > 0.9
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
    moved = {
        name: float(np.abs(np.asarray(x) - np.asarray(before.named_variables()[name])).max())
        for name, x in model.named_variables().items()
    }
    assert moved["pooler/dense/kernel"] > 0
    assert moved["encoder/layer_0/attention/query/kernel"] > 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fgm", 0.5], "--fgm is about labels of single texts"),
        (["--r-drop", 1], "--r-drop is about"),
        (["--label-smoothing", 0.1], "--label-smoothing is about"),
        (["--class-weights", "balanced"], "--class-weights is about"),
        (["--crf"], "crf is for sequences of labels"),
        (["--long-texts", "head-tail"], "--long-texts is head-tail"),
        (["--loss", "cosent"], "Give --loss softmax"),
        (["--metric", "spearman"], "no metric 'spearman'"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused(flags, message, released, tmp_path, capsys):
    train = written(tmp_path / "train.tsv", 20)
    assert finetune(released("char"), train, tmp_path / "run", "--epochs", 1, *flags) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "settings.yaml").exists()


def test_flags_of_vectors_are_refused_where_there_are_none(released, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text("text\tlabel\n好天\t1\n坏天\t0\n", encoding="utf-8")
    flags = ["--checkpoint", released("char"), "--train", tmp_path / "train.tsv"]
    flags += ["--output", tmp_path / "run", "--hard-negatives", 2]
    assert main(["finetune", *map(str, flags)]) == 2
    assert "--hard-negatives is for sentence vectors" in capsys.readouterr().err


@pytest.mark.slow
def test_texts_alone_are_enough(released, tmp_path, eagerly, capsys):
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
def test_hard_negatives_are_documents(released, tmp_path, eagerly, monkeypatch, mined):
    train, varying, fed = written(tmp_path / "train.tsv", 40, more=4), [], trial.fed
    monkeypatch.setattr(
        trial, "fed", lambda *arguments: varying.append(arguments[1]) or fed(*arguments)
    )
    with eagerly():
        done = finetune(
            *(released("char"), train, tmp_path / "run", "--epochs", 1),
            *("--hard-negatives", 2, "--no-baseline"),
        )
    assert done == 0
    assert varying == [("side_1",)]  # since documents come again, they are encoded once
    (negatives,) = mined
    assert negatives.shape[1] == 2
    assert (negatives % 2 == 1).all()  # documents


class StoppedError(Exception):
    """What ends a training on its way."""


def stopped_at(monkeypatch, number):
    """Have a training end at its checkpoint of that number, once it is written."""
    seen, save = [], trial.save_checkpoint

    def stopping(*arguments, **settings):
        save(*arguments, **settings)
        seen.append(1)
        if len(seen) == number:
            raise StoppedError

    monkeypatch.setattr(trial, "save_checkpoint", stopping)


@pytest.mark.slow
def test_broken_off_it_ends_with_the_same_weights(released, tmp_path, eagerly, monkeypatch, mined):
    """With hard negatives by the weights that it began with, and documents that come again."""
    train = written(tmp_path / "train.tsv", 30)
    header, *lines = train.read_text(encoding="utf-8").splitlines()
    lines += [f"{line.split(chr(9))[1][-6:]}\t{line.split(chr(9))[1]}" for line in lines]
    train.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    flags = ["--epochs", 2, "--hard-negatives", 1, "--no-baseline", "--save-every", 2]
    with eagerly():
        assert finetune(released("char"), train, tmp_path / "whole", *flags) == 0
        with monkeypatch.context() as patch:
            stopped_at(patch, 3)
            with pytest.raises(StoppedError):
                finetune(released("char"), train, tmp_path / "run", *flags)
        assert not (tmp_path / "run" / "model").exists()
        assert finetune(released("char"), train, tmp_path / "run", *flags) == 0
    first, begun, resumed = mined
    assert (first == begun).all()
    assert (first == resumed).all()
    whole, run = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "run"))
    assert run.read_bytes() == whole.read_bytes()
