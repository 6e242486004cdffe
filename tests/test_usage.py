"""Help pages: their first flags, their width and their examples."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from roformer_tf import cli
from roformer_tf.flags import flag_types, flags_of, parsed
from roformer_tf.translation import LANGUAGES
from roformer_tf.usage import columns, docstrings, wrapped
from tests.support.help_texts import PAGES

FLAG = re.compile(r"^  \[?--([a-z0-9-]+)", re.MULTILINE)


@pytest.fixture
def page(monkeypatch, capsys):
    """page(command, *flags) → the output on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def page(name, *flags):
        with pytest.raises(SystemExit) as stopped:
            cli.main([*name.split(), *flags])
        assert stopped.value.code == 0
        return capsys.readouterr().out

    return page


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_list_of_commands_fits_on_a_screen(language, capsys):
    assert cli.main(["--help", "--language", language]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 50
    assert max(map(width, lines)) <= 80


def width(line):
    return len(line.encode("gbk"))  # a Chinese character: two columns, two bytes


@pytest.mark.parametrize(("language", "usage"), [("en", "usage: "), ("zh", "用法：")])
@pytest.mark.parametrize(("name", "typed"), PAGES)
def test_a_page_fits_on_a_screen_and_begins_with_what_is_required(
    name, typed, language, usage, page
):
    text = page(name, *typed, "--help", "--language", language)
    settings = cli.load_settings(name, typed)
    assert text.startswith(f"{usage}roformer-tf {name} ")
    assert max(map(width, text.splitlines())) <= 80
    assert len(text.splitlines()) <= 50
    shown = [flag for flag in FLAG.findall(text) if flag not in ("config", "help-all")]
    assert len(shown) <= 12
    required = {flag.name for flag in flags_of(settings) if flag.required}
    assert required <= {*shown}
    assert {*FLAG.findall(text)} >= {"config"}
    assert ("help-all" in FLAG.findall(text)) == (len(shown) < len(flag_types(settings)))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("name", "typed"), PAGES)
def test_help_all_has_every_flag_once_with_a_description(name, typed, language, page):
    text = page(name, *typed, "--help-all", "--language", language)
    settings = cli.load_settings(name, typed)
    shown = FLAG.findall(text)
    assert sorted(shown) == sorted({*flag_types(settings), "config", "language"})
    assert max(map(width, text.splitlines())) <= 80
    assert "None" not in text
    for flag in flags_of(settings):
        assert docstrings(flag.settings)[flag.field.name].endswith((".", "?"))


@pytest.mark.parametrize(("name", "typed"), PAGES)
def test_a_page_ends_with_two_valid_examples(name, typed, page):
    examples = page(name, *typed, "--help").partition("\nexamples:\n")[2].replace("\\\n", "")
    lines = examples.strip().splitlines()
    assert len(lines) == 2
    for line in lines:
        program, *words = shlex.split(line)
        command, flags = cli._split(words)
        assert (program, command.split()[0]) == ("roformer-tf", name.split()[0])
        parsed(cli.load_settings(command, flags), flags)


def test_flags_are_in_groups_and_show_their_values_and_defaults(page):
    text = page("finetune", "--help-all")
    titles = re.findall(r"^([a-z]+): ", text, re.MULTILINE)
    assert titles == ["usage", "columns", "optimizer", "loss", "vectors"]
    words = " ".join(text.split())
    for part in (
        "--train FILE ",
        "--output DIR ",
        "--checkpoint MODEL ",
        "--epochs N|auto ",
        "--dimensions N ... ",
        "--batch-size N Examples per batch. Default: 32.",
        "One of: linear, constant. Default: linear.",
        "--crf For tagging",
        "--baseline, --no-baseline ",
        "--ema X ",
    ):
        assert part in words
    assert "Corpus" not in text
    assert "corpus: The files of a corpus" in page("pretrain", "--help-all")
    assert "  [--source] MODEL" in page("checkpoints convert", "--help")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_only_commands_with_recipes_offer_one(name, page):
    text = " ".join(page(name, "--help").split())
    assert ("or the name of a recipe." in text) == (name in ("pretrain", "finetune"))


def test_flags_of_several_values_show_each(page):
    text = page("pretrain", "--help-all")
    assert re.search(r"^  --mask-rate X \[X\] ", text, re.MULTILINE)
    assert re.search(r"^  --corpus-weights NAME X \.\.\.$", text, re.MULTILINE)


def test_a_narrow_terminal_gets_narrow_lines_and_a_wide_one_readable_ones(page, monkeypatch):
    for terminal, max_width in ((60, 60), (300, 100)):
        monkeypatch.setenv("COLUMNS", str(terminal))
        text = page("finetune", "--help").partition("\nexamples:")[0]
        assert max(map(len, text.splitlines())) <= max_width


def test_chinese_lines_are_broken_between_characters_but_not_at_punctuation():
    text = (
        "序列的最大 token 数。auto：几乎没有训练文本超过它（见“长文本”），--max-length 256 也可以。"
    )
    for width in range(24, 60):
        lines = wrapped(text, width, "  --flag  ", 10)
        assert max(map(columns, lines)) <= width
        assert max(map(columns, lines[:-1])) >= width - 16  # "--max-length 256" is the longest unit
        assert "".join(line[10:] for line in lines).replace(" ", "") == text.replace(" ", "")
        assert not [line for line in lines if line.strip()[0] in "，。：）”" or line[-1] in "（“"]


LOCALES = {
    ("zh_CN.UTF-8", "--help"): "用法：roformer-tf COMMAND [参数]",
    ("zh_CN.UTF-8", "finetune --help"): "用法：roformer-tf finetune --train FILE",
    ("zh_CN.UTF-8", "finetune --help --language en"): "usage: roformer-tf finetune --train FILE",
    ("C", "--language zh checkpoints --help"): "用法：roformer-tf COMMAND [参数]",
    ("C", "--help"): "usage: roformer-tf COMMAND [flags]",
}


@pytest.mark.parametrize(("locale", "typed"), LOCALES)
def test_help_is_in_the_requested_language_or_that_of_the_locale(locale, typed):
    done = subprocess.run(
        [sys.executable, "-m", "roformer_tf", *typed.split()],
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd()), "LC_ALL": locale},
    )
    assert done.stdout.startswith(LOCALES[locale, typed])
    assert done.stderr == ""


COMPLETE = """
roformer-tf() { "$PYTHON" -m roformer_tf "$@"; }
source <(roformer-tf --completion)
for words in "" fin "checkpoints con" "runs --f" "runs --folder " "evaluate --sc" \\
    "evaluate --co"; do
  IFS=" " read -ra COMP_WORDS <<< "roformer-tf $words"
  [[ $words == "" || $words == *" " ]] && COMP_WORDS+=("")
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  _roformer_tf
  echo "${COMPREPLY[*]}"
done
"""


def test_bash_completes_commands_and_flags():
    done = subprocess.run(
        ["bash", "-c", COMPLETE],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHON": sys.executable, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd())},
    )
    assert done.stderr == ""
    commands, *rest = done.stdout.splitlines()
    assert {*commands.split()} == {name.split()[0] for name in cli.COMMANDS}
    assert rest == ["finetune", "convert", "--folder", "", "--scalings", "--config --corpus"]
