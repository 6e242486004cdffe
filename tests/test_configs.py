"""Every settings file that is shipped can be used as it is."""

from pathlib import Path

import pytest

from roformer_tf import cli
from roformer_tf.config import RoFormerConfig

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "pretrain" / "configs"
FINETUNING = sorted((ROOT / "finetune" / "configs").glob("*.yaml"))
NAMES = sorted(path.name for path in FOLDER.glob("*.yaml"))


@pytest.fixture
def parsed(monkeypatch):
    """parsed("pretrain", *words) → the settings that the command would run with."""
    from roformer_tf.training import finetuning, pretraining

    def pretrain(config: pretraining.PretrainConfig) -> None:
        seen.append(config)

    def finetune(config: finetuning.FinetuneConfig) -> None:
        seen.append(config)

    def parse(*words):
        assert cli.main([*map(str, words)]) == 0
        return seen.pop()

    seen = []
    monkeypatch.setattr(pretraining, "pretrain", pretrain)
    monkeypatch.setattr(finetuning, "finetune", finetune)
    monkeypatch.chdir(ROOT)
    return parse


def test_the_promised_files_are_there():
    assert {"base.yaml", "small.yaml", "char.yaml", "demo.yaml"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_settings_file_needs_only_text_and_a_folder(parsed, name):
    more = {"demo.yaml": ["--vocab-size", 1000], "continue.yaml": ["--init-from", "x.zip"]}
    needed = ["--corpus", "x.txt", "--output", "run", *more.get(name, [])]
    settings = parsed("pretrain", "--config", FOLDER / name, *needed)
    assert settings.corpus == ("x.txt",)
    if settings.architecture:
        architecture = RoFormerConfig.from_file(settings.architecture)
        assert architecture.head_size == 64
        assert not architecture.unknown


def test_the_released_sizes_are_those_of_the_releases():
    base, small = (RoFormerConfig.from_file(FOLDER / f"{name}.json") for name in ("base", "small"))
    sizes = [
        (c.num_hidden_layers, c.hidden_size, c.num_attention_heads, c.vocab_size)
        for c in (base, small)
    ]
    assert sizes == [(12, 768, 12, 50_000), (6, 384, 6, 50_000)]


@pytest.mark.parametrize("path", FINETUNING, ids=lambda path: path.name)
def test_a_finetuning_file_needs_only_a_checkpoint_examples_and_a_folder(parsed, path):
    needed = ["--checkpoint", "x.zip", "--train", "x.tsv", "--output", "run"]
    assert parsed("finetune", "--config", path, *needed).epochs >= 4
