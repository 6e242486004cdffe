"""What a search by words makes of the texts that vectors are judged by: BM25, and TF-IDF."""

from collections.abc import Iterator, Sequence

import numpy as np

from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.text_sides import EncodedSides
from roformer_tf.search.keywords import BM25, Lexical, TfIdfSearch
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
AT_ONCE = 256
"""Queries of which all scores are in memory."""


def lexical_baselines(
    task: Task,
    valid: Sequence[Example],
    judged: Sequence[Example],
    tokenizer: RoFormerTokenizer,
) -> list[tuple[Message, list[Prediction]]]:
    """Each method in words, and its answers to the judged examples, as the model gives them.

    It searches among the same texts. If the model's cosines have a threshold, chosen on `valid`,
    each method has one, too.
    """
    assert isinstance(task, SentenceVectors)  # of the tasks whose texts are apart
    found = []
    for name, method in METHODS.items():
        answers = _answers(task, judged, tokenizer, method)
        if isinstance(task, ScoredPairs) and task.is_binary:
            known = answers if judged is valid else _answers(task, valid, tokenizer, method)
            near = task.is_near([one.label for one in valid])
            own = best_threshold(np.array([one.label for one in known]), near)
            answers = [Prediction(one.label - own + task.threshold, one.scores) for one in answers]
        found.append((name, answers))
    return found


def _answers(
    task: SentenceVectors,
    examples: Sequence[Example],
    tokenizer: RoFormerTokenizer,
    method: type[BM25] | type[TfIdfSearch],
) -> list[Prediction]:
    """What a search of the examples' other texts by their first ones gives."""
    encoded = task.labelling.encode(examples, tokenizer)
    assert isinstance(encoded, EncodedSides)
    different = DifferentTexts.of(encoded)
    spelled = task.labelling.evaluated_texts(examples, tokenizer)
    sides = len(spelled) // len(examples)
    rows = different.examples * sides + different.sides
    index = method([spelled[row] for row in rows.tolist()])
    return task.decoding.read_scores(different, _scores(index, spelled[::sides]))


def _scores(index: Lexical, queries: Sequence[str]) -> Iterator[np.ndarray]:
    """Scores of all documents for each query, (documents,) float32, some queries at a time."""
    for start in range(0, len(queries), AT_ONCE):
        yield from index.scores(queries[start : start + AT_ONCE])
