"""The pages of a report, and the model card: Jinja templates over the dictionary of report.json.

The card is the `README.md` of a fine-tuned model's folder. It starts with YAML as the Hugging Face
hub reads it.
"""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePath
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import yaml

from roformer_tf.checkpoints.huggingface import classifier_opens_in_transformers
from roformer_tf.config import RoFormerConfig
from roformer_tf.files import write_json, write_text
from roformer_tf.finetuning.rates import spelled
from roformer_tf.finetuning.report import figures
from roformer_tf.finetuning.report.figures import ABSENT, Report, figure, interval
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.metrics import ACCURACY, Metric
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.tfidf import CHOSEN
from roformer_tf.templates import cut_font, data_url, environment, markdown
from roformer_tf.training import plots
from roformer_tf.training.run_files import file_name, plain
from roformer_tf.translation import Language, Translator

if TYPE_CHECKING:
    import jinja2

# The hub's names of our metrics, where they differ.
HUB_METRICS = {"macro_f1": "f1", "micro_f1": "f1", "pearson": "pearsonr", "spearman": "spearmanr"}


def write_report(folder: str | Path, report: Report, language: Language = "en") -> None:
    """Write report.json, and report.md and report.html in this language."""
    folder = Path(folder)
    write_json(folder / "report.json", report)
    write_text(folder / "report.md", markdown_page(report, language))
    write_text(folder / "report.html", html_page(report, language))


def markdown_page(report: Report, language: Language = "en") -> str:
    """report.md: tables and mistakes, no pictures."""
    templates = report_templates(report, language)
    return markdown(templates, "report.md.jinja", **_context(report, language))


def html_page(report: Report, language: Language = "en") -> str:
    """report.html: needs no other file, since styles, pictures and the font are in it."""
    templates = report_templates(report, language, html=True)
    page = templates.get_template("report.html.jinja").render(**_context(report, language))
    beyond_latin = {character for character in page if character > "\u02ff"}
    return page.replace("FONT", data_url(cut_font(beyond_latin), "font/woff"), 1) + "\n"


def _context(report: Report, language: Language) -> dict[str, Any]:
    """The variables of a report's templates."""
    _, task = Translator(language), TASKS[report["task"]]
    return {
        "report": report,
        "absent_intervals": figures.absent_intervals(report, _),
        "comparison": figures.compare(report),
        "metric": figures.main_metric(report),
        "newest": figures.newest(report),
        "task": task,
        "task_name": task_name(task, language),
        "warnings": figures.warnings(report, _),
    }


def report_templates(
    report: Report, language: Language, html: bool = False
) -> "jinja2.Environment":
    """The templates of this folder, with the functions that write figures and names."""
    _ = Translator(language)
    templates = environment(Path(__file__).parent, language, html)
    by_language: list[Any] = [
        *(duration, label_text, setting_text),
        *(figures.baseline_name, figures.set_name, figures.teacher_notes, figures.window_notes),
    ]
    functions = {function.__name__: partial(function, _=_) for function in by_language}
    templates.globals |= functions | {
        "default_settings": plain(FinetuneConfig(train="", output="")),
        "lexical_choices": CHOSEN,
        "plots": plots,
        "share": ACCURACY,  # any metric that is written in per cent
    }
    templates.filters |= functions | {
        "figure": figure,
        "interval": interval,
        "lowest_f1": figures.lowest_f1,
        "metric": partial(figures.metric_of, report),
        "quoted": shlex.quote,
        "rate": spelled,
        "spread": spread,
        "title": lambda metric: _(metric.title),
        "unbroken": lambda text: text.replace(", ", ",\u00a0"),  # a figure and its interval
    }
    return templates


def duration(seconds: float, _: Translator) -> str:
    """3.1 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 60:
        return _("{seconds:.1f} s", seconds=seconds)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return _("{hours} h {minutes} min", hours=hours, minutes=minutes)
    return _("{minutes} min {seconds} s", minutes=minutes, seconds=rest)


def spread(values: Sequence[float | None], metric: Metric) -> str:
    """93.5% ± 0.4%: mean and standard deviation of a sample."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return ABSENT
    return f"{figure(mean(known), metric)} ± {figure(stdev(known), metric)}"


def task_name(task: type[Task] | Task, language: Language) -> str:
    """A task's name in a sentence. Titles are in both languages: "句向量 · Sentence vectors"."""
    zh, __, en = task.title.partition(" · ")
    return zh if language == "zh" else (en or zh).lower()


def label_text(label: Any, _: Translator) -> str:
    """A label, several labels, or a number."""
    if isinstance(label, float):
        return f"{label:.4g}"
    return label if isinstance(label, str) else ", ".join(label) or _("none")


def setting_text(value: Any, _: Translator) -> str:
    """A setting as the user would type it."""
    if value is None or value == []:
        return _("not set")
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# The model card


def model_card(report: Report, task: Task, language: Language, config: RoFormerConfig) -> str:
    """The text of a card: how to use the model, its figures, limitations and training.

    config: of the model; transformers loads a RoFormerV2 incorrectly, and has no class with all
    layers of some other models.
    """
    return markdown(
        report_templates(report, language),
        "card.md.jinja",
        report=report,
        task=task,
        task_name=task_name(task, language),
        title=_title(report),
        front_matter=yaml.safe_dump(front_matter(report), allow_unicode=True, sort_keys=False),
        file_name=lambda setting: _file_name(report, setting),
        warnings=figures.warnings(report, Translator(language), figures=False),
        is_v2=config.is_v2,
        opens_elsewhere=classifier_opens_in_transformers(config),
    )


def front_matter(report: Report) -> dict[str, Any]:
    """The hub's metadata of the model, for its search and its pages."""
    task, reported = TASKS[report["task"]], report["judged"]
    # On new texts only, as in the report's first sentence. A metric needs a value there, so those
    # that the data cannot give are skipped.
    results = [
        {
            "type": HUB_METRICS.get(name, name),
            "name": str(figures.metric_of(report, name).title),
            "value": round(value, 4),
        }
        for name, value in report[figures.newest(report)].items()
        if value is not None
    ]
    name = _file_name(report, "test" if reported == "test" else "valid")
    name = name or _file_name(report, "train") or "unnamed"
    result = {
        "task": {"type": task.pipeline_tag},
        "dataset": {"name": name, "type": "private", "split": reported},
        "metrics": results,
    }
    return {
        "language": "zh",
        "library_name": "roformer-tf",
        "pipeline_tag": task.pipeline_tag,
        "tags": ["roformer", "keras"],
        "metrics": sorted({metric["type"] for metric in results}),
        "model-index": [{"name": _title(report), "results": [result]}],
    }


def _title(report: Report) -> str:
    """The name of the run's folder."""
    return PurePath(str(report["settings"].get("output", ""))).name or "roformer"


def _file_name(report: Report, setting: str) -> str:
    """The name of a file or run in a setting, without its folder; "" if it has no value."""
    return file_name(report["settings"].get(setting) or "")
