"""Baselines that only count tokens; a model must be better.

They predict the most frequent token, and the most frequent token between the same two neighbours.
Both are scored on the same masks as the model, by accuracy and by bits per character. Bits per
character are comparable between vocabularies.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.objectives import replacement_ids
from roformer_tf.corpus.packing import TOKEN
from roformer_tf.corpus.shards import PreparedRows

Integers = npt.NDArray[np.integer]
Floats = npt.NDArray[np.float64]

# Id of a neighbour that is masked itself.
UNSEEN = -1


class Score(NamedTuple):
    """Scores of predictions for masked tokens."""

    # Fraction of the tokens that were predicted correctly.
    accuracy: float
    # Cross-entropy of the tokens, divided by the number of their characters: lower is better.
    bits_per_character: float


class MaskedTokens(NamedTuple):
    """N masked tokens and their neighbours, which are the input of the baselines."""

    # (N,): the original tokens.
    labels: Integers
    # (N,): the token before each, or UNSEEN.
    left: Integers
    # (N,): the token after each, or UNSEEN.
    right: Integers


class Prediction(NamedTuple):
    """Predictions for N masked positions."""

    # (N,): the most probable token.
    tokens: Integers
    # (N,): the probability of the original token.
    probabilities: Floats


def scored_slots(
    labels: Integers, weights: npt.NDArray[np.floating], unk_id: int
) -> npt.NDArray[np.bool_]:
    """Return which slots (B, P) are scored: used slots whose label is in the vocabulary.

    Unknown tokens are excluded for model and baselines, because their characters are unknown.
    """
    return (weights > 0) & (labels != unk_id)


def masked_tokens(
    token_ids: Integers,
    masked_positions: Integers,
    labels: Integers,
    weights: npt.NDArray[np.floating],
    *,
    mask_id: int,
    unk_id: int,
) -> MaskedTokens:
    """Return the scored tokens of sequences (B, L) with slots (B, P), in the order of sequences."""
    row, slot = np.nonzero(scored_slots(labels, weights, unk_id))
    position = masked_positions[row, slot]
    # [CLS] and [SEP] surround every text and are never masked, so both neighbours exist.
    neighbours = token_ids[row, position - 1], token_ids[row, position + 1]
    # 64 bits, because a product of three ids does not fit into 32.
    left, right = (np.where(ids == mask_id, UNSEEN, ids).astype(np.int64) for ids in neighbours)
    return MaskedTokens(labels[row, slot], left, right)


def token_lengths(vocabulary: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the number of characters of each token by id, (V,), without WordPiece's `##`."""
    counts = np.zeros(max(vocabulary.values()) + 1, np.int64)
    for token, number in vocabulary.items():
        counts[number] = len(token.removeprefix("##"))
    return counts


def score(prediction: Prediction, labels: Integers, token_lengths: Integers) -> Score:
    """Score predictions for labels (N,); `token_lengths` (V,) are their characters."""
    bits = -np.log2(prediction.probabilities).sum()
    return Score(
        float(np.mean(prediction.tokens == labels)), float(bits / token_lengths[labels].sum())
    )


class Baselines:
    """Counts of the tokens of the training sequences, in total and by their neighbours.

    `rows` are the training split, (3, L) each. A token in square brackets, such as [UNK], is never
    predicted but may be a neighbour.
    """

    def __init__(
        self, rows: PreparedRows | Sequence[Integers], vocabulary: Mapping[str, int]
    ) -> None:
        text = np.stack([rows[i][TOKEN] for i in range(len(rows))]).ravel().astype(np.int64)
        candidates = replacement_ids(vocabulary)
        # Sequences start with [CLS] and end with [SEP] or padding, so joining them is safe.
        (positions,) = np.nonzero(np.isin(text, candidates))
        tokens, left, right = text[positions], text[positions - 1], text[positions + 1]
        self._size = max(vocabulary.values()) + 1
        self._candidates = len(candidates)
        self._overall = _Counts(np.zeros_like(tokens), tokens, self._size)
        self._left = _Counts(left, tokens, self._size)
        self._right = _Counts(right, tokens, self._size)
        self._both = _Counts(left * self._size + right, tokens, self._size)

    def most_frequent(self, masked: MaskedTokens) -> Prediction:
        """Always predict the most frequent token."""
        anywhere = np.zeros_like(masked.labels)
        uniform = np.full(len(masked.labels), 1 / self._candidates)
        return Prediction(
            self._overall.likeliest(anywhere, anywhere),
            self._overall.smoothed(anywhere, masked.labels, uniform),
        )

    def between_neighbours(self, masked: MaskedTokens) -> Prediction:
        """Predict the most frequent token between the same two neighbours.

        If the two never occur together in training, predict the most frequent token next to the
        neighbour for which it is more certain. If neither occurs, predict the most frequent token.
        """
        labels, left, right = masked
        both = np.where((left == UNSEEN) | (right == UNSEEN), UNSEEN, left * self._size + right)
        trust_left = self._left.confidence(left) >= self._right.confidence(right)
        tokens, probabilities = self.most_frequent(masked)
        tokens = np.where(
            trust_left,
            self._left.likeliest(left, tokens),
            self._right.likeliest(right, tokens),
        )
        probabilities = np.where(
            trust_left,
            self._left.smoothed(left, labels, probabilities),
            self._right.smoothed(right, labels, probabilities),
        )
        return Prediction(
            self._both.likeliest(both, tokens), self._both.smoothed(both, labels, probabilities)
        )


class _Counts:
    """Counts of tokens (N,) by context (N,); both are non-negative integers."""

    def __init__(self, contexts: Integers, tokens: Integers, size: int) -> None:
        self._size = size
        self._pairs, self._pair_counts = np.unique(contexts * size + tokens, return_counts=True)
        pair_contexts, pair_tokens = np.divmod(self._pairs, size)
        self._contexts, first, self._kinds = np.unique(
            pair_contexts, return_index=True, return_counts=True
        )
        self._totals = np.add.reduceat(self._pair_counts, first)
        # Among equally frequent tokens of a context, take the one more frequent in all contexts.
        anywhere = np.bincount(tokens, minlength=size)
        by_count = np.lexsort((-anywhere[pair_tokens], -self._pair_counts, pair_contexts))
        self._likeliest = pair_tokens[by_count][first]
        self._highest = self._pair_counts[by_count][first]

    def likeliest(self, contexts: Integers, otherwise: Integers) -> Integers:
        """Return the most frequent token of each context (N,), or `otherwise` (N,) if unknown."""
        index, known = _find(self._contexts, contexts)
        return np.where(known, self._likeliest[index], otherwise)

    def confidence(self, contexts: Integers) -> Floats:
        """Return the Witten–Bell probability of each context's top token, (N,); 0 if unknown."""
        index, known = _find(self._contexts, contexts)
        return np.where(known, self._highest[index] / (self._totals + self._kinds)[index], 0.0)

    def smoothed(self, contexts: Integers, tokens: Integers, otherwise: Floats) -> Floats:
        """Return the Witten–Bell probability of each token (N,) in its context.

        In a context with k distinct tokens in n positions, a new token has probability k / (n + k).
        This mass is distributed by `otherwise` (N,).
        """
        index, known = _find(self._contexts, contexts)
        pair, counted = _find(self._pairs, contexts * self._size + tokens)
        count = np.where(counted, self._pair_counts[pair], 0)
        total, kinds = self._totals[index], self._kinds[index]
        return np.where(known, (count + kinds * otherwise) / (total + kinds), otherwise)


def _find(keys: Integers, values: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Return the index of each value in the sorted keys, and whether it is present."""
    index = np.searchsorted(keys, values).clip(max=len(keys) - 1)
    return index, keys[index] == values
