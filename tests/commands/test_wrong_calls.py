"""Wrong calls, each with the one line that is printed: in flag names, and what to do."""

import shutil

import pytest

from roformer_tf.cli import main

FINETUNE = "finetune --checkpoint released.zip --train reviews.csv --output run"
CALLS = {
    "finetun --train reviews.csv": (
        "roformer-tf: there is no command finetun. Did you mean finetune?"
    ),
    "finetune --checkpoint released.zip --train reviews.csv": (
        "roformer-tf finetune: --output must be given. `--help` has examples."
    ),
    f"{FINETUNE} --learning-rat 1e-4": (
        "roformer-tf finetune: there is no flag --learning-rat. Did you mean --learning-rate?"
    ),
    f"{FINETUNE} --lr 1e-4": (
        "roformer-tf finetune: there is no flag --lr. Did you mean --learning-rate?"
    ),
    f"{FINETUNE} --epoch 3": (
        "roformer-tf finetune: there is no flag --epoch. Did you mean --epochs?"
    ),
    f"{FINETUNE} --bs 8": "roformer-tf finetune: there is no flag --bs. Did you mean --batch-size?",
    f"{FINETUNE} --epochs many": (
        "roformer-tf finetune: --epochs is many, but must be a whole number or auto."
    ),
    f"{FINETUNE} --task clasification": "but must be classification, multilabel, ",
    f"{FINETUNE} --batch-size 0": (
        "roformer-tf finetune: --batch-size is 0, but must be at least 1."
    ),
    f"{FINETUNE} --seed": "roformer-tf finetune: --seed is empty, but must be a whole number.",
    f"{FINETUNE} 3": "roformer-tf finetune: these words belong to no flag: 3.",
    f"{FINETUNE} --config no-such-recipe": "there is no recipe 'no-such-recipe'. Give a path",
    f"{FINETUNE} --config keys.yaml": "keys.yaml has an unknown key 'epoch'. Did you mean epochs?",
    f"{FINETUNE} --label-column stars": "no column 'stars'",
    FINETUNE.replace("reviews.csv", "nowhere.csv"): "nowhere.csv",
    "predict nowhere --input reviews.csv --output answers.csv": "nowhere",
    "prepare --corpus reviews.csv --output rows": (
        "roformer-tf prepare: give either a vocabulary (--vocab) or the size of one to build "
        "(--vocab-size)."
    ),
    "pretrain --corpus reviews.csv --output run --precision half": (
        "roformer-tf pretrain: --precision is half, but must be auto, float32 or mixed_bfloat16."
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_call_is_refused_with_one_line(call, released, tmp_path, monkeypatch, capsys):
    shutil.copy(released("char"), tmp_path / "released.zip")
    rows = "".join(f"房间{n}很{'好' if n % 2 else '差'},{n % 2}\n" for n in range(20))
    (tmp_path / "reviews.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    (tmp_path / "keys.yaml").write_text("epoch: 3\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(call.split()) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert line.startswith("roformer-tf")
    assert CALLS[call] in line
    assert line == CALLS[call] or not CALLS[call].startswith("roformer-tf")
    assert out == ""
    assert {path.name for path in tmp_path.iterdir()} == {
        "released.zip",
        "reviews.csv",
        "keys.yaml",
    }
