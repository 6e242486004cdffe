import pytest

from roformer_tf.errors import InputError
from roformer_tf.readers.tables import BLANK, kind_of, open_table


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.tsv", "tsv"),
        ("A.CSV.XZ", "csv"),
        ("a.ndjson.zst", "jsonl"),
        ("a.b.bio.gz", "conll"),
        ("a.parquet", "parquet"),
        ("a.xlsx", "xlsx"),
        ("a.gz.txt", "txt"),
    ],
)
def test_a_name_tells_the_kind(tmp_path, name, kind):
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
        ("a.tsv.bz2", r"of no kind .*\.tsv, .*\.xlsx, .*\.gz, \.xz, \.zst behind"),
        ("a.parquet.zst", "of no kind .*all but Parquet and xlsx"),
        ("a.xls", r"Save it as \.xlsx or \.csv"),
        ("a.et", r"Save it as \.xlsx or \.csv"),
    ],
)
def test_another_kind_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        kind_of(f"memory://nowhere/{name}")


@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
@pytest.mark.parametrize("has_header", [True, False])
def test_rows_have_the_names_of_their_columns_or_numbers(tmp_path, suffix, has_header):
    between = {".tsv": "\t", ".csv": ","}[suffix]
    path = tmp_path / f"a{suffix}"
    path.write_text(f"text{between} n \n\n甲{between}1\n乙\n", encoding="utf-8")
    table = open_table(path, lambda rows: has_header and rows[0] == ["text", " n "])
    names = ("text", "n") if has_header else ("1", "2")
    assert (table.columns, table.has_header, table.sheet) == (names, has_header, "")
    rows = list(table.rows)[not has_header :]
    assert rows[0] == (f"{path}:2", {}, BLANK)
    assert rows[1] == (f"{path}:3", dict(zip(names, ["甲", "1"], strict=True)), "")
    assert rows[2].problem.startswith("has 1 column, the first line 2")
