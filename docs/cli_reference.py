"""MkDocs hook: `<!-- cli-reference -->` becomes tables of all flags of all commands."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

from roformer_tf.cli import COMMANDS, load_settings
from roformer_tf.flags import POSITIONAL, flags_of
from roformer_tf.usage import choices_of, default_of, docstrings, metavar

SPECIAL = re.compile(r"[|*_<\[\]]")  # characters of Markdown in a docstring


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
    command, settings = COMMANDS[name], load_settings(name)
    yield f"## {name}\n\n{command.help[0].upper()}{command.help[1:]}.\n"
    examples = (inspect.getdoc(settings) or "").partition("\n\nExamples:\n")[2]
    yield f"```bash\n{textwrap.dedent(examples)}\n```\n"
    yield from table(settings)
    for flag in command.variants:
        yield f"\nWith `--{flag}`:\n"
        yield from table(load_settings(name, [f"--{flag}"]))
    yield ""


def table(settings: type) -> Iterator[str]:
    """Yield the lines of a table of the flags of a settings class, nested ones included."""
    yield "| flag | values | default | meaning |\n| --- | --- | --- | --- |"
    for flag in flags_of(settings):
        meaning = escaped(docstrings(flag.settings)[flag.field.name])
        values = ", ".join(f"`{x}`" for x in choices_of(flag.kind)) or escaped(metavar(flag))
        default = "required" if flag.required else default_of(flag)
        if flag.kind is bool:
            values, default = "yes or no", default or "no"
        name = f"[--{flag.name}]" if flag.name in POSITIONAL else f"--{flag.name}"
        yield f"| `{name}` | {values} | {escaped(default)} | {meaning} |"


def escaped(text: str) -> str:
    """Text in which Markdown's characters mean themselves."""
    return SPECIAL.sub(r"\\\g<0>", text)
