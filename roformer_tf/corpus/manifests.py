"""The folder that `prepare` writes: its manifest, and its state (begun, finished, or neither).

Nothing in a manifest depends on the time, the machine or the number of workers.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from roformer_tf.checkpoints.archives import TOKENIZER, TOKENIZER_CONFIG, VOCABULARY
from roformer_tf.corpus.documents import CorpusReport
from roformer_tf.corpus.shards import MANIFEST, PreparedRows, hash_json, read_manifest
from roformer_tf.errors import InputError
from roformer_tf.files import (
    LOCK,
    leftovers,
    read_json,
    remove,
    sweep,
    temporary_folder,
    write_text,
)
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message, Translator

TRAIN, HELD_OUT = SPLITS = ("train", "held_out")
# Folder of the settings and the records of parts, until the manifest is written.
UNFINISHED = "unfinished"
PREPARE_AGAIN = "Remove the output folder, and prepare again."
SHOWN_FILES = 5  # changed files that a message lists
# What a manifest has of each split, in addition to rows and tokens.
COUNTS = ("documents", "cut", "unknown", "characters")


def make_manifest(
    records: list[dict[str, Any]],
    repeated: Sequence[Sequence[int]],
    report: CorpusReport,
    settings: dict[str, Any],
    tokenizer: RoFormerTokenizer,
) -> dict[str, Any]:
    """The content of the manifest of a finished folder."""
    shards = [shard for record in records for shard in record["shards"]]
    splits = {
        split: _sums(shard for shard in shards if shard["split"] == split)
        | {of: sum(x[of][split] for x in records) for of in COUNTS}
        for split in SPLITS
    }
    sums = _sums(shards)
    return {
        **sums,
        "utilization": sums["tokens"] / max(1, sums["rows"] * settings["length"]),
        "length": settings["length"],
        "tokenization": tokenizer.tokenization,
        "lower_case": tokenizer.lower_case,
        "vocab_size": tokenizer.vocab_size,
        "vocabulary": hash_json(tokenizer.vocabulary),
        "splits": splits,
        "corpora": _corpora(records, settings["files"]),
        "left_out": {
            "short": sum(record["short"] for record in records),
            "duplicates": sum(map(len, repeated)),
            "repeated_lines": sum(record["repeated_lines"] for record in records),
        },
        "bad_lines": dict(sorted(report.bad.items())),
        # `pretrain` stores it in checkpoints, and refuses to resume on rows with another one.
        "fingerprint": hash_json(settings),
        "settings": settings,
        "shards": shards,
    }


def _sums(shards: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Rows and tokens of shards together."""
    own = list(shards)
    return {key: sum(shard[key] for shard in own) for key in ("rows", "tokens")}


def _corpora(
    records: list[dict[str, Any]], files: Iterable[Sequence[Any]]
) -> dict[str, dict[str, Any]]:
    """Describe each corpus, held-out rows included; "blake2b" is a hash of all its texts."""
    # An entry of the setting `files` is [corpus, name, size, stamp].
    counts = Counter(corpus for corpus, *_ in files)  # in the order of the corpora
    described = {}
    for corpus, count in counts.items():
        own = [record for record in records if record["corpus"] == corpus]
        described[corpus] = {
            "files": count,
            **{of: sum(sum(record[of].values()) for record in own) for of in COUNTS},
            **_sums(shard for record in own for shard in record["shards"]),
            "blake2b": hash_texts(record["blake2b"] for record in own),
        }
    return described


def skipped(manifest: Mapping[str, Any]) -> list[str]:
    """A line about documents that the settings exclude; none without such documents."""
    kinds = {
        "short": f"documents under {manifest['settings']['min_characters']} characters",
        "duplicates": "duplicates",
        "repeated_lines": "repeated lines",
    }
    counts = manifest["left_out"]
    details = ", ".join(f"{counts[kind]:,} {name}" for kind, name in kinds.items() if counts[kind])
    return [f"skipped: {details}"] if details else []


def summary(manifest: Mapping[str, Any]) -> str:
    """The content of a folder, in one line."""
    # Sums over the splits.
    counts: Counter[str] = sum(map(Counter, manifest["splits"].values()), Counter())
    return Message(
        "{rows:,} sequences of {length} tokens ({held_out:,} held out), {tokens:,} tokens, "
        "{used:.1%} of the positions used, {cut:.1%} of the documents cut, {unknown:.1%} of the "
        "tokens unknown",
        rows=manifest["rows"],
        length=manifest["length"],
        held_out=manifest["splits"][HELD_OUT]["rows"],
        tokens=manifest["tokens"],
        used=manifest["utilization"],
        cut=counts["cut"] / counts["documents"],
        unknown=counts["unknown"] / manifest["tokens"],
    )


def hash_texts(texts: Iterable[str]) -> str:
    """Hash texts in their order, each after its length, so that boundaries count."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()


# The state of an output folder


def is_finished(output: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the folder holds this preparation, finished.

    Raises InputError, without any change, if it was begun with other settings, or if it holds
    anything else.
    """
    # A finished folder has its settings in the manifest, an unfinished one in a file of its own.
    unfinished = output / UNFINISHED / "settings.json"
    if (output / MANIFEST).is_file():
        _check_same(output, read_manifest(output)["settings"], settings)
        # The manifest is written last, but a copy of the folder may lack shards.
        for split in SPLITS:
            PreparedRows.open(output, split)  # raises for shards that are missing or cut off
        return True
    if unfinished.is_file():
        _check_same(output, read_json(unfinished, PREPARE_AGAIN), settings)
    # Temporary files of a killed process and a lock file do not count as other content.
    elif output.exists() and (
        not output.is_dir() or set(output.iterdir()) - leftovers(output) - {output / LOCK}
    ):
        raise InputError(
            f"{output} exists and holds something else than prepared rows. "
            "Choose another output, or remove it."
        )
    return False


def _check_same(output: Path, known: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise InputError that lists the differences, unless the settings are equal."""
    changes = [key for key in sorted({*known, *now}) if known.get(key) != now.get(key)]
    if not changes:
        return
    details = {key: f"{key} ({known.get(key)} then, {now.get(key)} now)" for key in changes}
    if "vocabulary" in changes:  # hashes mean nothing to the user
        details["vocabulary"] = "vocabulary"
    advice = "Choose another output, or remove it to prepare again."
    if "files" in changes:
        details["files"] = f"files ({_changed_files(known['files'], now['files'])})"
        if (output / MANIFEST).is_file():
            advice += (
                " To continue a run, restore the files, or train on the prepared data: "
                f"--rows {output} instead of --corpus."
            )
    raise InputError(
        f"{output} was prepared from other inputs or settings; what differs: "
        f"{', '.join(details.values())}. {advice}"
    )


def _changed_files(known: Iterable[Sequence[Any]], now: Iterable[Sequence[Any]]) -> str:
    """The first files that differ: "a.txt has changed, b.txt is missing, c.txt is new"."""
    before, after = ({tuple(file) for file in files} for files in (known, now))
    if before != after and {file[1:] for file in before} == {file[1:] for file in after}:
        return "the same files, but other names of corpora, as in news=a.txt"
    # By name: a file with another content is in both differences.
    missing = {name for _, name, *_ in before - after}
    new = {name for _, name, *_ in after - before}
    changes = [
        *(f"{name} has changed" for name in sorted(missing & new)),
        *(f"{name} is missing" for name in sorted(missing - new)),
        *(f"{name} is new" for name in sorted(new - missing)),
    ]
    return Translator("en").listing(changes, SHOWN_FILES) or "they are in another order"


def claim(output: Path, settings: Mapping[str, Any]) -> None:
    """Create the folder and store the settings; remove temporary files of a killed run."""
    output.mkdir(parents=True, exist_ok=True)
    for folder in (output, output / UNFINISHED):
        sweep(folder)
    if not (output / UNFINISHED).is_dir():
        # Folder and settings appear together, by one rename: never one without the other.
        with temporary_folder(output / UNFINISHED) as folder:
            write_text(folder / "settings.json", json.dumps(settings))


def remove_unfinished(output: Path) -> None:
    """Remove all that only an unfinished preparation needs, if the folder is not read-only."""
    with suppress(OSError):  # also if another process does the same
        remove(output / UNFINISHED)
        sweep(output)


def discard(output: Path) -> None:
    """Remove everything that this preparation wrote; the lock then removes an empty folder."""
    remove_unfinished(output)
    shards = (f"{split}-*.npy" for split in SPLITS)
    for pattern in (VOCABULARY, TOKENIZER, TOKENIZER_CONFIG, *shards):
        for path in output.glob(pattern):
            path.unlink()
