"""The pages of a report: Jinja templates over the dictionary of report.json."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roformer_tf.finetuning.rates import spelled
from roformer_tf.finetuning.report.figures import (
    Report,
    baseline_name,
    compare,
    duration,
    figure,
    figure_rows,
    interval,
    lowest_f1,
    main_metric,
    metric_of,
    newest,
    reasons,
    set_name,
    spread,
)
from roformer_tf.finetuning.report.warnings import warnings
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.metrics import ACCURACY
from roformer_tf.tasks.table import TASKS
from roformer_tf.templates import cut_font, data_url, environment, markdown
from roformer_tf.training import plots
from roformer_tf.translation import Language, Translator

if TYPE_CHECKING:
    import jinja2


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
        "absent_intervals": reasons(report, "interval", _),
        "comparison": compare(report),
        "metric": main_metric(report),
        "newest": newest(report),
        "rows": list(figure_rows(report, _)),
        "task": task,
        "task_name": task_name(task, language),
        "warnings": warnings(report, _),
    }


def report_templates(
    report: Report, language: Language, html: bool = False
) -> "jinja2.Environment":
    """The templates of this folder, with the functions that write figures and names."""
    _ = Translator(language)
    templates = environment(Path(__file__).parent, language, html)
    templates.globals |= {
        "baseline_name": partial(baseline_name, _=_),
        "duration": partial(duration, _=_),
        "hardware_rows": partial(hardware_rows, _=_),
        "plots": plots,
        "set_name": partial(set_name, _=_),
        "share": ACCURACY,  # any metric that is written in per cent
    }
    templates.filters |= {
        "figure": figure,
        "interval": interval,
        "label": partial(label_text, _=_),
        "lowest_f1": lowest_f1,
        "metric": partial(metric_of, report),
        "rate": spelled,
        "set_name": partial(set_name, _=_),
        "setting": partial(setting_text, _=_),
        "spread": spread,
        "title": lambda metric: _(metric.title),
        "unbroken": lambda text: text.replace(", ", ",\u00a0"),  # a figure and its interval
    }
    return templates


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


def hardware_rows(
    report: Report, phases: Sequence[str] | None = None, *, _: Translator
) -> list[list[str]]:
    """What the run used, and how long each of these phases took, or all phases."""
    names = {
        "processor": _("processor"),
        "accelerators": _("accelerators"),
        "software": _("software"),
        "none": _("none"),
    }
    titles = {
        "training": _("training time"),
        "baseline": _("time of the baseline"),
    }
    rows = [[names.get(x, x), names.get(y, y)] for x, y in report["hardware"].items()]
    return rows + [
        [titles.get(phase, phase), duration(seconds, _)]
        for phase, seconds in report["seconds"].items()
        if phases is None or phase in phases
    ]
