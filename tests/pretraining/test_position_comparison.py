"""`compare-positions`: runs that differ in their positions alone, and what is made of them."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy.stats import ttest_1samp

from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.corpus.masking import MaskingConfig
from roformer_tf.errors import DivergedError, InputError
from roformer_tf.pretraining import compared_run, position_comparison
from roformer_tf.pretraining.compared_run import RunResult, in_own_process, row_losses
from roformer_tf.pretraining.position_comparison import (
    DEMO,
    POSITIONS,
    ComparePositionsConfig,
    compared,
    row_interval,
    seed_interval,
    write_report,
)
from roformer_tf.runs.optimizers.settings import OptimizerConfig
from roformer_tf.runs.run_files import read_settings
from tests.support.own_process import process_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def flags(write_corpus, tmp_path_factory):
    """Flags of a comparison of tiny models but for the output, as typed."""
    folder = tmp_path_factory.mktemp("tiny")
    corpus = write_corpus(folder / "corpus.txt", 80)
    architecture = folder / "architecture.json"
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    architecture.write_text(json.dumps({"vocab_size": 1, "intermediate_size": 64} | sizes))
    return [
        *("--corpus", str(corpus), "--architecture", str(architecture), "--tokenization", "char"),
        *("--vocab-size", "200", "--length", "32", "--batch-size", "8", "--held-out", "0.1"),
        *("--steps", "2", "--evaluations", "2", "--workers", "1", "--precision", "float32"),
    ]


@pytest.fixture(scope="module")
def finished(flags, tmp_path_factory, eagerly):
    """The folder of a finished comparison of two kinds with two seeds, killed once on the way."""
    output = tmp_path_factory.mktemp("compared") / "run"
    begun = []

    def call(function, config):
        begun.append(Path(config.output).name)
        if begun == ["rotary-0", "t5-0", "rotary-1"]:
            raise KeyboardInterrupt
        with eagerly():
            return function(config)

    words = ["compare-positions", *flags, "--output", str(output), "--seeds", "2"]
    words += ["--positions", "rotary", "t5"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(position_comparison, "in_own_process", call)
        assert main(words) == 130
        halfway = json.loads((output / "comparison.json").read_text(encoding="utf-8"))
        assert main(words) == 0
    return output, halfway, begun


def report_of(output):
    return json.loads((output / "comparison.json").read_text(encoding="utf-8"))


def test_all_files_are_written_and_a_killed_comparison_goes_on(finished):
    output, halfway, begun = finished
    kinds = ["rotary", "t5"]
    first, second = ([f"{kind}-{seed}" for kind in kinds] for seed in (0, 1))
    assert begun == [*first, "rotary-1", *first, *second]
    assert (halfway["seeds"], halfway["interval_over"]) == (1, "held-out rows")
    files = {path.name for path in output.iterdir() if path.is_file()}
    assert files == {"settings.yaml", *(f"comparison.{x}" for x in ("json", "md", "html", "png"))}
    report = report_of(output)
    assert (report["seeds"], report["baseline"], report["steps"]) == (2, "rotary", 2)
    assert list(report["positions"]) == kinds
    assert not list(output.glob("runs/*/checkpoints"))


def test_runs_differ_in_positions_and_seeds_alone(finished):
    output, *_ = finished
    settings = {p.name: read_settings(p) for p in (output / "runs").iterdir()}
    for kind in ("rotary", "t5"):
        one, other = settings[f"{kind}-0"], settings[f"{kind}-1"]
        assert {key for key in one if one[key] != other[key]} == {"output", "seed"}
        changed = {key for key in one if one[key] != settings["rotary-0"][key]}
        assert changed <= {"output", "architecture"}
        made = RoFormerConfig.from_file(one["architecture"])
        assert made.position_embedding_type == kind
        usual = RoFormerConfig.from_file(settings["rotary-0"]["architecture"])
        assert made.replace(position_embedding_type="rotary") == usual


def test_a_run_has_the_comparisons_own_settings(finished):
    """What is asked for, or is another default than that of `pretrain`, reaches every run."""
    output, *_ = finished
    asked = read_settings(output)
    keys = {"steps", "batch_size", "objective", "embeddings", "precision"}
    keys |= {one.name for part in (OptimizerConfig, MaskingConfig) for one in fields(part)}
    for run in (output / "runs").iterdir():
        settings = read_settings(run)
        assert {key: settings[key] for key in keys} == {key: asked[key] for key in keys}


def test_figures_are_those_of_the_runs(finished):
    output, *_ = finished
    report = report_of(output)
    for kind, one in report["positions"].items():
        results = [
            json.loads((output / "runs" / f"{kind}-{seed}" / "result.json").read_text())
            for seed in (0, 1)
        ]
        losses = [result["held_out_loss"] for result in results]
        assert one["by_seed"] == losses
        assert one["held_out_loss"] == pytest.approx(np.mean(losses))
        steps = [step for step, _ in one["curve"]]
        assert steps == [0, 1, 2]
        last = [result["curve"][-1][1] for result in results]
        assert one["curve"][-1][1] == pytest.approx(np.mean(last))
        assert one["held_out_loss"] == pytest.approx(one["curve"][-1][1], abs=1e-4)
        for seed, loss in enumerate(losses):
            sums, counts = row_losses(output / "runs" / f"{kind}-{seed}")
            assert sums.sum() / counts.sum() == pytest.approx(loss)
        assert one["seconds_per_step"] > 0
        if kind != "rotary":
            gaps = np.subtract(losses, report["positions"]["rotary"]["by_seed"])
            assert one["difference"] == pytest.approx(gaps.mean())
            assert one["interval"] == pytest.approx(seed_interval(gaps))
    weights = {kind: one["parameters"] for kind, one in report["positions"].items()}
    assert weights["t5"] == weights["rotary"] + 32 * 2


def test_of_one_seed_the_interval_is_over_rows_and_of_the_same_sign(finished):
    output, halfway, _ = finished
    found, usual = (halfway["positions"][kind] for kind in ("t5", "rotary"))
    assert found["difference"] == found["held_out_loss"] - usual["held_out_loss"]
    rows = [row_losses(output / "runs" / f"{kind}-0") for kind in ("t5", "rotary")]
    assert found["interval"] == row_interval(*rows)


def test_masks_are_the_same_and_the_models_are_not(finished):
    output, *_ = finished
    for seed in (0, 1):
        rows = [row_losses(output / "runs" / f"{kind}-{seed}") for kind in ("rotary", "t5")]
        np.testing.assert_array_equal(rows[0][1], rows[1][1])
        assert (rows[0][0] != rows[1][0]).any()


def test_the_page_and_the_table_show_every_kind(finished):
    output, *_ = finished
    report = report_of(output)
    for name in ("comparison.md", "comparison.html"):
        page = (output / name).read_text(encoding="utf-8")
        for kind, one in report["positions"].items():
            assert re.search(rf"{kind}\b.*{one['held_out_loss']:.4f}", page, re.DOTALL)
        assert "below 0 is better" in page
    page = (output / "comparison.html").read_text(encoding="utf-8")
    assert "data:image/svg+xml" in page
    assert not re.search(r"(src|href)=\"(?!data:)", page)  # one file that needs no other
    assert (output / "comparison.png").read_bytes().startswith(b"\x89PNG")


def typed(flags, output, *more):
    return ["compare-positions", *flags, "--output", str(output), *more]


def test_what_is_done_is_not_done_again_and_other_settings_are_refused(
    finished, flags, tmp_path, monkeypatch, capsys
):
    output = shutil.copytree(finished[0], tmp_path / "run")
    begun = []

    def call(function, config):
        begun.append(Path(config.output).name)
        if not (Path(config.output) / "result.json").exists():
            raise KeyboardInterrupt
        return function(config)

    monkeypatch.setattr(position_comparison, "in_own_process", call)
    before = report_of(output)["positions"]
    kinds = ("--positions", "rotary", "t5")
    assert main(typed(flags, output, "--seeds", "2", *kinds)) == 0
    assert report_of(output)["positions"] == before
    begun.clear()
    assert main(typed(flags, output, "--seeds", "3", *kinds, "learned")) == 130
    assert begun == ["rotary-0", "t5-0", "learned-0"]
    capsys.readouterr()
    assert main([*typed(flags, output, "--seeds", "2", *kinds), "--steps", "5"]) == 2
    assert "other settings: steps was 2 and is 5" in capsys.readouterr().err


def test_where_the_next_token_is_learned_all_kinds_look_back_alone(flags, tmp_path, monkeypatch):
    def call(function, config):
        made = RoFormerConfig.from_file(config.architecture)
        assert (config.objective, made.attention_type) == ("causal", "causal")
        assert (made.hidden_size, made.position_embedding_type) == (32, "t5")
        raise KeyboardInterrupt

    monkeypatch.setattr(position_comparison, "in_own_process", call)
    kinds = ("--positions", "t5", "rotary", "--objective", "causal")
    assert main(typed(flags, tmp_path / "run", *kinds)) == 130


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--positions rotary", "compares nothing"),
        ("--positions rotary rotary", "compares nothing"),
        ("--positions rotary alibi", "alibi"),
        ("--seeds 0", "seeds is 0"),
        ("--held-out 0", "nothing to compare by"),
        ("--objective causal --mask-rate 0.3", "--objective causal masks none"),
    ],
)
def test_bad_input_is_one_message(flags, words, said, tmp_path, capsys):
    try:
        code = main([*typed(flags, tmp_path / "run"), *words.split()])
    except SystemExit as stopped:  # a flag's value
        code = stopped.code
    assert code == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_without_an_architecture_it_is_the_demos():
    demo = RoFormerConfig.from_file(ROOT / "pretrain" / "configs" / "demo.json")
    assert demo == DEMO
    config = ComparePositionsConfig(corpus=("x",), output="y")
    assert (config.vocab_size, config.vocab) == (20_000, None)
    assert ComparePositionsConfig(corpus=("x",), output="y", vocab="v").vocab_size is None
    recipe = yaml.safe_load((ROOT / "pretrain/configs/demo.yaml").read_text(encoding="utf-8"))
    assert recipe["optimizer"] == config.optimizer.optimizer
    assert float(recipe["learning-rate"]) == config.optimizer.learning_rate
    assert recipe["mask-rate"] == config.masking.mask_rate
    assert recipe["embeddings"] == config.embeddings


def test_each_kind_changes_the_architecture_as_its_name_says():
    made = {name: DEMO.replace(**changes) for name, changes in POSITIONS.items()}
    assert made.pop("partial-rotary") == DEMO.replace(rotary_share=0.25)
    assert {name: x.position_embedding_type for name, x in made.items()} == {x: x for x in made}


# Statistics


def test_the_interval_over_seeds_is_students():
    gaps = np.array([0.03, 0.05, 0.01, 0.06])
    want = ttest_1samp(gaps, 0).confidence_interval(0.95)
    np.testing.assert_allclose(seed_interval(gaps), [want.low, want.high])


def test_the_interval_over_rows_is_paired():
    """Rows are far apart, their differences are not."""
    rng = np.random.default_rng(0)
    counts = rng.integers(10, 20, 300).astype(float)
    hard = counts * rng.normal(5, 2, 300)
    low, high = row_interval((hard + 0.1 * counts, counts), (hard, counts))
    assert low == pytest.approx(0.1)
    assert high == pytest.approx(0.1)
    noise = counts * rng.normal(0, 0.5, 300)
    low, high = row_interval((hard + noise, counts), (hard, counts))
    error = 1.96 * np.sqrt(((noise - noise.sum() / counts.sum() * counts) ** 2).sum())
    assert high - low == pytest.approx(2 * error / counts.sum(), rel=0.1)


def test_only_seeds_that_every_kind_has_are_compared(tmp_path):
    config = ComparePositionsConfig(corpus=("x",), output=str(tmp_path))
    one = RunResult(5.0, 0.1, [(0, 9.0), (10, 5.0)], 0.5, 2**30, 7)
    worse = replace(one, held_out_loss=5.5, curve=[(0, 9.0), (10, 5.5)], peak_memory=None)
    results = {"rotary": [one, one, worse], "none": [worse, worse]}
    report = compared(config, results)
    assert report["seeds"] == 2
    assert report["positions"]["rotary"]["held_out_loss"] == 5.0
    assert report["positions"]["none"]["difference"] == 0.5
    assert report["positions"]["rotary"]["peak_memory"] == 2**30
    assert report["positions"]["none"]["peak_memory"] is None
    write_report(tmp_path, report)  # a figure that nobody tells is left open
    assert "| none | 5.5000 |" in (tmp_path / "comparison.md").read_text(encoding="utf-8")


# A process of its own


def test_a_run_has_a_process_of_its_own():
    answer = in_own_process(process_of, "x")
    assert answer["argument"] == "x"
    assert answer["process"] != os.getpid()
    for error in (InputError("bad"), DivergedError("NaN")):
        with pytest.raises(type(error), match=str(error)):
            in_own_process(process_of, error)
    with pytest.raises(InputError, match=r"killed \(exit code 9\).*continues"):
        in_own_process(process_of, "killed")


def test_the_process_can_be_made_without_keras():
    """It imports what it is told to run; Keras comes with that, quietly."""
    code = f"import sys, {compared_run.__name__}; print('keras' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
