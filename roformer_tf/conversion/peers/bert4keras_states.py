"""What bert4keras computes from a checkpoint: a program of its own, as it needs the old Keras.

usage, with TF_KERAS=1 TF_USE_LEGACY_KERAS=1 in the environment:
    python bert4keras_states.py PREFIX CONFIG INPUTS OUTPUTS OPTIONS

PREFIX, CONFIG: a TF1 checkpoint and its bert_config.json. INPUTS, OUTPUTS: .npz files.
OPTIONS: JSON, `epsilon` of the layer norms, and arguments of build_transformer_model.
INPUTS: `token_ids`, `segment_ids` int (B, T).
OUTPUTS, float32: `embeddings`, `layer_0`, … (B, T, H) and, where OPTIONS ask for these,
`logits` (B, T, V) and `pooled` (B, H).
"""

import json
import sys
from typing import Any

import numpy as np


def main(prefix: str, config: str, inputs: str, outputs: str, options: str) -> None:
    """Load, compute, write."""
    from bert4keras.backend import K, keras
    from bert4keras.models import build_transformer_model

    arguments = json.loads(options)
    K.set_epsilon(arguments.pop("epsilon"))
    built = build_transformer_model(config, prefix, return_keras_model=False, **arguments)
    layers = names_of_layers(built)
    model = keras.models.Model(
        built.model.inputs, [built.layers[name].output for name in layers.values()]
    )
    with np.load(inputs) as file:
        results = model.predict([file["token_ids"], file["segment_ids"]], verbose=0)
    np.savez(outputs, **dict(zip(layers, results, strict=True)))


def names_of_layers(built: Any) -> dict[str, str]:
    """What the outputs are called → the layer of bert4keras that gives it."""
    names = {"embeddings": "Embedding-Norm"}
    for i in range(built.num_hidden_layers):
        names[f"layer_{i}"] = f"Transformer-{i}-FeedForward-Norm"
    for output, layer in (
        ("embeddings", "Embedding-Mapping"),  # where E ≠ H
        ("logits", "MLM-Activation"),
        ("logits", "Output-MLM-Activation"),  # RoFormerV2's
        ("pooled", "Pooler-Dense"),
    ):
        if layer in built.layers:
            names[output] = layer
    return names


if __name__ == "__main__":
    main(*sys.argv[1:])
