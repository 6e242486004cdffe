import datetime
import os
import sys
import tracemalloc
import zipfile
from xml.sax.saxutils import escape

import openpyxl
import pytest

from roformer_tf.errors import InputError
from roformer_tf.readers import spreadsheets
from roformer_tf.readers import streams as budget
from roformer_tf.readers.spreadsheets import UncomputedFormula, open_sheet

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def as_excel_writes(path, rows, strings=None, sheet=None, more=()):
    """Write a workbook with a shared string table, as Excel does and openpyxl does not.

    `strings` and `sheet` replace the XML of the table and of the sheet.
    """
    texts = list(dict.fromkeys(cell for row in rows for cell in row))
    cells = "".join(
        f'<row r="{i}">'
        + "".join(
            f'<c r="{"ABCD"[j]}{i}" t="s"><v>{texts.index(x)}</v></c>' for j, x in enumerate(r)
        )
        + "</row>"
        for i, r in enumerate(rows, start=1)
    )
    string_items = "".join(f"<si><t>{escape(text)}</t></si>" for text in texts)
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml."
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
        '<Default Extension="xml" ContentType="application/xml"/>'
        + "".join(
            f'<Override PartName="/xl/{name}.xml" ContentType="{kind}{what}+xml"/>'
            for name, what in [
                ("workbook", "sheet.main"),
                ("sheet", "worksheet"),
                ("strings", "sharedStrings"),
                ("styles", "styles"),
            ]
        )
        + "</Types>",
        "xl/workbook.xml": f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>'
        '<sheet name="一" sheetId="1" r:id="rId1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
        f'<Relationship Id="rId1" Type="{OFFICE}/worksheet" Target="sheet.xml"/></Relationships>',
        "xl/styles.xml": f'<styleSheet xmlns="{MAIN}"/>',
        "xl/strings.xml": strings or f'<sst xmlns="{MAIN}">{string_items}</sst>',
        "xl/sheet.xml": sheet
        or f'<worksheet xmlns="{MAIN}"><dimension ref="A1:XFD9"/>'
        f"<sheetData>{cells}</sheetData></worksheet>",
        **dict(more),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return path


def workbook(path, **sheets):
    """Write sheets, each a list of rows; a sheet is hidden if its name ends in an underscore."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name.rstrip("_"))
        if name.endswith("_"):
            sheet.sheet_state = "hidden"
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def cells(path, sheet=None):
    """Return the cells of each row by row number."""
    return {record.number: record.cells for record in open_sheet(path, sheet)[1]}


ROWS = [
    ["text", "label"],
    ["房间很干净 <b>&", "好"],
    ["早餐冷了\n服务差", "坏"],
    ["下次还来", "好"],
]


@pytest.mark.parametrize("write", [as_excel_writes, lambda path, rows: workbook(path, 一=rows)])
def test_cells_are_read_row_by_row(tmp_path, write):
    path = write(tmp_path / "a.xlsx", ROWS)
    assert cells(path) == dict(enumerate(ROWS, start=1))
    assert open_sheet(path)[0] == ""  # a single sheet is not named


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-3, "-3"),
        (0.1 + 0.2, "0.3"),
        (1e17, "100000000000000000"),
        (True, "TRUE"),
        (False, "FALSE"),
        (datetime.datetime(2024, 1, 31), "2024-01-31"),
        (datetime.date(2024, 1, 31), "2024-01-31"),
        (datetime.datetime(2024, 1, 31, 8, 5), "2024-01-31 08:05:00"),
        (datetime.time(8, 5), "08:05:00"),
        ("#N/A", ""),
        ("=1+1", ""),  # no stored value: no program has computed the formula yet
        ("a_x000D_\nb", "a\r\nb"),
        (" 1.0 ", " 1.0 "),
    ],
)
def test_a_cell_is_read_as_the_displayed_text(tmp_path, value, text):
    assert cells(workbook(tmp_path / "a.xlsx", a=[["x", value, "y"]])) == {1: ["x", text, "y"]}


def test_a_number_that_shows_leading_zeros_keeps_them(tmp_path):
    path = workbook(tmp_path / "a.xlsx", a=[["x", 7, 12]])
    book = openpyxl.load_workbook(path)
    for cell in ("B1", "C1"):
        book["a"][cell].number_format = "000"
    book.save(path)
    assert cells(path) == {1: ["x", "007", "012"]}


def test_empty_cells_are_read_and_formatted_empty_cells_ignored(tmp_path):
    path = tmp_path / "a.xlsx"
    book = openpyxl.Workbook()
    sheet = book.active
    for row in ([], ["text", "label", None], ["甲", "1"], [None, "0"], [], [None, None], ["乙"]):
        sheet.append(row)
    sheet["A7"] = "乙"
    sheet["Z3"].font = sheet["A99"].font = openpyxl.styles.Font(bold=True)
    book.save(path)
    assert cells(path) == {
        1: [],
        2: ["text", "label"],
        3: ["甲", "1"],
        4: ["", "0"],
        5: [],
        6: [],
        7: ["乙", ""],
    }


def merged_workbook(path, rows, ranges):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for merged_range in ranges:
        book.active.merge_cells(merged_range)
    book.save(path)
    return path


def test_a_merged_range_applies_to_each_nonempty_row(tmp_path):
    rows = [
        *(["评论", None, None], ["text", "label", "note"], [None, None, "more"]),
        *(["甲", "好", None], ["乙", None, None], [None, None, None], ["丙", None, None]),
        *(["丁", "坏", None], ["戊", None, None], ["己", "坏", None]),
    ]
    ranges = ["A1:C1", "A2:A3", "B2:B3", "B4:C7", "B8:B9"]
    path = merged_workbook(tmp_path / "a.xlsx", rows, ranges)
    assert open_sheet(path)[2] == 4  # A1:C1 has a single row and is not counted
    assert cells(path) == {
        1: ["评论"],
        2: ["text", "label", "note"],
        3: ["text", "label", "more"],
        4: ["甲", "好"],
        5: ["乙", "好"],
        6: [],
        7: ["丙", "好"],
        8: ["丁", "坏"],
        9: ["戊", "坏"],
        10: ["己", "坏"],
    }


def test_a_merged_range_counts_once_wherever_a_chunk_ends(tmp_path, monkeypatch):
    path = merged_workbook(tmp_path / "a.xlsx", [["甲", 1], [None, 2]], ["A1:A2"])
    for size in range(40, 90):
        monkeypatch.setattr(spreadsheets, "PIECE", size)
        assert open_sheet(path)[2] == 1, size


@pytest.mark.parametrize("name", ["一", "二"])
def test_merged_ranges_of_other_sheets_are_ignored(tmp_path, name):
    book = openpyxl.Workbook()
    book.active.title = "一"
    for sheet in (book.active, book.create_sheet("二")):
        for row in (["甲", "好"], ["乙", None], ["丙", None]):
            sheet.append(row)
    book["二"].merge_cells("B1:B2")
    book.save(tmp_path / "a.xlsx")
    want = {"一": ["好", "", ""], "二": ["好", "好", ""]}[name]
    actual = cells(tmp_path / "a.xlsx", name)
    assert [actual[number][1] for number in actual] == want


def test_a_formula_without_a_stored_value_is_marked(tmp_path):
    sheet = "".join(
        f'<row r="{i}"><c r="A{i}" t="inlineStr"><is><t>甲</t></is></c>'
        f'<c r="B{i}"{kind}><f>IF(A{i}="x",1,0)</f>{value}</c></row>'
        for i, (kind, value) in enumerate(
            [("", "<v/>"), ("", ""), ("", "<v>1</v>"), (' t="str"', "<v></v>")], start=1
        )
    )
    path = as_excel_writes(tmp_path / "a.xlsx", ROWS, sheet=sheet_of(sheet))
    actual = [row[1] for row in cells(path).values()]
    assert actual == ["", "", "1", ""]
    assert [type(cell) is UncomputedFormula for cell in actual] == [True, True, False, False]


def test_cells_that_share_a_long_text_count_towards_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "UNSUSPICIOUS", 1 << 20)
    rows = "".join(f'<row r="{i}"><c r="A{i}" t="s"><v>0</v></c></row>' for i in range(1, 500))
    strings = sst(f"<si><t>{'x' * 100_000}</t></si>")
    path = as_excel_writes(tmp_path / "a.xlsx", ROWS, strings=strings, sheet=sheet_of(rows))
    with pytest.raises(InputError, match=r"a\.xlsx has 0\.00 MB, but unpacks to more than"):
        cells(path)


def test_a_row_longer_than_the_first_keeps_its_cells(tmp_path):
    path = workbook(tmp_path / "a.xlsx", a=[["text", "label"], ["甲", "1", None, "x"]])
    assert cells(path)[2] == ["甲", "1", "", "x"]


def test_the_first_visible_or_given_sheet_is_read(tmp_path):
    path = workbook(tmp_path / "a.xlsx", old_=[["a"]], 评论=[["b"]], test=[["c"]])
    assert (open_sheet(path)[0], cells(path)) == ("评论", {1: ["b"]})
    assert (open_sheet(path, "test")[0], cells(path, "test")) == ("test", {1: ["c"]})
    assert cells(path, "old") == {1: ["a"]}
    with pytest.raises(InputError, match=r"a\.xlsx has no sheet 'Test'. It has: old, 评论, test\."):
        open_sheet(path, "Test")


def test_the_first_visible_sheet_with_cells_is_read(tmp_path):
    path = workbook(tmp_path / "a.xlsx", old_=[["a"]], Sheet1=[], 说明=[[None, " "]], 数据=[["b"]])
    assert (open_sheet(path)[0], cells(path)) == ("数据", {1: ["b"]})
    path = workbook(tmp_path / "b.xlsx", Sheet1=[], Sheet2=[])
    assert (open_sheet(path)[0], cells(path)) == ("Sheet1", {})


def test_a_missing_openpyxl_gives_an_install_command(tmp_path, monkeypatch):
    path = workbook(tmp_path / "a.xlsx", a=ROWS)
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(InputError, match=r"a\.xlsx .*pip install 'roformer-tf\[xlsx\]'.* \.csv"):
        open_sheet(path)


def test_damaged_files_are_rejected(tmp_path):
    path = as_excel_writes(tmp_path / "a.xlsx", ROWS)
    valid_content = path.read_bytes()
    damaged_contents = {
        "text": b"text,label\n",
        "cut": valid_content[:-100],
        "encrypted": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600),
        "other zip": b"PK\x05\x06" + bytes(18),
    }
    for damaged in damaged_contents.values():
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"no \.xlsx file, or damaged, or has a password"):
            cells(path)


@pytest.mark.parametrize(
    "sheet",
    [
        f'<worksheet xmlns="{MAIN}"><sheetData><row r="1"><c r="A1" t="s"><v>99</v></c></row>',
        f'<worksheet xmlns="{MAIN}"><sheetData><row r="1"><c r="A1"><v>x</v></c></row>',
        f'<worksheet xmlns="{MAIN}"><sheetData><row>',
        "text",
    ],
)
def test_damaged_sheets_are_rejected(tmp_path, sheet):
    path = as_excel_writes(tmp_path / "a.xlsx", ROWS, sheet=sheet)
    with pytest.raises(InputError, match=r"a\.xlsx is no \.xlsx file, or damaged, .*Save it again"):
        cells(path)


def sst(content):
    return f'<sst xmlns="{MAIN}">{content}</sst>'


def sheet_of(content):
    return f'<worksheet xmlns="{MAIN}"><sheetData>{content}</sheetData></worksheet>'


BOMBS = {
    "a large text": {"strings": sst(f"<si><t>{'x' * 70_000_000}</t></si>")},
    "a folder of zeros": {"more": [("xl/zeros.bin", bytes(70_000_000))]},
}


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bombs_are_rejected_before_unpacking(tmp_path, name):
    path = as_excel_writes(tmp_path / "a.xlsx", ROWS, **BOMBS[name])
    tracemalloc.start()
    with pytest.raises(InputError, match=r"a\.xlsx has 0\.\d\d MB, but unpacks to more than"):
        open_sheet(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 << 20


@pytest.mark.slow
def test_a_file_with_a_photo_and_many_rows_needs_little_memory(tmp_path):
    photo = [("xl/media/photo.png", os.urandom(3_000_000))]
    rows = [["text", "label"], *([f"第{n}条评论，" + "很好" * 20, str(n % 2)] for n in range(5000))]
    path = as_excel_writes(tmp_path / "a.xlsx", rows, more=photo)
    tracemalloc.start()
    assert sum(len(record.cells) == 2 for record in open_sheet(path)[1]) == 5001
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20
