"""`roformer-tf prepare` in a new process. The prepared files are tested in tests/corpus."""

import json
from pathlib import Path

import numpy as np
import pytest

from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from tests.support.vocabularies import read_vocabulary

FIXTURES = Path(__file__).parents[1] / "fixtures" / "tokenizer"
KEYS = {"rows", "tokens", "utilization", "shards", "splits", "length", "settings", "fingerprint"}


@pytest.fixture
def corpus(tmp_path, write_corpus):
    """A folder with a text file and a JSON Lines file with two bad lines."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_corpus(folder / "0.txt", 40)
    lines = write_corpus(tmp_path / "source.txt", 20, seed=1).read_text("utf-8").splitlines()
    records = [json.dumps({"text": line}, ensure_ascii=False) for line in lines]
    records[3:3] = ["{", '{"title": "没有正文"}']
    (folder / "1.jsonl").write_text("\n".join(records), encoding="utf-8")
    return folder


@pytest.fixture
def prepare(start_command, corpus, tmp_path):
    def run(*flags, output=tmp_path / "rows", pattern="*"):
        process = start_command(
            "roformer-tf", "prepare", "--corpus", corpus / pattern, "--output", output, *flags
        )
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    return run


@pytest.mark.parametrize("tokenization", ["word", "char"])
def test_a_corpus_is_prepared(prepare, tmp_path, tokenization):
    vocab = FIXTURES / tokenization / "vocab.txt"
    flags = ["--vocab", vocab, "--length", 32, "--held-out", 0.1]
    code, out, err = prepare(*flags)
    assert code == 0
    assert "60 documents" in out
    assert "not JSON" in out
    assert "1.jsonl:4" in out
    assert err == ""  # no bar: stderr is not a terminal

    manifest = json.loads((tmp_path / "rows" / "manifest.json").read_text())
    assert manifest.keys() >= KEYS
    assert manifest["tokenization"] == tokenization
    assert manifest["bad_lines"] == {'no field "text"': 1, "not JSON": 1}
    rows = np.concatenate([np.load(tmp_path / "rows" / s["file"]) for s in manifest["shards"]])
    assert rows.shape == (manifest["rows"], 3, 32)
    assert np.count_nonzero(rows[:, 1]) == manifest["tokens"]
    assert manifest["utilization"] == pytest.approx(manifest["tokens"] / rows[:, 0].size)
    assert manifest["utilization"] > 0.9
    tokenizer = RoFormerTokenizer.from_pretrained(tmp_path / "rows")
    assert tokenizer.vocabulary == read_vocabulary(vocab)
    assert tokenizer.tokenization == tokenization

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()}
    code, out, err = prepare(*flags)
    assert (code, err) == (0, "")
    assert "is prepared already" in out
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()} == before


def test_a_vocabulary_is_built_and_the_number_of_processes_changes_nothing(prepare, tmp_path):
    flags = ["--vocab-size", 150, "--tokenization", "char", "--length", 16]
    for workers in (1, 2):
        output = tmp_path / f"rows-{workers}"
        assert prepare(*flags, "--workers", workers, output=output)[0] == 0
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / f"rows-{n}").iterdir()}
        for n in (1, 2)
    )
    assert first == second
    assert len(read_vocabulary(tmp_path / "rows-1")) <= 150


def test_strict_stops_at_a_bad_line_and_leaves_nothing(prepare, tmp_path):
    vocab = ["--vocab", FIXTURES / "char" / "vocab.txt"]
    code, out, err = prepare("--strict", *vocab)
    assert (code, out) == (2, "")
    assert "1.jsonl:4: not JSON" in err
    assert not (tmp_path / "rows").exists()
    assert prepare("--strict", *vocab, pattern="*.txt")[0] == 0


def test_a_folder_prepared_with_other_settings_is_unchanged(prepare, tmp_path):
    vocab = ["--vocab", FIXTURES / "char" / "vocab.txt"]
    assert prepare(*vocab, "--length", 16)[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "rows").iterdir()}
    code, _, err = prepare(*vocab, "--length", 32)
    assert code == 2
    assert "length (16 then, 32 now)" in err
    assert {path: path.read_bytes() for path in (tmp_path / "rows").iterdir()} == before


def test_corpora_have_names_and_documents_are_filtered(start_command, corpus, tmp_path):
    text = (corpus / "0.txt").read_text("utf-8")
    (corpus / "0.txt").write_text(f"{text}短\n{text}", encoding="utf-8")
    process = start_command(
        *("roformer-tf", "prepare", "--corpus", f"first={corpus}/*.txt", f"two={corpus}/*.jsonl"),
        *("--output", tmp_path / "rows", "--vocab", FIXTURES / "char" / "vocab.txt"),
        *("--min-characters", 2, "--drop-repeated-lines", "--duplicates", "exact"),
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "skipped: 1 documents under 2 characters, 40 duplicates\n" in out
    assert err == ""
    corpora = json.loads((tmp_path / "rows" / "manifest.json").read_text())["corpora"]
    documents = {name: summary["documents"] for name, summary in corpora.items()}
    assert documents == {"first": 40, "two": 20}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--duplicates", "near", "--similarity", 1.5], "similarity is 1.5, but must be above 0"),
        (["--duplicates", "some"], "--duplicates"),
        (["--min-characters", -1], "--min-characters is -1"),
    ],
)
def test_invalid_values_are_refused(prepare, tmp_path, flags, message):
    code, _, err = prepare("--vocab-size", 200, *flags)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "rows").exists()
