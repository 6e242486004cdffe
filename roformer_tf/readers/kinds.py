"""The kind of a file of examples, from its name and its first bytes."""

import re
from pathlib import Path

from roformer_tf.errors import InputError
from roformer_tf.readers.streams import DECOMPRESSORS, StoredFile, is_url, opened_as_stored
from roformer_tf.translation import Message

KINDS = {  # by the suffix of the name, without that of a compression
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".xlsx": "xlsx",
    ".xlsm": "xlsx",
    ".conll": "conll",
    ".bio": "conll",
    ".bmes": "conll",
    ".ann": "brat",
    ".txt": "txt",
}
# Kinds that cannot be read; their programs can save .xlsx or .csv.
SPREADSHEETS = (".xls", ".xlsb", ".ods", ".et", ".numbers")

# First bytes of an .xlsx and of an .xls file.
_ZIP = b"PK\x03\x04"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# Lines of a CoNLL file, which end in a tag, then the start of another line.
_TAGGED = re.compile(rb"((\S+[ \t])+(O|[BIMESLU]([-_]\S+)?)[ \t]*\r?\n\s*){5,}[^\n]*")


def kind_of(path: str | Path, sheet: str | None = None) -> str:
    """The kind of a file, one of the values of `KINDS`.

    Raises InputError for another kind or folder, and for a sheet of a file that has no sheets.
    """
    kind = _kind_of(path)
    if sheet is not None and kind != "xlsx":
        raise InputError(
            f"{path} has no sheets, as an .xlsx file has: remove --sheet, or save sheets as files."
        )
    return kind


def _kind_of(path: str | Path) -> str:
    if not is_url(path) and Path(path).is_dir():
        return _kind_of_folder(Path(path))
    file = StoredFile(str(path))
    is_here = not is_url(path) and Path(path).exists()
    # The content of a URL is not examined: it would be fetched for that.
    kind = _by_content(path, file) if is_here else ""
    if kind == "xls" or (file.kind in SPREADSHEETS and not kind):
        raise InputError(
            Message(
                "{path} is a spreadsheet or a page of a kind that cannot be read. Save it as "
                ".xlsx or .csv.",
                path=path,
            )
        )
    kind = kind or KINDS.get(file.kind, "")
    # Parquet, Arrow and xlsx need random access, which a compressed file does not have.
    if not kind or (kind in ("parquet", "arrow", "xlsx") and file.compression):
        raise InputError(
            Message(
                "{path} is of no kind that can be read. Its name has to end in one of {kinds}; all "
                "but Parquet, Arrow and xlsx may be compressed: {compressions}.",
                path=path,
                kinds=", ".join(KINDS),
                compressions=", ".join(DECOMPRESSORS),
            )
        )
    if not is_here and not is_url(path):
        raise InputError(
            Message("there is no file {path}. Check the path and the spelling.", path=path)
        )
    return kind


def _kind_of_folder(path: Path) -> str:
    """Of annotations of brat, or of a data set saved by `datasets`."""
    if any(path.glob("*.ann")):
        return "brat"
    if arrow_files(path):
        return "arrow"
    # A DatasetDict has a folder for each split.
    if splits := sorted({file.parent.name for file in path.glob("*/*.arrow")}):
        names = " or ".join(f"{path}/{name}" for name in splits)
        raise InputError(f"{path} holds several data sets. Give one: {names}.")
    raise InputError(Message("{path} is a folder. Give a file in it.", path=path))


def _by_content(path: str | Path, file: StoredFile) -> str:
    """The kind of a file with the suffix of another kind; "" if the suffix is right.

    Exports of web sites are often such files.
    """
    # .xls is in use for spreadsheets, tab-separated text and HTML.
    text = KINDS.get(file.kind) in ("csv", "tsv", "txt")
    known = text or file.kind == ".xls"
    if file.compression or (file.kind in KINDS and not text):
        return ""
    with opened_as_stored(path) as raw:
        head = raw.read(4096)
    # Corpora of names are called example.train or msra_bio.txt as often as x.conll.
    if KINDS.get(file.kind, "txt") == "txt" and _TAGGED.fullmatch(head):
        return "conll"
    if known and head.startswith(_ZIP):
        return "xlsx"
    if text and head.startswith(b"\x1f\x8b"):
        raise InputError(f"{path} is compressed by gzip. Add .gz to its name.")
    if head.startswith(_OLE):
        return "xls"
    # Only .xls files remain for this: a page of HTML may be indented by tabs.
    is_page = head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")
    return "tsv" if b"\t" in head and not (text or is_page) else ""


def arrow_files(path: str | Path) -> list[str | Path]:
    """The file, or the files of a folder that `datasets` saved, in their order."""
    if is_url(path) or not Path(path).is_dir():
        return [path]
    return sorted(p for p in Path(path).glob("*.arrow") if not p.name.startswith("cache-"))
