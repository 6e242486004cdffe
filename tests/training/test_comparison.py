import json
import os
import re
from pathlib import Path

import pytest
import yaml

from roformer_tf.errors import InputError
from roformer_tf.terminal import printable
from roformer_tf.training.comparison import (
    FINE_TUNING,
    PRETRAINING,
    best_evaluation,
    cells,
    figures,
    find_runs,
    named,
    read_run,
    state,
    tables,
)
from roformer_tf.training.run_files import METRICS_FILE

FIGURES = {"accuracy": 0.9, "macro_f1": 0.85}


def write_lines(path, lines, end=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + end, encoding="utf-8")
    return path


def write_run(folder, lines=(), evaluations=(), **settings):
    """Write a run folder of `pretrain`, or of `finetune` with `epochs`, without empty files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"metrics.jsonl": lines, "evaluations.jsonl": evaluations}
    for name, content in files.items():
        if content:
            write_lines(folder / name, content)
    if settings:
        text = yaml.safe_dump(settings | {"output": str(folder)}, allow_unicode=True)
        (folder / "settings.yaml").write_text(text, encoding="utf-8")
    return folder


def losses(*values, every=10):
    return [{"step": every * (1 + number), "loss": x} for number, x in enumerate(values)]


def held_out(step, loss, accuracy=0.5):
    return {"step": step, "held_out_loss": loss, "held_out_accuracy": accuracy}


def read(*folders):
    return [read_run(*pair) for pair in named(folders).items()]


def table_lines(*folders, width=100):
    return list(tables(read(*folders), width))


def columns(text):
    """Return the width of a text in a terminal: two columns for wide characters.

    This is independent of the code under test.
    """
    return len(text) + len(re.findall(r"[\u3000-\u30ff\u4e00-\u9fff\uff00-\uff60]", text))


# --- The figures of a run ----------------------------------------------------------------------


@pytest.mark.parametrize(("count", "of"), [(1, 1), (99, 1), (199, 1), (200, 2), (1000, 10)])
def test_the_loss_is_the_mean_of_the_last_percent_of_lines(tmp_path, count, of):
    values = [1000.0 / (1 + number) for number in range(count)]
    (run,) = read(write_run(tmp_path / "run", losses(*values)))
    assert cells(run)["loss"] == f"{sum(values[-of:]) / of:.4f}"


def test_the_figures_are_those_of_the_lines(tmp_path):
    lines = [
        {"step": 3, "loss": 5.0, "tokens_per_second": 100.0, "gradient_norm": 3.5},
        {"step": 6, "loss": 4.0, "tokens_per_second": None, "gradient_norm": 2.5},
        {"step": 9, "loss": 3.0, "tokens_per_second": 300.0},
        {"step": 12, "loss": 2.0, "tokens_per_second": 110.0},
    ]
    evaluations = [held_out(0, 9.0, 0.1), held_out(8, 2.5, 0.4), held_out(12, 2.75, 0.3)]
    write_run(tmp_path / "run", lines, evaluations, steps=22)
    assert table_lines(tmp_path / "run") == [
        "name             state    loss  held-out  accuracy  best held-out  tokens/s",
        "run   at step 12 of 22  2.0000    2.7500    30.00%    2.5000 at 8       110",
    ]


@pytest.mark.parametrize(
    ("lengths", "best"),
    [
        ([32, 32, 32], (1.5, 10)),
        ([32, 64, 64], (1.75, 30)),
        ([32, 64, 32], (1.75, 30)),  # only evaluations since the last change of length count
    ],
)
def test_the_best_loss_is_chosen_among_equal_lengths(tmp_path, lengths, best):
    evaluations = [held_out(10, 1.5), held_out(20, 2.0), held_out(30, 1.75)]
    for line, length in zip(evaluations, lengths, strict=True):
        line["length"] = length
        line["held_out_by_corpus"] = {"news": {"loss": 0.5, "accuracy": 1.0}}
    (run,) = read(write_run(tmp_path / "run", losses(2.0), evaluations, steps=40))
    assert best_evaluation(run.evaluations) == best[::-1]
    assert cells(run)["best held-out"] == f"{best[0]:.4f} at {best[1]}"
    assert cells(run)["held-out"] == "1.7500"


def test_mfu_is_shown_if_known(tmp_path):
    shares = [None, 0.5, 0.25, 0.375]
    lines = [line | {"mfu": x} for line, x in zip(losses(5.0, 4.0, 3.0, 2.0), shares, strict=True)]
    write_run(tmp_path / "a", lines, steps=40)
    write_run(tmp_path / "b", losses(2.0), steps=40)
    assert table_lines(*find_runs(tmp_path))[:3] == [
        "name                state    loss    mfu",
        "a     finished at step 40  2.0000  37.5%",  # the median
        "b        at step 10 of 40  2.0000      -",
    ]


@pytest.mark.parametrize(
    ("lines", "evaluations", "settings", "state"),
    [
        (losses(2.0), [], {"steps": 10}, "finished at step 10"),
        (losses(2.0), [], {"steps": 1200}, "at step 10 of 1,200"),
        (losses(2.0), [held_out(16, 2.0)], {"steps": 1200}, "at step 16 of 1,200"),
        ([], [], {"steps": 1200}, "at step 0 of 1,200"),
        ([], [held_out(0, 9.0)], {"steps": 1200}, "at step 0 of 1,200"),
        (losses(2.0), [], {}, "at step 10"),
        (losses(2.0), [], {"steps": "many"}, "at step 10"),
        (
            losses(2.0),
            [],
            {"steps": 100_000, "stages": ["length=512 steps=10", "batch-size=8, steps=5 new=1"]},
            "at step 10 of 15",
        ),
        (losses(2.0), [], {"batch_size": 32}, "at step 10"),
        (losses(2.0), [], {"epochs": 3}, "at step 10"),
        (losses(2.0), [{"step": 10, "epoch": 1.0} | FIGURES], {"epochs": 3}, "at step 10 of 30"),
        (losses(2.0), [{"step": 0, "epoch": 0.0} | FIGURES], {"epochs": 3}, "at step 10"),
    ],
)
def test_the_state_shows_the_progress_of_a_run(tmp_path, lines, evaluations, settings, state):
    run = write_run(tmp_path / "run", lines or losses(), evaluations, **settings)
    (run / "metrics.jsonl").touch()
    rows = table_lines(run)
    place = rows[0].index("state") + len("state")
    assert rows[1][:place].split(maxsplit=1)[1] == state


def test_runs_without_figures_are_shown(tmp_path):
    """Runs with missing files, missing values or old keys are shown with dashes."""
    write_run(tmp_path / "a", steps=10)
    write_run(tmp_path / "b", losses(2.0))
    write_run(tmp_path / "c", [], [held_out(0, 9.0)], steps=10)
    write_run(tmp_path / "d", losses(2.0), [held_out(10, None, None)], steps=10)
    write_run(tmp_path / "e", [{"step": 10}], [{"step": 10, "held_out_loss": 1.5}], old_key=1)
    write_run(tmp_path / "f", [{"step": 10, "loss": float("nan")}], steps=10)
    assert table_lines(*find_runs(tmp_path))[:7] == [
        "name                state    loss  held-out  accuracy  best held-out",
        "a         at step 0 of 10       -         -         -              -",
        "b              at step 10  2.0000         -         -              -",
        "c         at step 0 of 10       -    9.0000    50.00%    9.0000 at 0",
        "d     finished at step 10  2.0000         -         -              -",
        "e              at step 10       -    1.5000         -   1.5000 at 10",
        "f     finished at step 10       -         -         -              -",
    ]


# --- Fine-tuning -------------------------------------------------------------------------------


def write_report(folder, **sets):
    (folder / "report.json").write_text(json.dumps({"judged": "test", "losses": []} | sets))
    return folder


def test_figures_of_fine_tuning_are_those_of_the_report(tmp_path):
    evaluations = [{"step": 10, "epoch": 1.0, "accuracy": 0.1, "macro_f1": 0.1}]
    run = write_run(tmp_path / "reviews", losses(0.5), evaluations, epochs=2)
    write_report(run, valid=FIGURES, test={"accuracy": 0.8, "macro_f1": 0.75})
    assert table_lines(run) == [
        "name                         state    loss",
        "reviews  finished at step 10 of 20  0.5000",
        "",
        "name     test accuracy  test macro_f1  valid accuracy  valid macro_f1",
        "reviews         0.8000         0.7500          0.9000          0.8500",
    ]


def test_figures_of_running_fine_tuning_are_those_of_the_last_epoch(tmp_path):
    evaluations = [
        {"step": 10, "epoch": 1.0, "accuracy": 0.95},
        {"step": 20, "epoch": 2.0, "accuracy": 0.9},
    ]
    (run,) = read(write_run(tmp_path / "run", losses(0.5, 0.25), evaluations, epochs=3))
    assert (run.kind, state(run)) == (FINE_TUNING, "at step 20 of 30")
    assert figures(run) == {"test": {}, "valid": {"accuracy": 0.9}}


def test_a_report_without_a_test_set_shows_validation_figures(tmp_path):
    run = write_report(write_run(tmp_path / "run", losses(0.5), epochs=1), valid=FIGURES)
    assert table_lines(run)[3] == "name  valid accuracy  valid macro_f1"


def test_a_metric_without_a_value_has_a_dash(tmp_path):
    """The run is in the table of the others all the same; one without steps is just finished."""
    run = write_run(tmp_path / "a", epochs=1)
    write_report(run, valid={"accuracy": 0.9, "macro_f1": None})
    write_report(write_run(tmp_path / "b", losses(0.5), epochs=1), valid=FIGURES)
    assert table_lines(*find_runs(tmp_path))[:6] == [
        "name                state    loss",
        "a                finished       -",
        "b     finished at step 10  0.5000",
        "",
        "name  valid accuracy  valid macro_f1",
        "a             0.9000               -",
    ]


def test_tasks_with_different_metrics_have_separate_tables(tmp_path):
    for name, valid in (("a", FIGURES), ("b", {"pearson": 0.5}), ("c", FIGURES)):
        write_report(write_run(tmp_path / name, losses(0.5), epochs=1), valid=valid)
    text = "\n".join(table_lines(*find_runs(tmp_path)))
    assert re.search(r"\nname  valid accuracy .*\na .*\nc .*\n\nname  valid pearson\nb ", text)


def test_the_running_trial_is_shown(tmp_path):
    run = write_run(tmp_path / "run", epochs=2)
    for number, name in enumerate(["rate-2-seed-0", "rate-1-seed-0"]):  # in the order of start
        folder = write_run(run / "trials" / name, losses(1.0 + number))
        os.utime(folder / "metrics.jsonl", (number, number))
    assert table_lines(run)[1] == "run   at step 10, training 2  2.0000"
    write_lines(run / "metrics.jsonl", losses(0.5))  # copied from the best trial
    write_report(run, valid=FIGURES)
    assert table_lines(run)[1] == "run   finished at step 10  0.5000"


def test_trials_are_runs(tmp_path):
    evaluations = [{"step": 10, "epoch": 1.0} | FIGURES]
    for name in ("fold-1", "fold-2"):
        write_run(tmp_path / "run" / "trials" / name, losses(0.5), evaluations)
    (tmp_path / "run" / "trials" / "fold-1" / "result.json").write_text('{"seconds": 3}\n')
    runs = read(*find_runs(tmp_path / "run" / "trials"))
    assert [(run.kind, state(run)) for run in runs] == [
        (FINE_TUNING, "finished at step 10"),
        (FINE_TUNING, "at step 10"),
    ]


# --- Damaged files -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [b'{"step": 20, "lo', b"\0\0\0\0", b"\xff\xfe", b"", b"[1]", b"3", b'{"loss": 1.0}',
     b'{"step": "x"}', b'{"step": null}'],
)  # fmt: skip
def test_a_damaged_line_is_named(tmp_path, damage):
    run = write_run(tmp_path / "run", losses(3.0, 2.0, 1.0))
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], damage, *lines[2:]]))
    with pytest.raises(InputError, match=r"run/metrics\.jsonl, line 2: .*Remove the line"):
        read(run)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"steps: 3\nseed: [1\n", "line 3"),
        (b"steps: 3\n\tseed: 1\n", "line 2"),
        (b"steps: 3\nseed: !!python/name:os.system\n", "line 2"),
        ("steps: 3\noutput: 模型\nseed: \x00\n".encode(), "position 26"),
        (b"steps: 3\noutput: \xc4\xa3\xd0\xcd\n", "can't decode"),  # GBK
        (b"at: 2026-13-40\n", "month"),
        (b"- steps\n", "no keys with values"),
        (b"", "no keys with values"),
    ],
)
def test_damaged_settings_are_named(tmp_path, content, problem):
    run = write_run(tmp_path / "run", losses(1.0))
    (run / "settings.yaml").write_bytes(content)
    with pytest.raises(InputError, match=rf"run/settings\.yaml: .*{problem}.*give another folder"):
        read(run)


# --- Which runs --------------------------------------------------------------------------------


def test_a_folder_of_runs_is_expanded(tmp_path):
    for name in ("b", "a", "c"):
        write_run(tmp_path / name, losses(1.0))
    write_run(tmp_path / "a" / "within", losses(1.0))
    (tmp_path / "rows").mkdir()
    (tmp_path / "notes.txt").touch()
    assert find_runs(tmp_path) == [tmp_path / name for name in "abc"]
    assert find_runs(tmp_path / "a") == [tmp_path / "a"]


@pytest.mark.parametrize("name", ["rows", "notes.txt", "nowhere"])
def test_a_folder_without_a_run_is_refused(tmp_path, name):
    (tmp_path / "rows").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match=rf"{name} holds no run.*Give the --output of a run"):
        find_runs(tmp_path / name)


def test_runs_are_named_after_their_folders(tmp_path, monkeypatch):
    for name in ("x/demo", "y/demo", "base"):
        write_run(tmp_path / name, losses(1.0))
    monkeypatch.chdir(tmp_path / "base")
    current, x, y = Path(), tmp_path / "x" / "demo", tmp_path / "y" / "demo"
    folders = [current, x, tmp_path / "base"]
    assert list(named(folders).items()) == [(current, "base"), (x, "demo")]
    assert named([y, current, x]) == {y: str(y), current: "base", x: str(x)}


def test_undecodable_names_are_escaped(tmp_path):
    assert printable("基线 a\n\udcc4\x1b[31m") == r"基线 a\n\udcc4\x1b[31m"
    try:
        run = write_run(tmp_path / os.fsdecode("基线".encode("gbk")), losses(1.0), steps=10)
    except OSError:
        pytest.skip("this file system has no such names")
    assert table_lines(run)[1].split()[0] == r"\udcbb\udcf9\udccf\udcdf"


# --- Settings that differ ----------------------------------------------------------------------


def test_settings_are_shown_if_they_differ(tmp_path):
    """Settings that differ are listed with the runs of each value.

    A run of an earlier version may lack a setting.
    """
    same = {"steps": 10, "corpus": ["a", "b"]}
    write_run(tmp_path / "base", seed=0, learning_rate=3e-5, dropout=None, **same)
    write_run(tmp_path / "fast", seed=0, learning_rate=0.001, dropout=0.1, rows=None, **same)
    write_run(tmp_path / "slow", seed=0, learning_rate=3e-5, dropout=0.1, **same)
    write_run(tmp_path / "none", losses(1.0))  # no settings to compare
    assert table_lines(*find_runs(tmp_path))[-6:] == [
        "setting        value    runs",
        "dropout        not set  base",
        "               0.1      fast, slow",
        "learning_rate  3e-05    base, slow",
        "               0.001    fast",
        "rows           not set  fast",
    ]


def test_the_steps_of_a_run_with_stages_are_not_the_default(tmp_path):
    write_run(tmp_path / "a", losses(2.0), steps=100_000, stages=["steps=10", "steps=5"])
    write_run(tmp_path / "b", losses(2.0), steps=50, stages=[])
    lines = table_lines(*find_runs(tmp_path))
    assert lines[-3:] == [
        "stages   steps=10, steps=5  a",
        "         none               b",
        "steps    50                 b",
    ]


def test_values_are_shown_on_one_line(tmp_path):
    write_run(tmp_path / "a", steps=1, corpus=["x/*", "y"], strict=True, field={"新闻": 3})
    write_run(tmp_path / "b", steps=1, corpus=[], strict=False, field="正文\n")
    assert [line.split() for line in table_lines(*find_runs(tmp_path))[-6:]] == [
        ["corpus", "x/*,", "y", "a"],
        ["none", "b"],
        ["field", '{"新闻":', "3}", "a"],
        [r"正文\n", "b"],
        ["strict", "true", "a"],
        ["false", "b"],
    ]


def test_runs_are_compared_only_with_the_same_kind(tmp_path):
    write_run(tmp_path / "p1", steps=1, seed=0)
    write_run(tmp_path / "p2", steps=1, seed=0)
    write_run(tmp_path / "f1", epochs=1, seed=0)
    write_run(tmp_path / "f2", epochs=2, seed=0)
    lines = table_lines(*find_runs(tmp_path))
    assert "The settings of pretraining are the same." in lines
    assert lines[-3:] == ["setting  value  runs", "epochs   1      f1", "         2      f2"]


# --- The tables --------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 100, 200])
def test_many_runs_fit_into_a_terminal(tmp_path, width):
    for number in range(25):
        write_run(
            tmp_path / f"第{number:02}次实验",
            losses(*[2.0] * number),
            [held_out(10, 2.0)],
            steps=1_000_000,
            seed=number % 3,
            corpus=[f"/data/corpora/very/long/path/of/text/{number}/*.jsonl.gz"] * 3,
        )
    lines = table_lines(*find_runs(tmp_path), width=width)
    assert max(map(columns, lines)) <= width
    for number in range(25):
        assert any(line.startswith(f"第{number:02}次实验 ") for line in lines)


# --- Files written by the training commands ----------------------------------------------------


def test_files_of_the_commands_are_read(tmp_path):
    from roformer_tf.finetuning.settings import FinetuneConfig
    from roformer_tf.pretraining.settings import PretrainConfig
    from roformer_tf.training import run_files
    from roformer_tf.training.run_files import metrics_file

    pretraining, tuning = tmp_path / "pretraining", tmp_path / "tuning"
    run_files.write_settings(PretrainConfig(rows="rows", output=str(pretraining), steps=20))
    run_files.write_settings(FinetuneConfig(checkpoint="x", train="y", output=str(tuning)))
    for folder in (pretraining, tuning):
        with metrics_file(folder / METRICS_FILE, resumed_at=0, board="training") as write_line:
            write_line({"step": 20, "loss": 2.0, "learning_rate": 0.1, "tokens_per_second": None})
    runs = read(pretraining, tuning)
    assert [run.kind for run in runs] == [PRETRAINING, FINE_TUNING]
    assert [state(run) for run in runs] == ["finished at step 20", "at step 20"]
