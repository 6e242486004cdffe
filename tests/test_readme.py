"""READMEs and documentation: their size, their links, and equal content in both languages."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from docs.included_pages import on_page_markdown

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
READMES = {"README.md": 12_000, "README_zh.md": 16_000}  # name: maximum size in bytes
MAX_LINES = 200
PAGES = [str(path.relative_to(ROOT)) for path in (*DOCS.rglob("*.md"), *ROOT.glob("*.md"))]
TRANSLATED = [str(path.relative_to(DOCS / "zh")) for path in (DOCS / "zh").rglob("*.md")]
PAIRS = [
    ("README.md", "README_zh.md"),
    *((f"docs/{page}", f"docs/zh/{page}") for page in sorted(TRANSLATED)),
]
ENGLISH_ONLY = {"LOG.md", "reference/api.md", "research/results.md"}
UNITS = {"million": 10**6, "billion": 10**9, "万": 10**4, "亿": 10**8}


def file_of(name):
    """The file with the text of a page (see docs/included_pages.py)."""
    included = re.match(r"<!-- include: (\S+) -->", (ROOT / name).read_text(encoding="utf-8"))
    return ROOT / (included[1] if included else name)


def text_of(name):
    return file_of(name).read_text(encoding="utf-8")


def code_blocks(name):
    return re.findall(r"^```[a-z]*\n(.*?)^```", text_of(name), flags=re.MULTILINE | re.DOTALL)


def typed_commands(name):
    """The commands in the code blocks, with continued lines joined."""
    lines = [
        line.strip()
        for block in code_blocks(name)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if re.match(r"(make|python|roformer-tf|pip) ", line)]


@pytest.mark.parametrize("name", READMES)
def test_a_readme_is_short(name):
    assert len(text_of(name).encode()) <= READMES[name]
    assert len(text_of(name).splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", READMES)
def test_exactly_two_commands_set_up_run_and_test(name):
    makes = [line for line in typed_commands(name) if line.startswith("make ")]
    assert makes == ["make demo", "make test"]


@pytest.mark.parametrize("name", PAGES)
def test_linked_and_named_files_exist(name):
    text = re.sub(r"^```.*?^```", "", text_of(name), flags=re.MULTILINE | re.DOTALL)
    linked = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)|<img src=\"([^\"]+)\"", text)
    for path in (page or image for page, image in linked):
        assert (file_of(name).parent / path).exists(), path
    assert not re.findall(r"\]\(\S*#_\d+\)", text)  # ids depend on the headings' order
    if name in ("docs/LOG.md", "CHANGELOG.md"):  # these name files of their time
        return
    for path in re.findall(
        r"`((?:roformer_tf|pretrain|finetune|examples|benchmarks|docs|checkpoints)/[\w./-]*)`", text
    ):
        assert path.endswith(".zip") or (ROOT / path).exists(), path


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/")])
def test_make_targets_of_documents_exist(name):
    makefile = text_of("Makefile")
    for target in re.findall(r"^make ([\w-]+)|`make ([\w-]+)", text_of(name), flags=re.MULTILINE):
        if name != "docs/LOG.md":
            assert re.search(rf"^{target[0] or target[1]}:", makefile, flags=re.MULTILINE), target


def test_every_page_is_in_both_languages():
    english = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    english = {page for page in english if not page.startswith("zh/")}
    assert english == set(TRANSLATED) | ENGLISH_ONLY


def test_a_line_break_between_chinese_characters_is_removed_except_in_code():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="zh/page.md"))
    text = "- 一，\n  二。\n三\n\n```text\n四。\n五\n```\n"
    assert on_page_markdown(text, page) == text.replace("，\n  ", "，").replace("。\n三", "。三")


def test_every_page_is_in_the_navigation():
    navigation = text_of("mkdocs.yml").partition("\nnav:\n")[2]
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    listed = re.findall(r"- (?:.*: )?(\S+\.md)$", navigation, flags=re.MULTILINE)
    assert set(listed) == {page for page in pages if not page.startswith("zh/")}


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_show_the_same_code(english, chinese):
    """Code blocks are equal, except for comments and the output of commands."""

    def without_comments(name):
        # The output of `finetune` begins with its training file.
        shown = [
            re.sub(r"^\S+[:：] ?(task|任务) .*", "", x, flags=re.DOTALL) for x in code_blocks(name)
        ]
        return [re.sub(r"\s+# .*| +\)  # .*", "", block) for block in shown]

    assert without_comments(english) == without_comments(chinese)


def figures(text):
    """The figures of a text in order. Units are applied, so that 7.6 million equals 760 万."""
    figure = rf"(\d+(?:[,.]\d+)*) ?({'|'.join(UNITS)}|)"
    return [
        f"{float(number) * UNITS[unit]:.0f}" if unit else number
        for number, unit in re.findall(figure, re.sub(r"(?<=\d),(?=\d{3})", "", text))
    ]


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_languages_show_the_same_figures(english, chinese):
    """Compare tables row by row, and the set of all figures. Chinese writes months as numbers."""

    def rows(name):
        return [figures(line) for line in text_of(name).splitlines() if line[:1] == "|"]

    assert rows(english) == rows(chinese)
    assert {*figures(text_of(english))} == {*figures(re.sub(r"\d+ 月", "", text_of(chinese)))}


@pytest.mark.parametrize("name", READMES)
def test_speeds_of_a_readme_are_those_of_the_complete_tables(name):
    tables = text_of("docs/research/speed.md") + text_of("benchmarks/NOTES.md")
    rows = [line for line in text_of(name).splitlines() if re.search(r"L\d+ H\d+", line)]
    assert len(rows) == 4
    for row in rows:
        for figure in re.findall(r"\| ([\d.]+) (?=\|)", row):
            assert f"| {figure} |" in tables


def test_no_figure_is_missing():
    for name in PAGES:
        assert "FIGURE" not in text_of(name), name


def test_ci_runs_what_the_readme_names():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.findall(r"^\s*make .*$", script, flags=re.MULTILINE) == ["make lint", "make test"]
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)
