"""Bad data ends in one message and exit code 2 before anything is trained or written."""

import gzip
import io
import lzma
import re
from zipfile import ZipFile

import openpyxl
import pytest

from roformer_tf.cli import main

ROWS = [
    (f"第{number}条评论很{'好' if number % 2 else '差'}", str(number % 2)) for number in range(20)
]


def tsv(rows, header="text\tlabel"):
    return "\n".join([header, *("\t".join(row) for row in rows)]) + "\n"


def replaced(number, *row):
    return [*ROWS[:number], row, *ROWS[number + 1 :]]


def sheets():
    target = io.BytesIO()
    openpyxl.Workbook().save(target)
    return target.getvalue()


FILES = {
    "good.tsv": tsv(ROWS),
    "one_label.tsv": tsv([(text, "1") for text, _ in ROWS]),
    "unseen.tsv": tsv([("很好", "1"), ("一般", "2")]),
    "empty.tsv": "",
    "header.tsv": "text\tlabel\n",
    "newline.tsv": tsv(replaced(3, '"第一行\n第二行"', "1")),
    "nan.tsv": tsv(replaced(3, "很好", "nan")),
    "blank.tsv": tsv(replaced(3, "很好", "")),
    "cells.tsv": tsv(replaced(3, "很好", "1", "多余")),
    "three.tsv": tsv(ROWS[:3]),
    "mixed.tsv": tsv(ROWS).encode() + "编码不同\t1\n".encode("gb18030"),
    "numbers.tsv": tsv([(text, f"{n / 7:.3f}") for n, (text, _) in enumerate(ROWS)]),
    "pairs.tsv": tsv(
        [(t, t[1:], f"{n / 7:.3f}") for n, (t, _) in enumerate(ROWS)], "text_a\ttext_b\tscore"
    ),
    "groups.jsonl": "".join(
        f'{{"text": ["{t}", "{t[1:]}"]}}\n{{"text": "{t}"}}\n' for t, _ in ROWS
    ),
    "texts.jsonl": "".join(f'{{"text": "{t}"}}\n' for t, _ in ROWS),
    "matching.tsv": tsv([(t, t[1:]) for t, _ in ROWS], "query\tdocument"),
    "word.tsv": tsv([*((t, f"{n}.5") for n, (t, _) in enumerate(ROWS)), ("很好", "很高")]),
    "cut.tsv.gz": gzip.compress(tsv(ROWS * 50).encode())[:-20],
    "cut.tsv.xz": lzma.compress(tsv(ROWS * 50).encode())[:-20],
    "old.xls": b"",
    "secret.xlsx": bytes.fromhex("d0cf11e0a1b11ae1") + bytes(99),
    "sheets.xlsx": sheets(),
    "untagged.conll": "北\tB-LOC\n京\n",
    "text.docx": "文本",
}

BAD = {  # flags: parts of the message
    "--train nowhere.tsv": ["nowhere.tsv"],
    "--train empty.tsv": ["empty.tsv"],
    "--train header.tsv": ["header.tsv"],
    "--train text.docx": ["text.docx"],
    "--train . ": ["folder"],
    "--train old.xls": ["old.xls", "Save it as .xlsx"],
    "--train secret.xlsx": ["secret.xlsx is no .xlsx file, or damaged, or has a password"],
    "--train sheets.xlsx --sheet 二": ["sheets.xlsx", "no sheet '二'", "Sheet"],
    "--train good.tsv --sheet 一": ["good.tsv has no sheets", "remove --sheet"],
    "--train memory://nowhere/a.tsv.zst": ["memory://nowhere/a.tsv.zst", "no such file"],
    "--train cut.tsv.xz": ["cut.tsv.xz is damaged", "xz data"],
    "--train good.tsv --label-column stars": ["good.tsv", "stars", "text", "label"],
    "--train good.tsv --text-columns review": ["good.tsv", "review"],
    "--train one_label.tsv": ["'1'", "nothing can be learnt"],
    "--train good.tsv --test unseen.tsv": ["unseen.tsv", "'2'", "0, 1"],
    "--train pairs.tsv --task regression --test numbers.tsv": [
        "numbers.tsv:2 has another number of texts (1)"
    ],
    "--train groups.jsonl --task embedding": ["groups.jsonl:2 has a single text, unlike"],
    "--train texts.jsonl --task embedding --test matching.tsv": [
        "matching.tsv:2 has matching texts"
    ],
    "--train matching.tsv --task embedding --test texts.jsonl": ["texts.jsonl:1 has a single text"],
    "--strict --train blank.tsv": ["blank.tsv:5"],
    "--strict --train nan.tsv --task regression": ["nan.tsv:5"],
    "--strict --train cells.tsv": ["cells.tsv:5"],
    "--strict --train mixed.tsv": ["mixed.tsv"],
    "--strict --train word.tsv --task regression": ["word.tsv:22", "很高"],
    "--train cut.tsv.gz": ["cut.tsv.gz"],
    "--strict --train untagged.conll": ["untagged.conll:2"],
    "--train three.tsv": ["too few different texts to split: 3"],
    "--train good.tsv --task ranking": ["good.tsv", "the task ranking: 3, not 1"],
    "--train good.tsv --task tagging": ["good.tsv"],
    "--train good.tsv --metric f2": ["f2", "macro_f1"],
    "--train good.tsv --max-length 2": ["--max-length is 2"],
    "--train good.tsv --max-length 99999999": ["must be at least 3 and at most 100000"],
    "--train good.tsv --epochs 0": ["epochs is 0"],
    "--train good.tsv --micro-batches 3": ["cannot be divided into 3 micro-batches"],
    "--train good.tsv --folds 1": ["--folds is 1, but must be at least 2"],
    "--train good.tsv --folds 21": ["too few examples for 21 folds"],
    "--train good.tsv --valid-share 0": ["--valid-share is 0", "--valid"],
    "--train good.tsv --folds 3 --seeds 2": ["--seeds"],
    "--train good.tsv --layer-decay 0": ["--layer-decay is 0"],
    "--train good.tsv --learning-rate inf": ["--learning-rate is inf"],
    "--train good.tsv --learning-rate nan": ["--learning-rate is nan"],
    "--train good.tsv --label-smoothing 1": ["--label-smoothing is 1"],
    "--train numbers.tsv --focal 2": ["focal", "regression"],
    "--train good.tsv --checkpoint nothing": ["nothing"],
    "--train good.tsv --checkpoint repeated.zip": ["cannot be saved", "Remove repeated lines"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, released):
    folder = tmp_path_factory.mktemp("data")
    for name, content in FILES.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with ZipFile(released("char")) as source, ZipFile(folder / "repeated.zip", "w") as target:
        for name in source.namelist():
            more = b"[PAD]\n" if name.endswith("vocab.txt") else b""
            target.writestr(name, more + source.read(name))
    return folder


def run(*flags):
    """The exit code of a command that returns or exits."""
    try:
        return main(["finetune", *map(str, flags)])
    except SystemExit as stop:
        return stop.code


def words(message):
    """A message in one line, without the frame around wrong flags."""
    return " ".join(re.sub("[╭╮╰╯─│]", " ", message).split())


@pytest.mark.parametrize(("flags", "parts"), BAD.items(), ids=BAD)
def test_bad_data_end_in_one_message(flags, parts, folder, released, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    output = tmp_path / "run"
    checkpoint = [] if "--checkpoint" in flags else ["--checkpoint", released("char")]
    assert run(*checkpoint, *flags.split(), "--output", output) == 2
    message = words(capsys.readouterr().err)
    assert "Traceback" not in message
    for name in parts:
        assert name in message
    assert not output.exists()


@pytest.mark.usefixtures("eager_steps")
def test_line_breaks_and_long_texts_are_read_and_bad_rows_are_skipped(
    folder, released, tmp_path, capsys
):
    path, output = tmp_path / "both.tsv", tmp_path / "run"
    broken = (folder / "newline.tsv").read_text(encoding="utf-8").replace("text", "评论内容", 1)
    bad = "没有标签\t\n\t1\n多一列\t1\t1\n也没有\t \n"
    content = f"{broken}{bad}{'长' * 100_000}\t1\n"
    path.write_bytes(content.encode("gb18030"))
    flags = ["--checkpoint", released("char"), "--train", path, "--output", output]
    flags += ["--epochs", 1, "--max-length", 32, "--no-baseline"]
    assert run(*flags, "--strict") == 2
    actual = capsys.readouterr().err
    assert run(*flags) == 0
    out, err = capsys.readouterr()
    assert "text in column 评论内容, label in column label. It is read as GB18030." in out
    assert "4 of 25 rows skipped:\n" in err
    for place, problem in [
        ("23,26", "has no label"),
        ("24", "has an empty text in '评论内容'"),
        ("25", "has 3 instead of 2 columns"),
    ]:
        assert f"{path}:{place} {problem}" in actual
        assert f"  {path}:{place} {problem}" in err
    assert (output / "report.html").exists()


def test_an_output_folder_with_other_files_is_refused(folder, released, tmp_path, capsys):
    (tmp_path / "model").mkdir()
    flags = ["--checkpoint", released("char"), "--train", folder / "good.tsv"]
    assert run(*flags, "--output", tmp_path) == 2
    assert "no run started in this folder" in capsys.readouterr().err
