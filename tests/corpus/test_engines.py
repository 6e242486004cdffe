import os
import pickle
import socket
import threading
import time
from concurrent.futures import Future

import pytest

from roformer_tf.corpus import workers
from roformer_tf.corpus.preparation import PreparationConfig, prepare
from roformer_tf.corpus.workers import EngineError, in_order
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.padding import check_length


class ManualPool:
    """A pool whose items are finished by the test."""

    def __init__(self, size):
        self.size = size
        self.futures = []

    def submit(self, item):
        self.futures.append(Future())
        return self.futures[-1].result

    def finish(self, *numbers):
        for number in numbers:
            self.futures[number].set_result(number)


def test_results_keep_the_order_of_items_and_few_are_pending():
    manual, read = ManualPool(4), []
    items = (read.append(n) or n for n in range(10))
    results = in_order(manual.submit, lambda: manual.size, items)
    threading.Timer(0.05, manual.finish, (3, 2, 1, 0)).start()
    assert next(results) == (0, 0)
    assert read == [0, 1, 2, 3], "no more is read than there is room for"
    assert next(results) == (1, 1)
    assert read == [0, 1, 2, 3, 4]
    manual.size = 6  # workers joined
    threading.Timer(0.05, manual.finish, (4, 5, 6, 7)).start()
    assert next(results) == (2, 2)
    assert len(read) == 8
    manual.size = 1  # and left
    assert [next(results) for _ in range(5)] == [(n, n) for n in range(3, 8)]
    assert len(read) == 8
    threading.Timer(0.05, manual.finish, (8,)).start()
    assert next(results) == (8, 8)


def open_workers(engine, task, folder, scheduler=None):
    count = {"alone": 1, "processes": 2}.get(engine)
    kind = "dask" if engine == "dask" else "processes"
    return workers.open_workers(task, folder, kind, scheduler, count)


@pytest.fixture(scope="module")
def scheduler():
    """The address of a cluster with two workers, which are threads of this process."""
    distributed = pytest.importorskip("distributed")
    sizes = {"n_workers": 2, "threads_per_worker": 1, "processes": False}
    place = {"host": "127.0.0.1", "protocol": "tcp", "dashboard_address": None}
    with distributed.LocalCluster(**sizes, **place) as cluster:
        yield cluster.scheduler_address


@pytest.mark.parametrize("engine", ["alone", "processes", "dask"])
def test_every_engine_gives_the_same_results_and_leaves_no_files(engine, scheduler, tmp_path):
    texts = ["你" * n for n in range(30)]
    with open_workers(engine, len, tmp_path, scheduler) as pool:
        assert list(pool(texts)) == [(text, len(text)) for text in texts]
        assert list(pool([])) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ["alone", "processes", "dask"])
def test_an_input_error_inside_a_task_is_raised_unchanged(engine, scheduler, tmp_path):
    with (
        open_workers(engine, check_length, tmp_path, scheduler) as pool,
        pytest.raises(InputError, match="at least") as raised,
    ):
        list(pool([8, 8, 2, 8]))
    assert type(raised.value) is InputError


def test_a_killed_process_is_reported(tmp_path):
    with (
        pytest.raises(EngineError, match=r"was killed.*The same command continues"),
        open_workers("processes", os._exit, tmp_path) as pool,
    ):
        list(pool([3, 3]))


def test_the_other_workers_of_a_killed_process_are_not_waited_for(tmp_path):
    """They may wait for ever, for a lock of the queue that the killed process held."""
    began = time.monotonic()
    with pytest.raises(EngineError), open_workers("processes", exec, tmp_path) as pool:
        # The pool watches a new process only from the next item on.
        list(pool(["import time; time.sleep(50)", "import os; os._exit(3)", ""]))
    assert time.monotonic() - began < 25


def test_a_worker_with_other_versions_refuses(tmp_path):
    job = pickle.dumps((len, str(tmp_path), "Python 2.7"))
    with pytest.raises(EngineError, match=r"Python 3\.\d+, .*numpy .*not Python 2\.7"):
        workers._run(job, pickle.dumps("你好"))


def test_a_worker_without_access_to_the_folder_refuses(tmp_path, scheduler):
    with (
        pytest.raises(EngineError, match=r"does not see .*/elsewhere\. Choose an --output"),
        open_workers("dask", len, tmp_path / "elsewhere", scheduler) as pool,
    ):
        list(pool(["你好"]))


def test_the_error_of_a_file_is_that_of_the_worker_and_not_of_the_scheduler(tmp_path, scheduler):
    with (
        pytest.raises(EngineError, match=r"worker process .* cannot write its part: .*nowhere"),
        open_workers("dask", os.rmdir, tmp_path, scheduler) as pool,
    ):
        list(pool([str(tmp_path / "nowhere")]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "workers is 0, but must be at least 1"),
        ({"scheduler": "tcp://a:1"}, "--scheduler needs --engine dask"),
        ({"engine": "dask", "workers": 2}, "--workers needs --engine processes"),
    ],
)
def test_contradictions_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        PreparationConfig(("a.txt",), output="rows", vocab="vocab.txt", **settings)


def test_a_cluster_needs_a_scheduler(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    with pytest.raises(InputError, match=r"needs a scheduler\. Give --scheduler.*DASK_SCHEDULER"):
        workers.check_cluster(None)


def test_the_scheduler_may_be_an_environment_variable(scheduler, tmp_path, monkeypatch):
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", scheduler)
    with open_workers("dask", len, tmp_path) as pool:
        assert list(pool(["你好"])) == [("你好", 2)]


@pytest.fixture
def closed_port():
    """A port without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_an_unreachable_scheduler_is_reported_and_nothing_is_written(
    closed_port, tmp_path, vocab_file, write_corpus, monkeypatch
):
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "CONNECTING", 0.3)
    address = f"tcp://127.0.0.1:{closed_port}"
    config = PreparationConfig(
        (str(write_corpus(tmp_path / "corpus.txt", 20)),),
        output=str(tmp_path / "rows"),
        vocab=str(vocab_file),
        engine="dask",
        scheduler=address,
    )
    with pytest.raises(
        InputError, match=rf"no Dask scheduler responds at {address}: .*--scheduler"
    ):
        prepare(config)
    assert not (tmp_path / "rows").exists()


@pytest.mark.parametrize("content", ["{", "[]", '{"type": "Scheduler"}'])
def test_an_invalid_scheduler_file_is_refused(content, tmp_path):
    pytest.importorskip("distributed")
    (tmp_path / "scheduler.json").write_text(content)
    with pytest.raises(InputError, match=r"scheduler\.json (is not|contains no)|at None"):
        workers.check_cluster(str(tmp_path / "scheduler.json"))


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(workers.sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"pip install 'roformer-tf\[dask\]'"):
        workers.check_cluster("tcp://127.0.0.1:8786")


def test_windows_uses_at_most_61_processes(monkeypatch, tmp_path):
    counts = []
    monkeypatch.setattr(workers.sys, "platform", "win32")
    monkeypatch.setattr(workers, "processes", lambda task, count: counts.append(count))
    workers.open_workers(len, tmp_path, "processes", None, 128)
    assert counts == [61]
