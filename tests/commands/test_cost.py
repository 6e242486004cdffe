"""`roformer-tf cost`, and what docs/RECIPES.md shows of it."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from roformer_tf.cli import main

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "RECIPES.md").read_text(encoding="utf-8")
RECIPES = ["base", "char", "continue", "demo", "gpt", "paper", "small", "v2"]
WITHOUT_STEPS = {"demo"}  # `make demo` sets them


@pytest.fixture
def run(monkeypatch, capsys):
    """run(*words) → exit code, stdout, stderr. Runs in the clone's folder."""
    monkeypatch.chdir(ROOT)

    def call(*words):
        try:
            code = main(["cost", *map(str, words)])
        except SystemExit as stopped:
            code = stopped.code
        return code, *capsys.readouterr()

    return call


def documented_arguments():
    """The arguments of the command in the guide."""
    (command,) = re.findall(r"^roformer-tf cost (.*?)\n```", GUIDE, re.MULTILINE | re.DOTALL)
    return words_of(command)


def words_of(command):
    """The words of a command with continued lines."""
    return shlex.split(command.replace("\\\n", " "))


def test_the_table_of_the_guide_equals_the_output_of_its_command(run):
    code, printed, err = run(*documented_arguments())
    assert (code, err) == (0, "")
    (shown,) = re.findall(r"<!-- cost: begin -->\n(.*?)<!-- cost: end -->", GUIDE, re.DOTALL)
    assert shown == printed, "put what the command prints between the marks of docs/RECIPES.md"


@pytest.mark.parametrize("name", RECIPES)
def test_the_guide_describes_every_recipe(name):
    assert f"| `{name}` |" in GUIDE
    assert f"\n### {name}\n" in GUIDE
    assert (name in documented_arguments()) == (name not in WITHOUT_STEPS)


def test_commands_of_the_guide_name_existing_recipes_and_flags():
    from roformer_tf.flags import flag_types
    from roformer_tf.pretraining.settings import PretrainConfig

    blocks = re.findall(r"^```\n(roformer-tf pretrain .*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    used = {word for block in blocks for word in words_of(block)}
    assert {*RECIPES} - {*WITHOUT_STEPS} <= used
    for block in blocks:
        words = words_of(block)[2:]
        assert words[words.index("--config") + 1] in RECIPES
        flags = {word[2:] for word in words if word.startswith("--")}
        assert flags <= {*flag_types(PretrainConfig), "config"}


@pytest.mark.parametrize(
    ("text", "text_printed"),
    [
        ("learning_rat: 0.1\n", "Did you mean learning-rate?"),
        ("steps: [\n", "is not valid YAML"),
        ("steps: many\n", "--steps"),
        ("steps: 0\n", "steps is 0, but must be at least 1"),
        ("steps: 5\n", "has no architecture"),
        ("stages: [{length: 512}]\n", "has no number of steps"),
        ("vocab-size: 9\nlength: 2\n", "length is 2"),
        ("architecture: nowhere.json\n", "cannot read nowhere.json"),
        (None, "there is no file"),
    ],
)
def test_a_recipe_that_pretrain_would_refuse_is_refused(run, tmp_path, text, text_printed):
    recipe = tmp_path / "mine.yaml"
    if text is not None:
        recipe.write_text(text)
    code, out, err = run(recipe)
    assert (code, out) == (2, "")
    (message,) = err.splitlines()
    assert text_printed in message
    assert "mine.yaml" in message or "nowhere.json" in text_printed


@pytest.mark.parametrize(
    ("words", "text_printed"),
    [
        ([], "--recipe"),
        (["x.yaml", "--utilisation", "40"], "utilisation is 40"),
    ],
)
def test_bad_flags_are_one_message(run, words, text_printed):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert text_printed in " ".join(err.split())


def test_help_does_not_load_keras():
    code = (
        "import sys\n"
        "from roformer_tf.cli import main\n"
        "try:\n    main(['cost', '--help'])\n"
        "except SystemExit:\n    print({'keras', 'tensorflow', 'jax'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
