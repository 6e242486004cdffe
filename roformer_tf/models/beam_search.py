"""Beam search, by two rules that differ in how they treat a text that ends early.

bert4keras' rule is that of the released models' scripts; transformers' rule has a length penalty.
NumPy only. Axes: K beams, V vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from roformer_tf.top_k import top_k

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]


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
        best = top_k(scores, self.beams * more)
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
