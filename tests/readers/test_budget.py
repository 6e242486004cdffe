"""Decompression bombs and long lines: memory and disk use stay bounded, and files are rejected."""

import gzip
import json
import lzma
import os
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from backports import zstd

from roformer_tf import cli
from roformer_tf.corpus.documents import CorpusConfig, CorpusReport, find_files, read_documents
from roformer_tf.errors import InputError
from roformer_tf.inference.text_files import TextFileConfig, checked_texts
from roformer_tf.readers import streams
from roformer_tf.readers.tables import Top, open_table, read_sentences

COMPRESSED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress}
LONG = b"a" * (streams.LONGEST + 1000)
TOO_LONG = "has more than 16 MiB in line"
TOO_LARGE = r"has 0\.\d\d MB, but unpacks to more than [\d,]+ times as much"
LINES = {  # files with one line that is too long
    "a.txt": b"x\n" + LONG,
    "a.jsonl": b'{"text": "x"}\n{"text": "' + LONG + b'"}\n',
    "a.csv": b'text\nx\n"' + LONG + b'"\n',
    "a.tsv": b"text\nx\n" + LONG,
    "a.conll": b"x O\n" + LONG + b" O\n",
    "utf16.txt": ("x\n" + LONG[: len(LONG) // 2].decode()).encode("utf-16"),
}


def parquet(array, **settings):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": array}), sink, **settings)
    return sink.getvalue().to_pybytes()


def arrow(array, compression=None, new=pa.ipc.new_stream):
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new(sink, pa.schema({"text": array.type}), options=options) as writer:
        writer.write_batch(pa.record_batch([array], names=["text"]))
    return sink.getvalue().to_pybytes()


def repeated(text, count):
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


MANY = repeated("好" * 30_000, 20_000)
ONE_ROW = "has more than 16 MiB in row 1"
PLAIN = {"use_dictionary": False, "compression": "zstd"}
TABLES = {  # Parquet and Arrow files with large uncompressed contents: content, message
    "rows.parquet": lambda: (parquet(MANY, compression="zstd"), TOO_LARGE),
    "rows.arrow": lambda: (arrow(MANY), TOO_LARGE),
    "struct.parquet": lambda: (parquet(pa.StructArray.from_arrays([MANY], ["a"])), TOO_LARGE),
    "page.parquet": lambda: (parquet(pa.array(["a" * 90_000_000]), **PLAIN), TOO_LARGE),
    "nulls.parquet": lambda: (parquet(pa.nulls(70_000_000, pa.string())), TOO_LARGE),
    "cell.parquet": lambda: (parquet(pa.array(["a" * 30_000_000]), **PLAIN), ONE_ROW),
    "cell.arrow": lambda: (arrow(pa.array(["a" * 30_000_000])), ONE_ROW),
    "compressed.arrow": lambda: (arrow(pa.array(["a" * 30_000_000]), "zstd"), ONE_ROW),
    "list.parquet": lambda: (parquet(pa.ListArray.from_arrays([0, 20_000], MANY)), ONE_ROW),
    "list.arrow": lambda: (arrow(pa.ListArray.from_arrays([0, 20_000], MANY)), ONE_ROW),
}


@pytest.fixture
def limited_memory():
    """Fail if Python objects take more memory than ten times the longest line."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * streams.LONGEST


def read(path):
    if path.name.startswith("a.conll"):
        return list(read_sentences(path))
    if path.name.startswith(("a.txt", "utf16.txt", "many")):
        return checked_texts(str(path), TextFileConfig())
    return [None for _ in open_table(path, lambda rows: Top(0, True)).rows]


@pytest.mark.usefixtures("limited_memory")
@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("name", LINES)
@pytest.mark.quick_cases("a.txt*", "*-")
def test_too_long_lines_are_rejected(tmp_path, name, suffix):
    path = tmp_path / f"{name}{suffix}"
    path.write_bytes(COMPRESSED[suffix](LINES[name]))
    with pytest.raises(InputError, match=rf"{path.name} {TOO_LONG} \d"):
        read(path)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.slow
def test_suspicious_compression_ratios_are_rejected(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr(streams, "UNSUSPICIOUS", 1 << 16)
    path = tmp_path / f"many.txt{suffix}"
    path.write_bytes(COMPRESSED[suffix](b"a\n" * (1 << 16)))
    with pytest.raises(InputError, match=TOO_LARGE):
        read(path)
    path.write_bytes(COMPRESSED[suffix](b"a\n" * (1 << 15)))
    assert len(read(path)) == 1 << 15
    text = "\n".join(os.urandom(30).hex() for _ in range(5_000)).encode()  # a usual ratio
    path.write_bytes(COMPRESSED[suffix](text))
    assert len(read(path)) == 5_000


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.usefixtures("limited_memory")
def test_tables_with_large_cells_are_rejected(tmp_path, name):
    path = tmp_path / name
    content, message = TABLES[name]()
    path.write_bytes(content)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(InputError, match=rf"{name} {message}"):
        read(path)
    assert pa.default_memory_pool().max_memory() - before < 600 << 20


@pytest.mark.parametrize("write", [parquet, arrow])
def test_repeated_texts_of_normal_size_are_read(tmp_path, write):
    path = tmp_path / f"a.{write.__name__}"
    texts = ["很好" * 3000, "坏" * 10, None, "一般"]
    path.write_bytes(write(pa.array(texts * 1500).dictionary_encode()))
    rows = [row.cells["text"] for row in open_table(path, lambda rows: Top(0, True)).rows]
    assert rows == texts * 1500


def test_a_corpus_skips_files_with_too_long_lines(tmp_path):
    (tmp_path / "a.txt.zst").write_bytes(zstd.compress("好\n".encode() + LONG + b"\n"))
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "坏"}), "utf-8")
    (tmp_path / "c.parquet").write_bytes(parquet(pa.array(["一般"])))
    report = CorpusReport()
    config = CorpusConfig(corpus=(str(tmp_path / "*"),))
    assert [*read_documents(find_files(config.corpus), config, report)] == ["好", "坏", "一般"]
    assert report.bad.total() == 1
    assert f"a.txt.zst:2: {TOO_LONG}" in report.summary()


def test_embed_writes_nothing_for_a_decompression_bomb(tmp_path, capsys):
    path = tmp_path / "bomb.parquet"
    path.write_bytes(parquet(repeated("好" * 300_000, 400_000), compression="zstd"))
    assert path.stat().st_size < 10_000
    arguments = ["embed", "nowhere", "--input", str(path), "--output", str(tmp_path / "x.npy")]
    assert cli.main(arguments) == 2
    assert "bomb.parquet has 0.00 MB, but unpacks to more than" in capsys.readouterr().err
    assert [item.name for item in tmp_path.iterdir()] == ["bomb.parquet"]
