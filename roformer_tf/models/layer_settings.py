"""What was set on a model's layers after it was made, which its config does not say.

A `.keras` file holds a model's config and weights. What is frozen, and `rematerialize`, are kept in
it as well. Anything else, such as LoRA or another dropout rate, is refused: the file would open as
another model.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from roformer_tf.errors import InputError
from roformer_tf.internals import all_layers


def kept_settings(model: Any) -> dict[str, list[Any]]:
    """What does not train, and the encoders that rematerialize: {} where nothing was set.

    Layers are given by their number in `all_layers`, for not all have a path; weights by paths.
    """
    layers = list(enumerate(all_layers(model)))
    settings: dict[str, list[Any]] = {
        "frozen_layers": [number for number, one in layers if not one.trainable],
        "frozen_weights": [_path(model, one) for one in model.weights if not one.trainable],
        "rematerialize": [number for number, one in layers if getattr(one, REMATERIALIZE, False)],
    }
    return {name: values for name, values in settings.items() if values}


def apply_settings(model: Any, settings: Mapping[str, Iterable[Any]]) -> None:
    """Set on a new model what `kept_settings` gave of another one."""
    layers, weights = (set(settings.get(f"frozen_{x}", ())) for x in ("layers", "weights"))
    # A layer comes before those inside it, which get the same value first.
    for number, layer in enumerate(all_layers(model)):
        layer.trainable = number not in layers
        if number in settings.get("rematerialize", ()):
            setattr(layer, REMATERIALIZE, True)
    for weight in model.weights:
        weight.trainable = _path(model, weight) not in weights


def check_unchanged(model: Any, new: Any) -> None:
    """Raise InputError for a model that differs from a new one of its config in other settings."""
    for layer, other in zip(all_layers(model), all_layers(new), strict=True):
        settings, usual = _settings(layer), _settings(other)
        for name in sorted(settings.keys() | usual.keys()):
            if settings.get(name) != usual.get(name):
                raise InputError(
                    f"{model.name} cannot be saved as .keras: {name} of its layer "
                    f"{layer.path or layer.name} was changed from {usual.get(name)} to "
                    f"{settings.get(name)}, which the file has no place for. Change it in the "
                    "config instead, or use save_pretrained, which keeps weights alone and merges "
                    "LoRA."
                )


REMATERIALIZE = "rematerialize"
"""The attribute of an encoder."""
NOT_COMPARED = ("name", "trainable", "seed", "frozen")
"""Keys of a layer's config that differ from one to the next, or that are kept."""


def _settings(layer: Any) -> dict[str, Any]:
    """What a layer computes by, besides its weights."""
    if hasattr(layer, "config"):  # a model inside a model
        return {"config": layer.config.replace(unknown={})}
    try:
        settings = layer.get_config()
    except NotImplementedError:  # a layer that is only ever made of a RoFormerConfig
        settings = {}
    settings["dtype"] = layer.dtype_policy.name  # what stands there is numbered within a file
    return {
        name: value
        for name, value in settings.items()
        if name not in NOT_COMPARED and not name.endswith("_initializer")
    }


def _path(model: Any, weight: Any) -> str:
    """A weight's path inside its model."""
    return str(weight.path).removeprefix(f"{model.name}/")
