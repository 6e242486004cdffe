"""`roformer-tf COMMAND …`: a table of commands; each one's settings dataclass is its flags.

A command's module is imported when the command is called, so that help is instant.
"""

import difflib
import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from roformer_tf.errors import (
    TRY_AGAIN,
    DifferenceError,
    DivergedError,
    InputError,
    TerminatedError,
)


class Command(NamedTuple):
    """Where a command lives, and what `roformer-tf --help` says of it."""

    function: str
    """ "module:function" of one parameter, annotated with its settings dataclass."""
    help: str
    loads: tuple[str, ...] = ()
    """Modules that take long to load, which is done, quietly, before the function is called."""


_TENSORFLOW = ("tensorflow",)
_MODELS = ("roformer_tf.models.heads",)

COMMANDS = {
    "prepare": Command(
        "roformer_tf.data.preparation:prepare", "make rows for pretraining out of a corpus"
    ),
    "pretrain": Command(
        "roformer_tf.training.pretraining:pretrain",
        "pretrain a language model, masked or causal",
        _MODELS,
    ),
    "finetune": Command(
        "roformer_tf.training.finetuning:finetune", "fine-tune on labelled texts", _MODELS
    ),
    "predict": Command(
        "roformer_tf.inference.predict_file:predict_file",
        "answer for each text of a file, with a fine-tuned model",
        _MODELS,
    ),
    "runs": Command(
        "roformer_tf.training.comparison:compare", "compare runs, finished or still training"
    ),
    "export": Command(
        "roformer_tf.inference.export:export_model",
        "write a fine-tuned model as SavedModel, ONNX or int8",
        _MODELS,
    ),
    "serve": Command(
        "roformer_tf.inference.serve:serve", "answer over HTTP with a fine-tuned model", _MODELS
    ),
    "fill-mask": Command(
        "roformer_tf.inference.fill_mask:fill_mask",
        "fill the [MASK] of a text with a model",
        _MODELS,
    ),
    "checkpoints list": Command(
        "roformer_tf.interchange.downloads:list_checkpoints", "show the released checkpoints"
    ),
    "checkpoints download": Command(
        "roformer_tf.interchange.downloads:download", "fetch a released checkpoint"
    ),
    "checkpoints inspect": Command(
        "roformer_tf.interchange.inspect:inspect", "show what is in a checkpoint", _TENSORFLOW
    ),
    "checkpoints convert": Command(
        "roformer_tf.interchange.convert:convert",
        "write a checkpoint in another layout",
        _TENSORFLOW,
    ),
    "checkpoints vocabulary": Command(
        "roformer_tf.interchange.vocabulary:change_vocabulary",
        "give a checkpoint another vocabulary",
        _TENSORFLOW,
    ),
    "checkpoints verify": Command(
        "roformer_tf.interchange.verify:verify",
        "compare a checkpoint's outputs with another library's",
        _TENSORFLOW + _MODELS,
    ),
}

_HELP = ("-h", "--help")
BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130

_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
"""What a full or failing disk says."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; give the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        import roformer_tf

        print(roformer_tf.__version__)
        return 0
    name, flags = _split(arguments)
    if name in _groups() and (not flags or flags[0] in _HELP):
        print(_usage(name))
        return 0 if flags else BAD_INPUT
    try:
        if name not in COMMANDS:
            near = _nearest(name, {*COMMANDS, *_groups()})
            raise InputError(f"there is no command {name!r}.{near}\n\n{_usage()}")
        run(name, flags)
    except (InputError, DivergedError, DifferenceError) as error:
        print(f"roformer-tf {name}: {error}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, InputError) else FAILED
    except OSError as error:
        if error.errno not in _STORAGE:
            raise
        place = f" {error.filename}" if error.filename else ""
        print(
            f"\nroformer-tf {name}: cannot write{place}: {error.strerror}. Nothing that was whole "
            "is lost. Make room; then the same command continues.",
            file=sys.stderr,
        )
        return FAILED
    except TerminatedError as error:
        print(f"\nroformer-tf {name}: {error}", file=sys.stderr)
        return TRY_AGAIN
    except KeyboardInterrupt:
        print("\nstopped. The same command continues.", file=sys.stderr)
        return INTERRUPTED
    return 0


def _split(arguments: list[str]) -> tuple[str, list[str]]:
    """A command's name, of two words in a group, and its flags: "checkpoints list", [].

    The name of nothing at all, or of help alone, is "".
    """
    words = 0
    name = ""
    while name in _groups() and words < len(arguments) and arguments[words] not in _HELP:
        words += 1
        name = " ".join(arguments[:words])
    return name, arguments[words:]


def _groups() -> set[str]:
    """What stands before the last word of a command: "" and "checkpoints"."""
    return {name.rpartition(" ")[0] for name in COMMANDS}


def run(name: str, flags: Sequence[str]) -> None:
    """Turn flags into the command's settings, and call it. Wrong flags exit with code 2."""
    import tyro

    function, settings = load(name)
    parser = {"prog": f"roformer-tf {name}", "config": (tyro.conf.OmitArgPrefixes,)}
    given = tyro.cli(settings, args=_with_yaml(list(flags), settings), **parser)
    for module in COMMANDS[name].loads:
        with _quiet(), suppress(ModuleNotFoundError):  # who needs it says what is missing
            import_module(module)
    function(given)


def load(name: str) -> tuple[Callable[[Any], Any], Any]:
    """Import a command's function, and the settings dataclass that it takes."""
    module, attribute = COMMANDS[name].function.split(":")
    with _quiet():
        function = getattr(import_module(module), attribute)
    (settings,) = (t for key, t in get_type_hints(function).items() if key != "return")
    return function, settings


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep TensorFlow's notes on processor and drivers from burying what a command says.

    They come while it is imported, before it reads its own log level, past Python's stderr. To
    see them, set TF_CPP_MIN_LOG_LEVEL yourself, such as to 0.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") != "3":
        yield
        return
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(nowhere)
        os.close(stderr)


def _with_yaml(flags: list[str], settings: type) -> list[str]:
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
    return [*_yaml_flags(Path(file), settings), *rest]


def _yaml_flags(path: Path, settings: type) -> list[str]:
    """The keys of a YAML file as flags."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no keys with values, such as `batch-size: 32`.")
    known = flag_types(settings)
    flags = []
    for key, value in values.items():
        flag = str(key).replace("_", "-")
        if flag not in known:
            raise InputError(
                f"{path} has an unknown key {key!r}.{_nearest(flag, known)} "
                f"Known keys: {', '.join(sorted(known))}."
            )
        flags += _as_flags(flag, value, known[flag])
    return flags


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
    import dataclasses

    hints = get_type_hints(settings)
    types: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        if dataclasses.is_dataclass(hints[field.name]):
            types |= flag_types(hints[field.name])
        else:
            types[field.name.replace("_", "-")] = hints[field.name]
    return types


def _nearest(word: str, words: Any) -> str:
    near = difflib.get_close_matches(word, list(words), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _usage(group: str = "") -> str:
    """The commands of a group, or all."""
    commands = {name: c for name, c in COMMANDS.items() if name.startswith(group)}
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {command.help}" for name, command in commands.items()]
    return "\n".join(
        [
            "usage: roformer-tf COMMAND [flags]",
            "",
            *lines,
            "",
            "`roformer-tf COMMAND --help` lists a command's flags; --config FILE.yaml reads them.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
