"""RoFormer (BERT with rotary position embedding) for Chinese text, on Keras 3.

Names are loaded when they are first used: a program that only tokenizes or prepares text never
waits for Keras or its backend.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roformer_tf.config import RoFormerConfig
    from roformer_tf.errors import InputError
    from roformer_tf.finetuning.datasets import LabelledDataset
    from roformer_tf.inference.predictor import load
    from roformer_tf.layers.attention import RotaryMultiHeadAttention
    from roformer_tf.models.encoder import RoFormerEncoder
    from roformer_tf.models.heads import (
        RoFormerForCausalLM,
        RoFormerForMaskedLM,
        RoFormerForSentenceSimilarity,
        RoFormerForSequenceClassification,
        RoFormerForTokenClassification,
    )
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

__version__ = "0.1.0.dev0"

_HOME = {
    "InputError": "errors",
    "LabelledDataset": "finetuning.datasets",
    "RoFormerConfig": "config",
    "RoFormerEncoder": "models.encoder",
    "RoFormerForCausalLM": "models.heads",
    "RoFormerForMaskedLM": "models.heads",
    "RoFormerForSentenceSimilarity": "models.heads",
    "RoFormerForSequenceClassification": "models.heads",
    "RoFormerForTokenClassification": "models.heads",
    "RoFormerTokenizer": "tokenizers.tokenizer",
    "RotaryMultiHeadAttention": "layers.attention",
    "load": "inference.predictor",
}

__all__ = [
    "InputError",
    "LabelledDataset",
    "RoFormerConfig",
    "RoFormerEncoder",
    "RoFormerForCausalLM",
    "RoFormerForMaskedLM",
    "RoFormerForSentenceSimilarity",
    "RoFormerForSequenceClassification",
    "RoFormerForTokenClassification",
    "RoFormerTokenizer",
    "RotaryMultiHeadAttention",
    "load",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Show what `__getattr__` would load."""
    return sorted({*globals(), *__all__})
