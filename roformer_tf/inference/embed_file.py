"""The body of `embed`: a file of texts → a file of their vectors, .npy or .parquet."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.files import temporary_file
from roformer_tf.inference.embed import TextEmbedder, VectorSettings
from roformer_tf.inference.prediction_files import check_output
from roformer_tf.inference.text_files import TextFileConfig, checked_texts, report
from roformer_tf.terminal import Progress
from roformer_tf.translation import Message

FORMATS = (".npy", ".parquet")
WriteVectors: TypeAlias = Callable[[Sequence[str], np.ndarray], Any]


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

    def __post_init__(self) -> None:
        if not self.output.lower().endswith(FORMATS):
            raise InputError(
                f"--output {self.output} has an unknown format. Its name has to end in "
                f"{' or '.join(FORMATS)}."
            )


def embed_file(config: EmbedConfig) -> None:
    """Write the vectors, and report on stderr.

    Raises InputError, and leaves no file, where a row holds no text.
    """
    check_output(config.output, config.input, only=FORMATS)
    texts = checked_texts(config.input, config.reading)
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
                columns = [
                    # a lone surrogate, which JSON may hold, has no UTF-8
                    pa.array([text.encode(errors="replace").decode() for text in texts]),
                    pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), embedder.size),
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))

            yield write
