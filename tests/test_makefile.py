"""The Makefile's targets, in a virtual environment whose pip installs nothing."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UNREACHABLE = "http://127.0.0.1:9/"
PYTHON = """#!/bin/sh
case "$*" in
    "-m pip download "*) exec "{python}" "$@" ;;
    *) echo "$@" >> "{log}" ;;
esac
"""

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="needs make")


@pytest.fixture
def make(tmp_path):
    """make(target, **environment) → the finished process, and the commands of its Python.

    This Python runs `pip download`, and only logs all other commands.
    """
    environment, log = tmp_path / "venv", tmp_path / "log"
    (environment / "bin").mkdir(parents=True)
    (environment / ".made").touch()
    python = environment / "bin" / "python"
    python.write_text(PYTHON.format(python=sys.executable, log=log))
    python.chmod(0o755)
    foreign = ("PIP_", "MAKE", "MFLAGS", "TEST_FLAGS")  # make sets all but the first
    inherited = {key: x for key, x in os.environ.items() if not key.startswith(foreign)}
    inherited |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": UNREACHABLE}

    def run(target, **variables):
        log.write_text("")
        done = subprocess.run(
            ["make", target, f"VENV={environment}"],
            cwd=ROOT,
            env=inherited | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        return done, log.read_text().splitlines()

    return run


@pytest.fixture
def wheels(tmp_path):
    """A folder with the wheel that setup fetches first, for users without an index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    about = "tqdm-4.67.0.dist-info"
    with zipfile.ZipFile(folder / "tqdm-4.67.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tqdm\nVersion: 4.67.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return folder


@pytest.mark.parametrize("target", ["demo", "poems", "test"])
def test_without_a_network_one_line_is_printed_at_once(make, target):
    done, commands = make(target)
    assert done.returncode == 2
    message, by_make = done.stderr.splitlines()
    assert message.startswith("setup: pip cannot fetch packages; is there a network")
    assert by_make.startswith("make: ***")
    assert commands == []


def test_wheels_in_a_folder_do_without_an_index(make, wheels):
    done, commands = make("demo", PIP_FIND_LINKS=str(wheels), PIP_NO_INDEX="1")
    assert done.returncode == 0, done.stderr
    assert commands == ["-m pip install --quiet --editable .[demo]", "-m pretrain.demo"]
    done, commands = make("poems", PIP_FIND_LINKS=str(wheels), PIP_NO_INDEX="1")
    assert commands == ["-m pip install --quiet --editable .[poems]", "-m pretrain.poems"]
    done, commands = make("demo")  # everything is installed: no network access
    assert (done.returncode, commands) == (0, ["-m pretrain.demo"])


def test_the_tests_with_torch_install_it_and_run_only_those(make, wheels):
    done, commands = make("test-hf", PIP_FIND_LINKS=str(wheels))  # the index is unreachable
    assert done.returncode == 0, done.stderr
    assert [command for command in commands if "pytest" in command] == ["-m pytest -m hf"]
    assert "-m pip install --quiet --editable .[hf]" in commands
    assert any(".[demo,dev," in command for command in commands)


def test_the_suite_gets_the_checkpoint_and_the_flags(make, wheels):
    done, commands = make(
        "suite", PIP_FIND_LINKS=str(wheels), CHECKPOINT="x", SUITE_FLAGS="--quick"
    )
    assert done.returncode == 0, done.stderr
    assert commands[-1] == "-m benchmarks.suite --checkpoint x --quick"


def test_help_names_every_target(make):
    done, _ = make("help")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (targets,) = [line for line in makefile.splitlines() if line.startswith(".PHONY")]
    for target in targets.split()[2:]:
        assert f"make {target} " in done.stdout
