"""MkDocs hook: fill in the pages that are generated or stored outside docs/.

`<!-- cli-reference -->` becomes tables of all flags, read from the settings classes of the
commands. `<!-- include: FILE -->`, with the line after it, becomes a
Markdown file of the repository.
"""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import griffe

from roformer_tf.cli import COMMANDS, load_settings

ROOT = Path(__file__).resolve().parent.parent
# Links of included files to other pages of the site. Other files are not in the site: only their
# name is shown.
PAGES = {
    "LOG.md": "../LOG.md",
    "RESULTS.md": "results.md",
    "PAPER.md": "paper.md",
    "SEARCH.md": "search.md",
}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the two markers of a page (called by MkDocs)."""
    markdown = re.sub(r"<!-- include: (\S+) -->\n.*", lambda match: included(match[1]), markdown)
    if "<!-- cli-reference -->" in markdown:
        markdown = markdown.replace("<!-- cli-reference -->", "\n".join(cli_reference()))
    return markdown


def included(file: str) -> str:
    """A Markdown file of the repository, its links adapted to the site and without figures."""
    text = (ROOT / file).read_text(encoding="utf-8")
    text = re.sub(r"^!\[.*\n", "", text, flags=re.MULTILINE)
    return LINK.sub(lambda match: adapted_link(*match.groups()), text)


def adapted_link(text: str, target: str, anchor: str | None) -> str:
    """A link to a page of the site, or the text alone if the site lacks the file."""
    page = PAGES.get(Path(target).name)
    return f"[{text}]({page}{anchor or ''})" if page else text


def cli_reference() -> Iterator[str]:
    """Yield the lines of the reference: a section and a table of flags for each command."""
    for name, command in COMMANDS.items():
        yield f"## {name}\n\n{command.help.capitalize()}.\n"
        if command.alone:
            yield f"`--{command.alone}` may be omitted: its value can be the first argument.\n"
        yield from flag_table(load_settings(name))
        for flag in command.variants:
            yield f"\nWith `--{flag}`:\n"
            yield from flag_table(load_settings(name, [f"--{flag}"]))
        yield ""


def flag_table(settings: type) -> Iterator[str]:
    """Yield the lines of a table of the flags of a settings class."""
    yield "| flag | values | default | meaning |\n| --- | --- | --- | --- |"
    for flag, values, default, meaning in flags(settings):
        yield f"| `--{flag}` | {values} | {default} | {meaning} |"


def flags(settings: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield flag, values, default and docstring of every field; nested settings are flattened."""
    hints = get_type_hints(settings)
    documented = griffe.load(settings.__module__, search_paths=[str(ROOT)]).all_members
    members = documented[settings.__name__].all_members
    for field in dataclasses.fields(settings):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from flags(hints[field.name])
            continue
        docstring = members[field.name].docstring if field.name in members else None
        meaning = escaped(" ".join(docstring.value.split())) if docstring else ""
        yield field.name.replace("_", "-"), values_of(hints[field.name]), default_of(field), meaning


def values_of(hint: Any) -> str:
    """The values that a flag takes, such as "zh, en" or "N …"."""
    kinds = {int: "N", float: "X", str: "TEXT", bool: "yes or no"}
    if hint in kinds:
        return kinds[hint]
    arguments = [x for x in get_args(hint) if x not in (type(None), Ellipsis)]
    if arguments and not isinstance(arguments[0], type) and not get_args(arguments[0]):
        return ", ".join(f"`{x}`" for x in arguments)
    inner = " or ".join(dict.fromkeys(map(values_of, arguments))) or "FILE"
    return f"{inner} …" if get_origin(hint) in (tuple, dict) else inner


def default_of(field: Any) -> str:
    """The default of a field, as it is typed."""
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value in ((), {}):
        return ""
    items = value if isinstance(value, tuple) else (value,)
    return f"`{' '.join(map(str, items))}`"


def escaped(text: str) -> str:
    """A docstring as the text of a table cell."""
    return text.replace("|", "\\|").replace("<", "&lt;")
