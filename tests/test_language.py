"""Help, messages, docstrings, comments and documentation are in plain English.

The words below used to appear with unusual meanings. The table gives the standard terms.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYTHON = ("roformer_tf", "tests", "benchmarks", "pretrain", "finetune", "examples", "docs")
PAGES = [
    path
    for folder in (".", "docs", "docs/guides", "docs/reference", "docs/research", "checkpoints")
    for path in ROOT.glob(f"{folder}/*.md")
    if path.name not in ("LOG.md", "README_zh.md")  # the log keeps its original wording
]

REFUSED = {  # pattern: what to write instead
    r"\b(is|are|was|were) said\b|\bsays so\b|\btells\b|\btold\b": "prints, reports, is logged",
    r"\bthrice\b": "three times",
    r"\bwhoever\b|\bfor who\b|\bof who\b": "the user, the caller",
    r"(?<!proxy )\bstands?\b(?! for\b)": "is, is stored in",
    r"\blies\b": "is, is stored in",
    r"(?<!left )\bbehind\b(?! (a|the|your) (reverse )?proxy)|\bin front of\b": "after, before",
    r"\bbeside\b": "next to, compared with",
    r"\bbut for\b": "except",
    r"\b(a|the|processor's|processors?) processors?\b|\bprocessor time\b|\bon processors\b": "CPU",
    r"(?<!word )\bpieces?\b": "chunks, micro-batches",
    r"\bleft out\b|\bleaves? out\b|\bleaving out\b": "skipped, excluded",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bgone\b": "elapsed, removed",
    r"\bjudge[sd]?\b|\bto judge\b": "evaluate, test",
    r"\bheld against\b": "compared with",
    r"\bapart\b(?! from\b)": "separately",
    r"\b[Uu]nset,": "Default: …",
    r"--most-": "--max-",
    r"\bturned? features?\b": "rotated dimensions",
    r"\blearn(t|s|ed)? (it|them|examples) by heart\b|\bby heart\b": "overfit",
}

VARIABLES = {"found", "one", "given", "made", "others", "told", "said"}
CLASSES = {"Drawing", "Made", "Recipe", "Start", "Outcome", "Meaning"}


def refused(text: str) -> list[str]:
    """The words of the list in a text, each with its replacement."""
    return [
        f"{match.group()!r} (better: {better})"
        for pattern, better in REFUSED.items()
        for match in re.finditer(pattern, text)
    ]


@cache
def nodes(source: str) -> list[ast.AST]:
    """All nodes of a program."""
    return [*ast.walk(ast.parse(source))]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of every comment, docstring and message in a Python file."""
    source = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value


def stored_names(path: Path) -> Iterator[tuple[int, str]]:
    """Line number and name of every variable and parameter that a Python file sets."""
    for node in nodes(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def python_files() -> list[Path]:
    files = (path for folder in PYTHON for path in sorted((ROOT / folder).rglob("*.py")))
    return [
        path
        for path in files
        if path != Path(__file__).resolve()  # it contains the list
        and "/.venvs/" not in path.as_posix()  # the environments of `make bench`
    ]


@pytest.mark.parametrize("text", ["it is told where", "One beside the other", "unset, the default"])
def test_words_of_the_list_are_detected(text):
    assert refused(text)


@pytest.mark.parametrize("text", ["behind a reverse proxy", "it stands for a token", "WordPiece"])
def test_plain_words_are_accepted(text):
    assert not refused(text)


def test_docstrings_comments_and_messages_are_in_plain_english():
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in python_files()
        if refused(path.read_text(encoding="utf-8"))  # most files have none, in code either
        for line, text in prose(path)
        for word in refused(text)
    ]


def test_documentation_is_in_plain_english():
    assert not [
        f"{path.relative_to(ROOT)}:{number}: {word}"
        for path in PAGES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for word in refused(line)
    ]


def test_variables_have_specific_names():
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in python_files()
        for line, name in stored_names(path)
        if name in VARIABLES
    ]


def test_names_of_functions_are_in_plain_english():
    assert not [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}: {word}"
        for path in python_files()
        for node in nodes(path.read_text(encoding="utf-8"))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for word in refused(node.name.replace("_", " "))
    ]


def test_classes_have_standard_names():
    assert not [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in python_files()
        for node in nodes(path.read_text(encoding="utf-8"))
        if isinstance(node, ast.ClassDef) and node.name.lstrip("_") in CLASSES
    ]
