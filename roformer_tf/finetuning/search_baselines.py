"""Baselines for vectors: search by words among the same texts, with BM25 and with TF-IDF."""

from collections.abc import Iterator, Sequence

import numpy as np

from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.text_sides import EncodedSides
from roformer_tf.search.keywords import BM25, TfIdfSearch
from roformer_tf.tasks.base import Prediction, Task
from roformer_tf.tasks.vectors.ranked_texts import DifferentTexts
from roformer_tf.tasks.vectors.scored_pairs import ScoredPairs, best_threshold
from roformer_tf.tasks.vectors.sentence_vectors import SentenceVectors
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.translation import Message

METHODS: dict[Message, type[BM25] | type[TfIdfSearch]] = {
    Message("BM25 of words"): BM25,
    Message("TF-IDF cosine of 1–3 characters"): TfIdfSearch,
}
# Queries of which all scores are in memory.
AT_ONCE = 256


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
