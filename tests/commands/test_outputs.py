"""An output that cannot be written is one message and exit code 2, before any work is done.

What each command reads is not there: it would say so if it looked for it first.
"""

import sys

import pytest

from roformer_tf.cli import main

COMMANDS = {
    "prepare": "prepare --corpus empty.txt --vocab-size 200 --output",
    "pretrain": "pretrain --corpus empty.txt --init-from nowhere --output",
    "finetune": "finetune --checkpoint nowhere --train nowhere.tsv --output",
    "predict": "predict --model nowhere --input nowhere.txt --output",
    "evaluate --corpus": "evaluate --model nowhere --corpus empty.txt --output",
    "export": "export --model nowhere --to savedmodel --output",
    "convert": "checkpoints convert nowhere --to own",
    "average": "checkpoints average nowhere nowhere --output",
    "runs --plot": "runs nowhere --plot",
    "runs --json": "runs nowhere --json",
    "cost": "cost nowhere.yaml --json",
}
OUTPUTS = {
    "a file above": "corpus.txt/deep/x.png",
    "too long": f"deep/{'长' * 100}/x.png",
    "too long itself": f"deep/{'x' * 300}.png",
    "no permission": "/sys/x.png",  # not even for root
}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_it_is_said_before_any_work(command, output, tmp_path, monkeypatch, capsys):
    if output == "no permission" and sys.platform != "linux":
        pytest.skip("Linux alone has /sys")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("今天\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("\n")
    name = OUTPUTS[output]
    assert main([*COMMANDS[command].split(), name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"cannot write {name}: " in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "empty.txt"]
