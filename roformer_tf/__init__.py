"""RoFormer (BERT with rotary position embedding) for Chinese text, on Keras 3.

Names are loaded when they are first used: a program that only tokenizes or prepares text never
waits for Keras or its backend. Keras, whenever it is imported, is told the names of what stands in
`.keras` files, so that `import roformer_tf` is all that `keras.saving.load_model` needs; and
TensorFlow's notes on the processor are left out, unless TF_CPP_MIN_LOG_LEVEL asks for them.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from roformer_tf.config import RoFormerConfig
    from roformer_tf.errors import InputError
    from roformer_tf.finetuning.datasets import LabelledDataset
    from roformer_tf.inference.predictor import load
    from roformer_tf.layers.attention import RotaryMultiHeadAttention
    from roformer_tf.layers.linear_attention import RotaryLinearAttention
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
    "RotaryLinearAttention": "layers.linear_attention",
    "RotaryMultiHeadAttention": "layers.attention",
    "load": "inference.predictor",
}

_SERIALIZED = {
    "AdamW": "kernels.adam",
    "EmaAdamW": "runs.optimizers.adamw:EmaAdamW",
    "Lamb": "runs.optimizers.lamb",
    "LayerwiseAdamW": "runs.optimizers.adamw",
    "MaskedTokenLoss": "pretraining.train_step",
    "Muon": "runs.optimizers.muon",
    "RoFormerEncoder": "models.encoder",
    "RoFormerForCausalLM": "models.heads",
    "RoFormerForMaskedLM": "models.heads",
    "RoFormerForSentenceEmbedding": "models.sentence_embedding",
    "RoFormerForSentenceSimilarity": "models.heads",
    "RoFormerForSequenceClassification": "models.heads",
    "RoFormerForTokenClassification": "models.heads",
    "RoFormerSelfAttention": "layers.self_attention",
    "RotaryLinearAttention": "layers.linear_attention",
    "RotaryMultiHeadAttention": "layers.attention",
    "TaskLoss": "finetuning.losses",
    "WarmupDecay": "runs.schedules",
}
"""What `.keras` files call "roformer_tf>…" → its module, and :Class where that is named else."""

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
    "RotaryLinearAttention",
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


class _Unloaded(NamedTuple):
    """What stands in Keras' registry for a class of ours until its module is loaded."""

    module: str
    name: str

    def from_config(self, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """All that Keras asks of it: load the class, which takes this place, and make one."""
        return getattr(import_module(self.module), self.name).from_config(config)


class _WhenKerasIsImported:
    """On `sys.meta_path`: finds nothing of its own, and has `_register` follow Keras' import.

    Keras looks for a class by its name alone, in a registry which is there only after its import
    and which it offers nobody else to fill: of modules that a file names it imports its own. While
    Keras or TensorFlow is imported, `quiet_import` keeps back what that writes, `uncollected` the
    collector of garbage, and, in a command, `without_companions` what nobody needs.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """What the other finders find, for the two with more around their execution."""
        if name not in ("keras", "tensorflow"):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: Any) -> None:
                from roformer_tf.companions import uncollected, without_companions
                from roformer_tf.terminal import quiet_import

                with uncollected(), quiet_import(), without_companions():
                    execute(module)
                if name == "keras":
                    _register()

            setattr(spec.loader, "exec_module", execute_and_register)  # noqa: B010, for mypy
        return spec


def _register() -> None:
    """Tell Keras where our classes are; those that are loaded stand in its registry already."""
    registry = import_module("keras").saving.get_custom_objects()
    for name, home in _SERIALIZED.items():
        module, _, other = home.partition(":")
        registry.setdefault(f"{__name__}>{name}", _Unloaded(f"{__name__}.{module}", other or name))


if "keras" in sys.modules:
    _register()
sys.meta_path.insert(0, _WhenKerasIsImported())
