"""The model card: the `README.md` of a fine-tuned model's folder, from the dictionary of a report.

It starts with YAML as the Hugging Face hub reads it; the text is in card.md.jinja.
"""

from pathlib import PurePath
from typing import Any

import yaml

from roformer_tf.finetuning.report.figures import Report, metric_of
from roformer_tf.finetuning.report.pages import report_templates, task_name
from roformer_tf.finetuning.report.warnings import warnings
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.table import TASKS
from roformer_tf.templates import markdown
from roformer_tf.training.run_files import MODEL
from roformer_tf.translation import Language, Translator

HUB_METRICS = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}
"""The hub's names of our metrics, where they differ."""


def model_card(
    report: Report,
    task: Task,
    language: Language,
    is_v2: bool = False,
    opens_elsewhere: bool = True,
) -> str:
    """The text of a card: how to use the model, its figures, limitations and training.

    is_v2: whether it is a RoFormerV2, which transformers loads incorrectly; opens_elsewhere:
    whether transformers has a class with all layers of the model.
    """
    chosen = {"max_length": report["max_length"]}  # what "auto" was replaced by
    return markdown(
        report_templates(report, language),
        "card.md.jinja",
        report=report,
        task=task,
        task_name=task_name(task, language),
        title=_title(report),
        front_matter=yaml.safe_dump(front_matter(report), allow_unicode=True, sort_keys=False),
        file_name=lambda setting: _file_name(report, setting),
        chosen=chosen,
        warnings=warnings(report, Translator(language), figures=False),
        is_v2=is_v2,
        opens_elsewhere=opens_elsewhere,
    )


def front_matter(report: Report) -> dict[str, Any]:
    """What the hub's search and its pages know of the model."""
    task, judged = TASKS[report["task"]], report["judged"]
    figures = {name: value for name, value in report[judged].items() if value is not None}
    metrics = {name: HUB_METRICS.get(name, name) for name in figures}
    results = [
        {"type": kind, "name": str(metric_of(report, name).title), "value": round(figures[name], 4)}
        for name, kind in metrics.items()
    ]
    name = _file_name(report, "test" if judged == "test" else "valid")
    name = name or _file_name(report, "train") or "unnamed"
    result = {
        "task": {"type": task.pipeline_tag},
        "dataset": {"name": name, "type": "private", "split": judged},
        "metrics": results,
    }
    return {
        "language": "zh",
        "library_name": "roformer-tf",
        "pipeline_tag": task.pipeline_tag,
        "tags": ["roformer", "keras"],
        "metrics": sorted(set(metrics.values())),
        "model-index": [{"name": _title(report), "results": [result]}],
    }


def _title(report: Report) -> str:
    """The name of the run's folder."""
    return PurePath(str(report["settings"].get("output", ""))).name or "roformer"


def _file_name(report: Report, setting: str) -> str:
    """The name of a file or run in a setting, without its folder; "" if the setting is not set."""
    path = PurePath(str(report["settings"].get(setting) or "").replace("\\", "/"))
    return path.parent.name if path.name == MODEL and path.parent.name else path.name
