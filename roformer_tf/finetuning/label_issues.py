"""Examples whose label is probably wrong → a file to correct, and a section of the report.

Only validation sets are checked, because the model was not trained on them. The test set is not:
to correct only labels that the model rejects would make its figures too good.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from roformer_tf.files import remove
from roformer_tf.inference.prediction_files import prediction_file, text_names
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.probabilities import (
    LabelIssue,
    at_temperature,
    find_label_issues,
    fit_temperature,
    shortest,
)
from roformer_tf.tasks.scoring import JsonObject, shortened

FILES = ("label_issues.tsv", "label_issues.xlsx")
PLACE = "place"
CELLS = ("label", "suggested_label", "probability", "label_probability")
# In the report.
SHOWN = 5
NO_BASELINE = "no_baseline"
# Why no labels are checked; each has a sentence in the report.
NOT_BETTER = "not_better"


class CheckedSet(NamedTuple):
    """Examples of a validation set, and predictions for them of two models trained without them."""

    examples: Sequence[Example]
    # The fine-tuned model's.
    predictions: Sequence[Prediction]
    # The baseline's; empty where there is none.
    baseline: Sequence[Prediction]


@dataclass(frozen=True)
class LabelIssues:
    """Probable label errors among examples that the model was not trained on."""

    task: Task
    # All that were checked.
    examples: Sequence[Example]
    issues: Sequence[LabelIssue]
    # Training and validation examples of the run.
    all: int
    # One of `FILES`, where they are written.
    file: str
    # Why no labels were checked: `NO_BASELINE` or `NOT_BETTER`; "" where they were.
    reason: str = ""

    def write(self, folder: Path) -> None:
        """Write the examples, the most doubtful first, into `folder`; no file if there are none.

        Columns: place (the user's file and line), the texts, the label, the suggested label, and
        the model's calibrated probability of both. Labels are those of the file to correct, not the
        names of --label-names.
        """
        for file in FILES:  # of an earlier run
            remove(folder / file)
        if not self.issues:
            return
        texts = text_names(self.task.text_columns, (PLACE, *CELLS))
        names = [PLACE, *texts, *CELLS]
        values = self.task.label_values or self.task.labels
        with prediction_file(str(folder / self.file), names, self.task) as out:
            for issue in self.issues:
                example = self.examples[issue.example]
                labels = values[self.task.labels.index(example.label)], values[issue.suggested]
                sure = map(shortest, (issue.probability, issue.of_label))
                row = [example.source_line, *example.texts, *labels, *sure]
                out.write(dict(zip(names, row, strict=True)))

    def as_json(self) -> JsonObject:
        """The entry of report.json.

        {"checked": 300, "all": 3000, "found": 12, "file": "label_issues.tsv", "reason": "",
        "shown": [{"place", "texts", "gold", "suggested", "probability", "gold_probability"}, …]}
        """
        shown = [
            {
                "place": self.examples[issue.example].source_line,
                "texts": [shortened(text) for text in self.examples[issue.example].texts],
                "gold": self.examples[issue.example].label,
                "suggested": self.task.labels[issue.suggested],
                "probability": issue.probability,
                "gold_probability": issue.of_label,
            }
            for issue in self.issues[:SHOWN]
        ]
        return {
            "checked": len(self.examples),
            "all": self.all,
            "found": len(self.issues),
            "file": self.file if self.issues else None,
            "reason": self.reason,
            "shown": shown,
        }


def find_issues(
    task: Task, sets: Sequence[CheckedSet], all_examples: int, train_file: str, is_better: bool
) -> LabelIssues | None:
    """Check the labels of validation sets, each by the models that were trained without it.

    Probabilities are calibrated on each set, and the baseline must agree. No label is checked
    without a baseline, nor if the model is not better than it (`is_better`). That both disagree
    with a label is evidence only if the model has learned more than the baseline. None for a task
    whose labels cannot be checked: see `Metrics.finds_label_errors`.
    """
    if not task.metrics.finds_label_errors:
        return None
    # The user corrects the file with the program that opens the training file.
    tsv, xlsx = FILES
    file = xlsx if train_file.lower().endswith(".xlsx") else tsv
    parts = [part for part in sets if part.examples]
    reason = "" if is_better else NOT_BETTER
    if not all(part.baseline for part in parts):
        reason = NO_BASELINE
    if reason or not parts:
        return LabelIssues(task, [], [], all_examples, file, reason)
    examples = [example for part in parts for example in part.examples]
    # Each set separately: models of different folds are differently overconfident.
    ours = [calibrated(task, part.examples, part.predictions) for part in parts]
    # The labels are the same as those of `ours`: only probabilities are needed.
    theirs = [calibrated(task, part.examples, part.baseline)[1] for part in parts]
    labels, probabilities = map(np.concatenate, zip(*ours, strict=True))
    issues = find_label_issues(labels, probabilities, np.concatenate(theirs))
    return LabelIssues(task, examples, issues, all_examples, file)


def calibrated(
    task: Task, examples: Sequence[Example], predictions: Sequence[Prediction]
) -> tuple[np.ndarray, np.ndarray]:
    """Labels (N,) int of examples, and probabilities (N, C) float32, calibrated on them.

    Temperature scaling: all logits are divided by one number.
    """
    labels = np.array([task.labelling.target(example) for example in examples])
    scores = np.array([prediction.scores for prediction in predictions])
    return labels, at_temperature(scores, fit_temperature(labels, scores))
