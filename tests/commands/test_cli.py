import io
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_type_hints

import pytest
from yaml import safe_dump

from roformer_tf import __version__, cli, flags
from roformer_tf.cli import COMMANDS, RESUMED, main
from roformer_tf.errors import DifferenceError, DivergedError, InputError


@dataclass(frozen=True)
class Inner:
    learning_rate: float = 0.1
    """How fast."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a command for tests."""

    output: str
    """Where to."""
    corpus: tuple[str, ...] = ()
    steps: int = 100
    save_every: int = 10
    strict: bool = False
    lower_case: bool | None = None
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self):
        if self.steps < 1:
            raise InputError(f"steps is {self.steps}, but must be at least 1.")


received: list[Settings] = []
raised: list[BaseException] = []


def command(settings: Settings) -> None:
    received.append(settings)
    if raised:
        raise raised.pop()


@pytest.fixture
def run(monkeypatch, capsys):
    """run(*words) → exit code, the settings that the command received, stderr."""
    monkeypatch.setitem(cli.COMMANDS, "try", cli.Command(f"{__name__}:command", "for tests"))

    def run(*words):
        received.clear()
        try:
            code = main(["try", *map(str, words)])
        except SystemExit as stopped:
            code = stopped.code
        return code, received[0] if received else None, capsys.readouterr().err

    return run


@pytest.fixture
def yaml(tmp_path):
    def write(text, name="settings.yaml"):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path / name

    return write


def words_of(text):
    return " ".join(text.split())


# Flags


def test_flags_are_the_fields_of_the_settings(run):
    code, settings, err = run(
        *("--output", "x", "--corpus", "a", "b", "--save-every", "5", "--strict"),
        *("--lower-case", "False", "--learning-rate", "3e-4"),
    )
    assert (code, err) == (0, "")
    assert settings == Settings(
        output="x",
        corpus=("a", "b"),
        save_every=5,
        strict=True,
        lower_case=False,
        inner=Inner(3e-4),
    )


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["--output", "x", "--stepz", "3"], "--steps"),
        (["--output", "x", "--save", "3"], "--save"),  # an abbreviation
        (["--output", "x", "--steps", "many"], "--steps"),
        (["--output", "x", "--steps"], "--steps"),
        (["--output", "x", "stray"], "stray"),
        ([], "--output"),
        (["--output", "x", "--steps", "0"], "--steps is 0, but must be at least 1."),
        (
            ["--output", "x", "--save-every", "1.5"],
            "is 1.5, but must be a whole number.",
        ),
        (
            ["--output", "x", "--learning-rate", "fast"],
            "is fast, but must be a number.",
        ),
        (
            ["--output", "x", "--lower-case", "maybe"],
            "is maybe, but must be yes or no.",
        ),
        (["--output", "x", "--corpus"], "--corpus is empty, but must be a text."),
    ],
)
def test_wrong_flags_end_in_a_message_and_exit_code_2(run, words, printed):
    code, settings, err = run(*words)
    assert (code, settings) == (2, None)
    assert printed in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["--outptu", "x"], "there is no flag --outptu. Did you mean --output?"),  # no --output
        (["--output", "x", "--learning_rat=3"], "--learning-rat. Did you mean --learning-rate?"),
        (["--output", "x", "--no-strickt"], "--no-strickt. Did you mean --no-strict?"),
        (["--output", "x", "--lr", "3"], "there is no flag --lr. Did you mean --learning-rate?"),
        (["--output", "x", "-steps", "3"], "there is no flag -steps. Did you mean --steps?"),
        (["-o", "x"], "there is no flag -o. Did you mean --output?"),
        (["--output", "x", "--colour"], "no flag --colour. `--help-all` lists the flags."),
        (
            ["--output", "x", "--stepz", "3", "--colour", "red"],
            "there is no flag --stepz, --colour. Did you mean --steps?",
        ),
    ],
)
def test_a_mistyped_flag_is_refused_with_a_suggestion(run, words, printed):
    code, settings, err = run(*words)
    assert (code, settings) == (2, None)
    assert printed in err
    assert len(err.splitlines()) == 1


def test_valid_spellings_of_flags_are_accepted(run, yaml):
    words = ["--output", "x", "--no-strict", "--save_every=3", "--config", yaml("steps: 3")]
    assert run(*words)[0] == 0


# A value without its flag


@pytest.fixture
def run_alone(run, monkeypatch):
    """Like `run`, but the flag name --output may be omitted."""
    monkeypatch.setattr(flags, "POSITIONAL", ("output",))
    return run


@pytest.mark.parametrize(
    "words",
    [
        ["--output", "x", "--steps", "3"],
        ["x", "--steps", "3"],
        ["--steps", "3", "x"],
        ["--steps=3", "x"],
        ["--strict", "x", "--no-strict", "--steps", "3"],
        ["--lower-case", "None", "x", "--steps", "3"],
    ],
)
def test_a_value_may_be_typed_without_its_flag_at_any_position(run_alone, words):
    code, settings, err = run_alone(*words)
    assert (code, err) == (0, "")
    assert settings == Settings(output="x", steps=3)


def test_words_after_a_flag_with_several_values_are_its_values(run_alone):
    for words in (["x", "--corpus", "a", "b"], ["--corpus", "a", "b", "--steps", "100", "x"]):
        assert run_alone(*words)[1] == Settings(output="x", corpus=("a", "b"))
    assert run_alone("--corpus", "a", "x")[0] == 2


def test_a_value_without_its_flag_overrides_a_yaml_file(run_alone, yaml):
    file = yaml("output: y\nsteps: 3\n")
    for words in (["x", "--config", file], ["--config", file, "x"]):
        assert run_alone(*words)[1] == Settings(output="x", steps=3)
    assert run_alone("--config", file)[1] == Settings(output="y", steps=3)


@pytest.mark.parametrize("words", [["x", "y"], ["--output", "x", "y"], ["--steps", "3", "x", "y"]])
def test_one_value_too_many_is_refused(run_alone, words):
    code, settings, err = run_alone(*words)
    assert (code, settings) == (2, None)
    assert "y" in words_of(err)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("checkpoints convert a b --to own", {"source": "a", "target": Path("b")}),
        ("checkpoints convert --to own a b", {"source": "a", "target": Path("b")}),
        ("checkpoints average a b --output c", {"sources": ("a", "b")}),
        ("generate --model m 甲 --seed 3 乙", {"model": "m", "text": ("甲", "乙")}),
        ("generate m 甲 乙", {"model": "m", "text": ("甲", "乙")}),
        ("fill-mask --model m -- --甲[MASK] -乙[MASK]", {"text": ("--甲[MASK]", "-乙[MASK]")}),
        ("runs a b", {"folder": (Path("a"), Path("b"))}),
    ],
)
def test_flag_names_of_main_arguments_may_be_omitted(words, expected):
    name, typed = cli._split(words.split())
    settings = flags.parsed(cli.load_settings(name), typed)
    assert {key: getattr(settings, key) for key in expected} == expected


# YAML


def test_a_yaml_file_sets_the_same_flags(run, yaml):
    file = yaml(
        "output: x\ncorpus: [a, b]\nsave-every: 5\nstrict: true\n"
        "lower-case: false\nlearning-rate: 3e-4\n"
    )
    code, settings, err = run("--config", file)
    assert (code, err) == (0, "")
    assert settings == Settings(
        output="x",
        corpus=("a", "b"),
        save_every=5,
        strict=True,
        lower_case=False,
        inner=Inner(3e-4),
    )


@pytest.mark.parametrize("before", [True, False])
def test_flags_override_the_yaml_file_at_any_position(run, yaml, before):
    config = ["--config", yaml("output: x\ncorpus: [a, b]\nsteps: 3\nstrict: true\n")]
    typed_flags = ["--steps", "4", "--corpus", "c", "--no-strict"]
    code, settings, _ = run(*(typed_flags + config if before else config + typed_flags))
    assert code == 0
    assert settings == Settings(output="x", corpus=("c",), steps=4)


def test_keys_may_have_underscores_and_values_may_be_left_empty(run, yaml):
    file = yaml("output: x\nsave_every: 5\nlower_case: null\n")
    code, settings, _ = run(f"--config={file}")
    assert (code, settings) == (0, Settings(output="x", save_every=5))
    code, settings, _ = run("--config", yaml("corpus: []\n"), "--output", "x")
    assert (code, settings) == (0, Settings(output="x"))


def test_infinity_is_read_as_yaml_writes_it(run, yaml):
    file = yaml(safe_dump({"output": "x", "learning_rate": math.inf}))
    assert run("--config", file)[1].inner.learning_rate == math.inf


@pytest.mark.parametrize("text", ["output: no\n", 'output: "no"\n', "output: !!str no\n"])
def test_no_is_a_text_or_a_boolean_as_the_flag_needs_it(run, yaml, text):
    code, settings, _ = run("--config", yaml(f"{text}strict: yes\nlower_case: off\n"))
    assert code == 0
    assert settings == Settings(output="no", strict=True, lower_case=False)
    assert run("--config", yaml("output: on\ncorpus: [a, off]\n"))[1].corpus == ("a", "off")


def test_an_empty_file_changes_nothing(run, yaml):
    assert run("--config", yaml("# nothing\n"), "--output", "x")[1] == Settings(output="x")


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("output: x\nsave-evry: 5\n", ["'save-evry'", "Did you mean save-every?", "Known keys:"]),
        ("inner:\n  learning-rate: 1\n", ["'inner'", "learning-rate"]),
        ("steps: 0\noutput: x\n", ["steps is 0"]),
        ("steps: [1\n", ["settings.yaml", "not valid YAML"]),
        (b"\xff\xfe\x00", ["settings.yaml", "not valid YAML"]),
        ("- steps\n", ["settings.yaml", "no keys with values"]),
        ("steps\n", ["settings.yaml", "no keys with values"]),
        ("steps: many\noutput: x\n", ["--steps"]),
        ("output: &x [*x]\n", ["not valid YAML", "recursive"]),
    ],
)
def test_a_wrong_yaml_file_ends_in_a_message_and_exit_code_2(run, yaml, text, printed):
    code, settings, err = run("--config", yaml(text))
    assert (code, settings) == (2, None)
    assert len(err.splitlines()) == 1
    for part in printed:
        assert part in err


def test_a_missing_yaml_file_is_reported(run, tmp_path):
    code, _, err = run("--config", tmp_path / "none.yaml")
    assert code == 2
    assert err == (
        f"roformer-tf try: there is no file {tmp_path / 'none.yaml'}. Check the path and the "
        "spelling.\n"
    )
    assert run("--output", "x", "--config")[0] == 2


# Exit codes


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("no such corpus."), 2, "roformer-tf try: no such corpus.\n"),
        (DivergedError("the loss is nan."), 1, "roformer-tf try: the loss is nan.\n"),
        (DifferenceError("layer_1 differs."), 1, "roformer-tf try: layer_1 differs.\n"),
        (KeyboardInterrupt(), 130, "\nstopped.\n"),
    ],
)
def test_errors_that_the_user_can_fix_are_one_message(run, error, code, message):
    raised.append(error)
    exit_code, _, err = run("--output", "x")
    assert (exit_code, err) == (code, message)


def test_ctrl_c_advises_to_resume_where_that_is_possible(run, monkeypatch):
    monkeypatch.setattr("roformer_tf.cli.RESUMED", ("try",))
    raised.append(KeyboardInterrupt())
    assert run("--output", "x")[2] == "\nstopped. Run the same command again to resume.\n"
    assert set(RESUMED) <= COMMANDS.keys()


def test_bugs_keep_their_traceback(run):
    raised.append(ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        run("--output", "x")


# The program itself


def test_without_a_command_the_commands_are_listed(capsys):
    assert main([]) == 2
    assert main(["--help"]) == 0
    usage = capsys.readouterr().out
    for name, entry in cli.COMMANDS.items():
        assert f"  {name} " in usage
        assert entry.help in usage


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("pretrian", "pretrain"),
        ("fillmask", "fill-mask"),
        ("evaluation --data x", "evaluate"),
        ("checkpoint", "checkpoints"),
        ("checkpoint list", "checkpoints list"),
        ("checkpoints lst", "checkpoints list"),
        ("convert a b --to own", "checkpoints convert"),
    ],
)
def test_an_unknown_command_is_refused_with_a_suggestion(typed, meant, capsys):
    assert main(typed.split()) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith("roformer-tf: there is no command ")
    assert message.endswith(f"Did you mean {meant}?")


def test_a_command_that_resembles_none_is_refused_with_a_hint_at_help(capsys):
    assert main(["xyzzy"]) == 2
    assert capsys.readouterr().err == (
        "roformer-tf: there is no command xyzzy. `roformer-tf --help` lists the commands.\n"
    )


def test_version_prints_the_package_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_help_loads_no_slow_packages():
    code = (
        "import sys\n"
        "from roformer_tf.cli import main\n"
        "main(['--help'])\n"
        "print({'keras', 'numpy', 'tyro', 'yaml'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_help_does_not_load_keras():
    code = (
        "import sys; from roformer_tf.cli import COMMANDS, load_settings\n"
        "for name, command in COMMANDS.items():\n"
        "    for flags in ([], *([f'--{flag}'] for flag in command.variants)):\n"
        "        load_settings(name, flags)\n"
        "        print(name, *flags, {'keras', 'tensorflow'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert "evaluate --corpus set()" in lines
    assert [line for line in lines if not line.endswith(" set()")] == []


@pytest.mark.parametrize("name", [name for name, item in cli.COMMANDS.items() if item.settings])
def test_settings_modules_match_the_parameters_of_the_functions(name):
    hints = get_type_hints(cli.load_function(name))
    assert cli.load_settings(name) in hints.values()


@pytest.mark.parametrize("name", cli.COMMANDS)
@pytest.mark.parametrize("backend", ["torch", "nonsense"])
def test_an_unsupported_backend_is_bad_input(name, backend, monkeypatch, capsys):
    monkeypatch.setenv("KERAS_BACKEND", backend)
    assert main(name.split()) == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert f"KERAS_BACKEND asks for the Keras backend '{backend}'" in printed
    assert "tensorflow or jax" in printed


def test_a_backend_in_the_keras_config_file_is_checked(run, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    settings = tmp_path / "keras.json"
    for content in ('{"backend": "tensorflow"}', "{}", "[]", "no JSON"):
        settings.write_text(content)
        assert run("--output", "x")[0] == 0
    settings.write_text(json.dumps({"backend": "torch"}))
    code, arguments, printed = run("--output", "x")
    assert (code, arguments) == (2, None)
    assert f"{settings} asks for the Keras backend 'torch'" in printed
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")  # takes precedence in Keras as well
    assert run("--output", "x")[0] == 0


def test_a_backend_that_is_not_installed_is_reported(run, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    code, _, printed = run("--output", "x")
    assert code == 2
    assert "pip install 'roformer-tf[jax]'" in printed


@pytest.mark.parametrize("backend", ["torch", "nonsense"])
def test_a_wrong_backend_gives_no_traceback(backend):
    """Run in a separate process, where Keras is not loaded yet."""
    done = subprocess.run(
        [sys.executable, "-m", "roformer_tf", "fill-mask", "--model", "x", "[MASK]"],
        env=os.environ | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_characters_missing_from_gbk_are_printed_as_escapes(monkeypatch):
    console = io.TextIOWrapper(io.BytesIO(), "gbk")
    monkeypatch.setattr(sys, "stdout", console)
    monkeypatch.setattr(cli, "run", lambda name, flags, _: print("很好 😀", flush=True))
    assert main(["runs"]) == 0
    assert console.buffer.getvalue().decode("gbk") == f"很好 \\U0001f600{os.linesep}"
