"""What a report on vectors shows beside its figures: cosines, and neighbours with their texts."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from roformer_tf.tasks.blocks import Block, Histograms, Mistake, ReportTable, Text
from roformer_tf.tasks.details import JsonObject
from roformer_tf.tasks.wording import Wording, Words

COSINES = Words("Cosines", "余弦相似度的分布")
ABOUT_COSINES = Words(
    "The less the two overlap, the better one threshold tells near texts from others. Near are "
    "texts that belong together, or score above the middle; far is one other text for each, taken "
    "by chance, or the pairs that score below.",
    "两种分布重叠越少，用一个阈值就越容易区分。“相近”指本应匹配或得分高于中间值的文本；"
    "“其他”指为每个样本随机抽取的一条不匹配文本，或得分较低的文本对。",
)
NEAR, FAR = Words("near", "相近"), Words("far", "其他")
COSINE = Words("cosine", "余弦相似度")
RANK = Words("rank", "排名")
NEIGHBOURS = Words("Nearest neighbours", "最近邻示例")
NEIGHBOUR = Words("nearest {number} ({cosine})", "第 {number} 近（{cosine}）")
BINS = 20
"""Of a histogram of cosines."""
SHOWN = 5
"""Examples that a report shows with their neighbours."""


def histograms(near: Sequence[float], far: Sequence[float]) -> JsonObject:
    """How often cosines lie between edges: those of near texts, and of others."""
    lowest = min((*near, *far), default=0.0)
    edges = np.linspace(min(0.95, np.floor(20 * lowest) / 20), 1.0, BINS + 1)
    near, far = (np.clip(x, edges[0], 1.0).tolist() for x in (near, far))  # a float32's 1.0000001
    return {
        "edges": edges.tolist(),
        "near": np.histogram(near, edges)[0].tolist(),
        "far": np.histogram(far, edges)[0].tolist(),
    }


def sections(report: Mapping[str, Any]) -> dict[Words, list[Block]]:
    """The two histograms, as a picture and as a table, and examples with their neighbours."""
    cosines = report["cosines"]
    rows = zip(pairwise(cosines["edges"]), cosines["near"], cosines["far"], strict=True)
    blocks: dict[Words, list[Block]] = {
        COSINES: [
            Text(ABOUT_COSINES, kind="note"),
            Histograms(cosines["edges"], [(NEAR, cosines["near"]), (FAR, cosines["far"])], COSINE),
            ReportTable(
                [COSINE, NEAR, FAR],
                [
                    [f"{low:.2f} – {high:.2f}", f"{near:,}", f"{far:,}"]
                    for (low, high), near, far in rows
                    if near or far
                ],
            ),
        ]
    }
    if shown := report.get("neighbours"):
        blocks[NEIGHBOURS] = [with_neighbours(found, report["text_columns"]) for found in shown]
    return blocks


def with_neighbours(found: Mapping[str, Any], text_columns: Sequence[str]) -> Mistake:
    """An example: its texts, where the second was found, and the texts that are nearest."""
    facts: list[tuple[Wording, Wording]] = [
        (RANK, found["predicted"]),
        (COSINE, f"{found['cosine']:.3f}"),
    ]
    names = text_columns if len(found["texts"]) > 1 else [""]
    texts: list[tuple[Wording, Sequence[Sequence[str]]]] = [
        (name, [[text, ""]]) for name, text in zip(names, found["texts"], strict=True)
    ]
    for number, near in enumerate(found["neighbours"], 1):
        name = NEIGHBOUR.format(number=number, cosine=f"{near['cosine']:.3f}")
        texts.append((name, [[near["text"], ""]]))
    return Mistake(found["place"], facts, texts)
