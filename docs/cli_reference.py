"""MkDocs hook: `<!-- cli-reference -->` becomes tables of all flags of all commands."""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, get_args, get_origin, get_type_hints

from roformer_tf.cli import COMMANDS, load_settings

SPECIAL = re.compile(r"[|*_<\[\]]")  # characters of Markdown in a docstring
KINDS = {int: "N", float: "X", str: "TEXT", bool: "yes or no"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the marker of a page (called by MkDocs)."""
    marker = "<!-- cli-reference -->"
    return markdown.replace(marker, reference()) if marker in markdown else markdown


@cache
def reference() -> str:
    """A section with a table of flags for each command."""
    return "\n".join(line for name in COMMANDS for line in section(name))


def section(name: str) -> Iterator[str]:
    """Yield the lines of the section of a command."""
    command = COMMANDS[name]
    yield f"## {name}\n\n{command.help[0].upper()}{command.help[1:]}.\n"
    if command.alone:
        yield f"`--{command.alone}` may be omitted: its value can be the first argument.\n"
    yield from table(load_settings(name))
    for flag in command.variants:
        yield f"\nWith `--{flag}`:\n"
        yield from table(load_settings(name, [f"--{flag}"]))
    yield ""


def table(settings: type) -> Iterator[str]:
    """Yield the lines of a table of the flags of a settings class."""
    yield "| flag | values | default | meaning |\n| --- | --- | --- | --- |"
    yield from rows(settings)


def rows(settings: type) -> Iterator[str]:
    """Yield a row for every field; nested settings are flattened, as on the command line."""
    hints, meanings = get_type_hints(settings), docstrings(settings)
    for field in dataclasses.fields(settings):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from rows(hints[field.name])
            continue
        meaning = SPECIAL.sub(r"\\\g<0>", meanings.get(field.name, ""))
        flag, values = field.name.replace("_", "-"), values_of(hints[field.name])
        yield f"| `--{flag}` | {values} | {default_of(field)} | {meaning} |"


def docstrings(settings: type) -> dict[str, str]:
    """Field → the string after it in the class, or in a class that it inherits from."""
    texts = {}
    for base in reversed(settings.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return texts


def values_of(hint: Any) -> str:
    """The values that a flag takes, such as "N" or "TEXT …"."""
    if hint in KINDS:
        return KINDS[hint]
    arguments = [x for x in get_args(hint) if x not in (type(None), Ellipsis)]
    if arguments and not isinstance(arguments[0], type) and not get_args(arguments[0]):
        return ", ".join(f"`{x}`" for x in arguments)
    inner = " or ".join(dict.fromkeys(map(values_of, arguments))) or "FILE"
    return f"{inner} …" if get_origin(hint) in (tuple, dict) else inner


def default_of(field: dataclasses.Field) -> str:
    """The default of a field as it is typed, "" if it has none."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if isinstance(value, bool):
        return "yes" if value else "no"
    items = value if isinstance(value, tuple) else (value,)
    return f"`{' '.join(map(str, items))}`" if value not in (None, (), {}) else ""
