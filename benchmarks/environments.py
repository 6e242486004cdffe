"""Python environments of the peers. Ours is the running one; each other peer has a virtual one."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

# Environment variables of each peer's processes, in addition to ours.
VARIABLES = {
    "bert4keras": {"TF_KERAS": "1", "TF_USE_LEGACY_KERAS": "1"},
    "huggingface": {"HF_HUB_OFFLINE": "1"},
}


def make_environment(peer: str, here: Path = HERE) -> None:
    """Install a peer if it is missing or its requirements have changed.

    `peers/<peer>.txt` is installed, then `peers/<peer>.alone.txt` without dependencies.
    Raises CalledProcessError if pip fails.
    """
    requirements, python, stamp = _files(peer, here)
    if not requirements.exists() or _is_ready(peer, here):
        return
    print(f"setup: installing {peer} into {stamp.parent} (a few minutes)", flush=True)
    stamp.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "venv", str(stamp.parent)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--requirement", str(requirements)], check=True)
    alone = requirements.with_suffix(".alone.txt")
    if alone.exists():
        subprocess.run([*pip, "--no-deps", "--requirement", str(alone)], check=True)
    stamp.write_text(_requirements(peer, here))


def python_of(peer: str, here: Path = HERE) -> Path:
    """Return the Python of a peer, which is the running one for ours and for the limit.

    Raises FileNotFoundError if the peer is not installed.
    """
    requirements, python, _ = _files(peer, here)
    if not requirements.exists():
        return Path(sys.executable)
    if not _is_ready(peer, here):
        raise FileNotFoundError(f"{peer} could not be installed")
    return python


def variables_of(peer: str) -> dict[str, str]:
    """Return the environment variables of a peer's processes."""
    return os.environ | VARIABLES.get(peer, {})


def _files(peer: str, here: Path) -> tuple[Path, Path, Path]:
    """Return the paths of the requirements, of the Python and of the installation's stamp."""
    folder = here / ".venvs" / peer
    return here / "peers" / f"{peer}.txt", folder / "bin" / "python", folder / "installed.txt"


def _is_ready(peer: str, here: Path) -> bool:
    stamp = _files(peer, here)[2]
    return stamp.exists() and stamp.read_text() == _requirements(peer, here)


def _requirements(peer: str, here: Path) -> str:
    return "".join(path.read_text() for path in sorted((here / "peers").glob(f"{peer}.*txt")))
