"""The whole demo on a tiny corpus: its figures, files and examples."""

import json
import re
import runpy
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from itertools import islice

import numpy as np
import pytest
import yaml

from benchmarks.suite.__main__ import seen_texts
from pretrain.demo.__main__ import HIDE_ALL, Demo, held_out_examples, main, steps_per_second
from pretrain.demo.baselines import Baselines, masked_tokens, score, token_lengths
from roformer_tf.corpus.batches import held_out_batches
from roformer_tf.corpus.objectives import make_objective
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS

WORDS = re.findall(
    "..",
    "今天天气公园学习中国经济发展人民生活改革工作北京上海新闻记者报道我们他们"
    "非常喜欢这里酒店房间服务价格电脑质量问题时间朋友孩子老师学校公司市场国家",
)
ARCHITECTURE = {
    "vocab_size": 1,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
FLAGS = {
    "batch-size": 8,
    "log-every": 3,
    "evaluation-rows": 8,
    "learning-rate": 1e-2,
    "optimizer": "muon",  # learns in fewer steps
}

# These tests run the whole `make demo`. Its corpus and baselines have separate quick tests.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The settings of a tiny demo: 300 documents of three sentences, one layer of size 32."""
    folder = tmp_path_factory.mktemp("demo")
    architecture, config = folder / "architecture.json", folder / "config.yaml"
    architecture.write_text(json.dumps(ARCHITECTURE))
    config.write_text(yaml.safe_dump({"architecture": str(architecture)} | FLAGS))
    demo = Demo(
        output=folder / "run",
        config=config,
        vocab_size=200,
        length=32,
        held_out=0.1,
        seconds=1,
        pilot_steps=9,
    )
    demo.output.mkdir()
    chosen = np.random.default_rng(0).integers(0, len(WORDS), (300, 3, 4))
    with demo.corpus.open("w", encoding="utf-8") as file:
        for document in chosen:  # word pairs, so that there is a pattern and no sentence repeats
            sentences = ("".join(WORDS[n] + WORDS[n - 1] for n in four) for four in document)
            file.write(json.dumps({"text": "。".join(sentences) + "。"}) + "\n")
    return demo


@pytest.fixture(scope="module")
def speeds():
    """The speeds measured by the pilot run, in steps per second."""
    return []


@pytest.fixture(scope="module")
def printed(demo, speeds):
    """The output of the whole demo, with a simulated speed of 150 steps per second."""

    def record_speed(*arguments):
        speeds.append(steps_per_second(*arguments))
        return 150.0

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setattr("pretrain.demo.__main__.steps_per_second", record_speed)
        assert main(demo) == 0
    return out.getvalue()


def text_of(demo, split):
    """Return the text of all rows of a split."""
    tokenizer = RoFormerTokenizer.from_pretrained(demo.rows)
    tokens = {number: token.removeprefix("##") for token, number in tokenizer.vocabulary.items()}
    rows = PreparedRows.open(demo.rows, split)
    return "".join(tokens[number] for i in range(len(rows)) for number in rows[i][0].tolist())


def figures(printed):
    """Return {name: (accuracy in percent, bits per character)} of the printed lines."""
    pattern = r"^  (.{42}) *([\d.]+)% +([\d.]+) bits/character$"
    lines = re.findall(pattern, printed, flags=re.MULTILINE)
    assert len(lines) == 4
    return {name.strip(): (float(accuracy), float(bits)) for name, accuracy, bits in lines}


def test_the_model_and_the_baselines_are_evaluated_on_held_out_rows(demo, printed):
    """The printed figures equal those computed with NumPy on the held-out rows."""
    actual = figures(printed)
    model = RoFormerForMaskedLM.from_pretrained(demo.output / "model")
    tokenizer = RoFormerTokenizer.from_pretrained(demo.rows)
    held_out = PreparedRows.open(demo.rows, "held_out")
    masked = make_objective("masked", tokenizer, HIDE_ALL)
    correct, bits, labels = [], [], []
    for inputs, label, weight in held_out_batches(
        held_out, batch_size=64, seed=0, objective=masked
    ):
        used = (weight > 0) & (label != tokenizer.unk_id)
        hidden = np.take_along_axis(inputs["token_ids"], inputs["masked_positions"], axis=1)
        assert (hidden[used] == tokenizer.mask_id).all()
        logits = np.asarray(model(inputs), "float64")[used]
        likelihood = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
        correct += (logits.argmax(axis=-1) == label[used]).tolist()
        bits += (-np.log2(likelihood[np.arange(len(logits)), label[used]])).tolist()
        labels += label[used].tolist()
    lengths = {number: len(token.strip("#")) for token, number in tokenizer.vocabulary.items()}
    characters = sum(lengths[label] for label in labels)
    accuracy, bits_per_character = actual["this model after training"]
    assert accuracy == pytest.approx(100 * np.mean(correct), abs=0.051)
    assert bits_per_character == pytest.approx(sum(bits) / characters, abs=0.0051)

    train = PreparedRows.open(demo.rows)
    specials = {tokenizer.vocabulary[token] for token in SPECIAL_TOKENS}
    counts = Counter(n for i in range(len(train)) for n in train[i][0].tolist())
    most_frequent = max((n for n in counts if n not in specials), key=counts.__getitem__)
    accuracy, _ = actual["always the most frequent token"]
    assert accuracy == pytest.approx(100 * np.mean(np.array(labels) == most_frequent), abs=0.051)


def test_the_baselines_count_only_the_training_rows(demo, printed):
    tokenizer = RoFormerTokenizer.from_pretrained(demo.rows)
    ((inputs, labels, weights),) = held_out_batches(
        PreparedRows.open(demo.rows, "held_out"),
        batch_size=64,
        seed=0,
        objective=make_objective("masked", tokenizer, HIDE_ALL),
    )
    ids = {"mask_id": tokenizer.mask_id, "unk_id": tokenizer.unk_id}
    where = inputs["token_ids"], inputs["masked_positions"]
    hidden = masked_tokens(*where, labels, weights, **ids)
    by_split = {}
    for split in ("train", "held_out"):
        counts = Baselines(PreparedRows.open(demo.rows, split), tokenizer.vocabulary)
        predictions = counts.most_frequent(hidden), counts.between_neighbours(hidden)
        lengths = token_lengths(tokenizer.vocabulary)
        by_split[split] = [score(prediction, hidden.labels, lengths) for prediction in predictions]
    actual = [*figures(printed).values()][:2]
    for (accuracy, bits), expected in zip(actual, by_split["train"], strict=True):
        assert accuracy == pytest.approx(100 * expected.accuracy, abs=0.051)
        assert bits == pytest.approx(expected.bits_per_character, abs=0.0051)
    train, held_out = (by_split[split][-1].bits_per_character for split in ("train", "held_out"))
    assert abs(train - held_out) > 0.02  # otherwise the figures could not show the difference


def test_the_card_lists_the_suite_sets_that_the_model_has_seen(demo, printed):
    for name in ("model", "best"):
        assert seen_texts(str(demo.output / name)) == [
            "reviews",
            "reviews-2700",
            "ner",
            "multilabel",
        ]


def test_training_lowers_the_bits_per_character(printed):
    actual = figures(printed)
    before, after = (actual[f"this model {when} training"] for when in ("before", "after"))
    assert before[1] > after[1] + 0.1


def test_the_number_of_steps_follows_from_the_measured_speed(demo, printed, speeds, tmp_path):
    assert yaml.safe_load((demo.output / "settings.yaml").read_text())["steps"] == 150
    assert len(speeds) == 1
    assert speeds[0] > 0
    (tmp_path / "settings.yaml").write_text("batch_size: 8")
    lines = [{"step": 3, "tokens_per_second": speed} for speed in (1, 512, 256, 1024)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert steps_per_second(tmp_path, 32) == 4  # the highest


def test_no_example_sentence_is_in_a_training_row(demo, printed):
    shown = re.findall(r"^  (\S*)［\S+］(\S*)   \(original: (\S+)\)$", printed, flags=re.MULTILINE)
    sentences = [before + answer + after for before, after, answer in shown]
    assert len(sentences) == 5
    training = text_of(demo, "train")
    assert [sentence for sentence in sentences if sentence in training] == []
    corpus = demo.corpus.read_text(encoding="utf-8")
    texts = [json.loads(line)["text"] for line in corpus.splitlines()]
    all_sentences = [sentence + "。" for text in texts for sentence in text.split("。")[:-1]]
    assert set(sentences) <= set(all_sentences)
    # Most sentences are in the training text, so the check above would find them.
    assert sum(sentence in training for sentence in all_sentences) > len(all_sentences) / 2


def test_help_explains_the_flags_and_trains_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["demo", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("pretrain.demo", run_name="__main__", alter_sys=True)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "--seconds X" in printed
    assert "examples:" not in printed  # it has none
    assert not list(tmp_path.iterdir())


def test_an_example_has_one_masked_word_of_the_vocabulary(demo, printed):
    tokenizer = RoFormerTokenizer.from_pretrained(demo.rows)
    for text, answer in islice(held_out_examples(demo, tokenizer), 20):
        assert text.count("[MASK]") == 1
        assert answer in tokenizer.vocabulary
        assert "[MASK]" not in text.replace("[MASK]", answer)


def test_the_printed_files_exist_and_a_second_run_resumes(demo, printed, monkeypatch):
    for name in ("model", "loss.png", "metrics.jsonl", "evaluations.jsonl", "filled_masks.png"):
        assert (demo.output / name).exists()
        assert str(demo.output / name) in printed
    commands = []

    def record_command(words):
        commands.append(words)
        return 3 if words[0] == "pretrain" else 0

    monkeypatch.setattr("pretrain.demo.__main__.roformer_tf", record_command)
    assert main(demo) == 3  # the exit code of the failed command
    assert [words[0] for words in commands] == ["prepare", "pretrain"]  # without a pilot run
    steps = yaml.safe_load((demo.output / "settings.yaml").read_text())["steps"]
    assert commands[-1][-4:] == ["--steps", str(steps), "--output", str(demo.output)]
