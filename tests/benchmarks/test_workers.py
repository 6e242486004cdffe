import pytest

from benchmarks.workers import Contender, measure

PEER = """
import os, sys, time
from benchmarks.peers.worker import Prepared, serve

def work(*, log, name, seconds=0.01, wrong=None):
    print("a library that talks")
    if wrong == "at once":
        raise ValueError("no such thing")
    calls = []
    def run(count):
        if wrong == "in a round" and len(calls) == 3:
            sys.stderr.write("out of memory\\n")
            os._exit(3)
        calls.append(count)
        with open(log, "a") as file:
            print(name, count, file=file)
        return {"seconds": seconds * count, "calls": len(calls)}
    return Prepared(run, {"loss": 1.5})

serve([work], ["pip"])
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that measures peers with artificial timings.

    It returns the rows by name, and a log of which peer worked when.
    """
    folder = tmp_path / "benchmarks" / "peers"
    folder.mkdir(parents=True)
    (folder / "talking.py").write_text(PEER)  # `benchmarks` is a namespace package of two folders
    log = tmp_path / "log"

    def measured(rounds=3, at_least=0.1, **settings):
        contenders = [
            Contender(
                name,
                "talking",
                "",
                {"name": name, **settings_of_peer},
                {"PYTHONPATH": str(tmp_path)},
            )
            for name, settings_of_peer in settings.items()
        ]
        rows = measure(
            "work",
            {"log": str(log)},
            contenders,
            rounds=rounds,
            at_least=at_least,
            show_progress=lambda message: None,
        )
        return {row.name: row for row in rows}, log.read_text().split("\n")[:-1]

    return measured


def test_contenders_run_in_turn_in_rotating_order(run):
    rows, turns = run(a={"seconds": 2.0}, b={"seconds": 2.0}, c={"seconds": 2.0})
    names = [turn[0] for turn in turns]
    assert names == [*"abc", *"abc", *"bca", *"cab"]  # the first turn of each is not counted
    assert [row.seconds for row in rows.values()] == [[2.0] * 3] * 3


def test_short_work_is_repeated_within_a_round(run):
    rows, turns = run(rounds=2, a={"seconds": 0.03})
    assert turns == ["a 1", "a 1", "a 4", "a 4"]
    assert rows["a"].seconds == pytest.approx([0.03, 0.03])


def test_facts_of_a_peer_are_recorded(run):
    facts = run(rounds=2, a={"seconds": 2.0})[0]["a"].facts
    assert facts["loss"] == 1.5
    assert facts["calls"] == 3
    assert facts["versions"].keys() == {"pip"}
    assert 1e6 < facts["peak_memory"] < 1e9


def test_a_failed_peer_has_a_message_and_others_continue(run):
    rows, _ = run(
        a={"seconds": 2.0},
        b={"wrong": "at once"},
        c={"seconds": 2.0, "wrong": "in a round"},
        d={"nonsense": 1},
    )
    assert rows["a"].failed is None
    assert len(rows["a"].seconds) == 3
    assert rows["b"].failed == "ValueError: no such thing"
    assert rows["c"].failed == "ended with 3: out of memory"
    assert len(rows["c"].seconds) == 2
    assert "nonsense" in rows["d"].failed
