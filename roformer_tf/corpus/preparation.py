"""Corpus → tokenizer → packing → shards: the body of `roformer-tf prepare`.

Each corpus is cut into parts of consecutive documents. Each part becomes shards of its own, which
one process writes, and records when they are complete. So the result does not depend on the number
of processes, and an interrupted preparation continues after its last recorded part. Duplicates are
detected first, in all corpora. The output folder:

    vocab.txt, tokenizer_config.json, tokenizer.json (for characters)
    train-00000.npy, held_out-00000.npy, …    the shards of part 0, …
    unfinished/settings.json, duplicates.json, part-00000.json, …
                                                    only until the manifest is written
    manifest.json                                   written last
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby, islice
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from roformer_tf.checkpoints.archives import VOCABULARY
from roformer_tf.corpus import deduplication, manifests
from roformer_tf.corpus.documents import (
    CorpusConfig,
    CorpusFile,
    CorpusReport,
    filtered,
    find_files,
    read_documents,
)
from roformer_tf.corpus.objectives import replacement_ids
from roformer_tf.corpus.part_writer import CorpusPart, is_held_out, write_part
from roformer_tf.corpus.shards import MANIFEST, hash_json, read_manifest
from roformer_tf.corpus.workers import (
    Engine,
    EngineError,
    check_cluster,
    in_this_process,
    open_workers,
)
from roformer_tf.errors import InputError, check_needed, check_numbers
from roformer_tf.files import locked, read_json, write_text
from roformer_tf.readers.records import chunks
from roformer_tf.readers.streams import ReadError
from roformer_tf.terminal import Progress, say
from roformer_tf.tokenizers.padding import check_length
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import Tokenization, build_vocabulary, count_words

FORMAT = 4  # of the folder
PART_CHARACTERS = 2_000_000  # about a second of work, and enough documents to fill sequences
COUNTED_WORDS = 5_000_000  # kept while counting: some hundred megabytes

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class PreparationConfig(CorpusConfig):
    r"""Tokenize and pack a corpus once, into a folder of token ids for any number of runs.

    Examples:
        roformer-tf prepare --corpus 'data/*.jsonl' --vocab-size 30000 --output rows
        roformer-tf prepare --corpus news.txt --vocab vocab.txt --length 256 \
            --output rows-256
    """

    output: Annotated[str, "DIR"]
    """Folder to write. The same command continues an interrupted preparation."""
    vocab: Annotated[str | None, "FILE"] = None
    """Vocabulary: a vocab.txt, or a folder or released zip with one. Or give --vocab-size."""
    vocab_size: int | None = None
    """Build a vocabulary of at most this many tokens from the corpus."""
    tokenization: Tokenization | None = None
    """Default: the one that suits the vocabulary; "word" for one that is built."""
    lower_case: bool | None = None
    """Default: the setting in the vocabulary's folder, else yes."""
    whole_words: bool = False
    """With tokenization "char", segment words too, for whole-word masking. With "word", masking
    always hides whole words."""
    length: int = 512
    """Tokens of a sequence, with [CLS] and [SEP]."""
    fill: float = 0.99
    """Fraction of positions to fill. As few documents as necessary are split for it; 0 splits only
    documents that are longer than a sequence."""
    held_out: float = 0.01
    """Fraction of documents held out for evaluation, chosen by a hash of the normalized text, so
    duplicates never straddle the split."""
    duplicates: deduplication.DuplicatePolicy = "keep"
    """keep: no deduplication; exact: skip repeated documents; near: skip similar ones too (MinHash,
    needs the extra [duplicates])."""
    similarity: float = 0.8
    """Fraction of their character 5-grams that near duplicates share (Jaccard similarity)."""
    workers: int | None = None
    """Processes. Default: one for each core."""
    engine: Engine = "processes"
    """Backend: local processes or a Dask cluster."""
    scheduler: str | None = None
    """Dask scheduler, such as tcp://host:8786, or its scheduler file. Default: the environment
    variable DASK_SCHEDULER_ADDRESS."""

    alternatives: ClassVar[dict[str, tuple[str, ...]]] = {
        "vocab": ("vocab-size",),
        "vocab-size": ("vocab",),
    }
    """Flags, and the keys of a YAML file that each replaces."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length(self.length)
        hint = "such as 0.8 (for equal texts alone give --duplicates exact)"
        check_numbers(self, "similarity", above=0, below=1, hint=hint)
        if self.duplicates != "near":
            check_needed(self, "--duplicates near", "similarity")
        if (self.vocab is None) == (self.vocab_size is None):
            raise InputError(
                "give either a vocabulary (--vocab) or the size of one to build (vocab_size)."
            )
        check_numbers(self, "held_out", at_least=0, below=1)
        check_numbers(self, "fill", at_least=0, at_most=1)
        check_numbers(self, "workers", at_least=1)
        if self.engine == "processes":
            check_needed(self, "--engine dask", "scheduler")
        else:  # a cluster uses all of its workers
            check_needed(self, "--engine processes", "workers")


def prepare(config: PreparationConfig, tokenizer: RoFormerTokenizer | None = None) -> Path:
    """Write a folder of packed sequences, which `PreparedRows.open` reads; return its path.

    `tokenizer`: that of the config's vocabulary, if it is already open.
    The folder is complete once it has a manifest. After an interruption the same call continues;
    once finished it returns at once. Raises InputError, and leaves no files, for a corpus that is
    missing or has no documents, a wrong vocabulary and, under `strict`, a bad line. Raises it
    without any change for a folder that holds anything else, that another command is writing into,
    or that cannot be written. Raises EngineError if workers or their cluster fail, and ReadError if
    a file cannot be read any more: both keep the finished parts.
    """
    files = find_files(config.corpus)
    tokenizer = tokenizer or _users_tokenizer(config)
    output = Path(config.output)
    settings = _settings(config, files, tokenizer)
    # Without a lock, because several processes may use a finished folder, even a read-only one.
    with suppress(OSError):  # such as a name that is too long, which `locked` reports
        if manifests.is_finished(output, settings):
            return _finished(output)
    with locked(output):
        return _prepare(config, files, tokenizer, settings)


def _finished(output: Path) -> Path:
    manifests.remove_unfinished(output)
    print(f"{output} is prepared already: {manifests.summary(read_manifest(output))}")
    return output


def _prepare(
    config: PreparationConfig,
    files: list[CorpusFile],
    tokenizer: RoFormerTokenizer | None,
    settings: dict[str, Any],
) -> Path:
    """Prepare in a locked folder."""
    output = Path(config.output)
    if manifests.is_finished(output, settings):  # by another process, just before the lock
        return _finished(output)
    if config.engine == "dask":
        check_cluster(config.scheduler)
    manifests.claim(output, settings)
    report = CorpusReport()
    try:
        repeated = _repeated(files, config)
        tokenizer = tokenizer or _built_tokenizer(files, config, repeated)
        # Before the parts: a run that continues reads a vocabulary of --vocab-size from here.
        tokenizer.save_pretrained(output)
        # A worker of a cluster may have another working directory.
        write = partial(write_part, output.absolute(), tokenizer, config)
        records = list(_each_part(write, files, config, report, "preparing", repeated))
        manifest = manifests.make_manifest(records, repeated, report, settings, tokenizer)
        statistics = "\n".join([report.summary(), *manifests.skipped(manifest)])
        if not manifest["splits"][manifests.TRAIN]["rows"]:
            raise InputError(
                f"{' '.join(config.corpus)}: there is no sequence to train on: {statistics}. Give "
                "a larger corpus, for .jsonl the key of the text by --field, or a smaller "
                "held_out, or skip less."
            )
    except (EngineError, ReadError):  # the input is not wrong: the next run continues here
        raise
    except InputError:
        manifests.discard(output)
        raise
    write_text(output / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    manifests.remove_unfinished(output)
    print(statistics)
    say("{output}: {summary}", output=output, summary=manifests.summary(manifest))
    return output


def _users_tokenizer(config: PreparationConfig) -> RoFormerTokenizer | None:
    """The tokenizer of the user's vocabulary; None if a vocabulary has to be built."""
    if config.vocab is not None:
        tokenizer = RoFormerTokenizer.from_pretrained(
            config.vocab, config.tokenization, config.lower_case
        )
        if tokenizer.pad_id:  # models take id 0 for padding
            raise InputError(f"{config.vocab} does not begin with [PAD]. Make it the first line.")
        if not replacement_ids(tokenizer.vocabulary).size:
            raise InputError(f"{config.vocab} has only special tokens. Add those of the texts.")
        return tokenizer
    assert config.vocab_size is not None  # the config has exactly one of the two
    build_vocabulary({}, config.vocab_size, _tokenization(config))  # raises if too small
    return None


def _repeated(files: list[CorpusFile], config: PreparationConfig) -> list[list[int]]:
    """For each part the indices of documents that repeat an earlier one; empty if they are kept.

    Texts are compared after filtering. The result is stored: a later run reads it.
    """
    if config.duplicates == "keep":
        return []
    path = Path(config.output) / manifests.UNFINISHED / "duplicates.json"
    if not path.is_file():
        near = config.duplicates == "near"
        is_repeated = (
            deduplication.find_near(config.similarity) if near else deduplication.find_exact()
        )
        # The report is not used: the files are read again later, and a bad line should count once.
        marks = _each_part(
            partial(_mark_part, config), files, config, CorpusReport(), "finding duplicates"
        )
        repeated = [
            [index for index, mark in enumerate(part) if mark is not None and is_repeated(mark)]
            for part in marks
        ]
        write_text(path, json.dumps(repeated))
    stored: list[list[int]] = read_json(path, manifests.PREPARE_AGAIN)
    return stored


def _mark_part(config: PreparationConfig, part: CorpusPart) -> list[bytes | None]:
    """Marks of the part's documents; None for documents that are skipped anyway."""
    mark = deduplication.near_marks if config.duplicates == "near" else deduplication.exact_marks
    texts, _ = filtered(part.texts, config)
    return mark(texts)


def _built_tokenizer(
    files: list[CorpusFile], config: PreparationConfig, repeated: Sequence[Sequence[int]]
) -> RoFormerTokenizer:
    """Build a vocabulary from the training documents, or read it if it has been built."""
    assert config.vocab_size is not None
    tokenization, lower_case = _tokenization(config), config.lower_case is not False
    built = Path(config.output) / VOCABULARY
    if built.is_file():  # complete, and from the same settings: both were checked
        return RoFormerTokenizer.from_pretrained(built, tokenization, lower_case)
    count = partial(_count_part, tokenization, lower_case, config)
    counts: Counter[str] = Counter()
    for part_counts in _each_part(count, files, config, CorpusReport(), "counting words", repeated):
        counts.update(part_counts)
        if len(counts) > COUNTED_WORDS:  # words that occur once are no candidates
            counts = Counter({word: count for word, count in counts.items() if count > 1})
    tokens = build_vocabulary(counts, config.vocab_size, tokenization)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return RoFormerTokenizer(vocabulary, tokenization, lower_case)


def _tokenization(config: PreparationConfig) -> Tokenization:
    """The tokenization of a vocabulary that is built."""
    return config.tokenization or "word"


def _count_part(
    tokenization: Tokenization, lower_case: bool, config: PreparationConfig, part: CorpusPart
) -> Counter[str]:
    """Count the words of the training documents."""
    texts, _ = filtered(part.texts, config)
    trained = (text for text in texts if text and not is_held_out(text, config.held_out))
    return count_words(trained, tokenization, lower_case)


def _parts(
    files: list[CorpusFile],
    config: PreparationConfig,
    report: CorpusReport,
    repeated: Sequence[Sequence[int]],
) -> Iterator[CorpusPart]:
    """Cut each corpus into parts, without the repeated documents."""
    # A part never has documents of two corpora: a shard belongs to one.
    # Every pass over the files cuts the same parts: records have their numbers, and `repeated` has
    # indices of documents in each. So repeated documents are removed after the cut.
    parts = (
        (corpus, texts)
        for corpus, members in groupby(files, attrgetter("corpus"))
        for texts in chunks(read_documents(list(members), config, report), inf, PART_CHARACTERS)
    )
    start = 0
    for number, (corpus, texts) in enumerate(parts):
        skipped = set(repeated[number] if repeated else ())
        new = [text for index, text in enumerate(texts) if index not in skipped]
        yield CorpusPart(number, corpus, new, report.bytes_read - start)
        start = report.bytes_read


def _each_part(
    task: Callable[[CorpusPart], Result],
    files: list[CorpusFile],
    config: PreparationConfig,
    report: CorpusReport,
    description: str,
    repeated: Sequence[Sequence[int]] = (),
) -> Iterator[Result]:
    """Yield the task's result for each part, in order, with a progress bar."""
    parts = _parts(files, config, report, repeated)
    head = list(islice(parts, 2))
    folder = Path(config.output) / manifests.UNFINISHED
    workers = open_workers(task, folder, config.engine, config.scheduler, config.workers)
    if len(head) < 2:  # more processes would have nothing to do
        workers = in_this_process(task)
    total = sum(file.size for file in files)
    with (
        Progress(total=total, desc=description, unit="B", unit_scale=True, smoothing=0.1) as bar,
        workers as results,
    ):
        for part, result in results(chain(head, parts)):
            bar.update(part.bytes)
            yield result
        bar.update(total - bar.n)  # bad lines after the last document


def _settings(
    config: PreparationConfig, files: list[CorpusFile], tokenizer: RoFormerTokenizer | None
) -> dict[str, Any]:
    """All settings that the sequences depend on, as JSON; not the number of workers."""
    names = [
        *("field", "strict", "min_characters", "drop_repeated_lines", "duplicates"),
        *("vocab_size", "length", "fill", "held_out"),
    ]
    # Written only if set: folders without these keys stay valid.
    later = ("encoding", "whole_words")
    names += [x for x in later if getattr(config, x) != getattr(PreparationConfig, x)]
    return {
        "format": FORMAT,
        "part_characters": PART_CHARACTERS,
        # Names without folders: a corpus that was moved, with the same content, is the same.
        "files": [[file.corpus, file.name, file.size, file.stamp] for file in files],
        "similarity": config.similarity if config.duplicates == "near" else None,
        "vocabulary": hash_json(tokenizer.vocabulary) if tokenizer else None,
        "tokenization": tokenizer.tokenization if tokenizer else _tokenization(config),
        "lower_case": tokenizer.lower_case if tokenizer else config.lower_case is not False,
    } | {name: getattr(config, name) for name in names}
