"""`roformer-tf predict`, in this process because TensorFlow takes long to start."""

import csv
import dataclasses
import gzip
import io
import json
import os
import re
import shutil
import sys
from importlib.util import find_spec

import numpy as np
import openpyxl
import pytest
from backports import zstd

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.finetuning import labelled_evaluation
from roformer_tf.inference import predict_file
from roformer_tf.inference.embed import chunks
from roformer_tf.kernels.accelerators import device_in_words
from roformer_tf.labelled.examples import Example
from roformer_tf.serving.serve_predictions import as_example
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.extraction.question_answering import QuestionAnswering
from roformer_tf.tasks.tagging import Tagging
from tests.support.finetuned import load_finetuned, predict
from tests.support.random_model import LETTERS, save_random_models
from tests.support.service_app import served_task

TASKS = {
    "classification": Classification(labels=("坏", "好")),
    "pair": Pair(labels=("0", "1"), text_columns=("text_a", "text_b")),
    "tagging": Tagging(labels=("B-LOC", "I-LOC", "O")),
    "words": Tagging(labels=("ADJ", "NOUN"), spaced_units=True),
    "question-answering": QuestionAnswering(
        text_columns=("question", "context"), max_length=23, long_texts="windows"
    ),
}
HEADER = "label\tp(坏)\tp(好)\terror"


@pytest.fixture(scope="module")
def finetuned(tmp_path_factory):
    """finetuned(name) → the folder of a random model for that task."""
    return save_random_models(TASKS, tmp_path_factory.mktemp("finetuned")).__getitem__


@pytest.fixture
def type_in(monkeypatch):
    """type_in(bytes): set the standard input."""

    def set_input(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return set_input


def texts_of(count, seed=0):
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(2.5, 1, count), 1, 300).astype(int)
    return ["".join(rng.choice(list(LETTERS), length)) for length in lengths]


def expected(folder, texts):
    """The label and the probability of 好 for each text, predicted one at a time."""
    model, tokenizer, task = load_finetuned(folder)
    predictions = [predict(model, tokenizer, task, [Example((t,), None, "")])[0] for t in texts]
    return [(item.label, float(item.scores[1])) for item in predictions]


def test_from_file_to_file_in_order(finetuned, tmp_path, monkeypatch, capfd):
    """Several chunks with batches sorted by length give one line per text, in order."""
    monkeypatch.setattr(predict_file, "CHUNK", 30)
    texts = texts_of(100)
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    output = tmp_path / "new" / "answers.tsv"
    flags = ["--model", str(finetuned("classification")), "--input", str(tmp_path / "texts.txt")]
    assert main(["predict", *flags, "--output", str(output), "--batch-size", "8"]) == 0
    header, *lines = output.read_text(encoding="utf-8").split("\n")[:-1]
    assert header == HEADER
    rows = [line.split("\t") for line in lines]
    for (label, probability), (got, _, p_good, error) in zip(
        expected(finetuned("classification"), texts), rows, strict=True
    ):
        assert (got, error) == (label, "")
        assert float(p_good) == pytest.approx(probability, abs=1e-5)
    labels = [label for label, *_ in rows]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("100 of 100 texts predicted; ")
    assert err.count("\n") == 1
    assert all(f"{label}: {labels.count(label)}" in err for label in ("好", "坏"))


def test_from_stdin_to_stdout(finetuned, type_in, capfd):
    type_in("今天很好\n我们去公园\n".encode())
    assert main(["predict", "--model", str(finetuned("classification"))]) == 0
    out, err = capfd.readouterr()
    header, *lines = out.splitlines()
    assert (header, len(lines)) == (HEADER, 2)
    assert err.startswith("2 of 2 texts predicted; ")
    assert all(line.split("\t")[0] in ("坏", "好") for line in lines)


@pytest.mark.parametrize("name", ["x.txt", "stdin"])
def test_lines_of_texts_have_no_columns(name, finetuned, type_in, capfd, tmp_path):
    content = "label\ttext\n好\t今天很好\n" if name == "stdin" else "今天很好\n"
    type_in(content.encode())
    (tmp_path / "x.txt").write_text(content, "utf-8")
    words = ["predict", "--model", str(finetuned("classification")), "--text-columns", "text"]
    assert main(words + ["--input", str(tmp_path / name)] * (name != "stdin")) == 2
    out, err = capfd.readouterr()
    assert (out, "has one text in each line, but --text-columns" in err) == ("", True)


def test_an_empty_file_is_refused(finetuned, capfd, tmp_path):
    (tmp_path / "x.txt").touch()
    words = ["predict", "--model", str(finetuned("classification"))]
    assert main([*words, "--input", str(tmp_path / "x.txt")]) == 2
    assert "x.txt holds no text" in capfd.readouterr().err


def test_empty_input_gives_only_a_header(finetuned, type_in, capfd):
    type_in(b"")
    assert main(["predict", str(finetuned("classification")), "--engine", "keras"]) == 0
    printed = f"0 of 0 texts predicted; device: {device_in_words()}.\n"
    assert capfd.readouterr() == (HEADER + "\n", printed)


def test_the_summary_is_in_the_requested_language(finetuned, type_in, capfd):
    type_in("今天\n天气".encode())
    words = ["--language", "zh", "predict", "--model", str(finetuned("classification"))]
    assert main(words) == 0
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 3
    assert re.fullmatch(r"共 2 条文本，预测了 2 条；标签 [好坏]: \d.*；设备：CPU.*。\n", err)


@pytest.mark.parametrize(
    ("task", "counted"),
    [("words", "labels (ADJ: 2|NOUN: 2|(ADJ: 1, NOUN|NOUN: 1, ADJ): 1)"), ("tagging", "entities ")],
)
def test_the_summary_counts_entities_or_plain_tags(task, counted, finetuned, type_in, capfd):
    type_in("今天 天气\n".encode())
    assert main(["predict", str(finetuned(task))]) == 0
    assert re.match(f"1 of 1 texts predicted; {counted}", capfd.readouterr().err)


@pytest.mark.parametrize(
    ("labels", "counted"), [("BEMS", "words 3; device"), ("BIO", r"entities span: \d; device")]
)
def test_the_summary_counts_the_words_of_segmentation(labels, counted):
    task = Tagging(labels=tuple(labels), long_texts="windows")
    tags = {"BEMS": "BEBES", "BIO": "BIBIO"}[labels]
    table = predict_file._Table(task, predict_file.PredictConfig(model="m", input="-"))
    table.count += 1
    table.kinds.update(task.metrics.count_kinds([tuple(tags)]))
    assert re.match(f"1 of 1 texts predicted; {counted}", table.summary(["device: the CPU"]))


def test_the_summary_is_one_line_whatever_a_label_is_called():
    task = Classification(labels=("好", "不\n好"))
    table = predict_file._Table(task, predict_file.PredictConfig(model="m", input="-"))
    table.kinds["不\n好"] += 2
    assert "; labels 不\\n好: 2; device" in table.summary(["device: the CPU"])


def test_a_bad_line_keeps_its_place_and_is_reported(finetuned, tmp_path, capfd):
    rows = [{"text": "今天"}, {"title": "?"}, "no object", {"text": "a\tb\nc"}, {"text": "天气"}]
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    with gzip.open(tmp_path / "texts.jsonl.gz", "wt") as file:
        file.write("\n".join(lines))
    flags = ["--model", str(finetuned("classification"))]
    assert main(["predict", *flags, "--input", str(tmp_path / "texts.jsonl.gz")]) == 0
    out, err = capfd.readouterr()
    results = [line.split("\t") for line in out.splitlines()[1:]]
    assert [bool(error) for *_, error in results] == [False, True, True, False, False]
    assert [len(result) for result in results] == [4] * 5
    assert results[1] == ["", "", "", "has no 'text'"]
    assert "texts.jsonl.gz: text in column text.\nrows without a prediction: 2 of 5\n" in err
    assert "texts.jsonl.gz:2 has no 'text'\n" in err
    assert "texts.jsonl.gz:3 is not JSON\n" in err
    assert "\n3 of 5 texts predicted; " in err


def test_bad_rows_of_all_chunks_are_reported_together(finetuned, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(predict_file, "CHUNK", 3)
    (tmp_path / "x.txt").write_text("今天\n" + "\n" * 10, encoding="utf-8")
    flags = ["--model", str(finetuned("classification")), "--input", str(tmp_path / "x.txt")]
    assert main(["predict", *flags]) == 0
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 12
    path = tmp_path / "x.txt"
    result, bad, summary = err.splitlines()
    assert (result, bad) == (
        "rows without a prediction: 10 of 11",
        f"  {path}:2-11 is blank",
    )
    assert summary.startswith("1 of 11 texts predicted; ")
    assert "; device: the CPU" in summary
    output = ["--output", str(tmp_path / "new.tsv")]
    assert main(["predict", *flags, "--strict", *output]) == 2
    err = capfd.readouterr().err
    assert f"{result}\n{bad}\nFix them, or run without --strict." in err
    assert not (tmp_path / "new.tsv").exists()


def test_predicted_tags_of_words_are_read_back_with_these_words(finetuned, tmp_path, capfd):
    words = [["New York", "很大"], ["天气", "好"]]
    lines = [json.dumps({"tokens": tokens}) for tokens in words]
    (tmp_path / "new.jsonl").write_text("\n".join(lines), encoding="utf-8")
    flags = ["--model", str(finetuned("words")), "--text-columns"]
    texts = []
    for kind in ("jsonl", "tsv"):
        output = tmp_path / f"tags.{kind}"
        new = ["tokens", "--input", str(tmp_path / "new.jsonl"), "--with-text"]
        assert main(["predict", *flags, *new, "--output", str(output)]) == 0
        texts.append([x.partition("\t")[0] for x in output.read_text("utf-8").splitlines()])
    tags = tmp_path / "tags.jsonl"
    assert [json.loads(line)["text"] for line in texts[0]] == words
    assert texts[1][1:] == ['["New York", "很大"]', "天气 好"]
    again = ["text", "--input", str(tmp_path / "tags.tsv"), "--output", str(tmp_path / "2.tsv")]
    assert main(["predict", *flags, *again, "--with-text"]) == 0
    assert (tmp_path / "2.tsv").read_text("utf-8") == (tmp_path / "tags.tsv").read_text("utf-8")
    assert main(["evaluate", *flags, "text", "--label-column", "tags", "--data", str(tags)]) == 0
    assert "100.0%" in capfd.readouterr().out


def test_a_question_that_is_cut_is_counted(finetuned, tmp_path, capfd):
    """A context is read in windows; a question has at most half of a row, without [CLS], [SEP]."""
    (tmp_path / "asked.csv").write_text(
        f"question,context\n天,{'气' * 90}\n{'天' * 13},气\n", encoding="utf-8"
    )
    output = tmp_path / "answers.csv"
    flags = ["--input", str(tmp_path / "asked.csv"), "--output", str(output)]
    assert main(["predict", str(finetuned("question-answering")), *flags]) == 0
    assert "; 1 cut to fit 23 tokens (column tokens_cut)" in capfd.readouterr().err
    with output.open(encoding="utf-8-sig") as file:
        assert [row["tokens_cut"] for row in csv.DictReader(file)] == ["", "3"]


def test_without_a_valid_line_nothing_is_written(finetuned, tmp_path, capfd):
    (tmp_path / "x.txt").write_text(" \n\n", encoding="utf-8")
    output = tmp_path / "answers.tsv"
    flags = ["--model", str(finetuned("classification")), "--input", str(tmp_path / "x.txt")]
    assert main(["predict", *flags, "--output", str(output)]) == 2
    assert "rows without a prediction: 2 of 2" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]


def test_columns_of_training_and_json_lines(finetuned, tmp_path):
    content = "id\ttext_b\ttext_a\n7\t今天\t天气\n8\t天气\t今天\n"
    (tmp_path / "pairs.tsv").write_text(content, encoding="utf-8")
    output = tmp_path / "answers.jsonl"
    flags = ["--model", str(finetuned("pair")), "--input", str(tmp_path / "pairs.tsv")]
    assert main(["predict", *flags, "--output", str(output)]) == 0
    actual = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert all("tokens_cut" not in item for item in actual)
    examples = [Example(texts, None, "") for texts in (("天气", "今天"), ("今天", "天气"))]
    for got, want in zip(
        actual, predict(*load_finetuned(finetuned("pair")), examples), strict=True
    ):
        assert (got["label"], got["error"]) == (want.label, None)
        assert [got["p(0)"], got["p(1)"]] == pytest.approx(want.scores.tolist(), abs=1e-5)


def test_spreadsheets_and_compressed_files_give_the_same_predictions(finetuned, tmp_path):
    book = openpyxl.Workbook()
    book.active.title = "旧的"
    sheet = book.create_sheet("新的")
    texts = ["今天很好", "我们去公园", "天气"]
    for row in [["id", "text"], *enumerate(texts, start=1)]:
        sheet.append(row)
    book.save(tmp_path / "a.xlsx")
    (tmp_path / "b.txt").write_text("\n".join(texts), encoding="utf-8")
    (tmp_path / "c.txt.zst").write_bytes(zstd.compress("\n".join(texts).encode("gb18030")))
    results = []
    for name, flags in (("a.xlsx", ["--sheet", "新的"]), ("b.txt", []), ("c.txt.zst", [])):
        flags += ["--input", str(tmp_path / name), "--output", str(tmp_path / f"{name}.tsv")]
        assert main(["predict", "--model", str(finetuned("classification")), *flags]) == 0
        results.append((tmp_path / f"{name}.tsv").read_text(encoding="utf-8"))
    assert len(results[0].splitlines()) == 4
    assert results[0] == results[1] == results[2]


def test_tags_are_written_at_the_positions_of_the_text(finetuned, type_in, capfd):
    type_in("我们 去公园\n".encode())
    assert main(["predict", "--model", str(finetuned("tagging"))]) == 0
    header, line = capfd.readouterr().out.splitlines()
    tags, actual, error = line.split("\t")
    assert (header, error) == ("tags\tentities\terror", "")
    assert len(tags.split(" ")) == 6  # a space is a character too
    for start, end, kind, text in json.loads(actual):
        assert (kind, text) == ("LOC", "我们 去公园"[start:end])


def test_a_closed_pipe_is_not_an_error(finetuned, type_in, monkeypatch):
    """`| head -1` closes the pipe like this."""
    type_in("今天\n".encode() * 5)
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["predict", "--model", str(finetuned("classification"))]) == 0


@pytest.mark.parametrize("lines", [0, 1])
def test_evaluate_ends_without_an_error_if_its_reader_has_read_enough(
    lines, finetuned, tmp_path, monkeypatch
):
    data = tmp_path / "data.tsv"
    data.write_text("text\tlabel\n今天\t好\n天气\t坏\n", encoding="utf-8")
    read, write = os.pipe()
    if not lines:
        os.close(read)  # `| head -0`, before the first message
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        if lines:  # `| head -1`, between the message about the columns and the figures
            monkeypatch.setattr(labelled_evaluation, "evaluated", closing(read))
        flags = ["--model", str(finetuned("classification")), "--data", str(data)]
        assert main(["evaluate", *flags]) == 0


def closing(pipe):
    """Return `evaluated`, which first closes a pipe."""
    evaluated = labelled_evaluation.evaluated

    def close_and_evaluate(*arguments):
        os.close(pipe)
        return evaluated(*arguments)

    return close_and_evaluate


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--input", "missing.txt"], "missing.txt"),
        (["--encoding", "klingon"], "klingon"),
        (["--output", "x.txt/answers.tsv"], "cannot write x.txt/answers.tsv"),
        (["--input", "other.tsv"], "text"),
        (["--input", "other.tsv", "--sheet", "一"], "other.tsv has no sheets"),
        (["--input", "memory://nowhere/x.tsv"], "cannot read memory://nowhere/x.tsv"),
    ],
)
def test_impossible_requests_give_one_message(
    finetuned, tmp_path, monkeypatch, capfd, flags, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("今天\n", encoding="utf-8")
    (tmp_path / "other.tsv").write_text("a\tb\n今天\t1\n", encoding="utf-8")
    model = ["--model", str(finetuned("classification"))]
    arguments = model + (flags if "--input" in flags else [*flags, "--input", "x.txt"])
    assert main(["predict", *arguments]) == 2
    out, err = capfd.readouterr()
    assert message in err
    assert out == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.tsv", "x.txt"]


def test_invalid_settings_are_refused():
    with pytest.raises(InputError, match="batch_size is 0"):
        predict_file.PredictConfig(model="x", batch_size=0)
    with pytest.raises(InputError, match="is a folder"):
        predict_file.predict_file(predict_file.PredictConfig(model="x", output="."))


def test_a_model_that_is_not_fine_tuned_is_refused(released, capfd):
    assert main(["predict", "--model", str(released("hf_word"))]) == 2
    assert "no fine-tuned model" in capfd.readouterr().err


def test_input_is_read_chunk_by_chunk():
    """Memory does not grow with the input: each chunk is predicted before the next one is read."""
    read = []

    def lines():
        for number in range(10_000):
            read.append(number)
            yield Example(("好" * (number % 50),), None, f"x:{number}")

    predicted = count = 0
    for chunk in chunks(lines(), 100, 1000, lambda example: len(example.texts[0])):
        predicted += len(chunk)
        count += 1
        assert len(read) == predicted
        assert len(chunk) <= 100
        assert sum(len(item.texts[0]) for item in chunk[:-1]) < 1000
    assert predicted == 10_000
    assert count < 300  # of 1000 characters: a text has 24.5 on average


def test_first_line_sets_whether_there_is_a_header(finetuned, tmp_path, capfd):
    folder = shutil.copytree(finetuned("classification"), tmp_path / "model")
    dataclasses.replace(TASKS["classification"], text_columns=("1",)).save(folder)
    (tmp_path / "x.tsv").write_text("text\tlabel\n今天\t好\n", encoding="utf-8")
    flags = ["predict", "--model", str(folder), "--input", str(tmp_path / "x.tsv")]
    for more, lines in ([], 1), (["--first-line", "example"], 2), (["--first-line", "header"], 1):
        assert main([*flags, *more]) == 0
        assert len(capfd.readouterr().out.splitlines()) == 1 + lines


SPREADSHEET = [  # a typical spreadsheet: some cells contain no text
    ("编号", "评论内容", "备注"),
    *((1, "今天很好", None), (2, None, "空"), (3, "我们\n去公园", None), (4, "=我们去", None)),
    (5, "今天气很好我们去公园学习" * 50, None),
]


def test_outputs_of_a_spreadsheet_have_its_texts_and_the_truncated_tokens(
    finetuned, tmp_path, capfd
):
    book = openpyxl.Workbook()
    for row in SPREADSHEET:
        book.active.append(row)
    book.active["B5"].data_type = "s"  # otherwise a formula
    book.save(tmp_path / "问.xlsx")
    folder = shutil.copytree(finetuned("classification"), tmp_path / "model")
    dataclasses.replace(TASKS["classification"], max_length=128).save(folder)
    rows = {}
    for kind in ("xlsx", "csv", "tsv", "jsonl"):
        output = tmp_path / "out" / f"答.{kind}"
        flags = ["--input", str(tmp_path / "问.xlsx"), "--output", str(output), "--with-text"]
        assert main(["predict", "--model", str(folder), *flags]) == 0
        err = capfd.readouterr().err
        assert "问.xlsx: text in column 评论内容 (by its name).\n" in err
        assert "问.xlsx:3 has an empty text in '评论内容'\n" in err
        assert "4 of 5 texts predicted; " in err
        assert "; 1 cut to fit 128 tokens (column tokens_cut)" in err
        assert ("cells that look like a formula: 1 (" in err) == (kind == "csv")
        if kind == "xlsx":
            read = list(openpyxl.load_workbook(output).active.iter_rows(values_only=True))
            rows[kind] = [dict(zip(read[0], row, strict=True)) for row in read[1:]]
        elif kind == "csv":
            assert output.read_bytes().startswith(b"\xef\xbb\xbf")
            with output.open(encoding="utf-8-sig", newline="") as file:
                rows[kind] = list(csv.DictReader(file))
        elif kind == "tsv":
            with output.open(encoding="utf-8", newline="") as file:
                rows[kind] = list(csv.DictReader(file, dialect="excel-tab"))
        else:
            rows[kind] = [json.loads(line) for line in output.open(encoding="utf-8")]
    texts = [text for _, text, _ in SPREADSHEET[1:]]
    assert [row["text"] for row in rows["xlsx"]] == [texts[0], None, *texts[2:]]
    assert [row["text"] for row in rows["jsonl"]] == [texts[0], None, *texts[2:]]
    assert [row["text"] for row in rows["csv"]] == [texts[0], "", texts[2], "'=我们去", texts[4]]
    assert [row["text"] for row in rows["tsv"]] == [
        texts[0],
        "",
        "我们\\n去公园",
        "=我们去",
        texts[4],
    ]
    for actual in rows.values():
        assert list(actual[0]) == ["text", "label", "p(坏)", "p(好)", "error", "tokens_cut"]
        assert [str(row["tokens_cut"] or "") for row in actual] == [*[""] * 4, str(600 + 2 - 128)]
        assert [row["label"] or None for row in actual] == [row["label"] for row in rows["xlsx"]]
        assert [float(row["p(好)"] or 0) for row in actual] == [
            row["p(好)"] or 0 for row in rows["xlsx"]
        ]
        assert [bool(row["error"]) for row in actual] == [False, True, False, False, False]


def test_ambiguous_columns_can_be_named(finetuned, tmp_path, capfd):
    (tmp_path / "x.csv").write_text("标题,内容\n今天,天气很好\n我们,去公园\n", encoding="utf-8-sig")
    flags = ["predict", "--model", str(finetuned("classification")), "--with-text"]
    flags += ["--input", str(tmp_path / "x.csv")]
    assert main(flags) == 2
    assert "Give --text-columns 标题 or --text-columns 内容, by name" in capfd.readouterr().err
    assert main([*flags, "--text-columns", "内容"]) == 0
    out, err = capfd.readouterr()
    assert [line.split("\t")[0] for line in out.splitlines()] == ["text", "天气很好", "去公园"]
    assert "x.csv: text in column 内容.\n" in err
    assert main([*flags, "--text-columns", "标题", "内容"]) == 2
    assert "but the model was trained on text. Name as many" in capfd.readouterr().err


def test_texts_read_in_windows_are_not_truncated(finetuned, type_in, tmp_path, capfd):
    folder = shutil.copytree(finetuned("classification"), tmp_path / "model")
    task = dataclasses.replace(TASKS["classification"], max_length=16, long_texts="windows")
    task.save(folder)
    type_in(("今天" * 50).encode())
    assert main(["predict", "--model", str(folder)]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines()[0] == "label\tp(坏)\tp(好)\terror"
    assert "cut" not in err


def test_top_k_limits_the_number_of_labels(finetuned, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("今天\n天气\n", encoding="utf-8")

    def results(*flags, name="classification"):
        output = tmp_path / "answers.tsv"
        arguments = [
            "--model",
            finetuned(name),
            "--input",
            tmp_path / "texts.txt",
            "--output",
            output,
        ]
        code = main(["predict", *map(str, arguments), *flags])
        lines = output.read_text(encoding="utf-8").splitlines() if output.exists() else []
        output.unlink(missing_ok=True)
        return code, [line.split("\t") for line in lines]

    _, (_, *all_rows) = results()
    code, (header, *best) = results("--top-k", "1")
    assert (code, header) == (0, ["label", "score", "error"])
    for (label, bad, good, _), row in zip(all_rows, best, strict=True):
        assert row == [label, max(bad, good, key=float), ""]
    _, (header, *rows) = results("--top-k", "5")
    assert header == ["label", "score", "label_2", "score_2", "error"]
    assert [{row[0], row[2]} for row in rows] == [{"坏", "好"}] * 2
    assert results("--top-k", "3", name="tagging") == (2, [])
    assert "Remove --top-k" in capsys.readouterr().err
    assert results("--top-k", "0") == (2, [])


@pytest.mark.skipif(not find_spec("onnxruntime"), reason="needs the extra [onnx]")
def test_the_summary_names_keras_only_if_it_computes(finetuned, tmp_path, capsys):
    (tmp_path / "new.txt").write_text("今天\n", "utf-8")
    flags = ["--input", str(tmp_path / "new.txt"), "--precision", "float32"]
    for engine, device in (("keras", "the CPU, by "), ("onnx", "the CPU.")):
        assert main(["predict", str(finetuned("classification")), *flags, "--engine", engine]) == 0
        assert f"device: {device}" in capsys.readouterr().err


def test_services_and_loaded_models_limit_the_number_of_labels(finetuned, released):
    folder = finetuned("classification")
    served = served_task(folder, top_k=1)
    example = as_example(["今天"], served.task)
    actual = served.task.decoding.as_json(example, served.predict([example])[0])
    ((label, _),) = actual["scores"].items()
    assert label == actual["label"]
    assert [*roformer_tf.load(folder, top=1)("今天")["scores"]] == [label]
    assert len(roformer_tf.load(folder)("今天")["scores"]) == 2
    for name, model in (("tagging", finetuned("tagging")), ("vectors", released("sim_char"))):
        with pytest.raises(InputError, match=rf"(top|top_k) is 1, but .*{name}.* top\)?\."):
            roformer_tf.load(model, top=1)
