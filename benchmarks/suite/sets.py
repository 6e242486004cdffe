"""Find the files of the suite's sets, in our layout or in clones of their repositories.

Our layout is FOLDER/tnews/{train,valid,test}.tsv.gz and so on. Files of clones of FewCLUE
(datasets/tnews/train_few_all.json) and OCNLI (data/ocnli/train.10k.json) are converted to
OUTPUT/data/NAME/{train,valid,test}.jsonl with columns that `finetune` reads. Files of a clone of
CMRC 2018 (squad-style-data/) are read directly.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import find_layout, read_examples
from roformer_tf.labelled.splits import Duplicates
from roformer_tf.tasks.table import TASKS

Kind: TypeAlias = Literal["labels", "tags", "answers", "cloze", "search"]
Row: TypeAlias = Mapping[str, Any]

SPLITS = ("train", "valid", "test")
# Files of a clone of CMRC 2018, for train, valid and test.
CMRC_FILES = ("cmrc2018_train.json", "cmrc2018_trial.json", "cmrc2018_dev.json")
FEWCLUE_FILES = ("train_few_all.json", "dev_few_all.json", "test_public.json")
# Marks the gap of a cloze.
GAP = "#idiom#"
FEW_REVIEWS = 2_700
# Fraction of OCNLI's training premises that become the validation set.
OCNLI_VALID = 0.055


class Source(NamedTuple):
    """Location of a set in our layout."""

    kind: Kind
    folder: str
    """Name of its folder."""
    ending: str = "tsv.gz"
    test: str = "test"
    rows: int | None = None
    """Use only the first rows of the training set."""


SOURCES: Mapping[str, Source] = {
    "tnews": Source("labels", "tnews"),
    "iflytek": Source("labels", "iflytek"),
    "eprstmt": Source("labels", "eprstmt"),
    "reviews-2700": Source("labels", "sentiment", test="test_unseen", rows=FEW_REVIEWS),
    "reviews": Source("labels", "sentiment", test="test_unseen"),
    "bustm": Source("labels", "bustm"),
    "csl": Source("labels", "csl"),
    "ocnli": Source("labels", "ocnli"),
    "multilabel": Source("labels", "multilabel"),
    "ner": Source("tags", "ner", "conll.gz"),
    "cmrc": Source("answers", "cmrc", "jsonl.gz"),
    "chid": Source("cloze", "chid", "jsonl.gz"),
    "search": Source("search", "search"),
}

# Functions that convert a row of FewCLUE to the columns that `finetune` reads.
FEWCLUE: Mapping[str, Callable[[Row], Row]] = {
    "tnews": lambda row: {"text": row["sentence"], "label": row["label_desc"]},
    "iflytek": lambda row: {"text": row["sentence"], "label": row["label_des"]},
    "eprstmt": lambda row: {"text": row["sentence"], "label": row["label"]},
    "bustm": lambda row: _pair(row["sentence1"], row["sentence2"], row["label"]),
    "csl": lambda row: _pair("；".join(row["keyword"]), row["abst"], row["label"]),
    "chid": lambda row: {
        "text": row["content"],
        "choices": row["candidates"],
        "label": row["answer"],
    },
}


class SuiteSet(NamedTuple):
    """A set of the suite with its files."""

    name: str
    kind: Kind
    paths: Mapping[str, Path]
    """Files of train, valid and test; for search only "test", the folder."""


class Labelled(NamedTuple):
    """The examples of a set; `test` has only those with unseen texts."""

    train: list[Example]
    valid: list[Example]
    test: list[Example]


def find_set(name: str, folders: Sequence[Path], output: Path) -> SuiteSet | None:
    """Return a set from the first folder that has it, with files converted under `output`."""
    source = SOURCES[name]
    for folder in folders:
        ours = folder / source.folder
        if source.kind == "search" and (ours / "documents.jsonl.gz").exists():
            return SuiteSet(name, source.kind, {"test": ours})
        paths = {
            split: ours / f"{source.test if split == 'test' else split}.{source.ending}"
            for split in SPLITS
        }
        if all(path.exists() for path in paths.values()):
            if source.rows:
                paths["train"] = _first_rows(paths["train"], source.rows, output / "data" / name)
            return SuiteSet(name, source.kind, paths)
        for clone in (folder, folder / "cmrc2018"):
            files = [clone / "squad-style-data" / file for file in CMRC_FILES]
            if source.kind == "answers" and all(path.exists() for path in files):
                return SuiteSet(name, source.kind, dict(zip(SPLITS, files, strict=True)))
        if rows := _read_clone(name, folder):
            return SuiteSet(name, source.kind, _write_splits(rows, output / "data" / name))
    return None


def read_labelled(test_set: SuiteSet) -> Labelled:
    """Read the examples like `finetune`, and drop test examples with seen texts."""
    columns = ColumnsConfig()
    layout = find_layout(test_set.paths["train"], columns, None, TASKS)
    sets = [read_examples(test_set.paths[split], layout, columns) for split in SPLITS]
    train, valid, test = sets
    new = Duplicates(train, test, valid).unseen
    return Labelled(train, valid, [test[number] for number in np.flatnonzero(new)])


def draw_examples(test_set: SuiteSet, count: int, seed: int, folder: Path) -> SuiteSet:
    """Return the set with `count` random training rows of each label and no validation set.

    Raises InputError if a row does not have exactly one label, or a label has too few rows.
    """
    by_label: dict[str, list[Row]] = {}
    for example in read_labelled(test_set).train:
        if not isinstance(example.label, str):
            raise InputError(f"--examples: {test_set.name} has other than one label for each row.")
        first, *rest = example.texts
        row = {"text_a": first, "text_b": rest[0]} if rest else {"text": first}
        by_label.setdefault(example.label, []).append({**row, "label": example.label})
    rng, drawn = np.random.default_rng(seed), []
    for label, rows in sorted(by_label.items()):
        if len(rows) < count:
            raise InputError(f"--examples {count}: {test_set.name} has {len(rows)} of {label}.")
        drawn += [rows[number] for number in rng.permutation(len(rows))[:count]]
    return test_set._replace(
        paths={**_write_splits({"train": drawn}, folder), "test": test_set.paths["test"]}
    )


def read_cloze(path: Path) -> list[dict[str, Any]]:
    """Read rows with `text`, which has the gap, `choices`, and `label`, the index of a choice.

    Raises InputError for a row without a gap or with a label out of range.
    """
    rows = _json_lines(path)
    for number, row in enumerate(rows, 1):
        if GAP not in row["text"] or not 0 <= int(row["label"]) < len(row["choices"]):
            raise InputError(
                f"{path}:{number}: expected a text with {GAP}, and a label from 0 to "
                f"{len(row['choices']) - 1}, the number of a choice."
            )
    return rows


def _pair(first: str, second: str, label: str) -> Row:
    return {"text_a": first, "text_b": second, "label": label}


def _read_clone(name: str, folder: Path) -> dict[str, list[Row]] | None:
    """Return the rows of a clone: the folder itself or a subfolder with the repository's name."""
    for clone in (folder, folder / "FewCLUE", folder / "OCNLI"):
        files = [clone / "datasets" / name / file for file in FEWCLUE_FILES]
        if name in FEWCLUE and all(path.exists() for path in files):
            sets = [list(map(FEWCLUE[name], _json_lines(path))) for path in files]
            return dict(zip(SPLITS, sets, strict=True))
        ocnli = clone / "data" / "ocnli"
        if name == "ocnli" and (ocnli / "dev.json").exists():
            return _ocnli(ocnli)
    return None


def _ocnli(folder: Path) -> dict[str, list[Row]]:
    """Split OCNLI: train and valid share no premise; test is the public dev set."""
    sizes = [path for path in (folder / f"train.{n}.json" for n in ("10k", "50k")) if path.exists()]
    if not sizes:
        raise InputError(f"{folder} has neither train.10k.json nor train.50k.json. Unpack one.")
    train = _json_lines(sizes[0])
    premises = sorted({row["sentence1"] for row in train})
    chosen = np.random.default_rng(0).permutation(len(premises))
    count = max(1, round(OCNLI_VALID * len(premises)))
    valid = {premises[number] for number in chosen[:count]}
    sets = {
        "train": [row for row in train if row["sentence1"] not in valid],
        "valid": [row for row in train if row["sentence1"] in valid],
        "test": _json_lines(folder / "dev.json"),
    }
    return {split: list(_inferences(rows)) for split, rows in sets.items()}


def _inferences(rows: Iterable[Row]) -> Iterable[Row]:
    for row in rows:
        if row["label"] != "-":  # "-": the annotators disagreed
            yield _pair(row["sentence1"], row["sentence2"], row["label"])


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines, gzipped or plain. Raises InputError for invalid JSON."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    try:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise InputError(f"{path}: expected one JSON object a line: {error}.") from None


def _write_splits(sets: Mapping[str, Iterable[Row]], folder: Path) -> dict[str, Path]:
    paths = {split: folder / f"{split}.jsonl" for split in sets}
    for split, rows in sets.items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_text(paths[split], "".join(lines))
    return paths


def _first_rows(path: Path, rows: int, folder: Path) -> Path:
    """Write a file with the header and the first rows of a table."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        write_text(folder / "train.tsv", "".join(islice(lines, rows + 1)))
    return folder / "train.tsv"
