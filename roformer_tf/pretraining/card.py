"""The model card: the `README.md` of a pretrained model's folder, in Chinese and English.

It starts with YAML as the Hugging Face hub reads it, and names files without their folders.
"""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml

from roformer_tf.templates import environment, markdown
from roformer_tf.training.run_files import file_name

# The hub's pipeline tag for each training objective.
PIPELINES = {"masked": "fill-mask", "causal": "text-generation"}
SHOWN = ("init_from", "architecture", "tokenization", "objective", "length", "batch_size", "seed")


def model_card(settings: Mapping[str, Any], step: int, evaluation: Mapping[str, Any]) -> str:
    """The text of a card.

    settings: as in settings.yaml; step: training steps; evaluation: the line of evaluations.jsonl
    at that step, {} without one.
    """
    front: dict[str, Any] = {"language": "zh", "library_name": "roformer-tf"}
    if settings.get("objective") in PIPELINES:
        front["pipeline_tag"] = PIPELINES[settings["objective"]]
    front["tags"] = ["roformer", "keras"]
    rows = [("步数 · steps", f"{step:,}")]
    rows += [(name, file_name(settings[name])) for name in SHOWN if settings.get(name) is not None]
    if corpora := [file_name(pattern) for pattern in settings.get("corpus") or []]:
        rows.append(("语料 · corpus", ", ".join(dict.fromkeys(corpora))))
    if "held_out_loss" in evaluation:
        loss = f"{evaluation['held_out_loss']:.4f}"
        rows.append(("验证集损失 · held-out loss (nats)", loss))
    if "held_out_accuracy" in evaluation:
        accuracy = f"{evaluation['held_out_accuracy']:.1%}"
        rows.append(("验证集准确率 · held-out accuracy", accuracy))
    return markdown(
        environment(Path(__file__).parent),
        "card.md.jinja",
        front_matter=yaml.safe_dump(front, allow_unicode=True, sort_keys=False),
        title=PurePath(str(settings.get("output", ""))).name or "roformer",
        rows=rows,
    )
