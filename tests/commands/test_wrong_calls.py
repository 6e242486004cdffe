"""Wrong calls, each with its one-line message, which names flags and a remedy."""

import shutil

import pytest

from roformer_tf.cli import main

FINETUNE = "finetune --checkpoint released.zip --train reviews.csv --output run"
PRETRAIN = "pretrain --corpus reviews.csv --vocab-size 99 --output run"
SEARCH = "search --model released.zip --index index --queries 房间"
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
    f"{PRETRAIN} --steps 9 --stages steps=5": (
        "roformer-tf pretrain: --stages have their own numbers of steps. Remove --steps."
    ),
    **{
        f"{command} {flag}": (
            f"roformer-tf {command.split()[0]}: {flag.split()[0]} needs {needed}. Give both or "
            "neither."
        )
        for command, flag, needed in (
            (PRETRAIN, "--one-schedule", "--stages"),
            (PRETRAIN, "--decay-share 0.2", "--schedule wsd"),
            (PRETRAIN, "--muon-learning-rate-scale 2", "--optimizer muon"),
            (PRETRAIN, "--project mine", "--tracker"),
            (PRETRAIN, "--similarity 0.5", "--duplicates near"),
            (FINETUNE, "--crf-learning-rate 0.1", "--crf"),
            (FINETUNE, "--compare-without-teacher", "--teacher"),
            ("predict run/model", "--template 关于{}", "--labels"),
            (SEARCH, "--rerank-top 9", "--rerank"),
            (SEARCH, "--passage-length 9", "--documents"),
            (SEARCH, "--id-column id", "--documents"),
        )
    },
}


IN_CHINESE = {
    "finetun --train reviews.csv": "roformer-tf: 没有命令 finetun。是否想用 finetune？",
    "finetune --train reviews.csv": (
        "roformer-tf finetune: 缺少必需的参数 --output。示例见 `--help`。"
    ),
    f"{FINETUNE} --lr 1e-4": "roformer-tf finetune: 没有参数 --lr。是否想用 --learning-rate？",
    f"{FINETUNE} --epochs many": (
        "roformer-tf finetune: --epochs 的值无效（many），应为：整数 或 auto。"
    ),
    f"{FINETUNE} --task clasification": "。是否想用 classification？",
    f"{FINETUNE} --batch-size 0": "roformer-tf finetune: --batch-size 的值是 0，必须不小于 1。",
    f"{FINETUNE} --epochs 0": "roformer-tf finetune: --epochs 的值是 0，必须不小于 1。",
    f"{FINETUNE} --max-length 1": "必须不小于 3 且不大于 100000，例如 256。",
    f"{FINETUNE} 3": "roformer-tf finetune: 不属于任何参数：3。",
    f"{FINETUNE} --config no-such-recipe": "没有名为 'no-such-recipe' 的配方。",
    f"{FINETUNE} --config nowhere.yaml": "没有文件 nowhere.yaml。请检查路径和拼写。",
    f"{FINETUNE} --config keys.yaml": "keys.yaml 里有未知的键 'epoch'。是否想用 epochs？",
    f"{FINETUNE} --label-column stars": "reviews.csv 里没有 'stars' 这一列：它的列有 text, label。",
    FINETUNE.replace("reviews.csv", "nowhere.csv"): "没有文件 nowhere.csv。请检查路径和拼写。",
    FINETUNE.replace(
        "reviews.csv", "unlabelled.csv"
    ): "unlabelled.csv 只有一列，而文本和标签要分成两列，",
    FINETUNE.replace("reviews.csv", "empty.csv"): "empty.csv 是空文件。请给出含有样本的文件。",
    "predict nowhere --input reviews.csv --output answers.csv": "nowhere 不存在。",
    "predict released.zip --input reviews.csv": "里没有微调过的模型：缺少 task.json。",
}
"""The same and further calls in a Chinese locale."""


@pytest.mark.parametrize("call", IN_CHINESE)
def test_a_chinese_locale_gets_chinese_lines(call, released, tmp_path, monkeypatch, capsys):
    shutil.copy(released("char"), tmp_path / "released.zip")
    rows = [f"房间{n}很{'好' if n % 2 else '差'}" for n in range(20)]
    labelled = "".join(f"{text},{n % 2}\n" for n, text in enumerate(rows))
    (tmp_path / "reviews.csv").write_text(f"text,label\n{labelled}", encoding="utf-8")
    (tmp_path / "unlabelled.csv").write_text("\n".join(["text", *rows]), encoding="utf-8")
    (tmp_path / "empty.csv").touch()
    (tmp_path / "keys.yaml").write_text("epoch: 3\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert main(call.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert IN_CHINESE[call] in line


def test_a_single_label_is_refused_in_the_requested_language(
    released, tmp_path, monkeypatch, capsys
):
    shutil.copy(released("char"), tmp_path / "released.zip")
    rows = "".join(f"房间{n}很好,好评\n" for n in range(40))
    (tmp_path / "reviews.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for language, problem in (
        ("en", "the training examples have only '好评' as a label"),
        ("zh", "训练样本的标签种类不足（只有 '好评'）"),
    ):
        assert main([*FINETUNE.split(), "--language", language]) == 2
        assert problem in capsys.readouterr().err


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
