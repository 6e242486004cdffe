"""The package stays small enough to read: limits on code, files, functions and comments."""

import ast
import io
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import roformer_tf

PACKAGE = Path(roformer_tf.__file__).parent
BLANK = {
    *(tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER, tokenize.COMMENT),
}
MAX_CODE_LINES = 29_484
MAX_FILES = 20  # in a folder
MAX_IMPORT_CHAIN = 20
MAX_FUNCTION_LINES = 70  # without the docstring
MIN_COMMENTS = 5  # comment lines for each 100 code lines


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}


def documented(tree: ast.Module) -> list[ast.AST]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def docstring_lines(node: ast.AST) -> set[int]:
    if ast.get_docstring(node) is None:
        return set()
    return set(range(node.body[0].lineno, node.body[0].end_lineno + 1))


@cache
def code_and_comments() -> tuple[int, int]:
    """Numbers of lines with code and of lines with a comment."""
    code = comments = 0
    for path, tree in trees().items():
        tokens = list(tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline))
        lines = {
            line
            for token in tokens
            if token.type not in BLANK
            for line in range(token.start[0], token.end[0] + 1)
        }
        code += len(lines.difference(*map(docstring_lines, documented(tree))))
        comments += sum(token.type == tokenize.COMMENT for token in tokens)
    return code, comments


def import_depths() -> dict[str, int]:
    """For each module, the length of its longest chain of module-level imports."""
    modules = {}
    for path, tree in trees().items():
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = [node for node in tree.body if isinstance(node, ast.ImportFrom)]

    @cache
    def depth(name: str) -> int:
        imported = {
            target
            for node in modules[name]
            for target in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
            if target in modules and target != name
        }
        return 1 + max(map(depth, imported), default=0)

    return {name: depth(name) for name in modules}


def test_code_lines():
    assert code_and_comments()[0] <= MAX_CODE_LINES


def test_comments():
    code, comments = code_and_comments()
    assert comments >= MIN_COMMENTS / 100 * code


def test_files_in_a_folder():
    counts = Counter(path.parent for path in trees())
    assert [folder for folder, count in counts.items() if count > MAX_FILES] == []


def test_import_chain():
    depths = import_depths()
    assert depths["roformer_tf.translation"] == 1 < depths["roformer_tf.files"]
    assert max(depths.values()) <= MAX_IMPORT_CHAIN


def test_functions_are_short():
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert [
        f"{path.name}: {node.name}"
        for path, tree in trees().items()
        for node in documented(tree)
        if isinstance(node, functions)
        and node.end_lineno - node.lineno + 1 - len(docstring_lines(node)) > MAX_FUNCTION_LINES
    ] == []
