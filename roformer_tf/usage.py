"""Help pages of commands from their settings dataclasses."""

import ast
import dataclasses
import inspect
import re
import shutil
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise, takewhile
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_origin, get_type_hints

from roformer_tf.flags import POSITIONAL, Flag, flags_of, leaves, parsed
from roformer_tf.translation import Language, Translator

WIDEST = 100  # columns of a help page; longer lines are hard to read
WITH_RECIPES = ("pretrain", "finetune")  # commands
INDENT = 26  # columns before the text of a flag

# Chinese text may be broken between any two characters, but no line begins with a closing mark or
# ends in an opening one. Other words stay whole, also at hyphens: flags have them.
_WIDE, _OPENING, _CLOSING = (
    "\u2e80-\uffef\U00020000-\U0003ffff",
    "（《「“",
    "，。；：、！？）》」”…",
)
_UNIT = re.compile(
    rf"[{_OPENING}]*(?:[{_WIDE}]|[^\s{_WIDE}“”]+)[{_CLOSING}]*\s*|\S\s*"  # with the spaces after it
)

METAVARS = {int: "N", float: "X", str: "TEXT", Path: "FILE", bool: "yes|no"}


def from_words(
    settings: Any, words: Sequence[str], program: str, usual: str = "", language: Language = "en"
) -> Any:
    """Parse the words of a command line into settings; for --help, print it and exit.

    Raises InputError as `parsed` does, and SystemExit(0) after the help.
    """
    asked = {"-h", "--help", "--help-all"}.intersection(takewhile(lambda x: x != "--", words))
    if asked:
        # Here, because the messages about wrong flags do not need it.
        from roformer_tf.terminal import show

        show(help_page(program, settings, usual, "--help-all" in asked, Translator(language)))
        raise SystemExit(0)
    return parsed(settings, words)


def help_page(program: str, settings: Any, usual: str, everything: bool, _: Translator) -> str:
    """The help of a command: the required and the `usual` flags, or `everything` in groups.

    `usual` are flags separated by spaces; without them there is no difference. The examples are
    those of the class's docstring.
    """
    width = min(shutil.get_terminal_size().columns, WIDEST)
    flags = {flag.name: flag for flag in flags_of(settings)}
    required = [name for name in flags if flags[name].required]
    bare = [name for name in POSITIONAL if name in flags]
    shown = [name for name in usual.split() if name in flags] or flags
    first = list(dict.fromkeys([*bare, *required, *shown]))
    rest = [flag for name, flag in flags.items() if name not in first]
    values = [metavar(flags[x]) for x in bare]
    values += [f"--{x} {metavar(flags[x])}" for x in required if x not in bare]
    text, _marker, examples = (inspect.getdoc(settings) or "").partition("\n\nExamples:\n")
    call = " ".join((program, *values, _("[flags]")))
    lines = wrapped(_("usage: {call}", call=call), width, later=8)
    for paragraph in text.split("\n\n"):
        joined = " ".join(paragraph.split())
        lines += ["", *wrapped(_(joined), width)]
    lines += ["", *_entries([flags[name] for name in first], width, _)]
    for title, group in _groups(rest, settings, _).items() if everything else ():
        lines += ["", *wrapped(title, width), *_entries(group, width, _)]
    if "config" not in flags:
        config = _("YAML file with flags as its keys.")
        if program.endswith(WITH_RECIPES):
            config = _("YAML file with flags as its keys, or the name of a recipe.")
        if everything:
            lines.append("")
        lines += _entry("--config FILE", config, width)
    if everything and "language" not in flags:
        language = _("Language of help and messages: zh, en or auto. Default: auto, by the locale.")
        lines += _entry("--language NAME", language, width)
    if rest and not everything:
        lines += _entry("--help-all", _("Show all {number} flags.", number=len(flags)), width)
    if examples:
        lines += ["", _("examples:"), textwrap.indent(textwrap.dedent(examples), "  ")]
    return "\n".join(lines)


def _groups(flags: Sequence[Flag], settings: Any, _: Translator) -> dict[str, list[Flag]]:
    """The flags under titles: one for each dataclass, the command's own last."""
    groups: dict[str, list[Flag]] = {}
    own: list[Flag] = []
    for flag in flags:
        # The class that declares the field, possibly a base class: its name and docstring are the
        # title.
        owner = next(x for x in flag.settings.__mro__ if flag.field.name in x.__annotations__)
        if owner is settings:
            own.append(flag)
            continue
        name = flag.nested.replace("_", " ") or owner.__name__.removesuffix("Config").lower()
        meaning = " ".join((inspect.getdoc(owner) or "").partition("\n\n")[0].split())
        groups.setdefault(f"{_(name)}{_(': ')}{_(meaning)}", []).append(flag)
    return groups | ({_("other flags:"): own} if own else {})


def _entries(flags: Sequence[Flag], width: int, _: Translator) -> Iterator[str]:
    """The lines of flags. A flag whose name may be omitted is in brackets, as in "[--model]"."""
    for flag in flags:
        name = f"[--{flag.name}]" if flag.name in POSITIONAL else f"--{flag.name}"
        negated = f", --no-{flag.name}" if flag.field.default is True else ""
        value = "" if flag.kind is bool else f" {metavar(flag)}"
        text = docstrings(flag.settings).get(flag.field.name, "")
        sentences = [_(text)]
        if choices := choices_of(flag.kind):
            sentences.append(_(" One of: {names}.", names=_(", ").join(choices)))
        if (default := default_of(flag)) and "Default: " not in text:
            sentences.append(_(" Default: {value}.", value=default))
        yield from _entry(f"{name}{negated}{value}", "".join(sentences), width)


def _entry(spec: str, text: str, width: int) -> list[str]:
    """The lines of a flag: its text begins at the column INDENT, on the next line if necessary."""
    start = f"  {spec}".ljust(INDENT)
    if start.endswith(" "):
        return wrapped(text, width, start, INDENT)
    return [start, *wrapped(text, width, " " * INDENT, INDENT)]


def wrapped(text: str, width: int, start: str = "", later: int = 0) -> list[str]:
    """Lines of at most `width` columns; those after the first are indented by `later` columns."""
    lines, line = [], start
    for unit in _UNIT.findall(text):
        if columns(line + unit.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = " " * later
        line += unit
    return [*lines, line.rstrip()]


def columns(text: str) -> int:
    """Columns of a text in a terminal: two for a Chinese character, or for one that may be wide."""
    return sum(1 + (unicodedata.east_asian_width(x) in "WFA") for x in text)


def metavar(flag: Flag) -> str:
    """The values that a flag takes: "N", "FILE", "N|auto", "TEXT ..."."""
    hint = get_type_hints(flag.settings, include_extras=True)[flag.field.name]
    if get_origin(hint) is Annotated:
        name = hint.__metadata__[0]
    elif choices_of(flag.kind):
        name = "NAME"
    else:
        name = "|".join(METAVARS.get(x, x) for x in leaves(flag.kind) if x is not NoneType)
    return f"{name} ..." if get_origin(flag.kind) in (tuple, dict) else name


def choices_of(kind: Any) -> list[str]:
    """The names that a flag takes if it takes nothing else; [] for other types."""
    kinds = [leaf for leaf in leaves(kind) if leaf is not NoneType]
    return kinds if all(isinstance(x, str) for x in kinds) else []


def default_of(flag: Flag) -> str:
    """The default as it is typed; "" if there is none."""
    value = flag.field.default
    if value is dataclasses.MISSING or value is None or value is False:
        return ""
    values = value if isinstance(value, tuple) else ("yes" if value is True else value,)
    return " ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in values)


@cache
def docstrings(settings: type) -> dict[str, str]:
    """Field → the string after it in the class, or in a class that it inherits from."""
    texts = {}
    # Base classes first: the text of a subclass replaces theirs. From the source, because Python
    # keeps no docstrings of fields.
    for base in reversed(settings.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                texts[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    return texts
