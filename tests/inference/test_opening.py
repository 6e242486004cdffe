"""Tests that a model is opened once without reading a file twice, and of consistent errors."""

import json
import shutil
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.inference.opening import open_model
from roformer_tf.models.heads import RoFormerForSequenceClassification
from roformer_tf.tokenizers.tokenizer import missing_vocabulary
from roformer_tf.tokenizers.vocabulary import gives_segments

pytestmark = pytest.mark.usefixtures("eager_steps")
recordings: list[list[str]] = []


def _record(event, arguments):
    """Record opened files. An audit hook cannot be removed."""
    if recordings and event == "open" and isinstance(arguments[0], str):
        recordings[-1].append(arguments[0])


sys.addaudithook(_record)


@contextmanager
def reads_of(folder):
    """Return a counter of how often Python opens each file of a folder."""
    reads = Counter()
    recordings.append([])
    try:
        yield reads
    finally:
        root = Path(folder).resolve()
        paths = [Path(path).resolve() for path in recordings.pop()]
        reads.update(path.name for path in paths if path.parent == root and path.is_file())


def commands(tmp_path):
    """Return the flags of each command after the model."""
    (tmp_path / "texts.txt").write_text("今天\n天气\n", encoding="utf-8")
    (tmp_path / "labelled.tsv").write_text("text\tlabel\n今天\t好\n天气\t坏\n", encoding="utf-8")
    texts, labelled, out = tmp_path / "texts.txt", tmp_path / "labelled.tsv", tmp_path / "out"
    return {
        "predict": ["--input", texts, "--output", f"{out}.tsv"],
        "evaluate": ["--data", labelled],
        "export": ["--to", "onnx", "--output", out],
        "embed": ["--input", texts, "--output", f"{out}.npy"],
        "similarity": ["今天", "天气"],
        "fill-mask": ["今天[MASK]"],
        "generate": ["今天", "--max-tokens", 2],
        "search": ["--documents", texts, "--queries", "天"],
    }


KINDS = {
    **dict.fromkeys(("predict", "evaluate", "export"), "classification"),
    **dict.fromkeys(("embed", "similarity", "search", "fill-mask"), "char"),
    "generate": "gpt_char",
}


@pytest.fixture
def folder_of(finetuned, unpacked, tmp_path):
    """Return a function: folder_of("predict") → a folder that the command can open."""

    def make(command):
        kind = KINDS[command]
        if kind == "classification":
            return shutil.copytree(finetuned(kind), tmp_path / "model")
        return unpacked(kind).rename(tmp_path / f"chinese_roformer-{kind.replace('_', '-')}")

    return make


@pytest.mark.parametrize("command", KINDS)
def test_no_file_is_read_twice(command, folder_of, tmp_path):
    if command == "export":
        pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")
    folder = folder_of(command)
    with reads_of(folder) as reads:
        flags = commands(tmp_path)[command]
        assert main([command, "--model", str(folder), *map(str, flags)]) == 0
    assert reads["vocab.txt"] == 1
    assert {name: count for name, count in reads.items() if count > 1} == {}


@pytest.mark.parametrize("name", ["classification", "tagging"])
def test_load_reads_no_file_twice(name, finetuned):
    with reads_of(finetuned(name)) as reads:
        roformer_tf.load(finetuned(name))
    tokenizer = ("vocab.txt", "tokenizer_config.json", "tokenizer.json")
    assert reads == dict.fromkeys(("task.json", "config.json", *tokenizer), 1)


@pytest.mark.parametrize("command", KINDS)
def test_every_command_reports_a_missing_vocabulary_alike(command, folder_of, tmp_path, capsys):
    folder = folder_of(command)
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").unlink(missing_ok=True)
    command_line = [command, "--model", str(folder), *map(str, commands(tmp_path)[command])]
    assert main(command_line) == 2
    assert missing_vocabulary(str(folder)) in capsys.readouterr().err


def test_an_opened_model_has_its_kind(finetuned, released):
    with open_model(finetuned("classification")) as opened:
        assert opened.is_finetuned
        assert not opened.has_embedding_file
    with open_model(released("sim_char")) as opened:
        assert (opened.task, opened.generates, opened.is_masked_lm) == (None, True, False)
    with open_model(released("char")) as opened:
        assert (opened.checkpoint.attention_type, opened.is_masked_lm) == ("bidirectional", True)


@pytest.mark.parametrize(("limit", "length"), [(16, 16), (1600, 1536), (1e30, 1536), (None, 1536)])
def test_a_classifier_of_transformers_cuts_texts_at_the_limit_of_its_tokenizer(
    limit, length, released, tmp_path
):
    folder = Path(shutil.copytree(released("hf_word_seqcls"), tmp_path / "theirs"))
    settings = {"model_max_length": limit} if limit else {}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["max_position_embeddings"] = 1536
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    converted = tmp_path / "ours"
    assert main(["checkpoints", "convert", str(folder), str(converted), "--to", "own"]) == 0
    for source in (folder, converted):
        with open_model(source) as opened:
            assert opened.task.max_length == length
            assert opened.tokenizer.tokenization == "word"


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, True),  # as versions before 5 write it
        ({"backend": "tokenizers", "tokenizer_class": "RoFormerTokenizer"}, False),
        ({"backend": "tokenizers", "tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids"]}, False),
    ],
)
def test_segments_are_those_of_the_tokenizer_class(settings, wanted):
    assert gives_segments(settings) == wanted


def test_a_tokenizer_without_segments_encodes_pairs_as_one_segment(finetuned, tmp_path):
    """Models trained by transformers may have a tokenizer that returns no `token_type_ids`.

    So may models that have one segment alone.
    """
    without_segments, equal_segments, one_segment = (
        Path(shutil.copytree(finetuned("pair"), tmp_path / x)) for x in "abc"
    )
    settings = json.loads((without_segments / "tokenizer_config.json").read_text("utf-8"))
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    (without_segments / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    weights = load_file(equal_segments / "model.safetensors")
    (name,) = (name for name in weights if name.endswith("token_type_embeddings.weight"))
    weights[name][1] = weights[name][0]
    save_file(weights, equal_segments / "model.safetensors")
    weights[name] = weights[name][:1]
    save_file(weights, one_segment / "model.safetensors")
    config = json.loads((one_segment / "config.json").read_text("utf-8")) | {"type_vocab_size": 1}
    (one_segment / "config.json").write_text(json.dumps(config), "utf-8")
    converted = tmp_path / "converted"
    arguments = [str(without_segments), str(converted), "--to", "huggingface"]
    assert main(["checkpoints", "convert", *arguments]) == 0
    predictions = [
        roformer_tf.load(folder)(("天气", "公园"))
        for folder in (without_segments, equal_segments, one_segment, converted)
    ]
    for prediction in predictions[1:]:
        assert predictions[0]["scores"] == pytest.approx(prediction["scores"], abs=1e-6)
    with_segments = roformer_tf.load(finetuned("pair"))(("天气", "公园"))["scores"]
    assert predictions[0]["scores"] != pytest.approx(with_segments, abs=1e-3)
    # A model that is trained further has segments.
    model = RoFormerForSequenceClassification.from_pretrained(without_segments)
    model.save_pretrained(tmp_path / "trained")
    shutil.copy(without_segments / "task.json", tmp_path / "trained")
    trained = roformer_tf.load(tmp_path / "trained")(("天气", "公园"))
    assert trained["scores"] == pytest.approx(with_segments, abs=1e-6)
