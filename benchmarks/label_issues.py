"""Precision of the label errors listed in `label_issues.tsv`, on data with planted errors.

    python -m benchmarks.label_issues --data sentiment --checkpoint MODEL --output runs/doubt

Changes 5 % of the labels of train, valid and test to another label, fine-tunes, and compares the
list with the changed labels. Prints precision at 20 and at 50 as JSON: of the list, which needs
the baseline to agree, and of the model alone, to show the effect of that condition. Labels that
were wrong before count as correct, so the figures are lower bounds. `--data` is a folder with
train.tsv.gz, valid.tsv.gz and test.tsv.gz, such as that of benchmarks/sentiment/README.md.
"""

import csv
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import settings_of
from roformer_tf.adaptation import finetune
from roformer_tf.errors import InputError
from roformer_tf.finetuning.label_issues import calibrated
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.inference.opening import open_finetuned
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import example_key
from roformer_tf.tasks.probabilities import find_label_issues
from roformer_tf.training.settings import FinetuneOptimizerConfig

SETS = ("train", "valid", "test")
# Depths k of precision@k.
DEPTHS = (20, 50)


@dataclass(frozen=True)
class LabelIssuesBenchmark:
    """Plant label errors, fine-tune, and measure the precision of the list of doubtful labels."""

    data: Path
    """Folder with train.tsv.gz, valid.tsv.gz and test.tsv.gz: text and label."""
    checkpoint: str
    """Checkpoint to fine-tune; it has to become better than TF-IDF."""
    output: Path
    """Folder for the planted data and the run."""
    rate: float = 0.05
    """Fraction of labels to change."""
    epochs: int = 3
    learning_rate: float = 3e-4
    seed: int = 0


def main(config: LabelIssuesBenchmark) -> None:
    """Plant errors, fine-tune, and print the precision of both lists."""
    planted = plant(config)
    run = config.output / "run"
    paths = {name: str(config.output / f"{name}.tsv") for name in SETS}
    finetune(
        FinetuneConfig(
            checkpoint=config.checkpoint,
            output=str(run),
            epochs=config.epochs,
            optimizer=FinetuneOptimizerConfig(learning_rate=config.learning_rate),
            seed=config.seed,
            pooling="mean",
            train=paths["train"],
            valid=paths["valid"],
            test=paths["test"],
            lexical_features="no",
        )
    )
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    actual = report["label_issues"]
    listed = read_line_numbers(run / actual["file"]) if actual["file"] else []
    examples = unseen_examples(paths)
    model_only = model_only_issues(run / "model", examples)
    changed = planted["valid"]
    figures = {
        "checked": len(examples),
        "planted": sum(int(example.source_line) in changed for example in examples),
        "reason": actual["reason"],
        "model": report[report["judged"]]["accuracy"],
        "baseline": report["baseline"][report["judged"]]["accuracy"],
        "list": precision(listed, changed),
        "model_alone": precision(model_only, changed),
    }
    print(json.dumps(figures, indent=2))


def plant(config: LabelIssuesBenchmark) -> dict[str, set[int]]:
    """Write the sets with changed labels; return the changed line numbers of each set.

    Line 1 is the header, so the numbers start at 2.
    """
    rng = np.random.default_rng(config.seed)
    config.output.mkdir(parents=True, exist_ok=True)
    changed: dict[str, set[int]] = {}
    for name in SETS:
        rows = read_rows(config.data / f"{name}.tsv.gz")
        labels = sorted({label for _, label in rows})
        chosen = rng.choice(len(rows), round(config.rate * len(rows)), replace=False)
        for number in chosen:
            text, label = rows[number]
            rows[number] = text, str(rng.choice([item for item in labels if item != label]))
        lines = ["text\tlabel", *("\t".join(row) for row in rows)]
        path = config.output / f"{name}.tsv"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        changed[name] = {int(number) + 2 for number in chosen}
    return changed


def read_rows(path: Path) -> list[tuple[str, str]]:
    """Return the text and label of each line after the header."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        next(lines)
        return [(text, label) for text, label in (x.rstrip("\n").rsplit("\t", 1) for x in lines)]


def read_line_numbers(path: Path) -> list[int]:
    """Return the line numbers listed in label_issues.tsv, most doubtful first."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [int(row["place"].rpartition(":")[2]) for row in rows]


def unseen_examples(paths: Mapping[str, str]) -> list[Example]:
    """Return the validation examples whose texts are not in training; `source_line` is the line."""
    train, valid = (
        [line.split("\t") for line in Path(paths[name]).read_text(encoding="utf-8").split("\n")]
        for name in ("train", "valid")
    )
    known = {example_key([row[0]]) for row in train[1:-1]}
    return [
        Example((text,), label, str(number))
        for number, (text, label) in enumerate(valid[1:-1], start=2)
        if example_key([text]) not in known
    ]


def model_only_issues(folder: Path, examples: Sequence[Example]) -> list[int]:
    """Return the lines whose label the model doubts, whatever the baseline predicts."""
    opened = open_finetuned(folder, precision="float32")
    predictions = opened.predict(examples)
    issues = find_label_issues(*calibrated(opened.task, examples, predictions))
    return [int(examples[issue.example].source_line) for issue in issues]


def precision(listed: Sequence[int], changed: set[int]) -> dict[str, Any]:
    """Return the length of the list and its precision at each depth that it reaches."""
    shares = {
        f"precision_at_{depth}": sum(line in changed for line in listed[:depth]) / depth
        for depth in DEPTHS
        if len(listed) >= depth
    }
    return {"listed": len(listed), **shares}


if __name__ == "__main__":
    try:
        main(settings_of(LabelIssuesBenchmark))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
