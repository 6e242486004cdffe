"""`roformer-tf runs` in a new process. What it computes is tested in tests/training."""

import json
import os
import subprocess
import sys

import pytest


@pytest.fixture
def run(tmp_path):
    """run("runs/a", …) → exit code, stdout, stderr. Runs in an empty folder."""

    def call(*words, **environment):
        done = subprocess.run(
            [sys.executable, "-m", "roformer_tf", "runs", *map(str, words)],
            capture_output=True,
            encoding="utf-8",
            check=False,
            cwd=tmp_path,
            env=os.environ | environment,
        )
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.fixture
def runs(tmp_path):
    """A folder with a finished run and an unfinished one."""
    for name, steps, rate in (("基线", 20, 0.001), ("slow", 400, 0.0001)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        folder.joinpath("settings.yaml").write_text(
            f"output: runs/{name}\nsteps: {steps}\nlearning_rate: {rate}\n", encoding="utf-8"
        )
        lines = [
            {"step": step, "loss": 5 - step / 10, "learning_rate": rate, "tokens_per_second": 1000}
            for step in (10, 20)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        folder.joinpath("metrics.jsonl").write_text(text + '{"step": 3')
        folder.joinpath("evaluations.jsonl").write_text(
            '{"step": 20, "held_out_loss": 2.5, "held_out_accuracy": 0.25}\n'
        )
    return tmp_path / "runs"


TABLE = """\
name                state    loss  held-out  accuracy  best held-out  tokens/s
slow    at step 20 of 400  3.0000    2.5000    25.00%   2.5000 at 20     1,000
基线  finished at step 20  3.0000    2.5000    25.00%   2.5000 at 20     1,000

setting        value   runs
steps          400     slow
               20      基线
learning_rate  0.0001  slow
               0.001   基线
"""


@pytest.mark.usefixtures("runs")
def test_runs_are_compared_in_a_table(run):
    code, out, err = run("runs", COLUMNS="100")
    assert (code, err) == (0, "")
    assert out == TABLE


def test_the_table_fits_into_the_terminal(run, runs):
    code, out, err = run("runs/slow", "runs/基线", COLUMNS="60")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 60
    assert out.count("slow") == 3


def test_neither_keras_nor_matplotlib_is_loaded_for_the_table(runs):
    code = (
        "import sys\n"
        "from roformer_tf.cli import main\n"
        f"assert main(['runs', {str(runs)!r}]) == 0\n"
        "print({'keras', 'tensorflow', 'matplotlib', 'numpy'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ([], "--folder must be given."),
        (["nowhere"], "nowhere holds no run"),
        (["empty"], "empty holds no run"),
        (["runs", "empty"], "empty holds no run"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(run, runs, tmp_path, words, printed):
    (tmp_path / "empty").mkdir()
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    (message,) = err.splitlines()
    assert printed in message


@pytest.mark.parametrize(
    ("file", "content", "printed"),
    [
        ("metrics.jsonl", '{"step": 1}\n{"step": \n{"step": 3}\n', "line 2"),
        ("evaluations.jsonl", "\n", "line 1"),
        ("settings.yaml", "steps: 3\nseed: [\n", "line 3, column 1"),
    ],
)
def test_a_damaged_file_is_reported_with_its_line(run, runs, file, content, printed):
    (runs / "slow" / file).write_text(content)
    code, out, err = run("runs")
    assert (code, out) == (2, "")
    assert err.startswith(f"roformer-tf runs: runs/slow/{file}")
    assert printed in err


def test_a_closed_pipe_is_not_an_error(runs):
    process = subprocess.Popen(
        [sys.executable, "-m", "roformer_tf", "runs", str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_a_run_of_pretrain_is_read(run, pretrained):
    code, out, err = run(pretrained)
    assert (code, err) == (0, "")
    heading, figures = out.splitlines()
    assert figures.startswith("run   finished at step 8  ")
    assert len(heading) == len(figures)
