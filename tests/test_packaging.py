"""The wheel is complete, and works without a clone and without a network."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    tracked = [
        "git",
        "ls-files",
        "roformer_tf",
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
    ]
    for name in subprocess.check_output(tracked, cwd=ROOT, text=True).splitlines():
        target = sources / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "."]
    subprocess.run([sys.executable, *build, "--wheel-dir", str(folder)], cwd=sources, check=True)
    return next(folder.glob("*.whl"))


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
    tracked = subprocess.check_output(["git", "ls-files", "roformer_tf"], cwd=ROOT, text=True)
    expected = {name for name in tracked.splitlines() if not name.endswith(".po")}
    assert expected <= shipped
    packaged = {name for name in shipped if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in packaged} == {"roformer_tf"}


def test_the_wheel_fills_a_mask_and_fine_tunes_offline(wheel, tmp_path):
    """Use only the wheel, so that no other copy of the package can be imported."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (tmp_path / "rows.tsv").write_text(
        "text\tlabel\n"
        + "".join(f"房间很{x}{n}\t{y}\n" for n in range(20) for x, y in ("好1", "差0")),
        encoding="utf-8",
    )
    program = f"""
import roformer_tf
from roformer_tf.cli import main
assert roformer_tf.__file__.startswith({str(site)!r}), roformer_tf.__file__
print(roformer_tf.load("chinese_roformer-tf-mini")("这部[MASK]很好看")["filled"])
assert main(["finetune", "--train", "rows.tsv", "--output", "run", "--epochs", "1"]) == 0
"""
    offline = dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    )
    environment = os.environ | offline | {"PYTHONPATH": str(site), "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[MASK]" not in done.stdout.splitlines()[0]
    assert (tmp_path / "run" / "report.html").exists()
