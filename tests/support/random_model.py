"""Untrained models whose random weights are large enough to make every mistake visible."""

import keras
import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.models.heads import RoFormerForCausalLM
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS

LETTERS = "今天气很好我们去公园学习中国经济发展人民生活"
TINY = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "initializer_range": 0.5,
}


def tokenizer_of(letters=LETTERS):
    """A tokenizer with one token for each letter."""
    tokens = [*SPECIAL_TOKENS, *dict.fromkeys(letters)]
    return RoFormerTokenizer({token: number for number, token in enumerate(tokens)}, "char")


def random_model(task, tokenizer=None, **sizes):
    """A model for the task from Keras' current seed. `sizes` change its config."""
    tokenizer = tokenizer or tokenizer_of()
    kind = task.objective.model_class()
    config = RoFormerConfig(**TINY | sizes, vocab_size=tokenizer.vocab_size)
    model = kind(config.replace(num_labels=task.outputs))
    model.tokenizer = tokenizer
    return model


def random_causal_lm(folder, seed=3, **sizes):
    """Save a causal language model with random weights to a folder, and return it."""
    keras.utils.set_random_seed(seed)
    tokenizer = tokenizer_of()
    model = RoFormerForCausalLM(RoFormerConfig(**TINY | sizes, vocab_size=tokenizer.vocab_size))
    model.tokenizer = tokenizer
    bias = np.random.default_rng(seed).normal(size=tokenizer.vocab_size)
    bias[tokenizer.sep_id] += 2  # so that many generated texts end, at different lengths
    model.mlm.bias.assign(bias)
    model.save_pretrained(folder)
    return model


def save_random_models(tasks, folder, tokenizer=None, seed=2, **sizes):
    """Save a random model for each task as `finetune` does. Return the folders by name."""
    keras.utils.set_random_seed(seed)
    result = {}
    for name, task in tasks.items():
        result[name] = folder / name / "model"
        random_model(task, tokenizer, **sizes).save_pretrained(result[name])
        task.save(result[name])
    return result
