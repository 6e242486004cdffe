import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.environments import make_environment, python_of


@pytest.fixture
def commands(monkeypatch):
    """The list of commands passed to subprocess.run; a command that contains "broken" fails."""
    recorded = []

    def run(command, check):
        recorded.append(command[1:])
        if any("broken" in word for word in command):
            raise subprocess.CalledProcessError(1, command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(subprocess, "run", run)
    return recorded


@pytest.fixture
def here(tmp_path):
    """A folder with the requirements of four peers."""
    peers = tmp_path / "peers"
    peers.mkdir()
    (peers / "plain.txt").write_text("one==1\n")
    (peers / "old.txt").write_text("two==2\n")
    (peers / "old.alone.txt").write_text("three==3\n")
    (peers / "broken.txt").write_text("none==0\n")
    return tmp_path


def test_ours_uses_the_running_python(here, commands):
    make_environment("ours", here)
    assert not commands
    assert python_of("ours", here) == Path(sys.executable)


def test_a_peer_is_installed_again_only_if_its_requirements_change(here, commands):
    make_environment("plain", here)
    make_environment("plain", here)
    assert [command[1] for command in commands] == ["venv", "pip"]
    assert here in python_of("plain", here).parents
    (here / "peers" / "plain.txt").write_text("one==1.1\n")
    make_environment("plain", here)
    assert len(commands) == 4


def test_alone_requirements_are_installed_without_dependencies(here, commands):
    make_environment("old", here)
    assert commands[1][-1].endswith("old.txt")
    assert "--no-deps" not in commands[1]
    assert commands[2][-1].endswith("old.alone.txt")
    assert "--no-deps" in commands[2]


def test_a_failed_installation_leaves_no_python(here, commands):
    with pytest.raises(subprocess.CalledProcessError):
        make_environment("broken", here)
    with pytest.raises(FileNotFoundError, match="broken could not be installed"):
        python_of("broken", here)
