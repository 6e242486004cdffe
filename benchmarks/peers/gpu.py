"""The step of `benchmarks.gpu` in transformers: BERT or RoFormer, compiled, on the same rows.

    python -m benchmarks.peers.gpu CASE STEPS ROUNDS     CASE in JSON, from benchmarks.gpu

These are an expert's settings: only masked positions are projected onto the vocabulary, products
are bfloat16 by autocast, and AdamW is torch's fused one. BERT uses SDPA, which selects a flash
kernel if there is no mask; RoFormer has no SDPA in transformers.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.gpu import Case, architecture, flops_with_keys, keys_seen, masked_rows


def new_model(case: Case) -> Any:
    """Return a new model of the case's size."""
    shape = architecture(case)
    names = (
        *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
        *("intermediate_size", "hidden_dropout_prob", "attention_probs_dropout_prob"),
    )
    sizes = {name: getattr(shape, name) for name in names}
    sizes["max_position_embeddings"] = case.length
    torch.manual_seed(0)
    if case.model.startswith("bert"):
        config = transformers.BertConfig(**sizes, attn_implementation="sdpa")
        return transformers.BertForMaskedLM(config)
    return transformers.RoFormerForMaskedLM(transformers.RoFormerConfig(**sizes))


def loss_of(case: Case, model: Any, device: str) -> Any:
    """Return a function, to be compiled, that computes the loss of the batch."""
    result = {key: torch.tensor(x, device=device) for key, x in masked_rows(case).items()}
    tokens, documents = result["token_ids"].long(), result["sequence_ids"]
    rows = case.length * torch.arange(case.batch, device=device)[:, None]
    indices = (result["masked_positions"].long() + rows).flatten()
    labels = result["labels"].long().flatten()
    mask = None
    if case.model.endswith("isolated"):
        same = documents[:, :, None] == documents[:, None, :]
        mask = same[:, None]  # SDPA takes a boolean mask; RoFormer adds the mask to the scores
        if not case.model.startswith("bert"):
            mask = torch.where(mask, 0.0, torch.finfo(torch.float32).min)
    encoder = model.bert if case.model.startswith("bert") else model.roformer

    def loss() -> Any:
        hidden = encoder(input_ids=tokens, attention_mask=mask)[0]
        return torch.nn.functional.cross_entropy(model.cls(hidden.flatten(0, 1)[indices]), labels)

    return loss


def measure(case: Case, steps: int, rounds: int) -> dict[str, Any]:
    """Train some steps and return the figures of the table."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = new_model(case).train().to(device)
    loss = loss_of(case, model, device)
    if case.size != "tiny":  # compiling a tiny model takes far longer than training it
        loss = torch.compile(loss)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.01, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def seconds() -> float:
        began = time.perf_counter()
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps

    seconds()  # compiles
    step_seconds = float(np.median([seconds() for _ in range(rounds)]))
    isolated = case.model.endswith("isolated")
    keys = keys_seen(masked_rows(case)["sequence_ids"]) if isolated else case.length
    flops = flops_with_keys(case, keys)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "tokens/s": case.batch * case.length / step_seconds,
        "seconds": step_seconds,
        "flops/s": flops / step_seconds,
        "outside": None,
        "idle": None,
        "attention": "SDPA" if case.model.startswith("bert") else "plain",
        "memory": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "kernels": [],
    }


if __name__ == "__main__":
    case, steps, rounds = sys.argv[1:]
    print(json.dumps(measure(Case(**json.loads(case)), int(steps), int(rounds))))
