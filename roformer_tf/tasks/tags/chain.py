"""Scores of each unit's labels → the best sequence of labels (Viterbi), in float64.

Axes: N texts, T units, C labels. Texts of similar length are padded together, so that a step along
the units is one operation for many texts.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from roformer_tf.tasks.probabilities import softmax

# Along a text there are many small sums: NumPy's logaddexp.reduce is 5 times as fast on them as
# scipy.special.logsumexp.

# Score of an illegal step. It is finite: if every sequence is illegal, one is still the best.
NEVER = -1e9
# Number of texts that are padded together.
TOGETHER = 32


class Chain(NamedTuple):
    """Scores of the order of labels, float64."""

    start: np.ndarray
    """(C,) at the beginning of a text."""
    steps: np.ndarray
    """(C, C) from each label to each next one."""
    end: np.ndarray
    """(C,) at the end."""

    def first_illegal(self, path: np.ndarray) -> int | None:
        """The first index at which labels (T,) int are illegal; T if only their end is illegal."""
        if not len(path):
            return None
        # T + 1 scores: entry t is the step to unit t, and the last one is the end of the text.
        steps = [self.start[path[:1]], self.steps[path[:-1], path[1:]], self.end[path[-1:]]]
        wrong = np.flatnonzero(np.concatenate(steps) <= NEVER)
        return int(wrong[0]) if len(wrong) else None


def best_paths(scores: Sequence[np.ndarray], chain: Chain) -> list[np.ndarray]:
    """The labels (T,) int64 of the highest total score, of each text's scores (T, C).

    A total is Σ scores[t, y_t] + start[y_0] + Σ steps[y_{t−1}, y_t] + end[y_{T−1}]. Of equal ones
    the lower labels win, from the end of the text on.
    """
    return _in_groups(scores, lambda padded, lengths: _viterbi(padded, lengths, chain))


def marginals(scores: Sequence[np.ndarray], chain: Chain) -> list[np.ndarray]:
    """The probability (T, C) float32 of each label of each unit, of each text's scores (T, C).

    In a conditional random field the probability of a sequence is proportional to the exponential
    of its total. The forward-backward algorithm sums over all sequences.
    """
    return _in_groups(scores, lambda padded, lengths: _forward_backward(padded, lengths, chain))


def _in_groups(
    scores: Sequence[np.ndarray], work: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Call `work` on texts of similar length: (N, T, C) float64, lengths (N,) → (N, T, …)."""
    results: list[np.ndarray] = [np.zeros(0)] * len(scores)
    # Texts of similar length share a group, so little of it is padding.
    by_length = sorted(range(len(scores)), key=lambda i: len(scores[i]))
    for begin in range(0, len(scores), TOGETHER):
        group = by_length[begin : begin + TOGETHER]
        lengths = np.array([len(scores[i]) for i in group])
        padded = np.zeros((len(group), lengths.max(), scores[group[0]].shape[-1]))
        for row, i in enumerate(group):
            padded[row, : lengths[row]] = scores[i]
        done = work(padded, lengths)
        for row, i in enumerate(group):
            results[i] = done[row, : lengths[row]]
    return results


def _viterbi(scores: np.ndarray, lengths: np.ndarray, chain: Chain) -> np.ndarray:
    """Best paths (N, T) int64; after a text's end its last label is repeated."""
    count, longest, labels = scores.shape
    if not longest:
        return np.zeros((count, 0), np.int64)
    best = chain.start + scores[:, 0]  # (N, C): of the best path to each label
    stay = np.arange(labels)  # after the end of a text: each label comes from itself
    # Entry 0 is never set or read: the first label comes from nowhere.
    came_from = np.empty((longest, count, labels), np.int64)
    for t in range(1, longest):
        totals = best[:, :, None] + chain.steps  # (N, from, to)
        continues = (t < lengths)[:, None]
        came_from[t] = np.where(continues, totals.argmax(axis=1), stay)
        best = np.where(continues, totals.max(axis=1) + scores[:, t], best)
    paths = np.empty((count, longest), np.int64)
    # Shorter texts, too, end in the last column: after its end every label repeats itself.
    paths[:, -1] = (best + chain.end).argmax(axis=-1)
    for t in range(longest - 1, 0, -1):  # backwards: to the label that each label came from
        paths[:, t - 1] = np.take_along_axis(came_from[t], paths[:, t, None], axis=1)[:, 0]
    return paths


def _forward_backward(scores: np.ndarray, lengths: np.ndarray, chain: Chain) -> np.ndarray:
    """Probabilities (N, T, C) float32; undefined after the end of a text."""
    longest = scores.shape[1]
    # (N, T, C), logarithms of sums over paths: `forward` up to a label with its own score,
    # `backward` from it to the end without that score. Their sum is the label's unnormalized
    # marginal.
    forward, backward = np.zeros_like(scores), np.zeros_like(scores)
    for t in range(longest):
        before = chain.start
        if t:
            before = np.logaddexp.reduce(forward[:, t - 1, :, None] + chain.steps, axis=1)
        forward[:, t] = before + scores[:, t]
    for t in range(longest - 1, -1, -1):
        # The last unit has the score of the end; an earlier one sums over what follows it.
        backward[:, t] = chain.end
        if t + 1 < longest:
            following = (scores[:, t + 1] + backward[:, t + 1])[:, None, :] + chain.steps
            continues = (t + 1 < lengths)[:, None]
            backward[:, t] = np.where(continues, np.logaddexp.reduce(following, axis=2), chain.end)
    return softmax(forward + backward)
