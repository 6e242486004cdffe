"""Bad input ends in one clear message and exit code 2, and nothing is written."""

import os
import re
import shutil

import pytest

from roformer_tf.cli import main


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, released, write_corpus):
    """A folder with all files that the commands below name. No command may change it."""
    folder = tmp_path_factory.mktemp("inputs")
    write_corpus(folder / "corpus.txt", 20)
    (folder / "empty.txt").write_text("\n\n")
    (folder / "nothing").mkdir()
    shutil.copy(released("char"), folder / "released.zip")
    shutil.copy(released("char"), folder / "truncated.zip")
    os.truncate(folder / "truncated.zip", 100_000)
    characters = [chr(0x4E00 + i) for i in range(50)]
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "other.txt").write_text("\n".join(specials + characters), encoding="utf-8")
    (folder / "typo.yaml").write_text("learning_rat: 0.1\n")
    (folder / "broken.yaml").write_text("steps: [\n")
    (folder / "layers.json").write_text('{"num_hidden_layers": 2}')
    return folder


CORPUS = "--corpus corpus.txt --vocab-size 200 --tokenization char"
FILL = "fill-mask --model"
IN_PROCESS = {  # command: parts of its message; only one, because each process starts slowly
    "run_mlm --corpus corpus.txt --init-from truncated.zip": ["truncated.zip", "Download it again"],
}
CALLS = {
    f"{FILL} nothing 今天[MASK]": ["nothing contains no checkpoint", "bert_config.json"],
    "pretrain --corpus nowhere/*.jsonl --vocab-size 200": ["nowhere/*.jsonl"],
    f"pretrain {CORPUS} --config typo.yaml": ["learning_rat", "Did you mean learning-rate?"],
    "pretrain --corpus empty.txt --vocab-size 200": ["empty.txt", "0 documents"],
    "pretrain --corpus corpus.txt --init-from nothing": ["nothing"],
    "pretrain --corpus corpus.txt --init-from released.zip --vocab other.txt": [
        "does not fit",
        "released.zip",
    ],
    f"pretrain {CORPUS} --length 1": ["length is 1", "at least 3, for [CLS], a token"],
    f"{FILL} nowhere 今天[MASK]": ["nowhere does not exist"],
    f"{FILL} truncated.zip 今天[MASK]": ["truncated.zip", "Download it again"],
    f"{FILL} released.zip 今天": ["[MASK]", "今天"],
    f"{FILL} released.zip": ["--text"],
    f"{FILL} released.zip --top 0 今天[MASK]": ["top is 0"],
    "prepare --corpus nowhere.txt --vocab-size 200": ["nowhere.txt"],
    "prepare --corpus empty.txt --vocab-size 200": ["empty.txt", "0 documents"],
    "prepare --corpus nothing --vocab-size 200": ["is a folder"],
    "prepare --corpus corpus.txt": ["vocab"],
    "prepare --corpus corpus.txt --vocab-size 20": ["at least"],
    "prepare --corpus corpus.txt --vocab nowhere.txt": ["nowhere.txt"],
    "prepare --corpus corpus.txt --vocab truncated.zip": ["truncated.zip"],
    "prepare --corpus corpus.txt --vocab-size 200 --length 2": ["length is 2"],
    "prepare --corpus corpus.txt --vocab-size 200 --held-out 1": ["--held-out is 1"],
    "finetune --checkpoint c --train t --output o --micro-batches 3": ["3 micro-batches"],
    "pretrain --vocab-size 200": ["--corpus", "--rows"],
    f"pretrain {CORPUS} --rows nothing": ["--corpus", "--rows"],
    "pretrain --rows nothing": ["holds no prepared rows", "roformer-tf prepare"],
    "pretrain --rows nothing --init-from released.zip": ["nothing"],
    "pretrain --rows nothing --vocab x.txt": ["have their own vocabulary"],
    "pretrain --corpus corpus.txt": ["vocab"],
    "pretrain --corpus corpus.txt --init-from nowhere": ["nowhere"],
    "pretrain --corpus corpus.txt --init-from nowhere --vocab other.txt": ["nowhere"],
    "pretrain --corpus corpus.txt --init-from nothing --vocab other.txt": ["nothing"],
    f"pretrain {CORPUS} --init-from released.zip": ["Remove --vocab-size"],
    f"pretrain {CORPUS} --architecture nowhere.json": ["nowhere.json"],
    f"pretrain {CORPUS} --architecture corpus.txt": ["corpus.txt", "JSON"],
    f"pretrain {CORPUS} --architecture layers.json": ["layers.json lacks 'hidden_size', "],
    f"pretrain {CORPUS} --dropout 1": ["dropout"],
    f"pretrain {CORPUS} --steps 0": ["steps is 0"],
    f"pretrain {CORPUS} --steps many": ["--steps"],
    f"pretrain {CORPUS} --stepz 3": ["--stepz", "--steps"],
    f"pretrain {CORPUS} --save 3": ["--save", "--save-every"],
    f"pretrain {CORPUS} --learning-rate 0": ["--learning-rate is 0"],
    f"pretrain {CORPUS} --learning-rate inf": ["--learning-rate is inf"],
    f"pretrain {CORPUS} --learning-rate nan": ["--learning-rate is nan"],
    f"pretrain {CORPUS} --precision float8": ["--precision"],
    f"pretrain {CORPUS} --config broken.yaml": ["broken.yaml", "not valid YAML"],
    f"pretrain {CORPUS} --config nowhere.yaml": ["nowhere.yaml"],
}


def words_of(command, inputs, output):
    """The arguments of a command, with paths of the inputs, and with --output if it exists."""
    names = {path.name for path in inputs.iterdir()} | {"nowhere"}
    words = [
        str(inputs / word) if word in names or word.startswith("nowhere") else word
        for word in command.split()
    ]
    return words if words[0] == "fill-mask" else [*words, "--output", str(output)]


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def check(code, out, err, parts):
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    (message,) = err.splitlines()
    assert re.match(r"roformer-tf [a-z-]+: ", message)
    for part in parts:
        assert part in message


@pytest.mark.parametrize("command", IN_PROCESS | CALLS)
def test_bad_input_is_refused_with_one_message(command, inputs, tmp_path, capsys):
    before = snapshot(inputs)
    words = words_of(command.replace("run_mlm", "pretrain"), inputs, tmp_path / "run")
    try:
        code = main(words)
    except SystemExit as stopped:
        code = stopped.code
    check(code, *capsys.readouterr(), (IN_PROCESS | CALLS)[command])
    assert list(tmp_path.iterdir()) == []
    assert snapshot(inputs) == before


@pytest.mark.slow
def test_bad_input_is_refused_in_a_new_process(inputs, tmp_path, start_command):
    """Start all processes at once, because each loads TensorFlow first."""
    processes = {}
    for number, command in enumerate(IN_PROCESS):  # only one command may use a folder
        words = words_of(command, inputs, tmp_path / f"run-{number}")
        start = ["pretrain/run_mlm.py", *words[1:]]
        processes[command] = start_command(
            *(start if words[0] == "run_mlm" else ["roformer-tf", *words])
        )
    for command, process in processes.items():
        check_process(process, IN_PROCESS[command])
    assert list(tmp_path.iterdir()) == []


def check_process(process, parts):
    out, err = process.communicate(timeout=300)
    check(process.returncode, out, err, parts)
