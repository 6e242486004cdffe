"""A fine-tuned folder → a model → what it answers to examples."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.labelled.examples import Example
from roformer_tf.models.rows import BATCH_SIZE, check_finite
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.table import load_task
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

if TYPE_CHECKING:
    from roformer_tf.models.pretrained import PretrainedModel

KerasPrecision = Literal["float32", "bfloat16"]
"""Of weights and products; logits are float32. In bfloat16 a processor or GPU with instructions for
it takes two thirds of the time, and probabilities move by some thousandths."""


def load_finetuned(
    folder: str | Path, precision: KerasPrecision = "float32"
) -> tuple["PretrainedModel", RoFormerTokenizer, Task]:
    """Read what `finetune` wrote: the model, its tokenizer and its task.

    Raises InputError where the folder is none of these, or its parts do not belong together.
    """
    task = load_task(folder)
    model = task.objective.model_class().from_pretrained(folder, dtype=precision)
    if model.tokenizer is None:
        raise InputError(f"{folder} has no vocab.txt: put the one there that the model came with.")
    check_together(folder, task, model.config, model.tokenizer)
    return model, model.tokenizer, task


def check_together(
    folder: str | Path, task: Task, config: RoFormerConfig, tokenizer: RoFormerTokenizer
) -> None:
    """Raise InputError where a fine-tuned model's files are not of one model."""
    size, vocabulary = config.vocab_size, tokenizer.vocab_size
    if (config.crf, config.num_labels, size) != (task.crf, task.outputs, max(size, vocabulary)):
        raise InputError(
            f"the files in {folder} do not belong together: its task has {task.outputs} labels "
            f"and its vocabulary {vocabulary:,} ids, but its model {config.num_labels} and "
            f"{size:,}. Put back the files that `finetune` wrote."
        )


def predict(
    model: Any,
    tokenizer: RoFormerTokenizer,
    task: Task,
    examples: Sequence[Example],
    batch_size: int = BATCH_SIZE,
) -> list[Prediction]:
    """What the model answers to each example, whatever its label. `model` as in `Decoding.run`."""
    return predict_encoded(model, task, task.labelling.encode(examples, tokenizer), batch_size)


def predict_encoded(
    model: Any, task: Task, encoded: EncodedTexts, batch_size: int = BATCH_SIZE
) -> list[Prediction]:
    """What the model answers to each example of the rows. `model` as in `Decoding.run`.

    Raises InputError for logits that are not finite.
    """
    logits = task.decoding.run(model, encoded, batch_size)
    check_finite(logits)
    return task.decoding.with_weights(model).decoding.read_rows(logits, encoded)
