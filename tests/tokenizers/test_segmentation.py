"""Tests of word segmentation against jieba, in both implementations, and of BERT's basic tokens."""

import gzip
import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import jieba
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from roformer_tf.tokenizers import segmentation
from roformer_tf.tokenizers.segmentation import (
    normalize,
    normalize_aligned,
    segment,
    split,
    words_of_parts,
)

ROOT = Path(__file__).parents[2]
WORD_CASES = ROOT / "tests" / "fixtures" / "tokenizer" / "word" / "cases.json.gz"
any_text = st.text(
    st.characters(exclude_categories=()) | st.sampled_from("中国人民aBé.#\u0301\u302e각İΣ")
)


def run_python(code):
    """Run code in a subprocess and return the completed process."""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    assert run.returncode == 0, run.stderr
    return run


@given(any_text)
def test_words_of_any_text_equal_jieba_and_cover_the_text(text):
    assert segment(text) == list(jieba.cut(text, HMM=False))
    assert "".join(segment(text)) == text


@given(any_text)
def test_each_part_belongs_to_the_word_of_its_first_character(text):
    word_numbers = [  # the number of the word of each visible character
        number
        for number, word in enumerate(jieba.cut(text, HMM=False))
        for _ in "".join(split(word))
    ]
    want = []
    for part in split(text):
        want.append(word_numbers[0])
        word_numbers = word_numbers[len(part) :]
    assert words_of_parts(text) == want
    assert not word_numbers


def test_parts_of_one_word_share_its_number():
    text = " 中国人民 很好abc"
    assert segment(text) == [" ", "中国", "人民", " ", "很", "好", "abc"]
    assert split(text) == ["中", "国", "人", "民", "很", "好", "abc"]
    assert words_of_parts(text) == [1, 1, 2, 2, 4, 5, 6]


def test_words_of_sentences_equal_jieba():
    with gzip.open(WORD_CASES, "rt", encoding="utf-8") as file:
        texts = [case["text"] for case in json.load(file)["single"]]
    assert any(len(word) > 1 for word in segment(texts[-1]))
    for text in texts:
        assert segment(text) == list(jieba.cut(text, HMM=False))


def test_importing_the_tokenizer_loads_no_heavy_libraries():
    run_python(
        "import sys\n"
        "from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer\n"
        "from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS\n"
        "vocabulary = {token: i for i, token in enumerate(SPECIAL_TOKENS)}\n"
        "RoFormerTokenizer(vocabulary, 'char').encode('北京天安门')\n"
        "heavy = {'jieba', 'rjieba', 'keras', 'tensorflow', 'jax', 'torch', 'transformers'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )


def test_jieba_is_loaded_silently_and_only_for_lone_surrogates():
    run = run_python(
        "import sys; from roformer_tf.tokenizers.segmentation import segment\n"
        "assert segment('我爱北京天安门') == ['我', '爱', '北京', '天安门']\n"
        "assert 'rjieba' in sys.modules and 'jieba' not in sys.modules\n"
        "assert segment('北京\\ud800天安门') == ['北京', '\\ud800', '天安门']\n"
        "assert 'jieba' in sys.modules"
    )
    assert run.stderr == run.stdout == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("pass", ["天安门", "自行车"]),
        ("jieba.initialize()", ["天安门", "自行车"]),
        ("jieba.add_word('门自')", ["天安门", "自行车"]),
        ("jieba.add_word('天安门自行车')", ["天安门自行车"]),
        ("jieba.load_userdict(io.StringIO('天安门自行车 9'))", ["天安门自行车"]),
        ("jieba.del_word('天安门')", ["天安", "门", "自行车"]),
        ("jieba.suggest_freq(('天安', '门'), tune=True)", ["天安", "门", "自行车"]),
        ("jieba.set_dictionary('words.txt')", ["天", "安门自", "行", "车"]),
    ],
)
@pytest.mark.slow
def test_changes_of_the_jieba_dictionary_take_effect(tmp_path, change, words):
    (tmp_path / "words.txt").write_text("安门自 5\n", encoding="utf-8")
    changed = change.replace("words.txt", (tmp_path / "words.txt").as_posix())
    run_python(
        "import io, jieba, logging, sys\n"
        f"from roformer_tf.tokenizers.segmentation import segment\n{changed}\n"
        "words = segment('天安门自行车')\n"
        f"assert words == list(jieba.cut('天安门自行车', HMM=False)) == {words}, words\n"
        f"assert ('rjieba' in sys.modules) == {change in ('pass', 'jieba.initialize()')}"
    )


@given(any_text)
@example("ΑΣ Σ")
@example("x\u302e\u0301\u1b44\u0323y\U0001d165\u302e")
def test_aligned_normalization_equals_plain_normalization(text):
    plain, origins = normalize_aligned(text)
    assert plain == normalize(text)
    assert len(origins) == len(plain)
    for part, origin in zip(plain, origins, strict=True):
        source = text[origin]
        # A sigma depends on its neighbours: at the end of a word it is "ς".
        assert part in normalize(source) or (source == "Σ" and part == "ς")


def test_alignment_refers_to_the_original_text():
    jamo = "\u1100\u1161\u11a8"
    assert normalize_aligned("İÉ각b") == (f"ie{jamo}b", [0, 1, 2, 2, 2, 3])


@given(any_text)
def test_normalization_is_idempotent(text):
    assert normalize(normalize(text)) == normalize(text)
    assert not any(unicodedata.category(character) == "Mn" for character in normalize(text))


def test_the_quick_pattern_matches_every_combining_mark():
    marks = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) == "Mn"]
    assert len(marks) > 1_000
    assert all(map(segmentation._PERHAPS_MARKS.search, marks))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hi,世界", ["Hi", ",", "世", "界"]),
        ("p\u200dp\x1cq\ufffd\0r", ["ppqr"]),  # control characters are removed
        ("a\u3000b\u2028c\td", ["a", "b", "c", "d"]),
        ("a$b¥c×d〇々e", ["a", "$", "b¥c×d〇々e"]),
        ("か\u30ab\uac00", ["か\u30ab\uac00"]),
        ("\U0002ceaf\U0002ceb0\uf900", ["\U0002ceaf", "\U0002ceb0", "\uf900"]),
        (" \x7f ", []),
    ],
)
def test_split(text, words):
    assert split(text) == words


def test_the_total_frequency_of_the_dictionary_equals_jieba():
    jieba.initialize()
    assert jieba.dt.total == segmentation._TOTAL_FREQUENCY
    assert not segmentation._dictionary_changed()
