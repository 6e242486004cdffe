"""Lexical search baselines (BM25 and TF-IDF) of the embedding tasks."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from roformer_tf.finetuning.results import search_baselines
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.vectors.scored_pairs import Embedding, ScoredPairs
from roformer_tf.tasks.vectors.sentence_vectors import BELONGS
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.tokenizers.vocabulary import SPECIAL_TOKENS

TEXTS = ["今天天气很好", "我们去公园学习", "中国经济发展", "新闻记者报道", "人民生活改革"]
LETTERS = sorted({letter for text in TEXTS for letter in text})
TOKENIZER = RoFormerTokenizer({x: i for i, x in enumerate([*SPECIAL_TOKENS, *LETTERS])}, "char")
NAMES = ["BM25 of words", "TF-IDF cosine of 1–3 characters"]


def test_documents_are_ranked_by_shared_words():
    examples = [Example((text[-2:], text), BELONGS, "") for text in TEXTS]
    examples.append(Example(("学习", TEXTS[0]), BELONGS, ""))  # no word in common
    actual = search_baselines(Embedding(), [], examples, TOKENIZER)
    assert [name for name, _ in actual] == NAMES
    for _, predictions in actual:
        ranks = [item.label.rank for item in predictions]
        assert ranks[:5] == [1] * 5
        # The other positive of 学习 is excluded; three documents with an equal score come first.
        assert ranks[5] == 4
        (example, side, score), *_ = predictions[2].label.neighbours
        assert (example, side) == (2, 1)
        assert score == predictions[2].scores[0] > 0


def test_single_texts_are_split_into_two_sides():
    examples = [Example((f"{text}。{text[::-1]}。",), BELONGS, "") for text in TEXTS]
    task = Embedding(data="texts")
    for _, predictions in search_baselines(task, [], examples, TOKENIZER):
        assert len(predictions) == 5
        assert np.mean([item.label.rank for item in predictions]) < 3


def test_a_threshold_is_chosen_on_the_validation_set():
    task = ScoredPairs(levels=(0.0, 1.0), threshold=0.83)
    pairs = [(a, a[-2:] if a == b else b) for a in TEXTS for b in TEXTS]
    gold = [float(a.endswith(b)) for a, b in pairs]
    valid = [Example(pair, x, "") for pair, x in zip(pairs, gold, strict=True)]
    test = valid[::-1]
    for _, predictions in search_baselines(task, valid, test, TOKENIZER):
        metrics = task.metrics.compute([item.label for item in test], predictions)
        assert metrics["accuracy"] == 1.0
        scores = [item.scores[0] for item in predictions]
        assert metrics["roc_auc"] == pytest.approx(roc_auc_score(gold[::-1], scores))
