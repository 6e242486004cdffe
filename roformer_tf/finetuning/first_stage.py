"""Search among the texts of a run: what a reranker orders, and baselines for vectors."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from roformer_tf.inference.embed import VectorSettings
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.text_sides import EncodedSides
from roformer_tf.search.keywords import BM25, TfIdfSearch, hybrid_scores
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.choices.reranking import Judgment
from roformer_tf.tasks.vectors.ranked_texts import DifferentTexts
from roformer_tf.tasks.vectors.scored_pairs import ScoredPairs, best_threshold
from roformer_tf.tasks.vectors.sentence_vectors import SentenceVectors
from roformer_tf.terminal import say
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.top_k import top_k
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.finetuning.search import Sets

# Wrong documents of a query in training, and documents that are ordered in an evaluation.
NEGATIVES, CANDIDATES = 7, 20
Vectors = Mapping[str, np.ndarray]

# Those that vectors are compared with.
METHODS: dict[Message, type[BM25] | type[TfIdfSearch]] = {
    Message("BM25 of words"): BM25,
    Message("TF-IDF cosine of 1–3 characters"): TfIdfSearch,
}
# Queries of which all scores are in memory.
AT_ONCE = 256


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
            names_wrong = not all(example.label.relevance)
            count = len(scores) if names_wrong else (negatives or CANDIDATES) + len(numbers)
            matches = top_k(scores, count).tolist()
            if names_wrong:
                chosen = [i for i in matches if i in relevance_of]
            elif negatives:
                wrong = [i for i in matches if i not in relevance_of]
                chosen = numbers + wrong[:negatives]
            else:
                chosen = matches[:CANDIDATES]
            label = Judgment(
                tuple(relevance_of.get(i, 0.0) for i in chosen), tuple(scores[chosen].tolist())
            )
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

    return dataclasses.replace(
        sets,
        train=for_training(sets.train),
        valid=of_all_sets.ordered(sets.valid),
        test=of_all_sets.ordered(sets.test),
        folds=[(for_training(a), of_all_sets.ordered(b)) for a, b in sets.folds],
    )


def search_baselines(
    task: Task, valid: Sequence[Example], test: Sequence[Example], tokenizer: RoFormerTokenizer
) -> list[tuple[Message, list[Prediction]]]:
    """The name of each method, and its predictions for `test` in the form of the model's.

    If the model's cosines have a threshold, chosen on `valid`, each method has one, too.
    """
    assert isinstance(task, SentenceVectors)  # of the tasks whose texts are encoded separately
    baselines = []
    for name, method in METHODS.items():
        predictions = _predictions(task, test, tokenizer, method)
        if isinstance(task, ScoredPairs) and task.is_binary:
            on_valid = (
                predictions if test is valid else _predictions(task, valid, tokenizer, method)
            )
            near = task.is_near([example.label for example in valid])
            threshold = best_threshold(np.array([x.label for x in on_valid]), near)
            # Scores of BM25 have another scale. Shifted, they are split by the model's threshold.
            predictions = [
                Prediction(x.label - threshold + task.threshold, x.scores) for x in predictions
            ]
        baselines.append((name, predictions))
    return baselines


def _predictions(
    task: SentenceVectors,
    examples: Sequence[Example],
    tokenizer: RoFormerTokenizer,
    method: type[BM25] | type[TfIdfSearch],
) -> list[Prediction]:
    """Search among the other texts of the examples by their first ones."""
    encoded = task.labelling.encode(examples, tokenizer)
    assert isinstance(encoded, EncodedSides)
    different = DifferentTexts.of(encoded)
    # Texts come example by example, `sides` of each: the queries are every first one.
    spelled = task.labelling.evaluated_texts(examples, tokenizer)
    sides = len(spelled) // len(examples)
    rows = different.examples * sides + different.sides
    index = method([spelled[row] for row in rows.tolist()])
    return task.decoding.read_scores(different, scores_of(index, spelled[::sides]))


def scores_of(index: BM25 | TfIdfSearch, queries: Sequence[str]) -> Iterator[np.ndarray]:
    """Scores of all documents for each query, (documents,) float32, some queries at a time."""
    for start in range(0, len(queries), AT_ONCE):
        yield from index.scores(queries[start : start + AT_ONCE])
