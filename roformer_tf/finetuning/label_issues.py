"""Rows whose label is probably wrong → a file to correct, and a section of the report.

Only rows of validation sets are checked. The model was not trained on them, and the test set is
left alone: to correct only those of its labels that the model rejects would flatter its figures.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

from roformer_tf.files import remove
from roformer_tf.inference.prediction_files import prediction_file, text_names
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import example_key
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.probabilities import LabelIssue, shortest
from roformer_tf.tasks.scoring import JsonObject, shortened

NAME = "label_issues"
SUFFIXES = (".tsv", ".xlsx")
PLACE = "place"
CELLS = ("label", "suggested_label", "probability", "label_probability")
SHOWN = 5
"""In the report."""
NO_BASELINE = "no_baseline"
NOT_BETTER = "not_better"
"""Why no labels are checked; each has a sentence in the report."""


class CheckedSet(NamedTuple):
    """Examples of a validation set, and predictions for them of two models trained without them."""

    examples: Sequence[Example]
    predictions: Sequence[Prediction]
    """The fine-tuned model's."""
    baseline: Sequence[Prediction]
    """The baseline's; empty where there is none."""

    def without(self, texts: Iterable[Sequence[str]]) -> "CheckedSet":
        """The set without examples of these texts, such as those of the training examples."""
        known = {example_key(one) for one in texts}
        new = [example_key(example.texts) not in known for example in self.examples]
        return CheckedSet(
            list(compress(self.examples, new)),
            list(compress(self.predictions, new)),
            list(compress(self.baseline, new)),
        )


@dataclass(frozen=True)
class LabelIssues:
    """Probable label errors among examples that the model was not trained on."""

    task: Task
    examples: Sequence[Example]
    """All that were checked."""
    issues: Sequence[LabelIssue]
    all: int
    """Training and validation examples of the run."""
    suffix: str
    """Of the file."""
    reason: str = ""
    """Why no labels were checked: `NO_BASELINE` or `NOT_BETTER`; "" where they were."""

    def write(self, folder: Path) -> None:
        """Write the rows, the most doubtful first, into `folder`; no file where there are none.

        place (the user's file and line), the texts, the label, the suggested one, and the model's
        calibrated probability of both.
        """
        for suffix in SUFFIXES:  # an earlier one's
            remove(folder / f"{NAME}{suffix}")
        if not self.issues:
            return
        texts = text_names(self.task.text_columns, (PLACE, *CELLS))
        names = [PLACE, *texts, *CELLS]
        with prediction_file(str(folder / self.file), names, self.task) as out:
            for row in self._rows():
                out.write(dict(zip(names, row, strict=True)))

    @property
    def file(self) -> str:
        """What the file is called."""
        return f"{NAME}{self.suffix}"

    def _rows(self) -> Iterator[list[Any]]:
        for issue in self.issues:
            example = self.examples[issue.example]
            suggested = self.task.labels[issue.suggested]
            sure = map(shortest, (issue.probability, issue.of_label))
            yield [example.place, *example.texts, example.label, suggested, *sure]

    def as_json(self) -> JsonObject:
        """The entry of report.json.

        {"checked": 300, "all": 3000, "found": 12, "file": "label_issues.tsv", "reason": "",
        "shown": [{"place", "texts", "gold", "suggested", "probability", "gold_probability"}, …]}
        """
        shown = [
            {
                "place": self.examples[issue.example].place,
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
    task: Task,
    sets: Sequence[CheckedSet],
    all_examples: int,
    settings: Mapping[str, Any],
    is_better: bool = True,
) -> LabelIssues | None:
    """Check the labels of validation sets, each by the models that were trained without it.

    Probabilities are calibrated on each set, and the baseline has to agree. No label is checked
    without a baseline, nor if the model is not better than it (`is_better`): where both disagree
    with a label, that is evidence only if the model has learnt more than the baseline. None for a
    task whose labels cannot be checked: see `Metrics.label_issues`. The file is an .xlsx where the
    training file is one.
    """
    if task.metrics.label_issues([], []) is None:
        return None
    suffix = ".xlsx" if str(settings.get("train", "")).lower().endswith(".xlsx") else ".tsv"
    reason = "" if is_better else NOT_BETTER
    if any(one.examples and not one.baseline for one in sets):
        reason = NO_BASELINE
    if reason:
        return LabelIssues(task, [], [], all_examples, suffix, reason)
    examples = [example for one in sets for example in one.examples]
    by_model, by_baseline = (
        [x for one in sets for x in task.metrics.calibrated(one.examples, getattr(one, name))]
        for name in ("predictions", "baseline")
    )
    issues = task.metrics.label_issues(examples, by_model, by_baseline) or []
    return LabelIssues(task, examples, issues, all_examples, suffix)
