"""`roformer-tf embed` and `similarity`: arguments, outputs and errors."""

import csv
import io
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from roformer_tf import cli
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.machine import multiplies_bfloat16

TEXTS = ["今天天气很好", "好", "我们去公园学习，" * 9, "北京", "上海的天气", "今天去北京了", "好"]

pytestmark = pytest.mark.usefixtures("eager_steps")


@pytest.fixture(scope="module")
def sim(released):
    return str(released("sim_char"))


@pytest.fixture
def own_copy(sim, tmp_path):
    """The same model in a folder that tests may change."""
    cli.main(["checkpoints", "convert", sim, str(tmp_path / "own"), "--to", "own"])
    return tmp_path / "own"


@pytest.fixture
def want(sim, eagerly):
    with eagerly():
        return VectorSettings().open(sim).embed(TEXTS)


@pytest.fixture
def run(capsys):
    """run("embed", "--model", …) → exit code, stdout, stderr."""

    def run(*words):
        try:
            code = cli.main(list(map(str, words)))
        except SystemExit as stopped:  # wrong flags
            code = stopped.code
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def texts(tmp_path):
    """A file of the texts."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", "utf-8")
    return path


def test_a_matrix_has_a_row_for_each_line(run, sim, texts, want, tmp_path):
    output = tmp_path / "new" / "vectors.npy"
    code, out, err = run("embed", "--model", sim, "--input", texts, "--output", output)
    assert (code, out) == (0, "")
    actual = np.load(output)
    assert (actual.dtype, actual.flags.c_contiguous) == (np.float32, True)
    np.testing.assert_allclose(actual, want, atol=1e-6)
    assert "vectors of 32 numbers, of its pooler; at most 512 tokens" in err
    assert "texts: 7; " in err


def test_parquet_holds_the_texts_too(run, sim, want, tmp_path):
    table = tmp_path / "texts.csv"
    with table.open("w", encoding="gb18030", newline="") as file:
        csv.writer(file).writerows([["编号", "文本"], *enumerate(TEXTS)])
    output = tmp_path / "vectors.parquet"
    assert run("embed", sim, "--input", table, "--output", output, "--dimensions", 5)[0] == 0
    actual = pq.read_table(output)
    assert actual["text"].to_pylist() == TEXTS
    cut = want[:, :5] / np.linalg.norm(want[:, :5], axis=1, keepdims=True)
    np.testing.assert_allclose(actual["vector"].to_pylist(), cut, atol=1e-5)
    assert actual.schema.metadata[b"fingerprint"].decode() == (
        VectorSettings(dimensions=5).open(sim).fingerprint
    )


def test_truncating_vectors_without_training_for_it_gives_a_warning(run, sim, texts, tmp_path):
    flags = ("--input", texts, "--output", tmp_path / "x.npy", "--dimensions", 5)
    assert "was not trained for vectors cut to 5" in run("embed", sim, *flags)[2]


def test_the_standard_input_is_read_once(run, sim, want, tmp_path, monkeypatch):
    lines = io.TextIOWrapper(io.BytesIO(("\n".join(TEXTS)).encode()))
    monkeypatch.setattr("sys.stdin", lines)
    assert run("embed", sim, "--output", tmp_path / "x.npy")[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), want, atol=1e-6)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("今天\n\n好\n \n", "rows without text: 2"),
        ("", "holds no text"),
        ("\n", "rows without text: 1"),
    ],
)
def test_rows_without_a_text_are_refused_before_anything_is_written(
    lines, message, run, sim, tmp_path
):
    texts, output = tmp_path / "texts.txt", tmp_path / "x.npy"
    texts.write_text(lines, "utf-8")
    output.write_bytes(b"of before")
    code, _, err = run("embed", sim, "--input", texts, "--output", output)
    assert (code, message in err) == (2, True)
    assert output.read_bytes() == b"of before"
    assert {path.name for path in tmp_path.iterdir()} == {"texts.txt", "x.npy"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output", "x.npy", "--text-columns", "text"], "texts.txt has one text in each line"),
        (["--output", "x.txt"], "--output x.txt: name a .npy, .parquet file"),
        (["--output", "x"], "--output x: name a .npy, .parquet file"),
        ([], "--output must be given"),
        (
            ["--output", "x.npy", "--dimensions", "33"],
            "dimensions is 33, but must be at least 1",
        ),
        (["--output", "x.npy", "--max-length", "2"], "--max-length is 2, but must be at least 3"),
        (["--output", "x.npy", "--batch-size", "0"], "--batch-size is 0"),
    ],
)
def test_invalid_flags_are_refused(flags, message, run, sim, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("embed", sim, "--input", texts, *flags)
    assert code == 2
    assert message in err
    assert {path.name for path in tmp_path.iterdir()} == {"texts.txt"}


def test_the_requested_precision_is_used(run, sim, texts, want, tmp_path):
    # OpenVINO computes in float32 if the CPU has no bfloat16 instructions.
    difference = 1e-5 if multiplies_bfloat16() else 0
    for precision, lower, upper in (("float32", 0, 1e-6), ("bfloat16", difference, 0.05)):
        output = tmp_path / f"{precision}.npy"
        code, *_ = run("embed", sim, "--input", texts, "--output", output, "--precision", precision)
        assert code == 0
        assert lower <= np.abs(np.load(output) - want).max() <= upper


def test_similarity_of_two_texts_is_a_number_and_of_more_a_matrix(run, sim, want):
    code, out, _ = run("similarity", "--model", sim, TEXTS[0], TEXTS[4])
    assert (code, float(out)) == (0, pytest.approx(want[0] @ want[4], abs=1e-5))
    indices = [0, 4, 5]
    code, out, _ = run("similarity", "--model", sim, *(TEXTS[i] for i in indices))
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert header == ["", *(TEXTS[i] for i in indices)]
    assert [row[0] for row in rows] == header[1:]
    got = [[float(cell) for cell in row[1:]] for row in rows]
    np.testing.assert_allclose(got, want[indices] @ want[indices].T, atol=1e-5)


def test_similarity_of_a_file_is_a_table(run, sim, want, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    index_pairs = [(0, 4), (1, 6), (3, 3), (2, 0)]
    lines = ["sentence1\tsentence2\tlabel", *(f"{TEXTS[a]}\t{TEXTS[b]}\t1" for a, b in index_pairs)]
    pairs.write_text("\n".join(lines) + "\n", "utf-8")
    output = tmp_path / "found.tsv"
    code, out, _ = run("similarity", "--model", sim, "--input", pairs, "--output", output)
    assert (code, out) == (0, "")
    header, *rows = [line.split("\t") for line in output.read_text("utf-8").splitlines()]
    assert header == ["text_a", "text_b", "score"]
    assert [tuple(row[:2]) for row in rows] == [(TEXTS[a], TEXTS[b]) for a, b in index_pairs]
    got = [float(row[2]) for row in rows]
    np.testing.assert_allclose(got, [want[a] @ want[b] for a, b in index_pairs], atol=1e-5)


def test_similarity_reports_texts_that_are_cut_and_untrained_sizes(run, sim, tmp_path):
    (tmp_path / "x.txt").write_text(f"今天\t{'天气' * 300}\n好\t今天\n", "utf-8")
    for texts in (["今天", "天气" * 300], ["--input", tmp_path / "x.txt"]):
        code, _, err = run("similarity", "--model", sim, *texts, "--dimensions", 5)
        assert (code, "was not trained for vectors cut to 5" in err) == (0, True)
        assert "1 longer than 512 tokens and cut" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["好"], "one text cannot be compared"),
        ([], "give two texts or more, or --input"),
        (["好", " "], "text 2 is blank"),
    ],
)
def test_similarity_without_two_texts_is_refused(words, message, run, sim):
    code, out, err = run("similarity", "--model", sim, *words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_pair_without_its_second_text_is_refused(run, sim, tmp_path):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("今天\t好\n今天\n今天\t\n", "utf-8")
    output = tmp_path / "found.tsv"
    code, _, err = run("similarity", "--model", sim, "--input", pairs, "--output", output)
    assert code == 2
    assert "rows without text: 2" in err
    assert not output.exists()


def test_a_damaged_model_leaves_no_file(run, own_copy, texts, tmp_path):
    weights = own_copy / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-400:] = np.full(100, np.nan, np.float32).tobytes()
    weights.write_bytes(content)
    code, _, err = run("embed", own_copy, "--input", texts, "--output", tmp_path / "x.npy")
    shutil.rmtree(own_copy)
    assert code == 2, err
    assert "not finite" in err
    assert {path.name for path in tmp_path.iterdir()} == {"texts.txt"}
