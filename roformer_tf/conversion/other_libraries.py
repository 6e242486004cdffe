"""Outputs that bert4keras or transformers compute from a checkpoint: a program of its own.

usage: python other_libraries.py bert4keras|transformers CHECKPOINT INPUTS OUTPUTS OPTIONS

CHECKPOINT: for bert4keras the path of a TF1 checkpoint without `.index`, with a bert_config.json
in the same folder; for transformers a folder. INPUTS: an .npz file with `token_ids` and
`segment_ids`, int (B, T); token 0 is padding, except at the first position.
OUTPUTS: the .npz file to write, float32: `embeddings`, `layer_0`, … (B, T, H) and, if the model has
them, `logits` (B, T, V) and `pooled` (B, H). OPTIONS: JSON.

bert4keras needs an older Keras, with TF_KERAS=1 TF_USE_LEGACY_KERAS=1 in the environment.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def bert4keras(
    prefix: str, inputs: dict[str, np.ndarray], options: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Options: `epsilon` of the layer norms, and arguments of build_transformer_model."""
    from bert4keras.backend import K, keras
    from bert4keras.models import build_transformer_model

    # bert4keras has one epsilon for all norms, set globally.
    K.set_epsilon(options.pop("epsilon"))
    config = str(Path(prefix).with_name("bert_config.json"))
    built = build_transformer_model(config, prefix, return_keras_model=False, **options)
    layers = {"embeddings": "Embedding-Norm"}
    for i in range(built.num_hidden_layers):
        layers[f"layer_{i}"] = f"Transformer-{i}-FeedForward-Norm"
    for output, layer in (
        ("embeddings", "Embedding-Mapping"),  # if the embedding size is not the hidden size
        ("logits", "MLM-Activation"),
        ("logits", "Output-MLM-Activation"),  # RoFormerV2's
        ("pooled", "Pooler-Dense"),
    ):
        # A later line replaces an earlier output of the same name, if the model has that layer.
        if layer in built.layers:
            layers[output] = layer
    model = keras.models.Model(
        built.model.inputs, [built.layers[name].output for name in layers.values()]
    )
    results = model.predict([inputs["token_ids"], inputs["segment_ids"]], verbose=0)
    return dict(zip(layers, results, strict=True))


def transformers(
    folder: str, inputs: dict[str, np.ndarray], options: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Options: `class`, one of transformers', and keys of the config to change."""
    import torch
    import transformers as library

    model = getattr(library, options.pop("class")).from_pretrained(
        folder, dtype=torch.float32, **options
    )
    token_ids, segment_ids = (
        torch.from_numpy(inputs[key].astype("int64")) for key in ("token_ids", "segment_ids")
    )
    # As in our models: token 0 is padding, except at the first position.
    attended = token_ids != 0
    attended[:, 0] = True
    with torch.no_grad():
        result = model.eval()(
            input_ids=token_ids,
            token_type_ids=segment_ids,
            attention_mask=attended.long(),
            output_hidden_states=True,
        )
    embeddings, *states = result.hidden_states
    outputs = {"embeddings": embeddings} | {f"layer_{i}": state for i, state in enumerate(states)}
    if "logits" in result:
        outputs["logits"] = result.logits
    return {name: value.numpy() for name, value in outputs.items()}


def main(library: str, checkpoint: str, inputs: str, outputs: str, options: str) -> None:
    """Load, compute, write."""
    function = {"bert4keras": bert4keras, "transformers": transformers}[library]
    with np.load(inputs) as file:
        results = function(checkpoint, dict(file), json.loads(options))
    np.savez(outputs, **results)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
