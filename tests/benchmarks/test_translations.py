import gettext
import json
import struct

import pytest

from benchmarks.search.translations import TranslationConfig, catalogue, main
from roformer_tf.errors import InputError

STRINGS = {
    "": "Content-Type: text/plain; charset=UTF-8\n",
    "colordialog|title\x04Font ~Color...": "字体颜色(~C)...",
    "<b>Open</b> file": "打开\n文件",
    "%1 row\0%1 rows": "%1 行\0%1 行",
    "untranslated": "untranslated",
    "2 x": "二",
}


def write_catalogue(path, strings):
    """Write a .mo file in the layout of the gettext manual, which Python's gettext also reads."""
    rows = sorted((a.encode(), b.encode()) for a, b in strings.items())
    begin, texts, tables = 28 + 16 * len(rows), b"", ([], [])
    for side, table in enumerate(tables):
        for row in rows:
            table.append(struct.pack("<2I", len(row[side]), begin + len(texts)))
            texts += row[side] + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(rows), 28, 28 + 8 * len(rows), 0, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head + b"".join(tables[0] + tables[1]) + texts)


def test_catalogue_agrees_with_pythons_gettext(tmp_path):
    path = tmp_path / "cui.mo"
    write_catalogue(path, STRINGS)
    actual = dict(catalogue(path))
    with path.open("rb") as file:
        reference = gettext.GNUTranslations(file)
    assert actual["Font ~Color..."] == reference.pgettext("colordialog|title", "Font ~Color...")
    assert actual["%1 row"] == reference.ngettext("%1 row", "%1 rows", 1)
    assert actual["<b>Open</b> file"] == reference.gettext("<b>Open</b> file")
    assert len(actual) == len(STRINGS)


def test_strings_become_unique_pairs_without_markup(tmp_path):
    for name in ("a/cui.mo", "b/sw.mo"):
        write_catalogue(tmp_path / "package" / name, STRINGS)
    output = tmp_path / "pairs.jsonl"
    main(TranslationConfig(output, tmp_path / "package"))
    rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert rows == [
        {"chinese": "%1 行", "english": "%1 row"},
        {"chinese": "字体颜色...", "english": "Font Color..."},
        {"chinese": "打开 文件", "english": "Open file"},
    ]


def test_folders_without_catalogues_are_refused(tmp_path):
    output = tmp_path / "pairs.jsonl"
    with pytest.raises(InputError, match="holds no catalogue"):
        main(TranslationConfig(output, tmp_path))
    (tmp_path / "sw.mo").write_bytes(b"something else, long enough for a head")
    with pytest.raises(InputError, match=r"sw\.mo is no catalogue of gettext"):
        main(TranslationConfig(output, tmp_path))
    assert not output.exists()
