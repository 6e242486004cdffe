"""Decoding strategies: sampling of the next token, and beam search, by NumPy.

Beam search has two rules, which differ in how they treat a text that ends early. bert4keras' rule
is that of the released models' scripts; transformers' rule has a length penalty.

Axes: B texts, K beams or candidates, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roformer_tf.top_k import top_k as largest

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]

# Tokens that usually contain those of top_p: to sort the whole vocabulary takes much longer.
SHORTLIST = 512


class Distribution(NamedTuple):
    """Candidates for the next token, likeliest first, and their probabilities: both (B, K)."""

    token_ids: Ints
    probabilities: Floats


def penalize_repetition(logits: Floats, seen: Sequence[Sequence[int]], penalty: float) -> Floats:
    """Make tokens less likely that are already in the text (CTRL, arXiv 1909.05858, 4.1).

    logits (B, V), seen: the ids of each text → (B, V). As in transformers, the logit of such a
    token is divided by the penalty if it is above 0, and else multiplied by it.
    """
    # Pairs (text, id): [[7, 8], [9]] → rows 0 0 1, tokens 7 8 9.
    rows = np.repeat(np.arange(len(seen)), list(map(len, seen)))
    tokens = np.concatenate(seen)
    # Read before any is changed: a token that occurs twice is penalized once.
    old = logits[rows, tokens]
    penalized = logits.copy()
    penalized[rows, tokens] = np.where(old > 0, old / penalty, old * penalty)
    return penalized


def distribution(
    logits: Floats, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Distribution:
    """The distribution to sample from: softmax(logits / temperature), cut to top_k, then to top_p.

    logits (B, V). top_k keeps so many likeliest tokens, top_p the smallest set of likeliest tokens
    with this total probability (nucleus sampling, arXiv 1904.09751); both renormalize. The order of
    the three is that of transformers and bert4keras.
    """
    from scipy.special import softmax

    probabilities = softmax(logits.astype(np.float64) / temperature, axis=1)
    if top_k is None and (top_p is None or top_p == 1):
        every = np.broadcast_to(np.arange(probabilities.shape[1]), probabilities.shape)
        return Distribution(every, probabilities)
    # The most probable tokens usually suffice; the whole vocabulary is sorted only if not.
    if top_k is None:
        ids, shares = _likeliest(probabilities, SHORTLIST)
        if (shares.sum(axis=1) < top_p).any():
            ids, shares = _likeliest(probabilities, probabilities.shape[1])
    else:
        ids, shares = _likeliest(probabilities, top_k)
        shares = shares / shares.sum(axis=1, keepdims=True)
    if top_p is not None and top_p < 1:
        # The token that crosses top_p is included, so that at least one remains.
        before = np.cumsum(shares, axis=1) - shares
        shares = np.where(before < top_p, shares, 0.0)
        # Tokens are sorted, so that the columns from here on are 0 in all texts.
        kept = int((shares > 0).sum(axis=1).max())
        ids, shares = ids[:, :kept], shares[:, :kept]
        shares = shares / shares.sum(axis=1, keepdims=True)
    return Distribution(ids, shares)


def _likeliest(weights: Floats, count: int) -> Distribution:
    """The largest weights of each text, largest first; of equal ones the lower id."""
    ids = np.stack([largest(row, count) for row in weights])
    return Distribution(ids, np.take_along_axis(weights, ids, axis=1))


def draw(distribution: Distribution, uniform: Floats) -> Ints:
    """Sample a token for each text, by a random number (B,) from 0 to below 1."""
    bounds = np.cumsum(distribution.probabilities, axis=1)
    bounds /= bounds[:, -1:]  # the sum of rounded probabilities is not exactly 1
    # The number of bounds that are not above the random number is the index of its interval.
    chosen = (bounds <= uniform[:, None]).sum(axis=1)
    return np.take_along_axis(distribution.token_ids, chosen[:, None], axis=1)[:, 0]


class Beam(NamedTuple):
    """The new tokens of one of several continuations that are compared."""

    token_ids: tuple[int, ...]
    """With the last token, if it has ended."""
    log_probability: float
    """The sum over all tokens."""
    ended: bool


@dataclass
class BeamSearch:
    """The beams of one prompt; `advance` makes one step.

    Without a length penalty, it is bert4keras' `AutoRegressiveDecoder.beam_search`: if the best of
    all candidates has ended, it is the result. Other candidates that end are dropped, and reduce
    the number of beams. With a penalty, it is the search of transformers: ended candidates are kept
    with log-probability / length^penalty, and the search continues while a running beam can still
    exceed the worst kept one.
    """

    beams: int
    ends: tuple[int, ...]
    """Ids of tokens that end a text."""
    max_tokens: int
    length_penalty: float | None = None
    running: list[Beam] = field(default_factory=lambda: [Beam((), 0.0, False)])
    kept: list[tuple[float, Beam]] = field(default_factory=list)
    """Ended candidates with their scores, best first."""
    result: Beam | None = None

    def advance(self, log_probabilities: Floats) -> tuple[Ints, Ints]:
        """Take the log-probabilities (K, V) of the next tokens of the running beams.

        Returns, for the beams that continue, the indices of their parents and their new tokens,
        (K',) each; the search is finished once there is a `result`.
        """
        # (K, 1); at the first step the prompt is the only beam.
        sums = np.array([beam.log_probability for beam in self.running])[:, None]
        scores = (sums + log_probabilities).ravel()
        # transformers' rule needs candidates to replace those that end.
        more = 1 if self.length_penalty is None else max(2, 1 + len(self.ends))
        best = largest(scores, self.beams * more)
        candidates = []
        for index in best.tolist():
            # The index in (K, V), flattened beam by beam.
            parent, token = divmod(index, log_probabilities.shape[1])
            ids = (*self.running[parent].token_ids, token)
            beam = Beam(ids, float(scores[index]), token in self.ends)
            candidates.append((parent, beam))
        step = self._keep_best if self.length_penalty is None else self._keep_ended
        continued = step(candidates)
        self.running = [beam for _, beam in continued]
        parents = np.array([parent for parent, _ in continued], np.int64)
        return parents, np.array([beam.token_ids[-1] for _, beam in continued], np.int64)

    def _keep_best(self, candidates: list[tuple[int, Beam]]) -> list[tuple[int, Beam]]:
        """The rule of bert4keras; as many candidates as beams, best first."""
        best = candidates[0][1]
        running = [x for x in candidates if not x[1].ended]
        if best.ended:
            self.result = best
        elif len(best.token_ids) == self.max_tokens:
            self.result = running[0][1]
        self.beams = len(running)
        return running

    def _keep_ended(self, candidates: list[tuple[int, Beam]]) -> list[tuple[int, Beam]]:
        """The rule of transformers (`early_stopping=False`); at least twice as many candidates."""
        length = len(candidates[0][1].token_ids)
        divisor = length ** float(self.length_penalty or 0)
        full = length == self.max_tokens
        for _, beam in candidates[: self.beams]:  # the rest only replaces ended ones
            if beam.ended or full:
                self.kept.append((beam.log_probability / divisor, beam))
        self.kept = sorted(self.kept, key=lambda x: -x[0])[: self.beams]
        running = [x for x in candidates if not x[1].ended][: self.beams]
        # Sums of log-probabilities only fall, so a running beam that is worse now stays worse.
        enough = len(self.kept) == self.beams
        if full or (enough and running[0][1].log_probability / divisor <= self.kept[-1][0]):
            self.result = self.kept[0][1]
        return running
