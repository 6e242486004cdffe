"""Search by words, against the formulas written out."""

import math
from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from roformer_tf.inference.lexical import BM25, K1, B, TfIdfSearch, words_of

DOCUMENTS = [
    "打开文件：在“文件”菜单中选择打开。",
    "用ＰＤＦ格式导出文档，或打印它。",
    "今天天气很好，我们去公园。",
    "打印机、打印和打印设置",
    "？！……",
    "PDF",
]
QUERIES = ["打印文档", "如何打开 pdf", "公园", "没有这个词汇甲乙丙", "，"]


def bm25(query, documents):
    """Robertson and Zaragoza (2009), the inverse document frequency as in Lucene."""
    words = [words_of(one) for one in documents]
    mean = sum(map(len, words)) / len(words)
    scores = []
    for found in words:
        counts, score = Counter(found), 0.0
        for word in words_of(query):
            within = sum(word in one for one in words)
            rarity = math.log(1 + (len(words) - within + 0.5) / (within + 0.5))
            length = K1 * (1 - B + B * len(found) / mean)
            score += rarity * counts[word] / (counts[word] + length) if within else 0.0
        scores.append(score)
    return scores


def test_words_are_jiebas_in_one_spelling():
    assert words_of("打开ＰＤＦ文件！ \n") == ["打开", "pdf", "文件"]
    assert words_of(" ？！") == []


@pytest.mark.parametrize("query", QUERIES)
def test_bm25_scores_by_its_formula(query):
    want = np.array(bm25(query, DOCUMENTS))
    got = BM25(DOCUMENTS).scores(query)
    assert got.dtype == np.float32
    # of each the same multiple: some leave (k1 + 1), which moves no rank, in the numerator
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_bm25_finds_the_best_first_and_is_kept(tmp_path):
    index = BM25(DOCUMENTS)
    found = index.search(QUERIES, 3)
    scores = np.array([bm25(query, DOCUMENTS) for query in QUERIES])
    np.testing.assert_array_equal(found.places, np.argsort(-scores, 1, kind="stable")[:, :3])
    index.save(tmp_path / "words")
    again = BM25.load(tmp_path / "words", len(DOCUMENTS))
    np.testing.assert_array_equal(again.search(QUERIES, 3).places, found.places)


def test_documents_without_a_word_are_found_nowhere(tmp_path):
    index = BM25(["？", "！"])
    assert index.scores("公园").tolist() == [0, 0]
    index.save(tmp_path / "words")
    assert BM25.load(tmp_path / "words", 2).scores("公园").tolist() == [0, 0]


def test_tf_idf_is_a_cosine():
    found = TfIdfSearch(DOCUMENTS).search(QUERIES, 4)
    plain = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    documents = plain.fit_transform(DOCUMENTS).toarray()
    cosines = plain.transform(QUERIES).toarray() @ documents.T
    np.testing.assert_array_equal(found.places, np.argsort(-cosines, 1, kind="stable")[:, :4])
    np.testing.assert_allclose(found.scores, -np.sort(-cosines, 1)[:, :4], atol=1e-6)
