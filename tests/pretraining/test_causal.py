"""`pretrain --objective causal`: a model that predicts each token from those before it."""

import json
import math
import shutil
from importlib.util import find_spec

import keras
import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.corpus.batches import held_out_batches
from roformer_tf.corpus.objectives import MaskingConfig, next_tokens
from roformer_tf.corpus.packing import DOCUMENT, TOKEN
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.errors import InputError
from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForMaskedLM
from roformer_tf.pretraining.evaluation import TokenMetrics, evaluate, token_metrics
from roformer_tf.pretraining.initialization import new_model
from roformer_tf.pretraining.settings import PretrainConfig
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.run_files import read_metrics

RANDOM_CHARACTERS, FOLLOWERS = "今天气很好我们去公园学习中国", "经济发展人民生活改革工作北京"
PAIRS = 15
"""Pairs in a document: a random character, then the character that always follows it."""
STEPS = 150


@pytest.fixture(scope="module")
def flags(pretrain_flags, tmp_path_factory):
    """A function that returns the flags of a tiny causal model.

    In its corpus, every second character is determined by the one before.
    """
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, len(RANDOM_CHARACTERS), (400, PAIRS))
    corpus = tmp_path_factory.mktemp("answers") / "corpus.txt"
    lines = ["".join(RANDOM_CHARACTERS[i] + FOLLOWERS[i] for i in line) for line in chosen]
    corpus.write_text("\n".join(lines), encoding="utf-8")
    settings = {
        "corpus": corpus,
        "objective": "causal",
        "length": 40,
        "dropout": 0.01,
        "steps": STEPS,
        "save_every": 60,
        "log_every": 30,
        "evaluation_rows": None,  # all
        "learning_rate": 1e-2,
        "precision": "float32",
    }
    return lambda output, **changes: pretrain_flags(output, **settings | changes)


@pytest.fixture(scope="module")
def run(flags, tmp_path_factory):
    """The folder of a finished run. Tests that change it must copy it."""
    output = tmp_path_factory.mktemp("causal") / "run"
    assert main(["pretrain", *flags(output)]) == 0
    return output


@pytest.fixture(scope="module")
def model(run):
    return RoFormerForCausalLM.from_pretrained(run / "model")


@pytest.fixture(scope="module")
def held_out(run):
    rows = PreparedRows.open(run / "rows", "held_out")
    return held_out_batches(rows, batch_size=4, seed=0, objective=next_tokens)


def logits_of(model, inputs):
    return keras.ops.convert_to_numpy(model(inputs)).astype("float64")


def test_predictions_depend_only_on_earlier_tokens(run, model, held_out):
    """The model predicts determined characters, and random ones no better than by frequency.

    A model that saw its labels would also predict the random ones. A model that only counted
    characters would have a loss of log 28 for both.
    """
    scores = token_metrics(TokenMetrics(model), held_out)
    counts = scores["weights"] == 1
    tokens = np.array(model.tokenizer.tokens)[scores["labels"]]
    losses = -scores["log_likelihood"].astype("float64")
    is_follower, is_random = (
        counts & np.isin(tokens, list(kind)) for kind in (FOLLOWERS, RANDOM_CHARACTERS)
    )
    assert min(is_follower.sum(), is_random.sum()) > 400
    assert losses[is_follower].mean() < 0.1
    uniform = math.log(len(RANDOM_CHARACTERS))
    assert 0.98 * uniform < losses[is_random].mean() < 1.1 * uniform
    first, *_, last = read_metrics(run / "evaluations.jsonl")
    assert first["held_out_loss"] > uniform
    assert last["held_out_loss"] == pytest.approx(losses[counts].mean(), rel=1e-5)
    assert last["held_out_loss"] < 0.55 * math.log(2 * len(RANDOM_CHARACTERS))
    assert read_metrics(run / "metrics.jsonl")[-1]["loss"] == pytest.approx(
        last["held_out_loss"], rel=0.1
    )


def test_evaluation_equals_a_loop_over_documents(run, model, held_out):
    losses, hits = [], []
    for row in PreparedRows.open(run / "rows", "held_out"):
        for document in range(1, row[DOCUMENT].max() + 1):
            ids = row[TOKEN][row[DOCUMENT] == document].astype("int32")
            logits = logits_of(model, {"token_ids": ids[None]})[0, :-1]  # predict the next tokens
            logits -= logits.max(-1, keepdims=True)
            target_logits = np.take_along_axis(logits, ids[1:, None], -1)[:, 0]
            losses += list(np.log(np.exp(logits).sum(-1)) - target_logits)
            hits += list(logits.argmax(-1) == ids[1:])
    scores = evaluate(TokenMetrics(model), held_out)
    assert scores.predictions == len(losses)
    assert scores.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert scores.accuracy == pytest.approx(np.mean(hits))
    assert str(scores).endswith(f"of {len(losses):,} tokens")
    assert "masked" not in str(scores)


@pytest.mark.slow
def test_a_resumed_run_ends_with_identical_weights(run, flags, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    last = f"checkpoints/step-{STEPS:08}"
    shutil.rmtree(copy / last)
    shutil.rmtree(copy / "model")
    assert main(["pretrain", *flags(copy)]) == 0
    assert "step-00000120" in capsys.readouterr().out
    for file in ("model/model.safetensors", f"{last}/training.safetensors"):
        assert (copy / file).read_bytes() == (run / file).read_bytes()
    assert read_metrics(copy / "evaluations.jsonl") == read_metrics(run / "evaluations.jsonl")
    losses = [[line["loss"] for line in read_metrics(x / "metrics.jsonl")] for x in (copy, run)]
    assert losses[0] == losses[1]


def test_conversion_to_other_layouts_and_back_keeps_logits(run, model, tmp_path):
    inputs = model.tokenizer([f"{RANDOM_CHARACTERS[:3]}{FOLLOWERS[:4]}", RANDOM_CHARACTERS])
    want = logits_of(model, inputs)
    source = run / "model"
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}  # ids in its vocab.txt
    assert json.loads((source / "generation_config.json").read_text()) == special
    for to, name in [("tf1", "tiny.zip"), ("huggingface", "hf"), ("own", "own")]:
        target = tmp_path / name
        words = ["checkpoints", "convert", str(source), str(target), "--to", to]
        assert main(words) == 0
        back = RoFormerForCausalLM.from_pretrained(target)
        assert back.config.attention_type == "causal"
        np.testing.assert_array_equal(logits_of(back, inputs), want)
        source = target
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["architectures"] == ["RoFormerForCausalLM"]
    assert config["is_decoder"] is True
    assert special.items() <= config.items()
    assert json.loads((tmp_path / "hf" / "generation_config.json").read_text()) == special


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("bert4keras") and find_spec("tf_keras")),
    reason="bert4keras is not installed: `make test` does it",
)
def test_bert4keras_computes_the_same_logits(flags, tmp_path, capsys):
    """bert4keras computes the same logits for a partly trained model.

    The finished model's attention is so sharp that in either library float32 differs from float64
    by more than `verify` allows (docs/LOG.md).
    """
    run, target = tmp_path / "run", tmp_path / "tiny.zip"
    assert main(["pretrain", *flags(run, steps=20)]) == 0
    assert main(["checkpoints", "convert", str(run / "model"), str(target), "--to", "tf1"]) == 0
    assert main(["checkpoints", "verify", str(target), "--against", "bert4keras"]) == 0
    assert "attention causal" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("eager_steps")
def test_a_released_checkpoint_is_continued(released, flags, tmp_path, write_corpus):
    """A released gpt-char is trained as causal because of the objective; its config lacks it."""
    output = tmp_path / "run"
    settings = {"init_from": released("gpt_char"), "vocab_size": None, "architecture": None}
    settings |= {"tokenization": None, "dropout": None, "steps": 2, "learning_rate": 1e-3}
    corpus = write_corpus(tmp_path / "corpus.txt", 60)
    assert main(["pretrain", *flags(output, corpus=corpus, **settings)]) == 0
    before = RoFormerForCausalLM.from_pretrained(released("gpt_char"))
    rows = PreparedRows.open(output / "rows", "held_out")
    batches = held_out_batches(rows, batch_size=4, seed=0, objective=next_tokens)
    first, last = read_metrics(output / "evaluations.jsonl")
    actual = evaluate(TokenMetrics(before), batches).loss
    assert first["held_out_loss"] == pytest.approx(actual, rel=1e-6)
    assert last["held_out_loss"] < first["held_out_loss"]
    after = RoFormerForCausalLM.from_pretrained(output / "model")
    assert after.config.attention_type == "causal"


@pytest.mark.parametrize("embeddings", ["random", "neighbours"])
def test_a_new_model_predicts_by_frequency(run, held_out, embeddings):
    rows = PreparedRows.open(run / "rows")
    tokenizer = RoFormerTokenizer.from_pretrained(run / "rows")
    config = RoFormerConfig.from_file(run / "model" / "config.json")
    keras.utils.set_random_seed(0)
    model = new_model(config, tokenizer, rows, embeddings=embeddings, objective="causal")
    assert isinstance(model, RoFormerForCausalLM)
    shares = np.exp(keras.ops.convert_to_numpy(model.mlm.bias).astype("float64"))
    _, labels, weights = next_tokens(np.stack([rows[i] for i in range(len(rows))]), [])
    counts = np.bincount(labels[weights == 1], minlength=tokenizer.vocab_size)
    assert shares == pytest.approx((counts + 0.5) / (counts + 0.5).sum(), rel=1e-5)
    entropy = -(counts[counts > 0] / counts.sum() * np.log(shares[counts > 0])).sum()
    actual = evaluate(TokenMetrics(model), held_out).loss
    assert actual == pytest.approx(entropy, rel=0.1)


@pytest.mark.usefixtures("eager_steps")
def test_a_run_starts_with_neighbour_embeddings(flags, tmp_path):
    output = tmp_path / "run"
    words = flags(output, embeddings="neighbours", steps=1, evaluation_rows=4)
    assert main(["pretrain", *words]) == 0
    assert len(read_metrics(output / "evaluations.jsonl")) == 2


# Bad input


@pytest.mark.parametrize(
    "masking",
    [MaskingConfig(mask_rate=0.3), MaskingConfig(mask_replace_rate=1.0, random_replace_rate=0.0)],
)
def test_masking_settings_are_refused(masking):
    settings = {"corpus": ("x.txt",), "output": "run", "vocab_size": 9, "masking": masking}
    PretrainConfig(**settings)
    with pytest.raises(InputError, match="--objective causal masks none"):
        PretrainConfig(**settings, objective="causal")


def test_a_run_keeps_its_objective(run, flags, capsys):
    assert main(["pretrain", *flags(run, objective="masked")]) == 2
    assert "--objective was 'causal' and is 'masked'" in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["init_from", "architecture"])
def test_masked_prediction_needs_bidirectional_attention(run, flags, tmp_path, capsys, setting):
    changes = {"init_from": run / "model", "vocab_size": None, "architecture": None}
    if setting == "architecture":
        changes = {"architecture": run / "model" / "config.json"}
    words = flags(tmp_path / "run", objective="masked", **changes)
    assert main(["pretrain", *words]) == 2
    message = capsys.readouterr().err
    assert "is a causal model (attention_type)" in message
    assert "Give --objective causal" in message


def test_a_released_gpt_model_is_not_trained_to_fill_masks(released, flags, tmp_path, capsys):
    """Its config does not say that it is causal, but its name does."""
    changes = {"init_from": released("gpt_char"), "vocab_size": None, "architecture": None}
    words = flags(tmp_path / "run", objective="masked", **changes)
    assert main(["pretrain", *words]) == 2
    assert "Give --objective causal" in capsys.readouterr().err


@pytest.mark.usefixtures("eager_steps")
def test_the_causal_objective_overrides_the_attention_type(run, flags, tmp_path):
    """The objective overrides the architecture's attention type.

    With UniLM's mask, the tokens of segment 0 would see the next tokens.
    """
    architecture = tmp_path / "architecture.json"
    config = RoFormerConfig.from_file(run / "model" / "config.json")
    architecture.write_text(json.dumps(config.replace(attention_type="unilm").to_dict()))
    output = tmp_path / "run"
    assert main(["pretrain", *flags(output, architecture=architecture, steps=1, held_out=0)]) == 0
    trained = RoFormerForMaskedLM.from_pretrained(output / "model")
    assert trained.config.attention_type == "causal"
