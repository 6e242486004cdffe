"""Open fine-tuned folders as Keras models."""

from roformer_tf.inference.opening import open_finetuned


def load_finetuned(folder, precision="float32"):
    """Open a folder that `finetune` wrote. Return (Keras model, tokenizer, task)."""
    opened = open_finetuned(folder, "keras", precision)
    return opened.model, opened.tokenizer, opened.task
