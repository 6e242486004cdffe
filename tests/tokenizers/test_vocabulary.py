"""Tests of vocabularies: reading them as bert4keras does, refusing others, building from text."""

import gzip
import json
import shutil
import string
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.errors import InputError
from roformer_tf.tokenizers.segmentation import split
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import (
    SPECIAL_TOKENS,
    build_vocabulary,
    count_words,
    guess_tokenization,
    simplify_vocabulary,
)
from tests.support.vocabularies import read_vocabulary

GOLDENS = Path(__file__).parents[1] / "fixtures" / "tokenizer"
SPECIAL_LINES = "".join(f"{token}\n" for token in SPECIAL_TOKENS)
LETTERS = string.digits + string.ascii_lowercase
MIN_SIZE = 5 + 2 * len(LETTERS)


def golden(name):
    with gzip.open(GOLDENS / name, "rt", encoding="utf-8") as file:
        return json.load(file)


def zip_with(path, *names):
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, SPECIAL_LINES + "甲\n")
    return path


def test_special_tokens_may_be_anywhere():
    assert read_vocabulary(GOLDENS / "word")["[UNK]"] == 1
    assert read_vocabulary(GOLDENS / "char" / "vocab.txt")["[UNK]"] == 100
    assert len(read_vocabulary(str(GOLDENS / "word"))) == 5918


def test_a_repeated_line_takes_the_next_id_without_using_it_up(tmp_path):
    (tmp_path / "vocab.txt").write_text(SPECIAL_LINES + "a\nb\na\nc\n")
    vocabulary = read_vocabulary(tmp_path)
    assert (vocabulary["a"], vocabulary["b"], vocabulary["c"]) == (7, 6, 7)
    (tmp_path / "config.json").write_text("{}")  # in transformers an id is the number of a line
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "2_Dense").mkdir()
    (tmp_path / "2_Dense/config.json").write_text("{}")
    zipped = shutil.make_archive(tmp_path.parent / "zipped", "zip", tmp_path)
    for source in (tmp_path, zipped):
        vocabulary = read_vocabulary(source)
        assert (vocabulary["a"], vocabulary["b"], vocabulary["c"]) == (7, 6, 8)


def test_a_byte_order_mark_and_blank_lines_at_the_end_are_not_tokens(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL_TOKENS, "我", "", " \n"]), encoding="utf-8-sig")
    assert read_vocabulary(path) == {x: n for n, x in enumerate([*SPECIAL_TOKENS, "我"])}


def test_a_token_is_the_first_field_of_its_line(tmp_path):
    lines = SPECIAL_LINES + " a\tb\r\nc\u2028d\n\n\rd"
    (tmp_path / "vocab.txt").write_bytes(lines.encode())
    items = list(read_vocabulary(tmp_path).items())[5:]
    assert items == [("a", 5), ("c", 6), ("", 8), ("d", 8)]  # "" is there twice


@pytest.mark.parametrize(
    "name", ["vocab.txt", "chinese_roformer/vocab.txt", "a/b/vocab.txt", "a\\b\\vocab.txt"]
)
def test_a_zip_may_contain_it_at_any_depth(tmp_path, name):
    assert read_vocabulary(zip_with(tmp_path / "released.zip", name))["甲"] == 5


def test_sources_without_a_valid_vocabulary_are_refused(tmp_path):
    (tmp_path / "truncated.zip").write_bytes(
        zip_with(tmp_path / "whole.zip", "a/vocab.txt").read_bytes()[:-30]
    )
    content = bytearray((tmp_path / "whole.zip").read_bytes())
    content[content.index(b"[UNK]")] ^= 1
    (tmp_path / "damaged.zip").write_bytes(content)
    zip_with(tmp_path / "other.zip", "a/readme.txt")
    zip_with(tmp_path / "two.zip", "a/vocab.txt", "b/vocab.txt")
    (tmp_path / "gb.txt").write_bytes((SPECIAL_LINES + "甲").encode("gb18030"))
    (tmp_path / "text.txt").write_text("[PAD]\n[UNK]\n甲\n", encoding="utf-8")
    for name, message in {
        "missing.txt": "missing.txt does not exist. Give a vocab.txt, or a model",
        ".": "contains no vocab.txt",
        "truncated.zip": "truncated.zip is not a complete zip file: .* again",
        "damaged.zip": "damaged.zip cannot be unpacked: .*CRC",
        "other.zip": "other.zip contains no vocab.txt. Give a folder or zip with one",
        "two.zip": "contains several: a/vocab.txt, b/vocab.txt",
        "gb.txt": "gb.txt is not UTF-8 text at byte 31",
        "text.txt": r"text.txt lacks \[CLS\], \[SEP\], \[MASK\]",
    }.items():
        with pytest.raises(InputError, match=message):
            read_vocabulary(tmp_path / name)


def test_tokenization_is_guessed_from_chinese_words():
    assert guess_tokenization(read_vocabulary(GOLDENS / "word")) == "word"
    assert guess_tokenization(read_vocabulary(GOLDENS / "char")) == "char"
    assert guess_tokenization(["中国"]) == "word"
    assert guess_tokenization(["中", "##中", "ok", "卡拉ok", "。。", ""]) == "char"


@pytest.mark.parametrize("name", ["word", "char"])
def test_simplified_vocabularies_equal_those_of_bert4keras(name):
    vocabulary = read_vocabulary(GOLDENS / name)
    for case in golden(f"{name}/simplified.json.gz"):
        simple, kept = simplify_vocabulary(vocabulary, case["startswith"])
        assert kept == case["keep_tokens"]
        assert len(simple) == case["size"]
        assert list(simple)[:12] == case["first"]
        assert list(simple.values()) == list(range(len(simple)))


def test_counted_words_exclude_unsuitable_tokens():
    texts = ["我爱北京 ABC é\u3000\n", "北京\ue000\ud800\u200b\ufffd" + "x" * 201]
    want = {"我": 1, "爱": 1, "北京": 2, "abc": 1, "e": 1}
    assert count_words(texts, "word") == want
    assert count_words(["北京Абв"], "char", lower_case=False) == {"北": 1, "京": 1, "Абв": 1}


def test_counts_of_several_workers_can_be_added():
    texts = [case["text"] for case in golden("word/cases.json.gz")["single"]]
    for tokenization in ("word", "char"):
        total = count_words(texts, tokenization)
        parts = [count_words(texts[start::3], tokenization) for start in range(3)]
        assert sum(parts, Counter()) == total


def test_a_vocabulary_is_special_tokens_then_words_by_frequency():
    counts = {"中国": 5, "中": 3, "国家": 1, "ab": 2}
    built = build_vocabulary(counts, MIN_SIZE + 4, "word")
    assert built[:10] == [*SPECIAL_TOKENS, "中", "国", "中国", "##b", "a"]
    assert set(built[10:]) == {"ab"} | {p + c for p in ("", "##") for c in LETTERS} - {"##b", "a"}
    assert len(built) == MIN_SIZE + 4  # 家 and 国家 are less frequent
    assert "中国" not in build_vocabulary(counts, MIN_SIZE + 4, "char")
    assert len(build_vocabulary(counts, 10_000, "word")) == MIN_SIZE + 6


def test_capital_letters_are_included_if_the_text_has_any():
    assert "Z" not in build_vocabulary({"abc": 1}, 1000, "char")
    assert {"Z", "##Z"} <= set(build_vocabulary({"aBc": 1}, 1000, "char"))


def test_a_size_too_small_for_the_letters_is_refused():
    assert len(build_vocabulary({}, MIN_SIZE, "word")) == MIN_SIZE
    with pytest.raises(InputError, match=f"Give at least {MIN_SIZE}"):
        build_vocabulary({}, MIN_SIZE - 1, "word")


@given(
    st.dictionaries(st.text("中国人民ab1éж", min_size=1, max_size=3), st.integers(1, 9)),
    st.integers(MIN_SIZE, MIN_SIZE + 20),
    st.sampled_from(["word", "char"]),
)
def test_built_vocabularies_depend_only_on_the_counts(counts, size, tokenization):
    built = build_vocabulary(counts, size, tokenization)
    assert built == build_vocabulary(dict(reversed(counts.items())), size, tokenization)
    assert len(built) == len(set(built)) <= size
    for word in counts.keys() & set(built):
        for part in split(word):  # a character comes before any word that contains it
            assert {part[0], *("##" + character for character in part[1:])} <= set(built)


@pytest.mark.parametrize("tokenization", ["word", "char"])
def test_a_built_vocabulary_has_few_unknown_tokens(tmp_path, tokenization):
    texts = [c["text"] for c in golden("word/cases.json.gz")["single"] if c["kind"] == "real"]
    built = build_vocabulary(count_words(texts, tokenization), 3000, tokenization)
    lines = "".join(f"{token}\n" for token in built)
    (tmp_path / "vocab.txt").write_text(lines, encoding="utf-8", newline="\n")
    assert read_vocabulary(tmp_path) == {token: i for i, token in enumerate(built)}
    tokenizer = RoFormerTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenization == tokenization
    ids = [number for text in texts for number in tokenizer.ids_and_words(text)[0]]
    assert ids.count(tokenizer.unk_id) < 0.005 * len(ids)
    assert tokenizer.unk_id not in tokenizer.encode("zq9x7")[0]


def test_a_tokenizer_json_with_other_ids_than_vocab_txt_is_refused(tmp_path):
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "天", "气"]
    RoFormerTokenizer({token: i for i, token in enumerate(tokens)}, "char").save_pretrained(
        tmp_path
    )
    assert RoFormerTokenizer.from_pretrained(tmp_path).vocabulary["气"] == 6
    (tmp_path / "vocab.txt").write_text("\n".join([*tokens[:5], "气", "天"]), "utf-8")
    with pytest.raises(InputError, match=r"tokenizer.json next to it have different ids of '天'"):
        RoFormerTokenizer.from_pretrained(tmp_path)
