"""Hugging Face's RoFormer: "eager" and "stock" are common settings, "tuned" an expert's."""

import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.roformer.modeling_roformer import (
    RoFormerSelfAttention,
    RoFormerSinusoidalPositionalEmbedding,
)

from benchmarks.peers import inputs
from benchmarks.peers.worker import Prepared, fresh_processes, serve, timed, timed_without_setup

# Maximum tokens of a batch of "tuned" inference, including padding.
GROUP = 2048

START = """
import sys, time
began = time.perf_counter()
import torch
from transformers import AutoTokenizer, RoFormerForMaskedLM
imported = time.perf_counter()
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = RoFormerForMaskedLM.from_pretrained(sys.argv[1]).eval()
loaded = time.perf_counter()
with torch.no_grad():
    model(**tokenizer(["一丁一七一丈"], return_tensors="pt"))
print(imported - began, loaded - imported, time.perf_counter() - loaded)
"""


def mlm_step(*, checkpoint: str, batch: int, length: int, dropout: float, variant: str) -> Prepared:
    """Forward, backward, clipping and AdamW, with bfloat16 autocast."""
    model = transformers.RoFormerForMaskedLM.from_pretrained(
        f"{checkpoint}/own",
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    ).train()
    result = inputs.masked_batch(batch, length, model.config.vocab_size)
    loss = gathered_loss(model, result) if variant == "tuned" else stock_loss(model, result)
    if variant == "tuned":
        torch._inductor.config.fallback_random = True
    if variant != "eager":
        loss = torch.compile(loss)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.01, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            value = loss()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return value.item()

    return Prepared(timed(step), {"first_loss": step(), "precision": "bf16 autocast"})


def stock_loss(model: Any, batch: inputs.MaskedBatch) -> Callable[[], Any]:
    """Return the model's own loss: all positions are projected; unmasked ones have label −100."""
    tokens, labels = torch.tensor(batch.token_ids), torch.tensor(batch.labels_everywhere())
    mask = torch.ones_like(tokens)
    return lambda: model(input_ids=tokens, attention_mask=mask, labels=labels).loss


def gathered_loss(model: Any, batch: inputs.MaskedBatch) -> Callable[[], Any]:
    """Return the same loss, but project only masked positions onto the vocabulary."""
    tokens = torch.tensor(batch.token_ids)
    mask = torch.ones_like(tokens)
    rows, length = tokens.shape
    indices = (torch.tensor(batch.positions) + length * torch.arange(rows)[:, None]).flatten()
    labels = torch.tensor(batch.labels).flatten()

    def loss() -> Any:
        hidden = model.roformer(input_ids=tokens, attention_mask=mask)[0]
        scores = model.cls(hidden.flatten(0, 1)[indices])
        return torch.nn.functional.cross_entropy(scores, labels)

    return loss


def inference(*, checkpoint: str, texts: str, variant: str) -> Prepared:
    """Hidden states of one batch padded to the longest; "tuned": sorted batches, bfloat16."""
    model = transformers.RoFormerModel.from_pretrained(f"{checkpoint}/own").eval()
    rows = inputs.rows_of(texts, model.config.vocab_size)
    groups = [rows]
    if variant == "tuned":
        model, groups = model.to(torch.bfloat16), sorted_groups(rows)
    call = model if variant == "eager" else torch.compile(model, dynamic=len(groups) > 1)
    batches = [tuple(map(torch.tensor, inputs.padded(group))) for group in groups]

    @torch.no_grad()
    def work() -> list[Any]:
        return [call(input_ids=ids, attention_mask=mask)[0] for ids, mask in batches]

    states = [
        state[: len(row)].float().numpy()
        for batch, group in zip(work(), groups, strict=True)
        for state, row in zip(batch, group, strict=True)
    ]
    return Prepared(timed(work), inputs.state_figure(states))


def sorted_groups(rows: list[inputs.Ints]) -> list[list[inputs.Ints]]:
    """Group rows by similar length, with at most `GROUP` tokens in a group."""
    groups: list[list[inputs.Ints]] = [[]]
    for row in sorted(rows, key=len, reverse=True):
        if groups[-1] and (len(groups[-1]) + 1) * len(groups[-1][0]) > GROUP:
            groups.append([])
        groups[-1].append(row)
    return groups


def generate(
    *, checkpoint: str, batch: int, prompt: int, new: int, variant: str, dtype: str
) -> Prepared:
    """Greedy generation by transformers' `generate`, with its cache."""
    model = transformers.RoFormerForCausalLM.from_pretrained(
        f"{checkpoint}/own", is_decoder=True, dtype=getattr(torch, dtype)
    ).eval()
    if variant == "compiled":
        model.forward = torch.compile(model.forward, dynamic=True)
    ids = torch.tensor(inputs.prompts(batch, prompt, model.config.vocab_size))

    def work() -> Any:
        with torch.inference_mode():
            return model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
            )

    began = time.perf_counter()
    assert work().shape == (batch, prompt + new)
    return Prepared(timed(work), {"first_call": time.perf_counter() - began})


def embed(*, model: str, texts: str, dtype: str) -> Prepared:
    """Vectors of all lines of a file by sentence-transformers, including saving them."""
    from sentence_transformers import SentenceTransformer

    result = SentenceTransformer(model, device="cpu", model_kwargs={"dtype": getattr(torch, dtype)})
    folder = tempfile.TemporaryDirectory()  # deleted when it is garbage-collected

    def work() -> None:
        with Path(texts).open(encoding="utf-8") as lines:
            actual = result.encode(lines.read().splitlines())
        np.save(f"{folder.name}/vectors.npy", actual.astype("float32"))

    def run(count: int) -> dict[str, Any]:
        output = timed(work)(count)
        return output | inputs.vector_figures(np.load(f"{folder.name}/vectors.npy", mmap_mode="r"))

    return Prepared(run, {})


def rotary(*, dtype: str, variant: str) -> Prepared:
    """Rotation of queries and keys, forward and backward."""
    query, key = (
        torch.tensor(x).transpose(1, 2).contiguous().to(getattr(torch, dtype)).requires_grad_()
        for x in inputs.queries_and_keys()
    )
    table = RoFormerSinusoidalPositionalEmbedding(*query.shape[2:]).create_weight()[None, None]
    table = table.to(query.dtype)
    rotate = RoFormerSelfAttention.apply_rotary_position_embeddings
    if variant == "compiled":
        rotate = torch.compile(rotate)

    def work() -> Any:
        return torch.autograd.grad(rotate(table, query, key), (query, key), (query, key))

    work()
    return Prepared(timed(work), {})


def tokenization(*, corpus: str, tokenizer: str) -> Prepared:
    """Conversion of every document of a file to ids, in one call."""
    texts = list(inputs.texts_of(corpus))

    def make() -> Callable[[], Any]:
        new = transformers.AutoTokenizer.from_pretrained(tokenizer)
        return partial(ids_of, new, texts)

    return Prepared(timed_without_setup(make), inputs.text_figures(texts, make()()))


def ids_of(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Return token ids without special tokens."""
    options = {"return_attention_mask": False, "return_token_type_ids": False}
    return tokenizer(texts, add_special_tokens=False, **options)["input_ids"]


def preparation(*, corpus: str, tokenizer: str, length: int) -> Prepared:
    """The steps of transformers' run_mlm.py without its cache: ids concatenated and cut to rows."""
    result = transformers.AutoTokenizer.from_pretrained(tokenizer)
    characters = sum(map(len, inputs.texts_of(corpus)))

    def work() -> None:
        ids = result(list(inputs.texts_of(corpus)))["input_ids"]
        flat = np.fromiter(chain.from_iterable(ids), np.int32)
        rows = flat[: len(flat) // length * length].reshape(-1, length)
        with tempfile.TemporaryFile() as file:
            np.save(file, rows)

    return Prepared(timed(work), {"characters": characters})


def startup(*, checkpoint: str) -> Prepared:
    """A process that imports, loads Hugging Face's layout, predicts one text, and ends."""
    return fresh_processes(START, f"{checkpoint}/own")


if __name__ == "__main__":
    serve(
        [mlm_step, inference, generate, embed, rotary, tokenization, preparation, startup],
        ("torch", "transformers", "tokenizers", "rjieba", "sentence-transformers"),
    )
