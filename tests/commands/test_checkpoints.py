"""`roformer-tf checkpoints …`: output, exit codes, and no leftover files.

What the commands compute is tested in tests/conversion.
"""

import re
import shutil
from importlib.util import find_spec

import pytest
from safetensors.numpy import load_file

from roformer_tf import cli
from roformer_tf.cli import main
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

SUBCOMMANDS = [name for name in cli.COMMANDS if name.startswith("checkpoints ")]


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """run("inspect", …) → exit code, stdout, stderr. Runs in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROFORMER_TF_CACHE", str(tmp_path / "cache"))

    def call(*words):
        try:
            code = main(["checkpoints", *map(str, words)])
        except SystemExit as stopped:
            code = stopped.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


# --- Help and unknown commands ------------------------------------------------------------------


def test_the_group_alone_lists_its_commands(run):
    code, out, err = run()
    assert (code, err) == (2, "")
    assert run("--help") == run("-h") == (0, out, "")
    assert re.findall(r"^  (checkpoints \w+) ", out, re.MULTILINE) == SUBCOMMANDS
    assert "prepare" not in out


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["inspct", "x.zip"], "checkpoints inspect"),
        (["verfy"], "checkpoints verify"),
        (["convert-to", "x"], "checkpoints convert"),
    ],
)
def test_an_unknown_command_is_refused_with_a_suggestion(run, words, suggestion):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    message = f"there is no command checkpoints {words[0]}. Did you mean {suggestion}?"
    assert err == f"roformer-tf: {message}\n"


# --- Output of each command ---------------------------------------------------------------------


def test_list_names_the_releases(run):
    code, out, err = run("list")
    assert (code, err) == (0, "")
    assert "chinese_roformer-v2-char_L-12_H-768_A-12" in out


def test_inspect_prints_a_table(run, released):
    code, out, err = run("inspect", released("sim_char"))
    assert (code, err) == (0, "")
    assert out.startswith("family      RoFormer, char-level, with encoder, mlm, pooler\n")
    assert re.search(r"^pooler/dense/bias +\[32\] +float32( +-?[\d.e-]+){4}$", out, re.MULTILINE)


def test_convert_round_trips(run, released, tmp_path):
    printed = "is written. Largest round-trip difference: 0.\n"
    flags = ("--to", "own", "--attention-type", "causal")
    assert run("convert", released("gpt_char"), "own", *flags) == (0, f"own {printed}", "")
    assert run("convert", "own", "back.zip", "--to", "tf1") == (0, f"back.zip {printed}", "")
    code, out, _ = run("convert", "back.zip", "half", "--to", "huggingface", "--dtype", "float16")
    assert code == 0
    assert re.fullmatch(r"half is written. Largest .* difference: \d\.\de-04, in [\w/]+\.\n", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back.zip", "half", "own"]
    assert "attention   causal\n" in run("inspect", "half")[1]


def test_vocabulary_adds_words(run, released, tmp_path):
    (tmp_path / "words.txt").write_text("阿里巴巴\n我们\n", encoding="utf-8")
    code, out, err = run(
        *("vocabulary", released("word"), "larger.zip", "--to", "tf1"),
        *("--add", "words.txt"),
    )
    assert (code, err) == (0, "")
    assert "1 words are new.\n" in out
    assert "tokens: 2,003 before, 2,004 now.\n" in out
    assert RoFormerTokenizer.from_pretrained(tmp_path / "larger.zip").tokens[-1] == "阿里巴巴"


@pytest.mark.skipif(
    not (find_spec("bert4keras") and find_spec("tf_keras")),
    reason="bert4keras is not installed: `make test` installs it",
)
@pytest.mark.slow
def test_verify_prints_the_differences(released, run):
    causal = ("--attention-type", "causal")
    code, out, err = run("verify", released("gpt_char"), "--against", "bert4keras", *causal)
    assert (code, err) == (0, "")
    assert "attention causal" in out
    row = r"{} +\d\.\de-\d\d +[12]e-05\n"
    table = "".join(map(row.format, ("embeddings", "layer_0", "layer_1", "logits")))
    assert re.search(table + r"All differences are within their bounds\.\n$", out)


def test_average_writes_a_model(run, released):
    checkpoint = released("sim_char")
    code, out, err = run("average", checkpoint, checkpoint, "--output", "mean")
    assert (code, err) == (0, "")
    assert out == "mean is written: the mean of 2 models.\n"
    assert run("convert", checkpoint, "plain", "--to", "own")[0] == 0
    mean, plain = load_file("mean/model.safetensors"), load_file("plain/model.safetensors")
    assert mean.keys() == plain.keys()
    assert all((mean[name] == plain[name]).all() for name in mean)


# --- Bad input ----------------------------------------------------------------------------------


BAD = {  # arguments: parts of the message
    "inspect nowhere": ["nowhere"],
    "inspect truncated.zip": ["truncated.zip", "ownload it again"],
    "convert nowhere new --to own": ["nowhere"],
    "convert good.zip good.zip --to tf1": ["good.zip exists, and nothing is overwritten"],
    "convert truncated.zip new --to own": ["truncated.zip", "ownload it again"],
    "convert good.zip new --to keras": ["--to", "huggingface"],
    "convert good.zip new": ["--to"],
    "convert good.zip new --to own --dtype float8": ["--dtype", "bfloat16"],
    "vocabulary good.zip new --to own": ["give either --simplify or --add FILE"],
    "vocabulary good.zip new --to own --simplify --add good.zip": ["give either"],
    "vocabulary good.zip new --to own --add nowhere.txt": ["cannot read nowhere.txt"],
    "average good.zip --output new": ["a mean needs two or more models"],
    "average good.zip good.zip": ["--output"],
    "average good.zip nowhere --output new": ["nowhere"],
    "average good.zip truncated.zip --output new": ["truncated.zip", "ownload it again"],
    "average good.zip good.zip --output good.zip": ["good.zip exists, and nothing is overwritten"],
    "average good.zip other.zip --output new": ["different architectures: intermediate_size is 64"],
    "verify good.zip": ["--against"],
    "verify good.zip --against keras": ["--against", "bert4keras"],
    "download no_such_model": ["no_such_model"],
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_message_and_exit_code_2(command, run, released, tmp_path):
    shutil.copy(released("char"), tmp_path / "good.zip")
    shutil.copy(released("word"), tmp_path / "other.zip")
    (tmp_path / "truncated.zip").write_bytes(released("char").read_bytes()[:100_000])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    code, out, err = run(*command.split())
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    message = " ".join(re.sub(r"[│╭╮╰╯─]", " ", err).split())
    for part in BAD[command]:
        assert part in message
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
