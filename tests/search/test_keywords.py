"""Search by words, against the formulas written out."""

import math
from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from roformer_tf.inference.lexical import (
    BM25,
    DOCUMENT_K1,
    K1,
    B,
    DocumentBM25,
    TfIdfSearch,
    pairs_of,
    words_of,
)

DOCUMENTS = [
    "打开文件：在“文件”菜单中选择打开。",
    "用ＰＤＦ格式导出文档，或打印它。",
    "今天天气很好，我们去公园。",
    "打印机、打印和打印设置",
    "？！……",
    "PDF",
]
QUERIES = ["打印文档", "如何打开 pdf", "公园", "没有这个词汇甲乙丙", "，"]


def bm25(query, documents, terms_of=words_of, document_terms=None, k1=K1):
    """Robertson and Zaragoza (2009), the inverse document frequency as in Lucene."""
    words = [(document_terms or terms_of)(one) for one in documents]
    mean = sum(map(len, words)) / len(words)
    scores = []
    for found in words:
        counts, score = Counter(found), 0.0
        for word in terms_of(query):
            within = sum(word in one for one in words)
            rarity = math.log(1 + (len(words) - within + 0.5) / (within + 0.5))
            length = k1 * (1 - B + B * len(found) / mean)
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


def test_pairs_are_of_neighbouring_characters_and_names_are_whole():
    assert pairs_of("打印机，用ＣＨＩＳＱ.Dist或A4") == ["打 印", "印 机", "= chisq.dist", "= a4"]
    assert pairs_of("用 #REF！") == ["= #ref"]
    assert not set(pairs_of("打印 A4")) & set(words_of("打印 A4"))


LONG = "保存。" * 25 + "打印 Chisq.Dist"  # what is asked for stands behind the beginning
SHORT = "打印 chisq.dist" + "保存。" * 25


@pytest.mark.parametrize("query", [*QUERIES, "chisq.dist", "印和"])
def test_documents_are_found_by_pairs_too_and_by_their_beginning_three_times(query):
    def terms(text):
        return words_of(text) + pairs_of(text)

    documents = [*DOCUMENTS, LONG, SHORT]
    want = bm25(query, documents, terms, lambda x: terms(x) + 2 * terms(x[:60]), DOCUMENT_K1)
    np.testing.assert_allclose(DocumentBM25(documents).scores(query), want, atol=1e-6)
    if query == "chisq.dist":
        assert want[-1] > want[-2] > 0


def test_documents_without_a_word_are_found_nowhere(tmp_path):
    index = DocumentBM25(["？", "！"])
    assert index.scores("公园").tolist() == [0, 0]
    index.save(tmp_path / "words")
    assert DocumentBM25.load(tmp_path / "words", 2).scores("公园").tolist() == [0, 0]


def test_tf_idf_is_a_cosine():
    found = TfIdfSearch(DOCUMENTS).search(QUERIES, 4)
    plain = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    documents = plain.fit_transform(DOCUMENTS).toarray()
    cosines = plain.transform(QUERIES).toarray() @ documents.T
    np.testing.assert_array_equal(found.places, np.argsort(-cosines, 1, kind="stable")[:, :4])
    np.testing.assert_allclose(found.scores, -np.sort(-cosines, 1)[:, :4], atol=1e-6)
