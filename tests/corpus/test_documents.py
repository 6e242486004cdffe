import gzip
import io
import json
import lzma
import os
import tracemalloc
import zlib
from functools import partial
from importlib.util import find_spec

import fsspec
import pyarrow
import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from roformer_tf.corpus.documents import (
    CorpusConfig,
    CorpusReport,
    filtered,
    find_files,
    read_documents,
    without_repeated_lines,
)
from roformer_tf.errors import InputError
from roformer_tf.readers import streams
from roformer_tf.readers.streams import ReadError, StoredFile


def read(*paths, **settings):
    config = CorpusConfig(tuple(map(str, paths)), **settings)
    report = CorpusReport()
    return list(read_documents(find_files(config.corpus), config, report)), report


COMPRESSED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress}


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "ndjson", "json", "csv"])
def test_every_kind_of_file_is_read_in_order(tmp_path, kind, suffix):
    texts = ["第一篇。", "second\u2028one", "第三 篇"]
    lines = {
        "txt": texts,
        "csv": ["title,text", *(f"标题,{text}" for text in texts)],
    }.get(kind, [json.dumps({"text": text}) for text in texts])
    content = "\n".join([*lines[:2], "", "  ", *lines[2:]]).encode()
    if kind == "csv":
        content = content.replace(b"  \n", b",  \n")
    path = tmp_path / f"a.{kind}{suffix}"
    path.write_bytes(COMPRESSED[suffix](content))
    documents, report = read(path)
    assert documents == texts
    assert (report.documents, report.characters) == (3, sum(map(len, texts)))
    assert report.bytes_read == path.stat().st_size
    assert not report.bad


@pytest.mark.parametrize("name", ["wiki_00", "part-00000.gz"])
@pytest.mark.parametrize(
    "content",
    [
        '{"id": "1", "text": "第一篇。"}\n{"text": "第二篇"}\n',
        "第一篇。\n第二篇\n",
        '<doc id="1" url="u" title="甲">\n第一篇。\n</doc>\n<doc id="2">\n第二篇\n</doc>\n',
    ],
    ids=["JSON lines", "lines", "WikiExtractor"],
)
def test_a_file_without_an_ending_is_read_by_its_content(tmp_path, name, content):
    compression = COMPRESSED[name[name.find(".") :] if "." in name else ""]
    (tmp_path / name).write_bytes(compression(content.encode()))
    documents, report = read(tmp_path / name)
    assert documents == ["第一篇。", "第二篇"]
    assert not report.bad


def test_windows_line_ends_and_byte_order_marks_are_removed(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeff甲乙\r\n\r\n丙\r\n".encode())
    (tmp_path / "b.jsonl").write_bytes('\ufeff{"text": "丁"}\r\n'.encode())
    assert read(tmp_path / "*")[0] == ["甲乙", "丙", "丁"]


def test_a_csv_record_may_span_lines_and_hold_quotes(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes('\ufefftitle,"text"\r\n1,"甲,乙\r\n丙 ""丁"""\r\n2,戊\r\n'.encode())
    assert read(path)[0] == ['甲,乙\n丙 "丁"', "戊"]
    assert read(path, field="title")[0] == ["1", "2"]


def test_the_advice_for_a_csv_file_with_semicolons_is_to_use_commas(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id;text\n1;甲\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"has no column 'text'\. Between commas it has: id;text\. "
    ):
        read(path)


def test_bad_csv_records_are_counted_named_and_skipped(tmp_path):
    path = tmp_path / "a.csv"
    lines = ["n,text", "1,甲", "2", "3,乙,丙", '4,"a"b', "5,?", "6,丁", ""]
    path.write_bytes("\n".join(lines).encode().replace(b"?", b"\xff"))
    documents, report = read(path)
    assert documents == ["甲", "丁"]
    actual = [example.removeprefix(f"{path}:") for example in report.examples]
    assert actual[:2] == [
        "3: 1 instead of 2 columns",
        "4: 3 instead of 2 columns",
    ]
    assert actual[2].startswith("5: breaks the rules of quoting")
    assert actual[3] == "6: not UTF-8"


def write_parquet(path, columns):
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)


@pytest.mark.parametrize(("start", "bad"), [("\n\n", 0), ('"a"b\n', 1)])
def test_lines_before_the_csv_header_are_skipped(tmp_path, start, bad):
    path = tmp_path / "a.csv"
    path.write_text(f"{start}n,text\n1,甲\n", encoding="utf-8")
    documents, report = read(path)
    assert documents == ["甲"]
    assert [example.startswith(f"{path}:1: breaks") for example in report.examples] == [True] * bad


def test_a_parquet_column_is_read_and_missing_values_are_bad(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, {"n": [1, 2, 3, 4, 5], "text": ["甲", None, "", "乙\n丙", "丁"]})
    documents, report = read(path)
    assert documents == ["甲", "乙\n丙", "丁"]
    assert report.examples == [f'{path}:2: field "text" is not a text']
    assert report.bytes_read == path.stat().st_size


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_without_the_column_is_refused_and_its_columns_named(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    if kind == "csv":
        path.write_text("title,body\na,b\n")
    else:
        write_parquet(path, {"title": ["a"], "body": ["b"]})
    with pytest.raises(
        InputError, match=r"no column 'text'. Between commas it has: title, body. .* --field"
    ):
        read(path)


def test_a_parquet_file_that_is_cut_off_is_reported(tmp_path):
    path = tmp_path / "a.parquet"
    write_parquet(path, {"text": ["甲"] * 1000})
    path.write_bytes(path.read_bytes()[:-20])
    (tmp_path / "b.txt").write_text("乙", encoding="utf-8")
    documents, report = read(tmp_path / "*")
    assert documents == ["乙"]
    rest = "the rest of the file is skipped"
    assert report.examples == [f"{path}:1: no Parquet file, or damaged. Write it again ({rest})"]


def test_urls_are_opened_by_fsspec():
    storage = fsspec.filesystem("memory")
    for name, text in (("b.txt", "乙"), ("a.txt", "甲"), ("deep/c.txt", "丙")):
        storage.pipe(f"/corpus/{name}", text.encode())
    storage.pipe("/corpus/d.jsonl.zst", zstd.compress('{"text": "丁"}'.encode()))
    documents, report = read("memory://corpus/*.txt", "memory://corpus/d.jsonl.zst")
    assert documents == ["甲", "乙", "丁"]
    assert report.bytes_read == sum(file.size for file in find_files(["memory://corpus/*.*"]))
    before = find_files(["memory://corpus/a.txt"])
    assert before == find_files(["memory://corpus/a.txt"])
    storage.pipe("/corpus/a.txt", "新".encode())
    assert before != find_files(["memory://corpus/a.txt"])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nothing/*.txt", r"no file matches the corpus pattern 'memory://nothing"),
        ("nosuch://x/a.txt", r"cannot read nosuch://x/a\.txt: .*nosuch"),
        ("s3://bucket/a.txt", r"cannot open s3://bucket/a\.txt: .*s3fs"),
    ],
)
def test_urls_that_cannot_be_opened_are_reported(url, message):
    if url.startswith("s3") and find_spec("s3fs"):
        pytest.skip("s3fs is installed here")
    with pytest.raises(InputError, match=message):
        find_files([url])


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
    assert "skipped bad lines: 6" in report.summary()
    assert named[0] in report.summary()


@pytest.mark.parametrize(("line", "kind"), BAD_LINES.items(), ids=range(len(BAD_LINES)))
def test_strict_stops_at_the_first_bad_line_and_names_it(tmp_path, line, kind):
    path = tmp_path / "a.jsonl"
    path.write_bytes('{"text": "好"}\n'.encode() + line)
    with pytest.raises(InputError, match=r"a\.jsonl:2: " + kind):
        read(path, strict=True)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_a_truncated_file_is_read_up_to_the_damage(tmp_path, suffix):
    lines = [f"{i} {os.urandom(40).hex()}" for i in range(20_000)]
    path = tmp_path / f"a.txt{suffix}"
    compressed = COMPRESSED[suffix]("\n".join(lines).encode())
    path.write_bytes(compressed[: len(compressed) // 2])
    documents, report = read(path)
    assert 5_000 < len(documents) < 15_000
    assert documents == lines[: len(documents)]
    problem = f"damaged: its {suffix} data is cut off, or none. Copy it again"
    rest = "the rest of the file is skipped"
    assert report.examples == [f"{path}:{len(documents) + 1}: {problem} ({rest})"]
    with pytest.raises(InputError, match=f"{len(documents) + 1}: {problem}"):
        read(path, strict=True)


@pytest.mark.parametrize(
    ("suffix", "decompressor"),
    [
        (".gz", partial(zlib.decompressobj, 31)),
        (".xz", lzma.LZMADecompressor),
        (".zst", zstd.ZstdDecompressor),
    ],
)
def test_every_line_before_the_damage_is_read(tmp_path, suffix, decompressor):
    lines = [f"{i} {os.urandom(40).hex()}" for i in range(2_500)]
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESSED[suffix]("\n".join(lines).encode())[:-100])
    documents, report = read(path)
    assert documents == decompressor().decompress(path.read_bytes()).decode().split("\n")[:-1]
    assert len(documents) > 100
    assert report.bad.total() == 1


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
    problem = "damaged: its .gz data is cut off, or none. Copy it again"
    assert report.bad == {f"{problem} (the rest of the file is skipped)": 1}


def test_files_are_found_sorted_and_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    for name in ("b.txt", "a.jsonl", "deep/er/c.txt.gz", "[1].txt"):
        (tmp_path / name).touch()
    actual = find_files(["*.txt", "./b.txt", str(tmp_path / "b.txt"), "a.*", "**/*.gz", "[1].txt"])
    assert [file.name for file in actual if file.name != "b.txt"] == [
        *("[1].txt", "a.jsonl", "c.txt.gz")
    ]
    assert [file.name for file in actual].count("b.txt") == 1
    assert actual == sorted(actual)


def names(entries):
    return [(file.corpus, file.name) for file in find_files(entries)]


def test_corpora_keep_their_order_and_files_are_sorted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt", "c.txt", "d.txt", "e.txt"):
        (tmp_path / name).touch()
    entries = ["wiki=d.*", "e.txt", "news-2=c.txt", f"wiki={tmp_path}/a.txt", "news-2=[b-c].txt"]
    assert names(entries) == [
        *(("wiki", "a.txt"), ("wiki", "d.txt")),
        ("", "e.txt"),
        *(("news-2", "b.txt"), ("news-2", "c.txt")),
    ]


def test_an_equals_sign_in_a_path_does_not_end_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lang=zh").mkdir()
    (tmp_path / "lang=zh" / "a.txt").touch()
    (tmp_path / "day=1.txt").touch()
    assert names(["lang=zh/a.txt"]) == [("", "a.txt")]
    assert names(["./lang=zh/*.txt", "day=1.txt"]) == [("", "day=1.txt"), ("", "a.txt")]
    assert names([f"{tmp_path}/lang=zh/*"]) == [("", "a.txt")]
    assert names(["x=lang=zh/*"]) == [("x", "a.txt")]
    with pytest.raises(
        InputError, match=r"'zh/\*'.* If .* is part of the path, write './lang=zh/\*'\."
    ):
        find_files(["lang=zh/*"])


def test_a_url_may_have_a_name_and_an_equals_sign():
    storage = fsspec.filesystem("memory")
    for path in ("/named/k=1/a.txt", "/named/k=2/b.txt"):
        storage.pipe(path, b"x")
    entries = ["memory://named/k=1/*.txt", "two=memory://named/k=2/*.txt"]
    assert names(entries) == [("", "a.txt"), ("two", "b.txt")]


@pytest.mark.parametrize("other", ["two=*.txt", "a.txt"])
def test_a_file_in_two_corpora_is_refused(tmp_path, monkeypatch, other):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(InputError, match=r"a\.txt is of two corpora, 'one' and '(two)?'\. Give"):
        find_files(["one=a.txt", other])
    assert names(["one=a.txt", "one=*.txt"]) == [("one", "a.txt")]


lines = st.lists(
    st.sampled_from(["甲", " 甲", "乙\u3000", "乙", "", "  ", "丙丁戊", "\r"]), max_size=9
)


@given(lines)
def test_a_repeated_line_is_kept_at_its_first_position(lines):
    text, dropped = without_repeated_lines("\n".join(lines))
    first = [
        line
        for place, line in enumerate(lines)
        if not line.strip() or line.strip() not in [before.strip() for before in lines[:place]]
    ]
    assert text == "\n".join(first)
    assert dropped == len(lines) - len(first)
    assert without_repeated_lines(text) == (text, 0)


@given(st.lists(lines.map("\n".join)), st.integers(0, 6), st.booleans())
def test_filters_drop_repeated_lines_and_then_short_documents(texts, min_characters, drop):
    config = CorpusConfig(("x",), min_characters=min_characters, drop_repeated_lines=drop)
    actual, repeated_lines = filtered(texts, config)
    shortened = [without_repeated_lines(text) if drop else (text, 0) for text in texts]
    for actual_text, (text, _) in zip(actual, shortened, strict=True):
        assert actual_text == (text if len(text.strip()) >= min_characters else None)
    assert repeated_lines == sum(dropped for _, dropped in shortened)


def test_a_negative_number_of_characters_is_refused():
    with pytest.raises(InputError, match="min_characters is -1, but must be at least 0"):
        CorpusConfig(("x",), min_characters=-1)


@pytest.mark.parametrize(
    ("globs", "message"),
    [
        ([], "no corpus is given"),
        (["missing-*.txt"], r"no file matches the corpus pattern 'missing-\*\.txt'"),
        (["a.txt", "missing.txt"], "no file matches the corpus pattern 'missing.txt'"),
        (["folder"], r"is a folder.*'folder/\*\.jsonl'"),
        (
            ["a.doc"],
            r"a\.doc is of no kind.*\.txt, .*\.jsonl, .*\.csv, \.parquet.*\.gz, \.xz, \.zst",
        ),
        (
            ["新闻=a.txt"],
            r"no file matches .*'新闻=a\.txt'.*before =, has only ASCII letters",
        ),
        (["a.parquet.gz"], r"a\.parquet\.gz is of no kind.*all but \.parquet may be compressed"),
    ],
)
def test_unreadable_corpora_are_refused_with_a_fix(tmp_path, monkeypatch, globs, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").touch()
    (tmp_path / "a.doc").touch()
    (tmp_path / "a.parquet.gz").touch()
    with pytest.raises(InputError, match=message):
        find_files(globs)


def test_a_missing_file_is_an_input_error(tmp_path):
    missing = StoredFile(str(tmp_path / "missing.txt"), 1, "")
    with pytest.raises(InputError, match=r"cannot read .*missing\.txt"):
        list(read_documents([missing], CorpusConfig(("x",)), CorpusReport()))


@pytest.mark.parametrize("indent", [None, 1])
def test_a_json_array_is_refused(indent, tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps([{"text": "甲"}, {"text": "乙"}], indent=indent))
    with pytest.raises(InputError, match=r"a\.json is one JSON array, .*as \.jsonl"):
        read(file)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl.gz"])
def test_reading_keeps_only_one_line_in_memory(tmp_path, name):
    line = (json.dumps({"text": "字" * 500}) + "\n").encode()
    path = tmp_path / name
    with (gzip.open if name.endswith("gz") else open)(path, "wb") as file:
        for _ in range(10_000):
            file.write(line)  # 30 MB
    config, report = CorpusConfig((str(path),)), CorpusReport()
    tracemalloc.start()
    for _ in read_documents(find_files(config.corpus), config, report):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.documents == 10_000
    assert peak < 3 << 20


UTF_16 = {  # UTF-16 with a byte order mark, like Excel's "Unicode text"
    "little": lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
    "big": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
}
# 上 and 一 contain the bytes 0A and 00; the last text has surrogates.
UTF_16_TEXTS = ["上海上一上", "一上，第2篇" * 900, "𠀀𠀁 emoji 😀"]


@pytest.mark.parametrize("encode", UTF_16.values(), ids=UTF_16)
@pytest.mark.parametrize("texts", [UTF_16_TEXTS, ["plain words", "in Latin letters"]])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.csv"])
def test_utf_16_is_read(tmp_path, encode, texts, name):
    lines = {
        "jsonl": [json.dumps({"text": text}, ensure_ascii=False) for text in texts],
        "csv": ["n,text", *(f"1,{text}" for text in texts)],
    }.get(name[2:], texts)
    content = encode("\r\n".join(lines) + "\r\n")
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    documents, report = read(tmp_path / name)
    assert documents == texts
    assert not report.bad


def test_damage_in_utf_16_is_a_bad_line(tmp_path):
    lines = ["好", "?", "上", "末"]
    content = "\n".join(lines).encode("utf-16").replace(b"?\0", b"\0\xd8")  # a lone surrogate
    (tmp_path / "a.txt").write_bytes(content + b"x")
    documents, report = read(tmp_path / "a.txt")
    assert documents == ["好", "上"]
    assert report.examples == [f"{tmp_path}/a.txt:{n}: not UTF-16" for n in (2, 4)]


@pytest.mark.parametrize(
    ("content", "documents"),
    [
        ("甲\0乙\n丙\n".encode(), ["甲\0乙", "丙"]),
        (b"plain\0words\nand\0more\n", ["plain\0words", "and\0more"]),
        ("甲乙\n".encode() * 3 + b"\xff\0\n", ["甲乙"] * 3),
        ("今天天气很好\n".encode("gb18030"), ["今天天气很好"]),
        ("今天\0天气很好\n".encode("gb18030"), ["今天\0天气很好"]),
    ],
)
def test_zero_bytes_and_bad_lines_are_not_taken_for_utf_16(tmp_path, content, documents):
    (tmp_path / "a.txt").write_bytes(content)
    assert read(tmp_path / "a.txt")[0] == documents


@pytest.mark.parametrize(
    "packed", [lambda text: text.encode("utf-16-le"), lambda text: gzip.compress(text.encode())]
)
def test_binary_files_give_no_documents(tmp_path, packed):
    text = "".join(f"第{n}篇：{'今天天气很好'[n % 6 :]}，{n * n}度。\n" for n in range(3000))
    (tmp_path / "a.txt").write_bytes(packed(text))
    documents, report = read(tmp_path / "a.txt")
    assert not documents
    assert "a.txt:1: no text: " in report.examples[0]
    assert not report.encodings


GB18030_TEXTS = ["房间很干净，早餐一般", "下次还来", "末尾"]


@pytest.mark.parametrize("suffix", COMPRESSED)
@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
def test_the_encoding_of_each_file_is_detected_and_reported(tmp_path, kind, suffix):
    lines = {
        "txt": GB18030_TEXTS,
        "jsonl": [json.dumps({"text": text}, ensure_ascii=False) for text in GB18030_TEXTS],
        "csv": ["n,text", *(f"1,{text}" for text in GB18030_TEXTS)],
    }[kind]
    for name, encoding in (("a", "gb18030"), ("b", "utf-8"), ("c", "gb18030")):
        content = "\n".join(lines).encode(encoding)
        (tmp_path / f"{name}.{kind}{suffix}").write_bytes(COMPRESSED[suffix](content))
    documents, report = read(tmp_path / "*")
    assert documents == GB18030_TEXTS * 3
    assert not report.bad
    a, c = (f"{tmp_path}/{name}.{kind}{suffix}" for name in "ac")
    assert report.summary().split("\n")[1:] == [f"read as GB18030: {a}, {c}"]


def test_many_files_of_an_encoding_are_not_all_named(tmp_path):
    for number in range(8):
        (tmp_path / f"{number}.txt").write_bytes(GB18030_TEXTS[0].encode("gb18030"))
    summary = read(tmp_path / "*")[1].summary()
    assert summary.endswith(f"{tmp_path}/4.txt and 3 more")


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_damage_in_gb18030_is_a_bad_line(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    lines = ["好", "?", "很好的书", "!", "末"]
    if kind == "jsonl":
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in lines]
    content = "\n".join(lines).encode("gb18030")
    path.write_bytes(content.replace(b"?", b"\xff").replace(b"!", "你好".encode()))
    documents, report = read(path)
    assert documents == ["好", "很好的书", "末"]
    assert report.bad == {"not GB18030": 2}
    assert report.examples == [f"{path}:{n}: not GB18030" for n in (2, 4)]
    with pytest.raises(InputError, match=rf"a\.{kind}:2: not GB18030\. Correct it, or run without"):
        read(path, strict=True)


def test_a_given_encoding_is_used(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("天氣\n大學\n".encode("big5") + b"\xff\n")
    documents, report = read(path, encoding="big5")
    assert documents == ["天氣", "大學"]
    assert report.examples == [f"{path}:3: not BIG5"]
    assert not report.encodings
    with pytest.raises(InputError, match="no text encoding 'utf-9'"):
        CorpusConfig(("x",), encoding="utf-9")


class PayloadError(Exception):
    """An error like those of network libraries, which is not an OSError."""


class BrokenConnection(io.BytesIO):
    """A connection that breaks off after 30,000 bytes."""

    def read(self, size=-1):
        if self.tell() + max(0, size) > 30_000:
            raise self.error
        return super().read(size)


@pytest.fixture
def break_connection(monkeypatch):
    """A function that makes reading a URL past 30,000 bytes raise this error."""
    opened = streams._opened

    def install(url, error):
        def fetch(requested):
            if requested != url:
                return opened(requested)
            file = BrokenConnection(opened(requested).read())
            file.error = error
            return file

        monkeypatch.setattr(streams, "_opened", fetch)

    return install


@pytest.mark.parametrize(
    "error", [PayloadError("payload"), ConnectionResetError(104, "reset by peer")]
)
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl.zst", "a.csv.xz", "a.parquet"])
def test_a_broken_connection_is_not_damage_of_the_file(break_connection, tmp_path, name, error):
    texts = [os.urandom(40).hex() for _ in range(2_000)]
    if name.endswith("parquet"):
        path = tmp_path / name
        write_parquet(path, {"text": texts})
        content = path.read_bytes()
    else:
        lines = {"jsonl": [json.dumps({"text": text}) for text in texts], "csv": ["text", *texts]}
        _, kind, *suffix = name.split(".")
        content = "\n".join(lines.get(kind, texts)).encode()
        content = COMPRESSED["." + suffix[0] if suffix else ""](content)
    fsspec.filesystem("memory").pipe(f"/broken/{name}", content)
    url = f"memory://broken/{name}"
    assert read(url)[0] == texts
    (actual,) = find_files([url])
    break_connection(actual.url, error)
    report = CorpusReport()
    with pytest.raises(ReadError, match=r"cannot read memory.*(payload|reset by peer)\. What is"):
        list(read_documents([actual], CorpusConfig((url,)), report))
    assert not report.bad
