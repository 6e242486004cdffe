"""Word vectors from counting which tokens stand side by side.

A factorised matrix of pointwise mutual information is as good as trained word vectors (Levy and
Goldberg 2014; Levy et al. 2015), and takes seconds: a head start for a model's embeddings, worth
thousands of steps where the corpus is small.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.packing import DOCUMENT, TOKEN
from roformer_tf.corpus.shards import PreparedRows

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

COUNTED_TOKENS = 20_000_000
"""Tokens that are counted at most, from rows evenly spread over the corpus."""


def neighbour_vectors(
    rows: PreparedRows, vocab_size: int, size: int, seed: int = 0
) -> npt.NDArray[np.float32]:
    """Vectors (V, size) of all tokens, those with like neighbours alike, at most 1 long.

    Half of the tokens are exactly 1 long; those of which little is known are shorter, and those
    that never stand in the rows 0. The features are in no order: each says as much as another.
    """
    from sklearn.utils.extmath import randomized_svd

    information = positive_information(neighbour_counts(rows, vocab_size))
    rank = min(size, vocab_size)
    left, strength, _ = randomized_svd(information, rank, n_iter=4, random_state=seed)
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    vectors = left * np.sqrt(strength) @ rotation[:rank]
    known = information.getnnz(axis=1) > 0
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    limit = np.median(lengths[known]) if known.any() else 1.0
    return np.where(known[:, None], vectors / np.maximum(lengths, limit), 0).astype(np.float32)


def neighbour_counts(rows: PreparedRows, vocab_size: int) -> "csr_matrix":
    """How often a token (row) stands right before another (column) in a document: (V, V)."""
    from scipy.sparse import coo_matrix

    spread = -(-len(rows) * rows.length // COUNTED_TOKENS)
    sample = np.stack([rows[i] for i in range(0, len(rows), spread)])
    tokens, documents = sample[:, TOKEN], sample[:, DOCUMENT]
    together = (documents[:, :-1] == documents[:, 1:]) & (documents[:, 1:] != 0)
    before, after = tokens[:, :-1][together], tokens[:, 1:][together]
    ones = np.ones(len(before), np.float32)
    return coo_matrix((ones, (before, after)), (vocab_size, vocab_size)).tocsr()


def positive_information(counts: "csr_matrix") -> "csr_matrix":
    """Positive pointwise mutual information of each token with its right and left neighbours.

    counts (V, V) → max(0, ln p(x, y) / (p(x) p(y))), (V, 2V) float32: right ones, then left ones.
    """
    from scipy.sparse import csr_matrix, hstack

    pairs = counts.tocoo()
    first, second = (np.asarray(counts.sum(axis), np.float64).ravel() for axis in (1, 0))
    expected = first[pairs.row] * second[pairs.col] / max(first.sum(), 1.0)
    values = np.maximum(np.log(pairs.data / expected), 0).astype(np.float32)
    right = csr_matrix((values, (pairs.row, pairs.col)), shape=counts.shape)
    right.eliminate_zeros()
    return hstack([right, right.T]).tocsr()
