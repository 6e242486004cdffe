"""The model card: the `README.md` of a pretrained model's folder, in Chinese and English.

Its head is YAML as Hugging Face's hub reads it. It names files, not where they lay.
"""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml

PIPELINES = {"masked": "fill-mask", "causal": "text-generation"}
"""What the hub files a model under, by the objective that it was trained with."""
SHOWN = ("init_from", "architecture", "tokenization", "objective", "length", "batch_size", "seed")


def model_card(settings: Mapping[str, Any], step: int, evaluation: Mapping[str, Any]) -> str:
    """The text of a card.

    settings: those of the run, as settings.yaml has them; step: how many were done; evaluation:
    the line of evaluations.jsonl at that step, {} where none was made.
    """
    front: dict[str, Any] = {"language": "zh", "library_name": "roformer-tf"}
    if settings.get("objective") in PIPELINES:
        front["pipeline_tag"] = PIPELINES[settings["objective"]]
    front["tags"] = ["roformer", "keras"]
    rows = [["步数 · steps", f"{step:,}"]]
    rows += [[name, _named(settings[name])] for name in SHOWN if settings.get(name) is not None]
    corpora = [_named(one) for one in settings.get("corpus") or []]
    if corpora:
        rows.append(["语料 · corpus", ", ".join(dict.fromkeys(corpora))])
    for key, title in (
        ("held_out_loss", "留出集损失 · held-out loss (nats)"),
        ("held_out_accuracy", "留出集准确率 · held-out accuracy"),
    ):
        if key in evaluation:
            shape = ".1%" if key == "held_out_accuracy" else ".4f"
            rows.append([title, f"{evaluation[key]:{shape}}"])
    return _CARD.format(
        front=yaml.safe_dump(front, allow_unicode=True, sort_keys=False),
        name=PurePath(str(settings.get("output", ""))).name or "roformer",
        rows="\n".join(f"| {' | '.join(map(_cell, row))} |" for row in rows),
    )


def _named(value: Any) -> str:
    """A setting; of a path the last part, of a run's model the run."""
    text = str(value)
    if "/" not in text and "\\" not in text:
        return text
    path = PurePath(text.replace("\\", "/"))
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def _cell(text: str) -> str:
    """A file's name may hold what ends a cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


_CARD = """\
---
{front}---

# {name}

用 roformer_tf 预训练的中文 RoFormer 语言模型。
A RoFormer language model of Chinese, pretrained with roformer_tf.

```python
import roformer_tf

model = roformer_tf.load("path/to/this/folder")
```

| 训练 · training | |
| --- | --- |
{rows}

## 适用范围与局限 · Intended use and limitations

- 主要用来微调：`roformer-tf finetune --checkpoint path/to/this/folder --train …`。
  Meant to be fine-tuned.
- 留出集上的数字只反映模型在同类文本上的表现。
  The held-out figures are of texts like those it was trained on.
- 模型会沿袭语料中的错误与偏见。 It repeats what its corpus says, mistakes and prejudices among it.
- 语料以及所用初始权重的许可条款同样适用，发布前请在本文件开头补上 `license:`。
  The licenses of the corpus and of the weights it began with hold for it, too: add a `license:` at
  the top of this file before you publish it.
"""
