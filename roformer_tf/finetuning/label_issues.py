"""Rows whose label is probably wrong → a file to correct, and what the report says of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from roformer_tf.files import remove
from roformer_tf.inference.answer_files import answer_file
from roformer_tf.inference.answers import text_names
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.details import JsonObject, shortened
from roformer_tf.tasks.label_issues import LabelIssue
from roformer_tf.tasks.probabilities import shortest

NAME = "label_issues"
SUFFIXES = (".tsv", ".xlsx")
PLACE = "place"
CELLS = ("label", "suggested_label", "probability", "label_probability")
SHOWN = 5
"""In the report."""


@dataclass(frozen=True)
class LabelIssues:
    """What was found among examples that the model had not been trained on."""

    task: Task
    examples: Sequence[Example]
    """All that were looked at."""
    issues: Sequence[LabelIssue]
    all: int
    """Examples of the run."""
    suffix: str
    """Of the file."""

    def write(self, folder: Path) -> None:
        """Write the rows, the most doubtful first, into `folder`; no file where there are none.

        place (the user's file and line), the texts, the label, the suggested one, and what the
        model makes of both.
        """
        for suffix in SUFFIXES:  # an earlier one's
            remove(folder / f"{NAME}{suffix}")
        if not self.issues:
            return
        texts = text_names(self.task.text_columns, (PLACE, *CELLS))
        names = [PLACE, *texts, *CELLS]
        with answer_file(str(folder / self.file), names, self.task) as out:
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
        """What report.json has of it.

        {"checked": 300, "all": 3000, "found": 12, "file": "label_issues.tsv", "shown": [{"place",
        "texts", "gold", "suggested", "probability", "gold_probability"}, …]}
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
            "shown": shown,
        }


def find_issues(
    task: Task,
    sets: Sequence[tuple[Sequence[Example], Sequence[Prediction]]],
    all_examples: int,
    settings: Mapping[str, Any],
) -> LabelIssues | None:
    """Look through sets of examples, each with the answers of a model not trained on them.

    None where a label of the task cannot be doubted so: see `Task.label_issues`. The file is an
    .xlsx where the training file is one.
    """
    examples = [example for these, _ in sets for example in these]
    predictions = [answer for _, answers in sets for answer in answers]
    found = task.label_issues(examples, predictions)
    if found is None:
        return None
    suffix = ".xlsx" if str(settings.get("train", "")).lower().endswith(".xlsx") else ".tsv"
    return LabelIssues(task, examples, found, all_examples, suffix)
