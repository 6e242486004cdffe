"""What every model has: a config, weights by name, from_pretrained and save_pretrained."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from roformer_tf.checkpoints import huggingface, sources
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class PretrainedModel(keras.Model):
    """A Keras model made from a RoFormerConfig, whose weights are all there from the start."""

    architecture = "RoFormerModel"
    """The transformers class that a saved folder is offered to."""

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.tokenizer: RoFormerTokenizer | None = None
        """The tokenizer that came with the weights; saved beside them."""

    @classmethod
    def from_pretrained(cls, source: str | Path, *, dtype: Any = None, **overrides: Any) -> Self:
        """Load a released zip, an unpacked folder, a Hugging Face folder or one of ours.

        `dtype` is any Keras dtype policy's name; `overrides` replace keys of the config.
        Parts that the file lacks are new and said so; so are those that this class leaves.
        Raises InputError where there is no checkpoint, or a damaged or incomplete one.
        """
        checkpoint = sources.read(source, **overrides)
        model = cls(checkpoint.config, **({} if dtype is None else {"dtype": dtype}))
        model._assign(checkpoint.arrays, source)
        model.tokenizer = _find_tokenizer(source)
        return model

    def load_pretrained(self, folder: str | Path) -> None:
        """Put the weights of a folder, saved from a model like this one, into this model."""
        self._assign(sources.read(folder).arrays, folder)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write our own format: a folder that transformers reads unchanged."""
        arrays = {
            name: np.asarray(keras.ops.convert_to_numpy(variable), "float32")
            for name, variable in self.named_variables().items()
        }
        huggingface.write(folder, self.config, arrays, self.architecture)
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(folder)

    def parts(self) -> dict[str, keras.layers.Layer]:
        """The layers that hold the weights, under the first word of the table's names."""
        raise NotImplementedError

    def named_variables(self) -> dict[str, keras.Variable]:
        """Every weight under the name that the checkpoints' table gives it."""
        return {
            part + variable.path.removeprefix(layer.path): variable
            for part, layer in self.parts().items()
            for variable in layer.weights
        }

    def _assign(self, arrays: dict[str, np.ndarray], source: str | Path) -> None:
        """Give every weight its array; parts are loaded whole or not at all."""
        variables, parts = self.named_variables(), self.parts()
        given = {name.split("/")[0] for name in arrays}
        absent = [name for name in variables if name not in arrays]
        incomplete = [n for n in absent if n.split("/")[0] in given | {"encoder"}]
        if incomplete:
            raise InputError(
                f"{source} lacks {len(incomplete)} weights, such as {', '.join(incomplete[:3])}. "
                "Give a complete checkpoint."
            )
        if new := sorted(set(parts) - given):
            logger.warning("%s holds no %s: its weights are new.", source, ", ".join(new))
        if unused := sorted(given - set(parts)):
            logger.warning(
                "%s: %s left unused by %s.", source, ", ".join(unused), type(self).__name__
            )
        for name, variable in variables.items():
            if name in arrays:
                variable.assign(arrays[name])

    def get_config(self) -> dict[str, Any]:
        """What Keras needs to make the model again."""
        return {"config": self.config.to_dict(), "name": self.name, "dtype": self.dtype_policy.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Make the model that `get_config` described."""
        return cls(**config | {"config": RoFormerConfig.from_dict(config["config"])})


def _find_tokenizer(source: str | Path) -> RoFormerTokenizer | None:
    """The tokenizer of a source; a folder may hold weights alone."""
    source = Path(source)
    if source.is_dir() and not (source / "vocab.txt").exists():
        return None
    return RoFormerTokenizer.from_pretrained(source)
