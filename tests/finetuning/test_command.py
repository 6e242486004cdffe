"""How `finetune` resolves its settings before training."""

import dataclasses
import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import yaml

from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import RECIPES
from roformer_tf.finetuning.command import (
    check_steps,
    check_uses,
    choose_epochs,
    choose_length,
    choose_rate,
    read_initial_state,
    settle_auto,
)
from roformer_tf.finetuning.search import Sets
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.trainer import AdversarialModel
from roformer_tf.labelled.encoding import pick_max_length
from roformer_tf.labelled.examples import Example
from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForSentenceSimilarity
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.tasks.losses import VectorConfig
from roformer_tf.tasks.table import TASKS
from roformer_tf.training.settings import FinetuneOptimizerConfig
from tests.support.random_model import random_model

DEMO = RECIPES / "demo.json"


@pytest.mark.parametrize("task", ["tagging", "spans", "question-answering"])
def test_pooling_is_refused_where_each_token_has_a_score(task):
    config = FinetuneConfig(train="", output="", pooling="mean")
    with pytest.raises(InputError, match=f"pooling is for whole texts, not for {task}"):
        check_uses(TASKS[task], config)
    check_uses(TASKS["pair"], config)


@pytest.mark.parametrize(
    ("setting", "task", "pooling"),
    [
        (None, "classification", "cls"),
        ("mean", "classification", "mean"),
        (None, "ranking", "mean"),
        ("cls", "ranking", "cls"),
    ],
)
def test_pooling_depends_on_setting_and_task(released, setting, task, pooling):
    config = FinetuneConfig(
        checkpoint=str(released("char")), train="", output="", pooling=setting, precision="float32"
    )
    assert read_initial_state(config, TASKS[task]).architecture.pooling == pooling


@pytest.mark.parametrize("size", [0, 33])
def test_vectors_cannot_be_cut_to_more_than_their_size(size, released):
    """Larger ones were ignored, and the model was not trained for them."""
    config = FinetuneConfig(checkpoint=str(released("char")), train="", output="")
    vectors = VectorConfig(dimensions=(8, size))
    config = dataclasses.replace(config, precision="float32", vectors=vectors)
    with pytest.raises(InputError, match=rf"one of --dimensions is {size}, .* 1 .* 32"):
        read_initial_state(config, TASKS["embedding"])


@pytest.mark.parametrize("kind", ["causal", "unilm"])
def test_generators_are_fine_tuned_with_bidirectional_attention(kind, released, tmp_path):
    """Under a causal mask, [CLS] sees no text, and under UniLM's, only the first text of a pair."""
    RoFormerForCausalLM.from_pretrained(released("char"), attention_type=kind).save_pretrained(
        tmp_path
    )
    config = FinetuneConfig(checkpoint=str(tmp_path), train="", output="", precision="float32")
    pair = TASKS["pair"].from_examples(
        [Example(("好", "坏"), label, "") for label in ("0", "1")],
        text_columns=("a", "b"),
        label_column="label",
    )
    keras.utils.set_random_seed(0)  # a head with large enough weights to show a difference
    model = read_initial_state(config, TASKS["pair"]).model(pair)
    logits = np.asarray(model(model.tokenizer([("今天天气", "很好"), ("今天天气", "不好")])))
    assert np.abs(logits[0] - logits[1]).max() > 1e-4


def test_a_checkpoint_of_one_segment_is_refused_for_pairs(tmp_path):
    pairs, texts = (
        [Example(texts, label, "") for label in ("0", "1")] for texts in [("好", "坏"), ("好",)]
    )
    checkpoint = random_model(TASKS["classification"].from_examples(texts), type_vocab_size=1)
    checkpoint.save_pretrained(tmp_path)
    config = FinetuneConfig(
        checkpoint=str(tmp_path), train="", output="", precision="float32", max_length=8
    )
    start = read_initial_state(config, TASKS["pair"])
    pair = TASKS["pair"].from_examples(pairs, text_columns=("a", "b"), label_column="label")
    with pytest.raises(InputError, match="one segment"):
        choose_length(config, pair, Sets(pairs, [], [], []), start)
    single = TASKS["classification"].from_examples(texts)
    assert choose_length(config, single, Sets(texts, [], [], []), start) == 8


def test_the_task_paraphrase_uses_unilm_attention(released, tmp_path):
    RoFormerForSentenceSimilarity.from_pretrained(
        released("sim_char"), attention_type="bidirectional"
    ).save_pretrained(tmp_path)
    config = FinetuneConfig(checkpoint=str(tmp_path), train="", output="", precision="float32")
    assert read_initial_state(config, TASKS["paraphrase"]).architecture.attention_type == "unilm"
    start = read_initial_state(config, TASKS["embedding"])
    assert start.architecture.attention_type == "bidirectional"
    assert start.architecture.pooling == "mean"  # no longer that of a sim model


@pytest.mark.parametrize(
    ("previous", "setting", "want"),
    [
        (3, "auto", 3),  # from settings.yaml of an earlier version, with a fixed default
        (1, "auto", 1),  # chosen at the start: examples added since then change no schedule
        (3, 5, 5),  # a later check rejects the change
        (None, "auto", "auto"),
        (None, 2, 2),
    ],
)
def test_a_resumed_run_keeps_its_number_of_epochs(previous, setting, want, tmp_path):
    settings = tmp_path / "settings.yaml"
    (tmp_path / "checkpoints").mkdir()
    if previous:
        settings.write_text(yaml.safe_dump({"epochs": previous}), encoding="utf-8")
    config = FinetuneConfig(
        checkpoint="", train="", output=str(tmp_path), epochs=setting, precision="float32"
    )
    assert settle_auto(config).epochs == want


def test_a_resumed_run_keeps_its_learning_rate(tmp_path):
    config = FinetuneConfig(checkpoint="", train="", output=str(tmp_path), precision="float32")
    assert settle_auto(config).optimizer.learning_rate == "auto"
    (tmp_path / "settings.yaml").write_text("learning_rate: 0.0002\nepochs: 2\n")
    # Stopped before its first checkpoint, a run may be started again with other data.
    assert settle_auto(config).optimizer.learning_rate == "auto"
    (tmp_path / "checkpoints").mkdir()
    assert settle_auto(config).optimizer.learning_rate == 2e-4
    optimizer_config = FinetuneOptimizerConfig(learning_rate=1e-3)
    config = dataclasses.replace(config, optimizer=optimizer_config)
    assert settle_auto(config).optimizer.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("examples", "changes", "want", "task"),
    [
        (2_430, {}, 3, "classification"),
        (16_883, {}, 1, "classification"),
        (10_000, {}, 2, "classification"),
        (10_000, {"batch_size": 64}, 3, "classification"),  # fewer steps per epoch
        (10_000, {"optimizer": FinetuneOptimizerConfig(accumulate=2)}, 3, "pair"),  # fewer steps
        (16_883, {"optimizer": FinetuneOptimizerConfig(learning_rate=1e-4)}, 3, "pair"),
        (16_883, {"from_scratch": True}, 3, "pair"),  # no pretrained weights to damage
        (16_883, {"epochs": 4}, 4, "classification"),
        (2_430, {}, 12, "question-answering"),
        (10_000, {}, 7, "question-answering"),
        (90_000, {}, 1, "question-answering"),
        (2_430, {}, 6, "multilabel"),
        (500, {}, 10, "spans"),
        (2_100, {}, 7, "spans"),  # 6 epochs were 4 points better than 3
        (5_000, {}, 3, "spans"),  # 6 were no better
        (16_883, {}, 1, "spans"),
        (10_000, {}, 3, "118 labels"),
    ],
)
def test_many_examples_at_a_high_rate_get_fewer_epochs(examples, changes, want, task, capsys):
    """The architecture is that of `make demo`; its default learning rate is 5e-4."""
    config = FinetuneConfig(checkpoint="", train="", output="", precision="float32", **changes)
    architecture = RoFormerConfig.from_file(DEMO)
    sets = SimpleNamespace(train=range(examples), unlabelled=[])
    start = SimpleNamespace(architecture=architecture, weights={"a": 0})
    rate_before = config.optimizer.learning_rate
    config = choose_rate(config, start)
    labels = 118 if task == "118 labels" else 2
    task = SimpleNamespace(
        labelling=SimpleNamespace(rows_per_example=1),
        objective=TASKS["classification" if labels > 2 else task].objective,
        labels=range(labels),
    )
    chosen = choose_epochs(config, task, sets)
    assert chosen.epochs == want
    message = capsys.readouterr().out
    reason = f"epochs {want}, the default for {examples:,} examples at a learning rate of"
    assert (reason in message) == ("epochs" not in changes)
    assert message.startswith("learning rate 5e-4,") == (rate_before == "auto")


@pytest.mark.parametrize("folds", [[], [(range(40), range(40))]])
def test_a_run_without_a_complete_step_is_rejected(folds):
    optimizer = FinetuneOptimizerConfig(accumulate=3)
    settings = {"checkpoint": "", "train": "", "output": "", "epochs": 1}
    config = FinetuneConfig(**settings, optimizer=optimizer)
    task = SimpleNamespace(labelling=SimpleNamespace(rows_per_example=1))
    sets = SimpleNamespace(train=range(80 if folds else 40), folds=folds)
    with pytest.raises(InputError, match="has only 2 batches"):
        check_steps(config, task, sets)


@pytest.mark.parametrize("setting", [16, 200])  # shorter and longer than the texts
def test_an_explicit_max_length_is_kept(setting):
    config = FinetuneConfig(
        checkpoint="", train="", output="", precision="float32", max_length=setting
    )
    encoded = SimpleNamespace(lengths=np.full(9, 50))
    labelling = SimpleNamespace(encode=lambda *_: encoded, default_max_length=1024)
    task = SimpleNamespace(labelling=labelling, long_texts="are cut")
    sets = SimpleNamespace(train=range(9), valid=range(1), test=range(1))
    start = SimpleNamespace(architecture=RoFormerConfig.from_file(DEMO), tokenizer=None)
    assert choose_length(config, task, sets, start) == setting
    assert setting != pick_max_length(encoded.lengths)


@pytest.mark.parametrize(("form", "want"), [("learned", 40), ("rotary", 64), ("t5", 64)])
def test_max_length_is_limited_by_learned_positions(form, want):
    architecture = RoFormerConfig.from_file(DEMO).replace(
        position_embedding_type=form, max_position_embeddings=40
    )
    config = FinetuneConfig(checkpoint="", train="", output="", precision="float32")
    encoded = SimpleNamespace(lengths=np.full(9, 50))
    labelling = SimpleNamespace(encode=lambda *_: encoded, default_max_length=1024)
    task = SimpleNamespace(labelling=labelling, long_texts="are cut")
    sets = SimpleNamespace(train=range(9), valid=range(1), test=range(1))
    start = SimpleNamespace(architecture=architecture, tokenizer=None)
    assert choose_length(config, task, sets, start) == want


@pytest.fixture
def fit_arguments(released, tmp_path, monkeypatch):
    """fit_arguments(*flags) → the model and the first batch of the call of `fit`."""
    train = tmp_path / "train.tsv"
    rows = [f"第{number}条评论很{'好差'[number % 2]}\t{number % 2}" for number in range(16)]
    train.write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")

    def run(*flags):
        seen = []

        def fit(model, batches, **_):
            seen.extend([model, next(iter(batches))])
            raise KeyboardInterrupt  # stop before training

        monkeypatch.setattr(PretrainedModel, "fit", fit)
        arguments = ["--checkpoint", released("char"), "--train", train, "--batch-size", 4]
        output = tmp_path / f"run{'-'.join(flags)}"
        assert main(["finetune", *map(str, arguments), "--output", str(output), *flags]) == 130
        return seen

    return run


def test_precision_r_drop_and_fgm_reach_the_training_step(fit_arguments):
    """R-Drop is set in the loss and doubles each batch; FGM wraps the model."""
    model, (inputs, *_) = fit_arguments("--precision", "mixed_bfloat16")
    assert model.dtype_policy.name == "mixed_bfloat16"
    assert not isinstance(model, AdversarialModel)
    assert model.loss.config.r_drop == 0
    assert len(np.unique(inputs["token_ids"], axis=0)) == len(inputs["token_ids"]) == 4

    flags = ("--precision", "float32", "--r-drop", "2", "--fgm", "0.5")
    model, (inputs, *rest) = fit_arguments(*flags)
    assert model.dtype_policy.name == "float32"
    assert isinstance(model, AdversarialModel)
    assert model.epsilon == 0.5
    assert model.loss.config.r_drop == 2
    for array in (*inputs.values(), *rest):
        np.testing.assert_array_equal(array[:4], array[4:])
    assert len(inputs["token_ids"]) == 8


def test_the_seed_orders_the_examples(fit_arguments, tmp_path):
    """With --valid, nothing else that depends on the seed changes a batch."""
    files = ("--valid", str(tmp_path / "train.tsv"), "--precision", "float32")
    batches = [fit_arguments("--seed", seed, *files)[1] for seed in "01"]
    first, other = (np.array(inputs["token_ids"]) for inputs, *_ in batches)
    assert not np.array_equal(first, other)


def test_chosen_epochs_are_saved_and_the_command_resumes(fit_arguments, tmp_path):
    """12 training examples in batches of 4 are few, so 10 epochs are chosen."""
    for _ in range(2):
        fit_arguments("--precision", "float32")
    settings = tmp_path / "run--precision-float32" / "settings.yaml"
    assert yaml.safe_load(settings.read_text(encoding="utf-8"))["epochs"] == 10


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            "--task classification --label-column label --method cloze --pattern {label}：{text}",
            "fills gaps at positions that are an input",
        ),
        ("--task spans --label-prompts", "reads a text once for each label"),
    ],
)
def test_a_model_that_an_export_cannot_hold_is_not_trained(
    flags, problem, released, tmp_path, capsys
):
    train, run = tmp_path / "train.jsonl", tmp_path / "run"
    entities = [{"start": 0, "end": 1, "label": "序"}]
    for number in range(16):
        row = {"text": f"第{number}条评论", "label": "好差"[number % 2], "entities": entities}
        with train.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    words = ["--checkpoint", released("char"), "--train", train, "--output", run]
    assert main(["finetune", *map(str, words), *flags.split(), "--export", "onnx"]) == 2
    assert problem in " ".join(capsys.readouterr().err.split())
    assert not (run / "settings.yaml").exists()
