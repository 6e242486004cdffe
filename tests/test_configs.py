"""Every recipe can be used by its name."""

import json
import math
from pathlib import Path

import pytest
import yaml

from roformer_tf import cli
from roformer_tf.config import RoFormerConfig
from roformer_tf.files import RECIPES, find_recipe
from roformer_tf.pretraining.settings import PretrainConfig

ROOT = Path(__file__).parents[1]
NAMES = ["base", "char", "continue", "demo", "gpt", "paper", "small", "v2"]
FINETUNING = ["cail2019_scm", "entities", "few_examples", "long_documents", "reviews"]
QUICK = {"base", "gpt", "paper"}
"""One recipe of each kind, and the one with stages. Another quick test parses all recipes."""


@pytest.fixture
def parsed(monkeypatch):
    """parsed("pretrain", *words) → the settings that the command would use."""
    from roformer_tf.finetuning import command as finetuning
    from roformer_tf.pretraining import command as pretraining

    def pretrain(config: pretraining.PretrainConfig) -> None:
        seen.append(config)

    def finetune(config: finetuning.FinetuneConfig, adapt: object, files: object) -> None:
        seen.append(config)

    def parse(*words):
        assert cli.main([*map(str, words)]) == 0
        return seen.pop()

    seen = []
    monkeypatch.setattr(pretraining, "pretrain", pretrain)
    monkeypatch.setattr(finetuning, "finetune", finetune)
    monkeypatch.chdir(ROOT)
    return parse


def test_every_file_is_a_recipe_of_one_of_the_commands():
    assert sorted([*NAMES, *FINETUNING]) == sorted(file.stem for file in RECIPES.glob("*.yaml"))


def test_an_unknown_recipe_is_refused_with_the_known_names(capsys):
    assert cli.main(["pretrain", "--config", "bas", "--output", "x"]) == 2
    error = capsys.readouterr().err
    assert "there is no recipe 'bas'" in error
    assert "base, " in error


def test_a_user_file_takes_precedence_over_a_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe("base") == RECIPES / "base.yaml"
    Path("small").mkdir()  # such as an export
    assert find_recipe("small") == RECIPES / "small.yaml"
    assert find_recipe("my/base.yaml") == Path("my/base.yaml")
    (tmp_path / "base").touch()
    assert find_recipe("base") == Path("base")


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_needs_only_a_corpus_and_an_output(parsed, name):
    more = {"demo": ["--vocab-size", 1000], "continue": ["--init-from", "x.zip"]}
    needed = ["--corpus", "x.txt", "--output", "run", *more.get(name, [])]
    settings = parsed("pretrain", "--config", name, *needed)
    assert settings.corpus == ("x.txt",)
    if settings.architecture:
        architecture = RoFormerConfig.from_file(find_recipe(settings.architecture, ".json"))
        assert architecture.head_size == 64
        assert not architecture.unknown


@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_or_a_checkpoint_takes_the_place_of_what_a_recipe_has(parsed, name):
    needed = ["--config", name, "--corpus", "x.txt", "--output", "run"]
    if name != "continue":
        assert parsed("pretrain", *needed, "--vocab", "vocab.txt").vocab_size is None
    settings = parsed("pretrain", *needed, "--init-from", "x.zip")
    assert (settings.architecture, settings.vocab_size) == (None, None)
    assert settings.embeddings == "random"


TOY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
SHORT = {"length": 32, "batch-size": 8, "steps": 2, "held-out": 0, "precision": "float32"}


@pytest.fixture
def toy(released, write_corpus, tmp_path):
    """toy(recipe) → flags that reduce a run to seconds and change nothing else of the recipe."""

    def flags(recipe):
        arguments = SHORT | {"corpus": write_corpus(tmp_path / "corpus.txt", 150), "workers": 1}
        if "architecture" in recipe:
            small = tmp_path / "architecture.json"
            shape = json.loads((RECIPES / f"{recipe['architecture']}.json").read_text())
            small.write_text(json.dumps(shape | TOY))
            arguments |= {"architecture": small, "vocab-size": 300}
        else:
            arguments |= {"init-from": released("word")}
        words = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
        if "stages" in recipe:
            stages = [f"length={x['length'] // 16} batch-size=8 steps=1" for x in recipe["stages"]]
            words += ["--stages", *stages[:2]]
            del words[(at := words.index("--steps")) : at + 2]
        return words

    return flags


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x in QUICK else pytest.mark.slow) for x in NAMES]
)
def test_a_recipe_trains_a_model_of_its_kind(toy, name, monkeypatch, tmp_path):
    from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForMaskedLM

    monkeypatch.chdir(ROOT)
    recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    run = tmp_path / "run"
    words = ["--config", name, *toy(recipe), "--output", str(run)]
    assert cli.main(["pretrain", *words]) == 0

    used = yaml.safe_load((run / "settings.yaml").read_text(encoding="utf-8"))
    for key in recipe.keys() - {*SHORT, "architecture", "vocab-size", "stages"}:
        value = used[key.replace("-", "_")]
        assert value == type(value)(recipe[key])  # YAML reads 1e-4 as text
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").open()]
    assert losses
    assert all(0 < loss < 2 * math.log(used["vocab_size"] or 50_000) for loss in losses)
    causal = recipe.get("objective") == "causal"
    model = (RoFormerForCausalLM if causal else RoFormerForMaskedLM).from_pretrained(run / "model")
    assert (model.config.attention_type == "causal") == causal
    assert model.config.is_v2 == (name == "v2")
    assert model.tokenizer.tokenization == recipe.get("tokenization", "word")


def test_steps_and_stages_replace_each_other_in_a_recipe(parsed):
    words = ["--corpus", "x.txt", "--output", "run"]
    stages = ["length=128 steps=10", "length=512 steps=20"]
    config = parsed("pretrain", "--config", "small", *words, "--stages", *stages)
    assert config.stages == tuple(stages)
    assert config.steps == PretrainConfig.steps
    config = parsed("pretrain", "--config", "paper", *words, "--steps", "100")
    assert (config.stages, config.steps) == ((), 100)


def test_v2_is_the_architecture_of_the_release():
    config = RoFormerConfig.from_file(RECIPES / "v2.json")
    assert config.is_v2
    assert (config.norm_type, config.hidden_act, config.vocab_size) == ("rms_norm", "relu", 12_000)


def test_base_and_small_have_the_released_sizes():
    base, small = (RoFormerConfig.from_file(RECIPES / f"{name}.json") for name in ("base", "small"))
    sizes = [
        (c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.vocab_size)
        for c in (base, small)
    ]
    assert sizes == [(12, 768, 12, 50_000), (6, 384, 6, 50_000)]


@pytest.mark.parametrize("name", FINETUNING)
def test_a_finetuning_recipe_needs_only_a_checkpoint_examples_and_an_output(parsed, name):
    needed = ["--checkpoint", "x.zip", "--train", "x.tsv", "--output", "run"]
    settings = parsed("finetune", "--config", name, *needed)
    assert settings.epochs == "auto" or settings.epochs >= 4
    # A rate for base models would hardly train our small checkpoint, which is the default.
    if name != "cail2019_scm":  # it is the recipe of a paper
        assert settings.optimizer.learning_rate == "auto"


def test_the_config_of_cail2019_is_the_released_script(parsed):
    """20 epochs of half of the rows, batches of 4 rows, a constant rate of 6e-6, and Adam."""
    from roformer_tf.models.heads import RoFormerForSequenceClassification
    from roformer_tf.training.optimizers import make_finetune_optimizer

    path = RECIPES / "cail2019_scm.yaml"
    needed = ["--checkpoint", "x.zip", "--train", "x.jsonl", "--output", "run"]
    settings = parsed("finetune", "--config", path, *needed)
    assert (settings.task, settings.pooling, settings.max_length) == ("ranking", "mean", 1024)
    assert settings.epochs == 20 / 2
    assert settings.batch_size * settings.optimizer.accumulate == 4

    model = RoFormerForSequenceClassification(RoFormerConfig(vocab_size=9, num_labels=1, **TOY))
    optimizer = make_finetune_optimizer(settings.optimizer, model, batches=100)
    rates = {float(optimizer._learning_rate(batch)) for batch in range(100)}
    assert [*rates] == pytest.approx([6e-6])
    assert optimizer.weight_decay == 0  # AdamW without decay is Adam
    assert set(optimizer.scales) == {1.0}
    message = " ".join(path.read_text(encoding="utf-8").replace("#", "").split())
    assert f"gradients longer than {optimizer.global_clipnorm:g} are scaled down" in message
    assert f"20 epochs takes half of the rows, so that here they are {settings.epochs}" in message


def prepared(recipe, tmp_path, write_corpus, *more):
    """A folder of sequences that were prepared from two corpora with a recipe's settings."""
    corpora = [f"{x}={write_corpus(tmp_path / f'{x}.txt', 150)}" for x in ("news", "wiki")]
    length, tokenization = recipe.get("length", 512), recipe.get("tokenization", "word")
    vocabulary = ["--vocab-size", 50_000, "--tokenization", tokenization, "--workers", 1]
    words = ["--corpus", *corpora, "--length", length, *vocabulary, *more]
    words += ["--whole-words"] if recipe.get("whole-words") else []
    assert cli.main(["prepare", *map(str, words), "--output", str(tmp_path / "rows")]) == 0
    return tmp_path / "rows"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "paper"])
def test_a_recipe_accepts_rows_prepared_with_its_settings(
    parsed, name, tmp_path, write_corpus, released
):
    from roformer_tf.pretraining.settings import with_rows_settled

    recipe = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    rows = prepared(recipe, tmp_path, write_corpus)
    more = ["--init-from", "x.zip"] if name == "continue" else []
    needed = ["--rows", rows, "--output", "run", *more]
    settings = with_rows_settled(parsed("pretrain", "--config", name, *needed))
    assert settings.length == 512
    assert settings.tokenization == recipe.get("tokenization", "word")
    assert settings.whole_words == recipe.get("whole-words", False)


def test_a_recipe_is_trained_on_rows_as_the_readme_shows(
    toy, tmp_path, write_corpus, monkeypatch, capsys
):
    from roformer_tf.pretraining.train_step import PretrainingModel

    def fit(_, batches, steps_per_epoch, **__):
        arguments.append((next(iter(batches))[0]["token_ids"].shape, steps_per_epoch))
        raise KeyboardInterrupt

    arguments = []
    monkeypatch.setattr(PretrainingModel, "fit", fit)
    monkeypatch.chdir(ROOT)
    rows, run = prepared({}, tmp_path, write_corpus, "--held-out", 0), tmp_path / "run"
    shown = ["--config", "base", "--rows", str(rows)]
    shown += [
        "--corpus-weights",
        "news",
        "3",
        "wiki",
        "1",
        "--accumulate",
        "8",
        "--output",
        str(run),
    ]
    recipe = yaml.safe_load((RECIPES / "base.yaml").read_text(encoding="utf-8"))
    words = toy(recipe)
    small = ["--architecture", words[words.index("--architecture") + 1], "--precision", "float32"]
    assert cli.main(["pretrain", *shown, *small]) == 130
    assert arguments == [((256, 512), 200_000)]
    used = yaml.safe_load((run / "settings.yaml").read_text(encoding="utf-8"))
    assert (used["length"], used["tokenization"], used["held_out"]) == (512, "word", 0)

    other = tmp_path / "other"
    other.mkdir()
    shown[3] = str(prepared({"length": 64}, other, write_corpus))
    assert cli.main(["pretrain", *shown[:-1], str(tmp_path / "none"), *small]) == 2
    assert "--length is 512, but they were prepared with 64" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
