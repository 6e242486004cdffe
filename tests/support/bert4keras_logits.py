"""Compute logits with bert4keras, in a separate process because it needs the old Keras.

Run with TF_KERAS=1 TF_USE_LEGACY_KERAS=1. Reads JSON from standard input: [{"folder": a TF1
checkpoint in the released layout, "model": "roformer" or "roformer_v2", "inputs": .npz of
`token_ids` and `segment_ids` (B, T), "output": .npy of logits (B, T, V) to write}, …].
"""

import json
import sys
from pathlib import Path

import numpy as np
from bert4keras.models import build_transformer_model


def run(job):
    folder = Path(job["folder"])
    model = build_transformer_model(
        str(folder / "bert_config.json"),
        str(folder / "bert_model.ckpt"),
        model=job["model"],
        with_mlm="linear",
    )
    with np.load(job["inputs"]) as file:
        logits = model.predict([file["token_ids"], file["segment_ids"]], verbose=0)
    np.save(job["output"], logits)


if __name__ == "__main__":
    for job in json.load(sys.stdin):
        run(job)
