"""`roformer-tf COMMAND …`: a table of commands. The fields of a settings dataclass are the flags.

A command's module is imported when the command is called, so that `--help` is instant. If that
module loads Keras, the settings can be in a module of their own.
"""

import errno
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

from roformer_tf.errors import (
    TRY_AGAIN,
    DifferenceError,
    DivergedError,
    InputError,
    TerminatedError,
    handling_termination,
    is_out_of_memory,
)
from roformer_tf.flags import flag_types, given_names, hint, in_flag_names, nearest, typed_value
from roformer_tf.startup import import_quickly, set_up_tensorflow
from roformer_tf.translation import ASKED, Message, Translator, terminal_language
from roformer_tf.usage import from_words, wrapped


class Command(NamedTuple):
    """Where a command is implemented, and its line in `roformer-tf --help`."""

    function: str
    """ "module:function" of one parameter, annotated with its settings dataclass."""
    help: str
    loads: tuple[str, ...] = ()
    """Modules that load Keras or TensorFlow: `import_quickly` imports them before the function."""
    usual: str = ""
    """The flags in --help, besides the required ones; --help-all has the rest. Default: all."""
    settings: str = ""
    """ "module:class" of the settings if the function's module takes long to load. `--help` and
    messages about wrong flags do not wait for it then."""
    variants: Mapping[str, str] = MappingProxyType({})
    """Flag → the function to call instead of `function` if this flag is used."""


# Commands that continue where they were stopped.
RESUMED = ("prepare", "pretrain", "finetune", "checkpoints download")
_TENSORFLOW = ("tensorflow",)
_MODELS = ("roformer_tf.models.heads",)
_TRAINING = _MODELS + _TENSORFLOW  # which Keras imports to set its seed, on JAX too

COMMANDS = {
    "prepare": Command(
        "roformer_tf.corpus.preparation:prepare",
        "prepare a corpus for pretraining",
        usual="vocab vocab-size tokenization length held-out duplicates field encoding workers",
    ),
    "pretrain": Command(
        "roformer_tf.pretraining.command:pretrain",
        "pretrain a masked or causal language model",
        _TRAINING,
        settings="roformer_tf.pretraining.settings:PretrainConfig",
        usual="corpus rows vocab vocab-size init-from length batch-size steps learning-rate",
    ),
    "finetune": Command(
        "roformer_tf.adaptation:finetune",
        "fine-tune on labelled texts",
        _TRAINING,
        settings="roformer_tf.finetuning.settings:FinetuneConfig",
        usual="checkpoint valid test task label-column max-length epochs batch-size learning-rate",
    ),
    "predict": Command(
        "roformer_tf.inference.predict_file:predict_file",
        "predict for each text of a file",
        usual="input output with-text top-k text-columns batch-size engine precision",
    ),
    "embed": Command(
        "roformer_tf.inference.vector_files:embed_file",
        "write a vector for each text of a file",
        usual="input output pooling dimensions text-columns max-length batch-size engine",
    ),
    "similarity": Command(
        "roformer_tf.inference.vector_files:similarity",
        "compute the similarity of texts by their vectors",
        usual="input output pooling text-columns batch-size engine precision",
    ),
    "search": Command(
        "roformer_tf.search.command:search",
        "find the documents most relevant to queries",
        usual="model documents index queries top hybrid rerank where output text-columns",
    ),
    "evaluate": Command(
        "roformer_tf.finetuning.labelled_evaluation:evaluate",
        "evaluate a model on labelled data or on text",
        _MODELS,
        variants={"corpus": "roformer_tf.pretraining.length_evaluation:evaluate_corpus"},
        usual="lengths scalings max-tokens text-columns label-column output batch-size engine",
    ),
    "runs": Command(
        "roformer_tf.training.comparison:compare", "compare training runs, finished or in progress"
    ),
    "cost": Command(
        "roformer_tf.pretraining.cost:cost", "estimate the cost of pretraining with a recipe"
    ),
    "export": Command(
        "roformer_tf.export.command:export_model",
        "export a model as SavedModel, ONNX or OpenVINO",
        _MODELS,
    ),
    "serve": Command(
        "roformer_tf.serving.command:serve",
        "serve models over HTTP, with a page to try them",
        usual="names port host index hybrid rerank workers batch-size engine precision top-k",
    ),
    "fill-mask": Command(
        "roformer_tf.inference.fill_mask:fill_mask", "predict the [MASK] tokens of a text", _MODELS
    ),
    "generate": Command(
        "roformer_tf.inference.generate:generate",
        "continue or paraphrase a text",
        _MODELS,
        usual="input output max-tokens samples top-k top-p temperature beams paraphrases seed",
    ),
    "checkpoints list": Command(
        "roformer_tf.conversion.downloads:list_checkpoints", "list the checkpoints with a name"
    ),
    "checkpoints download": Command(
        "roformer_tf.conversion.downloads:download", "download a released checkpoint"
    ),
    "checkpoints inspect": Command(
        "roformer_tf.conversion.inspection:inspect",
        "show the configuration and weights of a checkpoint",
        _TENSORFLOW,
    ),
    "checkpoints convert": Command(
        "roformer_tf.conversion.convert:convert",
        "convert a checkpoint to another format",
        _TENSORFLOW,
    ),
    "checkpoints vocabulary": Command(
        "roformer_tf.conversion.change_vocabulary:change_vocabulary",
        "change the vocabulary of a checkpoint",
        _TENSORFLOW,
    ),
    "checkpoints average": Command(
        "roformer_tf.conversion.average:average",
        "average the weights of several models",
        _TENSORFLOW,
    ),
    "checkpoints verify": Command(
        "roformer_tf.conversion.verify:verify",
        "compare outputs with those of another library",
        _TENSORFLOW + _MODELS,
    ),
}

BACKENDS = ("tensorflow", "jax")
"""Keras backends that are supported."""

_HELP = ("-h", "--help", "--help-all")
# 130 is what shells report for SIGINT: 128 + 2.
BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130

_CANNOT_OPEN = (PermissionError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors of a file that is protected, was removed, or has been replaced by a folder."""
_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG}
"""Error numbers of a full or failing disk."""
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")
"""NumPy's OSError for an array that was written in part; it has no errno."""
_ABOUT_MEMORY = ("batch-size", "length", "max-length", "accumulate", "rematerialize", "workers")
"""Flags on which the memory of a command depends, the most effective ones first."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    # In a context of its own: the language of this call is not that of later ones.
    return copy_context().run(_main, arguments)


def _main(arguments: list[str]) -> int:
    # Before the flags are parsed, so that messages about wrong ones are in this language, too.
    ASKED.set(typed_value(arguments, "language"))
    _escape_what_the_console_lacks()
    if arguments == ["--version"]:
        import roformer_tf

        print(roformer_tf.__version__)
        return 0
    if arguments == ["--completion"]:
        print(Path(__file__).with_name("completion.bash").read_text("utf-8"), end="")
        return 0
    _ = Translator(terminal_language())
    name, flags = _split(arguments)
    if name in _groups():
        from roformer_tf.terminal import show

        show(_usage(name, _))
        return 0 if flags else BAD_INPUT
    try:
        if name not in COMMANDS:
            raise InputError(_no_command(name, flags))
        run(name, flags, _)
    except (InputError, DivergedError, DifferenceError) as error:
        message = _(error.args[0])
        program = f"roformer-tf {name}" if name in COMMANDS else "roformer-tf"
        print(f"{program}: {message}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, InputError) else FAILED
    except _CANNOT_OPEN as error:
        # An error without a file is a bug, and keeps its traceback.
        if not error.filename:
            raise
        message = _("cannot open {file}: {reason}.", file=error.filename, reason=error.strerror)
        print(f"roformer-tf {name}: {message}", file=sys.stderr)
        return BAD_INPUT
    except Exception as error:
        message = _no_space(error, _) or _no_memory(error, name, flags, _)
        if not message:
            raise
        print(f"\nroformer-tf {name}: {message}", file=sys.stderr)
        return FAILED
    except TerminatedError as error:
        print(f"\nroformer-tf {name}: {error}", file=sys.stderr)
        return TRY_AGAIN
    except KeyboardInterrupt:
        stopped = _("stopped.")
        advice = _(" Run the same command again to resume.") if name in RESUMED else ""
        print(f"\n{stopped}{advice}", file=sys.stderr)
        return INTERRUPTED
    return 0


def _no_space(error: Exception, _: Translator) -> str:
    """The message if the error is that of a full or failing disk, else ""."""
    problem = _storage_problem(error)
    file = getattr(error, "filename", None)
    return problem and _(
        "cannot write{target}: {problem}. Completed files are intact. Free some space and run the "
        "same command again.",
        target=f" {file}" if file else "",
        problem=problem,
    )


def _no_memory(error: Exception, name: str, flags: Sequence[str], _: Translator) -> str:
    """The message if memory ran out, of the CPU or of a GPU, else ""."""
    if not is_out_of_memory(error):
        return ""
    known = flag_types(load_settings(name, flags))
    own = [f"--{flag}" for flag in _ABOUT_MEMORY if flag in known]
    advice = _(" How much is needed depends on {flags}.", flags=", ".join(own))
    return _("memory ran out.") + (advice if own else "")


def _storage_problem(error: Exception) -> str:
    """The reason if the error is that of a full or failing disk, else ""."""
    if isinstance(error, OSError):
        if error.errno in _STORAGE:
            return error.strerror or os.strerror(error.errno)
        if error.errno is None and _SHORT_WRITE.search(str(error)):
            return "the disk is full, or files may not be so large"
    full = os.strerror(errno.ENOSPC)  # TensorFlow's errors have no errno either
    return full if full in str(error) else ""


def _split(arguments: list[str]) -> tuple[str, list[str]]:
    """Split arguments into the command's name (two words in a group) and its flags.

    The name is "" if there are no arguments, or only --help. `--language zh` before the command
    becomes its first flag.
    """
    language = 0  # the number of words
    if arguments and arguments[0].partition("=")[0] == "--language":
        language = 1 if "=" in arguments[0] else 2
    first, arguments = arguments[:language], arguments[language:]
    words = 0
    name = ""
    # "" is a group, so the first word is always taken; a second one after "checkpoints".
    while name in _groups() and words < len(arguments) and arguments[words] not in _HELP:
        words += 1
        name = " ".join(arguments[:words])
    return name, first + arguments[words:]


def _no_command(name: str, flags: Sequence[str]) -> Message:
    """The message for an unknown command, with one of similar spelling or one that lacks its group.

    For `checkpoint list` the name is "checkpoint" and "list" looks like a flag.
    """
    of_groups = {command for command in COMMANDS if " " in command}
    last_words = {command.rpartition(" ")[2]: command for command in of_groups}
    # In this order: `checkpoint list` for "checkpoints list", `pretain` for "pretrain", and
    # `inspect`, which lacks its group.
    near = (
        (nearest(f"{name} {flags[0]}", of_groups) if flags else "")
        or nearest(name, {*COMMANDS, *_groups()})
        or nearest(last_words.get(name, ""), of_groups)
    )
    meant = hint([near]) or Message(" `roformer-tf --help` lists the commands.")
    return Message("there is no command {name}.{hint}", name=name, hint=meant)


def _groups() -> set[str]:
    """The words before the last word of the commands: "" and "checkpoints"."""
    return {name.rpartition(" ")[0] for name in COMMANDS}


def run(name: str, flags: Sequence[str], _: Translator) -> None:
    """Parse the flags into the command's settings and call it.

    Raises InputError for wrong input, in the language of the translator.
    """
    # First of all: TensorFlow reads these variables once, when a module below imports it.
    set_up_tensorflow(_check_backend())
    settings = load_settings(name, flags)
    command = COMMANDS[name]
    try:
        program = f"roformer-tf {name}"
        values = from_words(settings, flags, program, command.usual, _.language)
        # After the flags are parsed: neither --help nor a wrong flag has to wait for Keras.
        import_quickly(*command.loads)
        with handling_termination(_terminate) if name in RESUMED else nullcontext():
            load_function(name, flags)(values)
    except InputError as error:
        raise InputError(in_flag_names(_(error.args[0]), settings)) from None


def _terminate(number: int, frame: object) -> None:
    """Raise TerminatedError for a signal, so that nothing half-written and no process is left."""
    name = signal.Signals(number).name
    raise TerminatedError(f"received {name}. Run the same command again to resume.")


def load_function(name: str, flags: Sequence[str] = ()) -> Callable[[Any], Any]:
    """Import a command's function."""
    command = COMMANDS[name]
    used = given_names(flags) if command.variants else ()
    variants = [place for flag, place in command.variants.items() if flag in used]
    function: Callable[[Any], Any] = resolve_name(variants[0] if variants else command.function)
    return function


def load_settings(name: str, flags: Sequence[str] = ()) -> Any:
    """Import the settings dataclass that a command's function takes, which are its flags."""
    if COMMANDS[name].settings:
        return resolve_name(COMMANDS[name].settings)
    hints = get_type_hints(load_function(name, flags))
    return next(iter(hints.values()))  # of the first parameter


def _check_backend() -> str:
    """The backend that Keras will use. Raises InputError if it is unsupported or not installed.

    Called before Keras is imported, which would fail with a traceback. Like Keras, this reads the
    environment variable KERAS_BACKEND and then the file keras.json.
    """
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras") / "keras.json"
    origin, name = "the environment variable KERAS_BACKEND", os.environ.get("KERAS_BACKEND")
    if not name:
        from roformer_tf.files import parse_json

        with suppress(OSError, ValueError, AttributeError):  # absent, or not what Keras writes
            origin, name = str(home), parse_json(home.read_bytes()).get("backend")
    if not name:
        return BACKENDS[0]
    if name not in BACKENDS:
        raise InputError(
            f"{origin} asks for the Keras backend {name!r}; roformer-tf runs on "
            f"{' or '.join(BACKENDS)}. Set KERAS_BACKEND to one of them, such as "
            f"KERAS_BACKEND={BACKENDS[0]}."
        )
    if name == "jax" and find_spec("jax") is None:
        raise InputError(
            f"{origin} asks for the Keras backend 'jax', which is not installed here: "
            f"`pip install 'roformer-tf[jax]'`, or set KERAS_BACKEND={BACKENDS[0]}."
        )
    return str(name)


def _escape_what_the_console_lacks() -> None:
    """Print characters that the output's encoding lacks, such as an emoji in GBK, as escapes.

    Redirected output is in GBK on Chinese Windows.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a notebook or a test may replace it
            stream.reconfigure(errors="backslashreplace")


def _usage(group: str, _: Translator) -> str:
    """The commands of a group, or all."""
    commands = {name: c for name, c in COMMANDS.items() if name.startswith(group)}
    width = max(map(len, commands))
    lines = [f"  {name:{width}}  {_(command.help)}" for name, command in commands.items()]
    flags = _(
        "`roformer-tf COMMAND --help` shows the usual flags and examples, --help-all all flags. "
        "--config FILE.yaml reads flags. --language zh or en is the language of help and messages. "
        "--completion prints a script for bash."
    )
    call = f"roformer-tf COMMAND {_('[flags]')}"
    return "\n".join([_("usage: {call}", call=call), "", *lines, "", *wrapped(flags, 80)])
