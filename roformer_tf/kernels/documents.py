"""Who sees whom in a packed row, told by numbers of each token instead of each pair's bit.

A mask (B, T, S) is read again by every head of every layer, and says nothing of which parts of it
are empty. Packed rows are mostly pairs of different documents: what a kernel needs is where each
token's own document begins and ends.
"""

from typing import NamedTuple

from keras import ops

from roformer_tf.kernels.forms import Tensor


class PackedMask(NamedTuple):
    """Which key a query may look at: where ids are equal and not 0, and the key's rank no higher.

    ids (B, T) or (B, S) int, ranks the same or (1, T). Ranks order the tokens of a document, such
    as by their place: then each sees what stands up to it. Without ranks all see all.
    """

    query_ids: Tensor
    query_ranks: Tensor | None
    key_ids: Tensor
    key_ranks: Tensor | None

    def mask(self) -> Tensor:
        """The same as one bit for each pair: (B, T, S) bool, query before key."""
        query, key = self.query_ids[:, :, None], self.key_ids[:, None, :]
        # Of equal ids one is 0 only if both are: asking the key alone hides padding from everyone.
        same = (query == key) & (key != 0)
        if self.query_ranks is None or self.key_ranks is None:
            return same
        return same & (self.key_ranks[:, None, :] <= self.query_ranks[:, :, None])

    def at(self, positions: Tensor) -> "PackedMask":
        """As the queries at positions (B, P) int32 alone see it."""
        ids = ops.take_along_axis(self.query_ids, positions, axis=1)
        ranks = self.query_ranks
        if ranks is not None:
            ranks = ops.broadcast_to(ranks, ops.shape(self.query_ids))
            ranks = ops.take_along_axis(ranks, positions, axis=1)
        return self._replace(query_ids=ids, query_ranks=ranks)


def documents_of(sequence_ids: Tensor, ranks: Tensor | None = None) -> PackedMask:
    """Of tokens that look at each other: sequence_ids (B, T) int, 0 for padding, and ranks."""
    return PackedMask(sequence_ids, ranks, sequence_ids, ranks)


class Ranges(NamedTuple):
    """The stretch of a row that a token's counterparts lie in: from `starts` up to before `ends`.

    (B, T) int32 each. Nothing outside is visible; inside, ids and ranks decide. A token that sees
    nothing, or that nobody sees, has the empty stretch from the row's end to 0.
    """

    starts: Tensor
    ends: Tensor


def ranges(documents: PackedMask) -> tuple[Ranges, Ranges]:
    """Of each query (B, T) the stretch of keys that it sees, of each key (B, S) that of queries.

    Documents need not lie in one piece, nor queries in order. XLA compares and reduces in one pass
    over the pairs, of which none is stored; once a step, not once a layer.
    """
    visible = documents.mask()
    return _ranges(visible, axis=2), _ranges(visible, axis=1)


def _ranges(visible: Tensor, axis: int) -> Ranges:
    size = visible.shape[axis]
    places = ops.arange(size, dtype="int32")
    places = places[None, None, :] if axis == 2 else places[None, :, None]
    starts = ops.min(ops.where(visible, places, size), axis=axis)
    return Ranges(starts, ops.max(ops.where(visible, places + 1, 0), axis=axis))
