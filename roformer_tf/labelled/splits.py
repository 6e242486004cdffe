"""Examples → training, validation and test sets without common texts; duplicates between sets.

Texts are equal here if they differ only in white space and in the width of characters (NFKC). A
pair is equal to its mirror image, and a triple to itself with B and C exchanged: a model that has
seen one knows the other.

A `task` is one of `tasks.table`, or its class: its `labelling` has the methods `labels_in`,
`strata` and `split_keys`. That folder imports this one, so its type is `Any`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from roformer_tf.errors import InputError, check_number
from roformer_tf.labelled.examples import Example, Label
from roformer_tf.readers.records import text_key
from roformer_tf.translation import Message

# Number of quantiles by which regression examples are stratified.
QUANTILES = 10
# Minimum of different texts for a label to be in the training, validation and test set.
EVERYWHERE = 3


class Duplicates:
    """Equal texts in a training and a test set. Of a pair or triple, all texts have to be equal.

    Texts of `valid`, which selected the weights, are not new to the model either.
    """

    def __init__(
        self, train: Sequence[Example], test: Sequence[Example], valid: Sequence[Example] = ()
    ) -> None:
        keys = [example_key(example.texts) for example in train]
        test_keys = [example_key(example.texts) for example in test]
        known = set(keys)
        # (test examples,): whether its texts are in train, too.
        self.in_train = np.array([key in known for key in test_keys], np.bool_)
        # Whether they are in valid, too. A text in both sets counts once, as one of train.
        selected_by = {example_key(example.texts) for example in valid} - known
        self.in_valid = np.array([key in selected_by for key in test_keys], np.bool_)
        # Whether they occur earlier in test, too.
        first_at: dict[bytes, int] = {}
        earlier = [first_at.setdefault(key, i) < i for i, key in enumerate(test_keys)]
        self.repeated = np.array(earlier, np.bool_)
        # Training examples whose texts occur earlier in train, too.
        self.within = len(keys) - len(known)
        # Different texts with more than one label, in all sets together: another label than the
        # first one. The order of texts counts: the mirror image of a pair may have another label.
        first: dict[bytes, Label | None] = {}
        contradicting = {
            key
            for example in (*train, *valid, *test)
            if first.setdefault(key := text_key(example.texts), example.label) != example.label
        }
        self.contradicting = len(contradicting)

    @property
    def unseen(self) -> npt.NDArray[np.bool_]:
        """(test examples,): whether the texts occur for the first time."""
        return ~(self.in_train | self.in_valid | self.repeated)


def example_key(texts: Sequence[str]) -> bytes:
    """16 bytes that equal texts share, and no others; whatever the order of a pair, or of B and C.

    >>> example_key(["我爱你", "你爱我"]) == example_key(["你爱我", "我爱你"])
    True
    """
    # As the end of a slice, True is 1 and False is 0.
    fixed = len(texts) == 3  # A is compared with B and C: only these two may be exchanged
    return text_key([*texts[:fixed], *sorted(texts[fixed:], key=lambda text: text_key([text]))])


def split_examples(
    examples: Sequence[Example], task: Any, shares: tuple[float, float] = (0.1, 0.1), seed: int = 0
) -> tuple[list[Example], list[Example], list[Example]]:
    """Split examples into training, validation and test sets, each in the order of the data.

    `shares` are the fractions of validation and test; either may be 0. Equal texts stay together.
    Each set gets its fraction of every label (of every combination of labels, or of every tenth of
    a regression's numbers). Every label is in the training set. A label of at least three different
    texts is in every set, even where a set then gets more than its fraction. Raises InputError
    where a set would be empty.
    """
    for share in (*shares, sum(shares)):
        check_number("the fraction for validation, test or both", share, at_least=0, below=1)
    wanted = np.array([1 - sum(shares), *shares])  # training, validation, test
    sides = _assign_sets(examples, task, wanted, seed, every_label=True)
    if missing := set(np.flatnonzero(wanted).tolist()) - set(sides.tolist()):
        names = (Message("training"), Message("validation"), Message("test"))
        raise InputError(
            Message(
                "too few different texts to split: {number}. None is left for {names}. Give "
                "--valid and --test, or more examples.",
                number=len({example_key(example.texts) for example in examples}),
                names=[names[side] for side in sorted(missing)],
            )
        )
    train, valid, test = (list(compress(examples, sides == side)) for side in range(3))
    return train, valid, test


def folds(
    examples: Sequence[Example], task: Any, k: int, seed: int = 0
) -> list[tuple[list[Example], list[Example]]]:
    """Split examples into k folds as `split_examples` does, for cross-validation.

    → k pairs of a training set and the fold that it lacks. Raises InputError if a fold would be
    empty, or hold every example of a label.
    """
    check_number("folds", k, at_least=2, hint="because one of them is held out")
    sides = _assign_sets(examples, task, np.full(k, 1 / k), seed, every_label=False)
    pairs = [
        (list(compress(examples, sides != fold)), list(compress(examples, sides == fold)))
        for fold in range(k)
    ]
    for train, held_out in pairs:
        if not held_out:
            raise InputError(
                f"too few examples for {k} folds: {len(train)}. Give fewer folds, or more examples."
            )
        if unseen := _all_labels(held_out, task) - _all_labels(train, task):
            raise InputError(
                f"all examples of the label {min(unseen)!r} are in one of {k} folds: the model "
                "would be tested on an unknown label. Give more examples of it, fewer folds or "
                "another --seed."
            )
    return pairs


def _assign_sets(
    examples: Sequence[Example],
    task: Any,
    shares: npt.NDArray[np.float64],
    seed: int,
    every_label: bool,
) -> npt.NDArray[np.int64]:
    """Assign every example to a set: (examples,) indices into `shares`.

    Groups of equal texts are in random order, sorted by label. Each is assigned to the set that is
    farthest below its fraction of the examples so far. With `every_label`, `_reserved` assigns some
    groups first.
    """
    groups, strata = _connected_groups(examples, task, shares), task.labelling.strata(examples)
    order = np.random.default_rng(seed).permutation(len(groups))
    # The sort is stable, so the groups of a stratum stay in random order.
    shuffled = sorted((groups[i] for i in order), key=lambda group: strata[group[0]])
    labels = [_all_labels([examples[i] for i in group], task) for group in shuffled]
    reserved = _reserved(labels, np.flatnonzero(shares > 0).tolist()) if every_label else {}
    sides = np.zeros(len(examples), np.int64)
    counts = np.zeros(len(shares))
    # Groups of one stratum follow each other, so each set gets its fraction of every stratum.
    for number, group in enumerate(shuffled):
        wanted = shares * (counts.sum() + len(group))
        # -inf: a set with the fraction 0 gets nothing, even where all others have enough.
        deficits = np.where(shares > 0, wanted - counts, -np.inf)
        side = reserved.get(number, int(deficits.argmax()))
        sides[group] = side
        counts[side] += len(group)
    return sides


def _reserved(labels: Sequence[set[str]], sides: Sequence[int]) -> dict[int, int]:
    """Groups that are assigned to a certain set, from the labels of each group: {group: set}.

    Every label has a group in the first set, and in every set if it has `EVERYWHERE` groups or
    more.
    """
    groups_of: defaultdict[str, list[int]] = defaultdict(list)
    for number, of_group in enumerate(labels):
        for label in sorted(of_group):
            groups_of[label].append(number)
    sets: dict[int, int] = {}
    # Rare labels first: they have the fewest groups to choose from.
    for groups in sorted(groups_of.values(), key=len):
        # A group with several labels may have been assigned for a rarer one: its set counts.
        free = iter([number for number in groups if number not in sets])
        has = {sets[number] for number in groups if number in sets}
        for side in sides if len(groups) >= EVERYWHERE else sides[:1]:
            # Without a free group, the first set takes one from another set.
            last = groups[0] if side == sides[0] else None
            if side not in has and (group := next(free, last)) is not None:
                sets[group] = side
    return sets


def _connected_groups(
    examples: Sequence[Example], task: Any, shares: npt.NDArray[np.float64]
) -> list[list[int]]:
    """Indices of the examples that share keys, directly or through others, in the data's order."""
    groups = _components([task.labelling.split_keys(example) for example in examples])
    # If nearly all examples are connected, one set would get less than its fraction. Then only
    # examples with equal texts are grouped.
    smallest = shares[shares > 0].min()
    if max(map(len, groups), default=0) > (1 - smallest) * len(examples):
        return _components([[example_key(example.texts)] for example in examples])
    return groups


def _components(keys: Sequence[Sequence[bytes]]) -> list[list[int]]:
    """Connected components: indices of items that share keys, directly or through others."""
    from scipy.cluster.hierarchy import DisjointSet

    components = DisjointSet(range(len(keys)))
    first: dict[bytes, int] = {}
    for item, of_item in enumerate(keys):
        # Each item joins the first one with the same key, so no pairs of items are needed.
        for key in of_item:
            components.merge(first.setdefault(key, item), item)
    return [sorted(component) for component in components.subsets()]


def number_strata(numbers: Sequence[float]) -> list[int]:
    """The quantile of each number, from 0 to `QUANTILES` − 1."""
    array = np.array(numbers, np.float64)
    bounds = np.quantile(array, np.linspace(0, 1, QUANTILES + 1)[1:-1])
    return np.searchsorted(bounds, array).tolist()


def _all_labels(examples: Iterable[Example], task: Any) -> set[str]:
    """The labels of examples."""
    return {label for example in examples for label in task.labelling.labels_in(example.label)}
