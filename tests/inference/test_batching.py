import threading
import time

import numpy as np
import pytest

from roformer_tf.inference.batching import Batcher, OverloadedError, at_once
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.classification import Classification

TASK = Classification(labels=("坏", "好"))
EXAMPLE = Example(("好",), None, "the test")


def test_too_many_waiting_requests_are_asked_to_come_later():
    go = threading.Event()

    def blocked(examples):
        assert go.wait(30)
        return [TASK.decoding.predict(np.array([0.0, 1.0], "float32"))] * len(examples)

    batcher = Batcher(at_once(blocked), 1, max_waiting=2)
    try:
        first = batcher.ask([EXAMPLE])
        end = time.monotonic() + 30
        while not first.running():
            assert time.monotonic() < end
            time.sleep(0.005)
        others = [batcher.ask([EXAMPLE]) for _ in range(2)]
        assert batcher.waiting() == 2
        with pytest.raises(OverloadedError):
            batcher.ask([EXAMPLE])
        assert others[0].cancel()  # its client has gone
    finally:
        go.set()
        batcher.close()
    assert first.result()[0].label == others[1].result()[0].label == "好"
    assert batcher.waiting() == 0


@pytest.fixture
def held():
    """What batches of numbers a Batcher made, the first of which waits to be released."""
    go, batches = threading.Event(), []

    def answer(numbers, tell):
        batches.append(numbers)
        if len(batches) == 1:
            assert go.wait(30)
        for place in reversed(range(len(numbers))):  # in any order
            tell(place, -numbers[place])

    batcher = Batcher(answer, 8, max_waiting=100, width=lambda number: number)
    yield batcher, batches, go
    go.set()
    batcher.close()


def test_a_batch_holds_as_many_requests_as_fit_by_the_width_of_their_questions(held):
    batcher, batches, go = held
    asked_first = batcher.ask([1])
    while batcher.waiting():
        time.sleep(0.001)
    asked = [[3], [2, 2], [1], [1], [9], [1]]
    promises = [batcher.ask(numbers) for numbers in asked]
    assert promises[2].cancel()
    go.set()
    assert asked_first.result(30) == [-1]
    del promises[2], asked[2]
    assert [one.result(30) for one in promises] == [[-x for x in each] for each in asked]
    assert batches == [[1], [3, 2, 2, 1], [9], [1]]


def test_a_request_is_answered_before_the_rest_of_its_batch():
    go, heard = threading.Event(), threading.Event()

    def answer(numbers, tell):
        assert go.wait(30)
        if len(numbers) == 2:
            tell(1, "early")
            assert heard.wait(30)

    batcher = Batcher(answer, 8, max_waiting=9)
    first = batcher.ask([0])
    while batcher.waiting():
        time.sleep(0.001)
    other, early = batcher.ask([1]), batcher.ask([2])
    go.set()
    assert early.result(30) == ["early"]
    assert not other.done()
    heard.set()
    batcher.close()
    for unanswered in (first, other):  # a mistake of ours, for which nobody waits for ever
        with pytest.raises(RuntimeError, match="not answered"):
            unanswered.result(30)
