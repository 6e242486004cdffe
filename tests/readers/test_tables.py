import pytest

from roformer_tf.errors import InputError
from roformer_tf.readers.kinds import kind_of
from roformer_tf.readers.tables import BLANK, Top, open_table


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.tsv", "tsv"),
        ("A.CSV.XZ", "csv"),
        ("a.ndjson.zst", "jsonl"),
        ("a.b.bio.gz", "conll"),
        ("train.char.bmes", "conll"),
        ("a.parquet", "parquet"),
        ("a.xlsx", "xlsx"),
        ("a.gz.txt", "txt"),
    ],
)
def test_the_file_name_determines_the_kind(tmp_path, name, kind):
    (tmp_path / name).touch()
    assert kind_of(tmp_path / name) == kind
    assert kind_of(f"memory://nowhere/{name}") == kind
    with pytest.raises(InputError, match="there is no file"):
        kind_of(tmp_path / f"no{name}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a", "of no kind"),
        ("a.gz", "of no kind"),
        ("a.tsv.bz2", r"of no kind .*\.tsv, .*\.xlsx, .*\.gz, \.xz, \.zst"),
        ("a.parquet.zst", "of no kind .*all but Parquet, Arrow and xlsx"),
        ("a.xls", r"Save it as \.xlsx or \.csv"),
        ("a.et", r"Save it as \.xlsx or \.csv"),
    ],
)
def test_unsupported_kinds_are_rejected(name, message):
    with pytest.raises(InputError, match=message):
        kind_of(f"memory://nowhere/{name}")


@pytest.mark.parametrize("name", ["example.train", "msra_test_bio", "a.txt"])
@pytest.mark.parametrize("line", ["京 B-LOC", "京\tNR\tO\r", "京 B_Time", "京 E"])
def test_lines_that_end_in_tags_are_conll(tmp_path, name, line):
    lines = [line, line, "", line, line, line, "未完"]
    (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    assert kind_of(tmp_path / name) == "conll"


@pytest.mark.parametrize("other", ["他 O 型", "京B-LOC", "今天"])
def test_texts_are_no_conll(tmp_path, other):
    path = tmp_path / "a.txt"
    path.write_text(
        "\n".join(["血型 B", "京 O", other, "血型 B", "京 O", "", ""]), encoding="utf-8"
    )
    assert kind_of(path) == "txt"
    with pytest.raises(InputError, match="of no kind"):
        kind_of(path.rename(tmp_path / "a.train"))


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
@pytest.mark.parametrize("has_header", [True, False])
def test_cells_are_keyed_by_column_names_or_numbers(tmp_path, suffix, has_header):
    delimiter = {".tsv": "\t", ".csv": ","}[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_text(f"text{delimiter} n \n\n甲{delimiter}1\n乙\n", encoding="utf-8")
    table = open_table(path, lambda rows: Top(0, has_header and rows[0] == ["text", " n "]))
    names = ("text", "n") if has_header else ("1", "2")
    assert (table.columns, table.has_header, table.sheet) == (names, has_header, "")
    rows = list(table.rows)[not has_header :]
    assert rows[0] == (f"{path}:2", {}, BLANK)
    assert rows[1] == (f"{path}:3", dict(zip(names, ["甲", "1"], strict=True)), "")
    assert rows[2].problem.startswith("has 1 instead of 2 columns")


def read_table(path, top, **settings):
    """Return the columns of a table and the cells or the problem of each row."""
    table = open_table(path, lambda rows: top, **settings)
    return table.columns, [list(row.cells.values()) or row.problem for row in table.rows]


def test_lines_above_the_header_are_skipped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("\n标题,\n\na,b\n\n1,2\n", encoding="utf-8")
    assert read_table(path, Top(1, True)) == (("a", "b"), [BLANK, ["1", "2"]])
    assert read_table(path, Top(1, False)) == (("1", "2"), [["a", "b"], BLANK, ["1", "2"]])
    assert read_table(path, Top(0, False))[1][:2] == [BLANK, ["标题", ""]]


def test_unnamed_columns_get_numbers_and_empty_padding_is_ignored(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,,2\n1,x,y,, \n3,4\n5,6,7,8\n", encoding="utf-8")
    columns, rows = read_table(path, Top(0, True))
    assert columns == ("a", "2.", "2")
    assert rows[0] == ["1", "x", "y"]
    assert rows[1].startswith("has 2 instead of 3 columns (is there a line break")
    assert rows[2].startswith("has 4 instead of 3 columns (is there a delimiter")


@pytest.mark.parametrize(
    ("name", "content", "columns", "notes"),
    [
        ("a.csv", "a;b\n1,5;x\n2,5;y\n", ("a", "b"), ("Its cells are separated by semicolons.",)),
        ("a.csv", "a\tb\n1\tx\n", ("a", "b"), ("Its cells are separated by tabs.",)),
        ("a.csv", "a,b\n1;x\n", ("a", "b"), ()),
        ("a.csv", "a;b\n1\n2\n", ("a;b",), ()),  # the other rows have no semicolon
        ("a.tsv", "a,b\n1,x\n", ("a", "b"), ("Its cells are separated by commas.",)),
        ("a.tsv", "a\n1,x\n", ("a",), ()),
    ],
)
def test_another_delimiter_is_detected_from_all_rows(tmp_path, name, content, columns, notes):
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    table = open_table(path, lambda rows: Top(0, True))
    assert (table.columns, table.notes) == (columns, notes)


def test_commas_in_texts_are_no_delimiter_without_known_columns(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("好，好\n坏，坏\n", encoding="utf-8")
    assert open_table(path, lambda rows: Top(0, False)).columns == ("1",)


def test_a_misleading_suffix_is_detected(tmp_path):
    for name, content, kind in [
        ("a.csv", b"PK\x03\x04", "xlsx"),
        ("a.xls", b"PK\x03\x04", "xlsx"),
        ("b.xls", b"a\tb\n", "tsv"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert kind_of(tmp_path / name) == kind
    for name, content, message in [
        ("c.xls", b"\xef\xbb\xbf<html>", "Save it as .xlsx or .csv"),
        ("d.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Save it as .xlsx or .csv"),
        ("e.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "Save it as .xlsx or .csv"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=message):
            kind_of(tmp_path / name)
