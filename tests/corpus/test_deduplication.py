import sys
import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.corpus import deduplication as duplicates
from roformer_tf.corpus.deduplication import (
    bands,
    exact_marks,
    find_exact,
    find_near,
    near_marks,
)
from roformer_tf.errors import InputError

pytest.importorskip("datasketch")

any_text = st.text(st.characters(exclude_categories=()))
few_texts = st.lists(st.text("甲乙ＡA \n\u3000", max_size=4), max_size=20)


def plain(text):
    return "".join(c for c in unicodedata.normalize("NFKC", text) if not c.isspace())


def similarity(first, second):
    """Return the exact Jaccard similarity of the sets of character 5-grams."""
    texts = plain(first), plain(second)
    sets = [{text[i : i + 5] for i in range(max(1, len(text) - 4))} for text in texts]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def duplicate_indices(marks, is_duplicate):
    return [place for place, mark in enumerate(marks) if is_duplicate(mark)]


def variants(seed, families=12, members=6, length=400):
    """Return texts in families whose members differ in more and more characters."""
    rng = np.random.default_rng(seed)
    characters = [chr(0x4E00 + i) for i in range(3_000)]
    texts = []
    for _ in range(families):
        text = rng.choice(characters, rng.integers(length // 4, length))
        for _ in range(members):
            texts.append("".join(text))
            places = rng.integers(len(text), size=rng.integers(1, 1 + len(text) // 40))
            text[places] = rng.choice(characters, len(places))
    return [texts[i] for i in rng.permutation(len(texts))]


@given(few_texts)
def test_exact_ignores_white_space_and_width(texts):
    actual = duplicate_indices(exact_marks(texts), find_exact())
    seen = [plain(text) for text in texts]
    assert actual == [i for i, text in enumerate(seen) if text in seen[:i]]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("threshold", [0.6, 0.8])
def test_near_finds_similar_texts_and_keeps_others(seed, threshold):
    texts = variants(seed)
    actual = duplicate_indices(near_marks(texts), find_near(threshold))
    kept = [i for i in range(len(texts)) if i not in actual]
    assert len(actual) > 10
    assert len(kept) > 12
    for i, text in enumerate(texts):
        max_similarity = max((similarity(text, texts[j]) for j in kept if j < i), default=0)
        # 0.16 is 4 sigma of the estimate.
        if i in actual:
            assert max_similarity > threshold - 0.16
        else:
            assert max_similarity < threshold + 0.16


@given(few_texts)
def test_near_finds_all_exact_duplicates(texts):
    actual = duplicate_indices(near_marks(texts), find_near(0.8))
    assert set(actual) >= set(duplicate_indices(exact_marks(texts), find_exact()))
    for i in actual:  # in such short texts, one other character gives other 5-grams
        assert plain(texts[i]) in [plain(text) for text in texts[:i]]


def test_signatures_estimate_the_similarity():
    texts = variants(9, families=6, members=8, length=800)
    numbers = [np.frombuffer(mark, "<u4") for mark in near_marks(texts)]
    exact, estimated = np.array(
        [
            (similarity(texts[i], texts[j]), np.mean(numbers[i] == numbers[j]))
            for i in range(len(texts))
            for j in range(i)
        ]
    ).T
    intermediate = (exact > 0.1) & (exact < 0.9)
    assert intermediate.sum() > 50
    assert abs(np.mean((estimated - exact)[intermediate])) < 0.02
    assert np.abs(estimated - exact).max() < 0.18  # 4 sigma of a proportion of 128


def test_an_excluded_document_does_not_make_others_duplicates():
    """Only kept documents count as originals.

    In this chain each text is similar to the previous one, but soon not to the first.
    """
    text = [chr(0x4E00 + i) for i in range(400)]
    chain = []
    for step in range(12):
        text[step * 30] = text[step * 30 + 9] = "？"
        chain.append("".join(text))
    assert min(similarity(*pair) for pair in pairwise(chain)) > 0.93
    assert similarity(chain[0], chain[-1]) < 0.6
    actual = duplicate_indices(near_marks(chain), find_near(0.8))
    assert 1 in actual
    assert 2 <= len(chain) - len(actual) <= 5


@pytest.mark.parametrize("marks", [exact_marks, near_marks])
@given(texts=st.lists(any_text | st.none(), max_size=5))
def test_a_mark_depends_only_on_its_text(marks, texts):
    assert marks(texts) == [mark for text in texts for mark in marks([text])]
    assert [mark is None for mark in marks(texts)] == [text is None for text in texts]


@pytest.mark.parametrize("marks", [exact_marks, near_marks])
def test_white_space_and_width_do_not_change_a_mark(marks):
    item, same, other = marks(["ＡＢＣ，甲乙丙丁", " ABC,\n甲乙\u3000丙丁 ", "ABD,甲乙丙丁"])
    assert item == same
    assert item != other


def test_a_long_text_is_processed_in_blocks(monkeypatch):
    text = "".join(variants(0))
    expected = near_marks([text, text[:-1]])
    monkeypatch.setattr(duplicates, "_BLOCK", 100)
    assert near_marks([text, text[:-1]]) == expected


def test_shingle_hashes_rarely_collide():
    factors = np.random.default_rng(0).integers(2**63, size=5, dtype=np.uint64) * 2 + 1
    for text in (
        "".join(map(chr, range(0x4E00, 0x4E00 + 20_000))),
        "".join(chr(97 + i) for i in np.random.default_rng(1).integers(26, size=20_000)),
        "".join(map(chr, range(0x4E00, 0x9000, 2))),  # only even code points
    ):
        hashes = duplicates._shingle_hashes(text, factors)
        assert hashes.dtype == np.uint32
        assert len(hashes) == len(text) - 4
        distinct = len({text[i : i + 5] for i in range(len(text) - 4)})
        assert len(set(hashes.tolist())) >= distinct - 1
        assert abs(np.mean(hashes / 2**32) - 0.5) < 0.01
        assert abs(np.mean(hashes & 1) - 0.5) < 0.02


@given(st.floats(0.05, 0.999))
def test_bands_have_high_recall_and_maximal_size(threshold):
    count, size = bands(threshold)
    assert count >= 2
    assert count * size <= 128
    assert 1 - (1 - threshold**size) ** count >= 0.95
    longer = [(128 // r, r) for r in range(size + 1, 65)]
    assert all(1 - (1 - threshold**r) ** b < 0.95 for b, r in longer)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasketch", None)
    with pytest.raises(InputError, match=r"pip install 'roformer-tf\[duplicates\]'.*exact"):
        find_near(0.8)
    assert find_exact()(b"mark") is False
