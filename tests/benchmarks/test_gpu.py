"""The GPU script: its arithmetic, and a run on a CPU without the packages that it does not need."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import benchmarks.gpu
from benchmarks.gpu import (
    HEADER,
    SIZES,
    Case,
    attention_of,
    cases,
    device_events,
    keys_seen,
    masked_rows,
    model_flops,
    rates,
    row,
    rows_of,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "case", [Case("base", 512, 3), Case("large", 4096, 1), Case("tiny", 32, 5)]
)
def test_model_flops_are_the_sum_over_matrix_products(case):
    """A step takes three times the operations of the forward pass.

    Attention is counted only within documents. The last layer is computed only at masked
    positions, which attend to as many keys on average as other positions.
    """
    layers, hidden, heads, vocabulary = SIZES[case.size]
    batch, length, size = case.batch, case.length, hidden // heads
    masked = int(0.15 * (length - 2))
    _, ids = rows_of(case)
    seen = np.mean([np.sum(row == token) for row in ids for token in row])
    assert 0 < seen < length
    forward = 0
    for outputs in [length] * (layers - 1) + [masked]:
        forward += 2 * 2 * batch * length * hidden * hidden  # keys, values
        forward += 2 * 2 * batch * outputs * hidden * hidden  # queries, output
        forward += 2 * batch * heads * 2 * outputs * seen * size  # scores, and their use
        forward += 2 * 2 * batch * outputs * hidden * 4 * hidden
    forward += 2 * batch * masked * (hidden * hidden + hidden * vocabulary)
    assert model_flops(case) == pytest.approx(3 * forward, rel=1e-12)


def test_a_row_has_a_cell_for_every_column():
    case = Case("base", 512, 64, 0.1, attention_dropout=0.0)
    result = {
        "tokens/s": 1e6,
        "seconds": 0.0328,
        "flops/s": 494.5e12,
        "outside": 0.25,
        "idle": 0.01,
        "attention": "cuDNN",
        "memory": 30e9,
    }
    line = row(case, result, 989e12)
    assert "| ours | base | 512 | 64 | 0.1/0 | cuDNN | off |" in line
    assert "| 1,000,000 | 32.8 | 50.0% | 25.0% | 1.0% | 30.0 |" in line
    assert line.count("|") == row(case, None, None).count("|") == HEADER.splitlines()[0].count("|")


def test_real_rows_are_read_from_a_file(tmp_path):
    """A batch larger than the file repeats its rows, and padding is never masked."""
    ids = np.array([[1] * 9 + [2] * 7, [1] * 4 + [0] * 12, [3] * 16], "uint16")
    tokens = np.arange(48, dtype="uint16").reshape(3, 16) + 450
    file = tmp_path / "rows.npz"
    np.savez_compressed(file, token_ids_16=tokens, sequence_ids_16=ids)
    case = Case("tiny", 16, 4, rows=str(file))
    actual, documents = rows_of(case)
    assert documents.tolist() == [*ids.tolist(), ids[0].tolist()]
    assert actual[0].tolist() == [x % 500 for x in range(450, 466)]
    assert keys_seen(documents) == (2 * (81 + 49) + 16 + 256) / 64
    result = masked_rows(case)
    positions = result["masked_positions"]
    assert positions.shape == (4, 2)
    assert (positions[1] < 4).all()
    np.testing.assert_array_equal(result["labels"], np.take_along_axis(actual, positions, 1))


def test_dropout_rates_are_parsed():
    assert rates("0.1") == (0.1, None)
    assert rates("0.1/0") == (0.1, 0.0)
    assert Case("tiny", 16, 1, *rates("0.1")).dropped == (0.1, 0.1)
    assert Case("tiny", 16, 1, *rates("0.1/0")).dropped == (0.1, 0.0)


def test_each_case_is_followed_by_the_other_models(monkeypatch):
    flags = ["--size", "tiny", "base", "--lengths", "64", "--dropout", "0"]
    flags += ["--models", "ours", *benchmarks.gpu.PEERS]
    monkeypatch.setattr(sys, "argv", ["gpu", *flags, "--attention", "auto", "plain"])
    actual = [(case.size, case.model, case.attention) for case in cases(benchmarks.gpu.arguments())]
    peers = [(model, "auto") for model in benchmarks.gpu.PEERS]
    ours = [("ours", "auto"), ("ours", "plain")]
    assert actual == [(size, *each) for size in ("tiny", "base") for each in (*ours, *peers)]


@pytest.mark.parametrize(
    ("names", "want"),
    [
        (["cudnn_generated_fort_native_sdpa_sm90_flash_fprop"], "cuDNN"),
        (["gemm_bf16", "loop_exp_fusion"], "plain"),
    ],
)
def test_attention_is_identified_by_kernel_names(names, want):
    assert attention_of(dict.fromkeys(names, 1.0)) == want


class FakeEvent:
    def __init__(self, name, **fields):
        self.name = name
        vars(self).update(fields)


def test_only_streams_of_a_gpu_are_counted():
    kernel, copy, host = (FakeEvent(name, duration_ns=5.0) for name in ("gemm", "copy", "python"))
    streams = [
        FakeEvent("Stream #1(Compute)", events=[kernel]),
        FakeEvent("Stream #2", events=[copy]),
    ]
    modules = FakeEvent("XLA Modules", events=[host])
    trace = FakeEvent(
        "",
        planes=[
            FakeEvent("/host:CPU", lines=[FakeEvent("tf_XLAEigen", events=[host])]),
            FakeEvent("/device:GPU:0", lines=[*streams, modules]),
        ],
    )
    assert list(device_events(trace)) == [("gemm", 5.0), ("copy", 5.0)]


RUN = """
import runpy, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

BLOCKED = {"tensorflow", "torch", "sklearn", "grain", "jieba", "rjieba", "yaml", "platformdirs",
    "requests", "filelock", "seqeval", "pyarrow", "fontTools", "jinja2", "matplotlib"}
sys.meta_path.insert(0, Blocker())
sys.argv = ["gpu", *sys.argv[1:]]
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""


@pytest.mark.skipif(not find_spec("jax"), reason="needs the extra [jax]")
@pytest.mark.slow
def test_the_command_runs_without_optional_packages():
    case = json.dumps({"size": "tiny", "length": 32, "batch": 4})
    process = subprocess.run(
        [sys.executable, "-c", RUN, "--case", case, "2", "2"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    result = json.loads(process.stdout.splitlines()[-1])
    assert result["tokens/s"] == pytest.approx(4 * 32 / result["seconds"])
    assert result["flops/s"] > 0
    assert 0 < result["outside"] < 1  # the trace has matrix products and other kernels
    assert result["memory"] is None  # JAX does not report it on a CPU
