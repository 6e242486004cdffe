"""`roformer-tf COMMAND …`: a table of commands; each one's settings dataclass is its flags.

A command's module is imported when the command is called, so that help is instant; where it loads
Keras, the settings may stand in another, which is imported alone.
"""

import errno
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

from roformer_tf.errors import (
    TRY_AGAIN,
    DifferenceError,
    DivergedError,
    InputError,
    TerminatedError,
)
from roformer_tf.flags import (
    check_names,
    given_names,
    nearest,
    parsed,
    with_flag,
    with_yaml,
)
from roformer_tf.startup import import_quickly, quiet_tensorflow


class Command(NamedTuple):
    """Where a command lives, and what `roformer-tf --help` says of it."""

    function: str
    """ "module:function" of one parameter, annotated with its settings dataclass."""
    help: str
    loads: tuple[str, ...] = ()
    """Modules that load Keras or TensorFlow: `import_quickly` imports them before the function."""
    alone: str = ""
    """A flag whose value may also be typed alone, without the flag."""
    settings: str = ""
    """ "module:class" of the settings, where the function's module takes long to load: neither
    help nor a word on wrong flags waits for that."""
    instead: Mapping[str, str] = MappingProxyType({})
    """By a flag, the function that takes the other one's place where this flag is given."""


_TENSORFLOW = ("tensorflow",)
_MODELS = ("roformer_tf.models.heads",)

COMMANDS = {
    "prepare": Command(
        "roformer_tf.corpus.preparation:prepare", "make rows for pretraining out of a corpus"
    ),
    "pretrain": Command(
        "roformer_tf.pretraining.command:pretrain",
        "pretrain a language model, masked or causal",
        _MODELS,
        settings="roformer_tf.pretraining.settings:PretrainConfig",
    ),
    "finetune": Command(
        "roformer_tf.finetuning.command:finetune",
        "fine-tune on labelled texts",
        _MODELS,
        settings="roformer_tf.finetuning.settings:FinetuneConfig",
    ),
    "predict": Command(
        "roformer_tf.inference.predict_file:predict_file",
        "answer for each text of a file, with a fine-tuned model",
        alone="model",
    ),
    "embed": Command(
        "roformer_tf.inference.embed_file:embed_file",
        "write a vector for each text of a file",
        alone="model",
    ),
    "similarity": Command(
        "roformer_tf.inference.similarity:similarity",
        "say how alike texts are: the cosine of their vectors",
    ),
    "search": Command(
        "roformer_tf.search.command:search",
        "find the documents that answer queries",
    ),
    "evaluate": Command(
        "roformer_tf.finetuning.evaluation:evaluate",
        "judge a fine-tuned model by a labelled file, or a language model by text",
        _MODELS,
        alone="model",
        instead={"corpus": "roformer_tf.pretraining.length_evaluation:evaluate_corpus"},
    ),
    "runs": Command(
        "roformer_tf.runs.comparison:compare", "compare runs, finished or still training"
    ),
    "cost": Command(
        "roformer_tf.pretraining.cost:cost",
        "estimate what pretraining by a recipe costs",
        ("roformer_tf.pretraining.command",),
    ),
    "export": Command(
        "roformer_tf.export.command:export_model",
        "write a model as SavedModel, ONNX or int8",
        _MODELS,
        alone="model",
    ),
    "serve": Command(
        "roformer_tf.serving.command:serve",
        "answer over HTTP with a fine-tuned model, write, or search",
        alone="model",
    ),
    "fill-mask": Command(
        "roformer_tf.inference.fill_mask:fill_mask",
        "fill the [MASK] of a text with a model",
        _MODELS,
    ),
    "generate": Command(
        "roformer_tf.inference.generate:generate",
        "continue a text, or write another that means the same, with a model that writes",
        _MODELS,
    ),
    "checkpoints list": Command(
        "roformer_tf.conversion.downloads:list_checkpoints", "show the released checkpoints"
    ),
    "checkpoints download": Command(
        "roformer_tf.conversion.downloads:download", "fetch a released checkpoint"
    ),
    "checkpoints inspect": Command(
        "roformer_tf.conversion.inspect:inspect", "show what is in a checkpoint", _TENSORFLOW
    ),
    "checkpoints convert": Command(
        "roformer_tf.conversion.convert:convert",
        "write a checkpoint in another layout",
        _TENSORFLOW,
    ),
    "checkpoints vocabulary": Command(
        "roformer_tf.conversion.vocabulary:change_vocabulary",
        "give a checkpoint another vocabulary",
        _TENSORFLOW,
    ),
    "checkpoints average": Command(
        "roformer_tf.conversion.average:average",
        "write the mean of several models' weights",
        _TENSORFLOW,
    ),
    "checkpoints verify": Command(
        "roformer_tf.conversion.verify:verify",
        "compare a checkpoint's outputs with another library's",
        _TENSORFLOW + _MODELS,
    ),
}

BACKENDS = ("tensorflow", "jax")
"""What Keras may run on here."""

_HELP = ("-h", "--help")
BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130

_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
"""What a full or failing disk says."""
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")
"""The text of NumPy's OSError where not all of an array could be written; it has no errno."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; give the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _escape_what_the_console_lacks()
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
            raise InputError(f"there is no command {name!r}.{_guess(name, flags)}\n\n{_usage()}")
        run(name, flags)
    except (InputError, DivergedError, DifferenceError) as error:
        print(f"roformer-tf {name}: {error}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, InputError) else FAILED
    except Exception as error:
        problem = _storage_problem(error)
        if not problem:
            raise
        file = getattr(error, "filename", None)
        place = f" {file}" if file else ""
        print(
            f"\nroformer-tf {name}: cannot write{place}: {problem}. Nothing that was whole "
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


def _storage_problem(error: Exception) -> str:
    """What an error says of a full or failing disk; "" for another error."""
    if isinstance(error, OSError):
        if error.errno in _STORAGE:
            return error.strerror or os.strerror(error.errno)
        if error.errno is None and _SHORT_WRITE.search(str(error)):
            return "the disk is full, or files may not be so large"
    full = os.strerror(errno.ENOSPC)  # TensorFlow's errors have no errno either
    return full if full in str(error) else ""


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


def _guess(name: str, flags: Sequence[str]) -> str:
    """Ask which command was meant: one that is spelled alike, or one of a group without its group.

    Of `checkpoint list` the name is "checkpoint", for it is no group, and "list" seems a flag.
    """
    of_groups = {command for command in COMMANDS if " " in command}
    last_words = {command.rpartition(" ")[2]: command for command in of_groups}
    return (
        (nearest(f"{name} {flags[0]}", of_groups) if flags else "")
        or nearest(name, {*COMMANDS, *_groups()})
        or nearest(last_words.get(name, ""), of_groups)
    )


def _groups() -> set[str]:
    """What stands before the last word of a command: "" and "checkpoints"."""
    return {name.rpartition(" ")[0] for name in COMMANDS}


def run(name: str, flags: Sequence[str]) -> None:
    """Turn flags into the command's settings, and call it. Wrong flags exit with code 2."""
    backend = _check_backend()
    quiet_tensorflow()
    settings = load_settings(name, flags)
    program = f"roformer-tf {name}"
    typed = with_flag(list(flags), COMMANDS[name].alone, settings)
    check_names(typed, settings, program)
    given = parsed(settings, with_yaml(typed, settings), program)
    needs_keras = getattr(given, "engine", None) == "keras"
    modules = COMMANDS[name].loads or (_MODELS if needs_keras else ())
    if modules:
        import_quickly(modules, backend)
    load_function(name, flags)(given)


def load_function(name: str, flags: Sequence[str] = ()) -> Callable[[Any], Any]:
    """Import a command's function."""
    command = COMMANDS[name]
    given = [flag for flag in command.instead if flag in given_names(flags)]
    function: Callable[[Any], Any] = _imported(
        command.instead[given[0]] if given else command.function
    )
    return function


def load_settings(name: str, flags: Sequence[str] = ()) -> Any:
    """Import the settings dataclass that a command's function takes, which are its flags."""
    if COMMANDS[name].settings:
        return _imported(COMMANDS[name].settings)
    hints = get_type_hints(load_function(name, flags))
    (settings,) = (t for key, t in hints.items() if key != "return")
    return settings


def _imported(place: str) -> Any:
    """What stands at "module:name"."""
    module, name = place.split(":")
    return getattr(import_module(module), name)


def _check_backend() -> str:
    """The backend on which Keras will run.

    Raises InputError where that is none of ours, or is not installed.

    Before Keras is imported, for it fails in the midst of that. As it does, this reads the
    variable KERAS_BACKEND and then the file keras.json.
    """
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "keras.json"
    where, name = "the environment variable KERAS_BACKEND", os.environ.get("KERAS_BACKEND")
    if not name:
        from roformer_tf.files import parse_json

        with suppress(OSError, ValueError, AttributeError):  # absent, or not what Keras writes
            where, name = str(home), parse_json(home.read_bytes()).get("backend")
    if not name:
        return BACKENDS[0]
    if name not in BACKENDS:
        raise InputError(
            f"{where} asks for the Keras backend {name!r}; roformer-tf runs on "
            f"{' or '.join(BACKENDS)}. Set KERAS_BACKEND to one of them, such as "
            f"KERAS_BACKEND={BACKENDS[0]}."
        )
    if name == "jax" and find_spec("jax") is None:
        raise InputError(
            f"{where} asks for the Keras backend 'jax', which is not installed here: "
            f"`pip install 'roformer-tf[jax]'`, or set KERAS_BACKEND={BACKENDS[0]}."
        )
    return str(name)


def _escape_what_the_console_lacks() -> None:
    """Print an emoji to a console, or a file, in GBK as its escape, instead of ending by an error.

    So redirected output is encoded on Chinese Windows, and where LANG says so elsewhere.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not what a notebook or a test puts there
            stream.reconfigure(errors="backslashreplace")


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
