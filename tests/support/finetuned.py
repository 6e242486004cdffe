"""Open fine-tuned folders as Keras models."""

from roformer_tf.engines.choice import KERAS
from roformer_tf.inference.opening import Finetuned, open_finetuned


def load_finetuned(folder, precision="float32"):
    """Open a folder that `finetune` wrote. Return (Keras model, tokenizer, task)."""
    opened = open_finetuned(folder, "keras", precision)
    return opened.model, opened.tokenizer, opened.task


def predict(model, tokenizer, task, examples, batch_size=32):
    """Predict each example, whatever its label."""
    opened = Finetuned(model, tokenizer, task, KERAS, batch_size=batch_size)
    return opened.predict(examples)
