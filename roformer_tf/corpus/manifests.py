"""What `prepare` says of a finished folder: its manifest, and a line for the user.

Nothing in a manifest depends on time, place or the number of workers.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roformer_tf.corpus.documents import CorpusReport
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

TRAIN, HELD_OUT = SPLITS = ("train", "held_out")


def make_manifest(
    records: list[dict[str, Any]],
    repeated: Sequence[Sequence[int]],
    report: CorpusReport,
    settings: dict[str, Any],
    tokenizer: RoFormerTokenizer,
) -> dict[str, Any]:
    """Describe the finished folder. Nothing in it depends on time, place or number of workers."""
    shards = [shard for record in records for shard in record["shards"]]
    splits = {
        split: {
            "rows": sum(shard["rows"] for shard in shards if shard["split"] == split),
            "tokens": sum(shard["tokens"] for shard in shards if shard["split"] == split),
        }
        | {
            of: sum(record[of][split] for record in records)
            for of in ("documents", "cut", "characters")
        }
        for split in SPLITS
    }
    rows = sum(split["rows"] for split in splits.values())
    tokens = sum(split["tokens"] for split in splits.values())
    return {
        "rows": rows,
        "tokens": tokens,
        "utilization": tokens / max(1, rows * settings["length"]),
        "length": settings["length"],
        "tokenization": tokenizer.tokenization,
        "lower_case": tokenizer.lower_case,
        "vocab_size": tokenizer.vocab_size,
        "splits": splits,
        "corpora": _corpora(records, settings["files"]),
        "left_out": {
            "short": sum(record["short"] for record in records),
            "duplicates": sum(map(len, repeated)),
            "repeated_lines": sum(record["repeated_lines"] for record in records),
        },
        "bad_lines": dict(sorted(report.bad.items())),
        "fingerprint": hash_json(settings),
        "settings": settings,
        "shards": shards,
    }


def _corpora(
    records: list[dict[str, Any]], files: Iterable[Sequence[Any]]
) -> dict[str, dict[str, Any]]:
    """Describe each corpus, held-out rows included; "blake2b" is a hash of all its texts."""
    counts = Counter(corpus for corpus, *_ in files)  # in the order of the corpora
    described = {}
    for corpus, count in counts.items():
        own = [record for record in records if record["corpus"] == corpus]
        shards = [shard for record in own for shard in record["shards"]]
        described[corpus] = {
            "files": count,
            "documents": sum(sum(record["documents"].values()) for record in own),
            "characters": sum(sum(record["characters"].values()) for record in own),
            "rows": sum(shard["rows"] for shard in shards),
            "tokens": sum(shard["tokens"] for shard in shards),
            "blake2b": hash_texts(record["blake2b"] for record in own),
        }
    return described


def skipped(manifest: Mapping[str, Any]) -> list[str]:
    """Say in one line what was skipped on demand; no line if that is nothing."""
    kinds = {
        "short": f"documents under {manifest['settings']['min_characters']} characters",
        "duplicates": "duplicates",
        "repeated_lines": "repeated lines",
    }
    counts = manifest["left_out"]
    told = ", ".join(f"{counts[kind]:,} {name}" for kind, name in kinds.items() if counts[kind])
    return [f"left out: {told}"] if told else []


def summary(manifest: Mapping[str, Any]) -> str:
    """Say in one line what a folder holds."""
    cut, documents = (
        sum(split[of] for split in manifest["splits"].values()) for of in ("cut", "documents")
    )
    return (
        f"{manifest['rows']:,} rows of {manifest['length']} "
        f"({manifest['splits'][HELD_OUT]['rows']:,} held out), "
        f"{manifest['tokens']:,} tokens, {manifest['utilization']:.1%} of the positions used, "
        f"{cut / documents:.1%} of the documents cut"
    )


def hash_texts(texts: Iterable[str]) -> str:
    """Hash texts in their order; each begins with its length, so that none runs into the next."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()


def hash_json(value: Mapping[str, Any]) -> str:
    """Hash what JSON can hold, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
