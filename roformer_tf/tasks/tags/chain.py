"""Scores of each unit's labels → the best sequence of labels (Viterbi), in float64.

Axes: T units of a text, C labels.
"""

from typing import NamedTuple

import numpy as np

from roformer_tf.tasks.probabilities import softmax

# Along a text there are many small sums: NumPy's logaddexp.reduce is 5 times as fast on them as
# scipy.special.logsumexp.

# Score of an illegal step. It is finite: if every sequence is illegal, one is still the best.
NEVER = -1e9


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


def best_path(scores: np.ndarray, chain: Chain) -> np.ndarray:
    """The labels (T,) int64 of the highest total score, of a text's scores (T, C).

    A total is Σ scores[t, y_t] + start[y_0] + Σ steps[y_{t−1}, y_t] + end[y_{T−1}]. Of equal ones
    the lower labels win, from the end of the text on.
    """
    length = len(scores)
    if not length:
        return np.zeros(0, np.int64)
    best = chain.start + scores[0]  # (C,): of the best path to each label
    # Entry 0 is never set or read: the first label comes from nowhere.
    came_from = np.empty(scores.shape, np.int64)
    for t in range(1, length):
        totals = best[:, None] + chain.steps  # (from, to)
        came_from[t] = totals.argmax(axis=0)
        best = totals.max(axis=0) + scores[t]
    path = np.empty(length, np.int64)
    path[-1] = (best + chain.end).argmax()
    for t in range(length - 1, 0, -1):  # backwards: to the label that each label came from
        path[t - 1] = came_from[t, path[t]]
    return path


def marginals(scores: np.ndarray, chain: Chain) -> np.ndarray:
    """The probability (T, C) float32 of each label of each unit, of a text's scores (T, C).

    In a conditional random field the probability of a sequence is proportional to the exponential
    of its total. The forward-backward algorithm sums over all sequences.
    """
    length = len(scores)
    # (T, C), logarithms of sums over paths: `forward` up to a label with its own score, `backward`
    # from it to the end without that score. Their sum is the label's unnormalized marginal.
    forward, backward = np.zeros(scores.shape), np.zeros(scores.shape)
    for t in range(length):
        before = chain.start
        if t:
            before = np.logaddexp.reduce(forward[t - 1][:, None] + chain.steps, axis=0)
        forward[t] = before + scores[t]
    for t in range(length - 1, -1, -1):
        # The last unit has the score of the end; an earlier one sums over what follows it.
        backward[t] = chain.end
        if t + 1 < length:
            following = scores[t + 1] + backward[t + 1] + chain.steps
            backward[t] = np.logaddexp.reduce(following, axis=1)
    return softmax(forward + backward)
