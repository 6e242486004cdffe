"""MkDocs hook: `<!-- cli-reference -->` becomes tables of all flags of all commands."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

from roformer_tf.cli import COMMANDS, load_settings
from roformer_tf.flags import POSITIONAL, flags_of
from roformer_tf.translation import Language, Translator
from roformer_tf.usage import choices_of, default_of, docstrings, metavar

SPECIAL = re.compile(r"[|*_<\[\]]")  # characters of Markdown in a docstring

WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "head": "| flag | values | default | meaning |",
        "required": "required",
        "bool": "yes or no",
        "with": "With `--{flag}`:",
        "stop": ".",
    },
    "zh": {
        "head": "| 参数 | 取值 | 默认 | 含义 |",
        "required": "必需",
        "bool": "yes 或 no",
        "with": "使用 `--{flag}` 时：",
        "stop": "。",
    },
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the marker of a page (called by MkDocs)."""
    marker = "<!-- cli-reference -->"
    if marker not in markdown:
        return markdown
    return markdown.replace(marker, reference("zh" if page.file.src_uri[:3] == "zh/" else "en"))


@cache
def reference(language: Language) -> str:
    """A section with a table of flags for each command."""
    _ = Translator(language)
    return "\n".join(line for name in COMMANDS for line in section(name, _))


def section(name: str, _: Translator) -> Iterator[str]:
    """Yield the lines of the section of a command."""
    command, settings, words = COMMANDS[name], load_settings(name), WORDS[_.language]
    meaning = _(command.help)
    yield f"## {name}\n\n{meaning[0].upper()}{meaning[1:]}{words['stop']}\n"
    examples = (inspect.getdoc(settings) or "").partition("\n\nExamples:\n")[2]
    yield f"```bash\n{textwrap.dedent(examples)}\n```\n"
    yield from table(settings, _)
    for flag in command.variants:
        yield f"\n{words['with'].format(flag=flag)}\n"
        yield from table(load_settings(name, [f"--{flag}"]), _)
    yield ""


def table(settings: type, _: Translator) -> Iterator[str]:
    """Yield the lines of a table of the flags of a settings class, nested ones included."""
    words = WORDS[_.language]
    yield f"{words['head']}\n| --- | --- | --- | --- |"
    for flag in flags_of(settings):
        meaning = escaped(_(docstrings(flag.settings)[flag.field.name]))
        values = ", ".join(f"`{x}`" for x in choices_of(flag.kind)) or escaped(metavar(flag))
        default = words["required"] if flag.required else default_of(flag)
        if flag.kind is bool:
            values, default = words["bool"], default or "no"
        name = f"[--{flag.name}]" if flag.name in POSITIONAL else f"--{flag.name}"
        yield f"| `{name}` | {values} | {escaped(default)} | {meaning} |"


def escaped(text: str) -> str:
    """Text in which Markdown's characters mean themselves."""
    return SPECIAL.sub(r"\\\g<0>", text)
