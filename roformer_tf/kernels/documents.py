"""Who sees whom in a packed row, by numbers of each token instead of a bit for each pair.

A mask (B, T, T) is read again by every head of every layer. JAX's kernel for GPUs takes a number
for each token instead (`flash.attend_in_segments`).
"""

from typing import NamedTuple

from roformer_tf.kernels.forms import Tensor


class PackedMask(NamedTuple):
    """Which tokens see each other: where ids are equal and not 0, and the key's rank no higher.

    ids (B, T) int, 0 for padding; ranks the same or (1, T). Ranks order the tokens of a document,
    such as by their place: then each sees what is up to it. Without ranks all see all.
    """

    ids: Tensor
    ranks: Tensor | None = None

    def mask(self) -> Tensor:
        """The same as one bit for each pair: (B, T, T) bool, query before key."""
        query, key = self.ids[:, :, None], self.ids[:, None, :]
        # Of equal ids one is 0 only if both are: asking the key alone hides padding from everyone.
        same = (query == key) & (key != 0)
        if self.ranks is None:
            return same
        return same & (self.ranks[:, None, :] <= self.ranks[:, :, None])
