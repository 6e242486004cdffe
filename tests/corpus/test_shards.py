import ast
import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.corpus import shards
from roformer_tf.corpus.shards import PreparedRows, row_dtype, write_shard
from roformer_tf.errors import InputError


def write_rows(folder, sizes, length=7, split="train"):
    """Write shards with these numbers of rows and a manifest; return the folder and all rows."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(1, 200, (size, 3, length)).astype(np.uint8) for size in sizes]
    entries = [
        vars(write_shard(folder, f"{split}-{number:05}.npy", split, array))
        for number, array in enumerate(arrays)
    ]
    manifest = {"length": length, "splits": {"train": {}, "held_out": {}}, "shards": entries}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder, np.concatenate(arrays)


@given(st.integers(1, 100_000), st.integers(3, 100_000))
def test_the_row_type_is_the_smallest_sufficient(vocab_size, length):
    dtype = row_dtype(vocab_size, length)
    largest = max(vocab_size - 1, length)
    assert largest <= np.iinfo(dtype).max
    assert dtype.itemsize == 1 or largest > np.iinfo(f"u{dtype.itemsize // 2}").max


def test_rows_of_several_shards_are_read_in_any_order(tmp_path):
    folder, want = write_rows(tmp_path, [3, 1, 5])
    rows = PreparedRows.open(folder)
    assert len(rows) == 9
    assert rows.length == 7
    for index in np.random.default_rng(0).permutation(9):
        np.testing.assert_array_equal(rows[index], want[index])
    np.testing.assert_array_equal(np.stack(list(rows)), want)
    for outside in (-1, 9):
        with pytest.raises(IndexError):
            rows[outside]


def test_a_row_cannot_change_the_file(tmp_path):
    row = PreparedRows.open(write_rows(tmp_path, [2])[0])[0]
    with pytest.raises(ValueError, match="read-only"):
        row[0, 0] = 1


def test_the_record_counts_tokens_without_padding(tmp_path):
    rows = np.zeros((2, 3, 5), np.uint8)
    rows[0, 1, :4] = 1
    rows[1, 1, :3] = 1
    shard = write_shard(tmp_path, "train-00000.npy", "train", rows)
    assert (shard.rows, shard.tokens) == (2, 7)
    assert shard.bytes == (tmp_path / shard.file).stat().st_size
    assert shard.is_whole(tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / shard.file), rows)


def test_the_rows_of_each_corpus_are_listed_in_order(tmp_path):
    corpora = ["wiki", "wiki", "", "news"]
    entries = [
        vars(write_shard(tmp_path, f"{n}.npy", split, np.ones((n + 1, 3, 5), np.uint8), corpus))
        for n, (corpus, split) in enumerate(zip(corpora, ["train"] * 3 + ["held_out"], strict=True))
    ]
    del entries[2]["corpus"]  # like older manifests, before corpora had names
    manifest = {"length": 5, "splits": {"train": {}, "held_out": {}}, "shards": entries}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    corpora = PreparedRows.open(tmp_path).corpora
    assert corpora == {"wiki": 3, "": 3}
    assert list(corpora) == ["wiki", ""]
    assert PreparedRows.open(tmp_path, "held_out").corpora == {"news": 4}


def test_a_changed_byte_is_detected(tmp_path):
    shard = write_shard(tmp_path, "train-00000.npy", "train", np.ones((2, 3, 5), np.uint8))
    content = bytearray((tmp_path / shard.file).read_bytes())
    content[-1] ^= 1
    (tmp_path / shard.file).write_bytes(content)
    assert not shard.is_whole(tmp_path)


def test_pickled_rows_are_opened_again(tmp_path):
    folder, want = write_rows(tmp_path, [3, 2])
    rows = PreparedRows.open(folder)
    rows[0]
    copy = pickle.loads(pickle.dumps(rows))
    np.testing.assert_array_equal(copy[4], want[4])
    assert len(pickle.dumps(rows)) < 1_000


def test_a_split_may_be_empty(tmp_path):
    rows = PreparedRows.open(write_rows(tmp_path, [3])[0], "held_out")
    assert len(rows) == 0
    assert list(rows) == []


@pytest.mark.skipif(sys.platform != "linux", reason="counts file descriptors in /proc")
def test_many_shards_need_few_file_descriptors(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "OPEN_MAPS", 4)
    folder, want = write_rows(tmp_path, [1] * 40)
    rows = PreparedRows.open(folder)
    before = len(list(Path("/proc/self/fd").iterdir()))
    np.testing.assert_array_equal(np.stack([rows[i] for i in range(40)]), want)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "train-00001.npy").unlink(), r"train-00001\.npy.*it is missing"),
        (lambda folder: truncate(folder / "train-00001.npy"), "has 169 bytes instead of 170"),
        (lambda folder: (folder / "manifest.json").unlink(), "holds no prepared rows"),
        (lambda folder: truncate(folder / "manifest.json"), r"manifest\.json is not valid JSON"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "is no manifest"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, damage, message):
    folder, _ = write_rows(tmp_path, [3, 2])
    damage(folder)
    with pytest.raises(InputError, match=message):
        PreparedRows.open(folder)


def change_shape(path):
    with path.open("wb") as file:
        np.save(file, np.ones((2, 7, 3), np.uint8))  # the same number of bytes


def clear_header(path):
    path.write_bytes(b"\0" * path.stat().st_size)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(change_shape, r"shape \(2, 7, 3\)"), (clear_header, "not as it was written")],
)
def test_a_damaged_shard_is_refused(tmp_path, damage, message):
    folder, _ = write_rows(tmp_path, [2, 2])
    damage(folder / "train-00001.npy")
    with pytest.raises(InputError, match=rf"train-00001\.npy.*{message}"):
        PreparedRows.open(folder)


def test_reading_rows_does_not_parse_headers(tmp_path, monkeypatch):
    """Reading rows does not call ast.literal_eval, which is not thread-safe before 3.11.8."""
    folder, want = write_rows(tmp_path, [2, 3])
    rows = PreparedRows.open(folder)
    monkeypatch.setattr(ast, "literal_eval", None)  # NumPy calls it to parse a header
    np.testing.assert_array_equal(np.stack(list(rows)), want)
