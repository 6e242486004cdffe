"""The whole demo on a tiny corpus: its figures, files and examples."""

import json
import re
from collections import Counter
from contextlib import redirect_stdout
from io import StringIO
from itertools import islice

import numpy as np
import pytest
import yaml

from benchmarks.suite.__main__ import seen_texts
from pretrain.demo.__main__ import HIDE_ALL, Demo, held_out_examples, main, steps_per_second
from pretrain.demo.baselines import Baselines, characters, masked_tokens, score
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
def measured():
    """The speeds measured by the pilot run, in steps per second."""
    return []


@pytest.fixture(scope="module")
def printed(demo, measured):
    """The output of the whole demo, with a simulated speed of 150 steps per second."""

    def rate(*arguments):
        measured.append(steps_per_second(*arguments))
        return 150.0

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out:
        patch.setattr("pretrain.demo.__main__.steps_per_second", rate)
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
    right, bits, labels = [], [], []
    for inputs, label, weight in held_out_batches(
        held_out, batch_size=64, seed=0, objective=masked
    ):
        used = (weight > 0) & (label != tokenizer.unk_id)
        hidden = np.take_along_axis(inputs["token_ids"], inputs["masked_positions"], axis=1)
        assert (hidden[used] == tokenizer.mask_id).all()
        logits = np.asarray(model(inputs), "float64")[used]
        likelihood = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
        right += (logits.argmax(axis=-1) == label[used]).tolist()
        bits += (-np.log2(likelihood[np.arange(len(logits)), label[used]])).tolist()
        labels += label[used].tolist()
    lengths = {number: len(token.strip("#")) for token, number in tokenizer.vocabulary.items()}
    characters = sum(lengths[label] for label in labels)
    accuracy, surprise = actual["this model after training"]
    assert accuracy == pytest.approx(100 * np.mean(right), abs=0.051)
    assert surprise == pytest.approx(sum(bits) / characters, abs=0.0051)

    train = PreparedRows.open(demo.rows)
    specials = {tokenizer.vocabulary[token] for token in SPECIAL_TOKENS}
    counts = Counter(n for i in range(len(train)) for n in train[i][0].tolist())
    most = max((n for n in counts if n not in specials), key=counts.__getitem__)
    accuracy, _ = actual["always the most frequent token"]
    assert accuracy == pytest.approx(100 * np.mean(np.array(labels) == most), abs=0.051)


def test_the_baselines_have_counted_the_training_rows_and_none_else(demo, printed):
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
        guesses = counts.most_frequent(hidden), counts.between_neighbours(hidden)
        lengths = characters(tokenizer.vocabulary)
        by_split[split] = [score(guess, hidden.labels, lengths) for guess in guesses]
    actual = [*figures(printed).values()][:2]
    for (accuracy, bits), own in zip(actual, by_split["train"], strict=True):
        assert accuracy == pytest.approx(100 * own.accuracy, abs=0.051)
        assert bits == pytest.approx(own.bits_per_character, abs=0.0051)
    own, other = (by_split[split][-1].bits_per_character for split in ("train", "held_out"))
    assert abs(own - other) > 0.02  # otherwise the figures could not show the difference


def test_the_card_names_the_sets_of_the_suite_that_the_model_has_read(demo, printed):
    for name in ("model", "best"):
        assert seen_texts(str(demo.output / name)) == [
            "reviews",
            "reviews-2700",
            "ner",
            "multilabel",
        ]


def test_before_training_the_model_knew_less(printed):
    actual = figures(printed)
    before, after = (actual[f"this model {when} training"] for when in ("before", "after"))
    assert before[1] > after[1] + 0.1


def test_it_trains_for_as_long_as_it_was_asked_to_at_the_speed_of_the_pilot(
    demo, printed, measured, tmp_path
):
    assert yaml.safe_load((demo.output / "settings.yaml").read_text())["steps"] == 150
    assert len(measured) == 1
    assert measured[0] > 0
    (tmp_path / "settings.yaml").write_text("batch_size: 8")
    lines = [{"step": 3, "tokens_per_second": speed} for speed in (1, 512, 256, 1024)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert steps_per_second(tmp_path, 32) == 2  # the median without the first line


def test_the_shown_sentences_are_in_no_training_row(demo, printed):
    shown = re.findall(r"^  (\S*)［\S+］(\S*)   \(original: (\S+)\)$", printed, flags=re.MULTILINE)
    sentences = [before + answer + after for before, after, answer in shown]
    assert len(sentences) == 5
    training = text_of(demo, "train")
    assert [sentence for sentence in sentences if sentence in training] == []
    corpus = demo.corpus.read_text(encoding="utf-8")
    texts = [json.loads(line)["text"] for line in corpus.splitlines()]
    every = [sentence + "。" for text in texts for sentence in text.split("。")[:-1]]
    assert set(sentences) <= set(every)
    # Most sentences are in the training text, so the check above would find them.
    assert sum(sentence in training for sentence in every) > len(every) / 2


def test_an_example_hides_one_known_word(demo, printed):
    tokenizer = RoFormerTokenizer.from_pretrained(demo.rows)
    for text, answer in islice(held_out_examples(demo, tokenizer), 20):
        assert text.count("[MASK]") == 1
        assert answer in tokenizer.vocabulary
        assert "[MASK]" not in text.replace("[MASK]", answer)


def test_it_leaves_what_it_says_and_goes_on_where_it_was(demo, printed, monkeypatch):
    for name in ("model", "loss.png", "metrics.jsonl", "evaluations.jsonl", "filled_masks.png"):
        assert (demo.output / name).exists()
        assert str(demo.output / name) in printed
    commands = []

    def typed(words):
        commands.append(words)
        return 3 if words[0] == "pretrain" else 0

    monkeypatch.setattr("pretrain.demo.__main__.roformer_tf", typed)
    assert main(demo) == 3  # the exit code of the failed command
    assert [words[0] for words in commands] == ["prepare", "pretrain"]  # without a pilot run
    steps = yaml.safe_load((demo.output / "settings.yaml").read_text())["steps"]
    assert commands[-1][-4:] == ["--steps", str(steps), "--output", str(demo.output)]
