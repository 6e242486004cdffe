import pytest

from benchmarks.precision import Curve, draw, table


def test_table_has_means_and_deviations_over_seeds():
    curves = {
        "float32": [Curve([1, 2], [9.0, 4.0], 5.0), Curve([1, 2], [9.0, 6.0], 5.2)],
        "mixed_bfloat16": [Curve([1, 2], [9.0, 4.1], 5.1), Curve([1, 2], [9.0, 6.1], 5.3)],
    }
    lines = table(curves).splitlines()[2:]
    assert lines[0] == "| float32 | 5.0000 ± 1.4142 | 5.1000 ± 0.1414 |"
    assert lines[1] == "| mixed_bfloat16 | 5.1000 ± 1.4142 | 5.2000 ± 0.1414 |"
    assert lines[2] == "| bfloat16 − float32, seed by seed | +0.1000 ± 0.0000 | +0.1000 ± 0.0000 |"


def test_the_final_loss_is_the_mean_of_the_last_fifth():
    assert Curve([*range(10)], [*range(10)], 0.0).end == pytest.approx(8.5)


@pytest.mark.usefixtures("pictures")
def test_all_runs_are_drawn(tmp_path):
    curve = Curve([1, 2], [9.0, 4.0], 5.0)
    draw({"float32": [curve], "mixed_bfloat16": [curve]}, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
