import gzip
import io
import lzma
import sys
from types import SimpleNamespace

import pytest
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.errors import InputError
from roformer_tf.readers.lines import (
    SAMPLE,
    DamagedLine,
    TextLines,
    check_encoding,
    damage,
    find_encoding,
    text_lines,
)

COMPRESSED = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress}
NEWS = "房间很干净\n早餐一般\n下次还来"


def lines_of(path, content, encoding="auto"):
    path.write_bytes(content)
    return [line.removesuffix("\n") for line in text_lines(path, encoding)]


@pytest.mark.parametrize(
    ("encoding", "detected"),
    [
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("gb18030", "gb18030"),
        ("gbk", "gb18030"),
        ("utf-16", "utf-16"),
        ("big5", "cp950"),
    ],
)
@pytest.mark.parametrize("suffix", COMPRESSED)
def test_an_encoding_is_detected_and_read(tmp_path, encoding, detected, suffix):
    news = "房間很乾淨\n早餐一般\n下次還來" if encoding in ("big5", "gbk") else NEWS
    path = tmp_path / f"a.txt{suffix}"
    content = COMPRESSED[suffix](news.encode(encoding))
    assert lines_of(path, content) == news.split("\n")
    assert find_encoding(path) == detected


@pytest.mark.parametrize("encoding", ["big5", "utf-16-le", "shift_jis"])
def test_a_given_encoding_is_used_without_detection(tmp_path, encoding):
    text = "天氣\n大學"
    assert lines_of(tmp_path / "a.txt", text.encode(encoding), encoding) == text.split("\n")


def test_an_ambiguous_line_is_read_in_the_encoding_of_the_file(tmp_path):
    assert "模".encode("gb18030").decode("utf-8") == "ģ"  # the first line is ambiguous
    content = "模\n模型的训练".encode("gb18030")
    assert lines_of(tmp_path / "a.txt", content) == ["模", "模型的训练"]


@pytest.mark.parametrize(
    ("main", "other"), [("utf-8", "gb18030"), ("gb18030", "utf-8"), ("utf-8", "latin-1")]
)
def test_only_a_line_in_another_encoding_is_damaged(tmp_path, main, other):
    odd = "Ã©tÃ© Ã" if other == "latin-1" else "你好"  # 你好 in UTF-8 is three GB18030 characters
    content = b"\n".join([NEWS.encode(main), odd.encode(other), "末尾".encode(main)])
    *before, bad, after = lines_of(tmp_path / "a.txt", content)
    assert [*before, after] == [*NEWS.split("\n"), "末尾"]
    assert "encoding" in damage(bad)
    assert not any(map(damage, [*before, after]))


def test_a_private_character_in_a_line_of_gb18030_makes_no_big5(tmp_path):
    text = f"\ue4c6\n{NEWS}"
    text.split("\n")[0].encode("gb18030").decode("big5")  # it could be both
    assert lines_of(tmp_path / "a.txt", text.encode("gb18030")) == text.split("\n")


def test_half_of_a_character_is_damage_of_its_own():
    assert "encoding" in damage("好\udcff")
    assert "half of a character" in damage("好\ud83d")
    assert damage("好😀") == ""


def test_a_line_with_nul_is_damaged():
    assert "UTF-16" in damage("t\0e\0")


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8")), min_size=1))
def test_any_utf8_text_is_read_back(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("any") / "a.txt"
    text = "\n".join(lines)
    want = text.removeprefix("\ufeff").split("\n")
    assert lines_of(path, text.encode(), "utf-8") == (want[:-1] if want[-1] == "" else want)


def test_stdin_is_read_line_by_line(monkeypatch):
    lines = iter([b"abc\n"])

    def read_line(size):
        return next(lines, None) or pytest.fail("reads a second line before it gives the first")

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SimpleNamespace(readline=read_line)))
    assert next(text_lines("-")) == "abc\n"


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_the_first_non_ascii_line_of_stdin_sets_the_encoding(monkeypatch, encoding):
    other = {"utf-8": "gb18030", "gb18030": "utf-8"}[encoding]
    content = b"abc\n" + NEWS.encode(encoding) + b"\n" + "你好".encode(other)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    *good, bad = (line.removesuffix("\n") for line in text_lines("-"))
    assert good == ["abc", *NEWS.split("\n")]
    assert damage(bad)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("cut", [20, -1])
def test_a_damaged_compressed_file_is_an_input_error(tmp_path, cut, suffix):
    path = tmp_path / f"a.txt{suffix}"
    message = rf"a\.txt\{suffix} is damaged: its \{suffix} data is cut off, or none"
    with pytest.raises(InputError, match=message):
        lines_of(path, COMPRESSED[suffix](NEWS.encode() * 100)[:cut])
    with pytest.raises(InputError, match=message):
        lines_of(path, b"not compressed")


@pytest.mark.parametrize("encoding", ["auto", "utf-16"])
def test_only_the_last_line_of_a_truncated_utf16_file_is_damaged(tmp_path, encoding):
    *good, bad = lines_of(tmp_path / "a.txt", NEWS.encode("utf-16")[:-1], encoding)
    assert good == NEWS.split("\n")[:-1]
    assert damage(bad)


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_text_after_much_ascii_is_read_in_its_encoding(tmp_path, encoding):
    ascii_lines = ["plain words"] * (SAMPLE // 10)
    content = "\n".join([*ascii_lines, NEWS]).encode(encoding)
    assert lines_of(tmp_path / "a.txt", content) == [*ascii_lines, *NEWS.split("\n")]
    assert find_encoding(tmp_path / "a.txt") == encoding


def test_one_line_of_another_encoding_does_not_change_the_file(tmp_path):
    # Two bytes per letter: as bytes, these lines are also valid GB18030.
    russian = ["по-русски"] * (SAMPLE // 17)
    content = "\n".join([*russian, "?", "конец"]).encode().replace(b"?", "你好".encode("gb18030"))
    *good, bad, end = lines_of(tmp_path / "a.txt", content)
    assert (good, end) == (russian, "конец")
    assert damage(bad)


@pytest.mark.parametrize("encoding", ["auto", "utf-8", "gb18030", "utf-8-sig", "utf-16-le"])
@pytest.mark.parametrize("index", range(4))
def test_a_line_that_cannot_be_decoded_is_detected(encoding, index):
    codec = {"auto": "utf-8", "utf-8-sig": "utf-8"}.get(encoding, encoding)
    lines = [f"{line}\n" for line in NEWS.split("\n")]
    content = [line.encode(codec) for line in lines]
    content.insert(index, b"\xff\n" if codec != "utf-16-le" else b"\0\xd8\n\0")
    actual = list(TextLines(io.BytesIO(b"".join(content)), encoding))
    assert type(actual.pop(index)) is DamagedLine
    assert actual == lines
    assert {type(line) for line in actual} == {str}


@pytest.mark.parametrize("name", ["utf-9", "hex"])
def test_an_unknown_encoding_is_an_input_error(name):
    with pytest.raises(InputError, match="no text encoding"):
        check_encoding(name)
    check_encoding("auto")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16"])
@pytest.mark.parametrize("encoding_given", [True, False])
def test_lines_that_end_in_cr_only_are_rejected(tmp_path, encoding, encoding_given):
    """Old programs for the Mac write such files; line breaks in quoted cells may be LF."""
    text = f"{NEWS}\n".replace("\n", "\r") + '上,"二\n三"\r"四"\r'
    with pytest.raises(InputError, match=r"a\.csv has lines that end in CR alone"):
        lines_of(tmp_path / "a.csv", text.encode(encoding), encoding if encoding_given else "auto")


@pytest.mark.parametrize(
    "text", ["a\rb\nc\rd\n", "a\r\nb\r\n", 'a,"x\ry"\n', 'a"\rb"\nc', "a\r\nb\rc\r\n"]
)
def test_a_cr_does_not_end_a_line_if_others_end_in_lf(tmp_path, text):
    path = tmp_path / "a.txt"
    path.write_bytes(text.encode())
    assert "".join(text_lines(path)) == text


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_byte_order_mark_names_the_encodings_to_give(codec, tmp_path):
    with pytest.raises(InputError, match=r"byte order mark: .* as utf-16-le or utf-16-be"):
        lines_of(tmp_path / "a.txt", NEWS.encode(codec), "utf-16")
