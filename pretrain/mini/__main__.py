"""Train the checkpoint `chinese_roformer-tf-mini` from public text with one command.

    python -m pretrain.mini --clones CLONES --corpora DATA/corpus --test-sets DATA

CLONES contains clones of the repositories in `sources.py`, each as owner/name. Finished steps are
skipped, and an interrupted step is resumed.

OUTPUT/text/      documents, pairs of title and text, and counts.json
OUTPUT/rows/      the vocabulary, and sequences of words
OUTPUT/characters/  sequences of characters, with the same vocabulary
OUTPUT/words/     the first stage: masked words
OUTPUT/joint/     the second stage: masked words, and matching titles with their texts
OUTPUT/compare/   the third stage: also comparing two texts in one sequence
OUTPUT/longer/    the fourth stage: the same with longer texts
OUTPUT/model/     the result in float16, with its card
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from benchmarks.command_line import settings_of
from pretrain.demo.__main__ import command
from pretrain.mini import joint
from pretrain.mini.card import write_card
from pretrain.mini.text import write_text
from roformer_tf.corpus.batches import MixingConfig
from roformer_tf.files import remove

FOLDER = Path(__file__).parent
VOCABULARY = 18_000
LENGTH = 128


@dataclass(frozen=True, kw_only=True)
class MiniConfig:
    """Train the checkpoint `chinese_roformer-tf-mini`."""

    clones: Path
    """Folder of clones, each as owner/name."""
    corpora: Path
    """Folder with law, technology and historical_novels as .jsonl.xz."""
    test_sets: Path
    """Folder of evaluation sets. Lines that share 13 characters with `*/*test*` are dropped."""
    output: Path = Path("runs/mini")
    """Folder of all files."""
    steps: int = 8000
    """Steps of the first stage."""
    joint_steps: int = 3000
    """Steps of the second stage."""
    compare_steps: int = 2000
    """Steps of the third stage."""
    longer_steps: int = 1200
    """Steps of the fourth stage."""


def main(config: MiniConfig) -> int:
    """Run all steps; return the exit code of the command that failed, or 0."""
    text, rows, characters, words = (
        config.output / name for name in ("text", "rows", "characters", "words")
    )
    if not text.exists():
        write_text(text, config.clones, config.corpora, sorted(config.test_sets.glob("*/*test*")))
    settings = yaml.safe_load((FOLDER / "training.yaml").read_text(encoding="utf-8"))
    weights = settings["corpus-weights"]
    corpora = ("--corpus", *(f"{name}={text / name}.jsonl" for name in weights))
    prepared = (*corpora, "--length", LENGTH, "--held-out", 0.005)
    if code := command("prepare", *prepared, "--vocab-size", VOCABULARY, "--output", rows):
        return code
    split = ("--vocab", rows, "--tokenization", "char", "--whole-words", "--output", characters)
    if code := command("prepare", *prepared, *split):
        return code
    training = ("--config", FOLDER / "training.yaml", "--rows", rows, "--steps", config.steps)
    if code := command("pretrain", *training, "--output", words):
        return code
    second = joint.JointConfig(
        init_from=str(words / "model"),
        rows=str(rows),
        characters=str(characters),
        pairs=str(text / "pairs.jsonl"),
        output=str(config.output / "joint"),
        steps=config.joint_steps,
        mixing=MixingConfig(weights),
    )
    decayed = replace(second.optimizer, warmup=0.04, decay_share=0.6)
    third = replace(
        second,
        init_from=str(Path(second.output) / "model"),
        output=str(config.output / "compare"),
        steps=config.compare_steps,
        seed=1,
        comparison_weight=1.0,
        optimizer=decayed,
    )
    # Short texts alone do not prepare for questions about paragraphs (docs/LOG.md).
    fourth = replace(
        third,
        init_from=str(Path(third.output) / "model"),
        output=str(config.output / "longer"),
        steps=config.longer_steps,
        seed=2,
        compared_length=104,
        compared_batch_size=32,
        optimizer=replace(decayed, learning_rate=5e-4),
    )
    for stage in (second, third, fourth):
        joint.main(stage)
    result = config.output / "model"
    remove(result)
    trained = Path(fourth.output) / "model"
    if code := command(
        "checkpoints", "convert", trained, result, "--to", "own", "--dtype", "float16"
    ):
        return code
    tokens = {"words": settings["batch-size"] * LENGTH}
    tokens |= {Path(x.output).name: joint.tokens_per_step(x) for x in (second, third, fourth)}
    write_card(config.output, LENGTH, tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main(settings_of(MiniConfig)))
