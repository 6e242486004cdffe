"""Token ids of our exports in transformers and in tokenizers, and the known differences."""

import gzip
import json
import math
import random
import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest

from pretrain.demo.corpus import write_corpus
from roformer_tf.conversion.convert import ConvertConfig, OutputConfig, convert
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.tokenizer_json import tokenizer_json

pytestmark = pytest.mark.hf

CASES = Path(__file__).parents[1] / "fixtures" / "tokenizer" / "word" / "cases.json.gz"


def has_character(test):
    return lambda text: any(map(test, text))


KINDS = {  # reason of a difference → condition on the text
    "a surrogate": has_character(lambda c: unicodedata.category(c) == "Cs"),
    "a literal special token": re.compile(r"\[(PAD|UNK|CLS|SEP|MASK)\]").search,
    "a final sigma": has_character(lambda c: c == "Σ"),
    "a control or U+FFFD": has_character(
        lambda c: unicodedata.category(c) in ("Cc", "Cf") or c == "\ufffd"
    ),
    "a mark newer than Unicode 3.2": has_character(
        lambda c: unicodedata.category(c) == "Mn" != unicodedata.ucd_3_2_0.category(c)
    ),
    "a word of over 100 characters": re.compile(r"(\w[\u0300-\u036f]?){101}").search,
    "jieba's words with punctuation": re.compile(r"(?i)c\+\+|c#").search,
    "private use": has_character(lambda c: unicodedata.category(c) == "Co"),
}


@pytest.fixture(scope="module")
def exported(released, tmp_path_factory):
    """A function that returns our tokenizer of a family and the folder of its export."""

    @cache
    def load(family):
        target = tmp_path_factory.mktemp(family) / "exported"
        source = str(released(family))
        convert(ConvertConfig(source=source, target=target, output=OutputConfig(to="huggingface")))
        return RoFormerTokenizer.from_pretrained(source), target

    return load


@pytest.fixture
def count_differences(exported, transformers, capsys):
    """A function that counts texts with different ids by reason, and prints the counts."""

    def count(family, texts, title):
        ours, folder = exported(family)
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        counts = dict.fromkeys([*KINDS, "unexplained"], 0)
        for text in texts:
            if ids_of(theirs, text) != ours.encode(text)[0]:
                kind = next((kind for kind, has in KINDS.items() if has(text)), "unexplained")
                counts[kind] += 1
        actual = {kind: number for kind, number in counts.items() if number}
        with capsys.disabled():
            print(f"\n{family}, {len(texts)} {title}: {actual or 'no ids differ'}")
        return counts

    return count


def ids_of(tokenizer, text):
    try:
        return tokenizer(text)["input_ids"]
    except TypeError:  # surrogates are not supported
        return None


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """A thousand real sentences."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    write_corpus(path)
    all_sentences = [
        sentence
        for line in path.read_text(encoding="utf-8").splitlines()
        for sentence in re.findall(r"[^。！？\n]+[。！？]?", json.loads(line)["text"])
        if len(sentence) > 5
    ]
    return random.Random(0).sample(all_sentences, 1000)


@pytest.mark.parametrize("family", ["word", "char"])
def test_real_sentences_have_our_ids(family, count_differences, sentences):
    counts = count_differences(family, sentences, "real sentences")
    assert sum(counts.values()) == 0


def test_tokenizers_gives_the_ids_of_char_level_vocabularies(exported, sentences):
    from tokenizers import Tokenizer

    ours, folder = exported("char")
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert [row.ids for row in theirs.encode_batch(sentences)] == [
        ours.encode(text)[0] for text in sentences
    ]
    pair = theirs.encode("今天", "天气 Good")
    assert (pair.ids, pair.type_ids) == ours.encode("今天", "天气 Good")


def test_no_tokenizer_json_is_written_for_jieba(exported, sentences, capsys):
    """No tokenizer.json is written for words, because the format cannot represent jieba.

    The closest model is Unigram with jieba's frequencies, which gives other ids for many sentences.
    """
    import jieba
    from tokenizers import Tokenizer

    ours, folder = exported("word")
    assert not (folder / "tokenizer.json").exists()
    with Path(jieba.__file__).with_name("dict.txt").open(encoding="utf-8") as file:
        counts = {word: int(count) for word, count, *_ in map(str.split, file)}
    total = sum(counts.values())
    scores = [math.log((counts.get(token) or 1) / total) for token in ours.tokens]
    content = tokenizer_json(RoFormerTokenizer(ours.vocabulary, "char"))
    content["normalizer"]["handle_chinese_chars"] = False
    model = {"type": "Unigram", "unk_id": ours.unk_id, "byte_fallback": False}
    content["model"] = model | {"vocab": [*zip(ours.tokens, scores, strict=True)]}
    theirs = Tokenizer.from_str(json.dumps(content)).encode_batch(sentences)
    same = sum(row.ids == ours.encode(text)[0] for row, text in zip(theirs, sentences, strict=True))
    with capsys.disabled():
        print(f"\nword, 1000 real sentences: a Unigram model gives our ids for {same}")
    assert same < 900


@pytest.mark.parametrize("family", ["word", "char"])
def test_strange_texts_differ_only_in_known_ways(family, count_differences):
    with gzip.open(CASES, "rt", encoding="utf-8") as file:
        texts = [case["text"] for case in json.load(file)["single"] if case["kind"] != "real"]
    counts = count_differences(family, texts, "strange texts")
    assert counts["unexplained"] == 0
    assert 10 < sum(counts.values()) < 0.25 * len(texts)
    # These kinds occur only with transformers' RoFormerTokenizer, used for words.
    kinds_of_words = ("private use", "a control or U+FFFD")
    assert any(counts[kind] for kind in kinds_of_words) == (family == "word")
