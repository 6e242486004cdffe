"""Tests of beam search, step by step, against results calculated by hand."""

import numpy as np
import pytest

from roformer_tf.models.beam_search import BeamSearch

END, A, B, C = range(4)


def log(*shares):
    """Return log-probabilities of END, A, B and C after each beam."""
    return np.log(np.array(shares) + 1e-9)


def searched(length_penalty, *steps, beams=2, max_tokens=4):
    """Return the result of a search with the given probabilities of each beam and step."""
    search = BeamSearch(beams, (END,), max_tokens, length_penalty)
    for shares in steps:
        if search.answer is not None:
            break
        search.advance(log(*shares[: len(search.running)]))
    return search.answer


FIRST = [(0.4, 0.5, 0.1, 0.0)]
"""END has probability .4 at the first step, second to A with .5."""
SECOND = [(0.5, 0.2, 0.2, 0.1), (0.5, 0.2, 0.2, 0.1)]
"""After A, END reaches .5 · .5 = .25, less than the .4 of END alone."""


def test_bert4keras_drops_an_ended_text_that_is_not_the_best():
    answer = searched(None, FIRST, SECOND)
    assert answer.token_ids == (A, END)
    assert answer.log_probability == pytest.approx(np.log(0.25), abs=1e-6)
    assert answer.ended


def test_transformers_keeps_it_and_finds_it_the_better():
    assert searched(0.0, FIRST, SECOND).token_ids == (END,)


def test_a_length_penalty_prefers_the_longer_text():
    """The text of one token has log .4 = −.92; the text of two tokens has log .25 / 2 = −.69."""
    assert searched(1.0, FIRST, SECOND, SECOND, SECOND).token_ids == (A, END)


def test_a_likelier_beginning_gives_way_to_a_likelier_text():
    first = [(0.0, 0.6, 0.4, 0.0)]
    second = [(0.3, 0.4, 0.3, 0.0), (0.9, 0.1, 0.0, 0.0)]  # A END .18, A A .24; B END .36
    for length_penalty in (None, 0.0):
        answer = searched(length_penalty, first, second, second)
        assert answer.token_ids == (B, END)


@pytest.mark.parametrize("length_penalty", [None, 0.0, 1.0])
def test_at_its_most_tokens_the_best_is_taken_ended_or_not(length_penalty):
    steps = [[(0.0, 0.7, 0.3, 0.0)], *[[(0.0, 0.7, 0.3, 0.0)] * 2] * 2]
    answer = searched(length_penalty, *steps, max_tokens=3)
    assert answer.token_ids == (A, A, A)
    assert not answer.ended
    assert answer.log_probability == pytest.approx(3 * np.log(0.7), abs=1e-6)


def test_advance_says_which_beam_goes_on_with_what():
    search = BeamSearch(2, (END,), 9)
    parents, tokens = search.advance(log((0.0, 0.6, 0.4, 0.0)))
    assert (parents.tolist(), tokens.tolist()) == ([0, 0], [A, B])
    parents, tokens = search.advance(log((0.0, 0.1, 0.1, 0.8), (0.0, 0.9, 0.1, 0.0)))
    assert (parents.tolist(), tokens.tolist()) == ([0, 1], [C, A])
    assert [beam.token_ids for beam in search.running] == [(A, C), (B, A)]
