"""What Hugging Face's transformers computes from a folder: a program of its own.

usage: python transformers_states.py FOLDER INPUTS OUTPUTS OPTIONS

INPUTS, OUTPUTS: .npz files. OPTIONS: JSON with `class`, one of transformers', and keys of the
config that are to be other than the folder's.
INPUTS: `token_ids`, `segment_ids` int (B, T); token 0 is padding, but not in the first place.
OUTPUTS, float32: `embeddings`, `layer_0`, … (B, T, H) and what the class gives as `logits`.
"""

import json
import sys

import numpy as np


def main(folder: str, inputs: str, outputs: str, options: str) -> None:
    """Load, compute, write."""
    import torch
    import transformers

    changes = json.loads(options)
    model = getattr(transformers, changes.pop("class")).from_pretrained(
        folder, dtype=torch.float32, **changes
    )
    with np.load(inputs) as file:
        token_ids, segment_ids = (
            torch.from_numpy(file[key].astype("int64")) for key in ("token_ids", "segment_ids")
        )
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
    found = {"embeddings": embeddings} | {f"layer_{i}": state for i, state in enumerate(states)}
    if "logits" in result:
        found["logits"] = result.logits
    np.savez(outputs, **{name: value.numpy() for name, value in found.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
