"""Search by words, without a model: BM25, and cosines of TF-IDF over characters.

What every search by vectors is to be compared with, and, with more to go by than words, the other
half of `search --hybrid`.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from roformer_tf.errors import InputError
from roformer_tf.inference.nearest import Found, best_of
from roformer_tf.tokenizers.segmentation import segment

if TYPE_CHECKING:
    from typing_extensions import Self

K1, B = 1.2, 0.75
"""BM25's usual constants: how fast a word that comes again counts less, how much length counts."""
BEGINNING, TIMES, DOCUMENT_K1 = 60, 3, 2.0
"""For documents: characters that mostly say what one is about, how often they count, and K1 where
they do. Measured in docs/LOG.md."""
GRAMS = (1, 3)
"""Characters of a term of TF-IDF."""


class Lexical(Protocol):
    """Documents that are searched by their words."""

    def search(self, queries: Sequence[str], top: int) -> Found:
        """The best documents of each query, the best first."""


def words_of(text: str) -> list[str]:
    """Words to search by: jieba's, in lower case and of one width, without punctuation.

    "打开ＰＤＦ文件！" → ["打开", "pdf", "文件"].
    """
    return [word for word in segment(_plain(text)) if any(map(str.isalnum, word))]


def pairs_of(text: str) -> list[str]:
    """Neighbouring Chinese characters, and names in other letters as they are spelled.

    "打印机 CHISQ.DIST" → ["打 印", "印 机", "= chisq.dist"]: none of them is one of `words_of`.
    """
    return [pair for run in _RUN.findall(_plain(text)) for pair in _pairs(run)]


_CHINESE = "\u3400-\u9fff\U00020000-\U0003ffff"
_RUN = re.compile(f"[{_CHINESE}]+|(?:(?![{_CHINESE}])[\\w.#*^])+")


def _pairs(run: str) -> list[str]:
    if not re.match(f"[{_CHINESE}]", run):
        return [f"= {run}"]
    return [f"{a} {b}" for a, b in pairwise(run)]


def _plain(text: str) -> str:
    """In lower case and of one width."""
    return unicodedata.normalize("NFKC", text).lower()


class BM25:
    """Documents by how rare and how frequent in them the words of a query are (Lucene's form).

    Its figures lie in arrays, which `save` keeps and `load` maps into memory. Raises InputError
    where the library bm25s is missing, which the extra [search] brings.
    """

    def __init__(self, documents: Iterable[str], k1: float = K1, b: float = B) -> None:
        words = [self._document_terms(text) for text in documents]
        self.documents = len(words)
        self._index = _bm25s().BM25(k1=k1, b=b, method="lucene", backend="numpy")
        self._empty = not any(words)
        if not self._empty:
            self._index.index(words, show_progress=False)

    def scores(self, query: str) -> np.ndarray:
        """What each document scores for a query, (documents,) float32; 0 without a common word."""
        known = [] if self._empty else self._index.get_tokens_ids(self._terms(query))
        if not known:
            return np.zeros(self.documents, np.float32)
        return self._index.get_scores_from_ids(known)

    def search(self, queries: Sequence[str], top: int) -> Found:
        """The best documents of each query, the best first; equal ones in their order."""
        return Found.joined([best_of(self.scores(query)[None], top) for query in queries], top)

    def _terms(self, text: str) -> list[str]:
        """What a query is searched by."""
        return words_of(text)

    def _document_terms(self, text: str) -> list[str]:
        """What a document is found by."""
        return self._terms(text)

    def save(self, folder: Path) -> None:
        """Write the figures into a folder of their own."""
        folder.mkdir(parents=True, exist_ok=True)
        if not self._empty:
            self._index.save(folder, show_progress=False)

    @classmethod
    def load(cls, folder: Path, documents: int) -> "Self":
        """Open what `save` wrote of so many documents."""
        found = cls.__new__(cls)
        found.documents, found._empty = documents, not any(folder.iterdir())
        if not found._empty:
            found._index = _bm25s().BM25.load(folder, mmap=True, load_corpus=False)
        return found


class DocumentBM25(BM25):
    """The same by words and by pairs of characters, a document's beginning more than the rest.

    Pairs find what is segmented in two ways; the beginning mostly says what the rest is about.
    """

    def __init__(self, documents: Iterable[str]) -> None:
        super().__init__(documents, DOCUMENT_K1)

    def _terms(self, text: str) -> list[str]:
        return words_of(text) + pairs_of(text)

    def _document_terms(self, text: str) -> list[str]:
        return self._terms(text) + (TIMES - 1) * self._terms(text[:BEGINNING])


class TfIdfSearch:
    """Documents by the cosine of TF-IDF over 1 to 3 characters."""

    def __init__(self, documents: Iterable[str]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        self._vectorizer = TfidfVectorizer(analyzer="char", ngram_range=GRAMS, sublinear_tf=True)
        self._matrix = self._vectorizer.fit_transform(documents).T.tocsr()

    def search(self, queries: Sequence[str], top: int) -> Found:
        """The best documents of each query, the best first; equal ones in their order."""
        rows = self._vectorizer.transform(queries)
        products = (rows[number] @ self._matrix for number in range(len(queries)))
        return Found.joined([best_of(one.toarray(), top) for one in products], top)


def _bm25s() -> Any:
    try:
        import bm25s
    except ModuleNotFoundError:
        raise InputError(
            "searching by words needs bm25s: `pip install 'roformer-tf[search]'`."
        ) from None
    return bm25s
