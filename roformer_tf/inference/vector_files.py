"""Files of vectors, written from the beginning to the end: what is written leaves the memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Protocol

import numpy as np

from roformer_tf.files import file_beside
from roformer_tf.inference.embed import TextEmbedder


class VectorFile(Protocol):
    """Takes texts and their vectors, block by block."""

    def write(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Write (texts, D) float32."""


class MatrixFile:
    """A .npy file of rows of D float32, whose number is known at its end."""

    def __init__(self, file: IO[bytes], columns: int) -> None:
        self._file, self._columns = file, columns
        self.rows = 0
        self._write_header()

    def write(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Write (…, D) float32; the texts have no place here."""
        self._file.write(np.ascontiguousarray(vectors, "<f4").data)
        self.rows += len(vectors)

    def finish(self) -> None:
        """Say in the header how many rows there are: NumPy leaves room there for the number."""
        end = self._file.tell()
        self._file.seek(0)
        self._write_header()
        self._file.seek(end)

    def _write_header(self) -> None:
        shape = (self.rows, self._columns)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)


class ParquetFile:
    """A .parquet file with the columns text and vector."""

    def __init__(self, writer: Any, schema: Any) -> None:
        self._writer, self._schema = writer, schema

    def write(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Write a group of rows."""
        import pyarrow as pa

        flat = pa.array(vectors.reshape(-1))
        columns = [
            pa.array([text.encode(errors="replace").decode() for text in texts]),
            pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))


@contextmanager
def vector_file(output: str, embedder: TextEmbedder) -> Iterator[VectorFile]:
    """A file that is written whole or not at all; its name tells the format."""
    with file_beside(output) as beside:
        if output.lower().endswith(".npy"):
            with beside.open("wb") as file:
                matrix = MatrixFile(file, embedder.size)
                yield matrix
                matrix.finish()
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        vector = pa.list_(pa.float32(), embedder.size)
        schema = pa.schema(
            [("text", pa.string()), ("vector", vector)],
            {"embedding": embedder.described, "fingerprint": embedder.fingerprint},
        )
        with pq.ParquetWriter(beside, schema) as writer:
            yield ParquetFile(writer, schema)
