"""The bodies of `embed` and `similarity`: texts of a file → their vectors, or cosines of pairs."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, TextIO, TypeAlias

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file
from roformer_tf.inference.embed import TextEmbedder, VectorSettings
from roformer_tf.inference.prediction_files import STANDARD, check_output, opened_text, tsv_line
from roformer_tf.inference.text_files import TextFileConfig, check_not_blank, checked_texts, report
from roformer_tf.readers.records import CHUNK, chunks
from roformer_tf.terminal import Progress
from roformer_tf.translation import Message

FORMATS = (".npy", ".parquet")
WriteVectors: TypeAlias = Callable[[Sequence[str], np.ndarray], Any]
# Columns of a file of pairs.
PAIR = ("text_a", "text_b")
# The column of their cosines.
SCORE = "score"


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    r"""Write a vector for each text of a file: float32, of length 1, in their order.

    Products of vectors are cosines. An empty row is an error, before anything is written.

    Examples:
        roformer-tf embed chinese_roformer-sim-char-base --input texts.txt \
            --output vectors.npy
        roformer-tf embed runs/vectors/model --input texts.csv \
            --output vectors.parquet
    """

    model: Annotated[str, "MODEL"]
    """A released zip or name, or a folder: of a checkpoint, or the model/ of a run. --model itself
    may be omitted."""
    input: Annotated[str, "FILE"] = "-"
    """One text a line, or a .tsv, .csv, .jsonl, .parquet or .xlsx file, at a path or a URL; "-" is
    the standard input."""
    output: Annotated[str, "FILE"]
    """File to write: .npy, a matrix with a row for each text, or .parquet, the columns text and
    vector."""
    vectors: VectorSettings = field(default_factory=VectorSettings)
    reading: TextFileConfig = field(default_factory=TextFileConfig)


def embed_file(config: EmbedConfig) -> None:
    """Write the vectors, and report on stderr.

    Raises InputError, and leaves no file, where a row holds no text.
    """
    check_output(config.output, config.input, only=FORMATS)
    # A vector without its text, in .npy, is known by the number of its row.
    texts = checked_texts(config.input, config.reading, blank=False)
    embedder = config.vectors.open(config.model)
    report(*embedder.notes)
    began, cut = time.perf_counter(), 0
    with (
        vector_file(config.output, embedder, len(texts)) as write,
        Progress(desc=Message("embed"), unit=Message("texts"), total=len(texts)) as bar,
    ):
        for block in embedder.blocks(texts):
            write(block.texts, block.vectors)
            bar.update(len(block.texts))
            cut += block.cut
    seconds = time.perf_counter() - began
    report(
        Message(
            "texts: {rows:,}; {seconds:.1f} s, {speed:,.0f} a second.",
            rows=len(texts),
            seconds=seconds,
            speed=len(texts) / max(seconds, 1e-9),
        ),
        embedder.cut_note(cut),
    )


@contextmanager
def vector_file(output: str, embedder: TextEmbedder, count: int) -> Iterator[WriteVectors]:
    """A file of `count` vectors, written block by block; its name gives the format.

    It is written whole or not at all.
    """
    with temporary_file(output) as temporary:
        if output.lower().endswith(".npy"):
            # The header needs the number of rows: the file is then written block by block, without
            # the whole matrix in memory.
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, embedder.size)}
            with temporary.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, header)
                # Rows follow the header without anything between them: C order, little-endian.
                yield lambda _, vectors: file.write(np.ascontiguousarray(vectors, "<f4").data)
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema(
            [("text", pa.string()), ("vector", pa.list_(pa.float32(), embedder.size))],
            {"embedding": embedder.described, "fingerprint": embedder.fingerprint},
        )
        with pq.ParquetWriter(temporary, schema) as writer:

            def write(texts: Sequence[str], vectors: np.ndarray) -> None:
                # a lone surrogate, which JSON may hold, has no UTF-8
                plain = [text.encode(errors="replace").decode() for text in texts]
                columns = {"text": plain, "vector": list(vectors)}
                writer.write_table(pa.table(columns, schema))

            yield write


# similarity


@dataclass(frozen=True, kw_only=True)
class SimilarityConfig:
    r"""Print how similar texts are: the cosine of their vectors, from -1 to 1.

    For two texts one number; for more a matrix, with a line and a column for each. For a file of
    pairs a TSV with the columns text_a, text_b, score.

    Examples:
        roformer-tf similarity \
            --model chinese_roformer-sim-char-base '今天天气很好' '天气不错'
        roformer-tf similarity --model runs/vectors/model --input pairs.tsv \
            --output scores.tsv
    """

    model: Annotated[str, "MODEL"]
    """A released zip or name, or a folder: of a checkpoint, or the model/ of a run."""
    text: tuple[str, ...] = ()
    """Two texts, or more."""
    input: Annotated[str | None, "FILE"] = None
    """File of pairs: a .txt with two texts a line and a tab between, or a .tsv, .csv, .jsonl,
    .parquet or .xlsx with two columns of texts. Columns without names need --text-columns and
    --first-line. "-" is the standard input, read as a .txt."""
    output: Annotated[str, "FILE"] = STANDARD
    """File to write; "-" is the standard output."""
    vectors: VectorSettings = field(default_factory=VectorSettings)
    reading: TextFileConfig = field(default_factory=TextFileConfig)

    def __post_init__(self) -> None:
        if bool(self.text) == (self.input is not None):
            raise InputError("give two texts or more, or --input with a file of pairs.")
        if len(self.text) == 1:
            raise InputError("one text cannot be compared. Give two or more.")
        check_not_blank("text", self.text)


def similarity(config: SimilarityConfig) -> None:
    """Write the cosines, and print on stderr how the vectors are made."""
    check_output(config.output, config.input)
    if config.input is None:
        embedder = _opened(config, config.text)
        vectors = embedder.embed(config.text)
        with opened_text(config.output) as out:
            _write_cosines(out, config.text, vectors @ vectors.T)
        return
    pairs = checked_texts(config.input, config.reading, PAIR, tuple)
    embedder = _opened(config, chain.from_iterable(pairs))
    with (
        opened_text(config.output) as out,
        Progress(desc=Message("similarity"), unit=Message("pairs"), total=len(pairs)) as bar,
    ):
        out.write(tsv_line((*PAIR, SCORE)))
        for chunk in chunks(pairs, CHUNK // 2):  # two texts each
            scores = cosines(embedder, chunk)
            for pair, cosine in zip(chunk, scores.tolist(), strict=True):
                out.write(tsv_line((*pair, f"{cosine:.6f}")))
            bar.update(len(chunk))


def cosines(embedder: TextEmbedder, pairs: Sequence[Sequence[str]]) -> np.ndarray:
    """The cosine of each pair of texts, (pairs,) float32. Equal texts are read once."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    index = {text: number for number, text in enumerate(texts)}
    vectors = embedder.embed(texts)
    # (pairs, D) each; the vectors have length 1, so their products are cosines.
    first, second = (vectors[[index[pair[side]] for pair in pairs]] for side in (0, 1))
    return np.einsum("nd,nd->n", first, second)


def _opened(config: SimilarityConfig, texts: Iterable[str]) -> TextEmbedder:
    embedder = config.vectors.open(config.model)
    report(*embedder.notes, embedder.cut_note(sum(map(embedder.is_cut, texts))))
    return embedder


def _write_cosines(out: TextIO, texts: Sequence[str], cosines: np.ndarray) -> None:
    """The cosine of two texts; for more texts a matrix with a header and a first column."""
    if len(texts) == len(PAIR):
        out.write(f"{cosines[0, 1]:.6f}\n")
        return
    out.write(tsv_line(("", *texts)))
    for text, row in zip(texts, cosines, strict=True):
        out.write(tsv_line((text, *(f"{x:.6f}" for x in row))))
