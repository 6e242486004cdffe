import threading
import time

import numpy as np
import pytest

from roformer_tf.inference.batching import Batcher, OverloadedError
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.classification import Classification

TASK = Classification(labels=("坏", "好"))
EXAMPLE = Example(("好",), None, "the test")


def test_too_many_waiting_requests_are_asked_to_come_later():
    go = threading.Event()

    def blocked(examples):
        assert go.wait(30)
        return [TASK.answer(np.array([0.0, 1.0], "float32"))] * len(examples)

    batcher = Batcher(blocked, 1, max_waiting=2)
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
