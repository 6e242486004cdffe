"""What the READMEs tell a user to type exists."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
READMES = ("README.md", "README_zh.md")


def code_blocks(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def typed_commands(name):
    """Lines of the code blocks that run something, continued lines joined."""
    lines = [
        line.strip()
        for block in code_blocks(name)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if re.match(r"(make|python|roformer-tf|pip) ", line)]


@pytest.mark.parametrize("name", READMES)
def test_exactly_two_commands_set_up_run_and_test(name):
    makes = [line for line in typed_commands(name) if line.startswith("make ")]
    assert makes == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for line in makes:
        assert re.search(rf"^{line.split()[1]}:", makefile, flags=re.MULTILINE)


@pytest.mark.parametrize("name", READMES)
def test_every_named_file_exists(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([^)#:]+)\)", text)
    named = re.findall(
        r"`((?:roformer_tf|pretrain|finetune|examples|benchmarks|docs|checkpoints)/[\w./-]*)`", text
    )
    for path in linked + [path for path in named if not path.endswith(".zip")]:
        assert (ROOT / path).exists(), path


def test_both_languages_show_the_same_code():
    """Every block, to the letter; only comments are in the reader's language."""

    def without_comments(name):
        return [re.sub(r"\s+# .*", "", block) for block in code_blocks(name)]

    assert without_comments("README.md") == without_comments("README_zh.md")
    assert len(code_blocks("README.md")) > 10


def test_both_languages_show_the_same_figures_in_their_tables():
    def figures(name):
        """Of each row without its name, which counts in millions, or in 万."""
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        cells = [line.split("|", 2)[2] for line in lines if line.startswith("|")]
        return [re.findall(r"\d+(?:[,.]\d+)*", row) for row in cells]

    assert figures("README.md") == figures("README_zh.md")


def test_no_figure_is_missing():
    for name in (*READMES, "docs/LOG.md", "CHANGELOG.md"):
        assert "FIGURE" not in (ROOT / name).read_text(encoding="utf-8"), name


def test_ci_runs_what_the_readme_names():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^\s*make .*$", script, flags=re.MULTILINE) == ["make lint", "make test"]
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)
