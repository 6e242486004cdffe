"""The notebooks in examples/ run from the first cell to the last."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(notebook):
    content = json.loads(notebook.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in content["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cell_installs_and_no_output_is_stored(notebook):
    install, *rest = cells(notebook)
    assert "%pip install" in install
    assert not any(line.startswith(("%", "!")) for cell in rest for line in cell.splitlines())
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") for cell in content["cells"])


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook, tmp_path):
    """Run all cells except the installation in one process, in a copy of a clone's folders."""
    for folder in ("examples", "docs"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    script = tmp_path / "examples" / "notebook.py"
    script.write_text("\n\n".join(cells(notebook)[1:]), encoding="utf-8")
    commands = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "PYTHONUTF8": "1", "PATH": commands,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent, env=environment, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    expected = {
        "finetune_and_serve": '"label"',
        "pretrain_on_your_text": "filled",
        "rotary_attention": "rotary",
    }
    assert expected[notebook.stem].strip('"') in done.stdout
