"""Settings of a model's layers that are not in its config, such as frozen layers.

A `.keras` file holds a model's config and weights, and also which layers are frozen or
`rematerialize`. Other changes, such as LoRA or another dropout rate, are refused: the file would
load as a different model.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from roformer_tf.errors import InputError
from roformer_tf.internals import all_layers


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
