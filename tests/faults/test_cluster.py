"""A cluster that loses workers or its scheduler does not change a byte of the prepared files."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from benchmarks.cluster import ROOT, Loopback, differences, freeze, recorded_parts, thaw
from roformer_tf.corpus import preparation, workers
from roformer_tf.corpus.preparation import PreparationConfig, prepare
from roformer_tf.corpus.workers import EngineError
from roformer_tf.errors import InputError
from roformer_tf.tokenizers.padding import check_length

pytest.importorskip("distributed")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="freezes processes")

VOCABULARY = ROOT / "tests" / "fixtures" / "tokenizer" / "word" / "vocab.txt"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Use small parts, so that a small corpus has many."""
    monkeypatch.setattr(preparation, "PART_CHARACTERS", 10_000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster of three workers. A test that stops a worker adds another one."""
    variables = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "2s"}  # five minutes by default
    with Loopback(tmp_path_factory.mktemp("cluster"), 3, **variables) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def corpus(write_corpus, tmp_path_factory):
    """A corpus of about 60 parts."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "corpus.txt", 4_000, length=150)


@pytest.fixture(scope="module")
def configure(corpus, tmp_path_factory):
    """configure(cluster, …) → settings with a new output folder, by default for this process."""

    def make(cluster=None, **changes):
        engine = {"engine": "dask", "scheduler": str(cluster.file)} if cluster else {"workers": 1}
        settings = {
            "corpus": (str(corpus),),
            "output": str(tmp_path_factory.mktemp("output") / "rows"),
            "vocab": str(VOCABULARY),
            "length": 64,
        }
        return PreparationConfig(**settings | engine | changes)

    return make


@pytest.fixture(scope="module")
def expected(configure):
    """The files that one process on this machine writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "PART_CHARACTERS", 10_000)
        return prepare(configure())


@pytest.fixture
def when():
    """when(output, parts, act, …): call the functions once that many parts are recorded."""
    threads = []

    def start(output, parts, *acts):
        def run():
            while recorded_parts(Path(output)) < parts:
                time.sleep(0.005)
            for act in acts:
                act()

        threads.append(Thread(target=run, daemon=True))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive(), "the condition was never met"


def test_killed_and_frozen_workers_do_not_change_a_byte(cluster, configure, expected, when):
    config = configure(cluster)
    killed, frozen, *_ = running(cluster)
    when(config.output, 10, killed.kill, lambda: freeze(frozen))
    when(config.output, 25, lambda: thaw(frozen))
    assert differences(prepare(config), expected) == []
    assert killed.wait() == -signal.SIGKILL
    frozen.kill()  # its work is done by the other workers, and Dask ends it when it wakes up
    frozen.wait()
    cluster.add_worker()
    cluster.add_worker()


@pytest.mark.slow
def test_a_worker_that_wakes_up_after_the_end_changes_nothing(cluster, configure, expected, when):
    config = configure(cluster)
    frozen, *_ = running(cluster)
    when(config.output, 20, lambda: freeze(frozen))
    output = prepare(config)
    assert differences(output, expected) == []
    thaw(frozen)
    frozen.wait(30)  # it finishes its write and then exits
    assert differences(output, expected) == []
    cluster.add_worker()


def test_a_part_repeated_after_the_end_changes_nothing(configure, expected, monkeypatch):
    tasks = []

    @contextmanager
    def recording_workers(task, *_):
        def submit(item):
            tasks.append(partial(task, item))
            return tasks[-1]

        yield partial(workers.in_order, submit, lambda: 3)

    monkeypatch.setattr(preparation, "open_workers", recording_workers)
    output = prepare(configure())
    for write in tasks[:3]:
        assert write()["shards"]
    assert differences(output, expected) == []


def test_counting_on_a_cluster_builds_the_same_vocabulary(cluster, configure):
    changes = {"vocab": None, "vocab_size": 500}
    assert differences(prepare(configure(cluster, **changes)), prepare(configure(**changes))) == []


def test_bad_input_in_a_task_is_reported_as_bad_input(cluster, tmp_path):
    with workers.cluster(check_length, tmp_path, str(cluster.file)) as pool:
        results = pool([512, 128, 2, 512])
        assert [next(results), next(results)] == [(512, None), (128, None)]
        with pytest.raises(InputError, match="at least") as raised:
            next(results)
    assert not isinstance(raised.value, EngineError)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_line_at_the_end_leaves_nothing(cluster, configure, corpus, tmp_path):
    bad = tmp_path / "bad.txt"
    bad.write_bytes(corpus.read_bytes() + b"\xff\n")
    config = configure(cluster, corpus=(str(bad),), strict=True)
    with pytest.raises(InputError, match=r"bad\.txt:4001: not UTF-8"):
        prepare(config)
    time.sleep(0.5)
    assert not Path(config.output).exists()


@pytest.mark.slow
def test_a_terminated_preparation_leaves_no_task_on_the_cluster_and_resumes(
    cluster, configure, expected, when
):
    config = configure(cluster)
    script = f"""
from roformer_tf.corpus import preparation
preparation.PART_CHARACTERS = 10_000
preparation.prepare(preparation.{config!r})
"""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE)
    when(config.output, 20, process.terminate)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    with workers._connect(str(cluster.file)) as client:
        wait_until(lambda: not any(client.processing().values()))
    assert 20 <= recorded_parts(Path(config.output)) < 50
    assert differences(prepare(config), expected) == []


@pytest.mark.slow
def test_a_worker_without_the_package_is_reported(configure, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['roformer_tf'] = None")
    with Loopback(tmp_path / "cluster") as cluster:
        cluster.add_worker(PYTHONPATH=str(tmp_path))
        with pytest.raises(EngineError, match=r"cannot load .*roformer_tf.*Install there"):
            prepare(configure(cluster))


@pytest.mark.slow
def test_a_part_that_kills_its_worker_is_reported(tmp_path):
    failures = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
    with (
        Loopback(tmp_path / "cluster", 1, **failures) as cluster,
        workers.cluster(os._exit, tmp_path, str(cluster.file)) as pool,
        pytest.raises(
            EngineError, match=r"part of the corpus ended 1 workers.*The same command continues"
        ),
    ):
        list(pool([3]))


@pytest.mark.slow
def test_a_lost_scheduler_is_reported_and_local_processes_resume(
    configure, expected, when, tmp_path, capfd
):
    with Loopback(tmp_path, 1) as cluster:
        config = configure(cluster)
        when(config.output, 10, cluster.scheduler.kill)
        with pytest.raises(EngineError, match=r"scheduler at tcp://\S+ is lost.*continues"):
            prepare(config)
        assert "Traceback" not in capfd.readouterr().err
        done = {path: path.stat().st_ino for path in Path(config.output).glob("*.npy")}
        local = configure(output=config.output, workers=2)
        assert differences(prepare(local), expected) == []
    assert 10 <= len(done) < 60
    assert all(path.stat().st_ino == number for path, number in done.items())


def running(cluster):
    return [worker for worker in cluster.workers if worker.poll() is None]


def wait_until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
