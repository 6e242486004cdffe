"""The log of a program without a terminal contains only our messages, as under nohup or in CI."""

import json
import os
import re
import subprocess
import sys

import keras
import pytest

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="is about messages of TensorFlow"
)
PROGRAM = """
import json, sys
import roformer_tf
flags = json.loads(sys.argv[1])
for answer in roformer_tf.load(flags["model"])(["今天[MASK]很好"]):
    assert answer
print("loaded", file=sys.stderr, flush=True)
from roformer_tf.cli import main
for command in flags["commands"]:
    print("--", command[0], file=sys.stderr, flush=True)
    assert main(command) == 0
"""
OURS = re.compile(
    r"loaded|-- [\w-]+"
    r"|prepar\w+: [\d.kM]+ of [\d.kM]+ B, elapsed [\d:]+.*"  # if it takes half a minute
    r"|fine-tuning: 1 of 1 steps, elapsed [\d:]+.*"
    r"|predict: 24 texts, elapsed [\d:]+"
    r"|\S+/train.tsv: text in column text\."
    r"|24 of 24 texts predicted; .*\."
    r"|OpenVINO computes in bfloat16 \(.*\)\."
)


@pytest.mark.slow
def test_a_log_file_contains_only_our_lines(shallow, write_corpus, tmp_path):
    corpus = write_corpus(tmp_path / "corpus.txt", 40)
    train = tmp_path / "train.tsv"
    rows = [f"今天很好{'坏好'[i % 2] * (1 + i // 2)}\t{i % 2}\n" for i in range(24)]
    train.write_text("text\tlabel\n" + "".join(rows), encoding="utf-8")
    run = tmp_path / "run"
    prepare = {"corpus": corpus, "vocab": shallow / "vocab.txt", "output": tmp_path / "rows"}
    finetune = {"checkpoint": shallow, "train": train, "output": run, "epochs": 1}
    predict = {"model": run / "model", "input": train, "output": tmp_path / "answers.tsv"}
    commands = [
        [name, *(str(word) for key, x in flags.items() for word in (f"--{key}", x))]
        for name, flags in (("prepare", prepare), ("finetune", finetune), ("predict", predict))
    ]
    commands.append(["fill-mask", "--model", str(shallow), "今天[MASK]很好"])
    arguments = json.dumps({"model": str(shallow), "commands": commands})
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, arguments],
            stdout=out,
            stderr=err,
            check=False,
            timeout=600,
            env={k: x for k, x in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"},
        )
    out, err = ((tmp_path / name).read_text(encoding="utf-8") for name in ("out", "err"))
    assert done.returncode == 0, err
    assert "\r" not in out + err
    assert [line for line in err.splitlines() if not OURS.fullmatch(line)] == []
    assert "INFO" not in out
    assert "WARNING" not in out
    assert "24 of 24 texts predicted" in err
    assert "今天［" in out
