"""What a report says of the search for a learning rate, where none was given."""

from collections.abc import Mapping, Sequence
from typing import Any

from roformer_tf.finetuning.rates import spelled


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


def rates_tried(
    search: Mapping[str, Any], metric: str
) -> Sequence[tuple[str, float, float | None]]:
    """Rate, loss and metric of each that was tried; of one that diverged both are NaN."""
    nan = float("nan")
    return [
        (spelled(x["learning_rate"]), x.get("loss", nan), x.get("metrics", {}).get(metric, nan))
        for x in search["tried"]
    ]
