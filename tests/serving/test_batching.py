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
    release = threading.Event()

    def blocked(examples, deliver):
        assert release.wait(30)
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
        release.set()
        batcher.close()
    assert first.result()[0].label == rest[1].result()[0].label == "好"
    assert metrics.registry.get_sample_value("roformer_waiting_requests") == 0


@pytest.fixture
def blocked_batcher():
    """A Batcher of numbers, its batches, and an event that releases the first batch."""
    release, batches = threading.Event(), []

    def run(numbers, deliver):
        batches.append(numbers)
        if len(batches) == 1:
            assert release.wait(30)
        for index in reversed(range(len(numbers))):  # deliver in another order
            deliver(index, -numbers[index])

    batcher = Batcher(run, 8, Limits(), ServiceMetrics(), width=lambda number: number)
    yield batcher, batches, release
    release.set()
    batcher.close()


def test_a_batch_is_limited_by_the_total_width(blocked_batcher):
    batcher, batches, release = blocked_batcher
    first = batcher.submit([1])
    while not first.running():
        time.sleep(0.001)
    requests = [[3], [2, 2], [1], [1], [9], [1]]
    futures = [batcher.submit(numbers) for numbers in requests]
    assert futures[2].cancel()
    release.set()
    assert first.result(30) == [-1]
    del futures[2], requests[2]
    assert [item.result(30) for item in futures] == [[-x for x in each] for each in requests]
    assert batches == [[1], [3, 2, 2, 1], [9], [1]]


def test_a_request_completes_before_the_rest_of_its_batch():
    release, received = threading.Event(), threading.Event()

    def run(numbers, deliver):
        assert release.wait(30)
        if len(numbers) == 2:
            deliver(1, "early")
            assert received.wait(30)

    batcher = Batcher(run, 8, Limits(), ServiceMetrics())
    first = batcher.submit([0])
    while not first.running():
        time.sleep(0.001)
    other, early = batcher.submit([1]), batcher.submit([2])
    release.set()
    assert early.result(30) == ["early"]
    assert not other.done()
    received.set()
    batcher.close()
    for future in (first, other):  # a bug must not leave requests waiting
        with pytest.raises(RuntimeError, match="batch of the request failed"):
            future.result(30)
