import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.cases import CASES, LIMIT, Measurement
from benchmarks.plots import draw
from benchmarks.report import render
from benchmarks.results import FILE, Results, exponent, median, this_commit
from benchmarks.workers import Row

MACHINE = {"processor": "abacus"}
PLOTS = Path(__file__).parents[2] / "benchmarks" / "plots"


def step(length=512):
    shape = {"size": "small", "length": length, "dropout": 0.1}
    settings = {"batch": 8, "length": length, "checkpoint": "/somewhere/here"}
    return Measurement("mlm_step", shape, (), settings)


def rows(ours=1.0):
    return [
        Row("ours", "our way", [ours, 3 * ours, 0.5 * ours], {"peak_memory": 2e9}),
        Row("Hugging Face, stock", "as people run it", [4.4] * 3, {"first_loss": 10.8}),
        Row("bert4keras", "the old way", failed="could not be installed"),
        Row(LIMIT, "", [0.8] * 3, {"operations": 4e11}),
    ]


def results():
    result = Results(MACHINE, {})
    result.put(step(), rows(), "abc1234")
    return result


def cells(text, *contents):
    """Return the cells of the only table line that contains all of `contents`."""
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("|")]
    (actual,) = (line for line in lines if all(content in line for content in contents))
    return actual


def test_ratios_are_between_medians():
    actual = cells(render(results()), "Hugging Face, stock", "10.8000 |")
    assert actual[2:5] == ["4.40 s (4.40 s to 4.40 s)", "931 tokens/s", "4.40"]
    assert cells(render(results()), LIMIT)[3:5] == ["0.50 TFLOP/s", "0.80"]


def test_the_goal_table_leaves_failed_contenders_empty():
    text = render(results())
    actual = cells(text, "4.40", "0.80 |")
    assert actual == ["| size small, length 512, dropout 0.1", "4.40", "", "", "0.80 |"]
    assert "failed: could not be installed" in text


def test_a_repeated_measurement_replaces_the_old_one(tmp_path):
    result = results()
    result.put(step(128), rows(), "abc1234")
    result.put(step(), rows(ours=2.0), "def5678")
    result.write(tmp_path / "results.json")
    reread = Results.read(tmp_path / "results.json", MACHINE)
    assert [median(record, "ours") for record in reread.of("mlm_step")] == [2.0, 1.0]
    assert median(reread.of("mlm_step")[0], "bert4keras") is None
    assert "/somewhere" not in (tmp_path / "results.json").read_text()


def test_a_measurement_records_commit_and_software(tmp_path):
    result, measured = results(), rows()
    measured[0].facts["versions"] = {"tensorflow": "2.99.0", "keras": "3.99.0"}
    result.put(step(128), measured, "def5678-dirty")
    result.write(tmp_path / "results.json")
    of_512, of_128 = Results.read(tmp_path / "results.json", MACHINE).of("mlm_step")
    assert (of_512["commit"], of_512["software"]) == ("abc1234", {})
    assert of_128["commit"] == "def5678-dirty"
    assert of_128["software"] == {"keras": "3.99.0", "tensorflow": "2.99.0"}
    text = render(result)
    assert cells(text, "| commit") == ["| commit", "abc1234, def5678-dirty |"]
    assert cells(text, "| software") == ["| software", "keras 3.99.0, tensorflow 2.99.0 |"]


def test_the_commit_is_that_of_git():
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=PLOTS, check=True, capture_output=True, text=True
    )
    assert head.stdout.startswith(this_commit().removesuffix("-dirty"))


def test_every_stored_figure_has_commit_and_software():
    stored = json.loads(FILE.read_text(encoding="utf-8"))["measurements"].values()
    assert all(record["commit"] != "unknown" and record["software"] for record in stored)


PEERS = ("Hugging Face, stock", "Hugging Face, tuned", "bert4keras")
INFERENCE_PEERS = ("Hugging Face, compiled", "Hugging Face, tuned", "bert4keras")


def measurement_of(label):
    """Return the case, shape and contenders of a row in the documentation's speed tables."""
    size = {"size": "small" if "L6 H384" in label else "base"}
    if step := re.search(r"\d × ([\d,]+) .*dropout ([\d.]+)", label):
        length, dropout = int(step[1].replace(",", "")), float(step[2])
        return "mlm_step", size | {"length": length, "dropout": dropout}, PEERS
    texts = "mixed" if "32" in label else "one"
    return "inference", size | {"texts": texts}, INFERENCE_PEERS


@pytest.mark.parametrize("name", ["docs/research/speed.md", "docs/zh/research/speed.md"])
def test_speeds_in_the_documentation_match_the_measurements(name):
    stored = Results(MACHINE, json.loads(FILE.read_text(encoding="utf-8"))["measurements"])
    text = (PLOTS.parents[1] / name).read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*L(?:6 H384|12 H768)[^|]*) \| (.*) \|$", text, flags=re.MULTILINE)
    rows = [row for row in rows if row[1].count("|") == 2]
    assert len(rows) == 11
    for label, figures in rows:
        case, shape, contenders = measurement_of(label)
        (record,) = (each for each in stored.of(case) if each["shape"] == shape)
        for contender, message in zip(contenders, figures.split("|"), strict=True):
            seconds = median(record, contender)
            assert bool(message.strip()) == (seconds is not None), label
            if seconds is None:
                continue
            in_bfloat16 = case == "inference" and contender == "Hugging Face, tuned"
            ratio = seconds / median(record, "ours, bfloat16" if in_bfloat16 else "ours")
            digits = len(message.strip().partition(".")[2])
            assert message.strip() == f"{ratio:.{digits}f}", (label, contender)


def test_figures_of_another_machine_are_discarded(tmp_path):
    results().write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json", {"processor": "sand"}).measurements == {}
    assert Results.read(tmp_path / "none.json", MACHINE).measurements == {}


class FakeMaterial:
    """Replaces Material: returns names of texts and checkpoints without creating them."""

    def checkpoint(self, size):
        return f"/checkpoint/{size}"

    corpus = rows = sentences = checkpoint

    def embedder(self):
        return "embedder"


@pytest.mark.parametrize("failed", [None, "no memory"])
def test_every_case_is_written_and_drawn(tmp_path, failed):
    facts = {"milliseconds": {"casts": 20}, "tokens_a_step": 4096, "versions": {"abacus": "1"}}
    result = Results(MACHINE, {})
    for make in CASES.values():
        for each in make(FakeMaterial()):
            seconds = [] if failed else [2.0, 1.0, 3.0]
            rows = [Row(c.name, c.about, seconds, dict(facts), failed) for c in each.contenders]
            result.put(each, rows, "abc1234")
    text = render(result)
    assert text.count("failed: no memory" if failed else "| 2.00 s (1.00 s to 3.00 s)") > 90
    draw(result, tmp_path)
    drawn = {path.stem for path in tmp_path.glob("*.png")}
    shown = set(re.findall(r"plots/(\w+)\.png", text))
    assert drawn <= shown
    stored = {path.stem for path in PLOTS.glob("*.png")}
    assert shown <= stored  # including the plots of NOTES.md


def test_the_exponent_of_a_square_is_two():
    assert exponent([1.0, 10.0, 100.0], [3.0, 300.0, 30_000.0]) == pytest.approx(2)
