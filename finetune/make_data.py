"""Create a data set for ranking or regression from any text.

    python finetune/make_data.py ranking --from corpus.jsonl --output triples.jsonl
    python finetune/make_data.py regression --from reviews.tsv --output damaged.jsonl

ranking: A and one of B and C are from the same document, the other one is from another document:
    {"A": "房间很大。早餐一般。", "B": "这本书写得好。", "C": "下次还住这里。", "label": "C"}
regression: the fraction of a text's characters that were replaced by random characters of the
corpus:
    {"text": "房间很大，早我一般。", "score": 0.1}
In nine of ten triples from news and reviews, A shares more characters with the nearer text.
Replaced characters show in pairs of characters, not in single ones: ridge regression on TF-IDF
correlates by 0.73 with pairs, and not at all with single characters.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import open_texts_to_predict
from roformer_tf.tasks.classification import Classification

# Minimum and maximum number of characters of a text.
SHORTEST, LONGEST = 10, 200

# Largest fraction of replaced characters.
MAX_DAMAGE = 0.5

# Column → text, label or score.
Record: TypeAlias = dict[str, Any]

_SENTENCE = re.compile(r".+?(?:[。！？；!?;\n]+|$)", re.DOTALL)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; return the exit code."""
    flags = _flags(arguments)
    try:
        texts = list(dict.fromkeys(read_texts(flags.source, flags.column)))
        make = make_triples if flags.task == "ranking" else make_damaged
        examples = make(texts, flags.examples, flags.seed)
        write_json_lines(flags.output, examples)
    except InputError as error:
        print(f"make_data.py: {error}", file=sys.stderr)
        return 2
    print(f"{len(examples):,} examples in {flags.output}")
    return 0


def read_texts(files: Iterable[str], column: str) -> Iterator[str]:
    """The texts of one column of every file, or the lines of a .txt file, each in one line."""
    task = Classification(text_columns=(column,))
    for file in files:
        for example in open_texts_to_predict(file, task, ColumnsConfig()).examples:
            if isinstance(example, Example):
                yield " ".join(example.texts[0].split())


def make_triples(texts: Sequence[str], count: int, seed: int) -> list[Record]:
    """Split each of `count` documents into A and the nearer text; the other is from the next one.

    Raises InputError if there are too few documents of two sentences.
    """
    rng = np.random.default_rng(seed)
    halves = [pair for text in texts if (pair := halve(text))]
    if len(halves) < max(count, 2):
        raise InputError(
            f"only {len(halves):,} of the {len(texts):,} texts can be split into two parts of "
            f"{SHORTEST} characters, but {count:,} are needed, and at least 2. Give more --from, "
            "or fewer --examples."
        )
    chosen = [halves[i] for i in rng.permutation(len(halves)).tolist()]
    labels = rng.choice(["B", "C"], count).tolist()
    # Each document is the source of one A, one nearer and one other text: no text is frequent.
    followers = chosen[1:] + chosen[:1]
    return [
        triple(a, near, far, label)
        for label, (a, near), (_, far) in zip(labels, chosen, followers, strict=False)
    ]


def triple(a: str, near: str, far: str, label: str) -> Record:
    """B and C in the order of the label."""
    b, c = (near, far) if label == "B" else (far, near)
    return {"A": a, "B": b, "C": c, "label": label}


def halve(text: str) -> tuple[str, str] | None:
    """Split a text at the end of a sentence near its middle; None if it is too short."""
    text = text[: 2 * LONGEST]
    ends = np.array([match.end() for match in _SENTENCE.finditer(text)])
    ends = ends[(ends >= SHORTEST) & (ends <= len(text) - SHORTEST)]
    if not len(ends):
        return None
    end = int(ends[np.abs(ends - len(text) / 2).argmin()])
    return text[:end].strip(), text[end:].strip()


def make_damaged(texts: Sequence[str], count: int, seed: int) -> list[Record]:
    """Replace a random fraction of the characters of `count` texts; the score is that fraction.

    Raises InputError if there are too few texts.
    """
    rng = np.random.default_rng(seed)
    long_enough = [text[:LONGEST] for text in texts if len(text.strip()) >= SHORTEST]
    if len(long_enough) < count:
        raise InputError(
            f"only {len(long_enough):,} texts have {SHORTEST} characters, but {count:,} are "
            "needed. Give more --from, or fewer --examples."
        )
    # With repetitions, so that replacements have the frequencies of the corpus.
    characters = list("".join(long_enough))
    chosen = rng.permutation(len(long_enough))[:count].tolist()
    return [damaged(long_enough[i], characters, rng) for i in chosen]


def damaged(text: str, characters: Sequence[str], rng: np.random.Generator) -> Record:
    """Replace a fraction of a text's characters, uniform between 0 and `MAX_DAMAGE`."""
    new = list(text)
    number = round(rng.uniform(0, MAX_DAMAGE) * len(text))
    for position in rng.permutation(len(text))[:number].tolist():
        new[position] = characters[int(rng.integers(len(characters)))]
    # A replacement may be the same character, so the difference is counted.
    changed = sum(old != now for old, now in zip(text, new, strict=True))
    return {"text": "".join(new), "score": round(changed / len(text), 4)}


def write_json_lines(target: str, records: Iterable[Record]) -> None:
    """Write one JSON object per line; a failure leaves no file."""
    with (
        temporary_file(target) as partial,
        partial.open("w", encoding="utf-8", newline="\n") as out,
    ):
        for record in records:
            out.write(json.dumps(record, ensure_ascii=False) + "\n")


def _flags(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("task", choices=["ranking", "regression"])
    parser.add_argument("--from", dest="source", nargs="+", required=True, metavar="FILE",
                        help="txt, tsv, csv, jsonl, parquet or xlsx")  # fmt: skip
    parser.add_argument("--column", default="text", help="name of the texts' column")
    parser.add_argument("--output", required=True, help="a .jsonl file to write")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(arguments)
    if not flags.output.endswith(".jsonl"):
        parser.error(f"--output is {flags.output}, but must be a .jsonl file")
    if flags.examples < 1 or flags.seed < 0:
        parser.error("--examples must be at least 1 and --seed at least 0")
    return flags


if __name__ == "__main__":
    sys.exit(main())
