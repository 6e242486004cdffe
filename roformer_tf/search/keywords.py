"""Texts → the words by which they are searched; BM25 and TF-IDF of a few texts in memory.

The latter are what every search by vectors is to be compared with.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from roformer_tf.tokenizers.segmentation import segment

# BM25's usual constants: how fast a word that comes again counts less, how much length counts.
K1, B = 1.2, 0.75
# Queries of which all scores are in memory.
AT_ONCE = 256
# Characters of a term of TF-IDF.
NGRAMS = (1, 3)
_CHINESE = "\u3400-\u9fff\U00020000-\U0003ffff"
# Runs of Chinese characters, or of other letters, digits and signs within names, as in CHISQ.DIST.
_RUN = re.compile(f"[{_CHINESE}]+|(?:(?![{_CHINESE}])[\\w.#*^])+")


def words_of(text: str) -> list[str]:
    """Words to search by: jieba's, in lower case and of one width, without punctuation.

    "打开ＰＤＦ文件！" → ["打开", "pdf", "文件"].
    """
    return [word for word in segment(_normalized(text)) if any(map(str.isalnum, word))]


def document_terms(text: str) -> list[str]:
    """`words_of`, and pairs of Chinese characters, which find what jieba splits in two ways.

    Names in other letters are added as they are written: "用 CHISQ.DIST" → […, "=chisq.dist"]. No
    term has a space, and no pair equals a word.
    """
    pairs = [pair for run in _RUN.findall(_normalized(text)) for pair in _pairs(run)]
    return words_of(text) + pairs


def _pairs(run: str) -> list[str]:
    if not re.match(f"[{_CHINESE}]", run):
        return [f"={run}"]
    # 打开文件 → 打_开, 开_文, 文_件; a single character has no pair.
    return [f"{a}_{b}" for a, b in pairwise(run)]


def _normalized(text: str) -> str:
    """In lower case and of one width."""
    return unicodedata.normalize("NFKC", text).lower()


def hybrid_scores(words: np.ndarray, cosines: np.ndarray, weight: float = 1.0) -> np.ndarray:
    """BM25 and cosines of documents in one score, (documents,); weight: of the cosines."""
    # BM25 has no upper limit; divided by the largest it has the scale of a cosine.
    return words / max(float(words.max(initial=0)), 1e-9) + weight * cosines


class BM25:
    """Texts by how rare and how frequent in them the words of a query are (Lucene's form)."""

    def __init__(self, texts: Iterable[str]) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        # A text of signs alone, such as "!!!", is searched by these.
        self._vectorizer = CountVectorizer(analyzer=lambda text: words_of(text) or text.split())
        counts = self._vectorizer.fit_transform(texts).astype(np.float64).tocoo()
        texts_with = np.bincount(counts.col, minlength=counts.shape[1])
        rarity = np.log1p((counts.shape[0] - texts_with + 0.5) / (texts_with + 0.5))
        lengths = np.bincount(counts.row, counts.data, counts.shape[0])
        norm = K1 * (1 - B + B * lengths / lengths.mean())
        # tf · rarity / (tf + norm), for the words of each text only; the matrix stays sparse.
        # Lucene's form has no factor k1 + 1, which changes no order.
        counts.data *= rarity[counts.col] / (counts.data + norm[counts.row])
        self._weights = counts.T.tocsr()

    def scores(self, queries: Sequence[str]) -> np.ndarray:
        """How well each text matches each query: (queries, texts) float32; 0: no common word."""
        asked = self._vectorizer.transform(queries)
        return (asked @ self._weights).toarray().astype(np.float32)


class TfIdfSearch:
    """Texts by the cosine of TF-IDF over 1 to 3 characters."""

    def __init__(self, texts: Iterable[str]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._vectorizer = TfidfVectorizer(analyzer="char", ngram_range=NGRAMS, sublinear_tf=True)
        self._matrix = self._vectorizer.fit_transform(texts).T.tocsr()

    def scores(self, queries: Sequence[str]) -> np.ndarray:
        """The cosine of each query with each text: (queries, texts) float32."""
        return (self._vectorizer.transform(queries) @ self._matrix).toarray().astype(np.float32)


def scores_of(index: BM25 | TfIdfSearch, queries: Sequence[str]) -> Iterator[np.ndarray]:
    """Scores of all documents for each query, (documents,) float32, some queries at a time."""
    for start in range(0, len(queries), AT_ONCE):
        yield from index.scores(queries[start : start + AT_ONCE])
