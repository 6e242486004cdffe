"""`evaluate --corpus` predicts the same tokens at several lengths; the reference is float64."""

import json
import logging
import re
import shutil

import keras
import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.corpus.objectives import MaskingConfig
from roformer_tf.corpus.part_writer import is_held_out
from roformer_tf.errors import InputError
from roformer_tf.models import rows
from roformer_tf.pretraining import length_evaluation, windowed_losses
from roformer_tf.pretraining.length_evaluation import open_language_model
from roformer_tf.pretraining.windowed_losses import (
    PredictedText,
    TokenLosses,
    WordedText,
    figures,
    interval,
    make_sequences,
    predicted_texts,
    token_losses,
)
from tests.support.random_model import LETTERS, TINY, random_causal_lm, tokenizer_of

LENGTHS = (9, 16, 40)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folders of two random language models, "masked" and "causal"."""
    from roformer_tf.config import RoFormerConfig
    from roformer_tf.models.heads import RoFormerForMaskedLM

    folder = tmp_path_factory.mktemp("models")
    random_causal_lm(folder / "causal")
    keras.utils.set_random_seed(1)
    tokenizer = tokenizer_of()
    model = RoFormerForMaskedLM(RoFormerConfig(**TINY, vocab_size=tokenizer.vocab_size))
    model.tokenizer = tokenizer
    model.save_pretrained(folder / "masked")
    return {name: folder / name for name in ("masked", "causal")}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A file of 30 documents of 5 to 90 characters."""
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    texts = ["".join(rng.choice(list(LETTERS), rng.integers(5, 90))) for _ in range(30)]
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return file


def run_evaluate(*words):
    assert main(["evaluate", *map(str, words)]) == 0


def reference(model, tokenizer, objective, texts, length):
    """Return loss and hit of each predicted token, computed one by one in its own window."""
    max_tokens = length - 2
    losses, hits = [], []
    for text in texts:
        size = len(text.labels)
        for position in np.flatnonzero(text.predicted):
            stop = min(size, (position // max_tokens + 1) * max_tokens)
            start = max(0, stop - max_tokens)
            row = [tokenizer.cls_id, *text.token_ids[start:stop], tokenizer.sep_id]
            logits = np.asarray(model({"token_ids": np.array([row], "int32")}), "float64")[0]
            scores = logits[position - start + (objective == "masked")]
            label = text.labels[position]
            losses.append(np.log(np.exp(scores).sum()) - scores[label])
            hits.append(scores.argmax() == label)
    return np.array(losses), np.array(hits)


@pytest.mark.quick_cases("masked")
@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_every_token_is_predicted_from_its_own_window(models, objective, monkeypatch):
    """Every token is predicted from its own window, at every length.

    One of two texts is shorter than the longest rows. Batches are small and the last is padded.
    """
    monkeypatch.setattr(windowed_losses, "TOKENS_PER_BATCH", {"masked": 48, "causal": 48})
    model, tokenizer, actual = open_language_model(str(models[objective]), None, "float32")
    assert actual == objective
    rng = np.random.default_rng(1)
    texts = [
        WordedText(rng.integers(5, tokenizer.vocab_size, size), np.arange(size) // 2 + 1)
        for size in (53, 20)
    ]
    texts[0].words[30] = 0  # a [SEP] between two documents is never predicted
    result = predicted_texts(texts, objective, tokenizer, MaskingConfig(mask_rate=0.4), seed=3)
    result_losses = token_losses(model, tokenizer, objective, result, LENGTHS)
    for length in LENGTHS:
        losses, hits = reference(model, tokenizer, objective, result, length)
        np.testing.assert_allclose(result_losses.losses[length], losses, atol=1e-4)
        assert result_losses.hits[length].tolist() == hits.tolist()
    gap = max(abs(result_losses.losses[9] - result_losses.losses[40]))
    assert gap > 0.01  # otherwise a window of the wrong length would also pass
    places = np.concatenate([np.flatnonzero(text.predicted) for text in result])
    first = len(np.flatnonzero(result[0].predicted))
    assert not result[0].predicted[30]
    starts = np.where(np.arange(len(places)) < first, np.where(places < 38, 0, 53 - 38), 0)
    assert result_losses.positions.tolist() == (places - starts + 1).tolist()
    windows = np.where(np.arange(len(places)) < first, places >= 38, 2)
    assert result_losses.windows.tolist() == windows.tolist()


@pytest.mark.slow
def test_no_message_mentions_retracing(models):
    """TensorFlow's advice on retracing, which counts over the process, is not shown to the user."""
    logger, records = logging.getLogger("tensorflow"), []
    logger.removeFilter(rows._is_other_warning)  # added by other tests in this process
    listener = logging.Handler()
    listener.emit = records.append
    logger.addHandler(listener)
    try:
        model, tokenizer, objective = open_language_model(str(models["causal"]), None, "float32")
        text = WordedText(np.full(12, tokenizer.vocab_size - 1), np.arange(12) // 2 + 1)
        result = predicted_texts([text], objective, tokenizer, MaskingConfig(), seed=0)
        for length in range(6, 14):
            token_losses(model, tokenizer, objective, result, [length])
    finally:
        logger.removeHandler(listener)
    assert not [record.getMessage() for record in records]


def test_whole_words_are_masked_by_rate_and_seed():
    tokenizer = tokenizer_of()
    text = WordedText(np.full(1000, tokenizer.vocab_size - 1), np.arange(1000) // 2 + 1)
    masking = MaskingConfig(mask_rate=0.3, mask_replace_rate=1.0, random_replace_rate=0.0)
    (result,) = predicted_texts([text], "masked", tokenizer, masking, seed=3)
    assert result.predicted.sum() == 300
    assert (result.predicted[::2] == result.predicted[1::2]).all()
    assert ((result.token_ids == tokenizer.mask_id) == result.predicted).all()
    (other,) = predicted_texts([text], "masked", tokenizer, masking, seed=4)
    assert (other.predicted != result.predicted).any()


def test_a_text_of_words_too_long_to_be_masked_is_refused():
    text = WordedText(np.full(8, 7), np.ones(8, int))  # one word of 8 tokens
    with pytest.raises(InputError, match=r"all words are too long .* --mask-rate"):
        predicted_texts([text], "masked", tokenizer_of(), MaskingConfig(), 0)


def test_only_the_scored_tokens_of_a_row_have_a_slot():
    tokenizer = tokenizer_of()
    ids = np.arange(5, 15)
    text = PredictedText(ids, ids, np.isin(np.arange(10), (0, 5, 8)))
    rows = make_sequences([text], 8, tokenizer, "masked")
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    assert rows["token_ids"].tolist() == [[cls, *ids[:6], sep], [cls, *ids[4:], sep]]
    assert rows["sequence_ids"].tolist() == [[1] * 8] * 2
    assert rows["masked_positions"].tolist() == [[1, 6], [5, 0]]
    assert rows["labels"].tolist() == [[5, 10], [13, 0]]
    assert rows["weights"].tolist() == [[1, 1], [1, 0]]


def test_figures_are_means_by_length_and_by_position():
    result_losses = TokenLosses(
        losses={4: np.array([1.0, 2, 3, 6]), 16: np.array([1.0, 1, 2, 4])},
        hits={4: np.array([True, False, False, False]), 16: np.array([True, True, False, True])},
        windows=np.array([0, 0, 0, 3]),
        positions=np.array([1, 3, 4, 14]),
    )
    actual = figures(result_losses)
    assert actual["predictions"] == 4
    assert {k: v["loss"] for k, v in actual["by_length"].items()} == {"4": 3.0, "16": 2.0}
    assert {k: v["accuracy"] for k, v in actual["by_length"].items()} == {"4": 0.25, "16": 0.75}
    assert actual["by_length"]["16"]["perplexity"] == pytest.approx(np.exp(2))
    low, high = actual["by_length"]["4"]["interval"]
    assert (low, high) == (2.0, 6.0)  # the means of the two windows
    assert actual["by_position"] == [
        {"from": 1, "to": 3, "loss": 1.0, "accuracy": 1.0, "predictions": 2},
        {"from": 4, "to": 7, "loss": 2.0, "accuracy": 0.0, "predictions": 1},
        {"from": 12, "to": 15, "loss": 4.0, "accuracy": 1.0, "predictions": 1},
    ]


def test_the_interval_is_that_of_a_ratio_of_means():
    rng = np.random.default_rng(0)
    counts = rng.integers(5, 50, 400)
    sums = counts * rng.normal(3, 0.5, 400)
    ratio = sums.sum() / counts.sum()
    error = np.sqrt(((sums - ratio * counts) ** 2).sum()) / counts.sum()  # linearised
    low, high = interval(sums, counts)
    np.testing.assert_allclose(
        [low, high], [ratio - 1.96 * error, ratio + 1.96 * error], atol=0.012
    )
    assert interval(sums[:1], counts[:1]) is None


@pytest.mark.usefixtures("eager_steps")
def test_the_table_is_printed_and_files_written_on_request(models, corpus, tmp_path, capsys):
    output = tmp_path / "new" / "figures.json"
    words = ["--model", models["masked"], "--corpus", corpus, "--lengths", 20, 10]
    run_evaluate(*words, "--output", output)
    out = capsys.readouterr().out
    assert sorted(path.name for path in output.parent.iterdir()) == ["figures.json", "figures.png"]
    report = json.loads(output.read_text(encoding="utf-8"))
    assert list(report["by_length"]) == ["10", "20"]
    assert report["objective"] == "masked"
    for length, item in report["by_length"].items():
        (line,) = (x for x in out.splitlines() if x.split()[:1] == [length])
        assert f"{item['loss']:.4f}" in line
        assert f"{item['accuracy']:.2%}" in line
    assert f"{report['predictions']:,} masked tokens" in out
    run_evaluate(*words)  # without --output it prints the same table
    assert capsys.readouterr().out == out
    run_evaluate(models["masked"], "--corpus", corpus, "--lengths", 20, 10, "--seed", 1)
    assert capsys.readouterr().out != out


def test_lengths_beyond_the_positions_of_a_bert_are_refused(models, corpus, tmp_path, capsys):
    learned = {"position_embedding_type": "learned", "max_position_embeddings": 16}
    random_causal_lm(tmp_path / "learned", **learned)
    words = ["--model", tmp_path / "learned", "--corpus", corpus, "--lengths", 10, 20]
    assert main(["evaluate", *map(str, words)]) == 2
    assert "--lengths is 20, but the model has learned 16 positions" in capsys.readouterr().err


def test_a_yaml_file_chooses_the_command_too(models, corpus, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"corpus: {corpus}\nlengths: [12]\n", encoding="utf-8")
    run_evaluate("--model", models["causal"], "--config", recipe)
    assert "of 12" in capsys.readouterr().out


@pytest.mark.usefixtures("eager_steps")
def test_the_default_length_is_the_models_up_to_512(models, corpus, tmp_path, monkeypatch, capsys):
    run_evaluate(models["causal"], "--corpus", corpus)
    assert "positions, of 512" in capsys.readouterr().out
    monkeypatch.setattr(length_evaluation, "DEFAULT_LENGTH", 30)
    run_evaluate(models["causal"], "--corpus", corpus)
    assert "positions, of 30" in capsys.readouterr().out
    short = shutil.copytree(models["causal"], tmp_path / "short")
    config = json.loads((short / "config.json").read_text(encoding="utf-8"))
    (short / "config.json").write_text(json.dumps(config | {"trained_length": 9}), encoding="utf-8")
    run_evaluate(short, "--corpus", corpus)
    assert "positions, of 9" in capsys.readouterr().out


def test_held_out_reads_only_held_out_documents(models, corpus, monkeypatch):
    seen = []
    original = windowed_losses.long_texts

    def spy(documents, *arguments, **settings):
        documents = list(documents)
        seen.append([np.diff(item.bounds).tolist() for item in documents])
        return original(documents, *arguments, **settings)

    monkeypatch.setattr(windowed_losses, "long_texts", spy)
    run_evaluate(models["causal"], "--corpus", corpus, "--lengths", 12, "--held-out", 0.4)
    texts = corpus.read_text(encoding="utf-8").splitlines()
    assert seen == [[[len(text) for text in texts if is_held_out(text, 0.4)]]]


@pytest.mark.usefixtures("eager_steps")
def test_max_tokens_limits_the_tokens(models, corpus, tmp_path):
    output = tmp_path / "x.json"
    for most, actual in ((50, 50), (5, 10)):  # at least one row
        words = ("--max-tokens", most, "--output", output)
        run_evaluate(models["causal"], "--corpus", corpus, "--lengths", 12, *words)
        assert json.loads(output.read_text(encoding="utf-8"))["tokens"] == actual


@pytest.mark.usefixtures("eager_steps")
def test_each_scaling_has_losses_of_its_own(models, corpus, tmp_path):
    words = ("--corpus", corpus, "--lengths", 40, "--max-tokens", 200, "--trained-length", 10)
    output = tmp_path / "x.json"
    run_evaluate(models["masked"], *words, "--output", output, "--scalings", "none", "linear")
    by_scaling = json.loads(output.read_text(encoding="utf-8"))["by_scaling"]
    none, linear = (by_scaling[name]["by_length"]["40"]["loss"] for name in ("none", "linear"))
    assert abs(none - linear) > 1e-5


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.slow
def test_each_scaling_equals_its_setting_in_the_config(models, corpus, tmp_path, capsys):
    """Each scaling gives the result of a checkpoint with this setting in its config."""
    words = ("--corpus", corpus, "--lengths", 10, 40, "--output", tmp_path / "x.json")
    scalings = ("none", "linear", "dynamic", "yarn", "log-n")
    run_evaluate(models["masked"], *words, "--trained-length", 10, "--scalings", *scalings)
    out = capsys.readouterr().out
    report = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    actual = report["by_scaling"]
    assert list(actual) == list(scalings)
    assert report["by_length"] == actual["none"]["by_length"]
    losses = {name: item["by_length"]["40"]["loss"] for name, item in actual.items()}
    assert len({round(loss, 5) for loss in losses.values()}) == 5
    for name, loss in losses.items():
        assert re.search(rf"^loss by length.* {name}\b", out, re.M)
        assert f"{loss:.4f}" in out
    assert actual["dynamic"]["by_length"]["10"] == actual["none"]["by_length"]["10"]
    for name, keys in {
        "yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}, "trained_length": 10},
        "log-n": {"use_logn_attn": True, "trained_length": 10},
        "none": {},
    }.items():
        folder = shutil.copytree(models["masked"], tmp_path / name)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | keys), encoding="utf-8")
        run_evaluate(folder, *words)
        single = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
        assert "by_scaling" not in single
        assert single["by_length"]["40"]["loss"] == pytest.approx(losses[name], abs=1e-6)


@pytest.mark.parametrize(
    ("scaling", "rope_type", "logn"),
    [("none", None, False), ("linear", "linear", False), ("log-n", None, True)],
)
def test_a_scaling_replaces_those_of_the_model(scaling, rope_type, logn, models, tmp_path):
    folder = shutil.copytree(models["masked"], tmp_path / "scaled")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}, "use_logn_attn": True}
    (folder / "config.json").write_text(json.dumps(config | {"trained_length": 10}))
    changes = length_evaluation.scaled(scaling, 40, 10)
    model, *_ = open_language_model(str(folder), None, "float32", **changes)
    assert (model.config.rope_parameters or {"rope_type": None})["rope_type"] == rope_type
    assert model.config.use_logn_attn == logn


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--lengths 8000", "needs a text of 7,998"),
        ("--lengths 92 --only-long", "in one document"),
        ("--lengths 2", "at least"),
        ("--max-tokens 0", "--max-tokens is 0"),
        ("--trained-length 0", "--trained-length is 0"),
        ("--held-out 1", "--held-out is 1"),
        ("--mask-rate 0.3 0.15", "an evaluation has no steps"),
        ("--data x.tsv", "give either --corpus"),
        ("--output x.png", "the plot next to it"),
        ("--objective masked", "is a causal model"),
        ("--mask-rate 0.5", "--objective causal masks none"),
        ("--trained-length 8", "Give both or neither"),
    ],
)
def test_bad_input_is_one_message(models, corpus, words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["evaluate", str(models["causal"]), "--corpus", str(corpus), *words.split()])
    except SystemExit as stopped:  # raised by the argument parser
        code = stopped.code
    err = " ".join(capsys.readouterr().err.split())
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_a_fine_tuned_model_is_referred_to_evaluate_with_data(corpus, tmp_path, capsys):
    from roformer_tf.tasks.classification import Classification
    from tests.support.random_model import save_random_models

    task = Classification(labels=("坏", "好"), text_columns=("话",), label_column="情绪")
    models = save_random_models({"classification": task}, tmp_path)
    assert main(["evaluate", str(models["classification"]), "--corpus", str(corpus)]) == 2
    assert "--data" in capsys.readouterr().err
