"""The walk corpus → tokenizer → packing → shards: the body of `roformer-tf prepare`.

The corpus is cut into parts of consecutive documents, and each part becomes shards of its own,
made by one process and recorded once they are whole. So the number of processes changes not a
byte, and what was interrupted goes on behind its last whole part. A part is of one corpus. If
duplicates are to be left out, they are looked for first, in all corpora. The output folder:

    vocab.txt, tokenizer_config.json, tokenizer.json (for characters)
    train-00000.npy, held_out-00000.npy, …    the shards of part 0, …
    unfinished/settings.json, duplicates.json, part-00000.json, …
                                                    only until the manifest is written
    manifest.json                                   written last
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from roformer_tf.checkpoints.huggingface import TOKENIZER, TOKENIZER_CONFIG
from roformer_tf.checkpoints.tf1 import VOCABULARY
from roformer_tf.corpus.dask_cluster import check_cluster
from roformer_tf.corpus.deduplication import (
    DuplicatePolicy,
    check_similarity,
    exact_marks,
    find_exact,
    find_near,
    near_marks,
)
from roformer_tf.corpus.documents import (
    CorpusConfig,
    CorpusFile,
    CorpusReport,
    filtered,
    find_files,
    read_documents,
)
from roformer_tf.corpus.engines import Engine, check_engine, open_workers
from roformer_tf.corpus.manifests import (
    HELD_OUT,
    SPLITS,
    TRAIN,
    hash_json,
    hash_texts,
    make_manifest,
    skipped,
    summary,
)
from roformer_tf.corpus.packing import Documents, pack
from roformer_tf.corpus.shards import (
    MANIFEST,
    PreparedRows,
    Shard,
    read_manifest,
    row_dtype,
    write_shard,
)
from roformer_tf.corpus.workers import EngineError, in_order, in_this_process
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.files import (
    LOCK,
    folder_beside,
    leftovers,
    locked,
    read_json,
    remove,
    sweep,
    write_text,
)
from roformer_tf.readers.streams import ReadError
from roformer_tf.readers.text_key import text_key
from roformer_tf.terminal import Progress
from roformer_tf.tokenizers.segmentation import normalize, words_of_parts
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, check_length
from roformer_tf.tokenizers.vocabulary import (
    Tokenization,
    build_vocabulary,
    count_pieces,
)

FORMAT = 4  # of the folder
TOLD_FILES = 5  # that have changed
PART_CHARACTERS = 2_000_000  # about a second of work, and enough documents to fill rows well
COUNTED_WORDS = 5_000_000  # kept while counting, some hundred megabytes
UNFINISHED = "unfinished"
PREPARE_AGAIN = "Remove the output folder, and prepare again."

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class PreparationConfig(CorpusConfig):
    """What becomes of a corpus: rows of token ids in a folder, to train on again and again."""

    output: str
    """Folder to write. Run again with the same settings, it continues or finds itself done."""
    vocab: str | None = None
    """Vocabulary: a vocab.txt, a folder or a released zip that holds one. Or give --vocab-size."""
    vocab_size: int | None = None
    """Build a vocabulary of at most this many tokens from the corpus."""
    tokenization: Tokenization | None = None
    """Unset: what suits the vocabulary; "word" for one that is built."""
    lower_case: bool | None = None
    """Unset: what the vocabulary's folder says, else yes."""
    whole_words: bool = False
    """With tokenization "char", also find jieba's words, for masking to hide all characters of a
    word together. With "word" it does so anyway."""
    length: int = 512
    """Tokens in a row, with [CLS] and [SEP]."""
    fill: float = 0.99
    """Share of the rows' positions that are to be used. As few documents as that takes are cut,
    though they would fit into a row; 0 cuts none of them."""
    held_out: float = 0.01
    """Share of documents kept for evaluation. A hash of its text decides for each document, but for
    white space and width: texts that differ in these alone are on one side."""
    duplicates: DuplicatePolicy = "keep"
    """Leave out no document because of an earlier one; or those with the same text, but for white
    space and width; or those with nearly the same, too, which needs the extra [duplicates]."""
    similarity: float = 0.8
    """Share of their sequences of five characters that near duplicates have in common."""
    workers: int | None = None
    """Processes. Unset: one for each core."""
    engine: Engine = "processes"
    """Who prepares: processes of this machine, or the workers of a Dask cluster."""
    scheduler: str | None = None
    """Dask's scheduler, such as tcp://host:8786, or its scheduler file. Unset: what
    DASK_SCHEDULER_ADDRESS says."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length(self.length)
        check_similarity(self.similarity)
        if (self.vocab is None) == (self.vocab_size is None):
            raise InputError(
                "give either a vocabulary (vocab) or the size of one to build (vocab_size)."
            )
        check_numbers(self, "held_out", at_least=0, below=1)
        check_numbers(self, "fill", at_least=0, at_most=1)
        check_engine(self.engine, self.scheduler, self.workers)


@dataclass(frozen=True)
class CorpusPart:
    """Consecutive documents of a corpus: the unit of work."""

    number: int
    corpus: str
    texts: list[str]
    bytes: int
    """That reading it moved on in the files, for the progress bar."""


def prepare(config: PreparationConfig) -> Path:
    """Turn a corpus into a folder of packed rows that `PreparedRows.open` reads; return it.

    The folder is complete once it has a manifest. After an interruption the same call continues;
    once finished it returns at once. Raises InputError, and leaves nothing behind, for a corpus
    that is missing or has no documents, a wrong vocabulary and, under `strict`, a bad line; and
    without a touch for a folder that holds anything else than this preparation, that another
    command is writing into, or that cannot be written. Raises EngineError, and keeps what is
    done, if workers or their cluster fail; so does ReadError, if a file cannot be read on.
    """
    return prepare_with(config, None)


def prepare_with(config: PreparationConfig, tokenizer: RoFormerTokenizer | None) -> Path:
    """Do what `prepare` does; `tokenizer`: that of the config's vocabulary, if it is read."""
    files = find_files(config.corpus)
    given = tokenizer or _given_tokenizer(config)
    output = Path(config.output)
    settings = _settings(config, files, given)
    if _is_done(output, settings):  # then many may ask for it at once, in a folder to be read alone
        print(f"{output} is prepared already: {summary(read_manifest(output))}")
        return output
    with locked(output):
        return _prepare(config, files, given, settings)


def _prepare(
    config: PreparationConfig,
    files: list[CorpusFile],
    given: RoFormerTokenizer | None,
    settings: dict[str, Any],
) -> Path:
    """Do what `prepare` says in a folder that no other command writes into meanwhile."""
    output = Path(config.output)
    _check_begun(output, settings)
    if _is_finished(output):
        _sweep(output)
        print(f"{output} is prepared already: {summary(read_manifest(output))}")
        return output

    _check_for_documents(files, config)
    if config.engine == "dask":
        check_cluster(config.scheduler)
    _claim(output, settings)
    report = CorpusReport()
    try:
        repeated = _repeated(files, config)
        tokenizer = given or _built_tokenizer(files, config, repeated)
        tokenizer.save_pretrained(output)
        write = _PartWriter(output.absolute(), tokenizer, config)
        records = list(_each_part(write, files, config, report, "preparing", repeated))
        manifest = make_manifest(records, repeated, report, settings, tokenizer)
        told = "\n".join([report.summary(), *skipped(manifest)])
        if not manifest["splits"][TRAIN]["rows"]:
            raise InputError(
                f"no row to train on came out of {told}. "
                "Give a larger corpus, or a smaller held_out, or leave out less."
            )
    except (EngineError, ReadError):  # no fault of the text: the next run goes on from here
        raise
    except InputError:
        _discard(output)
        raise
    write_text(output / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    _sweep(output)
    print(f"{told}\n{output}: {summary(manifest)}")
    return output


def is_held_out(text: str, share: float) -> bool:
    """Decide by a hash of the text alone: growing the corpus moves no document.

    Texts that count as equal (`text_key`) are on one side.
    """
    return int.from_bytes(text_key([text])[:8], "big") < share * 2**64


@dataclass(frozen=True)
class _PartWriter:
    """Tokenize, pack and write a part; one for each process."""

    output: Path
    tokenizer: RoFormerTokenizer
    config: PreparationConfig

    def __call__(self, part: CorpusPart) -> dict[str, Any]:
        """Write the part's shards and then its record, unless they are there; give the record.

        {"corpus": "news", "shards": […], "documents": {"train": 12, …}, "cut": {"train": 3, …},
        "characters": {"train": 3456, …}, "short": 1, "repeated_lines": 2, "blake2b": …}
        """
        name = f"{part.number:05}"
        path = self.output / UNFINISHED / f"part-{name}.json"
        if path.is_file():
            record: dict[str, Any] = read_json(path, PREPARE_AGAIN)
            if all(Shard(**shard).is_whole(self.output) for shard in record["shards"]):
                return record

        texts: dict[str, list[str]] = {split: [] for split in SPLITS}
        chosen = filtered(part.texts, self.config)
        kept = [text for text in chosen.texts if text is not None]
        for text in kept:
            held_out = is_held_out(text, self.config.held_out)
            texts[HELD_OUT if held_out else TRAIN].append(text)
        written = {
            split: self._write(split, f"{split}-{name}.npy", part.corpus, texts[split])
            for split in SPLITS
        }
        record = {
            "corpus": part.corpus,
            "shards": [asdict(shard) for shard, _ in written.values() if shard],
            "documents": {split: len(texts[split]) for split in SPLITS},
            "cut": {split: cut for split, (_, cut) in written.items()},
            "characters": {split: sum(map(len, texts[split])) for split in SPLITS},
            "short": chosen.short,
            "repeated_lines": chosen.repeated_lines,
            "blake2b": hash_texts(kept),
        }
        if path.parent.is_dir():  # else the job ended while this worker was frozen
            write_text(path, json.dumps(record))
        return record

    def _write(
        self, split: str, file: str, corpus: str, texts: list[str]
    ) -> tuple[Shard | None, int]:
        """Write one shard, unless the texts give no rows; give it, and how many texts were cut."""
        documents = Documents(*self.tokenizer.ids_and_words_of(texts))
        if self.config.whole_words and self.tokenizer.tokenization == "char":
            documents = _with_whole_words(documents, texts, self.tokenizer.lower_case)
        rows, cut = pack(
            documents,
            self.config.length,
            cls_id=self.tokenizer.cls_id,
            sep_id=self.tokenizer.sep_id,
            fill=self.config.fill,
            dtype=row_dtype(self.tokenizer.vocab_size, self.config.length),
        )
        return (write_shard(self.output, file, split, rows, corpus) if len(rows) else None), cut


def _with_whole_words(documents: Documents, texts: list[str], lower_case: bool) -> Documents:
    """The documents of texts, with jieba's words for the parts that each part was one of."""
    joined: list[int] = []
    for text in texts:
        first = joined[-1] + 1 if joined else 0
        parts = words_of_parts(normalize(text) if lower_case else text)
        joined += [first + word for word in parts]
    return documents._replace(words=np.array(joined, np.int32)[documents.words])


def _given_tokenizer(config: PreparationConfig) -> RoFormerTokenizer | None:
    """Load the tokenizer of the vocabulary that the user gives; None if one is to be built."""
    if config.vocab is not None:
        return RoFormerTokenizer.from_pretrained(
            config.vocab, config.tokenization, config.lower_case
        )
    assert config.vocab_size is not None  # the config holds one of the two
    build_vocabulary({}, config.vocab_size, _tokenization(config))  # refuses a size too small
    return None


def _repeated(files: list[CorpusFile], config: PreparationConfig) -> list[list[int]]:
    """Places in each part of the documents that stood before, or find them looked for.

    No list for any part where they are kept. A text is compared as its rows would have it.
    """
    if config.duplicates == "keep":
        return []
    path = Path(config.output) / UNFINISHED / "duplicates.json"
    if not path.is_file():
        near = config.duplicates == "near"
        is_repeated = find_near(config.similarity) if near else find_exact()
        marks = _each_part(
            partial(_mark_part, config), files, config, CorpusReport(), "looking for duplicates"
        )
        found = [
            [place for place, mark in enumerate(of_part) if mark is not None and is_repeated(mark)]
            for of_part in marks
        ]
        write_text(path, json.dumps(found))
    places: list[list[int]] = read_json(path, PREPARE_AGAIN)
    return places


def _mark_part(config: PreparationConfig, part: CorpusPart) -> list[bytes | None]:
    """Mark the part's documents; None for those that are left out anyway."""
    mark = near_marks if config.duplicates == "near" else exact_marks
    return mark(filtered(part.texts, config).texts)


def _built_tokenizer(
    files: list[CorpusFile],
    config: PreparationConfig,
    repeated: Sequence[Sequence[int]],
) -> RoFormerTokenizer:
    """Build a vocabulary from the documents to train on, or find it built."""
    assert config.vocab_size is not None
    tokenization, lower_case = _tokenization(config), config.lower_case is not False
    built = Path(config.output) / VOCABULARY
    if built.is_file():  # whole, as all our files; the settings are known to be the same
        return RoFormerTokenizer.from_pretrained(built, tokenization, lower_case)
    count = partial(_count_part, tokenization, lower_case, config)
    counts: Counter[str] = Counter()
    for part_counts in _each_part(count, files, config, CorpusReport(), "counting words", repeated):
        counts.update(part_counts)
        if len(counts) > COUNTED_WORDS:  # most of them seen once: no candidates for a vocabulary
            counts = Counter({word: count for word, count in counts.items() if count > 1})
    tokens = build_vocabulary(counts, config.vocab_size, tokenization)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return RoFormerTokenizer(vocabulary, tokenization, lower_case)


def _tokenization(config: PreparationConfig) -> Tokenization:
    """Choose the tokenization of a vocabulary that is built."""
    return config.tokenization or "word"


def _count_part(
    tokenization: Tokenization,
    lower_case: bool,
    config: PreparationConfig,
    part: CorpusPart,
) -> Counter[str]:
    """Count the words of the documents that are not left out and not held out."""
    texts = (text for text in filtered(part.texts, config).texts if text is not None)
    trained = (text for text in texts if not is_held_out(text, config.held_out))
    return count_pieces(trained, tokenization, lower_case)


def _check_for_documents(files: list[CorpusFile], config: PreparationConfig) -> None:
    """Raise InputError if the files hold no document."""
    report = CorpusReport()
    if next(read_documents(files, config, report), None) is None:
        raise InputError(
            f"the corpus {' '.join(config.corpus)} is empty: {report.summary()}. "
            "Give files with text, and for .jsonl the right field."
        )


def _parts(
    files: list[CorpusFile],
    config: PreparationConfig,
    report: CorpusReport,
    repeated: Sequence[Sequence[int]],
) -> Iterator[CorpusPart]:
    """Cut each corpus into parts, and leave out of each those documents that stood before."""
    pieces = (
        (corpus, texts)
        for corpus, members in groupby(files, attrgetter("corpus"))
        for texts in _pieces(read_documents(list(members), config, report))
    )
    start = 0
    for number, (corpus, texts) in enumerate(pieces):
        places = set(repeated[number] if repeated else ())
        new = [text for place, text in enumerate(texts) if place not in places]
        yield CorpusPart(number, corpus, new, report.bytes_read - start)
        start = report.bytes_read


def _pieces(texts: Iterable[str]) -> Iterator[list[str]]:
    """Cut a sequence of texts into pieces of at least PART_CHARACTERS, the last one less."""
    piece: list[str] = []
    size = 0
    for text in texts:
        piece.append(text)
        size += len(text)
        if size >= PART_CHARACTERS:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _each_part(
    task: Callable[[CorpusPart], Result],
    files: list[CorpusFile],
    config: PreparationConfig,
    report: CorpusReport,
    description: str,
    repeated: Sequence[Sequence[int]] = (),
) -> Iterator[Result]:
    """Give what the task makes of each part, in order, and show the progress in the files."""
    parts = _parts(files, config, report, repeated)
    head = list(islice(parts, 2))
    folder = Path(config.output) / UNFINISHED
    workers = open_workers(task, folder, config.engine, config.scheduler, config.workers)
    if len(head) < 2:  # a second one would have nothing to do
        workers = in_this_process(task)
    total = sum(file.size for file in files)
    with (
        Progress(total=total, desc=description, unit="B", unit_scale=True, smoothing=0.1) as bar,
        workers as started,
    ):
        for part, result in in_order(started, chain(head, parts)):
            bar.update(part.bytes)
            yield result
        bar.update(total - bar.n)  # bad lines behind the last document


def _settings(
    config: PreparationConfig, files: list[CorpusFile], tokenizer: RoFormerTokenizer | None
) -> dict[str, Any]:
    """Gather all that the rows depend on, as JSON holds it. The number of workers is not of it."""
    return {
        "format": FORMAT,
        "part_characters": PART_CHARACTERS,
        "files": [[file.corpus, file.name, file.size, file.stamp] for file in files],
        "field": config.field,
        "strict": config.strict,
        "min_characters": config.min_characters,
        "drop_repeated_lines": config.drop_repeated_lines,
        "duplicates": config.duplicates,
        "similarity": config.similarity if config.duplicates == "near" else None,
        "vocabulary": hash_json(tokenizer.vocabulary) if tokenizer else None,
        "vocab_size": config.vocab_size,
        "tokenization": tokenizer.tokenization if tokenizer else _tokenization(config),
        "lower_case": tokenizer.lower_case if tokenizer else config.lower_case is not False,
        "length": config.length,
        "fill": config.fill,
        "held_out": config.held_out,
    } | {  # what is younger than some rows, which are good
        name: getattr(config, name)
        for name in ("encoding", "whole_words")
        if getattr(config, name) != getattr(PreparationConfig, name)
    }


def _check_begun(output: Path, settings: Mapping[str, Any]) -> None:
    """Raise InputError, with nothing touched, if the folder was begun with other settings."""
    unfinished = output / UNFINISHED / "settings.json"
    if (output / MANIFEST).is_file():
        there = read_manifest(output).get("settings", {})
    elif unfinished.is_file():
        there = read_json(unfinished, PREPARE_AGAIN)
    else:
        return
    _check_same(output, there, settings)


def _is_done(output: Path, settings: dict[str, Any]) -> bool:
    """Tell whether the folder holds this preparation, and nothing of the way there.

    Raises InputError as `_check_begun` and `_is_finished` do.
    """
    with suppress(OSError):  # such as for a name that is too long: `locked` says what is wrong
        _check_begun(output, settings)
        if _is_finished(output):
            return not (leftovers(output) or (output / UNFINISHED).exists())
    return False


def _is_finished(output: Path) -> bool:
    """Tell whether the folder holds a finished preparation.

    Raises InputError, with nothing touched, if it holds something else than a preparation.
    """
    if (output / MANIFEST).is_file():
        for split in SPLITS:
            PreparedRows.open(output, split)  # refuses shards that are gone or cut off
        return True
    begun = (output / UNFINISHED / "settings.json").is_file()
    if (
        not begun
        and output.exists()
        and (not output.is_dir() or set(output.iterdir()) - leftovers(output) - {output / LOCK})
    ):
        raise InputError(
            f"{output} exists and holds something else than prepared rows. "
            "Choose another output, or remove it."
        )
    return False


def _check_same(output: Path, there: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise InputError, saying what differs, unless the settings are the same."""
    changes = [key for key in sorted({*there, *now}) if there.get(key) != now.get(key)]
    if not changes:
        return
    told = [f"{key} ({there.get(key)} there, {now.get(key)} now)" for key in changes]
    if "vocabulary" in changes:
        told[changes.index("vocabulary")] = "vocabulary"
    advice = "Choose another output, or remove it to prepare anew."
    if "files" in changes:
        told[changes.index("files")] = f"files ({_other_files(there['files'], now['files'])})"
        if (output / MANIFEST).is_file():
            advice += (
                " To continue a run, give the files as they were, or have it trained on what was "
                f"made of them: --rows {output} instead of --corpus."
            )
    raise InputError(
        f"{output} was prepared from other inputs or settings; what differs: "
        f"{', '.join(told)}. {advice}"
    )


def _other_files(there: Iterable[Sequence[Any]], now: Iterable[Sequence[Any]]) -> str:
    """Say which files differ, the first few: "a.txt has changed, b.txt is gone, c.txt is new"."""
    before, after = ({tuple(file) for file in files} for files in (there, now))
    gone = {name for _, name, *_ in before - after}
    new = {name for _, name, *_ in after - before}
    told = [
        *(f"{name} has changed" for name in sorted(gone & new)),
        *(f"{name} is gone" for name in sorted(gone - new)),
        *(f"{name} is new" for name in sorted(new - gone)),
    ]
    more = [f"and {len(told) - TOLD_FILES:,} more"] if len(told) > TOLD_FILES else []
    return ", ".join([*told[:TOLD_FILES], *more]) or "they come in another order"


def _claim(output: Path, settings: Mapping[str, Any]) -> None:
    """Make the folder that of this preparation, and remove what a killed run left half-written."""
    output.mkdir(parents=True, exist_ok=True)
    for folder in (output, output / UNFINISHED):
        sweep(folder)
    if not (output / UNFINISHED).is_dir():
        with folder_beside(output / UNFINISHED) as folder:
            write_text(folder / "settings.json", json.dumps(settings))


def _sweep(output: Path) -> None:
    """Remove from a finished folder what was needed on the way."""
    remove(output / UNFINISHED)
    sweep(output)


def _discard(output: Path) -> None:
    """Remove what this preparation wrote; a folder that it made goes with its lock."""
    _sweep(output)
    shards = (f"{split}-*.npy" for split in SPLITS)
    for pattern in (VOCABULARY, TOKENIZER, TOKENIZER_CONFIG, *shards):
        for path in output.glob(pattern):
            path.unlink()
