"""Beam search, by two rules that differ in what becomes of a text that ends early.

bert4keras' rule is that of the released models' scripts; transformers' has a length penalty.
NumPy alone. Axes: K beams, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]


class Written(NamedTuple):
    """What a beam has written."""

    token_ids: tuple[int, ...]
    """The end's token too, where it has ended."""
    log_probability: float
    """The sum over all of its tokens."""
    ended: bool


@dataclass
class BeamSearch:
    """The beams of one prompt; each step, `advance` says which of them go on, and with what.

    Without a length penalty the search is bert4keras' `AutoRegressiveDecoder.beam_search`: once
    the best of all candidates has ended, it is the answer, and until then other ended ones are
    dropped, and their places with them. With one, it is transformers': ended candidates are kept
    with log-probability / length^penalty, and the search goes on while a running beam may still
    beat the worst of as many kept ones as there are beams.
    """

    beams: int
    ends: tuple[int, ...]
    """Ids of tokens that end a text."""
    max_tokens: int
    length_penalty: float | None = None
    running: list[Written] = field(default_factory=lambda: [Written((), 0.0, False)])
    kept: list[tuple[float, Written]] = field(default_factory=list)
    """Ended ones with their scores, best first."""
    answer: Written | None = None

    def advance(self, log_probabilities: Floats) -> tuple[Ints, Ints]:
        """Take the log-probabilities (K, V) behind the running beams.

        Returns, for the beams that run on, the number of the beam that each continues and the token
        that it writes, (K',) each; none once there is an `answer`.
        """
        sums = np.array([beam.log_probability for beam in self.running])[:, None]
        scores = (sums + log_probabilities).ravel()
        more = 1 if self.length_penalty is None else max(2, 1 + len(self.ends))
        best = _largest(scores, self.beams * more)
        candidates = []
        for place in best.tolist():
            parent, token = divmod(place, log_probabilities.shape[1])
            ids = (*self.running[parent].token_ids, token)
            written = Written(ids, float(scores[place]), token in self.ends)
            candidates.append((parent, written))
        step = self._keep_best if self.length_penalty is None else self._keep_ended
        going_on = step(candidates)
        if self.answer is not None:
            going_on = []
        self.running = [written for _, written in going_on]
        parents = np.array([parent for parent, _ in going_on], np.int64)
        return parents, np.array([written.token_ids[-1] for _, written in going_on], np.int64)

    def _keep_best(self, candidates: list[tuple[int, Written]]) -> list[tuple[int, Written]]:
        """bert4keras' rule; candidates as many as beams, best first."""
        best = candidates[0][1]
        running = [x for x in candidates if not x[1].ended]
        if best.ended:
            self.answer = best
        elif len(best.token_ids) == self.max_tokens:
            self.answer = running[0][1]
        self.beams = len(running)
        return running

    def _keep_ended(self, candidates: list[tuple[int, Written]]) -> list[tuple[int, Written]]:
        """transformers' rule (`early_stopping=False`); candidates at least twice as many."""
        length = len(candidates[0][1].token_ids)
        share = length ** float(self.length_penalty or 0)
        full = length == self.max_tokens
        for _, written in candidates[: self.beams]:  # the others only stand in for ended ones
            if written.ended or full:
                self.kept.append((written.log_probability / share, written))
        self.kept = sorted(self.kept, key=lambda x: -x[0])[: self.beams]
        running = [x for x in candidates if not x[1].ended][: self.beams]
        enough = len(self.kept) == self.beams
        if full or (enough and running[0][1].log_probability / share <= self.kept[-1][0]):
            self.answer = self.kept[0][1]
        return running


def _largest(scores: Floats, count: int) -> Ints:
    """Places of the largest scores, the largest first; of equal ones the earlier."""
    count = min(count, len(scores))
    places = np.sort(np.argpartition(-scores, count - 1)[:count])
    return places[np.argsort(-scores[places], kind="stable")]
