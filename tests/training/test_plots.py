import warnings

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from pretrain.demo.filled_masks import FilledMask, plot_fill_masks
from roformer_tf.training import plots
from roformer_tf.training.plots import (
    Range,
    draw_calibration,
    draw_curve,
    draw_numbers,
    draw_ranges,
    plot_loss,
)

LINES = [{"step": step, "loss": 9 / (1 + step)} for step in range(5)]
HELD_OUT = {"step": 4, "held_out_loss": 2.5, "held_out_accuracy": 0.125}


@pytest.fixture(autouse=True)
def glyph_warnings_are_errors(pictures):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Glyph .* missing")
        yield


@pytest.fixture
def saved_figures(monkeypatch) -> list[Figure]:
    """The list of saved figures."""
    figures: list[Figure] = []
    save = Figure.savefig

    def recording_savefig(figure, *args, **kwargs):
        figures.append(figure)
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", recording_savefig)
    return figures


def text_pixels(folder, text: str) -> np.ndarray:
    """Return the pixels of a plot that contains only this text."""
    target = folder / "text.png"
    with plots.drawing(target, width=1, height=1) as figure:
        figure.text(0.2, 0.2, text, fontsize=40)
    return imread(target)[..., 0]


def test_chinese_is_drawn_as_characters_not_boxes(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        missing_glyph = text_pixels(tmp_path, "\uffff")  # no font has it, so a box is drawn
    drawings = [missing_glyph, *(text_pixels(tmp_path, character) for character in "中国囗")]
    for number, item in enumerate(drawings):
        assert (item < 0.5).any()
        for other in drawings[:number]:
            assert (item != other).any()


def test_dollar_signs_are_not_mathematics(tmp_path):
    assert (text_pixels(tmp_path, "$_$") != text_pixels(tmp_path, "_")).any()


@pytest.mark.parametrize("lines", [LINES, [*LINES, HELD_OUT], [HELD_OUT], []])
def test_plot_loss_writes_a_png_under_a_chinese_title(tmp_path, lines):
    plot_loss(lines, tmp_path / "runs" / "loss.png", "预训练：人民日报与评论")
    height, width, _ = imread(tmp_path / "runs" / "loss.png").shape
    assert (height, width) == (600, 1800 if HELD_OUT in lines else 900)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["loss.png"]


def test_plot_loss_draws_each_value_at_its_step(tmp_path, saved_figures):
    plot_loss([*LINES, HELD_OUT], tmp_path / "loss.png", "loss")
    loss, accuracy = saved_figures[0].axes
    training, held_out = (line.get_xydata().tolist() for line in loss.get_lines())
    assert training == [[line["step"], line["loss"]] for line in LINES]
    assert held_out == [[4, 2.5]]
    assert accuracy.get_lines()[0].get_xydata().tolist() == [[4, 0.125]]


def test_plot_fill_masks_sorts_by_probability_and_marks_the_answer(tmp_path, saved_figures):
    examples = [
        FilledMask("中央军委［　］、解放军", [("委员", 0.41), ("主席", 0.12)], answer="主席"),
        FilledMask("酒店" * 40, [("，", 0.5)], answer="。"),
    ]
    plot_fill_masks(examples, tmp_path / "masks.png", "没见过的句子")
    first, second = saved_figures[0].axes
    assert [label.get_text() for label in first.get_yticklabels()] == ["委员", "主席"]
    assert [bar.get_width() for bar in first.patches] == [0.41, 0.12]
    assert first.patches[0].get_facecolor() != first.patches[1].get_facecolor()
    assert first.yaxis_inverted()
    assert second.get_title(loc="left") == "酒店" * 20 + "\n" + "酒店" * 20


def test_draw_ranges_lists_ranges_with_their_ends(saved_figures):
    ranges = [Range("测试", 0.9, (0.85, 0.94), True), Range("baseline", 0.8, (0.7, 0.9), False)]
    draw_ranges(ranges, axis_name="accuracy", shares=True)
    axes = saved_figures[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["测试", "baseline"]
    assert axes.yaxis_inverted()
    lines = [line.get_xydata().tolist() for line in axes.get_lines()]
    assert lines == [[[0.85, 0], [0.94, 0]], [[0.9, 0]], [[0.7, 1], [0.9, 1]], [[0.8, 1]]]
    assert axes.get_lines()[1].get_color() != axes.get_lines()[3].get_color()


def test_curve_calibration_and_numbers_plot_the_data(saved_figures):
    draw_curve(
        [*LINES, HELD_OUT], "loss", step="步数", axis_name="损失", held_out=False, shares=False
    )
    bins = [{"from": 0.8, "to": 0.9, "count": 5, "probability": 0.85, "right": 0.6}]
    draw_calibration(bins, probability="预测概率", frequency="实际正确比例", count="数量")
    draw_numbers([[1.0, 1.5], [2.0, 0.5]], true="真实值", predicted="预测值")
    curve, calibration, numbers = saved_figures
    assert curve.axes[0].get_lines()[0].get_xydata().tolist() == [
        [x["step"], x["loss"]] for x in LINES
    ]
    assert calibration.axes[0].get_lines()[1].get_xydata().tolist() == [[0.85, 0.6]]
    (bar,) = calibration.axes[1].patches
    assert (bar.get_x(), bar.get_height()) == (0.8, 5)
    names = [
        (axes.get_xlabel(), axes.get_ylabel()) for figure in saved_figures for axes in figure.axes
    ]
    assert names == [
        ("步数", "损失"),
        ("", "实际正确比例"),
        ("预测概率", "数量"),
        ("真实值", "预测值"),
    ]
    assert numbers.axes[0].collections[0].get_offsets().tolist() == [[1.0, 1.5], [2.0, 0.5]]


def test_drawings_are_reproducible():
    first, second = (
        draw_numbers([[1.0, 2.0], [3.0, 4.0]], true="x", predicted="y") for _ in range(2)
    )
    assert first == second
    assert first.startswith(b"<?xml")


def test_settings_are_restored_and_a_failure_leaves_no_file(tmp_path):
    names = ("font.family", "text.parse_math")
    before = [matplotlib.rcParams[name] for name in names]
    with pytest.raises(KeyError, match="step"):
        plot_loss([{"loss": 1.0}], tmp_path / "loss.png", "loss")
    assert [matplotlib.rcParams[name] for name in names] == before
    assert not list(tmp_path.iterdir())
