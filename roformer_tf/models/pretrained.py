"""The base class of all models: weights by name, from_pretrained and save_pretrained."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from roformer_tf.checkpoints import huggingface
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError, check_choice
from roformer_tf.internals import all_layers, set_initializer
from roformer_tf.kernels.dropout import Dropout
from roformer_tf.models.compiled import Compiled
from roformer_tf.models.inputs import ENCODER_INPUTS, checked_inputs
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, find_tokenizer, missing_vocabulary

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)
# Names of the dtype policies that a model can have.
FLOATS = ("float32", "bfloat16", "mixed_bfloat16", "float16", "mixed_float16", "float64")


class PretrainedModel(keras.Model):
    """A Keras model made from a RoFormerConfig, which has all of its weights at once."""

    architecture = "RoFormerModel"
    """The class of transformers that reads a saved folder."""
    takes_units: bool = False
    """Whether texts are tokenized in units, such as characters: see `RoFormerTokenizer`."""
    further_inputs: tuple[str, ...] = ()
    """Keys of its inputs, besides those of the encoder."""

    def __init__(self, config: RoFormerConfig, **kwargs: Any) -> None:
        if not isinstance(config, RoFormerConfig):
            raise InputError(
                f"the config is a {type(config).__name__}, but must be a RoFormerConfig. "
                "RoFormerConfig.from_dict reads a dictionary, and from_pretrained a checkpoint."
            )
        super().__init__(**kwargs)
        self.config = config
        self.called_with: tuple[str, ...] = ("token_ids", "segment_ids")
        """The names of the last call's inputs, without labels: those of an export."""
        self.tokenizer: RoFormerTokenizer | None = None
        """The tokenizer that came with the weights; saved with them."""
        self.compiled_parts = Compiled()

    def __call__(self, inputs: Any, *arguments: Any, **settings: Any) -> Any:
        """Call the model; inference on TensorFlow runs in one graph."""
        inputs = self.checked(inputs)
        self.called_with = tuple(name for name in inputs if name != "labels")
        # Positional arguments could be anything, so Keras handles them.
        if not arguments:
            compiled = self.compiled_parts.function(self, inputs, settings)
            if compiled is not None:
                return compiled(inputs)
        return super().__call__(inputs, *arguments, **settings)

    def stateless_call(self, weights: Any, state: Any, inputs: Any, **settings: Any) -> Any:
        """Call the model as `fit` and `predict` do on JAX: without `__call__`, and its check."""
        return super().stateless_call(weights, state, self.checked(inputs), **settings)

    def predict(self, x: Any, *arguments: Any, **settings: Any) -> Any:
        """Predict in batches, as Keras does. Raises InputError for arrays of different sizes."""
        # Here, since Keras' own message about them fails for a dict (3.15).
        x = self.checked(x) if isinstance(x, Mapping) else x
        return super().predict(x, *arguments, **settings)

    def predict_on_batch(self, x: Any) -> Any:
        """Predict a batch, as Keras does, whose trace for all lengths cannot check the inputs."""
        return super().predict_on_batch(self.checked(x))

    def checked(self, inputs: Any) -> dict[str, Any]:
        """The inputs; raises InputError for those that the model does not take."""
        names = (*ENCODER_INPUTS, *self.further_inputs)
        return checked_inputs(inputs, names, self.config, type(self).__name__)

    def export(
        self,
        filepath: str | Path,
        *arguments: Any,
        input_signature: Any = None,
        **settings: Any,
    ) -> None:
        """Write the model for inference, as Keras does.

        Unless a signature is given it takes the inputs of the last call, int32 of any batch and
        length; before any call, `token_ids` and `segment_ids`.
        """
        if input_signature is None:  # Keras' own would come from the shapes that `build` was given
            spec = {x: keras.InputSpec("int32", (None, None), name=x) for x in self.called_with}
            input_signature = [spec]
        super().export(filepath, *arguments, input_signature=input_signature, **settings)

    @classmethod
    def from_pretrained(cls, source: str | Path, *, dtype: Any = None, **overrides: Any) -> Self:
        """Load a released checkpoint by name, a zip or folder of it, a Hugging Face folder or ours.

        `dtype` is a Keras dtype policy's name, of floats; `overrides` replace keys of the config.
        Among them, `ignore_unknown=True` skips tensors that no RoFormer has, and `prefix` selects
        one of several copies of the weights. A warning names parts that the file lacks, whose
        weights are new, and those that this class does not use. A released gpt zip does not record
        that it is causal: give `attention_type="causal"`, unless it is for RoFormerForCausalLM.
        Raises InputError if there is no checkpoint, or a damaged or incomplete one.
        """
        with OpenedSource(source) as opened:
            return cls.from_source(opened, dtype=dtype, **overrides)

    @classmethod
    def from_source(cls, source: OpenedSource, *, dtype: Any = None, **overrides: Any) -> Self:
        """Load a checkpoint from an open source, as `from_pretrained` does."""
        if dtype is not None:  # a policy or its name
            check_choice("dtype", getattr(dtype, "name", dtype), FLOATS)
        checkpoint = source.checkpoint(**overrides)
        model = cls.from_arrays(checkpoint.config, checkpoint.arrays, source.path, dtype)
        model._warn_of_unused(checkpoint.arrays, source.path)
        model.tokenizer = find_tokenizer(source, checkpoint.config)
        if model.tokenizer is not None:  # a training uses all segments, whatever others did
            model.tokenizer.segments = checkpoint.config.type_vocab_size > 1
        return model

    @classmethod
    def from_arrays(
        cls, config: RoFormerConfig, arrays: Mapping[str, np.ndarray], source: Path, dtype: Any
    ) -> Self:
        """Create a model with the arrays as weights, read one by one; `source` names them.

        Inside the scope Keras defers the values of weights: none is drawn at random first, and no
        weight is in memory twice.
        """
        damaged: list[InputError] = []

        def stored(name: str) -> Callable[..., Any]:
            def initializer(shape: Any, dtype: Any) -> Any:
                try:
                    return keras.ops.cast(arrays[name], dtype)
                except InputError as error:  # an exception here would break Keras' scope
                    damaged.append(error)
                    return keras.ops.zeros(shape, dtype)

            return initializer

        # Variables are created without values; their initializers are replaced before Keras runs
        # them at the end of the scope.
        with keras.StatelessScope():
            model = cls(config, **({} if dtype is None else {"dtype": dtype}))
            for name, variable in model._matched(arrays, source).items():
                set_initializer(variable, stored(name))
        if damaged:
            raise damaged[0]
        return model

    @property
    def own_tokenizer(self) -> RoFormerTokenizer:
        """The tokenizer. Raises InputError for a model that came without one."""
        if self.tokenizer is None:
            raise InputError(f"{missing_vocabulary('this model')} Or set `model.tokenizer`.")
        return self.tokenizer

    def load_pretrained(self, folder: str | Path) -> None:
        """Load the weights of a folder that was saved from a model like this one."""
        with OpenedSource(folder) as source:
            # In the order of dimensions of this model, whatever that of the folder's.
            arrays = source.checkpoint(rotary_style=self.config.rotary_style).arrays
            for name, variable in self._matched(arrays, source.path).items():
                variable.assign(arrays[name])

    def save_pretrained(
        self,
        folder: str | Path,
        arrays: Mapping[str, np.ndarray] | None = None,
        max_length: int | None = None,
    ) -> None:
        """Write our own format: a folder that transformers reads unchanged.

        `arrays`: the weights of an unfinished training by name, which are written unchanged.
        Default: the model's own, with LoRA merged. `max_length`: tokens to which other programs
        truncate a text. Default: the number of positions of the config.
        A warning says that a model without a tokenizer, such as one from a `.keras` file, has none.
        Raises InputError for a quantized model, whose weights the format cannot hold.
        """
        unfinished = arrays is not None
        # A training checkpoint passes its own arrays, which may be those of an average.
        if arrays is None:
            check_not_quantized(self, f"{folder} cannot be written")
            arrays = {
                name: keras.ops.convert_to_numpy(value)
                for name, value in self._merged_variables().items()
            }
        ids = None if self.tokenizer is None else self.tokenizer.special_ids
        if self.tokenizer is None:
            logger.warning(
                "%s has no vocabulary: the model came without a tokenizer. Set model.tokenizer.",
                folder,
            )
        else:
            # The tokenizer is saved with the settings of this model, not of its source.
            # A model for another task that is read from a tagging model's folder has no units.
            units = self.tokenizer.units if self.takes_units else None
            positions = self.config.max_position_embeddings
            self.tokenizer.replaced(units=units).save_pretrained(
                folder,
                max_length=min(max_length or positions, positions),
                causal=self.architecture == huggingface.CAUSAL,
            )
        # After the tokenizer, which some vocabularies cannot be saved with.
        huggingface.write(
            *(folder, self.config, arrays, self.architecture, "float32", ids),
            scale_head=not unfinished,
        )

    def build(self, input_shape: Any = None) -> None:
        """Create the weights of the heads; the encoder has created its own."""
        for layer in self.parts().values():
            if not layer.built:
                layer.build((None, None, self.config.hidden_size))

    def parts(self) -> dict[str, keras.layers.Layer]:
        """The layers with the weights, by the first part of their names in the table."""
        return {layer.name: layer for layer in self.layers if not isinstance(layer, Dropout)}

    def named_variables(self) -> dict[str, keras.Variable]:
        """Every weight by its name in the table of checkpoints."""
        return {
            part + variable.path.removeprefix(layer.path): variable
            for part, layer in self.parts().items()
            for variable in layer.weights
        }

    def _merged_variables(self) -> dict[str, Any]:
        """`named_variables`, with LoRA's weights added to those that they adapt."""
        adapted = [x for x in all_layers(self) if getattr(x, "lora_enabled", False)]
        merged = {
            f"{layer.path}/{name}": getattr(layer, name)  # Keras' property is the sum
            for layer in adapted
            for name in ("kernel", "embeddings")
            if hasattr(layer, name)
        }
        return {
            name: merged.get(variable.path, variable)
            for name, variable in self.named_variables().items()
            if not variable.name.startswith("lora_")
        }

    def _matched(self, arrays: Mapping[str, np.ndarray], source: Path) -> dict[str, keras.Variable]:
        """The weights that are in the arrays; each part is there as a whole or not at all."""
        variables = self.named_variables()
        stored, needed = ({name.split("/")[0] for name in names} for names in (arrays, variables))
        absent = [name for name in variables if name not in arrays]
        # A part that the file has not at all is new; one that it has incompletely is an error, as
        # is any missing weight of the encoder.
        incomplete = [n for n in absent if n.split("/")[0] in stored | {"encoder"}]
        if incomplete:
            raise InputError(
                f"{source} lacks {len(incomplete)} weights, such as {', '.join(incomplete[:3])}. "
                "Give a complete checkpoint."
            )
        if new := sorted(needed - stored):
            logger.warning("%s holds no %s: its weights are new.", source, ", ".join(new))
        return {name: variable for name, variable in variables.items() if name in arrays}

    def _warn_of_unused(self, names: Iterable[str], source: Path) -> None:
        """Warn of parts that this class does not have, and of single weights of the others."""
        variables = self.named_variables()
        parts = {name.split("/")[0] for name in variables}
        rest = {name: name.split("/")[0] for name in names if name not in variables}
        if unused := sorted({name if part in parts else part for name, part in rest.items()}):
            logger.warning(
                "%s: %s left unused by %s.", source, ", ".join(unused), type(self).__name__
            )

    def save(self, filepath: Any, *arguments: Any, **settings: Any) -> None:
        """Write a `.keras` file, as Keras does. Raises InputError as `get_config`."""
        self.get_config()  # Keras opens the file first, and would leave it empty
        super().save(filepath, *arguments, **settings)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as Keras does, by a `.keras` file, but with the tokenizer."""
        return (*super().__reduce__(), {"tokenizer": self.tokenizer})

    def get_config(self) -> dict[str, Any]:
        """The config and the frozen layers, with which Keras can create the model again.

        Raises InputError if another setting of its layers was changed.
        """
        values = {"config": self.config.to_dict(), "name": self.name}
        values["dtype"] = self.dtype_policy.name
        check_not_quantized(self, f"{self.name} cannot be saved as .keras")
        with keras.StatelessScope():  # without values of weights
            check_unchanged(self, type(self).from_config(values))
        settings = kept_settings(self)
        return values | ({"layer_settings": settings} if settings else {})

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Create a model from the result of `get_config`."""
        config = dict(config)
        settings = config.pop("layer_settings", None)
        model = cls(**config | {"config": RoFormerConfig.from_dict(config["config"])})
        if settings is not None:
            apply_settings(model, settings)
        return model


# Settings of a model's layers that are not in its config. A `.keras` file holds a model's config
# and weights, and also which layers are frozen or `rematerialize`. Other changes, such as LoRA or
# another dropout rate, are refused: the file would load as a different model.


def kept_settings(model: Any) -> dict[str, list[Any]]:
    """Frozen layers and weights, and encoders that rematerialize: {} if there are none.

    Layers are identified by their index in `all_layers`, because not all have a path.
    """
    layers = list(enumerate(all_layers(model)))
    settings: dict[str, list[Any]] = {
        "frozen_layers": [index for index, layer in layers if not layer.trainable],
        "frozen_weights": [
            _path(model, weight) for weight in model.weights if not weight.trainable
        ],
        "rematerialize": [i for i, layer in layers if getattr(layer, "rematerialize", False)],
    }
    return {name: values for name, values in settings.items() if values}


def apply_settings(model: Any, settings: Mapping[str, Iterable[Any]]) -> None:
    """Apply the result of `kept_settings` to a new model of the same config."""
    layers, weights = (set(settings.get(f"frozen_{x}", ())) for x in ("layers", "weights"))
    # A layer comes before those inside it, which get the same value first.
    for number, layer in enumerate(all_layers(model)):
        layer.trainable = number not in layers
        if number in settings.get("rematerialize", ()):
            layer.rematerialize = True  # an encoder
    for weight in model.weights:
        weight.trainable = _path(model, weight) not in weights


def check_not_quantized(model: Any, problem: str) -> None:
    """Raise InputError for a quantized model; `problem` is the beginning of the message."""
    if any(layer.quantization_mode for layer in all_layers(model)):
        raise InputError(
            f"{problem}: the model is quantized, and the format holds float weights. Save before "
            "`quantize`, and quantize after loading."
        )


def check_unchanged(model: Any, new: Any) -> None:
    """Raise InputError if other settings of a model's layers differ from those of its config."""
    # Both models are built from the same config, so their layers correspond in order.
    for layer, other in zip(all_layers(model), all_layers(new), strict=True):
        settings, usual = _settings(layer), _settings(other)
        for name in sorted(settings.keys() | usual.keys()):
            if settings.get(name) != usual.get(name):
                raise InputError(
                    f"{model.name} cannot be saved as .keras: {name} of its layer "
                    f"{layer.path or layer.name} was changed from {usual.get(name)} to "
                    f"{settings.get(name)}, which the file cannot store. Change it in the "
                    "config instead, or use save_pretrained, which stores only weights and merges "
                    "LoRA."
                )


NOT_COMPARED = ("name", "trainable", "seed", "frozen")
"""Keys of a layer's config that differ between equal layers, or that are stored."""


def _settings(layer: Any) -> dict[str, Any]:
    """The settings of a layer that its results depend on."""
    if hasattr(layer, "config"):  # a model inside a model
        return {"config": layer.config.replace(unknown={})}
    try:
        settings = layer.get_config()
    except NotImplementedError:  # a layer that is only created from a RoFormerConfig
        settings = {}
    settings["dtype"] = layer.dtype_policy.name  # its value in the config is numbered within a file
    return {
        name: value
        for name, value in settings.items()
        if name not in NOT_COMPARED and not name.endswith("_initializer")
    }


def _path(model: Any, weight: Any) -> str:
    """A weight's path inside its model."""
    return str(weight.path).removeprefix(f"{model.name}/")
