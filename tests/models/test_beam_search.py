"""Tests of beam search, step by step, against results calculated by hand."""

import numpy as np
import pytest

from roformer_tf.models.strategies import BeamSearch

END, A, B, C = range(4)


def log(*probabilities):
    """Return log-probabilities of END, A, B and C after each beam."""
    return np.log(np.array(probabilities) + 1e-9)


def search_result(length_penalty, *steps, beams=2, max_tokens=4):
    """Return the result of a search with the given probabilities of each beam and step."""
    search = BeamSearch(beams, (END,), max_tokens, length_penalty)
    for probabilities in steps:
        if search.result is not None:
            break
        search.advance(log(*probabilities[: len(search.running)]))
    return search.result


FIRST = [(0.4, 0.5, 0.1, 0.0)]
"""END has probability .4 at the first step, second to A with .5."""
SECOND = [(0.5, 0.2, 0.2, 0.1), (0.5, 0.2, 0.2, 0.1)]
"""After A, END reaches .5 · .5 = .25, less than the .4 of END alone."""


def test_like_bert4keras_an_ended_text_that_is_not_the_best_is_dropped():
    answer = search_result(None, FIRST, SECOND)
    assert answer.token_ids == (A, END)
    assert answer.log_probability == pytest.approx(np.log(0.25), abs=1e-6)
    assert answer.ended


def test_like_transformers_an_ended_text_is_kept_and_wins():
    assert search_result(0.0, FIRST, SECOND).token_ids == (END,)


def test_a_length_penalty_prefers_the_longer_text():
    """The text of one token has log .4 = −.92; the text of two tokens has log .25 / 2 = −.69."""
    assert search_result(1.0, FIRST, SECOND, SECOND, SECOND).token_ids == (A, END)


def test_the_most_likely_text_wins_over_the_most_likely_beginning():
    first = [(0.0, 0.6, 0.4, 0.0)]
    second = [(0.3, 0.4, 0.3, 0.0), (0.9, 0.1, 0.0, 0.0)]  # A END .18, A A .24; B END .36
    for length_penalty in (None, 0.0):
        answer = search_result(length_penalty, first, second, second)
        assert answer.token_ids == (B, END)


@pytest.mark.parametrize("length_penalty", [None, 0.0, 1.0])
def test_at_max_tokens_the_best_text_is_returned_even_if_not_ended(length_penalty):
    steps = [[(0.0, 0.7, 0.3, 0.0)], *[[(0.0, 0.7, 0.3, 0.0)] * 2] * 2]
    answer = search_result(length_penalty, *steps, max_tokens=3)
    assert answer.token_ids == (A, A, A)
    assert not answer.ended
    assert answer.log_probability == pytest.approx(3 * np.log(0.7), abs=1e-6)


def test_advance_returns_the_parent_and_token_of_each_beam():
    search = BeamSearch(2, (END,), 9)
    parents, tokens = search.advance(log((0.0, 0.6, 0.4, 0.0)))
    assert (parents.tolist(), tokens.tolist()) == ([0, 0], [A, B])
    parents, tokens = search.advance(log((0.0, 0.1, 0.1, 0.8), (0.0, 0.9, 0.1, 0.0)))
    assert (parents.tolist(), tokens.tolist()) == ([0, 1], [C, A])
    assert [beam.token_ids for beam in search.running] == [(A, C), (B, A)]
