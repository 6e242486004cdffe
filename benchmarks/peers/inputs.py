"""Inputs of all peers: the same tokens, the same masked positions, the same texts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# Ids below this are special tokens.
SPECIAL = 5

# Fraction of the tokens that are masked.
MASKED = 0.15


class MaskedBatch(NamedTuple):
    """Rows of random tokens without padding, with masked positions."""

    token_ids: Ints
    """(B, T)."""
    positions: Ints
    """(B, P): masked positions, ascending."""
    labels: Ints
    """(B, P): original tokens at these positions."""

    def labels_everywhere(self) -> Ints:
        """Return labels (B, T) for Hugging Face: −100 at unmasked positions."""
        everywhere = np.full_like(self.token_ids, -100)
        np.put_along_axis(everywhere, self.positions, self.labels, axis=1)
        return everywhere


def masked_batch(batch: int, length: int, vocabulary: int) -> MaskedBatch:
    """Return the batch that every step repeats."""
    random = np.random.default_rng(0)
    predictions = int(MASKED * length)
    order = random.permuted(np.tile(np.arange(length), (batch, 1)), axis=1)
    return MaskedBatch(
        random.integers(SPECIAL, vocabulary, (batch, length)),
        np.sort(order[:, :predictions], axis=1),
        random.integers(SPECIAL, vocabulary, (batch, predictions)),
    )


def rows_of(texts: str, vocabulary: int) -> list[Ints]:
    """Return token ids of "one" text of 32 tokens, or of 32 texts of "mixed" lengths.

    Mixed lengths are evenly spaced from 10 to 512 and shuffled.
    """
    random = np.random.default_rng(1)
    lengths = [32] if texts == "one" else random.permutation(np.linspace(10, 512, 32).astype(int))
    return [random.integers(SPECIAL, vocabulary, length) for length in lengths]


def prompts(batch: int, length: int, vocabulary: int) -> list[list[int]]:
    """Return token ids of prompts of one length."""
    random = np.random.default_rng(3)
    return [random.integers(SPECIAL, vocabulary, length).tolist() for _ in range(batch)]


def sentences(count: int) -> list[str]:
    """Return sentences of twenty random two-character words of the checkpoint's vocabulary."""
    random = np.random.default_rng(4)
    chosen = random.integers(SPECIAL, 20_000, (count, 20)).tolist()
    return ["".join(f"{chr(0x4E00 + i // 100)}{chr(0x4E00 + i % 100)}" for i in x) for x in chosen]


def padded(rows: list[Ints]) -> tuple[Ints, Ints]:
    """Pad rows to the longest; return token ids and attention mask, (B, T) each."""
    shape = len(rows), max(map(len, rows))
    ids, masks = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, item, mask in zip(rows, ids, masks, strict=True):
        item[: len(row)], mask[: len(row)] = row, 1
    return ids, masks


def state_figure(states: list[npt.NDArray[Any]]) -> dict[str, float]:
    """Return a figure for comparing the hidden states, (T, H) for each text, of two peers."""
    return {
        "mean_of_first_feature": float(
            np.mean([each[:, 0].astype("float32").mean() for each in states])
        )
    }


def vector_figures(vectors: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the number of vectors (N, D) and a figure for comparing those of two peers."""
    first = np.abs(vectors[:20_000, 0].astype("float64"))
    return {"vectors": len(vectors), "mean_of_first_feature": float(first.mean())}


def queries_and_keys() -> tuple[Any, Any]:
    """Return random queries and keys, (8, 512, 6, 64) float32: rows, tokens, heads, features."""
    random = np.random.default_rng(2)
    query, key = random.normal(size=(2, 8, 512, 6, 64)).astype("float32")
    return query, key


def texts_of(path: str) -> Iterator[str]:
    """Yield the documents of a file with one `{"text": …}` a line."""
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def text_figures(texts: list[str], ids: list[Any]) -> dict[str, int]:
    """Return the number of characters and of tokens."""
    return {"characters": sum(map(len, texts)), "tokens": sum(map(len, ids))}
