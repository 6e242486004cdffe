"""Fine-tuned folders as Keras models."""

from roformer_tf.inference.opening import open_finetuned


def load_finetuned(folder, precision="float32"):
    """A folder that `finetune` wrote → (Keras model, tokenizer, task)."""
    opened = open_finetuned(folder, "keras", precision)
    return opened.model, opened.tokenizer, opened.task
