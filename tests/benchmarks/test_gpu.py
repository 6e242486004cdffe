"""The GPU script: its arithmetic, and that it runs, here on a processor, with little installed."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.gpu import HEADER, SIZES, Case, device_events, model_flops, row

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "case", [Case("base", 512, 3), Case("large", 4096, 1), Case("tiny", 32, 5)]
)
def test_operations_are_those_of_the_products_one_by_one(case):
    """Three times the forward pass: twice the rows times the columns for every product."""
    layers, hidden, heads, vocabulary = SIZES[case.size]
    batch, length, size = case.batch, case.length, hidden // heads
    masked = int(0.15 * (length - 2))
    forward = 0
    for answered in [length] * (layers - 1) + [masked]:
        forward += 2 * 2 * batch * length * hidden * hidden  # keys, values
        forward += 2 * 2 * batch * answered * hidden * hidden  # queries, output
        forward += 2 * batch * heads * 2 * answered * length * size  # scores, and their use
        forward += 2 * 2 * batch * answered * hidden * 4 * hidden
    forward += 2 * batch * masked * (hidden * hidden + hidden * vocabulary)
    assert model_flops(case) == pytest.approx(3 * forward, rel=1e-12)


def test_a_line_has_a_cell_for_every_column():
    case = Case("base", 512, 64)
    result = {
        "tokens/s": 1e6,
        "seconds": 0.0328,
        "flops/s": 494.5e12,
        "outside": 0.25,
        "idle": 0.01,
        "flash": False,
        "memory": 30e9,
    }
    line = row(case, result, 989e12)
    assert "| 1,000,000 | 32.8 | 50.0% | 25.0% | 1.0% | 30.0 |" in line
    assert line.count("|") == row(case, None, None).count("|") == HEADER.splitlines()[0].count("|")


class Named:
    def __init__(self, name, **fields):
        self.name = name
        vars(self).update(fields)


def test_of_a_gpu_only_the_streams_count():
    kernel, copy, host = (Named(name, duration_ns=5.0) for name in ("gemm", "copy", "python"))
    streams = [Named("Stream #1(Compute)", events=[kernel]), Named("Stream #2", events=[copy])]
    modules = Named("XLA Modules", events=[host])
    trace = Named(
        "",
        planes=[
            Named("/host:CPU", lines=[Named("tf_XLAEigen", events=[host])]),
            Named("/device:GPU:0", lines=[*streams, modules]),
        ],
    )
    assert list(device_events(trace)) == [("gemm", 5.0), ("copy", 5.0)]


RUN = """
import runpy, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

REFUSED = {"tensorflow", "torch", "sklearn", "grain", "jieba", "rjieba", "tyro", "yaml", "pooch",
    "requests", "filelock", "seqeval", "pyarrow", "fontTools", "jinja2", "matplotlib"}
sys.meta_path.insert(0, Refuse())
sys.argv = ["gpu", *sys.argv[1:]]
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""


@pytest.mark.skipif(not find_spec("jax"), reason="needs the extra [jax]")
@pytest.mark.slow
def test_it_measures_with_keras_jax_and_numpy_alone():
    case = json.dumps({"size": "tiny", "length": 32, "batch": 4})
    done = subprocess.run(
        [sys.executable, "-c", RUN, "--case", case, "2", "2"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["tokens/s"] == pytest.approx(4 * 32 / result["seconds"])
    assert result["flops/s"] > 0
    assert 0 < result["outside"] < 1  # the trace was read, and both kinds found
    assert result["memory"] is None  # a processor does not tell
