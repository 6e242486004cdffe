"""Saved folders in transformers."""

import gzip
import json
from pathlib import Path

import pytest

from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import read_vocabulary

GOLDENS = Path(__file__).parents[1] / "fixtures" / "tokenizer"


def sentences():
    with gzip.open(GOLDENS / "word" / "cases.json.gz", "rt", encoding="utf-8") as file:
        return [case["text"] for case in json.load(file)["single"] if case["kind"] == "real"]


def saved(folder, tokenization, lower_case):
    tokenizer = RoFormerTokenizer(read_vocabulary(GOLDENS / tokenization), tokenization, lower_case)
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "roformer"}')  # as beside our weights
    return tokenizer


@pytest.mark.hf
@pytest.mark.parametrize(
    ("tokenization", "lower_case"), [("word", True), ("char", True), ("char", False)]
)
def test_transformers_gives_our_ids(tmp_path, tokenization, lower_case, transformers):
    ours = saved(tmp_path, tokenization, lower_case)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    differing = [text for text in sentences() if theirs(text)["input_ids"] != ours.encode(text)[0]]
    assert differing == []
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(theirs, f"{name}_token_id") == getattr(ours, f"{name}_id")
    pair = theirs("今天", "天气 Good", return_token_type_ids=True)
    assert (pair["input_ids"], pair["token_type_ids"]) == ours.encode("今天", "天气 Good")


def test_files_hold_the_vocabulary_and_the_special_ids(tmp_path):
    ours = saved(tmp_path, "char", False)
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    assert content["model"]["vocab"] == ours.vocabulary
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    assert added == {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    assert content["normalizer"]["lowercase"] is False
