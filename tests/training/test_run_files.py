import json
from dataclasses import dataclass

import pytest

from roformer_tf.errors import InputError
from roformer_tf.training.run_files import (
    SETTINGS,
    check_output,
    read_keys,
    read_metrics,
    read_settings,
    stored,
    tidy,
    write_settings,
)

LINES = [{"step": 10, "loss": 2.0}, {"step": 20, "loss": 1.0}]


def test_missing_files_are_empty(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []
    assert read_keys(tmp_path / "report.json", json.loads) == {}
    assert read_settings(tmp_path) == {}


@pytest.mark.parametrize("end", ['{"step": 30, "lo', '{"step": 30, "loss": 3.0}', "中"])
def test_an_incomplete_last_line_is_ignored(tmp_path, end):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES) + end, encoding="utf-8")
    assert read_metrics(path) == LINES


def test_a_damaged_line_is_named_with_its_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10}\n{"loss": 3}\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2: this is not a line of metrics"):
        read_metrics(path)


def test_a_damaged_report_is_named(tmp_path):
    (tmp_path / "report.json").write_text('{\n"valid": {\n"accuracy": 0.')
    with pytest.raises(InputError, match=r"report\.json: this is damaged: .* line 3 "):
        read_keys(tmp_path / "report.json", json.loads)


@pytest.mark.parametrize("folder", [".", "adapted", "export", "trials/seed-1", "checkpoints"])
def test_temporary_files_of_a_killed_process_are_removed(folder, tmp_path):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    temporary = tmp_path / folder / ".texts.jsonl.abcdefgh.tmp"
    temporary.write_text("half")
    tidy(tmp_path)
    assert temporary.exists()  # not the folder of a run
    (tmp_path / SETTINGS).write_text("seed: 0\n")
    tidy(tmp_path)
    assert not temporary.exists()


@pytest.mark.parametrize("folder", [".", "trials/rate-0.001-seed-0"])
def test_examples_in_memory_may_change_until_the_run_has_saved_something(folder, tmp_path):
    path = tmp_path / "train.jsonl"
    with stored({path: "first"}, tmp_path):
        (tmp_path / SETTINGS).write_text("seed: 0\n")
    training = tmp_path / folder
    training.mkdir(parents=True, exist_ok=True)
    (training / "metrics.jsonl").write_text("")
    with stored({path: "second"}, tmp_path):
        assert path.read_text() == "second"
    (training / "checkpoints").mkdir()
    with (
        pytest.raises(InputError, match=r"holds other examples .*train\.jsonl differs"),
        stored({path: "third"}, tmp_path),
    ):
        pass
    assert path.read_text() == "second"


def test_a_finished_run_takes_another_test_set_from_memory(tmp_path):
    """As the command does for --test: its report has the figures of the new one."""
    path = tmp_path / "test.jsonl"
    (tmp_path / SETTINGS).write_text("seed: 0\n")
    (tmp_path / "checkpoints").mkdir()
    for content in ("first", "second"):
        with stored({path: content}, tmp_path):
            assert path.read_text() == content


def test_a_file_of_the_user_is_not_replaced_by_examples_in_memory(tmp_path):
    """A folder without a run may hold the data that the examples were read from."""
    path = tmp_path / "train.jsonl"
    content = "用户的数据".encode("gb18030")
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"train\.jsonl differs"), stored({path: "new"}, tmp_path):
        pass
    assert path.read_bytes() == content


@dataclass(frozen=True)
class Config:
    """Settings of a run on a file."""

    train: str
    output: str


def test_a_run_in_a_moved_folder_continues_on_files_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_settings(Config("runs/a/train.jsonl", "runs/a/"))
    (tmp_path / "runs" / "a" / "model").mkdir()
    absolute = str(tmp_path / "runs" / "a")
    check_output(Config(f"{absolute}/train.jsonl", absolute), ["output"])
    (tmp_path / "runs").rename(tmp_path / "b")
    check_output(Config("b/a/train.jsonl", "./b/a"), ["output"])
    monkeypatch.chdir(tmp_path / "b" / "a")
    check_output(Config("train.jsonl", "."), ["output"])
    for train in ("../train.jsonl", "valid.jsonl"):
        with pytest.raises(InputError, match=r"--train was 'train\.jsonl' and is '"):
            check_output(Config(train, "."), ["output"])
