"""transformers' own tokenizer, loaded from what we export: the ids, and why some differ."""

import gzip
import json
import random
import re
import unicodedata
from pathlib import Path

import pytest

from pretrain.demo.corpus import write_corpus
from roformer_tf.conversion.convert import ConvertConfig, OutputConfig, convert
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

pytestmark = pytest.mark.hf

CASES = Path(__file__).parents[1] / "fixtures" / "tokenizer" / "word" / "cases.json.gz"


def has_character(test):
    return lambda text: any(map(test, text))


KINDS = {  # why ids differ: the texts that have it
    "a surrogate": has_character(lambda c: unicodedata.category(c) == "Cs"),
    "private use": has_character(lambda c: unicodedata.category(c) == "Co"),
    "a literal special token": re.compile(r"\[(PAD|UNK|CLS|SEP|MASK)\]").search,
    "a final sigma": has_character(lambda c: c == "Σ"),
    "a control or U+FFFD": has_character(
        lambda c: unicodedata.category(c) in ("Cc", "Cf") or c == "\ufffd"
    ),
    "a mark newer than Unicode 3.2": has_character(
        lambda c: unicodedata.category(c) == "Mn" != unicodedata.ucd_3_2_0.category(c)
    ),
    "a word of over 100 characters": re.compile(r"(\w[\u0300-\u036f]?){101}").search,
    # which the library tokenizers does not take for Chinese: its range begins at U+2B920
    "U+2B820 to U+2B91F": has_character(lambda c: "\U0002b820" <= c < "\U0002b920"),
    "jieba's words with punctuation": re.compile(r"(?i)c\+\+|c#").search,
}


@pytest.fixture(scope="module")
def tokenizers(released, tmp_path_factory, transformers):
    """tokenizers("word") → ours, and transformers' from our export."""

    def load(family):
        target = tmp_path_factory.mktemp(family) / "exported"
        source = str(released(family))
        convert(ConvertConfig(source=source, target=target, output=OutputConfig(to="huggingface")))
        theirs = transformers.AutoTokenizer.from_pretrained(target)
        return RoFormerTokenizer.from_pretrained(source), theirs

    return load


@pytest.fixture
def count_differences(tokenizers, capsys):
    """Count the texts whose ids differ, by kind, and print the counts."""

    def count(family, texts, title):
        ours, theirs = tokenizers(family)
        counts = dict.fromkeys([*KINDS, "unexplained"], 0)
        for text in texts:
            if ids_of(theirs, text) != ours.encode(text)[0]:
                kind = next((kind for kind, has in KINDS.items() if has(text)), "unexplained")
                counts[kind] += 1
        found = {kind: number for kind, number in counts.items() if number}
        with capsys.disabled():
            print(f"\n{family}, {len(texts)} {title}: {found or 'no ids differ'}")
        return counts

    return count


def ids_of(tokenizer, text):
    try:
        return tokenizer(text)["input_ids"]
    except TypeError:  # it takes no surrogates
        return None


@pytest.mark.parametrize("family", ["word", "char"])
def test_a_thousand_real_sentences_have_our_ids(family, count_differences, tmp_path):
    write_corpus(tmp_path / "corpus.jsonl")
    sentences = [
        sentence
        for line in (tmp_path / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
        for sentence in re.findall(r"[^。！？\n]+[。！？]?", json.loads(line)["text"])
        if len(sentence) > 5
    ]
    counts = count_differences(family, random.Random(0).sample(sentences, 1000), "real sentences")
    assert sum(counts.values()) == 0


@pytest.mark.parametrize("family", ["word", "char"])
def test_strange_texts_differ_only_in_known_ways(family, count_differences):
    with gzip.open(CASES, "rt", encoding="utf-8") as file:
        texts = [case["text"] for case in json.load(file)["single"] if case["kind"] != "real"]
    counts = count_differences(family, texts, "strange texts")
    assert counts["unexplained"] == 0
    assert 10 < sum(counts.values()) < 0.25 * len(texts)
