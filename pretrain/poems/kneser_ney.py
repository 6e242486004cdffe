"""The baseline: a character n-gram model of the same text, with Kneser–Ney smoothing.

Interpolated, with three discounts for each order (Chen and Goodman 1998, "modified"): the best of
the models that only count. No library was usable. NLTK iterates over all n-grams for every
probability, KenLM's package cannot estimate, and others have no wheels for current Pythons. So it
is implemented here, on arrays; tests compare it with NLTK.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
# What is taken off a count of 1, of 2, and of 3 or more.
Discounts: TypeAlias = tuple[float, float, float]


class _Order(NamedTuple):
    """The n-grams of one length, by number in the order of their keys."""

    # (n-grams,), rising: the context's number, times the vocabulary's size, plus the token.
    keys: Integers
    # (n-grams,): counts after the discount; counts of occurrences for the longest n-grams; for
    # shorter ones, of the different tokens that precede them.
    discounted: Floats
    # (contexts,): the sum of their n-grams' counts.
    totals: Floats
    # (contexts,): the discounted mass, distributed by the shorter context.
    spared: Floats


class KneserNey:
    """Estimated of a text: tokens (T,), `begins` (T,) true where a document begins, order n ≥ 2.

    A document is predicted from its second token on. Its first token is repeated n - 2 times
    before it, so that every context has n - 1 tokens. `discounts`: one set for each length of
    n-grams, 1 to n. Default: estimated.
    """

    def __init__(
        self,
        tokens: Integers,
        begins: npt.NDArray[np.bool_],
        order: int,
        vocab_size: int,
        discounts: Sequence[Discounts] | None = None,
    ) -> None:
        self._size, self._order = vocab_size, order
        self._orders: list[_Order] = []
        padded, predicted = self._padded(tokens, begins)
        grams = [padded]  # of one token, two, …: the number of the one that ends here
        kept = [np.arange(vocab_size)]
        for _ in range(order - 1):
            keys, numbers = np.unique(
                _shifted(grams[-1]) * vocab_size + padded, return_inverse=True
            )
            kept.append(keys)
            grams.append(numbers)
        counts = np.bincount(grams[-1][predicted], minlength=len(kept[-1]))
        for length in range(order, 0, -1):
            keys = kept[length - 1]
            contexts = len(kept[length - 2]) if length > 1 else 1
            taken = discounts[length - 1] if discounts else estimated_discounts(counts)
            self._orders.insert(0, _counted(keys, counts, keys // vocab_size, contexts, taken))
            if length > 1:  # the distinct tokens before the last n - 1 tokens of the n-grams
                shorter = np.zeros(len(keys), np.int64)
                shorter[grams[length - 1]] = grams[length - 2]
                counts = np.bincount(shorter[counts > 0], minlength=contexts)

    def probabilities(
        self,
        tokens: Integers,
        begins: npt.NDArray[np.bool_],
        instead: int | None = None,
    ) -> Floats:
        """Probability of each token except the documents' first ones, in their order.

        With `instead`, the probability of this token at each of those positions.
        """
        padded, predicted = self._padded(tokens, begins)
        asked = padded if instead is None else np.full_like(padded, instead)
        result = np.full(len(padded), 1 / self._size)
        contexts = np.zeros_like(padded)  # the number of the tokens before, -1 for unknown ones
        for length, order in enumerate(self._orders, start=1):
            gram = _find(order.keys, contexts * self._size + asked, contexts >= 0)
            seen = np.where(gram >= 0, order.discounted[gram], 0.0)
            # A context that was only ever a document's beginning has no n-grams.
            known = (contexts >= 0) & (order.totals[contexts] > 0)
            total = np.where(known, order.totals[contexts], 1.0)
            result = np.where(known, (seen + order.spared[contexts] * result) / total, result)
            if length < self._order:
                here = _find(order.keys, contexts * self._size + padded, contexts >= 0)
                contexts = _shifted(here)
        return result[predicted]

    def _padded(
        self, tokens: Integers, begins: npt.NDArray[np.bool_]
    ) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Tokens with each document's first one n - 1 times, and which of them are predicted."""
        times = np.where(begins, self._order - 1, 1)
        return np.repeat(tokens.astype(np.int64), times), np.repeat(~begins, times)


def estimated_discounts(counts: Integers) -> Discounts:
    """Discounts by how many n-grams have a count of 1, 2, 3 and 4 (Chen and Goodman 1998, 4.2).

    Where there are none of some, as in a tiny text, Ney's usual 0.75.
    """
    n1, n2, n3, n4 = (int(np.sum(counts == count)) for count in (1, 2, 3, 4))
    if not (n1 and n2 and n3 and n4):
        return 0.75, 0.75, 0.75
    ratio = n1 / (n1 + 2 * n2)
    estimates = (1 - 2 * ratio * n2 / n1, 2 - 3 * ratio * n3 / n2, 3 - 4 * ratio * n4 / n3)
    first, second, third = (min(max(x, 0.0), float(n)) for n, x in enumerate(estimates, start=1))
    return first, second, third


def bits(
    model: KneserNey,
    tokens: Integers,
    begins: npt.NDArray[np.bool_],
    never: Sequence[int],
) -> Floats:
    """Surprisal of each token except the documents' first ones, in bits, (predicted tokens,).

    `never`: punctuation and end tokens, whose positions the form determines. At every other
    position their probability is redistributed: the n-gram model cannot count characters.
    """
    real = tokens[~begins]
    probabilities = model.probabilities(tokens, begins)
    wasted = sum((model.probabilities(tokens, begins, instead=x) for x in never), np.zeros(()))
    return -np.log2(np.where(np.isin(real, never), probabilities, probabilities / (1 - wasted)))


def _counted(
    keys: Integers, counts: Integers, context: Integers, contexts: int, discounts: Discounts
) -> _Order:
    """What is known of n-grams (n-grams,), each in one of so many contexts."""
    taken: Floats = np.minimum(np.array([0.0, *discounts])[np.minimum(counts, 3)], counts)
    totals, spared = (
        np.bincount(context, x, minlength=contexts).astype(np.float64) for x in (counts, taken)
    )
    return _Order(keys, counts - taken, totals, spared)


def _shifted(numbers: Integers) -> Integers:
    """The previous position's number; 0 at the first one, where nothing is predicted."""
    return np.concatenate([np.zeros(1, np.int64), numbers[:-1]])


def _find(keys: Integers, wanted: Integers, known: npt.NDArray[np.bool_]) -> Integers:
    """Index of each wanted number among the sorted keys; -1 where it is missing or unknown."""
    index = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(known & (keys[index] == wanted), index, -1)
