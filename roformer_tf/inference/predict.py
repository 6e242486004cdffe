"""A fine-tuned folder → a model → what it answers to examples."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from roformer_tf.data.encoding import EncodedTexts, Ints, bucket, combine, encode_examples, padded
from roformer_tf.data.tasks import Example, Prediction, Task
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

if TYPE_CHECKING:
    from roformer_tf.models.heads import (
        RoFormerForSequenceClassification,
        RoFormerForTokenClassification,
    )

    FinetunedModel: TypeAlias = RoFormerForSequenceClassification | RoFormerForTokenClassification

Run: TypeAlias = Callable[[dict[str, np.ndarray]], Any]
"""{"token_ids": (B, T), "segment_ids": (B, T)} int32 → logits (B, C), or (B, T, C) for tagging."""

FULL_LENGTH = 512  # longer rows come in smaller batches


def load_finetuned(folder: str | Path) -> tuple["FinetunedModel", RoFormerTokenizer, Task]:
    """Read what `finetune` wrote: the model, its tokenizer and its task.

    Raises InputError where the folder is none of these, or its parts do not belong together.
    """
    from roformer_tf.models.heads import (
        RoFormerForSequenceClassification,
        RoFormerForTokenClassification,
    )

    task = Task.load(folder)
    tagging = task.name == "tagging"
    kind = RoFormerForTokenClassification if tagging else RoFormerForSequenceClassification
    model = kind.from_pretrained(folder)
    if model.tokenizer is None:
        raise InputError(f"{folder} has no vocab.txt: put the one there that the model came with.")
    size, vocabulary = model.config.vocab_size, model.tokenizer.vocab_size
    if (model.config.num_labels, size) != (task.outputs, max(size, vocabulary)):
        raise InputError(
            f"the files in {folder} do not belong together: its task has {task.outputs} labels "
            f"and its vocabulary {vocabulary:,} ids, but its model {model.config.num_labels} and "
            f"{size:,}. Put back the files that `finetune` wrote."
        )
    return model, model.tokenizer, task


def predict(
    model: Any,
    tokenizer: RoFormerTokenizer,
    task: Task,
    examples: Sequence[Example],
    batch_size: int = 32,
) -> list[Prediction]:
    """What the model answers to each example, whatever its label. `model` as in predict_logits."""
    encoded = encode_examples(examples, tokenizer, task)
    logits = predict_logits(model, encoded, batch_size)
    return [task.answer(one) for one in combine(logits, encoded, task)]


def predict_logits(model: Any, encoded: EncodedTexts, batch_size: int = 32) -> list[np.ndarray]:
    """Logits of each row, (C,) or for tagging (T, C), float32, in the order of the rows.

    `model` is a Keras model or any other `Run`. Rows of like length go together, the longest
    first; beyond 512 tokens a batch has fewer of them, so that attention, whose memory grows with
    the square of the length, needs no more of it.
    """
    run: Run = getattr(model, "predict_on_batch", model)
    logits: list[Any] = [None] * len(encoded.token_ids)
    lengths = encoded.row_lengths
    for rows, shape in _batches(lengths, batch_size):
        inputs = {
            "token_ids": padded([encoded.token_ids[row] for row in rows], shape),
            "segment_ids": padded([encoded.segment_ids[row] for row in rows], shape),
        }
        for row, answer in zip(rows, np.asarray(run(inputs)), strict=False):  # then empty rows
            logits[row] = answer[: lengths[row]] if encoded.first_units else answer
    return logits


def _batches(lengths: Ints, batch_size: int) -> Iterator[tuple[Ints, tuple[int, int]]]:
    """Numbers of the rows of each batch, and the shape to pad them to.

    Few shapes, since on some backends each is compiled: lengths are buckets, and a batch that is
    not full has a power of two of rows.
    """
    order = np.argsort(-lengths, kind="stable")
    while len(order):
        length = bucket(int(lengths[order[0]]))
        full = max(1, int(batch_size * min(1, FULL_LENGTH / length) ** 2))
        rows, order = order[:full], order[full:]
        yield rows, (min(full, 1 << (len(rows) - 1).bit_length()), length)
