import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from roformer_tf.inference.workers import TRIES, ServiceWorkers, WorkersError
from tests.support.worker_models import doubling, refusing


@pytest.fixture(scope="module")
def workers():
    made = ServiceWorkers(doubling, 2)
    yield made
    made.close()


def test_batches_are_answered_side_by_side_by_processes_of_their_own(workers):
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(workers.answer, [["slow"], ["slow"]]))
    assert sorted(number for (number,) in found) == sorted(workers.pids)
    assert os.getpid() not in workers.pids
    assert workers.answer([1, 5]) == [2, 10]


def test_the_garbage_collector_passes_over_what_was_there_first(workers):
    assert workers.answer(["kept"])[0] > 1000


def test_a_killed_worker_is_replaced_and_its_batch_is_answered(workers):
    before = workers.pids
    with ThreadPoolExecutor(2) as pool:
        begun = [pool.submit(workers.answer, ["slow"]) for _ in range(2)]
        os.kill(before[0], signal.SIGKILL)
        found = {promise.result(60)[0] for promise in begun}
    assert found <= set(workers.pids)
    assert before[0] not in workers.pids
    assert len(workers.pids) == 2
    assert workers.answer([4]) == [8]


def test_a_mistake_is_heard_of_and_ends_nobody(workers):
    before = workers.pids
    with pytest.raises(RuntimeError, match="ValueError: no number"):
        workers.answer(["wrong"])
    assert workers.pids == before


def test_a_batch_that_ends_every_worker_has_no_answer_but_others_have(workers):
    with pytest.raises(WorkersError, match=f"{TRIES} workers ended"):
        workers.answer([13])
    assert workers.answer([4]) == [8]


def test_what_keeps_a_worker_from_opening_its_model_is_raised():
    with pytest.raises(ValueError, match="no model"):
        ServiceWorkers(refusing, 1)
