import gzip
import json
import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.data.corpus import CorpusConfig, CorpusReport, find_files, read_documents
from roformer_tf.errors import InputError


def read(*paths, **settings):
    config = CorpusConfig(tuple(map(str, paths)), **settings)
    report = CorpusReport()
    return list(read_documents(find_files(config.corpus), config, report)), report


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_every_kind_of_file_gives_its_documents_in_order(tmp_path, kind, zipped):
    texts = ["第一篇。", "second\u2028one", "第三 篇"]
    lines = texts if kind == "txt" else [json.dumps({"text": text}) for text in texts]
    content = "\n".join([lines[0], "", "  ", *lines[1:]]).encode()
    path = tmp_path / f"a.{kind}{'.gz' if zipped else ''}"
    path.write_bytes(gzip.compress(content) if zipped else content)
    documents, report = read(path)
    assert documents == texts
    assert (report.documents, report.characters) == (3, sum(map(len, texts)))
    assert report.bytes_read == path.stat().st_size
    assert not report.bad


def test_windows_line_ends_and_byte_order_marks_are_no_text(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeff甲乙\r\n\r\n丙\r\n".encode())
    (tmp_path / "b.jsonl").write_bytes('\ufeff{"text": "丁"}\r\n'.encode())
    assert read(tmp_path / "*")[0] == ["甲乙", "丙", "丁"]


@given(st.lists(st.text(st.characters(exclude_categories=()))))
def test_any_text_survives_jsonl(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    assert read(path, field="body")[0] == [text for text in texts if text.strip()]


BAD_LINES = {
    b"\xff\xfe\n": "not UTF-8",
    b"{\n": "not JSON",
    b"[" * 100_000 + b"\n": "not JSON",
    b'["text"]\n': "not a JSON object",
    b'{"title": "x"}\n': 'no field "text"',
    b'{"text": null}\n': 'field "text" is not a text',
}


def test_bad_lines_are_counted_named_and_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    good = '{"text": "好"}\n'.encode()
    path.write_bytes(good + good.join(BAD_LINES) + good)
    documents, report = read(path)
    assert documents == ["好"] * (len(BAD_LINES) + 1)
    assert report.bad.total() == len(BAD_LINES)
    assert report.bad["not JSON"] == 2
    named = [f"{path}:{2 * i}: {kind}" for i, kind in enumerate(BAD_LINES.values(), 1)]
    assert report.examples == named[:5]
    assert "skipped 6 bad lines" in report.summary()
    assert named[0] in report.summary()


@pytest.mark.parametrize(("line", "kind"), BAD_LINES.items(), ids=range(len(BAD_LINES)))
def test_strict_stops_at_the_first_bad_line_and_names_it(tmp_path, line, kind):
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "好"}\n'.encode() + line)
    with pytest.raises(InputError, match=r"a\.jsonl:2: " + kind):
        read(path, strict=True)


def test_a_truncated_gzip_file_gives_what_is_whole_and_is_reported(tmp_path):
    lines = [f"{i} {os.urandom(40).hex()}" for i in range(20_000)]
    path = tmp_path / "a.txt.gz"
    whole = gzip.compress("\n".join(lines).encode())
    path.write_bytes(whole[: len(whole) // 2])
    documents, report = read(path)
    assert 5_000 < len(documents) < 15_000
    assert documents == lines[: len(documents)]
    assert report.examples == [f"{path}:{len(documents) + 1}: gzip data cut off or damaged here"]
    with pytest.raises(InputError, match=f"{len(documents) + 1}: gzip data cut off"):
        read(path, strict=True)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"no gzip at all", id="no gzip at all"),
        pytest.param(gzip.compress(b"x" * 99)[:-12] + b"\0" * 12, id="no trailer"),
    ],
)
def test_a_damaged_gzip_file_does_not_hide_the_next_file(tmp_path, content):
    (tmp_path / "a.txt.gz").write_bytes(content)
    (tmp_path / "b.txt").write_text("乙")
    documents, report = read(tmp_path / "*")
    assert documents[-1] == "乙"
    assert report.bad == {"gzip data cut off or damaged here": 1}


def test_files_are_found_sorted_and_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.txt", "a.jsonl", "deep/er/c.txt.gz", "[1].txt"):
        (tmp_path / name).touch()
    found = find_files(["*.txt", "./b.txt", str(tmp_path / "b.txt"), "a.*", "**/*.gz", "[1].txt"])
    assert [path.name for path in found if path.name != "b.txt"] == [
        *("[1].txt", "a.jsonl", "c.txt.gz")
    ]
    assert [path.name for path in found].count("b.txt") == 1
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("globs", "message"),
    [
        ([], "no corpus is given"),
        (["missing-*.txt"], r"no file matches the corpus pattern 'missing-\*\.txt'"),
        (["a.txt", "missing.txt"], "no file matches the corpus pattern 'missing.txt'"),
        (["folder"], r"is a folder.*'folder/\*\.jsonl'"),
        (["a.csv"], r"a\.csv is of no kind.*\.txt, \.txt\.gz, \.jsonl, \.jsonl\.gz"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_to_do(tmp_path, monkeypatch, globs, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.csv").touch()
    with pytest.raises(InputError, match=message):
        find_files(globs)


def test_a_file_that_vanished_is_the_users_to_put_right(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*gone\.txt"):
        list(read_documents([tmp_path / "gone.txt"], CorpusConfig(("x",)), CorpusReport()))


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz"])
def test_reading_holds_one_line_and_not_the_file(tmp_path, name):
    line = (json.dumps({"text": "字" * 500}) + "\n").encode()
    path = tmp_path / name
    with (gzip.open if name.endswith("gz") else open)(path, "wb") as file:
        for _ in range(10_000):
            file.write(line)  # 30 MB
    config, report = CorpusConfig((str(path),)), CorpusReport()
    tracemalloc.start()
    for _ in read_documents([path], config, report):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.documents == 10_000
    assert peak < 3 << 20
