import gzip
import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.errors import InputError
from roformer_tf.readers.lines import check_encoding, damage, find_encoding, read_lines

NEWS = "房间很干净\n早餐一般\n下次还来"


def lines_of(path, content, encoding="auto"):
    path.write_bytes(content)
    return list(read_lines(path, encoding))


@pytest.mark.parametrize(
    ("encoding", "found"),
    [
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("gb18030", "gb18030"),
        ("gbk", "gb18030"),
        ("utf-16", "utf-16"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_an_encoding_is_found_and_read(tmp_path, encoding, found, zipped):
    content = NEWS.encode(encoding)
    path = tmp_path / ("a.txt.gz" if zipped else "a.txt")
    assert lines_of(path, gzip.compress(content) if zipped else content) == NEWS.split("\n")
    assert find_encoding(path) == found


@pytest.mark.parametrize("encoding", ["big5", "utf-16-le", "shift_jis"])
def test_an_encoding_that_is_named_is_not_guessed(tmp_path, encoding):
    text = "天氣\n大學"
    assert lines_of(tmp_path / "a.txt", text.encode(encoding), encoding) == text.split("\n")


def test_a_line_that_could_be_both_is_read_as_the_others(tmp_path):
    assert "模".encode("gb18030").decode("utf-8") == "ģ"  # so a first line may mislead
    content = "模\n模型的训练".encode("gb18030")
    assert lines_of(tmp_path / "a.txt", content) == ["模", "模型的训练"]


@pytest.mark.parametrize(
    ("most", "other"), [("utf-8", "gb18030"), ("gb18030", "utf-8"), ("utf-8", "latin-1")]
)
def test_a_line_in_another_encoding_is_damaged_and_the_others_are_not(tmp_path, most, other):
    odd = "Ã©tÃ© Ã" if other == "latin-1" else "你好"  # 你好 in UTF-8 is three GB18030 characters
    content = b"\n".join([NEWS.encode(most), odd.encode(other), "末尾".encode(most)])
    *before, bad, after = lines_of(tmp_path / "a.txt", content)
    assert [*before, after] == [*NEWS.split("\n"), "末尾"]
    assert "encoding" in damage(bad)
    assert not any(map(damage, [*before, after]))


def test_a_nul_is_damage():
    assert "UTF-16" in damage("t\0e\0")


@given(st.lists(st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8")), min_size=1))
def test_any_text_comes_back_from_utf8(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("any") / "a.txt"
    text = "\n".join(lines)
    want = text.removeprefix("\ufeff").split("\n")
    assert lines_of(path, text.encode(), "utf-8") == (want[:-1] if want[-1] == "" else want)


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_on_stdin_the_first_line_that_tells_decides(monkeypatch, encoding):
    other = {"utf-8": "gb18030", "gb18030": "utf-8"}[encoding]
    content = b"abc\n" + NEWS.encode(encoding) + b"\n" + "你好".encode(other)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    *good, bad = read_lines("-")
    assert good == ["abc", *NEWS.split("\n")]
    assert damage(bad)


@pytest.mark.parametrize("cut", [20, -1])
def test_a_damaged_gzip_file_is_an_input_error(tmp_path, cut):
    path = tmp_path / "a.txt.gz"
    with pytest.raises(InputError, match=r"a\.txt\.gz is damaged"):
        lines_of(path, gzip.compress(NEWS.encode() * 100)[:cut])
    with pytest.raises(InputError, match=r"a\.txt\.gz is damaged"):
        lines_of(path, b"not gzip")


def test_half_a_utf16_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cut off"):
        lines_of(tmp_path / "a.txt", NEWS.encode("utf-16")[:-1])


@pytest.mark.parametrize("name", ["utf-9", "hex"])
def test_an_unknown_encoding_is_an_input_error(name):
    with pytest.raises(InputError, match="no text encoding"):
        check_encoding(name)
    check_encoding("auto")
