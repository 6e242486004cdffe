"""Flags of a command: the fields of a settings dataclass, and YAML files with the same keys."""

import dataclasses
import difflib
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise, takewhile
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from roformer_tf.errors import InputError
from roformer_tf.files import find_recipe
from roformer_tf.translation import AskedLanguage, Message, either

# Our flags, and their names in other programs, which are refused with ours as a suggestion.
SYNONYMS = {
    "learning-rate": "lr",
    "batch-size": "bs b train-batch-size per-device-train-batch-size",
    "epochs": "num-epochs num-train-epochs",
    "max-length": "max-len max-seq-length",
    "precision": "fp16 bf16 dtype",
    "train": "data dataset train-file",
    "valid": "dev eval validation",
    "output": "o out output-dir",
}
# Flags whose names may be omitted in every command that has them.
POSITIONAL = ("name", "source", "target", "sources", "folder", "recipe", "model", "text")

# Flags of every command, in addition to its own.
COMMON = {"config": str, "language": AskedLanguage}

# As typed, and as YAML files have them.
_TRUTH = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
# Types of values in messages; all others are texts.
_KINDS = {
    int: Message("a whole number"),
    float: Message("a number"),
    bool: Message("yes or no"),
    tuple[float, float]: Message("two numbers"),
    dict[str, float]: Message("names, each with a number, such as news 3 wiki 1"),
}


class Flag(NamedTuple):
    """A field of a settings dataclass, or of a dataclass in it, as a flag.

    `name` is as typed, without dashes, `kind` the type without annotations, `settings` the
    dataclass that has the field, `nested` the field that holds it ("" for the command's own).
    """

    name: str
    field: Any
    kind: Any
    settings: Any
    nested: str
    required: bool


def flags_of(settings: Any, nested: str = "") -> Iterator[Flag]:
    """The flags of a settings dataclass, nested ones included, in the order of the fields."""
    hints = get_type_hints(settings)
    for field in dataclasses.fields(settings):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            yield from flags_of(kind, field.name)
        else:
            required = field.default is field.default_factory is dataclasses.MISSING
            yield Flag(_dashed(field.name), field, kind, settings, nested, required)


def flag_types(settings: Any) -> dict[str, Any]:
    """The flags of a settings dataclass, nested ones included, with their types."""
    return {flag.name: flag.kind for flag in flags_of(settings)}


def parsed(settings: Any, words: Sequence[str]) -> Any:
    """Parse the words of a command line, and of its `--config` file, into settings.

    Raises InputError, in flag names, for unknown and missing flags and for wrong values.
    """
    own = flag_types(settings)
    typed = _words_by_flag(words, COMMON | own)
    if "language" not in own and "language" in typed:  # the command line has used it already
        _value("language", typed.pop("language"), AskedLanguage)
    return _settled(settings, typed)


def from_keywords(settings: Any, keywords: Mapping[str, Any]) -> Any:
    """Convert keyword arguments of a Python function, named as the flags, into settings.

    None is the default. `config` names a YAML file or a recipe, as `--config` does. Raises
    InputError for an unknown name and for wrong values, in the names of the arguments.
    """
    types = flag_types(settings)
    known = {name.replace("-", "_"): name for name in types}
    for name in keywords:
        if name not in known and name != "config":
            meant = _meant(_dashed(name), set(known.values()))
            raise InputError(f"there is no setting {name!r}.{hint([in_python_names(meant)])}")
    typed = {}
    for name, value in keywords.items():
        # Also an array of NumPy, such as the classes_ of an encoder of scikit-learn.
        several = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
        values = _as_words(list(value) if several else value, types.get(_dashed(name)))
        if value is not None and values:
            typed[_dashed(name)] = values
    try:
        return _settled(settings, typed)
    except InputError as error:
        raise InputError(in_python_names(str(error))) from None


def _settled(settings: Any, typed: dict[str, list[str]]) -> Any:
    """The settings with the values that words stand for; raises InputError as `parsed`."""
    types = flag_types(settings)
    if "config" in typed and "config" not in types:
        values = yaml_values(find_recipe("".join(typed.pop("config"))), settings)
        # A typed flag also replaces other keys: with --vocab the file's vocab-size has no effect.
        alternatives = getattr(settings, "alternatives", {})
        replaced = {key for flag in typed for key in alternatives.get(flag, ())}
        typed = {key: words for key, words in values.items() if key not in replaced} | typed
    values = {flag: _value(flag, texts, types[flag]) for flag, texts in typed.items()}
    required = [flag.name for flag in flags_of(settings) if flag.required]
    if missing := [f"--{name}" for name in required if name not in values]:
        raise InputError(Message("{flags} must be given. `--help` has examples.", flags=missing))
    return _built(settings, values)


def _built(settings: Any, values: Mapping[str, Any]) -> Any:
    """The settings with the values of flags; nested ones are constructed first."""
    arguments = {}
    for name, kind in get_type_hints(settings).items():
        if dataclasses.is_dataclass(kind):
            arguments[name] = _built(kind, values)
        elif _dashed(name) in values:
            arguments[name] = values[_dashed(name)]
    return settings(**arguments)


def _words_by_flag(words: Sequence[str], types: Mapping[str, Any]) -> dict[str, list[str]]:
    """Flag → its words; of a repeated flag the last ones.

    Raises InputError for unknown flags, and for words that belong to no flag.
    """
    negated = {f"no-{name}": name for name, kind in types.items() if kind is bool}
    typed: dict[str, list[str]] = {}
    unknown, rest = list[str](), list[str]()
    values, room = rest, 0  # of the last flag: its words, and how many more it takes
    for index, word in enumerate(words):
        name, (stem, equals, value) = _flag_name(word), word.partition("=")
        if word == "--":
            rest += words[index + 1 :]
            break
        if name in negated:
            typed[negated[name]], room = ["no"], 0
        # -lr is an unknown flag, but -5 is a value.
        elif name or re.match("-[A-Za-z]", word):
            if name not in types:
                unknown.append(stem.replace("_", "-"))
            # The same list under both names: the words that follow are appended to it.
            typed[name] = values = [value] if equals else []
            room = 0 if equals else _max_values(types.get(name, str))
        else:
            (values if room else rest).append(word)
            room = max(room - 1, 0)
    if unknown:
        meant = hint([_meant(flag.lstrip("-"), {*types, *negated}) for flag in unknown])
        meant = meant or Message(" `--help-all` lists the flags.")
        raise InputError(Message("there is no flag {flags}.{hint}", flags=unknown, hint=meant))
    # Words that no flag has taken are those of flags whose names are omitted, in a fixed order.
    for name in POSITIONAL:
        if rest and name in types and name not in typed:
            number = _max_values(types[name])
            typed[name], rest = rest[:number], rest[number:]
    if rest:
        raise InputError(Message("these words belong to no flag: {words}.", words=shlex.join(rest)))
    return typed


def _meant(name: str, known: set[str]) -> str:
    """The flag that was probably meant by an unknown name, with its dashes, or ""."""
    synonyms = [flag for flag in SYNONYMS if flag in known and name in SYNONYMS[flag].split()]
    flag = "".join(synonyms[:1]) or nearest(name, known)
    return flag and f"--{flag}"


def _value(flag: str, words: Sequence[str], kind: Any) -> Any:
    """Convert the words of a flag. Raises InputError if they are no value of its type."""
    with suppress(ValueError):
        return _converted(words, kind)
    parts = list(dict.fromkeys(leaf for leaf in leaves(kind) if leaf is not NoneType))
    names = [x if isinstance(x, str) else _KINDS.get(x, Message("a text")) for x in parts]
    message = Message(
        "--{flag} is {value}, but must be {kind}.{hint}",
        flag=flag,
        value=shlex.join(words) or Message("empty"),
        kind=either(names),
        hint=hint([nearest("".join(words), [x for x in parts if isinstance(x, str)])]),
    )
    raise InputError(message)


def _converted(words: Sequence[str], kind: Any) -> Any:
    """Convert the words of a flag. Raises ValueError if they are no value of its type."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is bool and not words:
        return True
    if origin is tuple and words:
        if Ellipsis not in inner and len(inner) != len(words):  # such as tuple[float, float]
            raise ValueError(words)
        return tuple(_converted([word], inner[0]) for word in words)
    if origin is dict:  # such as: news 3 wiki 1
        pairs = zip(words[::2], words[1::2], strict=True)
        return {key: _converted([word], inner[1]) for key, word in pairs}
    if origin in (Union, UnionType):
        for option in sorted(inner, key=lambda x: x is not NoneType):  # "None" is not a text
            with suppress(ValueError):
                return _converted(words, option)
    # This raises ValueError, too, for no word and for several.
    (word,) = words
    if origin is Literal:
        return inner[inner.index(word)]
    if kind is NoneType and word == "None":
        return None
    if kind is bool and word.lower() in _TRUTH:
        return _TRUTH[word.lower()]
    if kind in (int, float, str, Path):
        return kind(word)
    raise ValueError(word)


def leaves(kind: Any) -> list[Any]:
    """The types and choices that a type is composed of; the types in `_KINDS` stay whole."""
    inner = [part for part in get_args(kind) if part is not Ellipsis and kind not in _KINDS]
    return [leaf for part in inner for leaf in leaves(part)] if inner else [kind]


def given_names(words: Sequence[str]) -> set[str]:
    """The names of the typed flags and of the keys of a `--config` file, without dashes.

    A YAML file that cannot be read counts as empty; `yaml_values` reports the problem later.
    """
    typed = takewhile(lambda word: word != "--", words)
    names = set(filter(None, map(_flag_name, typed)))
    if file := typed_value(words, "config"):
        import yaml

        with suppress(OSError, ValueError, TypeError, yaml.YAMLError):
            names.update(map(_dashed, yaml.safe_load(find_recipe(file).read_text("utf-8"))))
    return names


def typed_value(words: Sequence[str], flag: str) -> str:
    """The value of a flag of one value, the last if it is repeated; "" without it."""
    typed = takewhile(lambda word: word != "--", words)
    # Each word with the one after it, which is the value in `--language zh`.
    pairs = pairwise([*typed, ""])
    values = [word.partition("=")[2] or later for word, later in pairs if _flag_name(word) == flag]
    return values[-1] if values else ""


def _max_values(kind: Any) -> int:
    """The maximum number of words that a flag of this type takes."""
    if kind is bool:  # --flag or --no-flag
        return 0
    several = any(get_origin(x) in (tuple, dict) for x in (kind, *get_args(kind)))
    return sys.maxsize if several else 1


def _flag_name(word: str) -> str:
    """The name in --mask-rate or --mask-rate=0.2, "mask-rate"; "" if the word is no flag."""
    return word[2:].partition("=")[0].replace("_", "-") if word.startswith("--") else ""


def yaml_values(path: Path, settings: type) -> dict[str, list[str]]:
    """The keys of a YAML file as flags, with their words.

    Raises InputError for a file that cannot be read, and for an unknown or a repeated key.
    """
    import yaml

    try:
        # BaseLoader reads every value as text: `output: no` is the folder "no".
        text = path.read_text(encoding="utf-8")
        values = yaml.load(text, yaml.BaseLoader) or {}
    except FileNotFoundError:
        message = Message("there is no file {path}. Check the path and the spelling.", path=path)
        raise InputError(message) from None
    except OSError as error:
        message = Message("cannot read {path}: {reason}.", path=path, reason=error.strerror)
        raise InputError(message) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        message = Message("{path} is not valid YAML: {reason}", path=path, reason=reason)
        raise InputError(message) from None
    if not isinstance(values, dict):
        message = Message("{path} holds no keys with values, such as `batch-size: 32`.", path=path)
        raise InputError(message)
    # Of a repeated key, `yaml.load` has only the last value.
    root: Any = yaml.compose(text)
    keys = [_dashed(key.value) for key, _ in root.value] if values else []
    if repeated := [key for key in keys if keys.count(key) > 1]:
        message = Message("{path} has two keys {key!r}. Remove one.", path=path, key=repeated[0])
        raise InputError(message)
    known = flag_types(settings)
    typed: dict[str, list[str]] = {}
    for key, value in values.items():
        flag = _dashed(key)
        if flag not in known:
            raise InputError(
                Message(
                    "{path} has an unknown key {key!r}.{hint} Known keys: {known}.",
                    path=path,
                    key=key,
                    hint=hint([nearest(flag, known)]),
                    known=", ".join(sorted(known)),
                )
            )
        # BaseLoader has no null: these are its spellings. Such a key is as if it were absent.
        if value not in ("", "~", "null", [], {}):
            typed[flag] = _as_words(value, known[flag])
    return typed


def _dashed(key: Any) -> str:
    """A key of a YAML file as a flag is spelled: learning_rate is learning-rate."""
    return str(key).replace("_", "-")


def _as_words(value: Any, kind: Any) -> list[str]:
    """A value of a YAML file as the words that would be typed for a flag of this type."""
    # Such as {news: 3, wiki: 1}. Of other flags a mapping is one word, which they refuse.
    takes_pairs = any(get_origin(x) is dict for x in (kind, *get_args(kind)))
    if isinstance(value, dict) and takes_pairs:
        value = [word for pair in value.items() for word in pair]
    return [_as_word(item) for item in value] if isinstance(value, list) else [_as_word(value)]


def _as_word(value: Any) -> str:
    """One value as it is typed; a mapping {length: 512} is "length=512"."""
    if isinstance(value, dict):
        return " ".join(f"{key}={_as_word(item)}" for key, item in value.items())
    return "inf" if value == ".inf" else str(value)  # as YAML writes it


def nearest(word: str, words: Iterable[str]) -> str:
    """The word that starts like this one, or the most similar; "" if none is."""
    longer = [other for other in sorted(words) if word and other.startswith(f"{word}-")]
    near = longer or difflib.get_close_matches(word, sorted(words), n=1)
    return near[0] if near else ""


def hint(names: Iterable[str]) -> str:
    """A question with the names that were probably meant; "" if there is none."""
    meant = [name for name in names if name]
    return Message(" Did you mean {names}?", names=meant) if meant else ""


def in_flag_names(text: str, settings: Any) -> str:
    """A message of settings as the command line has it: "--max-length is 0" for "max_length is 0".

    The settings have their field names in messages because Python programs construct them, too.
    """
    names = {flag.field.name: f"--{flag.name}" for flag in flags_of(settings)}
    # In a sentence a word such as "text" is no flag, but one with an underscore is, if it is not
    # in quotes or in a path.
    # The text may be translated already: 的值 is "is" in the Chinese messages.
    pattern = r"^[a-z]+(?= (is|was|的值) ?)|(?<![\w./'\"`-])[a-z]+(_[a-z0-9]+)+(?!\.?[\w/'\"`=])"
    changed = re.sub(pattern, lambda name: names.get(name[0], name[0]), text)
    return text if changed == text else changed  # a Message can be translated


def in_python_names(text: str) -> str:
    """A message about flags as Python has it: "Give learning_rate" for "Give --learning-rate"."""
    return re.sub("--([a-z]+(-[a-z]+)*)", lambda flag: flag[1].replace("-", "_"), text)
