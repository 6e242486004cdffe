"""Commands and flags in the README, documents, help, messages, reports and cards are valid."""

import ast
import contextlib
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from roformer_tf import flags as flag_parsing
from roformer_tf.cli import COMMANDS, _split, load_settings, main
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.finetuning.report.analysis import analyse
from roformer_tf.finetuning.report.pages import model_card
from roformer_tf.tasks.table import TASKS
from tests.support.report_run import make_run

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    *("README.md", "README_zh.md", "CONTRIBUTING.md", "checkpoints/README.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
]
DOCUMENTS.remove("docs/LOG.md")  # an old log, which keeps the flags of its time
SCRIPTS = {"pretrain/run_mlm.py": "pretrain", "finetune/run_classifier.py": "finetune"}
COMMAND = re.compile(r"(?:srun [^`\n]*?)?(?:roformer-tf|python[0-9.]* [a-z]+/run_[a-z]+\.py) .*")
FOREIGN_FLAGS = {
    *("numprocesses", "dist", "only-binary", "extra-index-url"),  # pytest's and pip's
    *("no-deps", "logdir"),  # pip's and TensorBoard's
    *("nodes", "ntasks-per-node", "gpus-per-node"),  # Slurm's
    *("scheduler-file", "nworkers", "nthreads"),  # Dask's
    *("form", "first-lines"),  # of `python -m pretrain.poems`
    *("sets", "quick", "peer", "examples"),  # of `python -m benchmarks.suite`
    *("clones", "corpora", "test-sets", "compare-steps"),  # of `python -m pretrain.mini`
    "opt_out",  # of OpenVINO's `opt_in_out`
}
FILLED = "PLACEHOLDER"  # in place of the values of an f-string


@cache
def flags_of(command, *typed):
    types = flag_parsing.flag_types(load_settings(command, typed))
    negated = {f"no-{name}" for name, kind in types.items() if kind is bool}
    return {*types, *negated, "config", "language", "help", "help-all"}


@cache
def all_flags():
    instead = [(name, f"--{flag}") for name, c in COMMANDS.items() for flag in c.variants]
    return {"version", "completion"}.union(
        *(flags_of(*words) for words in [*((name,) for name in COMMANDS), *instead])
    )


def flags_in(text):
    return re.findall(r"(?<![\w/.-])--([a-z](?:[\w.-]*\w)?)", text)


def words_of(line):
    """The arguments of a command. None if it names no command, as in `roformer-tf COMMAND`."""
    line = line.replace("\\\n", " ").strip()
    for script, command in SCRIPTS.items():
        line = re.sub(rf".*{script}", f"roformer-tf {command}", line)
    words = shlex.split(line[line.index("roformer-tf") :], comments=True)[1:]
    name, rest = _split(words)
    if name not in COMMANDS and words and (words[0].isupper() or words[0][0] in "-…"):
        return None
    return name, rest


def check(line):
    """Parse a command as the command line does, and raise its errors."""
    if (words := words_of(line)) is None:
        return
    name, typed = words
    assert name in COMMANDS, f"no command {name!r}: {line}"
    unfinished = "…" in line or "..." in line or not any(word in line for word in (" --", "/"))
    if unfinished or {"--help", "--help-all", "-h"} & set(typed) or typed == ["--train"]:
        instead = [f"--{flag}" for flag in COMMANDS[name].variants]
        assert set(flags_in(line)) <= flags_of(name, *typed) | flags_of(name, *instead)
        return
    flag_parsing.parsed(load_settings(name, typed), typed)


def broken(lines):
    """The commands that the command line refuses, with their errors."""
    wrong = []
    for line in lines:
        try:
            check(line)
        except (InputError, SystemExit, AssertionError) as error:
            wrong.append((line, str(error)))
    return wrong


def commands_in(text):
    """The commands in fenced blocks and in `inline code`."""
    text = text.replace("\\\n", " ")
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```[a-z]*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in fenced for line in block.splitlines()]
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", rest)]
    return [line for line in lines if COMMAND.fullmatch(line.strip())]


@cache
def package_texts():
    """(place, text) of every string and template, with FILLED for the values of f-strings."""
    texts = [
        (str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "roformer_tf").rglob("*.md.jinja"))
    ]
    for path in sorted((ROOT / "roformer_tf").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inner = set()
        for node in ast.walk(tree):
            text = None
            if isinstance(node, ast.JoinedStr):
                inner |= {id(part) for part in node.values}
                parts = [x.value if isinstance(x, ast.Constant) else FILLED for x in node.values]
                text = "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = None if id(node) in inner else node.value
            if text:
                texts.append((f"{path.relative_to(ROOT)}:{node.lineno}", text))
    return texts


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_in_documents_are_valid(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert not broken(commands_in((ROOT / name).read_text(encoding="utf-8")))


def test_commands_in_documents_are_detected():
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS]
    assert sum(len(commands_in(text)) for text in texts) > 100


def test_commands_in_help_and_messages_are_valid():
    lines = [line for _, text in package_texts() for line in commands_in(text)]
    assert len(lines) > 10
    assert not broken(line for line in lines)


@pytest.mark.parametrize("name", TASKS)
def test_commands_in_model_cards_are_valid(name):
    run = make_run(name)
    lines = commands_in(model_card(analyse(run), run.task, "en", RoFormerConfig(9, 8, 1, 1, 8)))
    assert len(lines) == 3
    assert not broken(lines)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_flags_named_in_documents_exist(name):
    named = set(flags_in((ROOT / name).read_text(encoding="utf-8")))
    assert named <= all_flags() | FOREIGN_FLAGS


def test_flags_named_in_help_and_messages_exist():
    wrong = [
        (place, flag)
        for place, text in package_texts()
        for flag in flags_in(text)
        if flag not in all_flags() | FOREIGN_FLAGS and FILLED not in flag
    ]
    assert not wrong


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_flags_of_its_command_as_they_are_typed(name, capsys):
    with contextlib.suppress(SystemExit):
        main([*name.split(), "--help-all"])
    text = " ".join(capsys.readouterr().out.split())
    command_flags = flags_of(name).union(
        *(flags_of(name, f"--{x}") for x in COMMANDS[name].variants)
    )
    for flag in flags_in(text):
        near = [c for c in COMMANDS if re.search(rf"{c}[^.│]*--{re.escape(flag)}", text)]
        assert flag in command_flags or any(flag in flags_of(c) for c in near), flag
    snake = set(re.findall(r"(?<![\w.])[a-z]+(?:_[a-z0-9]+)+\b", text))
    assert not {word for word in snake if word.replace("_", "-") in command_flags}
