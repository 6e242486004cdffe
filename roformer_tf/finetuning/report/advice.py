"""What to try next where a model is no better than its baseline, with the command to type.

Sentences are in English and Chinese, as plain data: a page picks one.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from roformer_tf.finetuning.rates import BASE_WIDTH, beside, spelled
from roformer_tf.finetuning.report.warnings import is_behind
from roformer_tf.finetuning.report.words import Report
from roformer_tf.tasks.details import JsonObject
from roformer_tf.tasks.table import TASKS

MOST = 3
"""Pieces of advice that one report gives."""
FEW = 1000
"""Training examples below which more of them are the surest help."""
COMMAND = "roformer-tf finetune"
SETTLED = ("precision",)
"""Settings that a run fills in by itself."""


def advise(report: Report, given: Mapping[str, Any], width: int) -> list[JsonObject]:
    """What to try next, the likeliest first; nothing where the model is better than its baseline.

    given: the settings that are not the usual ones; width: the model's hidden size.
    → [{"kind": "more-epochs", "en": …, "zh": …, "command": "roformer-tf finetune …"}, …]
    """
    if not is_behind(report):
        return []
    checks: tuple[Callable[[Report, Mapping[str, Any], int], Iterator[JsonObject]], ...] = (
        _edge,
        _epochs,
        _rate,
        _checkpoint,
        _data,
        _sweep,
    )
    return [one for check in checks for one in check(report, given, width)][:MOST]


def command(given: Mapping[str, Any], **changes: Any) -> str:
    """The run's own command with some settings changed, and another --output; None leaves one out.

    >>> command({"checkpoint": "m", "train": "t.tsv", "output": "runs/a"}, epochs=6)
    'roformer-tf finetune --checkpoint m --train t.tsv --epochs 6 --output runs/a-2'
    """
    settings = {key: value for key, value in given.items() if key not in SETTLED} | changes
    settings["output"] = next_output(settings.pop("output"))
    words = [word for key, value in settings.items() for word in _flag(key, value)]
    return f"{COMMAND} {shlex.join(words)}"


def next_output(output: str) -> str:
    """A folder that is not there yet: runs/reviews → runs/reviews-2 → runs/reviews-3."""
    begin, _, number = output.rpartition("-")
    stem, count = (begin, int(number)) if begin and number.isdecimal() else (output, 1)
    while Path(f"{stem}-{(count := count + 1)}").exists():
        pass
    return f"{stem}-{count}"


def _flag(key: str, value: Any) -> list[str]:
    """A setting as it is typed."""
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if value is None:
        return []
    values = value if isinstance(value, list | tuple) else [value]
    return [f"--{name}", *(_word(x) for x in values)]


def _word(value: Any) -> str:
    """One value as it is typed: a small number as 2e-4, unless that is not all of it."""
    small = isinstance(value, float) and 0 < value < 0.01
    return spelled(value) if small and float(spelled(value)) == value else str(value)


def _edge(report: Report, given: Mapping[str, Any], width: int) -> Iterator[JsonObject]:
    """The rate that was taken is the highest or lowest of those that were tried."""
    search = report["rate_search"]
    tried = [one["learning_rate"] for one in search.get("tried", ()) if "loss" in one]
    if not tried or search["learning_rate"] not in {min(tried), max(tried)} - {search["usual"]}:
        return
    up = search["learning_rate"] == max(tried)
    taken, next_one = search["learning_rate"], beside(search["learning_rate"], up=up)
    yield {
        "kind": "rate-at-the-edge",
        "en": f"The learning rate {spelled(taken)} is the {'highest' if up else 'lowest'} that the "
        f"search tried, so a still {'higher' if up else 'lower'} one may be better.",
        "zh": f"搜索选中的学习率 {spelled(taken)} 是试过的{'最高' if up else '最低'}值，"
        f"更{'高' if up else '低'}的可能更好。",
        "command": command(given, learning_rate=next_one),
    }


def _epochs(report: Report, given: Mapping[str, Any], width: int) -> Iterator[JsonObject]:
    """The last epoch was the best."""
    lines, epochs = report["evaluations"], report["settings"].get("epochs", 0)
    if not lines or lines[-1]["epoch"] < epochs:
        return
    if len(lines) == 1 and "epochs" not in given:  # it is the best of one, and was chosen to be one
        return
    metric = TASKS[report["task"]].metric(report["metric"])
    figures = [-line[metric.name] if metric.falls else line[metric.name] for line in lines]
    if figures.index(max(figures)) == len(figures) - 1:
        yield {
            "kind": "more-epochs",
            "en": f"The last of {epochs} epochs was the best: the model was still learning.",
            "zh": f"{epochs} 轮中最后一轮最好，模型还在进步，可以多训练几轮。",
            "command": command(given, epochs=2 * epochs),
        }


def _rate(report: Report, given: Mapping[str, Any], width: int) -> Iterator[JsonObject]:
    """The learning rate was given by hand."""
    if isinstance(rate := report["settings"].get("learning_rate"), float):
        yield {
            "kind": "search-rate",
            "en": f"The learning rate {spelled(rate)} was given; without the flag it is searched.",
            "zh": f"学习率 {spelled(rate)} 是手动指定的；去掉该参数则自动搜索。",
            "command": command(given, learning_rate=None),
        }


def _checkpoint(report: Report, given: Mapping[str, Any], width: int) -> Iterator[JsonObject]:
    """Another model to begin with."""
    if report["settings"].get("from_scratch"):
        yield {
            "kind": "pretrained",
            "en": "The model began with random weights: begin with what it has learnt before.",
            "zh": "模型从随机权重开始训练；改用预训练好的权重通常会好很多。",
            "command": command(given, from_scratch=None),
        }
    elif width < BASE_WIDTH:
        released = TASKS[report["task"]].released
        yield {
            "kind": "released-checkpoint",
            "en": "The model is small: a released one has read far more text (and is slower).",
            "zh": "模型较小；官方发布的 base 模型读过多得多的文本（也更慢）。",
            "command": command(given, checkpoint=released, learning_rate=None),
        }
    else:
        words = ["--corpus", "texts/*.txt", "--init-from", str(given["checkpoint"])]
        output = next_output(f"{given['output']}-domain-1")
        yield {
            "kind": "continue-pretraining",
            "en": "Pretrain on texts of your field first (any number, without labels), then "
            f"fine-tune from {output}/model.",
            "zh": f"先用本领域的无标注文本继续预训练，再从 {output}/model 微调。",
            "command": f"roformer-tf pretrain {shlex.join([*words, '--output', output])}",
        }


def _data(report: Report, given: Mapping[str, Any], width: int) -> Iterator[JsonObject]:
    """There is little to learn from."""
    examples = report["data"][0]["examples"]
    if examples < FEW and not TASKS[report["task"]].texts_apart:
        words = ["--model", f"{given['output']}/model", "--input", "new.txt", "--output", "new.tsv"]
        yield {
            "kind": "more-data",
            "en": f"{examples:,} training examples are few: label more, first of all texts that "
            "the model is least sure of.",
            "zh": f"训练样本只有 {examples:,} 条，偏少；请多标注一些，优先标注模型最没把握的文本。",
            "command": f"roformer-tf predict {shlex.join(words)}",
        }


def _sweep(report: Report, given: Mapping[str, Any], width: int) -> Iterator[JsonObject]:
    """Whole trainings tell rates apart better than short ones."""
    settings = report["settings"]
    if not settings.get("sweep") and not settings.get("folds"):
        yield {
            "kind": "sweep",
            "en": "Try four learning rates on whole trainings, in four times the time.",
            "zh": "用完整训练比较四个学习率（耗时约为四倍）。",
            "command": command(given, sweep=True),
        }


def of_learning_rate(search: Mapping[str, Any]) -> dict[str, str]:
    """How the learning rate was found, in a paragraph of each language."""
    rate, usual = spelled(search["learning_rate"]), spelled(search["usual"])
    if search["reason"] == "sweep":
        return {
            "en": f"No learning rate was given: the sweep goes around {usual}, which is usual for "
            "a model of this size.",
            "zh": f"未指定学习率：在该规模模型的常用值 {usual} 附近做完整扫描。",
        }
    if search["reason"]:
        return {
            "en": f"No learning rate was given, and the training is too short to try several: "
            f"{usual} is usual for a model of this size.",
            "zh": f"未指定学习率，且训练步数太少，不足以搜索：采用该规模模型的常用值 {usual}。",
        }
    return {
        "en": f"No learning rate was given. Each of those below was tried for "
        f"{search['batches']:,} batches (the training has {search['of']:,}), with warm-up and "
        f"decay, and judged by its loss on {search['examples']:,} validation examples. Taken: "
        f"{rate}. Usual for a model of this size is {usual}; another one is taken where its loss "
        "is lower by more than two standard errors, and the metric no worse.",
        "zh": f"未指定学习率。下列取值各试训 {search['batches']:,} 个批次（正式训练共 "
        f"{search['of']:,} 个），均含完整的预热与衰减，按 {search['examples']:,} 条验证样本上的"
        f"损失评判，最终采用 {rate}。该规模模型的常用值为 {usual}；其他取值只有在损失低出"
        "两个标准误以上、且指标不更差时才会被采用。",
    }


def rates_tried(search: Mapping[str, Any], metric: str) -> Sequence[tuple[str, float, float]]:
    """Rate, loss and metric of each that was tried; of one that diverged both are NaN."""
    nan = float("nan")
    return [
        (spelled(x["learning_rate"]), x.get("loss", nan), x.get("metrics", {}).get(metric, nan))
        for x in search["tried"]
    ]
