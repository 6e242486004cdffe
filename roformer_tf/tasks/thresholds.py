"""From which probability on one of several labels is answered: chosen on the validation set."""

import numpy as np

STEPS = np.array(sorted(np.arange(1, 20) / 20, key=lambda step: abs(step - 0.5)))
"""Thresholds that are tried, 0.05 to 0.95, the nearest to ½ first: of equally good ones it wins."""
ENOUGH = 300
"""Examples of a label in the validation set from which on it has a threshold of its own."""
# TF-IDF on 6,000 newspaper sentences: one threshold for all is worth 2.5 to 4 points of micro F1.
# One each is worth 0.3 more where the sentences are parted by chance and a label has 100 examples
# and more, but costs a point where they are parted by document, with 130 to 209 examples.


def best_thresholds(wanted: np.ndarray, scores: np.ndarray) -> tuple[float, ...]:
    """The thresholds (C,) that give the highest micro F1.

    wanted: whether an example has a label (N, C) bool; scores: how likely it is (N, C). One for all
    labels, and then one for each label of which there are at least `ENOUGH`, the others held.
    """
    answered = np.array([np.sum(scores > step, axis=0) for step in STEPS])  # (steps, C)
    right = np.array([np.sum((scores > step) & wanted, axis=0) for step in STEPS])
    found = wanted.sum(axis=0)  # (C,)

    def best(right: np.ndarray, answered: np.ndarray) -> int:
        """Which step has the highest micro F1, by the items (steps,) of all labels together."""
        return int(np.argmax(right / np.maximum(found.sum() + answered, 1)))

    chosen = np.full(len(found), best(right.sum(axis=1), answered.sum(axis=1)))
    for label in np.flatnonzero(found >= ENOUGH):
        others = np.flatnonzero(np.arange(len(chosen)) != label)
        at = chosen[others]
        chosen[label] = best(
            right[:, label] + right[at, others].sum(),
            answered[:, label] + answered[at, others].sum(),
        )
    thresholds: list[float] = STEPS[chosen].tolist()
    return tuple(thresholds)


def best_threshold(scores: np.ndarray, wanted: np.ndarray) -> float:
    """The number above which an answer is yes that is right most often: scores, wanted (N,).

    Halfway between two scores that follow each other, so that other texts may be a little off.
    """
    order = np.argsort(scores, kind="stable")
    ordered, yes = scores[order], wanted[order]
    # The first k are answered no: right are the no's among them, and the yes's behind them.
    right = (
        np.concatenate([[0], np.cumsum(~yes)]) + yes.sum() - np.concatenate([[0], np.cumsum(yes)])
    )
    ends = np.concatenate([[ordered[0] - 0.1], ordered, [ordered[-1] + 0.1]])
    right[1:-1] = np.where(np.diff(ordered) > 0, right[1:-1], -1)  # equal scores are one answer
    best = int(np.argmax(right))
    return float((ends[best] + ends[best + 1]) / 2)
