"""Flags of a command: what a settings dataclass takes, and YAML files that hold the same."""

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

RENAMED: Mapping[str, Mapping[str, str]] = {
    "pretrain": {
        "rate": "mask-rate",
        "mask-share": "mask-replace-rate",
        "random-share": "random-replace-rate",
        "weights": "corpus-weights",
        "temperature": "corpus-temperature",
        "matrix-rate": "muon-learning-rate-scale",
        "decay": "decay-share",
        "spike": "spike-factor",
        "patience": "max-skipped",
        "keep": "keep-checkpoints",
    },
}
"""By command, the flags that had another name: old → new.

The old ones are still read, with a line on stderr that names the new one: when typed
(`with_new_names`), in a YAML file (`yaml_flags`), and in a run's settings.yaml (`new_keys`).
"""


def parsed(settings: Any, flags: Sequence[str], program: str) -> Any:
    """Make the settings that the flags ask for; wrong flags exit with code 2 and a message."""
    import tyro

    return tyro.cli(settings, args=flags, prog=program, config=(tyro.conf.OmitArgPrefixes,))


def with_new_names(flags: list[str], renamed: Mapping[str, str], program: str) -> list[str]:
    """Replace old names of flags by those of now, and say so in one line on stderr.

    `renamed` is a command's part of `RENAMED`. Raises InputError where both names are given.
    """
    names = [_flag_name(word) for word in flags]
    old = [name for name in dict.fromkeys(names) if name in renamed]
    for name in old:
        if renamed[name] in names:
            raise InputError(f"--{name} is the old name of --{renamed[name]}: give one of them.")
    tell_renamed(program, {f"--{name}": f"--{renamed[name]}" for name in old})
    return [
        f"--{renamed[name]}{word[len(name) + 2 :]}" if name in renamed else word
        for name, word in zip(names, flags, strict=True)
    ]


def given_names(flags: Sequence[str]) -> set[str]:
    """The flags that are typed, and those that a `--config` names, without the dashes.

    A YAML file that cannot be read has none: whoever reads it says what is wrong.
    """
    typed = list(takewhile(lambda word: word != "--", flags))
    names = set(filter(None, map(_flag_name, typed)))
    for place, word in enumerate(typed):
        if _flag_name(word) == "config":
            file = word.partition("=")[2] or "".join(typed[place + 1 : place + 2])
            names |= _yaml_keys(Path(file))
    return names


def _yaml_keys(path: Path) -> set[str]:
    import yaml

    with suppress(OSError, ValueError, yaml.YAMLError):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return set(map(_dashed, values)) if isinstance(values, dict) else set()
    return set()


def with_flag(flags: list[str], name: str, settings: Any) -> list[str]:
    """Write out a flag whose value was typed alone: "x --port 80" → "--model x --port 80".

    `name` is such a flag, or "" where a command has none. What follows another flag is its value.
    """
    if not name or name in map(_flag_name, flags):
        return flags
    for place in _alone(flags, flag_types(settings) | {"config": str}):
        return [*flags[:place], f"--{name}", *flags[place:]]
    return flags


def _alone(flags: Sequence[str], types: Mapping[str, Any]) -> Iterator[int]:
    """Places of the words that are neither flags nor values of one."""
    values = 0
    for place, word in enumerate(flags):
        if word == "--":
            return
        if word.startswith("-") and word != "-":
            values = 0 if "=" in word else _most_values(types.get(_flag_name(word), bool))
        elif values:
            values -= 1
        else:
            yield place


def _most_values(kind: Any) -> int:
    """How many words a flag of this type takes at most."""
    if kind is bool:  # --flag or --no-flag
        return 0
    several = any(get_origin(one) in (tuple, dict) for one in (kind, *get_args(kind)))
    return sys.maxsize if several else 1


def check_names(flags: Sequence[str], settings: Any, program: str) -> None:
    """Raise InputError for flags that a command does not have, each with the one it is most like.

    tyro does so too, but not where a flag that is needed is missing: because it is mistyped.
    """
    typed = list(takewhile(lambda word: word != "--", flags))
    if {"-h", "--help"} & set(typed):
        return
    types = flag_types(settings)
    known = {*types, *(f"no-{name}" for name, kind in types.items() if kind is bool), "config"}
    names = dict.fromkeys(filter(None, map(_flag_name, typed)))
    wrong = [name for name in names if name not in known and not name.startswith("tyro-")]
    if wrong:
        told = " ".join(f"There is no flag --{x}.{nearest(x, known, '--')}" for x in wrong)
        raise InputError(f"{told[0].lower()}{told[1:]} `{program} --help` lists the flags.")


def new_keys(
    values: Mapping[str, Any], renamed: Mapping[str, str], place: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of a run, which an earlier version may have recorded, under the names of now.

    Gives them, and what the old names among them are called now, for `tell_renamed`. Raises
    InputError, which says that it is at `place`, for a setting that stands under both names.
    """
    keys = {old.replace("-", "_"): new.replace("-", "_") for old, new in renamed.items()}
    found = {key: keys[key] for key in values if key in keys}
    for old, new in found.items():
        if new in values:
            raise InputError(f"{place} has {new}, and {old}, its old name. Leave one.")
    return {found.get(key, key): value for key, value in values.items()}, found


def tell_renamed(place: str, found: Mapping[str, str]) -> None:
    """Say in one line on stderr what old names are called now; nothing where there are none."""
    if found:
        told = ", ".join(f"{old} is now {new}" for old, new in found.items())
        print(f"{place}: {told}.", file=sys.stderr)


def _flag_name(word: str) -> str:
    """Of --mask-rate and --mask-rate=0.2, with - or _, mask-rate; "" of what is no flag."""
    return word[2:].partition("=")[0].replace("_", "-") if word.startswith("--") else ""


def with_yaml(
    flags: list[str], settings: type, renamed: Mapping[str, str] | None = None
) -> list[str]:
    """Replace `--config FILE` by the flags in it, put in front: flags given by hand win."""
    given = [flag for flag in flags if flag == "--config" or flag.startswith("--config=")]
    if not given:
        return flags
    place = flags.index(given[0])
    if "=" in given[0]:
        file, rest = given[0].partition("=")[2], flags[:place] + flags[place + 1 :]
    elif place + 1 < len(flags):
        file, rest = flags[place + 1], flags[:place] + flags[place + 2 :]
    else:
        raise InputError("--config needs a YAML file.")
    return [*yaml_flags(Path(file), settings, renamed), *rest]


def yaml_flags(path: Path, settings: type, renamed: Mapping[str, str] | None = None) -> list[str]:
    """The keys of a YAML file as flags; those of `renamed` under their new names.

    Raises InputError for a file that cannot be read, for a key that is unknown or stands twice,
    and for a truth value, which YAML makes of no and off, where there can be none.
    """
    import yaml

    renamed = renamed or {}
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
    known |= {old: known[new] for old, new in renamed.items()}
    if wrong := [*_keys_twice(root, renamed), *_truth_values(root, known)] if values else []:
        raise InputError(f"{path}, {wrong[0]}")
    tell_renamed(str(path), {key: renamed[x] for key in values if (x := _dashed(key)) in renamed})
    flags = []
    for key, value in values.items():
        flag = renamed.get(_dashed(key), _dashed(key))
        if flag not in known:
            raise InputError(
                f"{path} has an unknown key {key!r}.{nearest(flag, known.keys() - renamed.keys())} "
                f"Known keys: {', '.join(sorted(known.keys() - renamed.keys()))}."
            )
        flags += _as_flags(flag, value, known[flag])
    return flags


def _dashed(key: Any) -> str:
    """A key of a YAML file as a flag is spelled: learning_rate is learning-rate."""
    return str(key).replace("_", "-")


def _keys_twice(root: Any, renamed: Mapping[str, str]) -> Iterator[str]:
    """Say where keys stand twice, within or at the top, where old and new name are one key."""
    for node in _nodes(root):
        there: dict[str, tuple[int, str]] = {}
        for key, _ in node.value if node.id == "mapping" else ():
            name = _dashed(key.value) if node is root else str(key.value)
            name = renamed.get(name, name) if node is root else name
            line = key.start_mark.line + 1
            if name in there:
                before, spelled = there[name]
                other = "" if _dashed(spelled) == _dashed(key.value) else f", as {spelled}"
                yield f"line {line}: {key.value} stands in line {before} already{other}. Leave one."
            there[name] = line, str(key.value)


def _truth_values(root: Any, known: Mapping[str, Any]) -> Iterator[str]:
    """Say where something is true or false to YAML that can only be a text or a number."""
    for key, value in root.value:
        kind = known.get(_dashed(key.value), bool)  # what is unknown is told later
        for node in _nodes(value) if bool not in (kind, *get_args(kind)) else ():
            if node.tag == "tag:yaml.org,2002:bool":
                yield (
                    f"line {node.start_mark.line + 1}: {key.value} is {node.value}, which to YAML "
                    "is true or false, as are yes, no, on and off. Put a text in quotes, "
                    f'"{node.value}", or leave {key.value} out for none.'
                )


def _nodes(root: Any) -> Iterator[Any]:
    """A YAML node and all those in it, each once, though aliases may lead to it again."""
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
    """One key of a YAML file as it would be typed."""
    if value is None:
        return []
    if isinstance(value, bool) and kind is bool:  # one that may be unset is `--flag True`
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, dict):  # such as {news: 3, wiki: 1}
        values = [word for pair in value.items() for word in pair]
    else:
        values = value if isinstance(value, list) else [value]
    return [f"--{flag}", *map(_as_word, values)] if values else []


def _as_word(value: Any) -> str:
    """One value as it would be typed; of several with names, {length: 512}, "length=512"."""
    if isinstance(value, dict):
        return " ".join(f"{key}={_as_word(item)}" for key, item in value.items())
    return str(value)


def flag_types(settings: Any) -> dict[str, Any]:
    """Every flag of a settings dataclass with its type, those of nested ones included."""
    hints = get_type_hints(settings)
    types: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        if dataclasses.is_dataclass(hints[field.name]):
            types |= flag_types(hints[field.name])
        else:
            types[field.name.replace("_", "-")] = hints[field.name]
    return types


def nearest(word: str, words: Any, prefix: str = "") -> str:
    """Ask whether the word that begins so, or else the most similar, was meant; "" if none is.

    `prefix` is what all of them are spelled with, which makes none more similar.
    """
    begun = [other for other in sorted(words) if word and other.startswith(f"{word}-")]
    near = begun or difflib.get_close_matches(word, sorted(words), n=1)
    return f" Did you mean {prefix}{near[0]}?" if near else ""
