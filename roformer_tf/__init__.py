"""RoFormer (BERT with rotary position embedding) for Chinese text, on Keras 3.

The public names are imported when they are first used (PEP 562): a program that only tokenizes
text does not wait for Keras. Importing the package has no side effects, with one exception. If
Keras is already imported, `.keras` files with classes of this package can be loaded from then on.
"""

# ruff: noqa: I001  # it would repeat the import for every alias

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a name with an alias is public for type checkers
    from roformer_tf.api import finetune as finetune
    from roformer_tf.config import RoFormerConfig as RoFormerConfig
    from roformer_tf.errors import InputError as InputError
    from roformer_tf.finetuning.datasets import LabelledDataset as LabelledDataset
    from roformer_tf.inference.predictor import load as load
    from roformer_tf.layers.attention import RotaryMultiHeadAttention as RotaryMultiHeadAttention
    from roformer_tf.layers.linear_attention import RotaryLinearAttention as RotaryLinearAttention
    from roformer_tf.models.encoder import RoFormerEncoder as RoFormerEncoder
    from roformer_tf.models.heads import (
        RoFormerForCausalLM as RoFormerForCausalLM,
        RoFormerForMaskedLM as RoFormerForMaskedLM,
        RoFormerForQuestionAnswering as RoFormerForQuestionAnswering,
        RoFormerForSentenceSimilarity as RoFormerForSentenceSimilarity,
        RoFormerForSequenceClassification as RoFormerForSequenceClassification,
        RoFormerForTokenClassification as RoFormerForTokenClassification,
    )
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer as RoFormerTokenizer

__version__ = "0.1.0"

_MODULES = {
    "InputError": "errors",
    "LabelledDataset": "finetuning.datasets",
    "RoFormerConfig": "config",
    "RoFormerEncoder": "models.encoder",
    "RoFormerForCausalLM": "models.heads",
    "RoFormerForMaskedLM": "models.heads",
    "RoFormerForQuestionAnswering": "models.heads",
    "RoFormerForSentenceSimilarity": "models.heads",
    "RoFormerForSequenceClassification": "models.heads",
    "RoFormerForTokenClassification": "models.heads",
    "RoFormerTokenizer": "tokenizers.tokenizer",
    "RotaryLinearAttention": "layers.linear_attention",
    "RotaryMultiHeadAttention": "layers.attention",
    "finetune": "api",
    "load": "inference.predictor",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    # From now on Python finds the name without calling this function.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the names that `__getattr__` imports, too."""
    return sorted({*globals(), *__all__})


if "keras" in sys.modules:
    from roformer_tf.registration import register

    register()
