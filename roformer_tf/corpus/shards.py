"""Sequences (rows) on disk: `.npy` files, written atomically, with random access by memory map.

A shard is one array (rows, 3, length), channels as in `packing`, of the smallest unsigned
integer type for the vocabulary and the length. `manifest.json` lists the shards and is written
last: a folder without it is not prepared.
"""

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roformer_tf.checkpoints.archives import VOCABULARY
from roformer_tf.corpus.packing import DOCUMENT
from roformer_tf.errors import InputError
from roformer_tf.files import hash_file, json_object, temporary_file
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

MANIFEST = "manifest.json"
OPEN_MAPS = 256  # each needs a file descriptor, and a process often has only 1,024


@dataclass(frozen=True)
class Shard:
    """A shard's entry in the manifest."""

    file: str
    """Name of the file in the folder."""
    split: str
    """ "train" or "held_out"."""
    rows: int
    tokens: int
    """Positions that are not padding."""
    bytes: int
    blake2b: str
    """Hash of the file."""
    corpus: str = ""
    """Name of the corpus of all its rows; "" for one without a name."""

    def is_whole(self, folder: Path) -> bool:
        """Whether the file exists, byte for byte."""
        path = folder / self.file
        return path.is_file() and hash_file(path) == self.blake2b


def row_dtype(vocab_size: int, length: int) -> np.dtype[np.unsignedinteger[Any]]:
    """The smallest unsigned type for every token id and every number in a row."""
    return np.min_scalar_type(max(vocab_size - 1, length))


def write_shard(
    folder: Path, file: str, split: str, rows: npt.NDArray[np.integer], corpus: str = ""
) -> Shard:
    """Write rows (rows, 3, length) to `folder/file`, and describe the shard."""
    with temporary_file(folder / file) as temporary:
        # An open file, because np.save would append .npy to the temporary name.
        with temporary.open("wb") as handle:
            np.save(handle, rows, allow_pickle=False)
        digest, size = hash_file(temporary), temporary.stat().st_size
    tokens = int(np.count_nonzero(rows[:, DOCUMENT]))
    return Shard(file, split, len(rows), tokens, size, digest, corpus)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Read the manifest of a finished preparation. Raises InputError if it is missing."""
    path = Path(folder) / MANIFEST
    try:
        content = path.read_bytes()
    except OSError:
        raise InputError(
            f"{folder} holds no prepared rows: there is no {MANIFEST}, which is written last. "
            "Run `roformer-tf prepare` (again, if it was interrupted)."
        ) from None
    advice = f"Delete {folder} and prepare again."
    manifest = json_object(content, path, advice)
    if not {"shards", "length", "splits"} <= manifest.keys():
        raise InputError(f"{path} is no manifest of prepared rows. {advice}")
    return manifest


def open_vocabulary(folder: Path) -> RoFormerTokenizer:
    """The tokenizer of a finished folder. Raises InputError if its vocabulary has changed."""
    tokenizer = RoFormerTokenizer.from_pretrained(folder)
    if read_manifest(folder).get("vocabulary") != hash_json(tokenizer.vocabulary):
        raise InputError(
            f"{folder / VOCABULARY} is not the vocabulary of the sequences next to it. Put that "
            "file back, or prepare the corpus again."
        )
    return tokenizer


def hash_json(value: Mapping[str, Any]) -> str:
    """Hash a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class PreparedRows:
    """The rows of one split of a prepared folder, by number: a random-access source for grain.

    `len(rows)` and `rows[i]` → (3, length), read-only, without loading the rest. Picklable; the
    other process opens the folder itself.
    """

    def __init__(self, folder: Path, split: str, length: int, shards: Sequence[Shard]) -> None:
        """Read the headers of the shards; `open` is the usual way to create one."""
        self.folder = folder
        self.split = split
        self.length = length
        self._shards = shards
        self._stops = list(accumulate(shard.rows for shard in shards))
        self._headers = [_header(folder / shard.file, shard, length) for shard in shards]
        # A cache of this object. One on the method would keep every object, and its maps, alive.
        self._rows_of = lru_cache(OPEN_MAPS)(self._open_map)

    @classmethod
    def open(cls, folder: str | Path, split: str = "train") -> "PreparedRows":
        """Open a split of what `prepare` wrote, "train" or "held_out"; it may have no rows.

        Raises InputError for a folder without a manifest, and for a shard that is missing or has
        changed its size or shape.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        shards = [Shard(**entry) for entry in manifest["shards"] if entry["split"] == split]
        return cls(folder, split, manifest["length"], shards)

    @property
    def corpora(self) -> dict[str, int]:
        """Rows of each corpus that has some, by its name, in the order in which they are stored."""
        counts: Counter[str] = Counter()  # which keeps the order
        for shard in self._shards:
            counts[shard.corpus] += shard.rows
        return dict(counts)

    def __len__(self) -> int:
        return self._stops[-1] if self._stops else 0

    def __getitem__(self, index: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        shard = bisect_right(self._stops, index)
        return self._rows_of(shard)[index - self._stops[shard]]  # counted from the shard's end

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).open, (self.folder, self.split)

    def _open_map(self, number: int) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Map shard `number` into memory: (rows, 3, length)."""
        shard, (dtype, begin) = self._shards[number], self._headers[number]
        shape = (shard.rows, 3, self.length)
        rows = np.memmap(self.folder / shard.file, dtype, "r", begin, shape)
        return np.asarray(rows)  # a plain view of the map: np.memmap's own slices are slow


def _header(path: Path, shard: Shard, length: int) -> tuple[np.dtype[Any], int]:
    """Dtype of a shard, and the byte where its rows begin; InputError if the shard has changed."""
    # Once, not whenever the shard is mapped: NumPy parses the header as Python. Before 3.11.8 two
    # threads must not parse at the same time (CPython issue 106905), and TensorFlow may do so.
    if not path.is_file():
        raise _damaged(path, "it is missing")
    if (size := path.stat().st_size) != shard.bytes:
        raise _damaged(path, f"it has {size:,} bytes instead of {shard.bytes:,}")
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise _damaged(path, str(error)) from None
    if rows.shape != (shard.rows, 3, length):
        raise _damaged(path, f"it holds an array of shape {rows.shape}")
    return rows.dtype, rows.offset


def _damaged(path: Path, what: str) -> InputError:
    """An error for a damaged shard."""
    return InputError(
        f"the shard {path} is not as it was written: {what}. "
        f"Copy the folder again, or delete {path.parent} and prepare again."
    )
