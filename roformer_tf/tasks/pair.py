"""Two texts, one of several labels."""

from typing import ClassVar

from roformer_tf.tasks.classification import Classification


class Pair(Classification):
    """Two texts in one row, and one of the labels; else as a single text."""

    name: ClassVar[str] = "pair"
    title: ClassVar[str] = "文本对分类 · Text pair classification"
    text_counts: ClassVar[tuple[int, ...]] = (2,)
