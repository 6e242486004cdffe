"""The model card: the `README.md` of a fine-tuned model's folder, from a report's dictionary.

Its head is YAML as Hugging Face's hub reads it. A card goes wherever its folder goes: it names
files, not where they lay, and shows no text of the data.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from re import findall
from typing import Any

import yaml

from roformer_tf.finetuning.report import phrases, words
from roformer_tf.finetuning.report.warnings import warnings
from roformer_tf.finetuning.report.words import Report
from roformer_tf.runs.run_files import MODEL
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.blocks import MOST_LABELS
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.wording import Language, Wording, Words, enumerated, in_language

HUB_METRICS = {
    "macro_f1": "f1",
    "micro_f1": "f1",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
}
"""What the hub calls our metrics, where it does so by another name."""
EXAMPLES = ("今天天气很好", "天气不错", "今天下雨")
SHOWN_SETTINGS = ("epochs", "batch_size", "learning_rate", "max_length", "seed", "precision")


def model_card(
    report: Report,
    task: Task,
    language: Language,
    is_v2: bool = False,
    opens_elsewhere: bool = True,
) -> str:
    """The text of a card: what the model does, how good it is, of what it was made, its limits.

    `is_v2`: whether it is a RoFormerV2, which transformers would misread; `opens_elsewhere`:
    whether transformers has a class with all of the model's layers.
    """
    title = _title(report)
    parts: list[Wording] = [f"# {title}", _about(report, task), *[phrases.CARD_V2] * is_v2]
    for head, lines in (
        (phrases.CARD_USE, [*_use(task), *(_use_elsewhere(task) if opens_elsewhere else ())]),
        (phrases.RESULTS, _results(report)),
        (phrases.CARD_INTENDED, _intended(task)),
        (phrases.CARD_LIMITS, _limits(report, task)),
        (phrases.DATA, _data(report)),
        (phrases.TRAINING, _training(report)),
    ):
        parts += [phrases.CARD_HEAD.format(head=head), *lines]
    front = yaml.safe_dump(front_matter(report), allow_unicode=True, sort_keys=False)
    body = "\n\n".join(in_language(part, language) for part in parts)
    return f"---\n{front}---\n\n{body}\n"


def front_matter(report: Report) -> dict[str, Any]:
    """What the hub's search and its pages know of the model."""
    task, judged = TASKS[report["task"]], report["judged"]
    figures = {name: value for name, value in report[judged].items() if value is not None}
    metrics = {name: HUB_METRICS.get(name, name) for name in figures}
    results = [
        {"type": kind, "name": task.metrics.named(name).title.en, "value": round(figures[name], 4)}
        for name, kind in metrics.items()
    ]
    name = _file(report, "test" if judged == "test" else "valid") or _file(report, "train")
    dataset = {"name": name or "unnamed", "type": "private", "split": judged}
    return {
        "language": "zh",
        "library_name": "roformer-tf",
        "pipeline_tag": task.pipeline_tag,
        "tags": ["roformer", "keras"],
        "metrics": sorted(set(metrics.values())),
        "model-index": [
            {
                "name": _title(report),
                "results": [
                    {
                        "task": {"type": task.pipeline_tag},
                        "dataset": dataset,
                        "metrics": results,
                    }
                ],
            }
        ],
    }


def _title(report: Report) -> str:
    """The name of the run's folder."""
    return PurePath(str(report["settings"].get("output", ""))).name or "roformer"


def _file(report: Report, name: str) -> str:
    """The name of a file or run that the run was given, without its folder; "" if it was not."""
    path = PurePath(str(report["settings"].get(name) or "").replace("\\", "/"))
    return path.parent.name if path.name == MODEL and path.parent.name else path.name


def _about(report: Report, task: Task) -> Words:
    about = phrases.CARD_ABOUT.format(
        task=type(task).full_name(),
        checkpoint=_code(_file(report, "checkpoint")),
        train=_code(_file(report, "train")),
    )
    if not task.labels:
        return about
    names = enumerated([*map(_code, task.labels)], MOST_LABELS)
    labels = phrases.CARD_LABELS.format(labels=names)
    return Words(f"{about.en}\n\n{labels.en}", f"{about.zh}\n\n{labels.zh}")


def _use(task: Task) -> Iterator[Wording]:
    """Lines that run where the package is installed."""
    texts = EXAMPLES[: 1 if task.texts_apart else len(task.text_columns)]
    if task.spaced_units:
        texts = ("今天 天气 很 好",)
    shown = ", ".join(f'"{text}"' for text in texts)
    one = f"({shown})" if len(texts) > 1 else shown
    yield (
        "```python\nimport roformer_tf\n\n"
        'model = roformer_tf.load("path/to/this/folder")\n'
        f"model([{one}])\n```"
    )
    if task.texts_apart:
        yield phrases.CARD_COMMANDS
        yield (
            "```\nroformer-tf embed path/to/this/folder --input texts.txt --output vectors.npy\n"
            "roformer-tf search --model path/to/this/folder --documents texts.txt "
            "--queries queries.txt\n"
            "```"
        )
        return
    yield phrases.CARD_COMMANDS
    yield (
        "```\nroformer-tf predict path/to/this/folder --input texts.txt --output answers.tsv\n"
        "roformer-tf serve path/to/this/folder\n```"
    )


def _use_elsewhere(task: Task) -> Iterator[Wording]:
    """Lines that run where transformers or sentence-transformers are installed.

    Only for classifiers of texts: other cards say what differs there among their limits.
    """
    if task.pipeline_tag != Task.pipeline_tag:
        return
    if len(task.text_columns) == 1:
        yield phrases.CARD_TRANSFORMERS
        yield (
            "```python\nfrom transformers import pipeline\n\n"
            'classify = pipeline("text-classification", model="path/to/this/folder")\n'
            f'classify(["{EXAMPLES[0]}"], truncation=True)\n```'
        )
        return
    yield phrases.CARD_CROSS_ENCODER
    load = (
        "```python\nfrom sentence_transformers import CrossEncoder\n\n"
        'model = CrossEncoder("path/to/this/folder")\n'
    )
    if not task.labels:
        yield f'{load}model.rank("{EXAMPLES[0]}", ["{EXAMPLES[2]}", "{EXAMPLES[1]}"])\n```'
        return
    pairs = ", ".join(f'("{EXAMPLES[0]}", "{text}")' for text in (EXAMPLES[2], EXAMPLES[1]))
    yield (
        f"{load}scores = model.predict([{pairs}], apply_softmax=True)\n"
        f"scores[:, {task.outputs - 1}].argsort()[::-1]"
        "  # indices of the pairs, by the probability of the last label\n```"
    )
    yield phrases.CARD_NO_RANK


def _results(report: Report) -> Iterator[Wording]:
    task, judged, baseline = TASKS[report["task"]], report["judged"], report.get("baseline")
    sets = [name for name in (judged, f"{judged}_unseen") if name in report]
    for name in sets:
        metrics = [task.metrics.named(x) for x, value in report[name].items() if value is not None]
        head: list[Wording] = [words.of_set(name), phrases.CARD_FIGURE, phrases.CARD_INTERVAL]
        rows: list[list[Wording]] = [
            [
                metric.title,
                words.figure(metric, report[name][metric.name]),
                words.interval(metric, report["intervals"][name][metric.name]),
            ]
            for metric in metrics
        ]
        if baseline:
            head.append(phrases.CARD_BASELINE)
            for row, metric in zip(rows, metrics, strict=True):
                row.append(words.figure(metric, baseline[name][metric.name]))
        yield _table(head, rows)
    if baseline:
        method = Words(baseline["name"], baseline["name_zh"])
        yield phrases.BASELINE.format(name=method)


def _intended(task: Task) -> Iterator[Wording]:
    yield phrases.CARD_INTENDED_FOR.format(task=type(task).full_name())


def _limits(report: Report, task: Task) -> Iterator[Wording]:
    limits = warnings(report, figures=False)
    if task.labels:
        limits.append(phrases.CARD_CLOSED)
    if task.crf:
        limits.append(phrases.CARD_CRF)
    elif task.scheme:
        limits.append(phrases.CARD_LEGAL_TAGS)
    limits += [phrases.CARD_DOMAIN, phrases.CARD_LICENSE]
    yield Words("\n".join(f"- {x.en}" for x in limits), "\n".join(f"- {x.zh}" for x in limits))


def _data(report: Report) -> Iterator[Wording]:
    sets = report["data"]
    labels = list(sets[0]["labels"])[:MOST_LABELS]
    head: list[Wording] = [phrases.SET, phrases.EXAMPLES, phrases.TOKENS["median"], *labels]
    yield _table(
        head,
        [
            [
                words.of_set(one["name"]),
                f"{one['examples']:,}",
                f"{one['tokens']['median']:,}",
                *(f"{one['labels'][label]:,}" for label in labels),
            ]
            for one in sets
        ],
    )


def _training(report: Report) -> Iterator[Wording]:
    settings = report["settings"]
    settled = {"max_length": report["max_length"]}  # what "auto" came to
    if report["rate_search"]:
        settled["learning_rate"] = f"{report['rate_search']['learning_rate']:g}"
    rows: list[list[Wording]] = [
        [name, words.setting(settled.get(name, settings[name]))]
        for name in SHOWN_SETTINGS
        if name in settings
    ]
    rows += [
        [phrases.HARDWARE_NAMES.get(name, name), phrases.HARDWARE_NAMES.get(value, value)]
        for name, value in report["hardware"].items()
    ]
    if "training" in report["seconds"]:
        rows.append([phrases.PHASES["training"], words.duration(report["seconds"]["training"])])
    yield _table([phrases.SETTING, phrases.VALUE], rows)


def _table(head: Sequence[Wording], rows: Iterable[Sequence[Wording]]) -> Words:
    """A table in Markdown, in both languages."""

    def written(language: Language) -> str:
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join(
            f"| {' | '.join(_cell(in_language(cell, language)) for cell in line)} |"
            for line in lines
        )

    return Words(written("en"), written("zh"))


def _cell(text: str) -> str:
    """A label or a file's name may hold what ends a cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    """A name as it is spelled, whatever it holds."""
    ticks = "`" * (1 + max(map(len, findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{' '.join(text.split())}{pad}{ticks}"
