"""The search whose results a reranker orders: BM25 or hybrid search among a run's documents."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from roformer_tf.inference.embed import VectorSettings
from roformer_tf.labelled.examples import Example
from roformer_tf.search.keywords import BM25, hybrid_scores, scores_of
from roformer_tf.tasks.choices.reranking import Judgment
from roformer_tf.terminal import say
from roformer_tf.top_k import top_k

if TYPE_CHECKING:
    from roformer_tf.finetuning.search import Sets

# Wrong documents of a query in training, and documents that are ordered in an evaluation.
NEGATIVES, CANDIDATES = 7, 20
Vectors = Mapping[str, np.ndarray]


class FirstStage:
    """The documents of some examples, to be searched by words and, with vectors, by meaning."""

    def __init__(self, examples: Sequence[Example], vectors: Vectors) -> None:
        documents = dict.fromkeys(text for x in examples for text in x.texts[1:])
        self._documents = list(documents)
        self._number_of = {text: number for number, text in enumerate(documents)}
        self._bm25 = BM25(documents)
        self._vectors = vectors

    def ordered(self, examples: Sequence[Example], negatives: int = 0) -> list[Example]:
        """The examples with documents in the order of the search, and with its scores.

        A query whose documents are all relevant gets others. In training these are the first wrong
        ones, `negatives` of them. In an evaluation, where that is 0, a query has what the search
        returns, with its relevant documents or without them. Where a file names wrong documents,
        too, they are only ordered.
        """
        result = []
        for example, scores in zip(examples, self._scores(examples), strict=True):
            query, *documents = example.texts
            numbers = [self._number_of[text] for text in documents]
            relevance_of = dict(zip(numbers, example.label.relevance, strict=True))
            if not all(example.label.relevance):  # the file names wrong ones, too
                chosen = [numbers[i] for i in top_k(scores[numbers], len(numbers))]
            elif negatives:
                # Enough matches even if all documents of the query are the first ones.
                matches = top_k(scores, negatives + len(numbers)).tolist()
                chosen = numbers + [i for i in matches if i not in relevance_of][:negatives]
            else:
                chosen = top_k(scores, CANDIDATES).tolist()
            # Relevant documents that the search did not return.
            lost = sum(relevance_of[i] > 0 for i in {*numbers} - {*chosen})
            relevance = tuple(relevance_of.get(i, 0.0) for i in chosen)
            label = Judgment(relevance, tuple(scores[chosen].tolist()), lost)
            texts = (query, *(self._documents[i] for i in chosen))
            result.append(example._replace(texts=texts, label=label))
        return result

    def _scores(self, examples: Sequence[Example]) -> Iterator[np.ndarray]:
        """Scores of all documents for each query, (documents,) float32, as `search` has them."""
        queries = [example.texts[0] for example in examples]
        by_words = scores_of(self._bm25, queries)
        if not self._vectors:
            yield from by_words
            return
        matrix = np.array([self._vectors[text] for text in self._documents])
        for query, words in zip(queries, by_words, strict=True):
            yield hybrid_scores(words, matrix @ self._vectors[query])


def text_vectors(examples: Sequence[Example], model: str | None) -> Vectors:
    """The vector of each query and document, (D,) float32 of length 1; none without a model."""
    if model is None:
        return {}
    embedder = VectorSettings().open(model)
    say(embedder.described)
    texts = list(dict.fromkeys(text for example in examples for text in example.texts))
    return dict(zip(texts, embedder.embed(texts), strict=True))


def searched(sets: "Sets", negatives: int, model: str | None) -> "Sets":
    """The sets with documents of a search, as `FirstStage.ordered` has them.

    In training they are those of the training set: documents of the others would always be wrong,
    and a model learns to put them last. model: of vectors, for a hybrid search.
    """
    examples = [*sets.train, *sets.valid, *sets.test]
    vectors = text_vectors(examples, model)
    of_all_sets = FirstStage(examples, vectors)

    def for_training(some: Sequence[Example]) -> list[Example]:
        return FirstStage(some, vectors).ordered(some, negatives)

    return sets.mapped(for_training, of_all_sets.ordered)
