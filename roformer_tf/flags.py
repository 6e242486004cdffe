"""Flags of a command: the fields of a settings dataclass, and YAML files with the same keys."""

import dataclasses
import difflib
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from roformer_tf.errors import InputError
from roformer_tf.recipes import find_recipe


def parsed(settings: Any, flags: Sequence[str], program: str) -> Any:
    """Parse flags into settings; wrong flags exit with code 2 and a message."""
    import tyro

    return tyro.cli(settings, args=flags, prog=program, config=(tyro.conf.OmitArgPrefixes,))


def given_names(flags: Sequence[str]) -> set[str]:
    """The names of the typed flags and of the keys of a `--config` file, without dashes.

    A YAML file that cannot be read counts as empty; `yaml_flags` reports the problem later.
    """
    typed = list(takewhile(lambda word: word != "--", flags))
    names = set(filter(None, map(_flag_name, typed)))
    for place, word in enumerate(typed):
        if _flag_name(word) == "config":
            file = word.partition("=")[2] or "".join(typed[place + 1 : place + 2])
            names |= _yaml_keys(file)
    return names


def _yaml_keys(name: str) -> set[str]:
    import yaml

    with suppress(OSError, ValueError, yaml.YAMLError, InputError):
        values = yaml.safe_load(find_recipe(name).read_text(encoding="utf-8"))
        return set(map(_dashed, values)) if isinstance(values, dict) else set()
    return set()


def with_flag(flags: list[str], name: str, settings: Any) -> list[str]:
    """Add an omitted flag to its value: "x --port 80" → "--model x --port 80".

    `name` is the flag that may be omitted, or "" if the command has none. Words after another flag
    are values of that flag.
    """
    if not name or name in map(_flag_name, flags):
        return flags
    for index in _positional(flags, flag_types(settings) | {"config": str}):
        return [*flags[:index], f"--{name}", *flags[index:]]
    return flags


def _positional(flags: Sequence[str], types: Mapping[str, Any]) -> Iterator[int]:
    """Indices of the words that are neither flags nor values of a flag."""
    values = 0
    for index, word in enumerate(flags):
        if word == "--":
            return
        if word.startswith("-") and word != "-":
            values = 0 if "=" in word else _max_values(types.get(_flag_name(word), bool))
        elif values:
            values -= 1
        else:
            yield index


def _max_values(kind: Any) -> int:
    """The maximum number of words that a flag of this type takes."""
    if kind is bool:  # --flag or --no-flag
        return 0
    several = any(get_origin(x) in (tuple, dict) for x in (kind, *get_args(kind)))
    return sys.maxsize if several else 1


def check_names(flags: Sequence[str], settings: Any, program: str) -> None:
    """Raise InputError for unknown flags, each with the most similar one.

    tyro does so too, but not if a required flag is missing because it is misspelled.
    """
    typed = list(takewhile(lambda word: word != "--", flags))
    if {"-h", "--help"} & set(typed):
        return
    types = flag_types(settings)
    known = {*types, *(f"no-{name}" for name, kind in types.items() if kind is bool), "config"}
    names = dict.fromkeys(filter(None, map(_flag_name, typed)))
    wrong = [name for name in names if name not in known and not name.startswith("tyro-")]
    if wrong:
        text = " ".join(f"There is no flag --{x}.{nearest(x, known, '--')}" for x in wrong)
        raise InputError(f"{text[0].lower()}{text[1:]} `{program} --help` lists the flags.")


def _flag_name(word: str) -> str:
    """The name in --mask-rate or --mask-rate=0.2, "mask-rate"; "" if the word is no flag."""
    return word[2:].partition("=")[0].replace("_", "-") if word.startswith("--") else ""


def with_yaml(flags: list[str], settings: type) -> list[str]:
    """Replace `--config FILE` by its flags, before all others: typed flags have priority."""
    indices = [i for i, flag in enumerate(flags) if flag.partition("=")[0] == "--config"]
    if not indices:
        return flags
    index = indices[0]
    if "=" in flags[index]:
        file, rest = flags[index].partition("=")[2], flags[:index] + flags[index + 1 :]
    elif index + 1 < len(flags):
        file, rest = flags[index + 1], flags[:index] + flags[index + 2 :]
    else:
        raise InputError("--config needs a YAML file, or the name of a recipe such as base.")
    return [*yaml_flags(find_recipe(file), settings), *rest]


def yaml_flags(path: Path, settings: type) -> list[str]:
    """The keys of a YAML file as flags.

    Raises InputError for a file that cannot be read, an unknown or repeated key, and a boolean
    (which `no` and `off` are in YAML) where the flag takes none.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        values = (loader.construct_document(root) if root else None) or {}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no keys with values, such as `batch-size: 32`.")
    known = flag_types(settings)
    if wrong := [*_keys_twice(root), *_truth_values(root, known)] if values else []:
        raise InputError(f"{path}, {wrong[0]}")
    flags = []
    for key, value in values.items():
        flag = _dashed(key)
        if flag not in known:
            raise InputError(
                f"{path} has an unknown key {key!r}.{nearest(flag, known)} "
                f"Known keys: {', '.join(sorted(known))}."
            )
        flags += _as_flags(flag, value, known[flag])
    return flags


def _dashed(key: Any) -> str:
    """A key of a YAML file as a flag is spelled: learning_rate is learning-rate."""
    return str(key).replace("_", "-")


def _keys_twice(root: Any) -> Iterator[str]:
    """Describe repeated keys of a mapping; at the top, dashes and underscores are the same."""
    for node in _nodes(root):
        lines: dict[str, int] = {}
        for key, _ in node.value if node.id == "mapping" else ():
            name = _dashed(key.value) if node is root else str(key.value)
            line = key.start_mark.line + 1
            if name in lines:
                yield f"line {line}: {key.value} is in line {lines[name]} already. Remove one."
            lines[name] = line


def _truth_values(root: Any, known: Mapping[str, Any]) -> Iterator[str]:
    """Describe values that are booleans in YAML, but can only be a text or a number."""
    for key, value in root.value:
        kind = known.get(_dashed(key.value), bool)  # unknown keys are reported later
        for node in _nodes(value) if bool not in (kind, *get_args(kind)) else ():
            if node.tag == "tag:yaml.org,2002:bool":
                yield (
                    f"line {node.start_mark.line + 1}: {key.value} is {node.value}, which is "
                    "a boolean in YAML, like yes, no, on and off. Put a text in quotes, "
                    f'"{node.value}", or leave {key.value} out for none.'
                )


def _nodes(root: Any) -> Iterator[Any]:
    """A YAML node and all nodes in it, each once even if aliases refer to it again."""
    waiting, seen = deque([root]), set[int]()
    while waiting:
        node = waiting.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if node.id == "sequence":
            waiting.extend(node.value)
        elif node.id == "mapping":
            waiting.extend(chain.from_iterable(node.value))


def _as_flags(flag: str, value: Any, kind: Any) -> list[str]:
    """One key of a YAML file as typed flags."""
    if value is None:
        return []
    if isinstance(value, bool) and kind is bool:  # an optional boolean is `--flag True`
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, dict):  # such as {news: 3, wiki: 1}
        values = [word for pair in value.items() for word in pair]
    else:
        values = value if isinstance(value, list) else [value]
    return [f"--{flag}", *map(_as_word, values)] if values else []


def _as_word(value: Any) -> str:
    """One value as it is typed; a mapping {length: 512} is "length=512"."""
    if isinstance(value, dict):
        return " ".join(f"{key}={_as_word(item)}" for key, item in value.items())
    return str(value)


def flag_types(settings: Any) -> dict[str, Any]:
    """The flags of a settings dataclass, nested ones included, with their types."""
    hints = get_type_hints(settings)
    types: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        if dataclasses.is_dataclass(hints[field.name]):
            types |= flag_types(hints[field.name])
        else:
            types[field.name.replace("_", "-")] = hints[field.name]
    return types


def nearest(word: str, words: Any, prefix: str = "") -> str:
    """A question with the word that starts like this one, or the most similar; "" if none is.

    `prefix` is printed before the word and does not count for the similarity.
    """
    longer = [other for other in sorted(words) if word and other.startswith(f"{word}-")]
    near = longer or difflib.get_close_matches(word, sorted(words), n=1)
    return f" Did you mean {prefix}{near[0]}?" if near else ""
