"""The `README.md` of an export: how to use it in a program without roformer_tf."""

from pathlib import Path

from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.tasks.base import Task
from roformer_tf.templates import environment, markdown
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

ORDER_SCORES = "transitions.json"
"""Scores of a tagger's labels for their order, in the folder of its graph."""
TEMPLATE = "export_card.md.jinja"


def export_card(to: str, tokenizer: RoFormerTokenizer, task: Task) -> str:
    """The card of an exported task."""
    text = "今天天气很好"
    return markdown(
        environment(Path(__file__).parent),
        TEMPLATE,
        to=to,
        task=task,
        texts=[(text, "天气不错")] if len(task.text_columns) > 1 else [text],
        # jieba's words, unless characters are labelled
        by_words=(tokenizer.tokenization, task.units) == ("word", None),
        max_length=task.max_length,
        order_scores=ORDER_SCORES,
    )


def vector_card(to: str, tokenizer: RoFormerTokenizer, config: EmbeddingConfig) -> str:
    """The card of an exported model of sentence vectors."""
    return markdown(
        environment(Path(__file__).parent),
        TEMPLATE,
        to=to,
        task=None,
        texts=["今天天气很好", "天气不错"],
        by_words=tokenizer.tokenization == "word",
        max_length=config.max_length,
    )
