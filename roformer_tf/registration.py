"""The classes of this package that `.keras` files may contain, registered with Keras by name.

`keras.saving.register_keras_serializable` registers a class when its module is imported. To load a
file, all classes in it must be registered before, and Keras imports only its own modules. Here
a small placeholder is registered for each class, which imports the class when a file needs it.
"""

import sys
from importlib import import_module
from typing import Any, NamedTuple

PACKAGE = "roformer_tf"
CLASSES = {
    "EmaAdamW": "training.optimizers",
    "Lamb": "training.optimizers",
    "LayerwiseAdamW": "training.optimizers",
    "MaskedTokenLoss": "pretraining.train_step",
    "Muon": "training.optimizers",
    "RoFormerEncoder": "models.encoder",
    "RoFormerForCausalLM": "models.heads",
    "RoFormerForMaskedLM": "models.heads",
    "RoFormerForQuestionAnswering": "models.heads",
    "RoFormerForSentenceEmbedding": "models.heads",
    "RoFormerForSentenceSimilarity": "models.heads",
    "RoFormerForSequenceClassification": "models.heads",
    "RoFormerForSpanExtraction": "models.heads",
    "RoFormerForTokenClassification": "models.heads",
    "RoFormerSelfAttention": "layers.self_attention",
    "RotaryLinearAttention": "layers.linear_attention",
    "RotaryMultiHeadAttention": "layers.attention",
    "WarmupDecay": "training.optimizers",
}
"""Name in `.keras` files, after "roformer_tf>" → module. The class in it has the same name."""


class UnloadedClass(NamedTuple):
    """Takes the place of a class in Keras' registry until the class is imported."""

    module: str
    name: str

    def from_config(self, config: dict[str, Any]) -> Any:
        """Import the class, which registers itself in this place, and create an instance."""
        return getattr(import_module(self.module), self.name).from_config(config)


def register() -> None:
    """Register a placeholder for each class that is not imported yet. Keras must be imported."""
    registry = sys.modules["keras"].saving.get_custom_objects()
    for name, module in CLASSES.items():
        # A class whose module is imported has registered itself already.
        registry.setdefault(f"{PACKAGE}>{name}", UnloadedClass(f"{PACKAGE}.{module}", name))
