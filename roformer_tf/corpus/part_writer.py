"""A part of a corpus → shards: tokenized, packed and recorded, in any process."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from roformer_tf.corpus.documents import filtered
from roformer_tf.corpus.manifests import (
    HELD_OUT,
    PREPARE_AGAIN,
    SPLITS,
    TRAIN,
    UNFINISHED,
    hash_texts,
)
from roformer_tf.corpus.packing import Documents, pack
from roformer_tf.corpus.shards import Shard, row_dtype, write_shard
from roformer_tf.files import read_json, write_text
from roformer_tf.readers.records import text_key
from roformer_tf.tokenizers.segmentation import normalize, words_of_parts
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer


@dataclass(frozen=True)
class CorpusPart:
    """Consecutive documents of a corpus: the unit of work."""

    number: int
    corpus: str
    texts: list[str]
    bytes: int
    """Bytes that were read for it, for the progress bar."""


def is_held_out(text: str, share: float) -> bool:
    """Whether a text is held out, by its hash: no document changes its split in a growing corpus.

    Texts that count as equal (`text_key`) are in the same split.
    """
    return int.from_bytes(text_key([text])[:8], "big") < share * 2**64


def write_part(
    output: Path, tokenizer: RoFormerTokenizer, config: Any, part: CorpusPart
) -> dict[str, Any]:
    """Write the part's shards and then its record, unless they exist; return the record.

    `config`: a PreparationConfig, whose module imports this one.

    {"corpus": "news", "shards": […], "documents": {"train": 12, …}, "cut": {"train": 3, …},
    "unknown": {"train": 7, …}, "characters": {"train": 3456, …}, "short": 1,
    "repeated_lines": 2, "blake2b": …}
    """
    name = f"{part.number:05}"
    path = output / UNFINISHED / f"part-{name}.json"
    if path.is_file():
        record: dict[str, Any] = read_json(path, PREPARE_AGAIN)
        # The shards were complete before the record, but may be damaged since.
        if all(Shard(**shard).is_whole(output) for shard in record["shards"]):
            return record

    # Split first, then packed: no sequence has documents of both splits.
    texts: dict[str, list[str]] = {split: [] for split in SPLITS}
    remaining, repeated_lines = filtered(part.texts, config)
    kept = [text for text in remaining if text is not None]
    for text in kept:
        texts[HELD_OUT if is_held_out(text, config.held_out) else TRAIN].append(text)
    shards: list[dict[str, Any]] = []
    cut, unknown = dict[str, int](), dict[str, int]()
    for split in SPLITS:
        rows, cut[split], unknown[split] = _packed(texts[split], tokenizer, config)
        if len(rows):
            # Two workers of a cluster may write the same part at once: both write the same bytes,
            # under temporary names of their own.
            shard = write_shard(output, f"{split}-{name}.npy", split, rows, part.corpus)
            shards.append(asdict(shard))
    record = {
        "corpus": part.corpus,
        "shards": shards,
        "documents": {split: len(texts[split]) for split in SPLITS},
        "cut": cut,
        "unknown": unknown,
        "characters": {split: sum(map(len, texts[split])) for split in SPLITS},
        "short": remaining.count(None),
        "repeated_lines": repeated_lines,
        "blake2b": hash_texts(kept),
    }
    if path.parent.is_dir():  # removed if the job ended while this worker was suspended
        write_text(path, json.dumps(record))
    return record


def _packed(
    texts: list[str], tokenizer: RoFormerTokenizer, config: Any
) -> tuple[npt.NDArray[np.integer], int, int]:
    """Sequences of the texts, how many texts were split, and the number of unknown tokens."""
    # All documents of the part at once: packing needs many to fill sequences.
    documents = Documents(*tokenizer.ids_and_words_of(texts))
    if config.whole_words and tokenizer.tokenization == "char":
        documents = _with_whole_words(documents, texts, tokenizer.lower_case)
    rows, cut = pack(
        documents,
        config.length,
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        fill=config.fill,
        dtype=row_dtype(tokenizer.vocab_size, config.length),
    )
    return rows, cut, int(np.sum(documents.token_ids == tokenizer.unk_id))


def _with_whole_words(documents: Documents, texts: list[str], lower_case: bool) -> Documents:
    """The documents with word numbers of jieba instead of numbers of single characters."""
    # Token i belongs to character `words[i]`; here that becomes the word of the character.
    numbers: list[int] = []
    for text in texts:
        first = numbers[-1] + 1 if numbers else 0
        parts = words_of_parts(normalize(text) if lower_case else text)
        numbers += [first + word for word in parts]
    return documents._replace(words=np.array(numbers, np.int32)[documents.words])
