"""Documents that repeat an earlier document of the corpus, exactly or nearly.

Each document has a mark, a function of its text, which any worker can compute. One process compares
the marks in the order of the documents, so the result does not depend on the workers.

    exact    16 bytes, equal for texts that differ only in white space and width (NFKC)
    near     a MinHash signature of 128 numbers. The expected fraction of equal numbers is the
             Jaccard similarity of the texts' sets of five characters in a row (Broder 1997)
"""

import unicodedata
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Literal

import numpy as np
import numpy.typing as npt

from roformer_tf.errors import check_packages
from roformer_tf.readers.records import text_key

# Which documents are skipped because of an earlier one: none, equal ones, or similar ones too.
DuplicatePolicy = Literal["keep", "exact", "near"]

SHINGLE = 5  # characters in a row: two to three words of Chinese
PERMUTATIONS = 128  # numbers of a signature; similarities are estimated to ± 0.04 (at 0.8)
RECALL = 0.95  # of pairs whose similarity is exactly the threshold
_BLOCK = 4096  # shingles at a time, which take 2 MB


def exact_marks(texts: Iterable[str | None]) -> list[bytes | None]:
    """Marks that equal documents share; None for a document that is skipped."""
    return [text_key([text]) if text is not None else None for text in texts]


def near_marks(texts: Iterable[str | None]) -> list[bytes | None]:
    """Marks from which the similarity of documents is estimated; None for a skipped document.

    The i-th number of a signature is the minimum of a[i] · h + b[i] mod 2^32 over the hashes h of
    the shingles: as a[i] is odd, a random permutation of all hashes.
    """
    # On one core, 3.1 million characters a second for texts of 1,000 Chinese characters, half of
    # the time in NFKC. datasketch's update_batch, which processes single hashes, has 1.8 million.
    rng = np.random.default_rng(0)  # the same in every worker
    factors = rng.integers(2**63, size=SHINGLE, dtype=np.uint64) * 2 + 1
    a, b = rng.integers(2**32, size=(2, PERMUTATIONS, 1), dtype=np.uint32)
    a |= 1

    def mark(text: str) -> bytes:
        hashes = _shingle_hashes(text, factors)
        blocks = (hashes[start : start + _BLOCK] for start in range(0, len(hashes), _BLOCK))
        # (128, 1) · (block,) + (128, 1) → (128, block) uint32, whose overflow is the modulo 2^32.
        lowest = reduce(np.minimum, ((a * block + b).min(axis=1) for block in blocks))
        return lowest.astype("<u4").tobytes()

    return [mark(text) if text is not None else None for text in texts]


def find_exact() -> Callable[[bytes], bool]:
    """A function that is called with one mark after another: whether it occurred before.

    It needs about 100 bytes of memory for each different document.
    """
    seen: set[bytes] = set()

    def is_repeated(mark: bytes) -> bool:
        # One look-up of the mark instead of two: the size grows only for a new one.
        known = len(seen)
        seen.add(mark)
        return len(seen) == known

    return is_repeated


def find_near(similarity: float) -> Callable[[bytes], bool]:
    """A function that is called with one mark after another: whether a kept one is similar.

    Candidates are marks with an equal band of numbers; their similarity is estimated. Each kept
    document needs about 7 kB of memory at a similarity of 0.8, and more at a lower one. Raises
    InputError if datasketch is not installed.
    """
    # 0.1 ms for each document, in the one process that compares all of them.
    otherwise = "give --duplicates exact"
    check_packages("--duplicates", "duplicates", "datasketch", otherwise=otherwise)
    from datasketch import LeanMinHash, MinHashLSH

    index = MinHashLSH(num_perm=PERMUTATIONS, params=bands(similarity))
    kept: list[LeanMinHash] = []

    def is_repeated(mark: bytes) -> bool:
        numbers = np.frombuffer(mark, "<u4")
        signature = LeanMinHash(seed=0, hashvalues=numbers, scheme="affine32")
        if any(signature.jaccard(kept[number]) >= similarity for number in index.query(signature)):
            return True
        # A skipped document is not in the index. If A ~ B and B ~ C, but A and C differ, C is kept.
        index.insert(len(kept), signature, check_duplication=False)
        kept.append(signature)
        return False

    return is_repeated


def bands(similarity: float) -> tuple[int, int]:
    """The number of bands to compare, and their size: the fewest with a recall of `RECALL`.

    A band of r numbers is equal in a fraction s^r of the pairs with similarity s. At least one of b
    bands is equal in 1 - (1 - s^r)^b of them.

    >>> bands(0.8)
    (18, 7)
    """
    # From long bands to short ones: longer ones are equal by chance less often, so there are fewer
    # candidates to compare, but they also miss more similar pairs.
    choices = [(PERMUTATIONS // size, size) for size in range(PERMUTATIONS // 2, 0, -1)]
    recalls = [1 - (1 - similarity**size) ** count for count, size in choices]
    return next((choices[i] for i, recall in enumerate(recalls) if recall >= RECALL), choices[-1])


def _shingle_hashes(text: str, factors: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Hash every `SHINGLE` characters in a row, at least one: (shingles,).

    The upper half of the sum of products with random odd `factors` (SHINGLE,), modulo 2^64, which
    is a universal hash (Dietzfelbinger 1996). A shorter text is filled up with zeros.
    """
    plain = "".join(unicodedata.normalize("NFKC", text).split())
    # UTF-32 has one number for each character, also for half of an emoji ("\ud83d" in JSON).
    filled = plain.ljust(SHINGLE, "\0").encode("utf-32-le", "surrogatepass")
    characters = np.frombuffer(filled, "<u4").astype(np.uint64)
    count = len(characters) - SHINGLE + 1
    sums = sum(factor * characters[i : i + count] for i, factor in enumerate(factors))
    return (sums >> np.uint64(32)).astype(np.uint32)
