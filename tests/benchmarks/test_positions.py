"""`python -m benchmarks.positions` trains runs that differ only in positions and compares them."""

import json
from concurrent.futures import Future

import numpy as np
import pytest

from benchmarks import positions
from benchmarks.positions import seed_interval
from roformer_tf.config import RoFormerConfig
from roformer_tf.training.run_files import read_settings
from roformer_tf.usage import from_words


class _InProcessPool:
    """A process pool that runs in this process, which avoids importing TensorFlow again."""

    def __init__(self, *_):
        self.calls = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def submit(self, function, argument):
        future = Future()
        future.set_result(function(argument))
        return future


@pytest.fixture
def flags_of_comparison(write_corpus, tmp_path):
    """The flags of a comparison of tiny models."""
    corpus = write_corpus(tmp_path / "corpus.txt", 80)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    architecture = tmp_path / "architecture.json"
    architecture.write_text(json.dumps({"vocab_size": 1, "intermediate_size": 64} | sizes))
    flags = f"--corpus {corpus} --architecture {architecture} --output {tmp_path / 'compared'}"
    flags += " --tokenization char --vocab-size 200 --length 32 --batch-size 8 --held-out 0.1"
    flags += " --steps 2 --evaluations 2 --workers 1 --precision float32 --positions rotary t5"
    return flags.split()


@pytest.mark.usefixtures("pictures")
@pytest.mark.slow
def test_runs_differ_only_in_positions_and_are_compared(
    flags_of_comparison, tmp_path, monkeypatch, eagerly
):
    monkeypatch.setattr(positions, "ProcessPoolExecutor", _InProcessPool)
    with eagerly():
        assert positions.main([*flags_of_comparison, "--seeds", "1"]) == 0
        first = (tmp_path / "compared/runs/rotary-0/result.json").read_bytes()
        assert positions.main([*flags_of_comparison, "--seeds", "2"]) == 0  # adds the second seed
    output = tmp_path / "compared"
    assert (output / "runs/rotary-0/result.json").read_bytes() == first
    settings = {path.name: read_settings(path) for path in (output / "runs").iterdir()}
    assert sorted(settings) == ["rotary-0", "rotary-1", "t5-0", "t5-1"]
    rotary, t5 = settings["rotary-1"], settings["t5-1"]
    assert {key for key in rotary if rotary[key] != t5[key]} == {"output", "architecture"}
    shapes = [RoFormerConfig.from_file(item["architecture"]) for item in (rotary, t5)]
    assert shapes[1] == shapes[0].replace(position_embedding_type="t5")

    report = json.loads((output / "comparison.json").read_text("utf-8"))
    losses = {name: item["by_seed"] for name, item in report["positions"].items()}
    gaps = np.subtract(losses["t5"], losses["rotary"])
    assert report["positions"]["t5"]["difference"] == pytest.approx(gaps.mean())
    assert report["positions"]["t5"]["interval"] == pytest.approx(seed_interval(gaps))
    assert [step for step, _ in report["positions"]["t5"]["curve"]] == [0, 1, 2]
    weights = {name: item["parameters"] for name, item in report["positions"].items()}
    assert weights["t5"] == weights["rotary"] + 32 * 2  # 32 distances, 2 heads
    for page in ("comparison.md", "comparison.html"):
        text = (output / page).read_text("utf-8")
        assert f"{report['positions']['t5']['held_out_loss']:.4f}" in text
    assert (output / "comparison.png").read_bytes().startswith(b"\x89PNG")
    # The folder has another comparison.
    assert positions.main([*flags_of_comparison, "--steps", "5"]) == 2


@pytest.mark.parametrize(
    ("losses", "result"),
    [
        ([1.0, 1.01], "no difference shown"),
        ([2.0, 2.01], "worse"),
        ([0.5, 0.51], "better"),
        ([1.0], ""),
    ],
)
def test_the_table_interprets_the_difference(losses, result, tmp_path, flags_of_comparison):
    def run(loss):
        fixed = {"held_out_accuracy": 0.1, "seconds_per_step": 0.1, "peak_memory": 0}
        return {"held_out_loss": loss, "curve": [[0, loss]], "parameters": 9, **fixed}

    config = from_words(positions.ComparisonConfig, flags_of_comparison, positions.PROGRAM)
    runs = {"rotary": [run(1.0), run(1.02)][: len(losses)], "t5": [run(x) for x in losses]}
    positions._write_report(tmp_path, positions._report(config, runs))
    row = next(x for x in (tmp_path / "comparison.md").read_text().splitlines() if "t5" in x)
    assert row.split(" | ")[5] == result


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--positions rotary", "at least two"),
        ("--seeds 0", "--seeds is 0"),
        ("--held-out 0", "No document is held out"),
        ("--objective causal --mask-rate 0.3", "--objective causal masks none"),
    ],
)
def test_bad_input_is_one_message(flags_of_comparison, flags, message, capsys):
    try:
        code = positions.main([*flags_of_comparison, *flags.split()])
    except SystemExit as stopped:  # the argument parser rejects the value itself
        code = stopped.code
    assert code == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_run_trains_in_its_own_process(flags_of_comparison, tmp_path):
    assert positions.main([*flags_of_comparison, "--seeds", "1"]) == 0
    result = json.loads((tmp_path / "compared/runs/t5-0/result.json").read_text("utf-8"))
    assert result["peak_memory"] > 2**27
