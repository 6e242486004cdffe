"""Paraphrases from groups of sentences to a generative model."""

import json

import numpy as np
import pytest

from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.cli import main
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.models.heads import RoFormerForSentenceSimilarity
from tests.support.embedding_file import load

CHARACTERS = list(
    "今天气很好我们去公园学习中国经济发展人民生活改革工作新闻记者报道的了在和是不也都"
)


@pytest.fixture(autouse=True)
def plain_font(monkeypatch):
    """Skip cutting the font, which takes most of a report's time."""
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")


def write(path, count, key="similar"):
    """Write groups of two to four sentences that differ in one character."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(count):
        text = "".join(rng.choice(CHARACTERS, 8))
        rest = [f"{text[:i]}北{text[i + 1 :]}" for i in range(1, 2 + number % 3)]
        lines.append(json.dumps({"text": text, key: rest}, ensure_ascii=False))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def finetune(checkpoint, train, output, *flags):
    settings = {
        "task": "paraphrase",
        "checkpoint": checkpoint,
        "train": train,
        "output": output,
        "learning-rate": 1e-3,
        "batch-size": 16,
        "epochs": 1,
        "precision": "float32",
    }
    arguments = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return main(["finetune", *arguments, *map(str, flags)])


@pytest.mark.parametrize(
    ("checkpoint", "key", "distilled"),
    [
        pytest.param("sim_char", "similar", False, marks=pytest.mark.slow),
        ("char", "synonyms", True),
    ],
)
def test_groups_train_a_generative_model(
    checkpoint, key, distilled, released, tmp_path, eagerly, capsys, caplog
):
    train = write(tmp_path / "train.jsonl", 20, key)
    teacher = ["--teacher", released("sim_char_ft")] if distilled else []
    with eagerly():
        code = finetune(released(checkpoint), train, tmp_path / "run", *teacher)
    actual = capsys.readouterr().out
    assert code == 0
    assert f"text in columns text, {key}, no label" in actual
    assert "groups that mean the same" in actual
    assert ("the teacher is" in actual) is distilled
    assert ("pooler: its weights are new" in caplog.text) is distilled
    task = json.loads((tmp_path / "run" / "model" / "task.json").read_text("utf-8"))
    assert task.get("teacher", False) is distilled  # by which the loss is chosen
    assert load(tmp_path / "run" / "model") == EmbeddingConfig("pooler", 16)
    model = RoFormerForSentenceSimilarity.from_pretrained(tmp_path / "run" / "model")
    assert model.config.attention_type == "unilm"
    assert len(model.generate(["今天天气"], max_tokens=3)[0][0]) >= 0
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert "ndcg_at_10" in report["test"]


def test_labels_are_refused(released, tmp_path, capsys):
    (tmp_path / "train.tsv").write_text(
        "text_a\ttext_b\tlabel\n甲天\t甲地\t1\n乙天\t乙地\t0\n", encoding="utf-8"
    )
    assert finetune(released("char"), tmp_path / "train.tsv", tmp_path / "run") == 2
    assert "texts that mean the same need none" in capsys.readouterr().err


@pytest.mark.slow
def test_bert4keras_agrees_with_the_trained_model(released, tmp_path, start_command):
    train = write(tmp_path / "train.jsonl", 40)
    assert finetune(released("sim_char"), train, tmp_path / "run") == 0
    model, converted = tmp_path / "run" / "model", tmp_path / "tf1"
    assert main(["checkpoints", "convert", str(model), str(converted), "--to", "tf1"]) == 0
    process = start_command(
        "roformer-tf", "checkpoints", "verify", converted, "--against", "bert4keras"
    )
    actual, err = process.communicate()
    assert process.returncode == 0, err
    assert "attention unilm" in actual
    assert {"pooled", "logits"} <= {line.split()[0] for line in actual.splitlines() if line}
    assert "All differences are within their bounds" in actual
