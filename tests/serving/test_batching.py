"""Tests of how requests are queued and combined into batches."""

import threading
import time

import numpy as np
import pytest
from fastapi import HTTPException

from roformer_tf.labelled.examples import Example
from roformer_tf.serving.batching import Batcher
from roformer_tf.serving.monitoring import ServiceMetrics
from roformer_tf.serving.settings import Limits
from roformer_tf.tasks.classification import Classification

TASK = Classification(labels=("坏", "好"))
EXAMPLE = Example(("好",), None, "the test")


def test_too_many_waiting_requests_are_refused():
    go = threading.Event()

    def blocked(examples, deliver):
        assert go.wait(30)
        for index in range(len(examples)):
            deliver(index, TASK.decoding.predict(np.array([0.0, 1.0], "float32")))

    metrics = ServiceMetrics()
    batcher = Batcher(blocked, 1, Limits(max_waiting=2), metrics)
    try:
        first = batcher.submit([EXAMPLE])
        end = time.monotonic() + 30
        while not first.running():
            assert time.monotonic() < end
            time.sleep(0.005)
        rest = [batcher.submit([EXAMPLE]) for _ in range(2)]
        assert metrics.registry.get_sample_value("roformer_waiting_requests") == 2
        with pytest.raises(HTTPException, match="too many requests wait"):
            batcher.submit([EXAMPLE])
        assert rest[0].cancel()  # as when its client disconnects
    finally:
        go.set()
        batcher.close()
    assert first.result()[0].label == rest[1].result()[0].label == "好"
    assert metrics.registry.get_sample_value("roformer_waiting_requests") == 0


@pytest.fixture
def held():
    """A Batcher of numbers, its batches, and an event that releases the first batch."""
    go, batches = threading.Event(), []

    def run(numbers, deliver):
        batches.append(numbers)
        if len(batches) == 1:
            assert go.wait(30)
        for index in reversed(range(len(numbers))):  # deliver in another order
            deliver(index, -numbers[index])

    batcher = Batcher(run, 8, Limits(), ServiceMetrics(), width=lambda number: number)
    yield batcher, batches, go
    go.set()
    batcher.close()


def test_a_batch_takes_requests_until_their_widths_fill_it(held):
    batcher, batches, go = held
    asked_first = batcher.submit([1])
    while not asked_first.running():
        time.sleep(0.001)
    asked = [[3], [2, 2], [1], [1], [9], [1]]
    promises = [batcher.submit(numbers) for numbers in asked]
    assert promises[2].cancel()
    go.set()
    assert asked_first.result(30) == [-1]
    del promises[2], asked[2]
    assert [item.result(30) for item in promises] == [[-x for x in each] for each in asked]
    assert batches == [[1], [3, 2, 2, 1], [9], [1]]


def test_a_request_completes_before_the_rest_of_its_batch():
    go, heard = threading.Event(), threading.Event()

    def run(numbers, deliver):
        assert go.wait(30)
        if len(numbers) == 2:
            deliver(1, "early")
            assert heard.wait(30)

    batcher = Batcher(run, 8, Limits(), ServiceMetrics())
    first = batcher.submit([0])
    while not first.running():
        time.sleep(0.001)
    other, early = batcher.submit([1]), batcher.submit([2])
    go.set()
    assert early.result(30) == ["early"]
    assert not other.done()
    heard.set()
    batcher.close()
    for unanswered in (first, other):  # a bug must not leave requests waiting
        with pytest.raises(RuntimeError, match="no result"):
            unanswered.result(30)
