"""Search by words, compared with the formulas."""

import math
from collections import Counter

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from roformer_tf.search.keywords import BM25, K1, B, TfIdfSearch, document_terms, words_of

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
    """BM25 (Robertson and Zaragoza, 2009) with Lucene's inverse document frequency."""
    words = [words_of(text) or text.split() for text in documents]
    mean = sum(map(len, words)) / len(words)
    scores = []
    for text in words:
        counts, score = Counter(text), 0.0
        for word in words_of(query) or query.split():
            document_count = sum(word in other for other in words)
            inverse_frequency = math.log(
                1 + (len(words) - document_count + 0.5) / (document_count + 0.5)
            )
            length = K1 * (1 - B + B * len(text) / mean)
            score += (
                inverse_frequency * counts[word] / (counts[word] + length)
                if document_count
                else 0.0
            )
        scores.append(score)
    return scores


def test_words_are_jiebas_normalized_words():
    assert words_of("打开ＰＤＦ文件！ \n") == ["打开", "pdf", "文件"]
    assert words_of(" ？！") == []


def test_bm25_scores_by_its_formula():
    # Without the factor (k1 + 1) of some implementations, which does not change the ranking.
    queries = [*QUERIES, "打印打印"]
    scores = BM25(DOCUMENTS).scores(queries)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, [bm25(x, DOCUMENTS) for x in queries], atol=1e-6)


def test_texts_without_words_are_searched_by_their_signs():
    scores = BM25(["!!!", "？？ ……"]).scores(["……", "你好"])
    assert scores[0, 1] > scores[0, 0] == 0
    assert not scores[1].any()


def test_terms_are_character_pairs_and_whole_names():
    def pairs(text):
        return document_terms(text)[len(words_of(text)) :]

    assert pairs("打印机，用ＣＨＩＳＱ.Dist或A4") == ["打_印", "印_机", "=chisq.dist", "=a4"]
    assert pairs("用 #REF！") == ["=#ref"]
    assert not set(pairs("打印 A4")) & set(words_of("打印 A4"))
    assert not any(" " in term for term in document_terms("a b\tc\u3000d\xa0e"))


def test_tf_idf_is_a_cosine():
    vectorizer = TfidfVectorizer(analyzer="char", ngram_range=(1, 3), sublinear_tf=True)
    documents = vectorizer.fit_transform(DOCUMENTS).toarray()
    cosines = vectorizer.transform(QUERIES).toarray() @ documents.T
    np.testing.assert_allclose(TfIdfSearch(DOCUMENTS).scores(QUERIES), cosines, atol=1e-6)
