"""What all peers are given: the same tokens, the same masked positions, the same texts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# Ids below are special tokens.
SPECIAL = 5

# Share of the tokens that are predicted.
MASKED = 0.15


class MaskedBatch(NamedTuple):
    """Rows of random words, full to the last token."""

    token_ids: Ints
    """(B, T)."""
    positions: Ints
    """(B, P): which are predicted, ascending."""
    labels: Ints
    """(B, P): what was there."""

    def labels_everywhere(self) -> Ints:
        """(B, T): −100 where nothing is predicted, as Hugging Face has it."""
        everywhere = np.full_like(self.token_ids, -100)
        np.put_along_axis(everywhere, self.positions, self.labels, axis=1)
        return everywhere


def masked_batch(batch: int, length: int, vocabulary: int) -> MaskedBatch:
    """Make the batch that every step repeats."""
    random = np.random.default_rng(0)
    predictions = int(MASKED * length)
    order = random.permuted(np.tile(np.arange(length), (batch, 1)), axis=1)
    return MaskedBatch(
        random.integers(SPECIAL, vocabulary, (batch, length)),
        np.sort(order[:, :predictions], axis=1),
        random.integers(SPECIAL, vocabulary, (batch, predictions)),
    )


def rows_of(texts: str, vocabulary: int) -> list[Ints]:
    """Token ids of "one" text of 32, or of 32 of "mixed" lengths: 10 to 512, evenly, shuffled."""
    random = np.random.default_rng(1)
    lengths = [32] if texts == "one" else random.permutation(np.linspace(10, 512, 32).astype(int))
    return [random.integers(SPECIAL, vocabulary, length) for length in lengths]


def prompts(batch: int, length: int, vocabulary: int) -> list[list[int]]:
    """Token ids of prompts to continue, all of one length."""
    random = np.random.default_rng(3)
    return [random.integers(SPECIAL, vocabulary, length).tolist() for _ in range(batch)]


def sentences(count: int) -> list[str]:
    """Sentences of twenty of the checkpoint's words of two characters."""
    random = np.random.default_rng(4)
    chosen = random.integers(SPECIAL, 20_000, (count, 20)).tolist()
    return ["".join(f"{chr(0x4E00 + i // 100)}{chr(0x4E00 + i % 100)}" for i in x) for x in chosen]


def padded(rows: list[Ints]) -> tuple[Ints, Ints]:
    """Rows → token ids and which of them are real, both (B, T) for the longest T."""
    shape = len(rows), max(map(len, rows))
    ids, real = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for row, item, kept in zip(rows, ids, real, strict=True):
        item[: len(row)], kept[: len(row)] = row, 1
    return ids, real


def described(states: list[npt.NDArray[Any]]) -> dict[str, float]:
    """A figure that is equal if two peers gave the same hidden states, (T, H) for each text."""
    return {
        "mean_of_first_feature": float(
            np.mean([each[:, 0].astype("float32").mean() for each in states])
        )
    }


def embedded(vectors: npt.NDArray[Any]) -> dict[str, Any]:
    """The number of vectors (N, D), and a figure that is equal if two peers gave the same ones."""
    first = np.abs(vectors[:20_000, 0].astype("float64"))
    return {"vectors": len(vectors), "mean_of_first_feature": float(first.mean())}


def queries_and_keys() -> tuple[Any, Any]:
    """8 rows of 512 tokens, 6 heads of 64 features: (8, 512, 6, 64) float32 twice."""
    random = np.random.default_rng(2)
    query, key = random.normal(size=(2, 8, 512, 6, 64)).astype("float32")
    return query, key


def texts_of(path: str) -> Iterator[str]:
    """The documents of a file with one `{"text": …}` a line."""
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def counted(texts: list[str], ids: list[Any]) -> dict[str, int]:
    """How much text there was, and how many tokens came out of it."""
    return {"characters": sum(map(len, texts)), "tokens": sum(map(len, ids))}
